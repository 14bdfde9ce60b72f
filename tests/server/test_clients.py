# SPDX-License-Identifier: Apache-2.0
"""Clients that misbehave, vanish, stall or come in crowds: none costs more than its own connection."""
import contextlib
import random
import resource
import select
import socket
import struct
import time

import msgpack
import pytest

from harness import SANITIZED, Client, Daemon, Refused, wait_until


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    with Daemon(tmp_path_factory.mktemp("clients")) as d:
        yield d


@pytest.fixture(scope="module")
def hasty(tmp_path_factory):
    """A daemon that gives clients one second."""
    with Daemon(tmp_path_factory.mktemp("hasty"), "client_timeout = 1") as d:
        yield d


@pytest.fixture
def client(daemon):
    c = Client(daemon, hello="good")
    yield c
    c.close()


def bad_frame(client):
    message = client.receive()
    assert message[:2] == [1, 0] and message[2]["code"] == "bad_frame", message
    assert client.ended()
    return message[2]["message"]


GARBAGE = {
    "text": b"GET / HTTP/1.1\r\n\r\n",
    "reserved byte": b"\xc1",
    "too deep": b"\x91" * 200,
    "a long text announced": b"\x94\x00\x01\xdb" + struct.pack(">I", 1 << 30),
    "many items announced": b"\xdd" + struct.pack(">I", 0xffffffff),
    "a number": b"\x05",
    "too few parts": msgpack.packb([0, 1, "status"]),
    "too many parts": msgpack.packb([0, 1, "status", [], 1]),
    "a map": msgpack.packb({"method": "status"}),
    "a response": msgpack.packb([1, 1, None, {}]),
    "a notification": msgpack.packb([2, "status", []]),
    "method not text": msgpack.packb([0, 1, 5, []]),
    "id zero": msgpack.packb([0, 0, "status", []]),
    "id negative": msgpack.packb([0, -1, "status", []]),
    "id too large": msgpack.packb([0, 1 << 32, "status", []]),
    "params no list": msgpack.packb([0, 1, "status", {}]),
    "two params": msgpack.packb([0, 1, "status", [{}, {}]]),
    "kind unknown": msgpack.packb([3, 1, "status", []]),
}


@pytest.mark.parametrize("what", GARBAGE)
def test_garbage_ends_the_connection(daemon, client, what):
    bad = Client(daemon)
    bad.send_bytes(GARBAGE[what])
    assert bad_frame(bad)
    assert client.call("status")["state"] == "ready"


def test_random_bytes(daemon, client):
    rng = random.Random(5)
    for _ in range(200):
        bad = Client(daemon)
        try:
            bad.send_bytes(rng.randbytes(rng.randrange(1, 300)))
            bad.socket.shutdown(socket.SHUT_WR)
            bad.ended()
        except OSError:
            pass
        bad.close()
    assert client.call("status")["clients"] >= 1


def test_mutated_requests(daemon, client):
    rng = random.Random(6)
    good = msgpack.packb([0, 1, "generate", [{"prompt": "a cat", "steps": 1, "seed": 3}]])
    for _ in range(300):
        data = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        bad = Client(daemon)
        try:
            bad.send_bytes(bytes(data))
            bad.socket.shutdown(socket.SHUT_WR)
            bad.ended()
        except (OSError, msgpack.UnpackException):
            pass
        bad.close()
    assert client.finish(client.generate("x")["job"])[0] == "done"


def test_frame_byte_by_byte(daemon):
    c = Client(daemon)
    for byte in msgpack.packb([0, 1, "tokens", [{"text": "slow"}]]):
        c.send_bytes(bytes([byte]))
        time.sleep(0.002)
    assert c.answer(1)["count"] == 4


def test_many_requests_in_one_write(daemon):
    c = Client(daemon)
    c.send_bytes(b"".join(msgpack.packb([0, i, "status", []]) for i in range(1, 501)))
    for i in range(1, 501):
        assert c.answer(i)["name"] == "kread"


def test_large_request(daemon):
    c = Client(daemon)
    assert c.call("tokens", text="x" * 65536)["count"] == 65536
    with pytest.raises(Refused) as e:
        c.call("tokens", text="x" * 900000)
    assert e.value.code == "bad_request"
    with contextlib.suppress(BrokenPipeError):  # it is refused before it is all sent
        c.send_bytes(msgpack.packb([0, 9, "tokens", [{"text": "x" * 1100000}]]))
    bad_frame(c)


def test_half_a_frame_has_a_deadline(hasty):
    bad = Client(hasty)
    frame = msgpack.packb([0, 1, "status", []])
    start = time.time()
    bad.send_bytes(frame[:3])
    time.sleep(0.5)
    bad.send_bytes(frame[3:5])  # more bytes do not extend it
    assert "finish" in bad_frame(bad)
    assert 0.9 < time.time() - start < 30
    assert Client(hasty).call("status")["state"] == "ready"


def test_silent_client_stays(hasty):
    c = Client(hasty)
    time.sleep(1.5)
    assert c.call("status")["name"] == "kread"


# ------------------------------------------------------------------------------ vanishing ---------

def state(client, job):
    return [j["state"] for j in client.call("jobs")["jobs"] if j["job"] == job][0]


def test_client_gone_cancels_running_and_queued(daemon, client):
    c = Client(daemon)
    jobs = [c.generate("ms=5000")["job"], c.generate("x")["job"]]
    c.close()
    for job in jobs:
        wait_until(lambda: state(client, job) == "cancelled")


def test_client_gone_keeps_detached(daemon, client):
    c = Client(daemon)
    first = c.generate("ms=50", detach=True)["job"]
    second = c.generate("x", detach=True)["job"]
    c.close()
    for job in (first, second):
        wait_until(lambda: state(client, job) == "done")
        assert client.call("fetch", job=job)["png"]


def test_watcher_gone_changes_nothing(daemon, client):
    job = client.generate("ms=50")["job"]
    w = Client(daemon)
    w.call("watch", job=job)
    w.close()
    assert client.finish(job)[0] == "done"


def test_half_closed_client_gets_its_picture(daemon):
    c = Client(daemon)
    number = c.ask("generate", prompt="ms=100")
    c.socket.shutdown(socket.SHUT_WR)
    job = c.answer(number)["job"]
    end, _, before = c.finish(job)
    assert end == "done" and "image" in [n for n, _ in before]
    assert c.receive() is None  # nothing more to come: the daemon closes


def test_half_closed_client_that_leaves_is_noticed(daemon, client):
    c = Client(daemon)
    job = c.generate("ms=20000", steps=2)["job"]
    c.socket.shutdown(socket.SHUT_WR)
    time.sleep(0.3)
    assert state(client, job) == "running"
    c.close()
    wait_until(lambda: state(client, job) == "cancelled")


def test_half_closed_without_business_is_closed(daemon):
    c = Client(daemon)
    c.call("status")
    c.socket.shutdown(socket.SHUT_WR)
    assert c.receive() is None


# ------------------------------------------------------------------------------ slow readers ------

def disconnected(client):
    """Whether the daemon hung up, found out without reading anything."""
    look = select.poll()
    look.register(client.socket, 0)
    return any(event & select.POLLHUP for _, event in look.poll(0))


def test_slow_reader_loses_progress_but_no_picture(tmp_path):
    with Daemon(tmp_path) as d:
        c, other = Client(d), Client(d)
        job = c.generate("pad=3000000", count=4, steps=500)["job"]
        wait_until(lambda: other.call("status")["jobs"]["done"] == 1)
        end, _, before = c.finish(job)
        assert end == "done"
        names = [n for n, _ in before]
        assert names.count("image") == 4
        # What did not fit in the socket's own buffer was dropped.
        assert names.count("progress") < 1900


def test_stalled_reader_is_disconnected(hasty):
    c = Client(hasty)
    c.generate("pad=3000000", count=3)
    hasty.logs("read nothing")
    wait_until(lambda: disconnected(c))


def test_reader_that_reads_a_little_stays(tmp_path):
    with Daemon(tmp_path, "client_timeout = 3") as d:
        c = Client(d)
        job = c.generate("pad=9000000")["job"]
        for _ in range(25):  # twice the deadline, and never all
            c.unpacker.feed(c.socket.recv(200000))
            time.sleep(0.25)
        assert c.finish(job)[0] == "done"


def test_flood_of_requests_without_reading(hasty):
    before = hasty.memory()
    c = Client(hasty)
    c.socket.setblocking(False)
    request, sent = msgpack.packb([0, 1, "status", []]) * 1000, 0
    end = time.time() + 0.7
    while time.time() < end:
        try:
            sent += c.socket.send(request)
        except BlockingIOError:
            time.sleep(0.01)
    assert SANITIZED or hasty.memory() - before < 8 << 20
    assert Client(hasty).call("status")["state"] == "ready"
    wait_until(lambda: disconnected(c))


# ------------------------------------------------------------------------------ crowds ------------

def test_200_connections(tmp_path):
    with Daemon(tmp_path, "user_clients = 0") as d:
        client = Client(d)
        wait_until(lambda: client.call("status")["clients"] == 1)
        descriptors = d.descriptors()
        crowd = [Client(d) for _ in range(200)]
        for c in crowd:
            c.ask("hello", version=1, client="crowd")
        for c in crowd:
            assert c.answer(1)["name"] == "kread"
        assert client.call("status")["clients"] == 201
        for c in crowd:
            c.call("watch")
        job = client.generate("x")["job"]
        for c in crowd + [client]:
            assert c.finish(job)[0] == "done"
        for c in crowd:
            c.close()
        wait_until(lambda: client.call("status")["clients"] == 1)
        assert d.descriptors() == descriptors


def test_too_many_connections(tmp_path):
    with Daemon(tmp_path, "max_clients = 3") as d:
        three = [Client(d)]
        wait_until(lambda: three[0].call("status")["clients"] == 1)
        three += [Client(d), Client(d)]
        for c in three:
            c.call("status")
        fourth = Client(d)
        message = fourth.receive()
        assert message[:2] == [1, 0] and message[2]["code"] == "busy"
        assert "max_clients" in message[2]["message"] and fourth.ended()
        three[0].close()
        wait_until(lambda: three[1].call("status")["clients"] == 2)
        assert Client(d).call("status")["clients"] == 3


def test_out_of_descriptors(tmp_path):
    with Daemon(tmp_path, "max_clients = 1000\nuser_clients = 0",
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))) as d:
        crowd = []
        for _ in range(60):
            try:
                crowd.append(Client(d))
            except OSError:
                break
        time.sleep(0.2)
        for c in crowd:
            c.close()
        def answers():
            try:
                return Client(d).call("status")["name"] == "kread"
            except (OSError, AssertionError):
                return False
        wait_until(answers, "recovery")


@pytest.mark.parametrize("files", [8, 10, 12, 14, 16, 18])
def test_too_few_descriptors_to_serve(tmp_path, files):
    d = Daemon(tmp_path, wait=False,
               preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files)))
    assert d.wait() == 1
    assert "files" in d.logged()


def test_no_descriptor_even_in_reserve(tmp_path):
    """libuv would ask for a client for ever: the daemon ends, and its supervisor starts another."""
    d = Daemon(tmp_path, env={"ASAN_OPTIONS": "detect_leaks=0"})  # that check opens files
    client = Client(d)
    job = client.generate("ms=100", steps=10)["job"]
    wait_until(lambda: client.call("status")["running"] == job)
    resource.prlimit(d.process.pid, resource.RLIMIT_NOFILE, (3, 3))
    with socket.socket(socket.AF_UNIX) as late:
        late.connect(d.socket)
        assert client.finish(job)[0] == "done"
        assert d.stop() == 3
    assert d.logged().count("no client can be accepted any more") == 1


def test_stopped_client_does_not_hold_others_up(daemon, client):
    stuck = Client(daemon)
    job = stuck.generate("pad=4000000")["job"]
    start = time.time()
    for _ in range(5):
        assert client.finish(client.generate("x", steps=1)["job"])[0] == "done"
    assert time.time() - start < 20
    assert state(client, job) in ("done", "cancelled")
    stuck.close()
