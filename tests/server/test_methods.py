# SPDX-License-Identifier: Apache-2.0
"""Every method of the protocol, its answers and its refusals."""
import io
import os

import pytest
from PIL import Image

from harness import Client, Daemon, Refused, wait_until


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    with Daemon(tmp_path_factory.mktemp("daemon"), "queue_limit = 4") as d:
        yield d


@pytest.fixture
def client(daemon):
    c = Client(daemon, hello="test")
    yield c
    c.close()


def refused(call, code, *words):
    with pytest.raises(Refused) as e:
        call()
    assert e.value.code == code, str(e.value)
    for word in words:
        assert word in e.value.message, str(e.value)
    return e.value


def test_hello(daemon):
    c = Client(daemon)
    answer = c.call("hello", version=1, client="pytest")
    assert answer["version"] == 1 and answer["name"] == "kread" and answer["release"]
    assert c.call("hello", version=1.0)["version"] == 1  # an integral real is an integer
    refused(lambda: c.call("hello", version=2), "bad_version", "2", "1")
    refused(lambda: c.call("hello", version=0), "bad_version", "0", "1", "update the older")
    assert c.call("status")["state"] == "ready"  # it may go on, if it can
    refused(lambda: c.call("hello"), "bad_request", "version")
    refused(lambda: c.call("hello", version=1, client=5), "bad_request", "client")
    refused(lambda: c.call("hello", version=1, client="x" * 81), "bad_request", "client")
    refused(lambda: c.call("status", version=7), "bad_version")
    refused(lambda: c.call("no-such-method", version=7), "bad_version")


def test_unknown_method(client):
    refused(lambda: client.call("explode"), "bad_method", "explode")
    assert client.call("status")["state"] == "ready"


def test_unknown_parameters(client):
    for method in ("status", "jobs", "inspect", "profile", "stop", "cancel", "watch", "fetch",
                   "tokens", "hello"):
        refused(lambda: client.call(method, colour="red"), "bad_request", "colour")


def test_status(tmp_path):
    with Daemon(tmp_path, "queue_limit = 4") as d:
        client = Client(d)
        wait_until(lambda: client.call("status")["clients"] == 1)  # the harness's own is gone
        s = client.call("status")
        assert s["version"] == 1 and s["name"] == "kread" and s["pid"] == d.process.pid
        assert s["state"] == "ready" and s["running"] is None and s["queued"] == 0
        assert s["queue_limit"] == 4 and s["uptime"] >= 0
        assert s["kept"] == {"images": 0, "bytes": 0}
        assert s["jobs"] == {"done": 0, "failed": 0, "cancelled": 0}
        assert s["engine"]["what"] == "status" and s["engine"]["device"] == "fake"


def test_inspect_and_profile(client):
    assert client.call("inspect")["what"] == "inspect"
    assert client.call("profile")["profile"] == "test"


def test_tokens(client):
    assert client.call("tokens", text="ab") == {"ids": [97, 98], "count": 2, "limit": 20, "cut": 0}
    assert client.call("tokens", text="x" * 25)["cut"] == 5
    assert client.call("tokens", text="")["ids"] == []
    refused(lambda: client.call("tokens"), "bad_request", "text")
    refused(lambda: client.call("tokens", text=7), "bad_request", "text")
    refused(lambda: client.call("tokens", text="x" * 65537), "bad_request", "65537")


def test_generate(client):
    answer = client.generate("a red circle", width=20, height=32, seed=7, steps=3, count=2)
    job = answer["job"]
    assert answer["width"] == 32 and answer["height"] == 32 and "32x32" in answer["warning"]
    assert answer["seed"] == 7 and answer["steps"] == 3 and answer["count"] == 2
    assert answer["rng"] == "cuda" and answer["detach"] is False and answer["position"] == 0
    assert "prompt" not in answer and "negative" not in answer
    end, about, before = client.finish(job)
    assert end == "done"
    assert about["seed"] == 7 and about["count"] == 2 and about["peak"] == 1 << 20
    assert about["times"]["encode"] == 0.25 and about["times"]["total"] >= 0
    images = [m for n, m in before if n == "image"]
    assert [(i["index"], i["seed"]) for i in images] == [(0, 7), (1, 8)]
    for i in images:
        picture = Image.open(io.BytesIO(i["png"]))
        assert picture.size == (32, 32) and picture.getpixel((0, 0)) == (i["seed"], 0, 0)
    progress = [m for n, m in before if n == "progress"]
    assert progress and all(p["job"] == job and p["state"] == "running" for p in progress)
    last = progress[-1]
    assert last["stage"] == "denoise" and last["step"] <= last["steps"] == 3
    assert last["remaining"] is None and last["count"] == 2


def test_generate_refusals(client):
    refused(lambda: client.call("generate"), "bad_request", "prompt")
    refused(lambda: client.generate("x", wdith=8), "bad_request", "wdith")
    refused(lambda: client.generate("x", width="8"), "bad_request", "width")
    refused(lambda: client.generate("x", steps=0), "bad_request", "steps")
    refused(lambda: client.generate("x", rng="dice"), "bad_request", "rng")
    refused(lambda: client.generate("toolarge"), "no_memory", "memory")
    refused(lambda: client.generate("x", version=3), "bad_version")
    assert client.call("status")["queued"] == 0


def test_random_seed_is_told(client):
    answer = client.generate("x")
    assert answer["seed"] >= 0
    assert client.finish(answer["job"])[1]["seed"] == answer["seed"]


@pytest.mark.parametrize("code", ["no_memory", "not_finite", "io"])
def test_failed_job(client, code):
    job = client.generate("fail=" + code, count=2)["job"]
    end, about, before = client.finish(job)
    assert end == "failed" and about["error"]["code"] == code and about["error"]["message"]
    assert len([n for n, _ in before if n == "image"]) == 1  # what was made before came through
    assert client.call("status")["state"] == "ready"


def test_busy_and_positions(daemon, client):
    running = client.generate("ms=5000")["job"]
    wait_until(lambda: client.call("status")["running"] == running)
    waiting = [client.generate("x")["job"] for _ in range(4)]
    answer = refused(lambda: client.generate("x"), "busy")
    assert "4" in answer.message
    status = client.call("status")
    assert status["queued"] == 4 and status["running"] == running
    listed = {j["job"]: j for j in client.call("jobs")["jobs"]}
    assert [listed[j]["position"] for j in waiting] == [1, 2, 3, 4]
    assert listed[running]["state"] == "running" and listed[running]["position"] == 0
    assert listed[running]["progress"]["job"] == running
    assert listed[waiting[0]]["progress"] is None
    assert client.call("cancel", job=waiting[0]) == {"job": waiting[0], "state": "cancelled"}
    assert client.finish(waiting[0])[0] == "cancelled"
    name, moved = client.notice()
    while moved["job"] == running:
        name, moved = client.notice()
    assert name == "progress" and moved["job"] == waiting[1]
    assert moved["state"] == "queued" and moved["position"] == 1 and moved["stage"] is None
    assert client.call("cancel", job=running) == {"job": running, "state": "running"}
    assert client.finish(running)[0] == "cancelled"
    for job in waiting[1:]:
        assert client.finish(job)[0] == "done"


def test_cancel_refusals(client):
    refused(lambda: client.call("cancel"), "bad_request", "job")
    refused(lambda: client.call("cancel", job="one"), "bad_request", "job")
    for number in (0, -1, 999999, 1 << 62):
        refused(lambda: client.call("cancel", job=number), "no_job", str(number))
    job = client.generate("x")["job"]
    client.finish(job)
    assert client.call("cancel", job=job) == {"job": job, "state": "done"}


def test_jobs_map(client):
    prompt = "ü" * 150
    job = client.generate(prompt, seed=3, steps=2)["job"]
    client.finish(job)
    about = [j for j in client.call("jobs")["jobs"] if j["job"] == job][0]
    assert about["state"] == "done" and about["client"] == "test" and about["error"] is None
    assert about["prompt"] == "ü" * 100 and about["seed"] == 3 and about["steps"] == 2
    assert about["submitted_at"] <= about["started_at"] <= about["finished_at"]
    assert about["images"] == 0 and about["detach"] is False and about["position"] == 0


def test_watch(daemon, client):
    job = client.generate("ms=60", count=2)["job"]
    plain, full, late = (Client(daemon) for _ in range(3))
    assert plain.call("watch", job=job)["job"] == job
    full.call("watch", job=job, images=True)
    full.call("watch", job=job)  # no harm, and nothing twice
    client.call("watch", job=job, images=True)
    for c, images in ((plain, 0), (full, 2), (client, 2)):
        end, _, before = c.finish(job)
        assert end == "done"
        assert len([n for n, _ in before if n == "image"]) == images
        assert c.silent(0.05)
    answer = late.call("watch", job=job)
    assert answer["state"] == "done" and late.notice()[0] == "done"
    failed = client.generate("fail=io")["job"]
    client.finish(failed)
    assert late.call("watch", job=failed)["state"] == "failed"
    assert late.notice()[1]["error"]["code"] == "io"
    refused(lambda: late.call("watch", job=123456), "no_job")
    refused(lambda: late.call("watch", job=job, images=1), "bad_request", "images")


def test_watch_all(daemon, client):
    watcher = Client(daemon)
    first = client.generate("ms=30")["job"]
    listed = watcher.call("watch", images=True)["jobs"]
    assert first in [j["job"] for j in listed]
    second = client.generate("x")["job"]
    for job in (first, second):
        assert watcher.finish(job)[0] == "done"
        end, _, before = client.finish(job)
        assert end == "done" and len([n for n, _ in before if n == "image"]) == 1


def test_detach_and_fetch(daemon):
    c = Client(daemon, hello="leaver")
    job = c.generate("ms=20", detach=True, count=2, seed=5)["job"]
    c.close()
    other = Client(daemon)
    find = lambda: [j for j in other.call("jobs")["jobs"] if j["job"] == job][0]
    wait_until(lambda: find()["state"] == "done")
    about = find()
    assert about["images"] == 2 and about["client"] == "leaver"
    for index in (0, 1):
        got = other.call("fetch", job=job, index=index)
        assert got["seed"] == 5 + index and got["count"] == 2 and got["index"] == index
        assert Image.open(io.BytesIO(got["png"])).getpixel((3, 3)) == (5 + index, 0, 0)
    assert other.call("fetch", job=job)["index"] == 0
    refused(lambda: other.call("fetch", job=job, index=2), "bad_request", "index")
    refused(lambda: other.call("fetch", job=job, index=-1), "bad_request", "index")
    refused(lambda: other.call("fetch", job=99999), "no_job")


def test_fetch_of_the_unfinished_and_the_attached(daemon, client):
    job = client.generate("ms=2000", detach=True)["job"]
    refused(lambda: client.call("fetch", job=job), "bad_request", "not made")
    client.call("cancel", job=job)
    assert client.finish(job)[0] == "cancelled"
    refused(lambda: client.call("fetch", job=job), "bad_request", "cancelled")
    job = client.generate("x")["job"]
    client.finish(job)
    refused(lambda: client.call("fetch", job=job), "no_job", "detach")


def test_params_may_be_missing_or_nil(client):
    import msgpack
    client.send_bytes(msgpack.packb([0, 77, "status", []]))
    assert client.answer(77)["name"] == "kread"
    client.send_bytes(msgpack.packb([0, 78, "watch", [{"job": None, "images": None}]]))
    assert "jobs" in client.answer(78)


def test_old_jobs_are_forgotten(tmp_path):
    with Daemon(tmp_path, "queue_limit = 200") as d:
        c = Client(d)
        for _ in range(150):
            job = c.generate("x", steps=1)["job"]
            c.finish(job)
        wait_until(lambda: len(c.call("jobs")["jobs"]) == 100)
        refused(lambda: c.call("watch", job=1), "no_job")
        assert c.call("status")["jobs"] == {"done": 150, "failed": 0, "cancelled": 0}
        assert [j["job"] for j in c.call("jobs")["jobs"]] == list(range(51, 151))


def test_kept_pictures_are_bounded(tmp_path):
    with Daemon(tmp_path, "keep_images = 3\nkeep_megabytes = 1") as d:
        c = Client(d)
        jobs = [c.generate("x", detach=True)["job"] for _ in range(4)]
        for job in jobs:
            c.finish(job)
        assert c.call("status")["kept"]["images"] == 3
        refused(lambda: c.call("fetch", job=jobs[0]), "no_job", "keep_images")
        c.call("fetch", job=jobs[2])  # a fetched one makes room before older ones
        c.finish(c.generate("x", detach=True)["job"])
        assert c.call("fetch", job=jobs[1])["png"]
        refused(lambda: c.call("fetch", job=jobs[2]), "no_job")
        job = c.generate("pad=2000000", detach=True)["job"]  # larger than all that may be kept
        assert c.finish(job)[0] == "done"
        assert c.call("status")["kept"] == {"images": 0, "bytes": 0}


def test_nothing_is_kept_where_the_owner_says_so(tmp_path):
    with Daemon(tmp_path, "keep_images = 0") as d:
        c = Client(d)
        job = c.generate("x", detach=True)["job"]
        assert c.finish(job)[0] == "done"
        refused(lambda: c.call("fetch", job=job), "no_job")


def test_queue_limit_of_zero(tmp_path):
    with Daemon(tmp_path, "queue_limit = 0") as d:
        c = Client(d)
        job = c.generate("ms=5000")["job"]
        refused(lambda: c.generate("x"), "busy")
        c.call("cancel", job=job)
        assert c.finish(job)[0] == "cancelled"
        assert c.finish(c.generate("x")["job"])[0] == "done"


def test_owner_limits(tmp_path):
    with Daemon(tmp_path, "max_pixels = 4096\nmax_steps = 5\nmax_count = 2") as d:
        c = Client(d)
        refused(lambda: c.generate("x", width=80, height=64), "bad_request", "4096")
        refused(lambda: c.generate("x", steps=6), "bad_request", "steps")
        refused(lambda: c.generate("x", count=3), "bad_request", "count")
        assert c.finish(c.generate("x", width=64, height=64, count=2)["job"])[0] == "done"


def test_output_dir(tmp_path):
    (tmp_path / "pictures").mkdir()
    with Daemon(tmp_path, "output_dir = pictures") as d:
        c = Client(d)
        job = c.generate("x", count=2, seed=9)["job"]
        _, _, before = c.finish(job)
        pngs = [m["png"] for n, m in before if n == "image"]
        names = sorted(os.listdir(tmp_path / "pictures"))
        assert len(names) == 2 and names[0].endswith("-%d-0.png" % job)
        assert [(tmp_path / "pictures" / n).read_bytes() for n in names] == pngs
        (tmp_path / "pictures").rename(tmp_path / "elsewhere")
        job = c.generate("x")["job"]
        end, about, _ = c.finish(job)
        assert end == "failed" and about["error"]["code"] == "io"
        assert "output_dir" in about["error"]["message"]
        (tmp_path / "elsewhere").rename(tmp_path / "pictures")
        assert c.finish(c.generate("x")["job"])[0] == "done"
