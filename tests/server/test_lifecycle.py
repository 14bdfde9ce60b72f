# SPDX-License-Identifier: Apache-2.0
"""Starting, sharing a path, being started by systemd, and the ways to end."""
import os
import signal
import socket
import stat
import subprocess
import time

import pytest

from harness import FAKE, Client, Daemon, Refused, clean_env, wait_until


def refusal(daemon):
    """The one sentence of a daemon that cannot start."""
    assert daemon.wait() == 1
    text = daemon.logged()
    assert text.startswith("kread: ") and text.count("\n") == 1, text
    return text


# ------------------------------------------------------------------------------ the socket --------

def test_socket_is_the_owners(tmp_path):
    with Daemon(tmp_path) as d:
        mode = os.stat(d.socket).st_mode
        assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o600


@pytest.mark.parametrize("who, mode", [("owner", 0o600), ("group", 0o660), ("everyone", 0o666)])
def test_socket_access(tmp_path, who, mode):
    with Daemon(tmp_path, "socket_access = " + who) as d:
        assert stat.S_IMODE(os.stat(d.socket).st_mode) == mode


def test_umask_does_not_matter(tmp_path):
    with Daemon(tmp_path, "socket_access = group", preexec_fn=lambda: os.umask(0o777)) as d:
        assert stat.S_IMODE(os.stat(d.socket).st_mode) == 0o660


def test_stale_socket_is_replaced(tmp_path):
    with Daemon(tmp_path) as d:
        d.process.kill()
        d.process.wait()
        assert os.path.exists(d.socket)
        with Daemon(tmp_path) as second:
            assert Client(second).call("status")["pid"] == second.process.pid
        d.stop = lambda: 0  # nothing left to stop


def test_two_daemons(tmp_path):
    with Daemon(tmp_path) as d:
        (tmp_path / "two").mkdir()
        second = Daemon(tmp_path / "two", args=["--socket", d.socket], wait=False)
        text = refusal(second)
        assert "another kread" in text and d.socket in text
        assert Client(d).call("status")["pid"] == d.process.pid


def test_foreign_listener(tmp_path):
    s = socket.socket(socket.AF_UNIX)
    s.bind(str(tmp_path / "kread.sock"))
    s.listen()
    text = refusal(Daemon(tmp_path, wait=False))
    assert "another program listens" in text
    assert os.path.exists(tmp_path / "kread.sock")
    assert not os.path.exists(tmp_path / "kread.sock.lock")


def test_path_that_is_no_socket(tmp_path):
    (tmp_path / "kread.sock").write_text("precious")
    assert "no socket" in refusal(Daemon(tmp_path, wait=False))
    assert (tmp_path / "kread.sock").read_text() == "precious"


def test_path_too_long(tmp_path):
    path = str(tmp_path / ("x" * 120))
    text = refusal(Daemon(tmp_path, args=["--socket", path], wait=False))
    assert "at most 107" in text and "--socket" in text


def test_path_of_the_greatest_length(tmp_path):
    folder = tmp_path
    name = "x" * (107 - len(str(folder)) - 1)
    d = Daemon(folder, args=["--socket", str(folder / name)], wait=False)
    d.socket = str(folder / name)
    d.wait_ready()
    assert d.stop() == 0 and not os.path.exists(d.socket)


def test_folder_missing(tmp_path):
    text = refusal(Daemon(tmp_path, args=["--socket", str(tmp_path / "no/where")], wait=False))
    assert "no/where" in text and "No such file" in text


def test_folder_read_only(tmp_path):
    if os.geteuid() == 0:
        path = "/proc/kread.sock"  # root may write in any true folder
    else:
        (tmp_path / "shut").mkdir(mode=0o500)
        path = str(tmp_path / "shut" / "kread.sock")
    assert path in refusal(Daemon(tmp_path, args=["--socket", path], wait=False))


def test_socket_that_was_replaced_is_left_alone(tmp_path):
    d = Daemon(tmp_path)
    os.unlink(d.socket)
    other = socket.socket(socket.AF_UNIX)
    other.bind(d.socket)
    assert d.stop() == 0
    assert os.path.exists(d.socket)


def test_crowd_of_starters(tmp_path):
    """Of many daemons started at once on a stale socket exactly one lives."""
    s = socket.socket(socket.AF_UNIX)
    s.bind(str(tmp_path / "kread.sock"))
    s.close()
    crowd = []
    for i in range(8):
        (tmp_path / str(i)).mkdir()
        crowd.append(Daemon(tmp_path / str(i), wait=False,
                            args=["--socket", str(tmp_path / "kread.sock")]))
    wait_until(lambda: sum(d.process.poll() is None for d in crowd) == 1)
    (alive,) = [d for d in crowd if d.process.poll() is None]
    alive.socket = str(tmp_path / "kread.sock")
    alive.wait_ready()
    assert Client(alive).call("status")["pid"] == alive.process.pid
    for d in crowd:
        if d is not alive:
            refusal(d)
    assert alive.stop() == 0


def test_engine_that_cannot_open(tmp_path):
    d = Daemon(tmp_path, env={"FAKE_ENGINE_OPEN": "dit.safetensors: no such file"}, wait=False)
    assert refusal(d) == "kread: dit.safetensors: no such file\n"
    assert not os.path.exists(d.socket)


def test_output_dir_that_is_not_there(tmp_path):
    text = refusal(Daemon(tmp_path, "output_dir = pictures", wait=False))
    assert "output_dir" in text and str(tmp_path / "pictures") in text


def test_trace_folder_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "no" / "folder", tmp_path / "file"):
        text = refusal(Daemon(tmp_path, args=["--trace", str(folder)], wait=False))
        assert "trace folder" in text and str(folder) in text


def test_a_model_file_that_shrinks_is_named_as_the_cause(tmp_path):
    d = Daemon(tmp_path)
    d.signal(signal.SIGBUS)
    assert d.wait() == -signal.SIGBUS
    assert "became shorter" in d.logged()


def test_closed_standard_files(tmp_path):
    """Started with descriptors 0 to 2 closed, nothing is logged into a client's connection."""
    with Daemon(tmp_path) as first:
        config = str(tmp_path / "kread.ini")
    p = subprocess.Popen(["/bin/sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", FAKE, "--config",
                          config, "--socket", first.socket], env=clean_env(tmp_path))
    def ready():
        try:
            return Client(first.socket)
        except OSError:
            return None
    wait_until(ready)
    c = Client(first.socket)
    assert c.finish(c.generate("fail=io")["job"])[0] == "failed"
    assert c.finish(c.generate("x")["job"])[0] == "done"
    assert os.readlink("/proc/%d/fd/2" % p.pid) == "/dev/null"
    p.terminate()
    assert p.wait(60) == 0


def test_start_is_quick(tmp_path):
    best = 9
    for _ in range(5):
        start = time.time()
        with Daemon(tmp_path):
            best = min(best, time.time() - start)
    assert best < 1  # milliseconds in truth; sanitizers are slow


# ------------------------------------------------------------------------------ systemd -----------

def start_activated(tmp_path, sockets, count=None, env=None):
    """The daemon as systemd starts it: sockets from descriptor 3 on, LISTEN_PID its own."""
    config = tmp_path / "kread.ini"
    config.write_text("[kread]\ndefault_profile = t\n[profile t]\narchitecture = krea2\n"
                      "variant = turbo\ndiffusion_model = d\ntext_encoder = t\nvae = v\n"
                      "tokenizer = k\n")
    script = 'import os, sys\nos.environ["LISTEN_PID"] = str(os.getpid())\n' \
             "for i, fd in enumerate(map(int, sys.argv[1].split(','))):\n" \
             "    os.dup2(fd, 100 + i)\n" \
             "for i in range(len(sys.argv[1].split(','))):\n" \
             "    os.dup2(100 + i, 3 + i); os.close(100 + i)\n" \
             "os.execv(sys.argv[2], sys.argv[2:])\n"
    fds = [s.fileno() for s in sockets]
    log = open(tmp_path / "log", "w")
    return subprocess.Popen(
        ["/usr/bin/python3", "-c", script, ",".join(map(str, fds)), FAKE, "--config", str(config),
         "--socket", str(tmp_path / "unused.sock")],
        env=clean_env(tmp_path, LISTEN_FDS=str(count or len(fds)), **(env or {})), stderr=log,
        pass_fds=fds)


def listening(path):
    s = socket.socket(socket.AF_UNIX)
    s.bind(str(path))
    s.listen()
    return s


def test_socket_activation(tmp_path):
    s = listening(tmp_path / "passed.sock")
    c = Client(str(tmp_path / "passed.sock"))  # waits in the backlog until the daemon is there
    number = c.ask("generate", prompt="x")
    p = start_activated(tmp_path, [s])
    job = c.answer(number)["job"]
    assert c.finish(job)[0] == "done"
    assert not os.path.exists(tmp_path / "unused.sock")
    p.terminate()
    assert p.wait(60) == 0, (tmp_path / "log").read_text()
    assert os.path.exists(tmp_path / "passed.sock")  # systemd's to remove
    assert "serves profile t on %s" % (tmp_path / "passed.sock") in (tmp_path / "log").read_text()


def test_socket_activation_again(tmp_path):
    """The socket outlives the daemon and serves the next one."""
    s = listening(tmp_path / "passed.sock")
    for _ in range(2):
        p = start_activated(tmp_path, [s])
        assert Client(str(tmp_path / "passed.sock")).call("status")["pid"] > 0
        p.terminate()
        assert p.wait(60) == 0


def test_wrong_things_passed(tmp_path):
    tcp = socket.socket()
    tcp.bind(("127.0.0.1", 0))
    tcp.listen()
    p = start_activated(tmp_path, [tcp])
    assert p.wait(60) == 1 and "ListenStream" in (tmp_path / "log").read_text()
    p = start_activated(tmp_path, [listening(tmp_path / "a"), listening(tmp_path / "b")])
    assert p.wait(60) == 1 and "2 sockets" in (tmp_path / "log").read_text()
    bound = socket.socket(socket.AF_UNIX)
    bound.bind(str(tmp_path / "c"))
    p = start_activated(tmp_path, [bound])
    assert p.wait(60) == 1


def test_notifications(tmp_path):
    n = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    n.bind(str(tmp_path / "notify"))
    n.settimeout(60)
    with Daemon(tmp_path, env={"NOTIFY_SOCKET": str(tmp_path / "notify")}) as d:
        assert n.recv(999).decode().startswith("READY=1\nSTATUS=ready")
        c = Client(d)
        job = c.generate("ms=20")["job"]
        c.finish(job)
        d.signal()
        d.wait()
        text = ""
        n.settimeout(0.2)
        try:
            while True:
                text += n.recv(999).decode() + "\n"
        except TimeoutError:
            pass
        assert "STATUS=running job %d" % job in text and "STOPPING=1" in text


def test_journal_prefixes(tmp_path):
    log = open(tmp_path / "log", "w")
    st = os.fstat(log.fileno())
    with Daemon(tmp_path, env={"JOURNAL_STREAM": "%d:%d" % (st.st_dev, st.st_ino)}) as d:
        d.logs("serves")
        assert d.logged().startswith("<6>kread ")
    (tmp_path / "other").mkdir()
    with Daemon(tmp_path / "other", env={"JOURNAL_STREAM": "1:1"}) as d:
        d.logs("serves")
        assert d.logged().startswith("20")


# ------------------------------------------------------------------------------ logs --------------

def test_no_prompt_in_the_log(tmp_path):
    with Daemon(tmp_path) as d:
        c = Client(d)
        c.finish(c.generate("my secret garden")["job"])
        c.finish(c.generate("my secret fail=io")["job"])
        d.logs("job 2")
        text = d.logged()
        assert "secret" not in text
        assert "job 1 done" in text and "job 2 failed (io: " in text and "32x32" in text
        assert "4 steps" in text and "peak 1.0 MB" in text and "uid %d" % os.getuid() in text


def test_prompt_at_debug_cannot_forge_lines(tmp_path):
    with Daemon(tmp_path, "log_level = debug") as d:
        c = Client(d)
        c.finish(c.generate("a\n2030-01-01 forged \x1b[2J")["job"])
        d.logs("a?2030-01-01 forged ?[2J")


def test_quiet_log(tmp_path):
    with Daemon(tmp_path, args=["--log-level", "error"]) as d:
        c = Client(d)
        c.finish(c.generate("x")["job"])
        assert d.logged() == ""


# ------------------------------------------------------------------------------ ending ------------


def test_stop_while_starting(tmp_path):
    """A signal at any moment from exec on never leaves a socket behind once there is one."""
    for i in range(20):
        d = Daemon(tmp_path, wait=False)
        time.sleep(i * 0.001)
        d.signal()
        code = d.wait()
        assert code in (0, -signal.SIGTERM)
        assert code == 0 or d.logged() == ""
        assert not os.path.exists(d.socket) and not os.path.exists(d.socket + ".lock")


def shutdown(client, job):
    end, about, _ = client.finish(job)
    assert end == "failed" and about["error"]["code"] == "shutdown"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_drain(tmp_path, number):
    d = Daemon(tmp_path)
    c = Client(d)
    running = c.generate("ms=150")["job"]
    queued = c.generate("x")["job"]
    wait_until(lambda: c.call("status")["running"] == running)
    d.signal(number)
    shutdown(c, queued)
    assert c.call("status")["state"] == "stopping"
    with pytest.raises(Refused) as e:
        c.generate("x")
    assert e.value.code == "shutdown"
    late = Client(d)  # one may still look and cancel
    assert late.call("status")["running"] == running
    end, _, before = c.finish(running)
    assert end == "done" and "image" in [n for n, _ in before]
    assert c.receive() is None and late.receive() is None
    assert d.wait() == 0 and d.stop() == 0
    assert not os.path.exists(d.socket) and not os.path.exists(d.socket + ".lock")


def test_time_limit(tmp_path):
    d = Daemon(tmp_path, "stop_timeout = 1")
    c = Client(d)
    job = c.generate("ms=20000")["job"]
    wait_until(lambda: c.call("status")["running"] == job)
    start = time.time()
    d.signal()
    assert c.finish(job)[0] == "cancelled"
    assert 0.9 < time.time() - start < 30
    assert d.stop() == 0


def test_no_time_limit_at_all(tmp_path):
    d = Daemon(tmp_path, "stop_timeout = 0")
    c = Client(d)
    job = c.generate("ms=20000")["job"]
    wait_until(lambda: c.call("status")["running"] == job)
    d.signal()
    assert c.finish(job)[0] == "cancelled"
    assert d.stop() == 0


def test_second_signal(tmp_path):
    d = Daemon(tmp_path, "stop_timeout = 1000")
    c = Client(d)
    job = c.generate("ms=20000")["job"]
    wait_until(lambda: c.call("status")["running"] == job)
    d.signal()
    wait_until(lambda: c.call("status")["state"] == "stopping")
    d.signal()
    assert c.finish(job)[0] == "cancelled"
    assert d.stop() == 0


def test_job_that_hangs(tmp_path):
    d = Daemon(tmp_path, "stop_timeout = 1000")
    c = Client(d)
    job = c.generate("ms=600000 deaf")["job"]
    wait_until(lambda: c.call("status")["running"] == job)
    d.signal()
    wait_until(lambda: c.call("status")["state"] == "stopping")
    d.signal()
    assert d.wait() == 3
    assert "did not end" in d.logged() and not os.path.exists(d.socket)


def test_stop_method(tmp_path):
    d = Daemon(tmp_path)
    c = Client(d)
    running = c.generate("ms=100")["job"]
    wait_until(lambda: c.call("status")["running"] == running)
    queued = c.generate("x")["job"]
    other = Client(d)
    assert other.call("stop") == {"running": running, "queued": 1}
    shutdown(c, queued)
    assert c.finish(running)[0] == "done"
    assert other.receive() is None
    assert d.stop() == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_stop_is_the_owners(tmp_path):
    os.chmod(tmp_path, 0o755)
    for parent in tmp_path.parents:
        if parent == parent.parent or not str(parent).startswith("/tmp/"):
            break
        os.chmod(parent, 0o755)
    with Daemon(tmp_path, "socket_access = everyone") as d:
        script = ("import sys, os\n"
                  "sys.path.insert(0, %r)\nfrom harness import Client, Refused\n"
                  "os.setgid(65534); os.setuid(65534)\n"  # only now: a tree of root's may be closed to others
                  "c = Client(sys.argv[1])\n"
                  "try:\n    c.call('stop'); print('stopped')\n"
                  "except Refused as e:\n    print(e.code)\n" % os.path.dirname(__file__))
        done = subprocess.run(["/usr/bin/python3", "-c", script, d.socket], capture_output=True,
                              text=True, timeout=60)
        assert done.stdout == "forbidden\n", done.stderr
        assert Client(d).call("status")["state"] == "ready"


def test_device_lost(tmp_path):
    d = Daemon(tmp_path)
    c, other = Client(d), Client(d)
    queued = []
    job = c.generate("ms=20 fail=device")["job"]
    queued = [c.generate("x")["job"], other.generate("x")["job"]]
    end, about, _ = c.finish(job)
    assert end == "failed" and about["error"]["code"] == "device"
    shutdown(c, queued[0])
    shutdown(other, queued[1])
    assert c.receive() is None
    assert d.wait() == 3
    assert not os.path.exists(d.socket)


def test_results_are_flushed_at_the_end(tmp_path):
    """A large picture reaches a client that reads late although the daemon is ending."""
    d = Daemon(tmp_path)
    c = Client(d)
    job = c.generate("ms=30 pad=5000000")["job"]
    wait_until(lambda: c.call("status")["running"] == job)
    d.signal()
    time.sleep(0.5)
    end, _, before = c.finish(job)
    assert end == "done" and [len(m["png"]) > 5000000 for n, m in before if n == "image"] == [True]
    assert d.stop() == 0


def test_stalled_client_does_not_hold_the_end_up(tmp_path):
    d = Daemon(tmp_path)
    c = Client(d)
    c.generate("pad=9000000")
    wait_until(lambda: Client(d).call("status")["jobs"]["done"] == 1)
    start = time.time()
    d.signal()
    assert d.wait() == 0 and time.time() - start < 20


def test_hangup_changes_nothing(tmp_path):
    with Daemon(tmp_path) as d:
        d.signal(signal.SIGHUP)
        d.logs("SIGHUP")
        assert Client(d).call("status")["state"] == "ready"


def test_broken_pipe_on_standard_error(tmp_path):
    """Nobody reads the log any more: the daemon goes on."""
    r, w = os.pipe()
    config = Daemon(tmp_path)
    config.stop()
    p = subprocess.Popen([FAKE, "--config", str(tmp_path / "kread.ini"), "--socket",
                          str(tmp_path / "kread.sock")], stderr=w, env=clean_env(tmp_path))
    os.close(w)
    wait_until(lambda: os.path.exists(tmp_path / "kread.sock"))
    os.close(r)
    c = Client(str(tmp_path / "kread.sock"))
    assert c.finish(c.generate("x")["job"])[0] == "done"
    p.terminate()
    assert p.wait(60) == 0


def test_stop_at_random_moments(tmp_path):
    """SIGTERM while jobs come, run and end: always a clean end, every job has its last word."""
    for i in range(12):
        d = Daemon(tmp_path, "stop_timeout = 1")
        clients = [Client(d) for _ in range(3)]
        jobs = [(c, c.generate("ms=%d" % (3 * k), count=2)["job"])
                for k, c in enumerate(clients) for _ in range(2)]
        time.sleep(i * 0.012)
        d.signal()
        for c, job in jobs:
            assert c.finish(job)[0] in ("done", "failed", "cancelled")
        assert d.stop() == 0
