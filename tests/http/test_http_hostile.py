# SPDX-License-Identifier: Apache-2.0
"""Clients that send too much, too little, too slowly or nonsense: each costs itself an answer, nobody else anything."""
import contextlib
import json
import random
import socket
import time

import pytest

from harness import SANITIZED, Client, Daemon, wait_until
from shim import Shim, read_all, request

TXT2IMG = "/sdapi/v1/txt2img"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    with Daemon(tmp_path_factory.mktemp("hostile"), "user_queue_limit = 0\nuser_clients = 0") as d:
        yield d


@pytest.fixture(scope="module")
def shim(daemon, tmp_path_factory):
    with Shim(tmp_path_factory.mktemp("shim"), daemon) as s:
        yield s
        assert s.txt2img("still here").status == 200


@pytest.fixture(scope="module")
def hasty(daemon, tmp_path_factory):
    with Shim(tmp_path_factory.mktemp("hasty"), daemon, "request_timeout = 1\nmax_connections = 40\nmax_connections_per_address = 30") as s:
        yield s


def status(data):
    assert data.startswith(b"HTTP/1.1 "), data[:80]
    return int(data.split()[1])


def alive(shim):
    assert shim.get("/health").status == 200


# -------------------------------------------------------------------------------------- too much ---

@pytest.mark.parametrize("size", [1 << 16, 1 << 20])
def test_large_headers(shim, size):
    data = shim.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Large: " + b"x" * size + b"\r\n\r\n")
    assert data == b"" or status(data) in (400, 413, 431)
    data = shim.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * (size // 6) + b"\r\n")
    assert data == b"" or status(data) in (400, 413, 431)
    data = shim.raw(b"GET /" + b"x" * size + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert data == b"" or status(data) in (400, 413, 414, 431)
    alive(shim)


@pytest.mark.parametrize("length", [(1 << 20) + 1, 1 << 31, 1 << 62])
def test_a_body_that_is_announced_too_large(shim, length):
    s = shim.raw(b"POST /sdapi/v1/txt2img HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % length, wait=False)
    data = s.recv(1 << 16)
    s.close()
    assert status(data) == 413 and b"1048576" in data  # before any of it was sent


@pytest.mark.parametrize("length", [b"-1", b"abc", b"99999999999999999999999", b"5, 6", b"0x10"])
def test_lengths_that_are_none(shim, length):
    data = shim.raw(b"POST /sdapi/v1/txt2img HTTP/1.1\r\nHost: localhost\r\nContent-Length: %s\r\n\r\n{}" % length)
    assert data == b"" or 400 <= status(data) < 500
    alive(shim)


def chunked(path=TXT2IMG):
    return ("POST %s HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" % path).encode()


def test_an_endless_body(shim):
    before = shim.memory()
    s = shim.raw(chunked(), wait=False)
    sent = 0
    with contextlib.suppress(ConnectionError):
        while sent < 64 << 20:
            s.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")
            sent += 65536
    s.close()
    assert sent < 32 << 20  # it was cut off
    assert shim.memory() - before < 8 << 20
    alive(shim)


def test_a_chunked_body_that_is_too_large_is_told_so(shim):
    body = b"".join(b"10000\r\n" + b" " * 65536 + b"\r\n" for _ in range(20)) + b"0\r\n\r\n"
    assert status(shim.raw(chunked().replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + body)) == 413


def test_a_chunked_body(shim):
    text = json.dumps({"prompt": "a fox", "seed": 3}).encode()
    body = b"".join(b"%x\r\n%s\r\n" % (1, text[i:i + 1]) for i in range(len(text))) + b"0\r\n\r\n"
    assert status(shim.raw(chunked().replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + body)) == 200


@pytest.mark.parametrize("body", [b"zz\r\n{}\r\n0\r\n\r\n", b"-5\r\n{}\r\n", b"2\r\n{}xx0\r\n\r\n", b"ffffffffffffffffff\r\n{}", b"2{}\r\n0\r\n\r\n",
                                  b"\r\n\r\n", b"2;" + b"x" * 100000 + b"\r\n{}\r\n0\r\n\r\n"], ids=range(7))
def test_bad_chunking(hasty, body):
    data, = broken_off(hasty, [chunked() + body])
    assert data == b"" or 400 <= status(data) < 500
    alive(hasty)


def test_deep_json(shim):
    for text in ("[" * 100000, "[" * 100000 + "]" * 100000, '{"a":' * 100000 + "1" + "}" * 100000, '{"prompt":' + "[" * 33 + "]" * 33 + "}"):
        answer = shim.post(TXT2IMG, text.encode())
        assert answer.status == 400 and answer.json()["error"] == "invalid json" and "32 levels" in answer.json()["detail"]
    assert shim.post(TXT2IMG, json.dumps({"prompt": "brackets in texts do not count: " + "[{" * 1000}).encode()).status == 200


def test_json_of_many_values(shim):
    before = shim.memory()
    for text in ('{"a":[' + "[]," * 300000 + "[]]}", "{" + ",".join('"k%d":1' % i for i in range(80000)) + "}",
                 '{"prompt":"x","prompt":"' + "y" * 70000 + '"}'):
        assert shim.post(TXT2IMG, text.encode()).status == 400
    assert shim.memory() - before < 24 << 20 or SANITIZED


def test_texts_at_the_limit(shim):
    assert shim.txt2img("x" * 65536).status == 200
    assert shim.txt2img("x", negative_prompt="y" * 65536).status == 200
    assert shim.post(TXT2IMG, {"prompt": "x" * 65536, "negative_prompt": "y" * 65536}).status == 200
    answer = shim.txt2img("x" * 65537)
    assert answer.status == 400 and "65536" in answer.json()["detail"]


UNICODE = ["狐の絵", "\U0001f98a", "\u0000".encode("unicode_escape").decode(), "a\tb\nc\"\\/", "\u202e\ufeff", "e\u0301"]


@pytest.mark.parametrize("prompt", UNICODE)
def test_unicode(shim, prompt):
    answer = shim.txt2img(prompt)
    assert answer.status == 200 and json.loads(answer.json()["info"])["prompt"] == prompt


@pytest.mark.parametrize("text", [b'{"prompt":"\xc3\x28"}', b'{"prompt":"\xed\xa0\x80"}', b'{"prompt":"\\ud800"}', b'{"prompt":"\xf5\x80\x80\x80"}',
                                  b'{"\xff":1,"prompt":"x"}', b"\xff\xfe{\x00}\x00", b"\x00", b'{"prompt":"\x01"}'])
def test_bad_utf8_and_controls(shim, text):
    assert shim.post(TXT2IMG, text).status == 400


def test_a_byte_order_mark_is_passed_over(shim):
    assert shim.post(TXT2IMG, b"\xef\xbb\xbf" + b'{"prompt":"x"}').status == 200


# ------------------------------------------------------------------------------------- nonsense ---

def broken_off(shim, datas):
    """Each on a connection of its own, whose sending side is closed then; what comes back."""
    sockets = [shim.raw(data, wait=False) for data in datas]
    for s in sockets:
        with contextlib.suppress(OSError):
            s.shutdown(socket.SHUT_WR)
    return [read_all(s) for s in sockets]


def test_random_bytes(shim):
    rng = random.Random(7)
    for _ in range(4):
        broken_off(shim, [rng.randbytes(rng.randrange(1, 400)) + (b"\r\n\r\n" if i % 2 else b"") for i in range(100)])
    alive(shim)


def test_mutated_requests(shim):
    rng = random.Random(11)
    good = request("POST", TXT2IMG, b'{"prompt":"x","steps":4,"seed":1}', "Content-Type: application/json", "Connection: close")
    for _ in range(4):
        bads = [bytearray(good) for _ in range(100)]
        for bad in bads:
            for _ in range(rng.randrange(1, 4)):
                bad[rng.randrange(len(bad))] = rng.randrange(256)
        broken_off(shim, [bytes(bad) for bad in bads])
    alive(shim)


@pytest.mark.parametrize("line", [b"GET /health", b"GET", b"GET  HTTP/1.1", b"\r\n\r\nGET /health HTTP/1.1", b"GET /health HTTP/9.9",
                                  b"get /health HTTP/1.1", b"G\x00T /health HTTP/1.1", b"GET http://localhost/health HTTP/1.1",
                                  b"CONNECT evil.example:443 HTTP/1.1", b"PRI * HTTP/2.0", b"GET /health\x00 HTTP/1.1"])
def test_strange_request_lines(shim, line):
    data, = broken_off(shim, [line + b"\r\nHost: localhost\r\nConnection: close\r\n\r\n"])
    assert data == b"" or data.startswith(b"HTTP/1.") and b"500" not in data.split(b"\r\n")[0]
    alive(shim)


def test_headers_that_smuggle(shim):
    """Length and chunks, two lengths: one request or none, never two."""
    inner = request("GET", "/metrics", b"")
    for headers in (b"Content-Length: %d\r\nTransfer-Encoding: chunked" % (len(inner) + 5), b"Content-Length: 0\r\nContent-Length: %d" % len(inner)):
        data, = broken_off(shim, [b"POST /sdapi/v1/options HTTP/1.1\r\nHost: localhost\r\n" + headers + b"\r\n\r\n0\r\n\r\n" + inner])
        assert data.count(b"kread_up") == 0 and data.count(b"HTTP/1.1") <= 1, data
        assert data == b"" or status(data) == 400
    alive(shim)


def test_pipelining(shim):
    one = request("GET", "/sdapi/v1/options")
    data = shim.raw(one * 50 + request("POST", TXT2IMG, b'{"prompt":"x"}') * 3 + one + request("GET", "/health", b"", "Connection: close"))
    assert data.count(b"HTTP/1.1 200") == 55 and data.count(b"sd_model_checkpoint") == 51
    assert data.count(b'"images"') == 3


def test_keep_alive(shim):
    with contextlib.closing(shim.connection()) as c:
        local = None
        for i in range(30):
            c.request("POST" if i % 3 == 0 else "GET", TXT2IMG if i % 3 == 0 else "/v1/models", body=b'{"prompt":"x"}' if i % 3 == 0 else None)
            r = c.getresponse()
            assert r.status == 200 and r.read()
            local = local or c.sock.getsockname()
            assert c.sock.getsockname() == local


# ------------------------------------------------------------------------------------ too slowly ---

def closes(s, seconds):
    """What comes until it is closed; it must be closed within so many seconds."""
    s.settimeout(seconds)
    return read_all(s)


def test_requests_that_do_not_end(hasty):
    """Nothing, half a line, headers drop by drop, half a body: the place is free again after the time limit."""
    starts = [b"", b"GET /hea", b"GET /health HTTP/1.1\r\nHost: localhost\r\n", b"POST /sdapi/v1/txt2img HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{"]
    sockets = [hasty.raw(s, wait=False) for s in starts]
    dripping = hasty.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\n", wait=False)
    end = time.monotonic() + 30
    with contextlib.suppress(ConnectionError):
        while time.monotonic() < end:
            dripping.sendall(b"X")
            time.sleep(0.1)
    assert time.monotonic() < end  # dripping did not help
    for s in [*sockets, dripping]:
        closes(s, 30)
    alive(hasty)


def test_an_idle_connection_is_closed(hasty):
    s = hasty.raw(request("GET", "/health"), wait=False)
    assert status(closes(s, 30)) == 200


def test_waiting_for_a_picture_is_not_idling(hasty):
    assert hasty.txt2img("x ms=600").status == 200  # 2.4 s, with a limit of 1 s for sending a request


def test_an_answer_that_nobody_takes(daemon, hasty):
    before = hasty.memory()
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    s.connect(("127.0.0.1", hasty.port))
    s.sendall(request("POST", TXT2IMG, b'{"prompt":"x pad=6000000"}'))
    time.sleep(0.5)
    for _ in range(5):
        assert s.recv(10)
        assert hasty.get("/health").status == 200
    s.close()
    wait_until(lambda: SANITIZED or hasty.memory() - before < 4 << 20, "its memory is free again")


def test_a_crowd_locks_nobody_out(hasty):
    """More connections than there are places, all silent: who asks for something gets it."""
    crowd = [hasty.raw(wait=False) for _ in range(100)]
    for _ in range(20):
        alive(hasty)
    assert hasty.txt2img("x").status == 200
    for s in crowd:
        s.close()


def test_when_all_places_wait_for_pictures(daemon, hasty):
    pending = [hasty.raw(request("POST", TXT2IMG, b'{"prompt":"x ms=100000"}'), wait=False) for _ in range(30)]
    c = Client(daemon)
    wait_until(lambda: sum(j["state"] in ("queued", "running") for j in c.call("jobs")["jobs"]) == 30)
    assert status(hasty.raw(request("GET", "/health"))) == 503
    for s in pending:
        s.close()
    wait_until(lambda: not any(j["state"] in ("queued", "running") for j in c.call("jobs")["jobs"]))
    c.close()
    alive(hasty)


def test_200_connections_that_poll(shim):
    job = shim.submit("x ms=200")
    sockets = [shim.raw(wait=False) for _ in range(200)]
    for _ in range(3):
        for s in sockets:
            s.sendall(request("GET", "/sdcpp/v1/jobs/" + job))
        for s in sockets:
            assert b" 200 OK" in s.recv(1 << 16)
    for s in sockets:
        s.close()
    assert shim.finish(job)["status"] == "completed"


def test_50_generations_at_once(shim):
    pending = [shim.start("POST", TXT2IMG, {"prompt": "x ms=2", "seed": i}) for i in range(50)]
    answers = [p.result() for p in pending]
    assert [a.status for a in answers] == [200] * 50, [a.body for a in answers if a.status != 200]
    assert sorted(json.loads(a.json()["info"])["seed"] for a in answers) == list(range(50))


def test_nothing_is_left_behind(daemon, shim):
    """Hundreds of requests of every kind, half of them broken off: descriptors and memory are as before."""
    def round_():
        for i in range(20):
            shim.txt2img("x")
            shim.raw(request("POST", TXT2IMG, b'{"prompt":"x ms=20"}'), wait=False).close()
            shim.raw(b"POST /sdapi/v1/txt2img HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\n" + b"x" * i, wait=False).close()
            shim.get("/sdcpp/v1/jobs/nonsense")
            shim.get("/kread/v1/status")
        wait_until(lambda: shim.get("/kread/v1/status").json()["queued"] == 0)
    round_()
    wait_until(lambda: b"kread_http_waiting 0" in shim.get("/metrics").body)
    descriptors, memory = shim.descriptors(), shim.memory()
    for _ in range(3):
        round_()
    wait_until(lambda: shim.descriptors() <= descriptors, "all descriptors are closed")
    assert SANITIZED or shim.memory() - memory < 1 << 20
