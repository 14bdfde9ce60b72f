# SPDX-License-Identifier: Apache-2.0
"""Jobs that outlive their request: submitting, polling, previews, pictures, cancelling."""
import time

import pytest

from harness import Client, Daemon, wait_until
from shim import RAW_PROFILE, Shim, png_of, png_size


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    with Daemon(tmp_path_factory.mktemp("jobs")) as d:
        yield d


@pytest.fixture(scope="module")
def shim(daemon, tmp_path_factory):
    with Shim(tmp_path_factory.mktemp("shim"), daemon) as s:
        yield s


def test_progress_values_and_pictures(shim):
    id = shim.submit("x ms=60", width=64, height=40, seed=(1 << 62) + 1, batch_count=2, kread={"cfg": 1.5, "mu": 0.7, "preview": 1},
                     sample_params={"sample_steps": 5})
    steps, previews = set(), set()

    def ended():
        job = shim.job(id)
        if job["status"] == "generating":
            progress = job["progress"]
            assert progress["count"] == 2 and progress["position"] == 0
            steps.add((progress["image"], progress["step"]))
            if progress["preview_url"]:
                assert progress["preview_url"].startswith("/kread/v1/jobs/%s/preview.png?n=" % id)
                preview = shim.get(progress["preview_url"])
                if preview.status == 200:
                    assert preview.headers["Content-Type"] == "image/png"
                    previews.add(png_size(preview.body))
        return job["status"] == "completed"

    wait_until(ended, "the job's end")
    job = shim.job(id)
    assert len(steps) > 2 and previews == {(8, 6)}
    assert job["seed"] == (1 << 62) + 1 and (job["width"], job["height"]) == (64, 48) and job["values"]["steps"] == 5
    assert job["started"] >= job["created"] - 1 and job["completed"] >= job["started"] and job["queue_position"] == 0
    for i in range(2):
        png = shim.get("/kread/v1/jobs/%s/images/%d.png" % (id, i))
        assert png.status == 200 and png.headers["Content-Type"] == "image/png"
        assert png.headers["Content-Disposition"] == 'inline; filename="kread-%d.png"' % ((1 << 62) + 1 + i)
        assert png.body == png_of(job["result"]["images"][i]["b64_json"]) and png_size(png.body) == (64, 48)
    assert shim.get("/kread/v1/jobs/%s/images/2.png" % id).status == 404
    assert shim.get("/kread/v1/jobs/%s/preview.png" % id).status == 404
    assert shim.job(id) == job  # as often as one likes


def test_strange_values_are_passed_over(shim):
    id = shim.submit("x", width="wide", height=None, seed=[1], batch_count={}, sample_params={"sample_steps": "many",
                     "guidance": {"txt_cfg": None}}, output_format="png", negative_prompt=7, lora=[], unknown=1)
    assert shim.finish(id)["status"] == "completed"
    assert shim.finish(shim.submit(5))["status"] == "completed"
    assert shim.finish(shim.submit(""))["status"] == "completed"  # an empty prompt is a prompt here


def test_the_native_route_honours_steps_and_cfg(shim):
    id = shim.submit("x", sample_params={"sample_steps": 9, "guidance": {"txt_cfg": 4}}, batch_count=99)
    values = shim.finish(id)["values"]
    assert values["steps"] == 9 and values["count"] == 8


@pytest.mark.parametrize("fields,says", [
    ({"kread": {"steps": 0}}, "steps is 0"), ({"kread": {"nonsense": 1}}, "nonsense"), ({"kread": {"detach": False}}, "detach"),
    ({"kread": {"prompt": "y"}}, "prompt"), ({"kread": {"cfg": "high"}}, "cfg"), ({"kread": {"rng": "dice"}}, "rng"),
    ({"kread": {"steps": 151}}, "at most 150"), ({"kread": {"count": 9}}, "at most 8"), ({"kread": {"mu": [1]}}, "mu is a list"),
    ({"init_image": "aaaa"}, "text only"), ({"ref_images": ["aaaa"]}, "text only"), ({"output_format": "webp"}, "png")])
def test_refusals(shim, fields, says):
    answer = shim.post("/sdcpp/v1/img_gen", dict(fields, prompt="x"))
    assert answer.status == 400 and says in answer.json()["message"], answer.body


def test_queue_and_cancel(shim):
    first, second, third = [shim.submit("x ms=100", sample_params={"sample_steps": 50}) for _ in range(3)]
    wait_until(lambda: shim.job(first)["status"] == "generating")
    assert [shim.job(i)["queue_position"] for i in (first, second, third)] == [0, 1, 2]
    assert shim.job(third)["progress"]["position"] == 2
    cancelled = shim.post("/sdcpp/v1/jobs/%s/cancel" % second)
    assert cancelled.status == 200 and cancelled.json()["status"] == "cancelled"
    assert shim.job(third)["queue_position"] == 1
    running = shim.post("/sdcpp/v1/jobs/%s/cancel" % first, b"{}")
    assert running.status == 200 and running.json()["id"] == first
    assert shim.finish(first)["status"] == "cancelled"
    job = shim.job(first)
    assert job["error"]["code"] == "cancelled" and job["result"] is None
    assert shim.post("/sdcpp/v1/jobs/%s/cancel" % third).status == 200
    assert shim.finish(third)["status"] == "cancelled"
    again = shim.post("/sdcpp/v1/jobs/%s/cancel" % third)
    assert again.status == 200 and again.json()["status"] == "cancelled"


def test_failure(shim):
    job = shim.finish(shim.submit("fail=not_finite"))
    assert job["status"] == "failed" and job["error"] == {"code": "generation_failed", "message": "the script says so"}
    job = shim.finish(shim.submit("fail=io"))
    assert "log" in job["error"]["message"]
    assert shim.post("/sdcpp/v1/img_gen", {"prompt": "toolarge"}).status == 400


@pytest.mark.parametrize("id", ["job_00000001_00000001", "job_1_1", "job_692c5f10_00000001", "nonsense", "job_%08x_0000000g",
                                "job_ffffffff_00000001", "job_-0000001_00000001", "x" * 39, "job_00000000_00000000"])
def test_unknown_jobs(shim, id):
    shim.finish(shim.submit("x"))
    if "%" in id:
        id %= int(time.time())
    for method, path in (("GET", "/sdcpp/v1/jobs/%s"), ("POST", "/sdcpp/v1/jobs/%s/cancel"), ("GET", "/kread/v1/jobs/%s/images/0.png"),
                         ("GET", "/kread/v1/jobs/%s/preview.png")):
        answer = shim.ask(method, path % id)
        assert answer.status == 404 and answer.json()["error"] == "job not found", (path, answer.body)


def test_a_job_that_was_dropped_is_gone(shim):
    id = shim.submit("x")
    shim.finish(id)
    gone = id[:-8] + "00ffffff"  # of the same time, and the daemon knows it no more
    for path in ("/sdcpp/v1/jobs/%s", "/kread/v1/jobs/%s/images/0.png"):
        answer = shim.get(path % gone)
        assert answer.status == 410 and answer.json()["error"] == "job expired"


def test_pictures_that_made_room_are_gone(tmp_path):
    with Daemon(tmp_path, "keep_images = 1") as daemon, Shim(tmp_path / "http", daemon) as s:
        first = s.submit("x")
        s.finish(first)
        second = s.submit("y")
        s.finish(second)
        assert s.get("/sdcpp/v1/jobs/" + first).status == 410
        assert s.get("/sdcpp/v1/jobs/" + second).status == 200


def test_jobs_of_others_are_not_shown(daemon, shim):
    """What was not submitted to be kept has no id here, not even when it is guessed."""
    c = Client(daemon)
    now = int(time.time())
    attached, detached = c.generate("x")["job"], c.generate("x", detach=True)["job"]
    c.finish(detached)
    assert shim.get("/sdcpp/v1/jobs/job_%08x_%08x" % (now, attached)).status == 410
    assert shim.get("/sdcpp/v1/jobs/job_%08x_%08x" % (now, detached)).status == 200
    c.close()


def test_raw_defaults(tmp_path):
    with Daemon(tmp_path, RAW_PROFILE, args=("--profile", "raw")) as daemon, Shim(tmp_path / "http", daemon) as s:
        sample = s.get("/sdcpp/v1/capabilities").json()["defaults"]["sample_params"]
        assert sample["sample_steps"] == 52 and sample["guidance"]["txt_cfg"] == 4.5
        assert s.finish(s.submit("x"))["values"]["steps"] == 52
