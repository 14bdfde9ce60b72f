# SPDX-License-Identifier: Apache-2.0
"""Clients of kread-http that are killed, stopped, reset or half-closed at every point of a request, on
every kind of route: each is a process of its own, driven to the point and then hit. The others are
served meanwhile, nothing of the dead stays, and only jobs that were submitted to stay go on."""
import json
import os
import random
import signal
import socket
import struct

import pytest

from harness import SANITIZED, Client, Daemon, wait_until
from shim import Shim, request

SYNC = ("/sdapi/v1/txt2img", "/v1/images/generations")
SUBMIT = "/sdcpp/v1/img_gen"
LARGE = 3000000  # bytes of a picture: more than the kernel takes for a client that does not read
SEED = 31


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    with Daemon(tmp_path_factory.mktemp("killed"), "user_queue_limit = 0\nclient_timeout = 3600") as d:
        yield d


@pytest.fixture(scope="module")
def shim(daemon, tmp_path_factory):
    with Shim(tmp_path_factory.mktemp("shim"), daemon, "request_timeout = 1\nmax_connections_per_address = 500") as s:
        s.files = s.descriptors()  # nobody is connected yet
        yield s


@pytest.fixture(scope="module")
def large(shim):
    """A job that is done, whose picture is large."""
    id = shim.submit("pad=%d" % LARGE)
    assert shim.finish(id)["status"] == "completed"
    return id


def post(path, prompt):
    return request("POST", path, json.dumps({"prompt": prompt}).encode())


def points(large, forever):
    """(what is sent, whether a byte of the answer is waited for) for each point."""
    long = "x ms=100000" if forever else "x ms=20"
    whole = post(SYNC[0], "x")
    head, body = whole.split(b"\r\n\r\n")
    sent = [(b"", False), (b"\r\n", False), (whole[:9], False), (head[:40], False), (head, False), (head + b"\r\n\r\n", False),
            (head + b"\r\n\r\n" + body[:5], False),
            (head + b"\r\nExpect: 100-continue\r\n\r\n", True),
            (b"POST %s HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"pro" % SYNC[1].encode(), False)]
    sent += [(post(path, long), False) for path in SYNC for _ in range(2)]  # one runs, the others wait
    sent += [(post(path, "pad=%d" % LARGE), True) for path in SYNC]
    sent += [(post(SUBMIT, "x"), answered) for answered in (False, True)]
    sent += [(request("GET", path), answered) for answered in (False, True) for path in
             ("/sdcpp/v1/jobs/" + large, "/kread/v1/jobs/%s/images/0.png" % large, "/kread/v1/jobs/%s/preview.png" % large,
              "/kread/v1/status", "/metrics", "/page.js", "/sdapi/v1/progress")]
    sent += [(request("POST", "/sdcpp/v1/jobs/%s/cancel" % large), False),
             (request("GET", "/health") * 30 + post(SYNC[0], long), True)]
    return sent


def half_close(s):
    s.shutdown(socket.SHUT_WR)
    signal.pause()


def reset(s):
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.close()


def victim(shim, data, wait, then):
    """A process that has sent it, has waited for a byte of the answer, and does what is left to do."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            s = socket.socket()
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            s.connect(("127.0.0.1", shim.port))
            s.sendall(data)
            if wait:
                s.recv(1)
            os.write(writing, b"x")
            then(s)
        finally:
            os._exit(1)
    os.close(writing)
    return pid, reading


def arrived(pid, reading):
    assert os.read(reading, 1) == b"x", "a client did not get to its point"
    os.close(reading)
    return pid


def at_rest(daemon, shim):
    c = Client(daemon)
    s = c.call("status")
    c.close()
    return s["running"] is None and s["queued"] == 0 and s["clients"] == 2 and b"kread_http_waiting 0" in shim.get("/metrics").body


def settled(daemon, shim):
    wait_until(lambda: at_rest(daemon, shim), "rest after the clients were gone")
    wait_until(lambda: shim.descriptors() == shim.files, "all descriptors are closed")
    return shim.memory(), daemon.memory()


HITS = {"killed": (lambda s: signal.pause(), signal.SIGKILL, True), "stopped": (lambda s: signal.pause(), signal.SIGSTOP, False),
        "reset": (reset, None, True), "half-closed": (half_close, None, True)}


@pytest.mark.parametrize("hit", HITS)
def test_clients_at_every_point(daemon, shim, large, hit):
    """What waits for ever ends with its client; a stopped client's own ends by the time limits."""
    then, number, forever = HITS[hit]
    wait_until(lambda: at_rest(daemon, shim))
    rng = random.Random(SEED)
    for turn in range(2):
        clients = points(large, forever)
        rng.shuffle(clients)
        clients.sort(key=lambda c: b"ms=" in c[0])  # those first who need the worker
        victims = [arrived(*victim(shim, data, wait, then)) for data, wait in clients]
        try:
            for pid in victims:
                if number:
                    os.kill(pid, number)
            assert shim.get("/health").status == 200
            if forever or turn == 0:
                assert shim.txt2img("y").status == 200
            memory = settled(daemon, shim)
        finally:
            for pid in victims:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        if turn == 0:
            before = memory
    for now, then_ in zip(memory, before):
        assert now - then_ < 4 << 20 or SANITIZED, (memory, before)
    c = Client(daemon)
    ends = [(j["detach"], j["state"]) for j in c.call("jobs")["jobs"]]
    c.close()
    assert (True, "cancelled") not in ends and not {s for _, s in ends} & {"failed", "queued", "running"}
    assert (False, "cancelled") in ends
    assert shim.job(large)["status"] == "completed"
