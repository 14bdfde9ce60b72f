# SPDX-License-Identifier: Apache-2.0
"""The daemon and kread-http get SIGTERM and SIGKILL at every stage of jobs that came over HTTP: who waits
gets a picture or a clear error, the other program goes on, and every job that was answered as accepted
is finished once, with the picture of an undisturbed run."""
import base64
import http.client
import os
import signal
import time

import pytest

from harness import Client, Daemon, wait_until
from shim import Shim, request

SYNC = ("/sdapi/v1/txt2img", "/v1/images/generations")
JOB = dict(batch_count=2, seed=7, width=32, height=32)
# How far the first detached job has come when it happens; None: it only has been answered.
STAGES = {"queued": None, "running": (0, 1), "second picture": (1, 1), "last step": (1, 4)}
NUMBERS = {"SIGTERM": signal.SIGTERM, "SIGKILL": signal.SIGKILL}
LARGE = 3000000


@pytest.fixture(scope="module")
def want(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    with Daemon(folder) as d, Shim(folder / "http", d) as s:
        return s.finish(s.submit("x", **JOB))["result"]["images"]


def jobs(daemon):
    c = Client(daemon)
    all_ = c.call("jobs")["jobs"]
    c.close()
    return all_


def come_to(shim, id, stage):
    def there():
        job = shim.job(id)
        at = job["progress"]
        return job["status"] == "completed" or job["status"] == "generating" and (at["image"] or 0, at["step"] or 0) >= stage
    if stage:
        wait_until(there, "the stage")


def end_daemon(daemon, number):
    if number == signal.SIGTERM:
        assert daemon.stop() == 0
    else:
        daemon.kill()
    daemon.stop = lambda: 0


def all_once(daemon, shim, ids, want):
    """Every id is a job that is done, none stands twice, and the pictures are right."""
    for id in ids:
        job = shim.finish(id)
        assert job["status"] == "completed" and job["result"]["images"] == want, job
    wait_until(lambda: not {"queued", "running"} & {j["state"] for j in jobs(daemon)})
    detached = [j for j in jobs(daemon) if j["detach"]]
    assert sorted(j["job"] for j in detached) == sorted(int(id[-8:], 16) for id in ids)
    assert len({j["job"] for j in jobs(daemon)}) == len(jobs(daemon))


# ------------------------------------------------------------------------------------ the daemon ---

@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("stage", STAGES)
def test_the_daemon_ends(tmp_path, want, stage, number):
    with Daemon(tmp_path) as first, Shim(tmp_path / "http", first) as shim:
        done = shim.submit("x", **JOB)
        before = shim.finish(done)
        ids = [shim.submit(prompt, **JOB) for prompt in ("ms=15", "x")]
        waiting = [shim.start("POST", path, {"prompt": "x"}) for path in SYNC]
        wait_until(lambda: len(jobs(first)) == 5)
        come_to(shim, ids[0], STAGES[stage])
        end_daemon(first, NUMBERS[number])
        for answer in (w.result() for w in waiting):
            assert answer.status in (200, 503), answer.body
            if answer.status == 503:
                assert answer.headers["Retry-After"]
                assert b"stopping" in answer.body if number == "SIGTERM" else b"kread ended" in answer.body
        wait_until(lambda: shim.get("/health").status == 503)
        answer = shim.get("/sdcpp/v1/jobs/" + ids[1])
        assert answer.status == 503 and answer.headers["Retry-After"]
        with Daemon(tmp_path) as second:
            wait_until(lambda: shim.get("/health").status == 200)
            all_once(second, shim, [done, *ids], want)
            assert shim.job(done) == before  # not made again
            assert shim.txt2img("x").status == 200
        first.process.returncode = 0


@pytest.mark.parametrize("number", NUMBERS)
def test_the_daemon_ends_while_it_answers(tmp_path, number):
    """Several large pictures are on their way, for requests that wait and for those that fetch."""
    with Daemon(tmp_path) as first, Shim(tmp_path / "http", first) as shim:
        id = shim.submit("pad=%d" % LARGE, batch_count=6)
        whole = shim.finish(id)
        fetching = [shim.start("GET", "/sdcpp/v1/jobs/" + id) for _ in range(4)]
        waiting = [shim.start("POST", path, {"prompt": "pad=%d" % LARGE, "n": 6, "n_iter": 6}) for path in SYNC]
        wait_until(lambda: any(j["state"] == "running" for j in jobs(first)) or waiting[0].done())
        end_daemon(first, NUMBERS[number])
        for answer in (w.result() for w in fetching + waiting):
            assert answer.status in (200, 503), answer.body[:200]
            assert answer.status == 200 or answer.headers["Retry-After"]
            assert len(answer.body) == int(answer.headers["Content-Length"])
        with Daemon(tmp_path):
            wait_until(lambda: shim.get("/health").status == 200)
            assert shim.job(id) == whole
        first.process.returncode = 0


def test_a_daemon_that_drains_takes_no_more(tmp_path):
    with Daemon(tmp_path) as daemon, Shim(tmp_path / "http", daemon) as shim:
        running = shim.start("POST", SYNC[0], {"prompt": "x ms=250"})
        wait_until(lambda: [j["state"] for j in jobs(daemon)] == ["running"])
        queued = shim.start("POST", SYNC[1], {"prompt": "x"})
        wait_until(lambda: len(jobs(daemon)) == 2)
        daemon.signal()
        assert queued.result().status == 503
        for path in (*SYNC, "/sdcpp/v1/img_gen"):
            answer = shim.post(path, {"prompt": "x"})
            assert answer.status == 503 and answer.headers["Retry-After"] and b"stopping" in answer.body
        assert shim.get("/kread/v1/status").json()["state"] == "stopping"
        assert running.result().status == 200  # the running one may finish


# ------------------------------------------------------------------------------------ kread-http ---

def end_shim(shim, number):
    shim.process.send_signal(number)
    assert shim.process.wait(60) == (0 if number == signal.SIGTERM else -signal.SIGKILL)
    shim.stop = lambda: 0


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("stage", STAGES)
def test_kread_http_ends(tmp_path, want, stage, number):
    """Jobs that were submitted go on and are found again by another; those of requests end with them."""
    with Daemon(tmp_path) as daemon, Shim(tmp_path / "http", daemon) as shim:
        ids = [shim.submit(prompt, **JOB) for prompt in ("ms=15", "x")]
        waiting = [shim.start("POST", path, {"prompt": "x ms=100000"}) for path in SYNC]
        wait_until(lambda: len(jobs(daemon)) == 4)
        come_to(shim, ids[0], STAGES[stage])
        end_shim(shim, NUMBERS[number])
        for w in waiting:
            if number == "SIGTERM":
                assert w.result().status == 503 and w.result().headers["Retry-After"]
            else:
                with pytest.raises((ConnectionError, http.client.HTTPException)):
                    w.result()
        with Shim(tmp_path / "again", daemon, listen=("127.0.0.1:%d" % shim.port,)) as again:
            all_once(daemon, again, ids, want)
        assert [j["state"] for j in jobs(daemon) if not j["detach"]] == ["cancelled"] * 2
        wait_until(lambda: Client(daemon).call("status")["clients"] == 1)


def test_requests_that_come_while_it_stops(tmp_path):
    """Somebody does not read an answer, so it stays for a moment: others hear at once that it goes."""
    with Daemon(tmp_path) as daemon, Shim(tmp_path / "http", daemon) as shim:
        stalled = shim.raw(request("POST", SYNC[0], b'{"prompt":"x pad=30000000"}'), wait=False)
        kept = [shim.raw(request("GET", "/health"), wait=False) for _ in range(3)]
        for s in kept:
            assert b"200 OK" in s.recv(1 << 16)
        wait_until(lambda: "/sdapi/v1/txt2img: 200" in shim.logged())
        kept[2].sendall(request("POST", SYNC[0], b'{"prompt":"x ms=100000"}')[:-5])
        shim.process.terminate()
        wait_until(lambda: "stopping" in shim.logged())
        kept[0].sendall(request("POST", SYNC[0], b'{"prompt":"x ms=100000"}'))
        kept[1].sendall(request("POST", "/sdcpp/v1/img_gen", b'{"prompt":"x"}'))
        kept[2].sendall(b'000"}')
        for s in kept:
            answer = b"".join(iter(lambda s=s: s.recv(1 << 16), b""))
            assert b"503 Service" in answer and b"stopping" in answer and b"Connection: close" in answer, answer
        assert shim.process.poll() is None
        stalled.close()
        assert shim.stop() == 0
        assert [j["state"] for j in jobs(daemon)] == ["done"]


def test_both_end_and_come_back(tmp_path, want):
    """Killed in turn and together while jobs are submitted: what was accepted is done."""
    ids, shim, daemon = [], None, None
    for turn in range(4):
        daemon = Daemon(tmp_path)
        shim = Shim(tmp_path / "http", daemon)
        ids += [shim.submit(prompt, **JOB) for prompt in ("ms=10", "x")]
        unanswered = shim.raw(request("POST", "/sdcpp/v1/img_gen", b'{"prompt":"x","seed":99}'), wait=False)
        time.sleep(0.02 * turn)
        for p in (shim, daemon)[::turn % 2 * 2 - 1]:
            p.process.kill()
            p.process.wait()
        unanswered.close()
    with Daemon(tmp_path) as last, Shim(tmp_path / "http", last) as shim:
        for id in ids:
            job = shim.finish(id)
            assert job["status"] == "completed" and job["result"]["images"] == want
        wait_until(lambda: not {"queued", "running"} & {j["state"] for j in jobs(last)})
        assert {j["state"] for j in jobs(last)} == {"done"}
        names = os.listdir(last.state("jobs"))
        assert len(names) == len(set(names)) and not [n for n in names if n.endswith(".part")]
        for image in shim.job(ids[0])["result"]["images"]:
            assert base64.b64decode(image["b64_json"], validate=True)
