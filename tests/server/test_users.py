# SPDX-License-Identifier: Apache-2.0
"""Several users: whose job is next, whose job is whose, how many, how long one waits; previews; numbers."""
import contextlib
import io
import os
import shutil
import signal
import tempfile

import pytest
from PIL import Image

from harness import FAKE, Client, Daemon, Refused, wait_until
from test_methods import refused

ALICE, BOB, EVE = 20001, 20002, 20003
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become other users")


@pytest.fixture
def folder():
    """One that other users can look into."""
    path = tempfile.mkdtemp(prefix="kread-users-")
    os.chmod(path, 0o755)
    yield path
    shutil.rmtree(path)


def connect(daemon, uid, gid=65534, groups=()):
    """A client of another user: the kernel notes who connects."""
    before = os.getgroups()
    os.setgroups(groups)
    os.setegid(gid)
    os.seteuid(uid)
    try:
        return Client(daemon)
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(before)


def serve(folder, settings="", **more):
    return Daemon(folder, "socket_access = everyone\n" + settings, **more)


def jobs(client, **params):
    return {j["job"]: j for j in client.call("jobs", **params)["jobs"]}


@contextlib.contextmanager
def blocked(daemon):
    """Nothing starts inside: root's job runs."""
    c = Client(daemon)
    job = c.generate("ms=600000")["job"]
    wait_until(lambda: c.call("status")["running"] == job)
    yield
    c.call("cancel", job=job)
    assert c.finish(job)[0] == "cancelled"
    c.close()


# ------------------------------------------------------------------------------ ownership ---------

@as_root
def test_a_job_is_its_submitters(folder):
    with serve(folder) as d:
        alice, eve, root = connect(d, ALICE), connect(d, EVE), Client(d)
        alice.call("hello", version=1, client="alice's")
        job = alice.generate("my secret", detach=True, seed=7)["job"]
        assert alice.finish(job)[0] == "done"
        for method in ("cancel", "watch", "fetch"):
            refused(lambda: eve.call(method, job=job), "forbidden", "job %d" % job)
        assert eve.call("status")["jobs"]["done"] == 1
        theirs, own = jobs(eve)[job], jobs(alice)[job]
        assert theirs["own"] is False and theirs["prompt"] is None and theirs["client"] is None
        assert own["own"] is True and own["prompt"] == "my secret" and own["client"] == "alice's"
        same = [k for k in own if k not in ("own", "prompt", "client")]
        assert {k: own[k] for k in same} == {k: theirs[k] for k in same}
        assert jobs(root)[job]["prompt"] == "my secret" and jobs(root)[job]["own"] is True
        another = connect(d, ALICE)
        assert another.call("fetch", job=job)["seed"] == 7
        assert root.call("fetch", job=job)["seed"] == 7
        refused(lambda: connect(d, EVE).call("stop"), "forbidden")


@as_root
def test_ownership_outlives_the_daemon(folder):
    with serve(folder) as d:
        alice = connect(d, ALICE)
        job = alice.generate("my secret", detach=True)["job"]
        alice.finish(job)
    with serve(folder) as d:
        refused(lambda: connect(d, EVE).call("fetch", job=job), "forbidden")
        assert connect(d, ALICE).call("fetch", job=job)["png"]


@as_root
def test_watching_all_means_all_of_ones_own(folder):
    with serve(folder) as d:
        eve, root = connect(d, EVE), Client(d)
        eve.call("watch", images=True)
        root.call("watch", images=True)
        alice = connect(d, ALICE)
        job = alice.generate("x")["job"]
        assert alice.finish(job)[0] == "done"
        assert root.finish(job)[0] == "done"
        mine = connect(d, EVE)
        other = mine.generate("x")["job"]
        assert eve.finish(other)[0] == "done"
        assert eve.notices == []  # nothing of alice's came before


@as_root
def test_the_daemons_own_user_may_all(folder):
    """A daemon that is not root's: its user is as root to its jobs."""
    os.chown(folder, BOB, -1)
    program = shutil.copy(FAKE, folder)  # he may not look into the checkout
    def become():
        os.setgroups([])
        os.setgid(65534)
        os.setuid(BOB)
    with serve(folder, preexec_fn=become, executable=program) as d:
        job = connect(d, ALICE).generate("ms=600000", detach=True)["job"]
        refused(lambda: connect(d, EVE).call("cancel", job=job), "forbidden")
        bob = connect(d, BOB)
        bob.call("watch", job=job)
        bob.call("cancel", job=job)
        assert bob.finish(job)[0] == "cancelled"


# ------------------------------------------------------------------------------ allow lists -------

@as_root
def test_allow_lists(folder):
    with serve(folder, "allow_users = %d, nobody\nallow_groups = daemon %d" % (ALICE, 30001)) as d:
        for client in (connect(d, ALICE), connect(d, 65534), connect(d, EVE, gid=30001),
                       connect(d, EVE, groups=[5, 30001]), Client(d)):
            assert client.finish(client.generate("x")["job"])[0] == "done"
        for client in (connect(d, BOB), connect(d, EVE, groups=[5])):
            assert client.call("hello", version=1, client="x")["name"] == "kread"
            for method in ("status", "jobs", "watch", "inspect", "profile", "stop"):
                refused(lambda: client.call(method), "forbidden", "allow_users")
            refused(lambda: client.generate("x"), "forbidden")


@pytest.mark.parametrize("setting, name", [("allow_users", "nosuchuser"), ("allow_groups", "nosuchgroup"),
                                           ("allow_users", "4294967295"), ("allow_users", "12x")])
def test_unknown_names_are_refused(tmp_path, setting, name):
    d = Daemon(tmp_path, "%s = root, %s" % (setting, name), wait=False)
    assert d.wait() == 1
    assert d.logged().count("\n") == 1 and setting in d.logged() and name in d.logged()
    assert not os.path.exists(d.socket)


# ------------------------------------------------------------------------------ taking turns ------

@as_root
def test_users_take_turns(folder):
    with serve(folder) as d:
        alice, bob, eve = (connect(d, uid) for uid in (ALICE, BOB, EVE))
        clients = {}
        with blocked(d):
            for client, n in ((alice, 4), (bob, 2), (eve, 3)):
                for _ in range(n):
                    clients[client.generate("x")["job"]] = client
            order = sorted(clients, key=lambda job: jobs(alice)[job]["position"])
            names = {alice: "a", bob: "b", eve: "e"}
            assert "".join(names[clients[j]] for j in order) == "abeabeaea"
            assert [jobs(bob)[j]["position"] for j in order] == list(range(1, 10))
            assert alice.call("status")["users_waiting"] == 3
        for job, client in clients.items():
            assert client.finish(job)[0] == "done"
        started = [jobs(alice)[j]["started_at"] for j in order]
        assert started == sorted(started)


@as_root
def test_who_was_just_served_waits_for_the_others(folder):
    with serve(folder) as d:
        alice, bob = connect(d, ALICE), connect(d, BOB)
        running = alice.generate("ms=600000")["job"]
        wait_until(lambda: alice.call("status")["running"] == running)
        mine = [alice.generate("x")["job"] for _ in range(3)]
        his = bob.generate("x")
        assert his["position"] == 1
        assert [jobs(alice)[j]["position"] for j in mine] == [2, 3, 4]
        wait_until(lambda: alice.call("status") and
                   [1 for n in alice.notices if n[1]["job"] == mine[0] and n[1]["position"] == 2])
        alice.call("cancel", job=running)


@as_root
def test_limits_of_users_and_clients(folder):
    with serve(folder, "user_queue_limit = 3\nclient_queue_limit = 2\nuser_clients = 4") as d:
        with blocked(d):
            one, two, bob = connect(d, ALICE), connect(d, ALICE), connect(d, BOB)
            for detach in (False, True):
                one.generate("x", detach=detach)
            refused(lambda: one.generate("x"), "busy", "client_queue_limit")
            two.generate("x")
            refused(lambda: two.generate("x"), "busy", "user_queue_limit")
            refused(lambda: two.generate("x", detach=True), "busy", "user_queue_limit")
            bob.generate("x")
            more = [connect(d, ALICE) for _ in range(2)]
            for c in more:
                c.call("status")
            fifth = connect(d, ALICE)
            message = fifth.receive()
            assert message[2]["code"] == "busy" and "user_clients" in message[2]["message"]
            bob.call("status")


@as_root
def test_limits_count_what_is_being_accepted(folder):
    """Detached jobs asked for in one breath are counted before their records are written."""
    with serve(folder, "user_queue_limit = 5\nclient_queue_limit = 0") as d:
        with blocked(d):
            c = connect(d, ALICE)
            for _ in range(9):
                c.ask("generate", prompt="x", detach=True)
            codes = {}
            while len(codes) < 9:
                _, number, error, _ = c.receive()
                codes[number] = error and error["code"]
            assert sorted(codes.values(), key=str) == [None] * 5 + ["busy"] * 4


# ------------------------------------------------------------------------------ waiting time ------

def test_waiting_time(tmp_path):
    with Daemon(tmp_path) as d:
        c = Client(d)
        first = c.generate("ms=50", steps=4)
        assert first["wait"] == 0  # it starts now
        wait_until(lambda: c.call("status")["running"] == first["job"])
        behind = c.generate("x")
        assert behind["wait"] is None  # nothing was measured yet
        c.call("cancel", job=behind["job"])
        c.finish(first["job"])
        running = c.generate("ms=200 left=3", steps=10, count=2)["job"]
        wait_until(lambda: c.call("status")["running"] == running)
        wait_until(lambda: (jobs(c)[running]["progress"] or {}).get("remaining") == 3.0)
        # one step of 32 x 32 took 50 ms: 8 steps take 0.4 s, 40 of four times the pixels 8 s
        answer = c.generate("x", steps=8)
        assert 1.5 <= answer["wait"] <= 3.01  # the engine's own word on the running job
        second = c.generate("x", steps=40, width=64, height=64)
        assert 0.35 < second["wait"] - jobs(c)[answer["job"]]["wait"] < 2.5
        third = c.generate("x")
        took = third["wait"] - jobs(c)[second["job"]]["wait"]
        assert 7.5 < took < 40
        wait_until(lambda: c.call("status") and [n for n in c.notices if n[1]["job"] == third["job"]])
        told = [n for n in c.notices if n[1]["job"] == third["job"]]
        assert told[0][0] == "progress" and told[0][1]["state"] == "queued" and told[0][1]["wait"] > 5
        for job in (running, answer["job"], second["job"], third["job"]):
            c.call("cancel", job=job)


# ------------------------------------------------------------------------------ previews ----------

def test_previews(tmp_path):
    with Daemon(tmp_path) as d:
        c, plain, full = Client(d), Client(d), Client(d)
        job = c.generate("ms=30", steps=9, preview=3, width=64, height=128, seed=10)["job"]
        plain.call("watch", job=job)
        full.call("watch", job=job, images=True)
        wait_until(lambda: "preview" in (jobs(c, job=job, preview=True)[job]["progress"] or ()))
        assert "preview" not in (jobs(c, job=job)[job]["progress"] or ())
        for client in (c, full):
            end, _, before = client.finish(job)
            found = [m for n, m in before if n == "progress" and "preview" in m]
            assert end == "done" and [m["step"] for m in found] == [3, 6]
            for m in found:
                picture = Image.open(io.BytesIO(m["preview"]))
                assert picture.size == (8, 16) and picture.getpixel((0, 0)) == (10 + m["step"], 0, 0)
            assert [n for n, _ in before].count("image") == 1
        end, _, before = plain.finish(job)
        assert end == "done" and not [m for n, m in before if "preview" in m]
        assert jobs(c, job=job, preview=True)[job]["progress"] is None
        refused(lambda: c.call("jobs", job=99), "no_job")
        refused(lambda: c.call("jobs", preview=1), "bad_request", "preview")
        assert set(jobs(c, job=job)) == {job}


@as_root
def test_a_preview_is_the_owners(folder):
    with serve(folder) as d:
        alice, eve = connect(d, ALICE), connect(d, EVE)
        job = alice.generate("ms=100", steps=9, preview=1, detach=True)["job"]
        wait_until(lambda: "preview" in (jobs(alice, job=job, preview=True)[job]["progress"] or ()))
        assert "preview" not in (jobs(eve, job=job, preview=True)[job]["progress"] or ())
        alice.call("cancel", job=job)


# ------------------------------------------------------------------------------ numbers -----------

def test_percentiles(tmp_path):
    with Daemon(tmp_path) as d:
        c = Client(d)
        p = c.call("status")["percentiles"]
        assert p["jobs"] == 0 and p["total"] == {"p50": 0.0, "p90": 0.0, "p99": 0.0}
        for ms in [1] * 9 + [150]:
            assert c.finish(c.generate("ms=%d" % ms, steps=1)["job"])[0] == "done"
        c.finish(c.generate("fail=io")["job"])
        p = c.call("status")["percentiles"]
        assert p["jobs"] == 10  # a failed job is no measure
        assert p["encode"] == {"p50": 0.25, "p90": 0.25, "p99": 0.25}
        assert p["denoise"]["p99"] == 0.5
        assert p["total"]["p50"] <= p["total"]["p90"] < 0.15 <= p["total"]["p99"]


def test_worker_that_is_stuck(tmp_path):
    with Daemon(tmp_path, "worker_timeout = 1") as d:
        c = Client(d)
        worker = c.call("status")["worker"]
        assert worker == {"busy": False, "stuck": False, "silent_seconds": 0.0, "limit_seconds": 1.0}
        job = c.generate("ms=3000 deaf", steps=1)["job"]
        wait_until(lambda: c.call("status")["worker"]["stuck"])
        assert c.call("status")["worker"]["silent_seconds"] > 1
        d.logs("no sign of life")
        assert "job %d, stage encode" % job in d.logged()
        assert c.finish(job)[0] == "done"
        d.logs("alive again")


def test_slow_steps_are_not_stuck(tmp_path):
    """What a step took, scaled to the job's size, is what a step may take."""
    with Daemon(tmp_path, "worker_timeout = 1") as d:
        c = Client(d)
        c.finish(c.generate("ms=100", steps=4)["job"])
        job = c.generate("ms=1500", steps=2)["job"]
        wait_until(lambda: c.call("status")["running"] == job)
        assert c.call("status")["worker"]["limit_seconds"] >= 2
        assert c.finish(job)[0] == "done"
        assert "sign of life" not in d.logged()


def test_reload(tmp_path):
    config = tmp_path / "kread.ini"
    with Daemon(tmp_path, "queue_limit = 0") as d:
        c = Client(d)
        job = c.generate("ms=600000")["job"]
        refused(lambda: c.generate("x"), "busy")
        text = config.read_text()
        config.write_text(text.replace("queue_limit = 0", "queue_limit = 3\nkeep_days = 5"))
        d.signal(signal.SIGHUP)
        wait_until(lambda: c.call("status")["queue_limit"] == 3)
        assert c.call("status")["keep_days"] == 5
        c.generate("x")
        config.write_text(text.replace("queue_limit = 0", "queue_limit = 7\nallow_users = nosuchuser"))
        d.signal(signal.SIGHUP)
        d.logs("nosuchuser")
        assert c.call("status")["queue_limit"] == 3
        c.call("cancel", job=job)


def may(client):
    try:
        return client.call("status")["state"] == "ready"
    except Refused:
        return False


@as_root
def test_reload_of_who_may(folder):
    with serve(folder, "allow_users = %d" % ALICE) as d:
        alice, bob = connect(d, ALICE), connect(d, BOB)
        alice.call("status")
        refused(lambda: bob.call("status"), "forbidden")
        config = os.path.join(folder, "kread.ini")
        with open(config) as f:
            text = f.read()
        with open(config, "w") as f:
            f.write(text.replace(str(ALICE), str(BOB)))
        d.signal(signal.SIGHUP)
        wait_until(lambda: may(bob), "what the reload allows")
        refused(lambda: alice.call("status"), "forbidden")
