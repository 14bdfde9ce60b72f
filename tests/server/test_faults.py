# SPDX-License-Identifier: Apache-2.0
"""Every system call on the state directory goes wrong once, in every way, and the daemon is killed
before and after each of them: no accepted job is lost, none is done twice, the pictures are those of
an undisturbed run. Then the same for the calls on sockets, and for memory."""
import errno
import os
import shutil
import signal
import subprocess

import pytest

from harness import BUILD, SANITIZED, Client, Daemon, Refused, quick_folder, wait_until

HERE = os.path.dirname(os.path.abspath(__file__))
COUNT, SEED = 2, 50
ALL = os.environ.get("KREAD_FAULTS") == "all"
STEP = 1 if ALL else 23  # of memory: every so manieth allocation

pytestmark = pytest.mark.skipif(SANITIZED, reason="a sanitizer wants to be the first library")


@pytest.fixture
def tmp_path():
    with quick_folder() as path:
        yield path


@pytest.fixture(scope="module")
def shim():
    path = os.path.join(BUILD, "tests", "faults.so")
    source = os.path.join(HERE, "preload", "faults.c")
    if not os.path.exists(path) or os.path.getmtime(path) < os.path.getmtime(source):
        subprocess.run(["cc", "-std=c11", "-D_GNU_SOURCE", "-O1", "-fno-builtin", "-shared", "-fPIC", source, "-o", path],
                       check=True)
    return path


@pytest.fixture(scope="module")
def want(tmp_path_factory):
    with Daemon(tmp_path_factory.mktemp("undisturbed")) as d:
        c = Client(d)
        job = c.generate("x", detach=True, count=COUNT, seed=SEED, steps=2)["job"]
        c.finish(job)
        return [c.call("fetch", job=job, index=i)["png"] for i in range(COUNT)]


class Fault:
    def __init__(self, shim, folder, call, n, what, below=None, then=""):
        self.mark = os.path.join(str(folder), "mark")
        self.env = {"LD_PRELOAD": shim, "KREAD_FAULT": "%s:%d:%s%s" % (call, n, what, then),
                    "KREAD_FAULT_MARK": self.mark}
        if below:
            self.env["KREAD_FAULT_DIR"] = below

    def happened(self):
        return os.path.exists(self.mark)


def until_ready(d):
    """Whether it lives to be ready."""
    try:
        d.wait_ready()
        return True
    except AssertionError:
        return False


class Session:
    """Two detached jobs from their submission to their pictures, whatever goes wrong on the way."""

    def __init__(self):
        self.accepted, self.served = [], []  # job numbers; served: all pictures were fetched
        self.told = {}  # how they ended
        self.wrong = False

    def run(self, d, want):
        try:
            c = Client(d)
            for _ in range(2):
                job = c.generate("x", detach=True, count=COUNT, seed=SEED, steps=2)["job"]
                self.accepted.append(job)
                self.told[job] = c.finish(job)[0]
                if self.told[job] == "done":
                    got = [c.call("fetch", job=job, index=i)["png"] for i in range(COUNT)]
                    self.wrong |= got != want
                    self.served.append(job)
            c.call("status")
        except (Refused, OSError, AssertionError):
            pass  # refused, or the daemon is gone
        assert not self.wrong


def check_after(folder, session, want, ends=("done",), gone=()):
    """What the next start makes of it: jobs have ended as was told, others in one of `ends`. Those that
    are done have their pictures, but for those that were fetched and made room."""
    with Daemon(folder) as d:
        c = Client(d)
        wait_until(lambda: c.call("status")["spool"]["unfinished"] == 0, "the end of all jobs")
        found = {j["job"]: j for j in c.call("jobs")["jobs"]}
        for job in session.accepted:
            if job not in found:
                assert job in gone, "job %d was lost" % job
                continue
            state = found[job]["state"]
            assert state in ends if session.told.get(job, "lost") == "lost" else state == session.told[job], found[job]
            assert state != "failed" or found[job]["error"]["code"] == "io"
            for i in range(COUNT if found[job]["state"] == "done" else 0):
                try:
                    assert c.call("fetch", job=job, index=i)["png"] == want[i]
                except Refused as e:
                    assert e.code == "no_job" and job in session.served
        assert c.call("status")["spool"]["damaged"] == 0
        again = c.generate("x", steps=1)["job"]
        assert all(again > job for job in session.accepted)
    assert not [n for n in os.listdir(d.state("jobs")) if n.endswith(".part")]


CALLS = ("open", "write", "fsync", "close", "rename", "unlink", "mkdir", "read")


@pytest.mark.parametrize("what", ["kill", "after"])
@pytest.mark.parametrize("call", CALLS)
def test_killed_at_every_call(tmp_path, shim, want, call, what):
    n = 0
    while True:
        n += 1
        folder = tmp_path / str(n)
        folder.mkdir()
        fault = Fault(shim, folder, call, n, what, below=str(folder / ".local"))
        session = Session()
        d = Daemon(folder, "keep_images = 3", wait=False, env=fault.env)
        if until_ready(d):
            session.run(d, want)
        if not fault.happened():
            d.signal()
        code = d.wait()
        if not fault.happened():
            assert code == 0
            break
        assert code == -signal.SIGKILL
        check_after(folder, session, want)
        shutil.rmtree(folder)
    assert n > (2 if call in ("unlink", "mkdir", "read") else 15), n


@pytest.mark.parametrize("what", [errno.ENOSPC, errno.EIO, errno.EMFILE, errno.EINTR, "short"])
@pytest.mark.parametrize("call", CALLS)
def test_failing_at_every_call(tmp_path, shim, want, call, what):
    if what == "short" and call not in ("read", "write"):
        return
    n = 0
    while True:
        n += 1
        folder = tmp_path / str(n)
        folder.mkdir()
        fault = Fault(shim, folder, call, n, what, below=str(folder / ".local"))
        session = Session()
        d = Daemon(folder, "keep_images = 3", wait=False, env=fault.env)
        d.wait_ready()
        session.run(d, want)
        c = Client(d)
        assert c.finish(c.generate("x", steps=1)["job"])[0] == "done"  # it is one job's trouble
        ends = {j["job"]: j for j in c.call("jobs")["jobs"]}
        failed = [j for j in session.accepted if ends[j]["state"] == "failed"]
        for job in failed:
            assert ends[job]["error"]["code"] == "io", ends[job]
        assert len(failed) <= 1
        if what in (errno.EINTR, "short"):
            assert len(session.served) == 2, d.logged()
        c.close()
        assert d.stop() == 0, d.logged()
        if not fault.happened():
            assert len(session.served) == 2
            break
        session.told.update((job, "failed") for job in failed)
        check_after(folder, session, want)
        shutil.rmtree(folder)


@pytest.mark.parametrize("what", [errno.EIO, errno.EMFILE, errno.EINTR, "short", "kill", "after"])
@pytest.mark.parametrize("call", CALLS)
def test_a_start_with_faults(tmp_path, shim, want, call, what):
    """A spool with a job that is done, one that is half done and one that waits: whatever goes wrong
    when it is taken over, the start after that has them all."""
    if what == "short" and call not in ("read", "write"):
        return
    first = tmp_path / "first"
    first.mkdir()
    d = Daemon(first)
    c, session = Client(d), Session()
    for prompt in ("x", "ms=5", "x"):
        session.accepted.append(c.generate(prompt, detach=True, count=COUNT, seed=SEED, steps=2)["job"])
    half = d.state("jobs", "%d-0.png" % session.accepted[1])
    wait_until(lambda: os.path.exists(half))
    d.kill()
    n = 0
    while True:
        n += 1
        folder = tmp_path / str(n)
        folder.mkdir()
        shutil.copytree(first / ".local", folder / ".local")
        fault = Fault(shim, folder, call, n, what, below=str(folder / ".local"))
        d = Daemon(folder, wait=False, env=fault.env)
        failed = []
        if until_ready(d):
            try:
                c = Client(d)
                wait_until(lambda: c.call("status")["spool"]["unfinished"] == 0)
                failed = [j["job"] for j in c.call("jobs")["jobs"] if j["state"] == "failed"]
                c.close()
            except (OSError, AssertionError):
                pass
        else:
            assert what in ("kill", "after"), d.logged()
        if not fault.happened() or what not in ("kill", "after"):
            assert d.stop() == 0
        assert d.wait() in (0, -signal.SIGKILL) and len(failed) <= 1
        session.told.update((job, "failed") for job in failed)
        check_after(folder, session, want)
        shutil.rmtree(folder)
        if not fault.happened():
            break


@pytest.mark.parametrize("call", ["write", "fsync", "open", "rename"])
def test_a_disk_that_stays_full(tmp_path, shim, want, call):
    """From any call on nothing can be written: jobs fail or are refused with a reason, the daemon
    lives, and what was told as failed does not come back."""
    n = 0
    while True:
        n += 1
        folder = tmp_path / str(n)
        folder.mkdir()
        fault = Fault(shim, folder, call, n, "%d:ever" % errno.ENOSPC, below=str(folder / ".local"))
        session = Session()
        d = Daemon(folder, wait=False, env=fault.env)
        d.wait_ready()
        session.run(d, want)
        c = Client(d)
        assert c.finish(c.generate("x", steps=1)["job"])[0] == "done"
        if fault.happened():
            with pytest.raises(Refused) as e:
                c.generate("x", detach=True)
            assert e.value.code == "io" and "No space left" in e.value.message
        ends = {j["job"]: j["state"] for j in c.call("jobs")["jobs"]}
        failed = [j for j in session.accepted if ends[j] == "failed"]
        c.close()
        assert d.stop() == 0
        if not fault.happened():
            break
        # Where nothing can be renamed either, a job that failed leaves no trace.
        check_after(folder, session, want, gone=failed if call == "rename" else ())
        shutil.rmtree(folder)
    assert n > 6


def test_cancelled_on_a_full_disk(tmp_path, shim):
    """It stays cancelled, and is still known as that."""
    n, ends = 0, set()
    while True:
        n += 1
        folder = tmp_path / str(n)
        folder.mkdir()
        fault = Fault(shim, folder, "write", n, "%d:ever" % errno.ENOSPC, below=str(folder / ".local"))
        d = Daemon(folder, env=fault.env)
        c, job = Client(d), None
        try:
            job = c.generate("ms=20000", detach=True)["job"]
            wait_until(lambda: c.call("jobs", job=job)["jobs"][0]["state"] != "queued")
            c.call("cancel", job=job)
        except Refused as e:
            assert job or e.code == "io"
        told = job and c.finish(job)[0]
        c.close()
        assert d.stop() == 0
        full = fault.happened()
        with Daemon(folder) as again:
            found = {j["job"]: j["state"] for j in Client(again).call("jobs")["jobs"]}
            assert found == ({job: told} if job else {})
        ends.add(told)
        if not full:
            break
    assert ends == {None, "failed", "cancelled"}


@pytest.mark.parametrize("what", ["kill", "after"])
@pytest.mark.parametrize("call", ["rename", "unlink"])
def test_killed_on_a_full_disk(tmp_path, shim, want, call, what):
    """The disk is full from any write on, and what can still be done then is broken off: a job that was
    accepted is there after the next start, done or failed with a reason, as was told."""
    hits = n = 0
    while True:
        n += 1
        folder = tmp_path / str(n)
        for nth in range(1, 100):
            folder.mkdir()
            fault = Fault(shim, folder, "write", n, "%d:ever" % errno.ENOSPC, below=str(folder / ".local"),
                          then=",%s:%d:%s" % (call, nth, what))
            session = Session()
            d = Daemon(folder, wait=False, env=fault.env)
            if until_ready(d):
                session.run(d, want)
            if d.process.poll() is None:
                d.signal()
            code = d.wait()
            killed = code == -signal.SIGKILL
            assert killed or code == 0
            if killed:
                hits += 1
                check_after(folder, session, want, ends=("done", "failed"))
            full = fault.happened()
            shutil.rmtree(folder)
            if not killed:
                break
        if not full:
            break
    assert hits > 2, hits


@pytest.mark.parametrize("call, what", [("read", errno.EINTR), ("read", "short"), ("write", errno.EINTR),
                                        ("write", "short"), ("write", errno.EAGAIN),
                                        ("read", errno.ECONNRESET), ("write", errno.EPIPE),
                                        ("accept", errno.EMFILE), ("accept", errno.EINTR),
                                        ("accept", errno.ECONNABORTED)])
def test_every_call_on_sockets(tmp_path, shim, want, call, what):
    """Any read, write or accept on a socket: at most that one client is hurt."""
    misses = 0
    for n in range(1, 60):
        folder = tmp_path / str(n)
        folder.mkdir()
        fault = Fault(shim, folder, call, n, what, below="socket:")  # as /proc calls them
        d = Daemon(folder, wait=False, env=fault.env)
        if not until_ready(d):  # a start may fail, with a sentence
            assert d.wait() in (1, 2) and d.logged().startswith("kread: "), d.logged()
            continue
        Session().run(d, want)
        wait_until(lambda: lives(d), "an answer")
        assert d.stop() == 0, d.logged()
        misses += not fault.happened()
        shutil.rmtree(folder)
        if misses:
            break


def lives(daemon):
    try:
        c = Client(daemon)
        c.socket.settimeout(5)
        return c.finish(c.generate("x", steps=1)["job"])[0] == "done"
    except (OSError, AssertionError, Refused):
        return False
    finally:
        c.close()


# ------------------------------------------------------------------------------ memory ------------

def scripted(d):
    """Everything there is, so that every allocation of a session is reached."""
    def tried(act):
        try:
            return act()
        except (Refused, OSError, AssertionError):
            return None
    c = tried(lambda: Client(d, hello="memory"))
    if c is None:
        return
    c.socket.settimeout(10)
    for method in ("status", "jobs", "inspect", "profile", "watch"):
        tried(lambda: c.call(method))
    tried(lambda: c.call("tokens", text="a b c"))
    for detach in (False, True):
        job = tried(lambda: c.generate("x", detach=detach, preview=1, steps=3, count=2)["job"])
        if job is None:
            continue
        tried(lambda: c.finish(job))
        tried(lambda: c.call("fetch", job=job, index=1))
        tried(lambda: c.call("cancel", job=job))
    waiting = tried(lambda: [c.generate("ms=20", detach=True)["job"] for _ in range(2)])
    for job in waiting or ():
        tried(lambda: c.call("cancel", job=job))
    tried(lambda: c.call("stop"))
    c.close()


def test_every_allocation(tmp_path, shim):
    """No allocation that fails crashes the daemon: it goes on, or ends with a sentence."""
    n, hit = 1, 0
    while True:
        folder = tmp_path / str(n)
        folder.mkdir()
        fault = Fault(shim, folder, "alloc", n, errno.ENOMEM)
        d = Daemon(folder, "keep_images = 1", wait=False, env=fault.env)
        try:
            d.wait_ready()
            scripted(d)
            d.signal()
        except AssertionError:
            pass
        code = d.wait()
        text = d.logged()
        assert code in (0, 1, 2, 3), (n, code, text)
        assert code == 0 or "kread: " in text or "error" in text, (n, text)
        if not fault.happened():
            assert code == 0
            break
        shutil.rmtree(folder)
        hit += 1
        n += STEP
    assert hit > 250 // STEP
