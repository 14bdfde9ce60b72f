# SPDX-License-Identifier: Apache-2.0
"""Memory runs out at every so manieth allocation while the files of a model are looked at, and at each
while settings are read: whatever it hits, the program ends with one sentence, or does without."""
import errno
import os
import re
import subprocess

import pytest

from demo_daemon import BUILD, ROOT

SOURCE = ROOT / "tests" / "server" / "preload" / "faults.c"
SETS = ("halves", "plain", "prefixed", "scaled")
EVERY = 1 if os.environ.get("KREAD_FAULTS") == "all" else 97
ONE_BY_ONE = 20  # the first ones, of the config and the options

with open(BUILD / "kread", "rb") as _binary:
    SANITIZED = re.search(rb"__(asan|tsan)_init", _binary.read()) is not None
pytestmark = pytest.mark.skipif(SANITIZED, reason="a sanitizer wants to be the first library")


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    path = tmp_path_factory.mktemp("shim") / "faults.so"
    subprocess.run(["cc", "-std=c11", "-D_GNU_SOURCE", "-O1", "-fno-builtin", "-shared", "-fPIC", SOURCE, "-o", path],
                   check=True)
    return str(path)


def config_of(name, folder):
    """The options for a golden set as the profile; the demo needs none."""
    if name == "demo":
        return []
    files = ROOT / "tests" / "golden" / name
    path = folder / "kread.ini"
    path.write_text("[kread]\ndefault_profile = it\n[profile it]\narchitecture = krea2\nvariant = turbo\n"
                    + "".join("%s = %s\n" % (key, files / file) for key, file in
                              (("diffusion_model", "dit.safetensors"), ("text_encoder", "te.safetensors"),
                               ("vae", "vae.safetensors"), ("tokenizer", "tokenizer"))))
    return ["--config", path]


@pytest.mark.parametrize("name", ["demo", *SETS])
def test_inspect_without_memory(tmp_path, shim, name):
    env = dict(os.environ, XDG_CONFIG_HOME=str(tmp_path), KREAD_DEMO_DIR=str(ROOT / "demo"))
    command = [BUILD / "kread", "--inspect", *config_of(name, tmp_path)]
    assert subprocess.run(command, env=env, capture_output=True).returncode == 0
    mark, n, hit = tmp_path / "mark", 1, 0
    while True:
        env.update(LD_PRELOAD=shim, KREAD_FAULT="alloc:%d:%d" % (n, errno.ENOMEM), KREAD_FAULT_MARK=str(mark))
        got = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
        if not mark.exists():
            assert got.returncode == 0, got
            break
        mark.unlink()
        assert got.returncode in (0, 1), (n, got)
        if got.returncode:
            assert got.stderr.startswith("kread: ") and got.stderr.count("\n") == 1, (n, got.stderr)
            assert len(got.stderr) > len("kread: x\n"), n
            assert "damaged" not in got.stderr, (n, got.stderr)  # the file is not to blame
        hit += 1
        n += 1 if n < ONE_BY_ONE else EVERY
    assert hit > ONE_BY_ONE


def settings_of(program, folder):
    """A command line and an environment in which every way to a setting is gone."""
    config = folder / "kread" / "kread.ini"
    config.parent.mkdir()
    config.write_text("[kread]\nlog_level = warn\nsocket = s\nallow_users = root\n[http]\ncors = a b\ntoken_file = token\nhosts = c\n"
                      "[generation]\nnegative = dull\n[profile mine]\narchitecture = krea2\nvariant = raw\nvae = v\n"
                      "diffusion_model = d\ntext_encoder = e\ntokenizer = t\nnegative = ugly\n")
    (config.parent / "token").write_text("x" * 20)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("KREAD_", "XDG_", "STATE_"))}
    env.update(XDG_CONFIG_HOME=str(folder), HOME=str(folder), KREAD_DEMO_DIR=str(ROOT / "demo"))
    more = ["--profile", "demo", "--trace", "t", "--vae=v"] if program == "kread" else ["--cors", "c", "--cors", "d", "--listen=127.0.0.1:1"]
    return [BUILD / program, "--check-config", *more], env, config


@pytest.mark.parametrize("named", [False, True], ids=["found", "named"])
@pytest.mark.parametrize("program", ["kread", "kread-http"])
def test_settings_without_memory(tmp_path, shim, program, named):
    """What could not be kept for want of memory is never taken for something that is not there."""
    command, env, config = settings_of(program, tmp_path)
    if named:
        command += ["--config", config]
    want = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert want.returncode == 0 and ("log_level = warn\n" if program == "kread" else "cors = c d\n") in want.stdout, want
    mark, n = tmp_path / "mark", 0
    while True:
        n += 1
        env.update(LD_PRELOAD=shim, KREAD_FAULT="alloc:%d:%d" % (n, errno.ENOMEM), KREAD_FAULT_MARK=str(mark))
        got = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        if got.returncode == 0:
            assert got.stdout == want.stdout and got.stderr == want.stderr, n
        else:
            assert got.returncode == 1 and got.stdout == "" and got.stderr.count("\n") == 1, (n, got)
            assert re.match(program + ": .*memory", got.stderr), (n, got.stderr)
        if not mark.exists():
            break
        mark.unlink()
    assert n > (20 if program == "kread" else 10), n
