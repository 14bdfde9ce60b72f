# SPDX-License-Identifier: Apache-2.0
"""Real clients of OpenAI's and AUTOMATIC1111's interfaces, unmodified, and Open WebUI's calls with the library it makes
them with. tests/clients/run installs them; the file's name keeps it out of the ordinary tests."""
import asyncio
import base64
import io
import json
import os
import sys
import threading
import time

import aiohttp
import openai
import pytest
import webuiapi
from PIL import Image

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, os.pardir, d) for d in ("http", "server")]

from harness import Client, Daemon, wait_until  # noqa: E402
from shim import RAW_PROFILE, Shim  # noqa: E402

TOKEN = "0123456789abcdef0123"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    with Daemon(tmp_path_factory.mktemp("daemon"), "queue_limit = 4") as d:
        yield d


@pytest.fixture(scope="module")
def shim(daemon, tmp_path_factory):
    with Shim(tmp_path_factory.mktemp("shim"), daemon) as s:
        yield s


@pytest.fixture(scope="module")
def locked(daemon, tmp_path_factory):
    folder = tmp_path_factory.mktemp("locked")
    (folder / "token").write_text(TOKEN + "\n")
    with Shim(folder, daemon, "token_file = token") as s:
        yield s


def states(daemon):
    client = Client(daemon)
    jobs = client.call("jobs")["jobs"]
    client.close()
    return [j["state"] for j in jobs]


def no_job_runs(daemon):
    wait_until(lambda: not {"queued", "running"} & set(states(daemon)))


# ----------------------------------------------------------------------------------------- openai ---

def sdk(shim, **options):
    return openai.OpenAI(base_url="http://127.0.0.1:%d/v1" % shim.port, api_key=options.pop("api_key", "anything"), **options)


def test_openai_generates(shim):
    answer = sdk(shim).images.generate(model="test", prompt="a fox", n=2, size="64x32", response_format="b64_json")
    assert len(answer.data) == 2 and answer.created > 0
    for item in answer.data:
        assert item.url is None and Image.open(io.BytesIO(base64.b64decode(item.b64_json))).size == (64, 32)
    models = sdk(shim).models.list()
    assert [m.id for m in models] == ["test"]


def test_openai_extra_body(shim):
    answer = sdk(shim).images.generate(prompt="a fox", extra_body={"seed": 7, "negative_prompt": "blurry"})
    assert answer.model_extra["kread"]["seed"] == 7


@pytest.mark.parametrize("fields,kind", [({"prompt": ""}, openai.BadRequestError), ({"prompt": "x", "size": "huge"}, openai.BadRequestError),
                                         ({"prompt": "x", "n": 99}, openai.BadRequestError), ({"prompt": "toolarge"}, openai.BadRequestError),
                                         ({"prompt": "fail=not_finite"}, openai.InternalServerError)])
def test_openai_errors(shim, fields, kind):
    with pytest.raises(kind) as e:
        sdk(shim, max_retries=0).images.generate(**fields)
    assert e.value.body["message"] and e.value.body["type"] and e.value.response.status_code in (400, 500)


def test_openai_edits_are_not_there(shim):
    with pytest.raises(openai.APIStatusError) as e:
        sdk(shim, max_retries=0).images.edit(image=("x.png", b"\x89PNG\r\n\x1a\n", "image/png"), prompt="x")
    assert e.value.status_code == 501


def test_openai_authentication(locked):
    with pytest.raises(openai.AuthenticationError):
        sdk(locked).images.generate(prompt="x")
    assert sdk(locked, api_key=TOKEN).images.generate(prompt="x").data


def test_openai_time_out_cancels_and_a_bad_request_is_sent_once(daemon, shim):
    with pytest.raises(openai.APITimeoutError):
        sdk(shim, timeout=0.5, max_retries=0).images.generate(prompt="x ms=100000")
    no_job_runs(daemon)
    before = shim.logged().count("openai /v1/images/generations: 400")
    with pytest.raises(openai.BadRequestError):
        sdk(shim, max_retries=5).images.generate(prompt="x", size="huge")
    assert shim.logged().count("openai /v1/images/generations: 400") == before + 1


def test_openai_retries_while_the_queue_is_full(daemon, shim):
    """429 with Retry-After: the SDK waits and asks again, and gets its picture."""
    blocking = [shim.start("POST", "/sdapi/v1/txt2img", {"prompt": "x ms=%d" % (500 if i == 0 else 1)}) for i in range(5)]
    wait_until(lambda: states(daemon).count("queued") == 4)
    with pytest.raises(openai.RateLimitError):
        sdk(shim, max_retries=0).images.generate(prompt="y")
    assert sdk(shim, max_retries=3).images.generate(prompt="y").data
    assert all(b.result().status == 200 for b in blocking)


def test_openai_retries_while_the_daemon_restarts(tmp_path):
    first = Daemon(tmp_path)
    with Shim(tmp_path / "http", first) as s:
        assert first.stop() == 0
        wait_until(lambda: s.get("/health").status == 503)
        with pytest.raises(openai.InternalServerError) as e:
            sdk(s, max_retries=0).images.generate(prompt="x")
        assert e.value.status_code == 503
        later = threading.Timer(1, lambda: daemons.append(Daemon(tmp_path)))
        daemons = []
        later.start()
        assert sdk(s, max_retries=5).images.generate(prompt="x").data
        later.join()
        assert daemons[0].stop() == 0


def test_openai_async(shim):
    async def main():
        client = openai.AsyncOpenAI(base_url="http://127.0.0.1:%d/v1" % shim.port, api_key="x")
        answers = await asyncio.gather(*[client.images.generate(prompt="x", extra_body={"seed": i}) for i in range(4)])
        assert [a.model_extra["kread"]["seed"] for a in answers] == list(range(4))
        await client.close()
    asyncio.run(main())


# --------------------------------------------------------------------------------------- webuiapi ---

def webui(shim):
    return webuiapi.WebUIApi(host="127.0.0.1", port=shim.port)


def test_webuiapi_generates(shim):
    result = webui(shim).txt2img(prompt="a fox", negative_prompt="blurry", width=64, height=48, seed=1003, steps=20, cfg_scale=7,
                                 batch_size=2)
    assert [i.size for i in result.images] == [(64, 48)] * 2
    assert result.info["seed"] == 1003 and result.info["all_seeds"] == [1003, 1004] and result.info["steps"] == 4
    assert result.parameters["prompt"] == "a fox"


def test_webuiapi_discovery_and_options(shim):
    api = webui(shim)
    assert api.get_options()["sd_model_checkpoint"] == "test"
    assert api.set_options({"sd_model_checkpoint": "test", "CLIP_stop_at_last_layers": 2}) is None
    assert api.util_get_current_model() == "test" and api.util_get_model_names() == ["test"]
    assert [s["name"] for s in api.get_samplers()][0] == "Euler" and api.get_schedulers()
    assert api.get_upscalers()[0]["name"] == "None" and api.get_loras() == [] and api.get_sd_vae() == []
    assert api.get_cmd_flags() and api.get_memory() and api.get_embeddings()
    assert api.get_face_restorers() == [] and api.get_prompt_styles() == [] and api.get_hypernetworks() == []
    assert api.get_scripts() == {"txt2img": [], "img2img": []}
    api.refresh_checkpoints()


def test_webuiapi_progress_and_interrupt(daemon, shim):
    api, outcome = webui(shim), []

    def render():
        try:
            outcome.append(webui(shim).txt2img(prompt="x ms=100000"))
        except Exception as e:  # noqa: BLE001
            outcome.append(e)

    thread = threading.Thread(target=render)
    thread.start()
    wait_until(lambda: api.get_progress()["state"]["sampling_steps"] == 4)
    assert api.get_progress()["state"]["job_count"] == 1
    api.interrupt()
    thread.join(60)
    assert isinstance(outcome[0], RuntimeError) and "interrupted" in str(outcome[0])
    no_job_runs(daemon)
    assert api.get_progress()["progress"] == 0
    api.util_wait_for_ready()


def test_webuiapi_authentication(locked):
    api = webuiapi.WebUIApi(host="127.0.0.1", port=locked.port, username="anybody", password=TOKEN)
    assert api.txt2img(prompt="x").images
    with pytest.raises(Exception):
        webui(locked).txt2img(prompt="x")


def test_webuiapi_png_info(shim):
    result = webui(shim).png_info(Image.new("RGB", (8, 8)))
    assert result.info == ""


# ------------------------------------------------- Open WebUI: its calls, with its library, aiohttp ---

async def open_webui(shim, calls):
    async with aiohttp.ClientSession() as session:
        return await calls(session, "http://127.0.0.1:%d/" % shim.port)


def test_open_webui_automatic1111(shim):
    async def calls(session, base):  # the base URL keeps its slash, so paths begin with two
        auth = {"authorization": "Basic "}
        async with session.get(base + "/sdapi/v1/options", headers=auth) as r:
            assert r.ok
            options = await r.json()  # checks the content type
        async with session.get(base + "/sdapi/v1/sd-models", headers=auth) as r:
            models = [{"id": m["title"], "name": m["model_name"]} for m in await r.json()]
        options["sd_model_checkpoint"] = models[0]["id"]
        async with session.post(base + "/sdapi/v1/options", json=options, headers=auth) as r:
            assert r.ok
        body = {"prompt": "a fox", "batch_size": 2, "width": 512, "height": 512, "steps": 50, "negative_prompt": ""}
        async with session.post(base + "/sdapi/v1/txt2img", json=body, headers=auth) as r:
            answer = await r.json()
        return answer["images"], json.loads(answer["info"])

    images, info = asyncio.run(open_webui(shim, calls))
    assert len(images) == 2 and info["steps"] == 4
    assert all(Image.open(io.BytesIO(base64.b64decode(i))).size == (512, 512) for i in images)


def test_open_webui_openai(locked):
    async def calls(session, base):
        body = {"model": "test", "prompt": "a fox", "n": 1, "size": "512x512", "response_format": "b64_json"}
        headers = {"Authorization": "Bearer " + TOKEN, "Content-Type": "application/json"}
        async with session.post(base + "v1/images/generations", json=body, headers=headers) as r:
            r.raise_for_status()
            return (await r.json())["data"]

    data = asyncio.run(open_webui(locked, calls))
    assert "url" not in data[0] and base64.b64decode(data[0]["b64_json"]).startswith(b"\x89PNG")


def test_raw_profile_takes_what_clients_say(tmp_path):
    with Daemon(tmp_path, RAW_PROFILE, args=("--profile", "raw")) as daemon, Shim(tmp_path / "http", daemon) as s:
        started = time.time()
        assert webui(s).txt2img(prompt="x", steps=10, cfg_scale=5).info["steps"] == 10
        assert time.time() - started < 60
