# SPDX-License-Identifier: Apache-2.0
"""Clients that leave, interrupts, a full queue, a daemon that restarts, and the shim's own end."""
import contextlib
import json
import signal
import time

import pytest

from harness import Client, Daemon, wait_until
from shim import Shim, read_all, request


@pytest.fixture
def daemon(tmp_path):
    with Daemon(tmp_path, "queue_limit = 4") as d:
        yield d


@pytest.fixture
def shim(daemon, tmp_path):
    with Shim(tmp_path / "http", daemon) as s:
        yield s


def jobs(daemon):
    c = Client(daemon)
    with contextlib.closing(c):
        return c.call("jobs")["jobs"]


def states(daemon):
    return [j["state"] for j in jobs(daemon)]


def waiting(shim, path, prompt, **fields):
    """An open connection whose request waits for its pictures."""
    return shim.raw(request("POST", path, json.dumps(dict(fields, prompt=prompt)).encode()), wait=False)


SYNC = ["/sdapi/v1/txt2img", "/v1/images/generations"]


# ------------------------------------------------------------------------------------- leaving ---

@pytest.mark.parametrize("path", SYNC)
def test_a_client_that_leaves_takes_its_job_along(daemon, shim, path):
    running = waiting(shim, path, "x ms=100000")
    wait_until(lambda: states(daemon) == ["running"])
    queued = waiting(shim, path, "x ms=100000")
    wait_until(lambda: states(daemon) == ["running", "queued"])
    queued.close()
    wait_until(lambda: "queued" not in states(daemon))
    assert states(daemon)[0] == "running"
    before = time.monotonic()
    running.close()
    wait_until(lambda: "running" not in states(daemon))
    assert time.monotonic() - before < 30  # within a step of 100 s
    assert shim.txt2img("y").status == 200


def test_an_async_job_stays_when_its_client_leaves(daemon, shim):
    id = shim.submit("x ms=100")
    assert shim.finish(id)["status"] == "completed"
    assert "cancelled" not in states(daemon)


def test_a_client_that_pipelines_has_not_left(daemon, shim):
    body = b'{"prompt":"x ms=100"}'
    s = shim.raw(request("POST", "/sdapi/v1/txt2img", body) + request("GET", "/health", b"", "Connection: close"), wait=False)
    data = read_all(s)
    assert data.count(b"HTTP/1.1 200") == 2 and data.endswith(b'{"status":"ok"}')


# ----------------------------------------------------------------------------------- interrupt ---

def test_interrupt(daemon, shim):
    request_ = shim.start("POST", "/sdapi/v1/txt2img", {"prompt": "x ms=100000"})
    wait_until(lambda: "running" in states(daemon))
    wait_until(lambda: shim.get("/sdapi/v1/progress").json()["state"]["sampling_steps"] == 4)
    assert shim.post("/sdapi/v1/interrupt").json() == {}
    answer = request_.result()
    assert answer.status == 500 and answer.json()["error"] == "interrupted"


def test_interrupt_when_idle(shim):
    assert shim.post("/sdapi/v1/interrupt").json() == {}
    assert shim.txt2img("x").status == 200


def test_interrupt_leaves_other_families_alone(daemon, shim):
    id = shim.submit("x ms=150")
    generation = shim.start("POST", "/v1/images/generations", {"prompt": "x ms=150"})
    wait_until(lambda: shim.job(id)["status"] == "generating")
    shim.post("/sdapi/v1/interrupt")
    wait_until(lambda: states(daemon)[0] == "done")
    shim.post("/sdapi/v1/interrupt")
    assert generation.result().status == 200 and shim.finish(id)["status"] == "completed"


@pytest.mark.parametrize("order", ["leave, then interrupt", "interrupt, then leave"])
def test_stop_ends_one_job_only(daemon, shim, order):
    """SillyTavern's stop is an interrupt and a dropped connection, at about the same time: the next job lives."""
    mine = waiting(shim, "/sdapi/v1/txt2img", "x ms=100000")
    wait_until(lambda: "running" in states(daemon))
    next_ = shim.start("POST", "/sdapi/v1/txt2img", {"prompt": "y ms=100"})
    wait_until(lambda: states(daemon) == ["running", "queued"])
    if order.startswith("leave"):
        mine.close()
        time.sleep(0.2)
        shim.post("/sdapi/v1/interrupt")
    else:
        shim.post("/sdapi/v1/interrupt")
        time.sleep(0.05)
        mine.close()
    assert next_.result().status == 200
    assert states(daemon)[0] != "running"


# --------------------------------------------------------------------------- queue and progress ---

def test_a_full_queue(daemon, shim):
    running = shim.submit("x ms=100000")
    wait_until(lambda: "running" in states(daemon))
    queued = [shim.submit("x") for _ in range(4)]
    for path in [*SYNC, "/sdcpp/v1/img_gen"]:
        answer = shim.post(path, {"prompt": "x"})
        assert answer.status == 429 and int(answer.headers["Retry-After"]) > 0, answer.body
    assert shim.post("/sdcpp/v1/img_gen", {"prompt": "x"}).json()["error"] == "job queue is full"
    assert shim.post("/v1/images/generations", {"prompt": "x"}).json()["error"]["type"] == "rate_limit_error"
    for id in [running, *queued]:
        shim.post("/sdcpp/v1/jobs/%s/cancel" % id)
    wait_until(lambda: set(states(daemon)) == {"cancelled"})


def test_progress_of_a_running_request(daemon, shim):
    pending = shim.start("POST", "/sdapi/v1/txt2img", {"prompt": "x ms=60", "batch_size": 2})
    shares = []
    while not pending.done():
        p = shim.get("/sdapi/v1/progress").json()
        if p["state"]["job_count"]:
            assert p["state"]["job_count"] == 2 and p["state"]["job"] == "txt2img" and 0 <= p["progress"] <= 1
            shares.append(p["progress"])
        time.sleep(0.01)
    assert shares == sorted(shares) and len(set(shares)) > 4
    idle = shim.get("/sdapi/v1/progress").json()
    assert idle["progress"] == 0 and idle["state"]["job_count"] == 0


# -------------------------------------------------------------------------------- the daemon goes ---

def test_a_daemon_that_dies_and_comes_back(tmp_path):
    with Daemon(tmp_path) as first:
        with Shim(tmp_path / "http", first) as shim:
            pending = [shim.start("POST", path, {"prompt": "x ms=100000"}) for path in SYNC]
            kept = shim.submit("x")
            wait_until(lambda: len(states(first)) == 3)
            first.kill()
            for p in pending:
                answer = p.result()
                assert answer.status == 503 and answer.headers["Retry-After"], answer.body
                assert "kread ended" in answer.body.decode()
            wait_until(lambda: shim.get("/health").status == 503)
            assert shim.get("/kread/v1/status").json()["state"] == "away"
            for path in ("/sdapi/v1/options", "/v1/models", "/sdcpp/v1/capabilities", "/sdapi/v1/progress"):
                assert shim.get(path).status == 200  # what was known stays known
            for path in [*SYNC, "/sdcpp/v1/img_gen"]:
                answer = shim.post(path, {"prompt": "x"})
                assert answer.status == 503 and answer.headers["Retry-After"]
                assert str(tmp_path) not in answer.body.decode()
            assert shim.get("/sdcpp/v1/jobs/" + kept).status == 503
            assert b"kread_up 0" in shim.get("/metrics").body
            with Daemon(tmp_path):
                wait_until(lambda: shim.get("/health").status == 200)
                assert shim.txt2img("x").status == 200
                assert shim.finish(kept)["status"] == "completed"  # from the daemon's spool
        first.process.returncode = 0


def test_without_a_daemon_from_the_start(tmp_path):
    with Shim(tmp_path, str(tmp_path / "nobody.sock"), wait=False) as shim:
        shim.wait_ready(daemon=False)
        for path in ("/sdapi/v1/options", "/v1/models", "/sdapi/v1/sd-models", "/sdcpp/v1/capabilities"):
            answer = shim.get(path)
            assert answer.status == 503 and answer.headers["Retry-After"] and str(tmp_path) not in answer.body.decode()
        for path in ("/sdapi/v1/samplers", "/sdapi/v1/upscalers", "/", "/sdapi/v1/progress"):
            assert shim.get(path).status == 200
        assert shim.txt2img("x").status == 503


def test_a_daemon_that_hangs_delays_nobody(daemon, shim):
    daemon.signal(signal.SIGSTOP)
    try:
        pending = shim.start("POST", "/sdapi/v1/txt2img", {"prompt": "x"})
        status = shim.start("GET", "/kread/v1/status")
        for path in ("/health", "/sdapi/v1/options", "/v1/models", "/sdapi/v1/progress", "/"):
            before = time.monotonic()
            assert shim.get(path).status == 200
            assert time.monotonic() - before < 5
        assert not pending.done() and not status.done()
    finally:
        daemon.signal(signal.SIGCONT)
    assert pending.result().status == 200 and status.result().json()["state"] == "ready"


# ------------------------------------------------------------------------------- the shim goes ---

def test_stopping_answers_who_waits(daemon, tmp_path):
    with Shim(tmp_path / "second", daemon) as shim:
        pending = [shim.start("POST", path, {"prompt": "x ms=100000"}) for path in SYNC]
        id = shim.submit("x")
        wait_until(lambda: len(states(daemon)) == 3)
        assert shim.stop() == 0
        for p in pending:
            assert p.result().status == 503 and p.result().headers["Retry-After"]
    wait_until(lambda: sorted(states(daemon)) == ["cancelled", "cancelled", "done"])
    with Shim(tmp_path / "third", daemon) as shim:  # remembers nothing, and need not
        assert shim.job(id)["status"] == "completed"


def test_render_timeout(daemon, tmp_path):
    with Shim(tmp_path / "hasty", daemon, "render_timeout = 1") as shim:
        answer = shim.txt2img("x ms=100000")
        assert answer.status == 504 and answer.json()["error"] == "timeout"
        wait_until(lambda: states(daemon) == ["cancelled"])
