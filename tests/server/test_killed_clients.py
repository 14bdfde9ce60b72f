# SPDX-License-Identifier: Apache-2.0
"""Clients that are killed or stopped at every point of the protocol: each is a process of its own,
driven to the point and then hit. The others are served meanwhile, and nothing of the dead stays."""
import os
import random
import signal

import msgpack
import pytest

from harness import SANITIZED, Client, Daemon, wait_until

POINTS = ("connected", "hello", "half a request", "accepted", "progress", "images", "half-closed")
ROUNDS = 2 if SANITIZED else 4
SEED = 21


def act(daemon, point):
    """What the client does until it has reached the point."""
    c = Client(daemon, hello="victim" if point != "connected" else None)
    if point == "half a request":
        c.send_bytes(msgpack.packb([0, 9, "generate", [{"prompt": "x"}]])[:-3])
    elif point == "images":
        c.generate("pad=2000000", steps=1, count=4)
        while c.notice()[0] != "image":
            pass
    elif point in ("accepted", "progress", "half-closed"):
        c.generate("ms=2", steps=1000)
        if point == "progress":
            c.notice()
        if point == "half-closed":
            c.socket.shutdown(1)
    return c


def victim(daemon, point):
    """A process that has reached the point and waits there."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            c = act(daemon, point)  # noqa: F841, open until the process ends
            os.write(writing, b"x")
            signal.pause()
        finally:
            os._exit(1)
    os.close(writing)
    try:
        assert os.read(reading, 1) == b"x", "the client did not get to: " + point
    finally:
        os.close(reading)
    return pid


def end(pid):
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def at_rest(client):
    s = client.call("status")
    return s["running"] is None and s["queued"] == 0 and s["clients"] == 1


def settle(daemon, client):
    wait_until(lambda: at_rest(client), "rest after the clients were gone")
    return daemon.descriptors(), daemon.memory()


@pytest.mark.parametrize("stopped", [False, True], ids=["killed", "stopped"])
def test_clients_at_every_point(tmp_path, stopped):
    rng = random.Random(SEED + stopped)
    with Daemon(tmp_path) as d:
        client = Client(d)
        for turn in range(ROUNDS):
            points = rng.sample(POINTS, len(POINTS))
            points.sort(key=lambda p: p in ("accepted", "progress", "half-closed"))
            victims = [victim(d, point) for point in points]  # first those who need the worker
            rng.shuffle(victims)
            if stopped:
                for pid in victims:
                    os.kill(pid, signal.SIGSTOP)
                assert client.call("status")["clients"] == len(POINTS) + 1
            for pid in victims:
                end(pid)
            assert client.finish(client.generate("x", steps=1)["job"])[0] == "done"
            if turn < 2:
                files, memory = settle(d, client)
        after = settle(d, client)
        assert after[0] == files
        assert after[1] - memory < 4 << 20 or SANITIZED, after
