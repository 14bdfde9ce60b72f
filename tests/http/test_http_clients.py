# SPDX-License-Identifier: Apache-2.0
"""What real front ends send, request by request, as ../shared/spec/http-contract.md describes them: no more headers
and no fewer than they send, and only what they look at is checked."""
import json
import re
import time

import pytest

from harness import Daemon, wait_until
from shim import Shim, png_of, png_size, request


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clients")
    with Daemon(folder) as daemon, Shim(folder / "http", daemon) as s:
        yield s


def parse(data):
    head, _, body = data.partition(b"\r\n\r\n")
    return int(head.split()[1]), head.decode(), body


def exact(shim, method, path, body=b"", *headers):
    """Exactly these bytes: node-fetch and fetch() send few headers."""
    return parse(shim.raw(request(method, path, body, "Connection: close", *headers)))


# -------------------------------------------------------------------------- SillyTavern, sdcpp ---

def test_sillytavern_sdcpp(shim):
    status, _, body = exact(shim, "OPTIONS", "/v1/images/generations")
    assert status == 204 and body == b""
    status, head, body = exact(shim, "GET", "/v1/models")
    models = [(m["id"], m.get("name") or m["id"]) for m in json.loads(body)["data"]]
    assert status == 200 and models == [("test", "test")]
    asked = {"model": "stale-model", "prompt": "a fox", "negative_prompt": "blurry", "width": 512, "height": 512, "steps": 20,
             "cfg_scale": 7, "seed": 1234, "batch_size": 1, "sampler_name": "euler_a", "scheduler": "discrete", "clip_skip": 2}
    status, _, body = exact(shim, "POST", "/sdapi/v1/txt2img", json.dumps(asked).encode(), "Content-Type: application/json")
    assert status == 200 and png_size(png_of(json.loads(body)["images"][0])) == (512, 512)


# --------------------------------------------------------------------------- SillyTavern, auto ---

AUTO = ["/sdapi/v1/options", "/sdapi/v1/samplers", "/sdapi/v1/schedulers", "/sdapi/v1/sd-models", "/sdapi/v1/upscalers",
        "/sdapi/v1/latent-upscale-modes", "/sdapi/v1/sd-vae", "/sdapi/v1/sd-modules", "/sdapi/v1/options"]


def test_sillytavern_auto_burst_while_a_render_runs(shim):
    """Nine requests at once, each answered at once; the empty password gives "Basic " and nothing after it."""
    render = shim.start("POST", "/sdapi/v1/txt2img", {"prompt": "x ms=250", "seed": 1})
    wait_until(lambda: shim.get("/sdapi/v1/progress").json()["state"]["job_count"] == 1)
    sockets = [shim.raw(request("GET", path, b"", "Connection: close", "Authorization: Basic "), wait=False) for path in AUTO]
    answers = []
    for s in sockets:
        data = b""
        while more := s.recv(1 << 16):
            data += more
        answers.append(parse(data))
        s.close()
    assert not render.done()
    assert all(status == 200 and "application/json" in head for status, head, _ in answers)
    bodies = [json.loads(body) for _, _, body in answers]
    assert bodies[0]["sd_model_checkpoint"] == bodies[3][0]["title"] and "forge_preset" not in bodies[0]
    assert bodies[4][0]["name"] == "None"
    assert render.result().status == 200


def auto_body(**more):
    return dict({"url": "http://localhost:1234", "auth": "user:password", "prompt": "a fox", "negative_prompt": "",
                 "sampler_name": "DDIM", "scheduler": None, "steps": 20, "cfg_scale": 7, "width": 512, "height": 512,
                 "restore_faces": False, "enable_hr": False, "hr_upscaler": "Latent", "hr_scale": 1.0,
                 "hr_additional_modules": [], "denoising_strength": 0.7, "hr_second_pass_steps": 0, "seed": 9999999999,
                 "override_settings": {"CLIP_stop_at_last_layers": 1, "sd_vae": "N/A"},
                 "override_settings_restore_afterwards": True, "clip_skip": 1, "save_images": True, "send_images": True,
                 "do_not_save_grid": False, "do_not_save_samples": False}, **more)


def test_sillytavern_auto_generates(shim):
    status, _, body = exact(shim, "POST", "/sdapi/v1/txt2img", json.dumps(auto_body()).encode(),
                            "Content-Type: application/json", "Authorization: Basic dXNlcjpwYXNzd29yZA==")
    answer = json.loads(body)
    assert status == 200 and png_size(png_of(answer["images"][0])) == (512, 512)
    assert json.loads(answer["info"])["seed"] == 9999999999
    assert b"password" not in body


def test_sillytavern_auto_changes_the_model(shim):
    status, _, _ = exact(shim, "POST", "/sdapi/v1/options", b'{"sd_model_checkpoint":"test"}', "Content-Type: application/json",
                         "Authorization: Basic ")
    assert status == 200
    status, _, body = exact(shim, "GET", "/sdapi/v1/progress", b"", "Authorization: Basic ")
    progress = json.loads(body)
    assert status == 200 and progress["progress"] == 0 and progress["state"]["job_count"] == 0


def test_sillytavern_auto_stops(shim):
    """POST without a body and without a length, as node-fetch sends it, and the request dropped at once."""
    pending = shim.raw(request("POST", "/sdapi/v1/txt2img", json.dumps(auto_body(prompt="x ms=500")).encode(),
                               "Content-Type: application/json", "Authorization: Basic "), wait=False)
    wait_until(lambda: shim.get("/sdapi/v1/progress").json()["state"]["sampling_steps"] == 4)
    status, _, body = exact(shim, "POST", "/sdapi/v1/interrupt", b"", "Content-Length: 0", "Authorization: Basic ")
    pending.close()
    assert status == 200 and json.loads(body) == {}
    wait_until(lambda: shim.get("/kread/v1/status").json()["running"] is None)
    wait_until(lambda: shim.get("/sdapi/v1/progress").json()["state"]["job_count"] == 0)


def test_drawthings_ping(shim):
    status, _, body = exact(shim, "HEAD", "/")
    assert status == 200 and body == b""


# -------------------------------------------------------------------------------- Open WebUI ---

def test_open_webui_automatic1111(shim):
    options = shim.get("//sdapi/v1/options", Authorization="Basic ")  # the base URL's slash is not stripped
    assert options.status == 200 and options.headers["Content-Type"] == "application/json"
    models = [(m["title"], m["model_name"]) for m in shim.get("//sdapi/v1/sd-models").json()]
    settings = dict(options.json(), sd_model_checkpoint=models[0][0])
    assert shim.post("//sdapi/v1/options", settings).status == 200
    answer = shim.post("//sdapi/v1/txt2img", {"prompt": "a fox", "batch_size": 2, "width": 512, "height": 512, "steps": 50},
                       Authorization="Basic ")
    body = answer.json()
    assert len([png_of(i) for i in body["images"]]) == 2 and isinstance(body["info"], str)
    assert json.loads(body["info"])["steps"] == 4


def test_open_webui_openai(shim):
    answer = shim.post("/v1/images/generations?api-version=2024-02-01",
                       {"model": "test", "prompt": "a fox", "n": 1, "size": "512x512", "response_format": "b64_json"},
                       Authorization="Bearer sk-anything")
    assert answer.status == 200 and all("url" not in d and png_of(d["b64_json"]) for d in answer.json()["data"])


# ------------------------------------------------------------------------------------- others ---

def test_librechat(shim):
    answer = shim.post("/sdapi/v1/txt2img", {"prompt": "a fox", "negative_prompt": "blurry", "cfg_scale": 4.5, "steps": 22,
                                             "width": 1024, "height": 1024}).json()
    info = json.loads(answer["info"])
    assert info["infotexts"][0] and info["seed"] >= 0 and (info["width"], info["height"]) == (1024, 1024)
    assert answer["images"][0]


def test_photoshop_plugins_send_numbers_as_strings(shim):
    answer = shim.post("/sdapi/v1/txt2img", {"prompt": "x", "steps": "20", "batch_size": "1", "seed": "-1", "cfg_scale": "7",
                                             "width": "64", "height": "64", "sampler_index": "Euler a"})
    assert answer.status == 200


def test_kobold_lite_in_a_browser(shim):
    origin = {"Origin": "http://localhost:5001"}
    preflight = shim.ask("OPTIONS", "/sdapi/v1/txt2img", Access_Control_Request_Method="POST",
                         Access_Control_Request_Headers="content-type", **origin)
    assert preflight.status == 204 and preflight.headers["Access-Control-Allow-Origin"] == "http://localhost:5001"
    assert "POST" in preflight.headers["Access-Control-Allow-Methods"]
    assert "content-type" in preflight.headers["Access-Control-Allow-Headers"].lower()
    assert shim.get("/sdapi/v1/sd-models", **origin).headers["Access-Control-Allow-Origin"] == "http://localhost:5001"
    assert shim.post("/sdapi/v1/txt2img", {"prompt": "x"}, **origin).status == 200


# ------------------------------------------------------- stable-diffusion.cpp's own web client ---

def test_the_web_client_of_stable_diffusion_cpp(shim):
    capabilities = shim.get("/sdcpp/v1/capabilities").json()
    body = dict(capabilities["defaults_by_mode"]["img_gen"], prompt="a fox ms=150", seed=5, width=64, height=64)
    body["sample_params"]["sample_steps"] = 3
    body.update(init_image=None, ref_images=[], mask_image=None, control_image=None, lora=[], embed_image_metadata=True)
    submitted = shim.post("/sdcpp/v1/img_gen", body)
    job = submitted.json()
    assert submitted.status == 202 and job["kind"] == "img_gen" and job["status"] == "queued"
    assert re.fullmatch(r"job_[0-9a-f]+_[0-9a-f]{8}", job["id"]) and job["poll_url"] == "/sdcpp/v1/jobs/" + job["id"]
    assert abs(job["created"] - time.time()) < 60
    seen = set()
    while True:
        polled = shim.get(job["poll_url"]).json()
        assert {"id", "kind", "status", "created", "started", "completed", "queue_position", "result", "error"} <= set(polled)
        seen.add(polled["status"])
        if polled["status"] not in ("queued", "generating"):
            break
        assert polled["result"] is None
        time.sleep(0.02)
    assert polled["status"] == "completed" and "generating" in seen and polled["error"] is None
    assert polled["result"]["output_format"] == "png"
    assert [(i["index"], png_size(png_of(i["b64_json"]))) for i in polled["result"]["images"]] == [(0, (64, 64))]
    assert polled["values"]["steps"] == 3 and polled["seed"] == 5
