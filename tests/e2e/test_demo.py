# SPDX-License-Identifier: Apache-2.0
"""The demo model end to end: kread on its embedded profile, kreactl, and what the pictures show."""
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from PIL import Image

from demo_daemon import BUILD, ROOT, Daemon, golden_shares, within_the_yardstick

sys.path.insert(0, str(ROOT / "demo"))
import judge  # noqa: E402

PICTURES = 48
RIGHT_AT_LEAST = 0.9  # of the pictures, in every respect at once


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    with Daemon(tmp_path_factory.mktemp("demo")) as running:
        yield running


def picture(daemon, prompt, *options):
    done = daemon.kreactl("generate", prompt, "-o", "-", *options)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def pixels(png):
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


def prompts():
    """Each line of demo/prompts.txt with its number, from 0, as the seed."""
    lines = (ROOT / "demo/prompts.txt").read_text().split("\n")[:PICTURES]
    return [(line, seed) for seed, line in enumerate(lines)]


def test_pictures_show_what_was_asked_for(daemon):
    verdicts = {(p, s): judge.judge(pixels(picture(daemon, p, "--seed", s)), p) for p, s in prompts()}
    parts = [k for k, v in next(iter(verdicts.values())).items() if isinstance(v, bool)]
    rates = {k: sum(v[k] for v in verdicts.values()) / PICTURES for k in parts}
    print("rates:", rates)
    wrong = [(p, s, [k for k in parts if not v[k]]) for (p, s), v in verdicts.items() if not v["ok"]]
    assert rates["ok"] >= RIGHT_AT_LEAST, (rates, wrong)


def test_the_judge_is_not_easily_pleased(daemon):
    """A picture of one prompt, judged by another that differs in one respect, is refused."""
    prompt = "a red circle above a blue square on a white background"
    image = pixels(picture(daemon, prompt, "--seed", 42))
    assert judge.judge(image, prompt)["ok"]
    for other in ("a green circle above a blue square on a white background",
                  "a red star above a blue square on a white background",
                  "a red circle below a blue square on a white background",
                  "a red circle above a blue square on a yellow background",
                  "a red circle on a white background"):
        assert not judge.judge(image, other)["ok"], other


def test_the_same_request_gives_the_same_bytes(daemon):
    prompt = "a large yellow star on a blue background"
    first = picture(daemon, prompt, "--seed", 7)
    picture(daemon, "a small red heart on a white background", "--seed", 8)
    assert picture(daemon, prompt, "--seed", 7) == first
    assert picture(daemon, prompt, "--seed", 9) != first


def test_the_values_in_the_png_make_it_again(daemon):
    prompt = "a green cross left of a purple heart on a black background"
    first = picture(daemon, prompt, "--width", 192, "--height", 128)
    values = json.loads(Image.open(io.BytesIO(first)).text["kread"])
    options = []
    for name in ("negative", "width", "height", "steps", "cfg", "seed", "mu", "rng", "dialect"):
        if values.get(name) not in (None, ""):
            options += ["--" + name.replace("_", "-"), values[name]]
    assert values["width"] == 192 and values["height"] == 128 and values["prompt"] == prompt
    assert picture(daemon, values["prompt"], *options) == first


def test_count_makes_the_pictures_of_the_following_seeds(daemon, tmp_path):
    prompt = "a cyan triangle on the left on a red background"
    done = daemon.kreactl("generate", prompt, "--seed", 100, "--count", 2, "-o", tmp_path / "p%d.png")
    assert done.returncode == 0, done.stderr.decode()
    paths = done.stdout.decode().split()
    assert len(paths) == 2
    for i, path in enumerate(paths):
        single = pixels(picture(daemon, prompt, "--seed", 100 + i))
        assert np.array_equal(np.asarray(Image.open(path).convert("RGB")), single)


def test_a_size_off_the_grid_is_rounded_up_with_a_warning(daemon):
    done = daemon.kreactl("generate", "a red circle on a white background", "--width", 100,
                          "--height", 50, "--seed", 1, "-o", "-")
    assert done.returncode == 0
    assert Image.open(io.BytesIO(done.stdout)).size == (112, 64)
    assert b"112" in done.stderr and b"64" in done.stderr


def test_guidance_with_a_negative_prompt_changes_the_picture(daemon):
    prompt = "a blue square on a white background"
    plain = picture(daemon, prompt, "--seed", 5, "--cfg", 0)
    guided = picture(daemon, prompt, "--seed", 5, "--cfg", 1.5)
    negative = picture(daemon, prompt, "--seed", 5, "--cfg", 1.5, "--negative", "a red heart")
    assert len({plain, guided, negative}) == 3


def test_a_model_file_cut_while_it_is_read_is_named_as_the_cause(tmp_path):
    copy = tmp_path / "copy.safetensors"
    shutil.copy(ROOT / "demo/krea2_demo_fp8_scaled.safetensors", copy)
    with Daemon(tmp_path, "--diffusion-model", copy) as d:
        assert d.kreactl("generate", "--steps", 1000, "--detach", "a red circle").returncode == 0
        time.sleep(0.5)
        os.truncate(copy, 0)
        assert d.process.wait(30) == -signal.SIGBUS
    assert "a model file became shorter" in d.errors


def test_the_trace_equals_the_reference(tmp_path):
    shares = golden_shares(tmp_path)
    assert within_the_yardstick(shares), shares


def test_a_device_that_is_not_there_is_refused_by_check_and_by_start(tmp_path):
    env = dict(os.environ, XDG_CONFIG_HOME=str(tmp_path), KREAD_DEMO_DIR=str(ROOT / "demo"),
               KREAD_CUDA_MODULE=str(tmp_path / "kread-cuda.so"))
    for more in (["--check-config"], ["--socket", str(tmp_path / "s")]):
        done = subprocess.run([BUILD / "kread", "--device", "cuda", *more], env=env, text=True,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
        assert done.returncode == 1 and "CUDA module can't be loaded" in done.stderr, (more, done)
        assert len(done.stderr.strip().split("\n")) == 1
