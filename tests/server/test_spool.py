# SPDX-License-Identifier: Apache-2.0
"""Detached jobs outlive the daemon: restarts, crashes, damage, limits."""
import binascii
import os
import signal
import subprocess
import time

import msgpack
import pytest

from harness import BUILD, Client, Daemon, quick_folder, wait_until
from test_methods import refused


@pytest.fixture
def tmp_path():
    with quick_folder() as path:
        yield path


def jobs(client):
    return {j["job"]: j for j in client.call("jobs")["jobs"]}


def end_of(client, job):
    """How a job of anywhere ended: state and error."""
    wait_until(lambda: jobs(client)[job]["state"] not in ("queued", "running"), "an end")
    return jobs(client)[job]["state"], jobs(client)[job]["error"]


def pictures(client, job, count):
    return [client.call("fetch", job=job, index=i)["png"] for i in range(count)]


def undisturbed(tmp_path_factory, prompt, **params):
    with Daemon(tmp_path_factory.mktemp("undisturbed")) as d:
        c = Client(d)
        job = c.generate(prompt, detach=True, **params)["job"]
        assert c.finish(job)[0] == "done"
        return pictures(c, job, params.get("count", 1))


def read_record(path):
    with open(path, "rb") as f:
        magic, version, crc, body = msgpack.unpackb(f.read())
    assert magic == "kread job" and crc == binascii.crc32(body)
    return version, msgpack.unpackb(body)


def write_record(path, version, record):
    body = msgpack.packb(record)
    with open(path, "wb") as f:
        f.write(msgpack.packb(["kread job", version, binascii.crc32(body), body]))


# ------------------------------------------------------------------------------ restarts ----------

def test_results_and_numbers_outlive_the_daemon(tmp_path):
    with Daemon(tmp_path) as d:
        c = Client(d, hello="first")
        done = c.generate("x", detach=True, count=3, seed=5)["job"]
        failed = c.generate("fail=io", detach=True)["job"]
        for job in (done, failed):
            c.finish(job)
        before = pictures(c, done, 3)
        told = jobs(c)
        attached = c.generate("x")["job"]
        c.finish(attached)
    with Daemon(tmp_path) as d:
        c = Client(d)
        assert pictures(c, done, 3) == before
        again = jobs(c)
        assert set(again) == {done, failed}  # what was not detached is forgotten
        for job in again:
            assert {k: v for k, v in again[job].items()} == {k: v for k, v in told[job].items()}
        assert again[failed]["error"]["code"] == "io"
        assert c.call("watch", job=done)["state"] == "done" and c.notice()[0] == "done"
        assert c.generate("x")["job"] == attached + 1
        status = c.call("status")
        assert status["kept"]["images"] == 3 and status["spool"]["usable"] is True
        assert status["spool"]["folder"] == d.state() and status["spool"]["damaged"] == 0
        assert status["spool"]["jobs"] == 2 and status["spool"]["fetched"] == 3
        assert status["spool"]["bytes"] == sum(len(png) for png in before)


def test_a_kill_loses_nothing_and_repeats_no_number(tmp_path):
    d = Daemon(tmp_path)
    c = Client(d)
    finished = c.generate("x", detach=True, seed=1)["job"]
    c.finish(finished)
    running = c.generate("ms=20000", detach=True, seed=2)["job"]
    wait_until(lambda: c.call("status")["running"] == running)
    waiting = [c.generate("x", detach=True, seed=3 + i)["job"] for i in range(3)]
    lost = c.generate("x")["job"]
    d.kill()
    version, record = read_record(d.state("jobs", "%d.job" % running))
    assert record["attempts"] == 1 and record["state"] == 0
    record["params"]["prompt"] = "ms=1"
    write_record(d.state("jobs", "%d.job" % running), version, record)
    with Daemon(tmp_path) as d:
        c = Client(d)
        for i, job in enumerate([finished, running] + waiting):
            assert end_of(c, job) == ("done", None)
            assert c.call("fetch", job=job)["seed"] == 1 + i
        assert lost not in jobs(c)
        started = [jobs(c)[job]["started_at"] for job in [running] + waiting]
        assert started == sorted(started)  # in order
        assert c.generate("x")["job"] > lost


def test_finished_pictures_are_not_made_again(tmp_path, tmp_path_factory):
    want = undisturbed(tmp_path_factory, "ms=12", count=5, seed=40, steps=4)
    d = Daemon(tmp_path)
    c = Client(d)
    job = c.generate("ms=12", detach=True, count=5, seed=40, steps=4)["job"]
    second = d.state("jobs", "%d-1.png" % job)
    wait_until(lambda: os.path.exists(second))
    d.kill()
    made = [n for n in os.listdir(d.state("jobs")) if n.endswith(".png")]
    assert 2 <= len(made) < 5
    files = {n: os.stat(d.state("jobs", n)).st_ino for n in made}
    with Daemon(tmp_path) as d:
        c = Client(d)
        assert end_of(c, job) == ("done", None)
        assert pictures(c, job, 5) == want
        assert {n: os.stat(d.state("jobs", n)).st_ino for n in made} == files


def test_all_pictures_there_is_done_without_running(tmp_path):
    with Daemon(tmp_path) as d:
        c = Client(d)
        job = c.generate("x", detach=True, count=2, seed=9)["job"]
        c.finish(job)
    path = d.state("jobs", "%d.job" % job)
    version, record = read_record(path)
    record.update(state=0, finished_at=0.0)  # as it was before its end was written
    record["params"]["prompt"] = "fail=io"   # if it ran, it would fail
    write_record(path, version, record)
    with Daemon(tmp_path) as d:
        c = Client(d)
        assert end_of(c, job) == ("done", None)
        assert read_record(path)[1]["state"] == 1
        assert len(pictures(c, job, 2)) == 2


def test_stop_keeps_what_waits_and_what_runs(tmp_path, tmp_path_factory):
    want = undisturbed(tmp_path_factory, "ms=30", count=3, seed=70)
    d = Daemon(tmp_path, "stop_timeout = 0")
    c, other = Client(d), Client(d)
    running = c.generate("ms=30", detach=True, count=3, seed=70)["job"]
    waiting = c.generate("x", detach=True)["job"]
    attached = other.generate("x")["job"]
    wait_until(lambda: os.path.exists(d.state("jobs", "%d-0.png" % running)))
    d.signal()
    end, about, _ = other.finish(attached)
    assert end == "failed" and about["error"]["code"] == "shutdown"
    while True:  # the connection ends, and neither of the detached jobs does
        notice = c.notice()
        if notice is None:
            break
        assert notice[0] in ("progress", "image"), notice
    assert d.stop() == 0
    assert "job %d waits for the next start" % running in d.logged()
    assert read_record(d.state("jobs", "%d.job" % running))[1]["attempts"] == 0
    with Daemon(tmp_path) as d:
        c = Client(d)
        assert end_of(c, running) == ("done", None) and end_of(c, waiting) == ("done", None)
        assert pictures(c, running, 3) == want


def test_cancelled_stays_cancelled(tmp_path):
    d = Daemon(tmp_path)
    c = Client(d)
    running = c.generate("ms=20000", detach=True)["job"]
    waiting = c.generate("x", detach=True)["job"]
    wait_until(lambda: c.call("status")["running"] == running)
    assert c.call("cancel", job=waiting) == {"job": waiting, "state": "cancelled"}
    assert c.finish(waiting)[0] == "cancelled"
    assert c.call("cancel", job=running)["state"] == "running"
    assert c.finish(running)[0] == "cancelled"
    d.kill()
    with Daemon(tmp_path) as d:
        c = Client(d)
        assert [jobs(c)[j]["state"] for j in (running, waiting)] == ["cancelled"] * 2
        assert c.call("status")["queued"] == 0 and c.call("status")["running"] is None


def test_a_job_that_kills_the_daemon_is_given_up(tmp_path):
    d = Daemon(tmp_path)
    c = Client(d)
    fine = None
    job = c.ask("generate", prompt="die", detach=True)
    job = c.answer(job)["job"]
    for attempt in range(2):
        assert d.wait() == -signal.SIGKILL
        d = Daemon(tmp_path, wait=False)
    assert d.wait() == -signal.SIGKILL
    with Daemon(tmp_path) as d:
        c = Client(d)
        state, error = end_of(c, job)
        assert state == "failed" and "ended 3 times" in error["message"]
        fine = c.generate("x", detach=True)["job"]
        assert end_of(c, fine) == ("done", None)


def test_another_profile_ends_the_job_with_that_reason(tmp_path):
    d = Daemon(tmp_path)
    c = Client(d)
    c.generate("ms=20000")
    job = c.generate("x", detach=True)["job"]
    d.kill()
    path = d.state("jobs", "%d.job" % job)
    version, record = read_record(path)
    assert record["profile"] == "test"
    write_record(path, version, dict(record, profile="other"))
    with Daemon(tmp_path) as d:
        c = Client(d)
        state, error = end_of(c, job)
        assert state == "failed" and "profile other" in error["message"]
        assert read_record(path)[1]["error"]["code"] == error["code"]


def test_values_that_follow_from_others_need_not_be_allowed(tmp_path):
    d = Daemon(tmp_path)
    c = Client(d)
    c.generate("ms=20000")
    answer = c.generate("farmu", detach=True)
    assert answer["mu"] == 28.25
    d.kill()
    with Daemon(tmp_path) as d:
        c = Client(d)
        assert end_of(c, answer["job"]) == ("done", None)
        assert c.call("status")["spool"]["damaged"] == 0


def test_lower_limits_end_the_job_with_that_reason(tmp_path):
    d = Daemon(tmp_path)
    c = Client(d)
    c.generate("ms=20000")
    job = c.generate("x", detach=True, steps=9)["job"]
    d.kill()
    with Daemon(tmp_path, "max_steps = 5") as d:
        state, error = end_of(Client(d), job)
        assert state == "failed" and error["code"] == "bad_request" and "steps" in error["message"]


# ------------------------------------------------------------------------------ damage ------------

def test_damaged_files_are_set_aside(tmp_path):
    with Daemon(tmp_path) as d:
        c = Client(d)
        good = c.generate("x", detach=True)["job"]
        c.finish(good)
    folder = d.state("jobs")
    with open(os.path.join(folder, "%d.job" % good), "rb") as f:
        whole = f.read()
    version, record = read_record(os.path.join(folder, "%d.job" % good))
    bad = {"empty": b"", "text": b"hello", "cut": whole[:-1], "longer": whole + b"\0",
           "flipped": whole[:60] + bytes([whole[60] ^ 1]) + whole[61:]}
    for number, data in enumerate(bad.values(), 1000):
        with open(os.path.join(folder, "%d.job" % number), "wb") as f:
            f.write(data)
    write_record(os.path.join(folder, "2000.job"), 2, dict(record, job=2000))
    write_record(os.path.join(folder, "2001.job"), 1, dict(record, job=2002))
    write_record(os.path.join(folder, "2003.job"), 1, dict(record, job=2003, params={}))
    os.symlink("/etc/passwd", os.path.join(folder, "2004.job"))
    os.mkdir(os.path.join(folder, "2005.job"))
    for name in ("2006-0.png", "1000-0.png", "%d-7.png" % good, "5.job.part", "notes.txt"):
        with open(os.path.join(folder, name), "wb") as f:
            f.write(b"x")
    with Daemon(tmp_path) as d:
        c = Client(d)
        assert set(jobs(c)) == {good} and c.call("fetch", job=good)["png"]
        aside = set(os.listdir(d.state("damaged")))
        assert aside == {"%d.job" % n for n in [1000, 1001, 1002, 1003, 1004, 2000, 2001, 2003,
                                                2004, 2005]} | {"2006-0.png", "1000-0.png",
                                                                "%d-7.png" % good}
        assert c.call("status")["spool"]["damaged"] == len(aside)
        log = d.logged()
        assert "2000.job was moved to damaged/: it has version 2, and this kread knows" in log
        assert "1003.job was moved to damaged/: it is damaged" in log
        wait_until(lambda: set(os.listdir(folder)) == {"%d.job" % good, "%d-0.png" % good, "notes.txt"})
        assert c.generate("x")["job"] > 2006  # not a number that a damaged file may have had


def test_a_damaged_number_is_no_reason_to_repeat_one(tmp_path):
    with Daemon(tmp_path) as d:
        c = Client(d)
        job = c.generate("x", detach=True)["job"]
        c.finish(job)
    with open(d.state("number"), "w") as f:
        f.write("many\n")
    with Daemon(tmp_path) as d:
        assert Client(d).generate("x")["job"] > job
        assert "number is damaged" in d.logged()


def test_a_picture_that_vanished(tmp_path):
    with Daemon(tmp_path) as d:
        c = Client(d)
        job = c.generate("x", detach=True)["job"]
        c.finish(job)
        os.unlink(d.state("jobs", "%d-0.png" % job))
        refused(lambda: c.call("fetch", job=job), "io", "%d-0.png" % job)
        assert c.call("status")["state"] == "ready"
    with Daemon(tmp_path) as d:
        refused(lambda: Client(d).call("fetch", job=job), "no_job", "dropped")


# ------------------------------------------------------------------------------ the folder --------

@pytest.mark.parametrize("state_dir", ["/dev/null/kread", "file/kread"])
def test_a_folder_that_cannot_be_used(tmp_path, state_dir):
    (tmp_path / "file").write_text("")
    with Daemon(tmp_path, "state_dir = " + state_dir) as d:
        c = Client(d)
        refused(lambda: c.generate("x", detach=True), "io", state_dir, "Not a directory")
        assert c.finish(c.generate("x")["job"])[0] == "done"
        spool = c.call("status")["spool"]
        assert spool["usable"] is False and state_dir in spool["why"]
        assert "cannot be detached" in d.logged()


def test_no_folder_at_all(tmp_path):
    with Daemon(tmp_path, env={"HOME": ""}) as d:
        c = Client(d)
        refused(lambda: c.generate("x", detach=True), "io", "state_dir")
        assert c.finish(c.generate("x")["job"])[0] == "done"


def test_where_the_folder_is(tmp_path):
    for env, settings, where in (({}, "", ".local/state/kread"),
                                 ({"XDG_STATE_HOME": str(tmp_path / "xdg")}, "", "xdg/kread"),
                                 ({"XDG_STATE_HOME": "relative"}, "", ".local/state/kread"),
                                 ({"STATE_DIRECTORY": "%s/a:%s/b" % (tmp_path, tmp_path)}, "", "a"),
                                 ({"STATE_DIRECTORY": str(tmp_path / "a")}, "state_dir = mine",
                                  "mine")):
        with Daemon(tmp_path, settings, env=env) as d:
            assert Client(d).call("status")["spool"]["folder"] == str(tmp_path / where)
            assert os.stat(tmp_path / where).st_mode & 0o777 == 0o700


def test_two_daemons_on_one_folder(tmp_path):
    """The second refuses to start; or, where nobody named the folder, does without it."""
    (tmp_path / "two").mkdir()
    with Daemon(tmp_path, "state_dir = %s/state" % tmp_path) as first:
        assert Client(first).call("status")["spool"]["usable"]  # it has the lock
        second = Daemon(tmp_path / "two", "state_dir = %s/state" % tmp_path, wait=False)
        assert second.wait() == 1
        assert second.logged().count("\n") == 1
        assert "another kread uses the state directory %s/state" % tmp_path in second.logged()
        assert not os.path.exists(second.socket)
        assert Client(first).generate("x", detach=True)["job"] == 1
    home = {"HOME": str(tmp_path)}
    with Daemon(tmp_path, env=home) as first:
        assert Client(first).call("status")["spool"]["usable"]
        with Daemon(tmp_path / "two", env=home) as second:
            c = Client(second)
            refused(lambda: c.generate("x", detach=True), "io", "another kread")
            assert c.finish(c.generate("x")["job"])[0] == "done"


def test_files_are_the_owners_alone(tmp_path):
    with Daemon(tmp_path) as d:
        c = Client(d)
        job = c.generate("x", detach=True)["job"]
        c.finish(job)
        for name in ("%d.job" % job, "%d-0.png" % job):
            assert os.stat(d.state("jobs", name)).st_mode & 0o777 == 0o600


# ------------------------------------------------------------------------------ limits ------------

def test_age(tmp_path):
    with Daemon(tmp_path) as d:
        c = Client(d)
        old, new = (c.generate("x", detach=True)["job"] for _ in range(2))
        c.finish(old), c.finish(new)
    path = d.state("jobs", "%d.job" % old)
    version, record = read_record(path)
    write_record(path, version, dict(record, finished_at=time.time() - 31 * 86400))
    with Daemon(tmp_path, "keep_days = 0"):
        assert os.path.exists(d.state("jobs", "%d-0.png" % old))
    with Daemon(tmp_path) as d:
        c = Client(d)
        wait_until(lambda: not os.path.exists(d.state("jobs", "%d-0.png" % old)))
        refused(lambda: c.call("fetch", job=old), "no_job", "keep_days")
        assert c.call("fetch", job=new)["png"]


def test_limits_hold_after_a_restart_and_remember_what_was_fetched(tmp_path):
    with Daemon(tmp_path) as d:
        c = Client(d)
        four = [c.generate("x", detach=True)["job"] for _ in range(4)]
        for job in four:
            c.finish(job)
        c.call("fetch", job=four[2])
        wait_until(lambda: read_record(d.state("jobs", "%d.job" % four[2]))[1]["fetched"] == 1)
    with Daemon(tmp_path, "keep_images = 2") as d:
        c = Client(d)
        wait_until(lambda: c.call("status")["kept"]["images"] == 2)
        assert [jobs(c)[j]["images"] for j in four] == [0, 1, 0, 1]
        wait_until(lambda: len([n for n in os.listdir(d.state("jobs")) if ".png" in n]) == 2)


def test_records_of_forgotten_jobs_go(tmp_path):
    with Daemon(tmp_path, "keep_images = 1") as d:
        c = Client(d)
        for _ in range(115):
            c.finish(c.generate("x", steps=1, detach=True)["job"])
        wait_until(lambda: len(os.listdir(d.state("jobs"))) == 102)  # 100, the last, its picture
        assert len(jobs(c)) == 101
    with Daemon(tmp_path, "keep_images = 1") as d:
        assert len(jobs(Client(d))) == 101


def test_client_gone_before_the_answer(tmp_path):
    """It did not learn the number, but what it asked for is done."""
    with Daemon(tmp_path) as d:
        for _ in range(10):
            c = Client(d)
            c.ask("generate", prompt="x", detach=True)
            c.close()
        c = Client(d)
        wait_until(lambda: c.call("status")["jobs"]["done"] == 10)
        assert len(os.listdir(d.state("jobs"))) == 20


def test_many_at_once_from_one_client(tmp_path):
    with Daemon(tmp_path, "client_queue_limit = 0\nuser_queue_limit = 0\nqueue_limit = 300") as d:
        c = Client(d)
        asked = [c.ask("generate", prompt="x", steps=1, detach=True) for _ in range(120)]
        numbers = [c.answer(n)["job"] for n in asked]
        assert numbers == sorted(set(numbers))
        for job in numbers:
            assert c.finish(job)[0] == "done"


# ------------------------------------------------------------------------------ kreactl -----------

def test_kreactl_across_a_restart(tmp_path):
    """From one terminal after the other, and from before a crash to after it."""
    def ctl(daemon, *args):
        done = subprocess.run([os.path.join(BUILD, "kreactl"), "--socket", daemon.socket, *args],
                              cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=60)
        return done.returncode, done.stdout, done.stderr

    d = Daemon(tmp_path)
    status, out, _ = ctl(d, "generate", "a cat", "--detach", "--seed", "5", "--count", "2")
    first = out.strip()
    assert status == 0 and first.isdigit()
    assert ctl(d, "watch", first)[0] == 0
    second = ctl(d, "generate", "ms=60000", "--detach")[1].strip()
    third = ctl(d, "generate", "a dog", "--detach")[1].strip()
    d.kill()
    with Daemon(tmp_path) as d:
        status, out, _ = ctl(d, "jobs")
        rows = [line.split() for line in out.splitlines()[1:]]
        assert [row[:1] + row[-1:] for row in rows] == [[first, "cat"], [second, "ms=60000"], [third, "dog"]]
        assert ctl(d, "cancel", second)[0] == 0
        assert ctl(d, "watch", third)[:2][0] == 0
        assert ctl(d, "fetch", first, "-o", "cat.png") == (0, "cat-0.png\ncat-1.png\n", "")
        assert ctl(d, "fetch", second)[0] == 2
        out = ctl(d, "status")[1]
        assert "3 detached jobs (0 unfinished), 3 pictures" in out and d.state() in out
        assert "seconds of the last" in out and "p99" in out
    assert ctl(d, "status")[0] == 3
