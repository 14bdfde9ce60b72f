# SPDX-License-Identifier: Apache-2.0
"""Every route, what it answers and how it refuses."""
import json
import re

import pytest

from harness import SANITIZED, Daemon
from shim import RAW_PROFILE, Shim, png_of, png_size


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    folder = tmp_path_factory.mktemp("routes")
    with Daemon(folder) as daemon, Shim(folder / "http", daemon) as s:
        yield s


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    """A profile with guidance and many steps."""
    folder = tmp_path_factory.mktemp("raw")
    with Daemon(folder, RAW_PROFILE, args=("--profile", "raw")) as daemon, Shim(folder / "http", daemon) as s:
        yield s


def info_of(answer):
    assert answer.status == 200, answer.body
    return json.loads(answer.json()["info"])


# ------------------------------------------------------------------------------------ discovery ---

EXACT = {
    "/health": {"status": "ok"},
    "/sdapi/v1/options": {"samples_format": "png", "sd_model_checkpoint": "test", "sd_checkpoint_hash": "8888888888"},
    "/sdapi/v1/sd-models": [{"title": "test", "model_name": "test", "filename": "test", "hash": "8888888888",
                             "sha256": "8" * 64, "config": None}],
    "/sdapi/v1/upscalers": [{"name": "None", "model_name": None, "model_path": None, "model_url": None, "scale": 4}],
    "/sdapi/v1/latent-upscale-modes": [],
    "/sdapi/v1/sd-vae": [],
    "/sdapi/v1/sd-modules": [],
    "/sdapi/v1/loras": [],
    "/sdapi/v1/hypernetworks": [],
    "/sdapi/v1/prompt-styles": [],
    "/sdapi/v1/face-restorers": [],
    "/sdapi/v1/realesrgan-models": [],
    "/sdapi/v1/script-info": [],
    "/sdapi/v1/extensions": [],
    "/sdapi/v1/scripts": {"txt2img": [], "img2img": []},
    "/sdapi/v1/embeddings": {"loaded": {}, "skipped": {}},
    "/sdapi/v1/cmd-flags": {"api": True, "nowebui": False},
}


@pytest.mark.parametrize("path", EXACT)
def test_constant_answers(shim, path):
    answer = shim.get(path)
    assert answer.status == 200 and answer.json() == EXACT[path]


def test_idle_progress(shim):
    progress = shim.get("/sdapi/v1/progress?skip_current_image=true").json()
    assert progress["progress"] == 0 and progress["eta_relative"] == 0
    assert progress["state"]["job_count"] == 0 and isinstance(progress["state"]["job_count"], int)
    assert progress["current_image"] is None and progress["textinfo"] is None
    assert {"skipped", "interrupted", "job", "job_timestamp", "job_no", "sampling_step", "sampling_steps"} <= set(
        progress["state"])


def test_lists_that_clients_show(shim):
    samplers, schedulers = shim.get("/sdapi/v1/samplers").json(), shim.get("/sdapi/v1/schedulers").json()
    assert {"Euler", "default"} == {s["name"] for s in samplers} and all("aliases" in s and "options" in s for s in samplers)
    assert {"simple", "default"} == {s["name"] for s in schedulers} and all("label" in s for s in schedulers)
    assert set(shim.get("/sdapi/v1/memory").json()) == {"ram", "cuda"}


def test_one_name_everywhere(shim):
    models = shim.get("/v1/models").json()
    assert models["object"] == "list" and models["data"][0]["object"] == "model"
    names = {models["data"][0]["id"], models["data"][0]["name"], shim.get("/sdapi/v1/options").json()["sd_model_checkpoint"],
             shim.get("/sdapi/v1/sd-models").json()[0]["title"], shim.get("/sdcpp/v1/capabilities").json()["model"]["name"],
             info_of(shim.txt2img("x"))["sd_model_name"], shim.get("/kread/v1/status").json()["profile"]}
    assert names == {"test"}


def test_capabilities(shim):
    c = shim.get("/sdcpp/v1/capabilities").json()
    assert c["current_mode"] == "img_gen" and c["supported_modes"] == ["img_gen"]
    assert c["defaults"] == c["defaults_by_mode"]["img_gen"] and c["features"] == c["features_by_mode"]["img_gen"]
    assert c["defaults"]["sample_params"]["sample_steps"] == 4 and c["defaults"]["width"] == 32
    assert c["defaults"]["sample_params"]["guidance"]["txt_cfg"] == 1.0
    assert c["features"]["cancel_generating"] and c["features"]["cancel_queued"] and not c["features"]["lora"]
    assert c["limits"]["max_batch_count"] == 8 and c["limits"]["max_width"] == c["limits"]["max_height"] == 2048
    assert c["output_formats"] == ["png"]


def test_status(shim):
    s = shim.get("/kread/v1/status").json()
    assert s["state"] == "ready" and s["variant"] == "turbo" and s["architecture"] == "krea2" and s["device"] == "fake"
    assert s["queued"] == 0 and s["running"] is None and s["uptime"] > 0 and s["release"]
    assert s["defaults"] == {"width": 32, "height": 32, "steps": 4, "cfg": 0, "rng": "cuda", "seed": -1, "count": 1,
                             "negative_used": False}
    assert s["limits"] == {"max_pixels": 4194304, "max_steps": 150, "max_count": 8, "grid": 16}


def test_metrics_are_prometheus_text(shim):
    shim.txt2img("x")
    shim.get("/nowhere/at/all")
    answer = shim.get("/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    values, typed = {}, set()
    for line in answer.body.decode().splitlines():
        if line.startswith("#"):
            kind, name = line.split(" ")[1:3]
            assert kind in ("HELP", "TYPE")
            if kind == "TYPE":
                assert name not in typed
                typed.add(name)
            continue
        m = re.fullmatch(r'([a-z_]+)(\{[a-z]+="[^"]*"(?:,[a-z]+="[^"]*")*\})? ([-+.e0-9]+)', line)
        assert m and m.group(1) in typed, line
        values[m.group(1) + (m.group(2) or "")] = float(m.group(3))
    assert values["kread_up"] == 1 and values["kread_jobs_running"] == 0
    assert values['kread_jobs_total{result="done"}'] >= 1
    assert values['kread_http_requests_total{family="sdapi",status="2xx"}'] >= 1
    assert values['kread_http_requests_total{family="kread",status="4xx"}'] >= 1
    assert values["kread_http_waiting"] == 0 and values["kread_http_connections"] >= 1


def test_the_page_and_its_files(shim):
    page = shim.get("/")
    assert page.status == 200 and page.headers["Content-Type"] == "text/html; charset=utf-8"
    policy = page.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
    assert page.headers["Cache-Control"] == "no-cache" and page.headers["X-Content-Type-Options"] == "nosniff"
    again = shim.get("/", If_None_Match=page.headers["ETag"])
    assert again.status == 304 and again.body == b"" and again.headers["ETag"] == page.headers["ETag"]
    linked = set(re.findall(rb'(?:src|href)="([a-z][a-z._]*)"', page.body))
    assert b"page.js" in linked and b"page.css" in linked
    seen = set()
    while linked - seen:
        name = (linked - seen).pop()
        seen.add(name)
        file = shim.get("/" + name.decode())
        assert file.status == 200 and file.body, name
        if name.endswith(b".js"):
            linked |= set(re.findall(rb'from "\./([a-z_]+\.js)"', file.body))


def test_head_is_get_without_a_body(shim):
    for path in ("/", "/health", "/sdapi/v1/options", "/v1/models"):
        head, get = shim.ask("HEAD", path), shim.get(path)
        assert head.status == get.status == 200 and head.body == b""
        assert head.headers["Content-Length"] == str(len(get.body))


@pytest.mark.parametrize("path", ["//sdapi/v1/options", "/sdapi//v1///options/", "/sdapi/v1/options/", "/sdapi/v1/options?x=y"])
def test_paths_are_tidied(shim, path):
    assert shim.get(path).json()["sd_model_checkpoint"] == "test"


# --------------------------------------------------------------------------------------- errors ---

def error_shape(answer, path):
    error = answer.json()
    if path.startswith("/v1"):
        assert set(error) == {"error"} and {"message", "type", "param", "code"} == set(error["error"])
        return error["error"]["message"]
    if path.startswith("/sdapi"):
        assert set(error) == {"error", "detail"}
        return error["error"]
    assert set(error) == {"error", "message"}
    return error["error"]


@pytest.mark.parametrize("path", ["/nothing/here", "/sdapi/v1/nothing", "/v1/nothing", "/sdcpp/v1/nothing", "/docs",
                                  "/sdapi/v1/" + "x" * 300, "/kread/v1/jobs/a/images/0.jpg", "/%2e%2e/etc/passwd",
                                  "/sdapi/v1/options%00"])
def test_404(shim, path):
    answer = shim.get(path)
    assert answer.status == 404 and error_shape(answer, path) == "Not Found"


@pytest.mark.parametrize("method,path,allow", [
    ("GET", "/sdapi/v1/txt2img", "POST, OPTIONS"), ("PUT", "/sdapi/v1/options", "GET, HEAD, POST, OPTIONS"),
    ("DELETE", "/sdcpp/v1/jobs/x", "GET, HEAD, OPTIONS"), ("POST", "/v1/models", "GET, HEAD, OPTIONS"),
    ("POST", "/health", "GET, HEAD, OPTIONS")])
def test_405_says_what_is_allowed(shim, method, path, allow):
    answer = shim.ask(method, path)
    assert answer.status == 405 and answer.headers["Allow"] == allow
    error_shape(answer, path)


@pytest.mark.parametrize("path", ["/sdapi/v1/img2img", "/sdapi/v1/extra-single-image", "/sdapi/v1/interrogate",
                                  "/v1/images/edits", "/v1/images/variations"])
def test_501_for_pictures_from_pictures(shim, path):
    answer = shim.post(path, {"prompt": "x", "init_images": ["aaaa"]})
    assert answer.status == 501 and "text only" in answer.body.decode()
    error_shape(answer, path)


def test_multipart_is_refused_without_being_kept(shim):
    body = b"--b\r\nContent-Disposition: form-data; name=\"image\"; filename=\"x.png\"\r\n\r\n" + b"\x89PNG" * 50000 + b"\r\n--b--\r\n"
    before = shim.memory()
    for _ in range(20):
        answer = shim.post("/v1/images/edits", body, Content_Type="multipart/form-data; boundary=b")
        assert answer.status == 501 and answer.json()["error"]["type"] == "server_error"
    assert SANITIZED or shim.memory() - before < 1 << 20


@pytest.mark.parametrize("path", ["/sdapi/v1/txt2img", "/v1/images/generations", "/sdcpp/v1/img_gen"])
@pytest.mark.parametrize("body,says", [(b"", "empty body"), (b"  \r\n", "empty body"), (b"{", "invalid json"),
                                       (b"[1]", "invalid json"), (b'"x"', "invalid json"), (b'{"prompt":"x"} x', "invalid json"),
                                       (b"{'prompt': 1}", "invalid json"), (b'{"prompt":"\xff"}', "invalid json"),
                                       (b'{"prompt":"a\\u0000b"}', "invalid json"), (b'{"seed":NaN,"prompt":"x"}', "invalid json"),
                                       (b'{"seed":99999999999999999999,"prompt":"x"}', "invalid json"),
                                       (b'{"cfg_scale":1e999,"prompt":"x"}', "invalid json")])
def test_400_for_what_is_no_json(shim, path, body, says):
    answer = shim.post(path, body)
    assert answer.status == 400, answer.body
    said = error_shape(answer, path)
    if path.startswith("/v1"):
        assert answer.json()["error"]["code"] == says.replace(" ", "_")
    else:
        assert said == says


@pytest.mark.parametrize("path", ["/sdapi/v1/txt2img", "/v1/images/generations"])
@pytest.mark.parametrize("prompt", ["", "  \n", None])
def test_a_prompt_is_required(shim, path, prompt):
    answer = shim.post(path, {"prompt": prompt})
    assert answer.status == 400 and "prompt" in error_shape(answer, path)


def test_vid_gen(shim):
    answer = shim.post("/sdcpp/v1/vid_gen", {"prompt": "x"})
    assert answer.status == 400 and answer.json()["error"] == "loaded model does not support vid_gen"


# -------------------------------------------------------------------------------------- txt2img ---

def test_txt2img(shim):
    answer = shim.txt2img("a fox", width=64, height=48, seed=7, batch_size=2, negative_prompt="dogs").json()
    assert [png_size(png_of(i)) for i in answer["images"]] == [(64, 48)] * 2
    assert answer["parameters"] == {"prompt": "a fox", "width": 64, "height": 48, "seed": 7, "batch_size": 2,
                                    "negative_prompt": "dogs"}
    info = json.loads(answer["info"])
    assert info["all_seeds"] == [7, 8] and info["seed"] == 7 and info["width"] == 64 and info["height"] == 48
    assert info["prompt"] == "a fox" and info["all_prompts"] == ["a fox"] * 2 and info["all_negative_prompts"] == ["dogs"] * 2
    assert len(info["infotexts"]) == 2 and info["infotexts"][1].splitlines()[1] == "Negative prompt: dogs"
    assert "Seed: 8, Size: 64x48" in info["infotexts"][1]
    assert info["extra_generation_params"]["Negative prompt"].startswith("without effect")


def test_what_clients_send_by_habit_is_taken(shim):
    body = {"prompt": "a fox", "scheduler": None, "sampler_name": "DPM++ 2M Karras", "seed": 9999999999, "steps": "20",
            "cfg_scale": "7.5", "width": "64", "height": 64.0, "batch_size": "1", "n_iter": None, "styles": ["x"],
            "override_settings": {"sd_model_checkpoint": "other"}, "alwayson_scripts": {"ADetailer": {"args": [1]}},
            "clip_skip": 2, "model": "stale", "restore_faces": False, "unknown": {"a": [1, 2]}}
    answer = shim.post("/sdapi/v1/txt2img", body)
    info = info_of(answer)
    assert info["seed"] == 9999999999 and info["width"] == 64
    assert info["steps"] == 4 and info["cfg_scale"] == 0  # the turbo profile's own
    assert info["extra_generation_params"]["Requested steps"] == 20
    assert info["extra_generation_params"]["Requested CFG scale"] == 7.5
    echoed = answer.json()["parameters"]
    assert echoed["steps"] == "20" and "override_settings" not in echoed and "alwayson_scripts" not in echoed


@pytest.mark.parametrize("seed", [None, -1, "-1", "", -5])
def test_a_drawn_seed_is_reported_and_fits_javascript(shim, seed):
    info = info_of(shim.txt2img("x", seed=seed))
    assert 0 <= info["seed"] < 1 << 32


@pytest.mark.parametrize("seed", [0, (1 << 53) + 1, (1 << 63) - 1])
def test_seeds_of_64_bits(shim, seed):
    assert info_of(shim.txt2img("x", seed=seed))["seed"] == seed


def test_sizes_are_rounded_up_and_reported(shim):
    answer = shim.txt2img("x", width=1000, height=1001)
    info = info_of(answer)
    assert png_size(png_of(answer.json()["images"][0])) == (1008, 1008) and (info["width"], info["height"]) == (1008, 1008)


@pytest.mark.parametrize("field,value", [("width", 0), ("height", -64), ("width", "wide"), ("steps", [20]), ("seed", 1.5),
                                         ("prompt", 5), ("negative_prompt", ["x"]), ("cfg_scale", "high")])
def test_txt2img_refuses(shim, field, value):
    body = {"prompt": "x", field: value}
    answer = shim.post("/sdapi/v1/txt2img", body)
    assert answer.status == 400 and field in answer.json()["detail"], answer.body


def test_counts_are_clamped_in_sdapi_and_refused_in_v1(shim):
    assert len(shim.txt2img("x", batch_size=3, n_iter=2).json()["images"]) == 6
    assert len(shim.txt2img("x", batch_size=100, n_iter=1 << 62).json()["images"]) == 8
    answer = shim.post("/v1/images/generations", {"prompt": "x", "n": 9})
    assert answer.status == 400 and answer.json()["error"]["param"] == "n"


def test_too_many_pixels(shim):
    answer = shim.txt2img("x", width=4096, height=4096)
    assert answer.status == 400 and "4194304" in answer.json()["detail"]
    assert shim.txt2img("x", width=8192, height=1 << 40).status == 400  # clamped to what kread can do, and still too many


def test_raw_profiles_honour_what_clients_say(raw):
    info = info_of(raw.txt2img("x", steps=12, cfg_scale=7, negative_prompt="y"))
    assert info["steps"] == 12 and info["cfg_scale"] == 6 and "Requested steps" not in info["extra_generation_params"]
    assert "Negative prompt" not in info["extra_generation_params"]
    assert info_of(raw.txt2img("x"))["steps"] == 52
    assert info_of(raw.txt2img("x", steps=100000))["steps"] == 150
    assert info_of(raw.txt2img("x", cfg_scale=1))["cfg_scale"] == 0
    assert raw.get("/kread/v1/status").json()["defaults"]["negative_used"] is True


def test_honour_client_sampling(tmp_path):
    with Daemon(tmp_path) as daemon, Shim(tmp_path / "http", daemon, "honour_client_sampling = yes") as s:
        info = info_of(s.txt2img("x", steps=20, cfg_scale=4.5))
        assert info["steps"] == 20 and info["cfg_scale"] == 3.5
        assert "CFG scale: 3.5" in info["infotexts"][0]


def test_extra_args_in_the_prompt(shim):
    extra = '<sd_cpp_extra_args>{"width":48,"sample_params":{"sample_steps":3,"guidance":{"txt_cfg":3}},"seed":5}</sd_cpp_extra_args>'
    generated = shim.post("/v1/images/generations", {"prompt": "a fox " + extra, "steps": 20}).json()
    assert generated["kread"]["steps"] == 3 and generated["kread"]["seed"] == 5 and generated["size"] == "48x32"
    info = info_of(shim.post("/sdapi/v1/txt2img", {"prompt": "a fox " + extra, "steps": 20, "seed": 4}))
    assert info["prompt"] == "a fox" and info["width"] == 48 and info["steps"] == 3 and info["seed"] == 5
    assert info["cfg_scale"] == 2
    for bad in ("x <sd_cpp_extra_args>{</sd_cpp_extra_args>", "x <sd_cpp_extra_args>{}", "x <sd_cpp_extra_args></sd_cpp_extra_args>"):
        answer = shim.txt2img(bad)
        assert answer.status == 400 and answer.json()["error"] == "invalid sd_cpp_extra_args"


def test_failures(shim):
    assert shim.txt2img("fail=not_finite").status == 500
    refused = shim.txt2img("toolarge")
    assert refused.status == 400 and refused.json()["error"] == "not enough memory"
    failed = shim.txt2img("fail=no_memory")
    assert failed.status == 500 and failed.json()["detail"] == "the script says so"
    hidden = shim.txt2img("fail=io")
    assert hidden.status == 500 and "log" in hidden.json()["detail"]


def test_large_answers(shim):
    answer = shim.txt2img("x pad=9000000", batch_size=4)
    images = [png_of(i) for i in answer.json()["images"]]
    assert len(images) == 4 and all(len(i) > 9000000 and png_size(i) == (32, 32) for i in images)
    assert answer.headers["Content-Length"] == str(len(answer.body))


# ------------------------------------------------------------------------ options, png-info, ... ---

def test_options_take_anything(shim):
    for body in ({"sd_model_checkpoint": "other"}, {"a": 1}, None, {"sd_model_checkpoint": "test", "x": [1]}):
        answer = shim.post("/sdapi/v1/options", body)
        assert answer.status == 200 and answer.json() is None
    for path in ("skip", "refresh-checkpoints", "refresh-vae", "refresh-loras", "unload-checkpoint"):
        assert shim.post("/sdapi/v1/" + path).json() is None


def test_png_info(shim):
    import io
    import base64
    from PIL import Image, PngImagePlugin
    for text in ("a fox\nSteps: 4", "狐\nSteps: 4", "f\u00fcchse"):
        meta, out = PngImagePlugin.PngInfo(), io.BytesIO()
        meta.add_text("parameters", text)
        Image.new("RGB", (8, 8)).save(out, "PNG", pnginfo=meta)
        image = base64.b64encode(out.getvalue()).decode()
        for prefix in ("", "data:image/png;base64,"):
            answer = shim.post("/sdapi/v1/png-info", {"image": prefix + image}).json()
            assert answer["info"] == text and answer["items"] == {"parameters": text}
    for image in ("", "AAAA", "not base64!", image[:40]):
        assert shim.post("/sdapi/v1/png-info", {"image": image}).json()["info"] == ""
    assert shim.post("/sdapi/v1/png-info", {}).status == 400


# --------------------------------------------------------------------------------------- OpenAI ---

def test_generations(shim):
    answer = shim.post("/v1/images/generations", {"model": "test", "prompt": "x", "n": 2, "size": "64x32",
                                                  "response_format": "url", "quality": "hd", "user": "u", "seed": 3}).json()
    assert [png_size(png_of(d["b64_json"])) for d in answer["data"]] == [(64, 32)] * 2
    assert all(set(d) == {"b64_json"} for d in answer["data"]) and answer["created"] > 1700000000
    assert answer["size"] == "64x32" and answer["output_format"] == "png" and answer["kread"]["seed"] == 3


@pytest.mark.parametrize("size", [None, "", "auto"])
def test_the_default_size_is_the_profiles(shim, size):
    assert shim.post("/v1/images/generations", {"prompt": "x", "size": size}).json()["size"] == "32x32"


@pytest.mark.parametrize("field,value", [("size", "big"), ("size", "0x0"), ("size", "64x64x64"), ("size", 64), ("n", 0),
                                         ("n", "two"), ("output_format", "webp"), ("stream", True), ("prompt", 7),
                                         ("size", "99999x16"), ("size", "8192x8192")])
def test_generations_refuses_by_name(shim, field, value):
    answer = shim.post("/v1/images/generations", {"prompt": "x", field: value})
    error = answer.json()["error"]
    assert answer.status == 400 and error["type"] == "invalid_request_error" and error["param"] == field, error


def test_last_of_duplicate_keys_counts(shim):
    assert shim.post("/v1/images/generations", b'{"prompt":"x","size":"big","size":"48x48","n":2,"n":1}').json()["size"] == "48x48"


# -------------------------------------------------------------------- what must never be repeated ---

def test_secrets_and_prompts_reach_neither_answer_nor_log(shim):
    answer = shim.post("/sdapi/v1/txt2img?key=query-secret", {"prompt": "prompt-secret", "url": "http://url-secret/",
                                                              "auth": "user:auth-secret", "negative_prompt": "negative-secret"},
                       Authorization="Basic aGVhZGVyLXNlY3JldA==")
    assert answer.status == 200
    for secret in (b"url-secret", b"auth-secret", b"query-secret", b"aGVhZGVy"):
        assert secret not in answer.body
    assert "secret" not in shim.logged()
    assert not any("secret" in v for v in answer.headers.values())
    shim.post("/sdapi/v1/txt2img", b'{"prompt": "broken-secret')
    shim.get("/path-secret")
    assert "secret" not in shim.logged()
