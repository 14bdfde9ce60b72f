# SPDX-License-Identifier: Apache-2.0
"""kread-http in front of the real daemon with the demo model: what is said of a picture is what stands in it."""
import io
import json
import os
import sys

import pytest
from PIL import Image

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "e2e"))

import demo_daemon  # noqa: E402
from shim import Shim, png_of  # noqa: E402


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    with demo_daemon.Daemon(folder) as daemon, Shim(folder / "http", daemon.socket, "honour_client_sampling = yes") as s:
        yield s


@pytest.mark.parametrize("prompt,negative", [("a red circle", ""), ("赤い丸、青い背景", "緑"), ("caf\u00e9, \"quoted\": a\nnew line", "blurry")])
def test_info_agrees_with_the_picture(shim, prompt, negative):
    answer = shim.txt2img(prompt, negative_prompt=negative, width=32, height=32, steps=2, cfg_scale=2.5, seed=9999999999, batch_size=2).json()
    info = json.loads(answer["info"])
    for i, image in enumerate(answer["images"]):
        with Image.open(io.BytesIO(png_of(image))) as picture:
            assert picture.size == (info["width"], info["height"]) == (32, 32)
            assert picture.text["parameters"] == info["infotexts"][i]
            kread = json.loads(picture.text["kread"])
        assert kread["seed"] == info["all_seeds"][i] == 9999999999 + i
        assert (kread["prompt"], kread["negative"]) == (info["prompt"], info["negative_prompt"]) == (prompt, negative)
        assert (kread["steps"], kread["cfg"], kread["profile"]) == (info["steps"], info["cfg_scale"], info["sd_model_name"])
        assert (info["steps"], info["cfg_scale"]) == (2, 1.5)
    read = shim.post("/sdapi/v1/png-info", {"image": answer["images"][0]}).json()
    assert read["info"] == info["infotexts"][0]


def test_the_same_seed_is_the_same_picture_by_every_route(shim):
    one = shim.txt2img("a red circle", width=32, height=32, seed=5, steps=2).json()["images"][0]
    two = shim.post("/v1/images/generations", {"prompt": "a red circle", "size": "32x32", "seed": 5, "steps": 2}).json()
    id = shim.submit("a red circle", width=32, height=32, seed=5, sample_params={"sample_steps": 2})
    job = shim.finish(id)
    assert one == two["data"][0]["b64_json"] == job["result"]["images"][0]["b64_json"]
    assert job["values"]["prompt"] == "a red circle" and job["values"]["mu"] == 1.15
    assert job["values"]["steps"] == 2 and job["values"]["cfg"] == 0


def test_no_local_path_is_sent(shim):
    for path in ("/kread/v1/status", "/sdcpp/v1/capabilities", "/sdapi/v1/options", "/sdapi/v1/sd-models", "/v1/models", "/metrics",
                 "/sdapi/v1/cmd-flags", "/sdapi/v1/memory"):
        body = shim.get(path).body.decode()
        assert demo_daemon.ROOT.as_posix() not in body and shim.folder not in body and ".safetensors" not in body, path
    status = shim.get("/kread/v1/status").json()
    assert status["profile"] == "demo" and status["defaults"]["width"] == 128 and status["defaults"]["steps"] == 8
    assert status["memory"] and status["limits"]["grid"] == 16 and status["device"]
