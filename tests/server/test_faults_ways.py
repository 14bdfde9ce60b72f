# SPDX-License-Identifier: Apache-2.0
"""The daemon is killed before and after every call that changes the state directory on the ways that
test_faults.py does not go: cancelling, stopping with a job that runs, reserving numbers, setting damaged
files aside. What was told stays true, and nothing is lost."""
import os
import shutil
import signal

import pytest

from harness import SANITIZED, Client, Daemon, Refused, wait_until
from test_faults import ALL, CALLS, COUNT, SEED, Fault, shim, tmp_path, until_ready, want  # noqa: F401

pytestmark = pytest.mark.skipif(SANITIZED, reason="a sanitizer wants to be the first library")

NUMBERS = 260  # jobs, after which more numbers are reserved


class Cancels:
    """One job that waits and one that runs are cancelled, a third is done."""
    settings, calls = "", ("write", "rename")

    def __init__(self):
        self.accepted, self.told = [], []

    def prepare(self, folder):
        pass

    def run(self, d):
        c = Client(d)
        for prompt in ("ms=20000", "x", "x"):
            self.accepted.append(c.generate(prompt, detach=True, count=COUNT, seed=SEED, steps=2)["job"])
        wait_until(lambda: c.call("status")["running"] == self.accepted[0])
        for job in (self.accepted[1], self.accepted[0]):
            c.call("cancel", job=job)
            assert c.finish(job)[0] == "cancelled"
            self.told.append(job)
        c.finish(self.accepted[2])

    def check(self, d, want):
        c = Client(d)
        for job in c.call("jobs")["jobs"]:
            if job["prompt"] == "ms=20000":  # it was not told, or not cancelled: it would take 80 seconds
                c.call("cancel", job=job["job"])
        wait_until(lambda: c.call("status")["spool"]["unfinished"] == 0)
        found = {j["job"]: j["state"] for j in c.call("jobs")["jobs"]}
        assert set(self.accepted) <= set(found)
        assert all(found[job] == "cancelled" for job in self.told), found
        for job in self.accepted[2:]:
            assert found[job] == "done" and [c.call("fetch", job=job, index=i)["png"] for i in range(COUNT)] == want


class Stops:
    """SIGTERM while a job runs, which is not waited for, and another waits."""
    settings, calls = "stop_timeout = 0", ("write", "rename")

    def __init__(self):
        self.accepted = []

    def prepare(self, folder):
        pass

    def run(self, d):
        c = Client(d)
        for prompt in ("ms=8", "x"):
            self.accepted.append(c.generate(prompt, detach=True, count=COUNT, seed=SEED, steps=2)["job"])
        wait_until(lambda: c.call("jobs", job=self.accepted[0])["jobs"][0]["images"] > 0 or d.process.poll() is not None)
        d.signal()
        d.wait()

    def check(self, d, want):
        c = Client(d)
        wait_until(lambda: c.call("status")["spool"]["unfinished"] == 0)
        for job in self.accepted:
            assert [c.call("fetch", job=job, index=i)["png"] for i in range(COUNT)] == want


class Numbers:
    """So many jobs that numbers have to be reserved anew: none is given twice."""
    settings, calls = "queue_limit = 10000\nuser_queue_limit = 0\nclient_queue_limit = 0", ("rename",)

    def __init__(self):
        self.last = 0

    def prepare(self, folder):
        pass

    def run(self, d):
        c = Client(d)
        for _ in range(2):
            asked = [c.ask("generate", prompt="x", steps=1, width=16, height=16) for _ in range(NUMBERS // 2)]
            for id in asked:
                try:
                    self.last = max(self.last, c.answer(id)["job"])
                except Refused as e:
                    assert e.code == "busy"
            c.notices.clear()

    def check(self, d, want):
        assert Client(d).generate("x", steps=1)["job"] > self.last


class Damage:
    """A start that finds good files and bad ones."""
    settings, calls = "", ("rename", "unlink", "mkdir")
    bad = ["900.job", "901.job", "901-0.png", "902-3.png"]
    twice = False  # one of that name was set aside before

    def prepare(self, folder):
        with Daemon(folder) as d:
            c = Client(d)
            self.good = c.generate("x", detach=True, count=COUNT, seed=SEED, steps=2)["job"]
            c.finish(self.good)
        for name in self.bad:
            with open(d.state("jobs", name), "w") as f:
                f.write("bad")
        if self.twice:
            os.makedirs(d.state("damaged"))
            with open(d.state("damaged", "900.job"), "w") as f:
                f.write("another of that name")

    def run(self, d):
        Client(d).call("status")

    def check(self, d, want):
        c = Client(d)
        assert [c.call("fetch", job=self.good, index=i)["png"] for i in range(COUNT)] == want
        aside = sorted([*self.bad, "900.job.1"] if self.twice else self.bad)
        assert sorted(os.listdir(d.state("damaged"))) == aside
        assert c.call("status")["spool"]["damaged"] == len(aside)
        assert c.generate("x", steps=1)["job"] > 902


class DamageAgain(Damage):
    twice = True


@pytest.mark.parametrize("what", ["kill", "after"])
@pytest.mark.parametrize("way", [Cancels, Stops, Numbers, Damage, DamageAgain], ids=lambda w: w.__name__.lower())
def test_killed_on_the_way(tmp_path, shim, want, way, what):  # noqa: F811
    hits = 0
    for call in CALLS if ALL else way.calls:
        n = 0
        while True:
            n += 1
            folder = tmp_path / ("%s%d" % (call, n))
            folder.mkdir()
            session = way()
            session.prepare(folder)
            fault = Fault(shim, folder, call, n, what, below=str(folder / ".local"))
            d = Daemon(folder, way.settings, wait=False, env=fault.env)
            try:
                if until_ready(d):
                    session.run(d)
            except (Refused, OSError, AssertionError):
                assert fault.happened(), d.logged()
            if not fault.happened() and d.process.poll() is None:
                d.signal()
            code = d.wait()
            if not fault.happened():
                assert code == 0
                break
            assert code == -signal.SIGKILL
            hits += 1
            with Daemon(folder, way.settings) as second:
                session.check(second, want)
                names = os.listdir(second.state("jobs"))
                assert not [name for name in names if name.endswith(".part")]
            shutil.rmtree(folder)
    assert hits >= 3, hits
