# SPDX-License-Identifier: Apache-2.0
"""What systemd and kread are to each other, as far as it shows without a running systemd: the units by systemd's own
tools, and the daemon with the ends of systemd's sockets in our hands. tests/e2e/check_deb has the rest, under a real
one."""
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/server"))
from harness import FAKE, SANITIZED, Client, Daemon, clean_env, wait_until  # noqa: E402

UNITS = ROOT / "systemd"
needs_analyze = pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")


def run(*argv):
    return subprocess.run([str(a) for a in argv], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=120)


def installed(folder, source=UNITS):
    """The units as `make install` writes them, with programs that exist."""
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    for program in ("kread", "kread-http"):
        (folder / "bin" / program).write_text("#!/bin/sh\n")
        (folder / "bin" / program).chmod(0o755)
    for unit in source.glob("*.s*et"), source.glob("*.service"):
        for path in unit:
            (folder / path.name).write_text(path.read_text().replace("@PREFIX@", str(folder)))
    return folder


# ------------------------------------------------------------------------------ units -------------

def exposure(unit):
    done = run("systemd-analyze", "security", "--offline=yes", "--no-pager", unit)
    found = re.search(r"exposure level for \S+: ([\d.]+)", done.stdout)
    if not found:
        pytest.skip("this systemd-analyze cannot look at a unit offline: " + done.stdout[-200:])
    return float(found.group(1))


@needs_analyze
@pytest.mark.parametrize("name", ["kread", "kread-http"])
def test_exposure(tmp_path, name):
    assert exposure(installed(tmp_path) / (name + ".service")) <= 1.5


@needs_analyze
def test_exposure_with_the_devices_of_cuda(tmp_path):
    """The drop-in, as systemd merges it: later lines win."""
    unit = installed(tmp_path) / "kread.service"
    drop_in = (UNITS / "kread.service.d/cuda.conf").read_text()
    unit.write_text(unit.read_text() + "\n" + drop_in)
    assert exposure(unit) <= 1.5


@needs_analyze
@pytest.mark.parametrize("who", ["system", "user"])
def test_units_are_understood(tmp_path, who):
    folder = installed(tmp_path, UNITS if who == "system" else UNITS / "user")
    env = dict(os.environ, SYSTEMD_UNIT_PATH="%s:" % folder, XDG_RUNTIME_DIR=str(tmp_path), MANPATH=str(tmp_path))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", "--" + who,
                           *map(str, sorted(folder.glob("*.s*")))], env=env, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    said = [line for line in done.stdout.split("\n") if "kread" in line]
    assert done.returncode == 0 and not said, done.stdout


def values(path, key):
    return re.findall(r"^%s=(.*)$" % key, path.read_text(), flags=re.M)


def test_the_time_to_stop_covers_the_daemons_own():
    table = (ROOT / "daemon/options.c").read_text()
    stop = int(re.search(r'"stop_timeout".*?NULL, "(\d+)"', table, flags=re.S).group(1))
    for unit in UNITS / "kread.service", UNITS / "user/kread.service":
        assert int(values(unit, "TimeoutStopSec")[0]) >= stop + 15 + 5
        assert values(unit, "Type") == ["notify"] and int(values(unit, "WatchdogSec")[0]) >= 20


@pytest.mark.skipif(not shutil.which("systemd-sysusers") or os.geteuid() != 0,
                    reason="needs systemd-sysusers, and root for --root")
def test_users_and_folders(tmp_path):
    (tmp_path / "etc").mkdir()
    for kind, names in ("sysusers", ["kread", "kread-http"]), ("tmpfiles", ["kread"]):
        folder = tmp_path / "usr/lib" / (kind + ".d")
        folder.mkdir(parents=True)
        for name in names:
            shutil.copy(UNITS / ("%s.%s" % (name, kind)), folder / (name + ".conf"))
    done = run("systemd-sysusers", "--root", tmp_path)
    assert done.returncode == 0, done.stdout
    users = dict(line.split(":", 1) for line in (tmp_path / "etc/passwd").read_text().split("\n") if line)
    assert {"kread", "kread-http"} <= set(users) and users["kread"].endswith("/var/lib/kread:/usr/sbin/nologin")
    assert re.search(r"^kread:.*:kread-http$", (tmp_path / "etc/group").read_text(), flags=re.M)
    done = run("systemd-tmpfiles", "--root", tmp_path, "--create")
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "run/kread").is_dir() and (tmp_path / "var/lib/kread").stat().st_mode & 0o777 == 0o750


# ------------------------------------------------------------------------------ the daemon --------

class Notify:
    """systemd's end of $NOTIFY_SOCKET."""

    def __init__(self, folder):
        self.path = str(folder / "notify")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.seen = []

    def next(self, key, timeout=60):
        """The next message that has a line `key=...`, as a dict; what comes before it is kept in `seen`."""
        end = time.monotonic() + timeout
        while True:
            self.socket.settimeout(max(0.01, end - time.monotonic()))
            message = dict(line.split("=", 1) for line in self.socket.recv(4096).decode().split("\n"))
            self.seen.append(message)
            if key in message:
                return message


def write_settings(daemon, lines, profile=None):
    path = os.path.join(daemon.folder, "kread.ini")
    with open(path) as f:
        text = f.read()
    tail = text[text.index("\n[profile"):]
    with open(path, "w") as f:
        f.write("[kread]\ndefault_profile = test\n" + lines + "\n" + (profile or tail))


def test_a_life_as_systemd_sees_it(tmp_path):
    n = Notify(tmp_path)
    with Daemon(tmp_path, env={"NOTIFY_SOCKET": n.path}) as d:
        assert n.next("READY")["STATUS"].startswith("ready")
        c = Client(d)
        job = c.generate("ms=20")["job"]
        c.finish(job)
        while n.next("STATUS")["STATUS"] != "running job %d, 0 waiting" % job:
            pass
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        d.signal(signal.SIGHUP)
        message = n.next("RELOADING")
        assert message["RELOADING"] == "1"
        assert before <= int(message["MONOTONIC_USEC"]) <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        assert n.next("READY")["READY"] == "1"
        d.signal(signal.SIGTERM)
        assert n.next("STOPPING")["STOPPING"] == "1"


def test_watchdog(tmp_path):
    """Signs of life come at half the time that systemd waits, while jobs run too; they stop with a stopped process."""
    n = Notify(tmp_path)
    limit = 20 if SANITIZED else 2
    with Daemon(tmp_path, env={"NOTIFY_SOCKET": n.path, "WATCHDOG_USEC": str(limit * 1000000)}) as d:
        n.next("READY")
        c = Client(d)
        job = c.generate("ms=100", steps=30)["job"]
        for _ in range(3):
            assert n.next("WATCHDOG", limit)["WATCHDOG"] == "1"
        c.finish(job)
        n.next("WATCHDOG", limit)


def test_a_stuck_worker_is_seen(tmp_path):
    """The loop turns and answers, and the signs of life stop all the same; they come back with the worker."""
    n = Notify(tmp_path)
    env = {"NOTIFY_SOCKET": n.path, "WATCHDOG_USEC": "1000000"}
    with Daemon(tmp_path, "worker_timeout = 1", env=env) as d:
        c = Client(d)
        n.next("WATCHDOG")
        job = c.generate("ms=8000", steps=1)["job"]
        d.logs("no sign of life")
        while True:
            try:
                n.next("WATCHDOG", 2)
            except TimeoutError:
                break
        assert Client(d).call("status")["running"] == job
        assert c.finish(job)[0] == "done"
        n.next("WATCHDOG")


def test_no_signs_of_life_where_none_are_wanted(tmp_path):
    n = Notify(tmp_path)
    with Daemon(tmp_path, env={"NOTIFY_SOCKET": n.path}) as d:
        c = Client(d)
        c.finish(c.generate("x")["job"])
        d.signal()
        n.next("STOPPING")
    assert not any("WATCHDOG" in message for message in n.seen)


def test_a_watchdog_for_another_process(tmp_path):
    n = Notify(tmp_path)
    with Daemon(tmp_path, env={"NOTIFY_SOCKET": n.path, "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}) as d:
        d.signal()
        n.next("STOPPING")
    assert not any("WATCHDOG" in message for message in n.seen)


# ------------------------------------------------------------------------------ reload ------------

def test_reload_applies_what_it_can_and_says_what_it_cannot(tmp_path):
    n = Notify(tmp_path)
    with Daemon(tmp_path, env={"NOTIFY_SOCKET": n.path}) as d:
        assert Client(d).call("status")["queue_limit"] not in (3, 5)
        write_settings(d, "queue_limit = 3\nthreads = 1\nlog_level = debug")
        d.signal(signal.SIGHUP)
        d.logs("settings are read again; 1 needs a restart")
        assert Client(d).call("status")["queue_limit"] == 3
        text = d.logged()
        assert "queue_limit is 3 now; it was " in text
        assert "threads stays 0 until kread is restarted; then it is 1" in text
        assert "log_level is debug now" in text
        c = Client(d)
        c.finish(c.generate("hidden before")["job"])
        d.logs("hidden before")  # debug level, since the reload
        n.next("RELOADING")
        assert "1 changed setting needs a restart" in n.next("READY")["STATUS"]
        write_settings(d, "queue_limit = 3\nlog_level = debug")
        d.signal(signal.SIGHUP)
        d.logs("settings are read again; 0 need a restart")


def test_reload_of_a_profile_needs_a_restart(tmp_path):
    with Daemon(tmp_path) as d:
        write_settings(d, "", "[profile test]\narchitecture = krea2\nvariant = raw\ndiffusion_model = other.safetensors\n"
                              "text_encoder = te.safetensors\nvae = vae.safetensors\ntokenizer = tokenizer\nsteps = 7\n")
        d.signal(signal.SIGHUP)
        d.logs("3 need a restart")
        for what in "variant = raw", "steps = 7", "other.safetensors":
            assert re.search(r"profile test: \".*%s.*\" needs a restart" % what, d.logged()), what
        assert Client(d).call("status")["state"] == "ready"


@pytest.mark.parametrize("lines, complaint", [("queue_limit = many", "kread.ini:3: queue_limit"), ("nonsense", "kread.ini:3"),
                                              ("default_profile = test", "set twice")])
def test_reload_of_a_bad_file_changes_nothing(tmp_path, lines, complaint):
    with Daemon(tmp_path, "max_clients = 20") as d:
        write_settings(d, lines)
        d.signal(signal.SIGHUP)
        d.logs("nothing changes")
        assert complaint in d.logged()
        write_settings(d, "max_clients = 20")
        d.signal(signal.SIGHUP)
        d.logs("settings are read again; 0 need")
        assert "is 20 now" not in d.logged()


def test_reload_of_a_file_that_is_gone(tmp_path):
    with Daemon(tmp_path) as d:
        os.rename(tmp_path / "kread.ini", tmp_path / "away")
        d.signal(signal.SIGHUP)
        d.logs("nothing changes")
        assert Client(d).call("status")["state"] == "ready"


def test_the_command_line_stays_before_the_file(tmp_path):
    with Daemon(tmp_path, args=["--log-level", "warn"]) as d:
        write_settings(d, "log_level = debug\nqueue_limit = 5")
        d.signal(signal.SIGHUP)
        wait_until(lambda: Client(d).call("status")["queue_limit"] == 5)
        assert "queue_limit" not in d.logged()


# ------------------------------------------------------------------------------ the journal -------

class Journal:
    """A journal of our own, in a mount namespace: its stream on standard error, its socket for lines with fields."""

    def __init__(self, folder):
        self.folder = folder / "journal"
        self.folder.mkdir()
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(self.folder / "socket"))
        self.socket.settimeout(60)
        self.stream, self.other = socket.socketpair()

    def argv(self, command):
        script = 'mount -t tmpfs tmpfs /run && mkdir -p /run/systemd/journal && ' \
                 'mount --bind "$0" /run/systemd/journal && exec "$@"'
        return ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, str(self.folder), *command]

    def env(self):
        st = os.fstat(self.stream.fileno())
        return {"JOURNAL_STREAM": "%d:%d" % (st.st_dev, st.st_ino)}

    def next(self, key):
        while True:
            entry, lines = {}, self.socket.recv(1 << 16).decode().split("\n")
            entry.update(line.split("=", 1) for line in lines if "=" in line)
            if key in entry:
                return entry


@pytest.fixture
def journal(tmp_path):
    j = Journal(tmp_path)
    if not shutil.which("unshare") or run(*j.argv(["true"])).returncode != 0:
        pytest.skip("no mount namespace of our own here")
    return j


@pytest.fixture
def daemon(tmp_path, journal):
    def start(settings=""):
        (tmp_path / "kread.ini").write_text("[kread]\ndefault_profile = test\n%s\n[profile test]\narchitecture = krea2\n"
                                            "variant = turbo\ndiffusion_model = d\ntext_encoder = t\nvae = v\n"
                                            "tokenizer = k\n" % settings)
        command = [FAKE, "--config", str(tmp_path / "kread.ini"), "--socket", str(tmp_path / "s")]
        started.append(subprocess.Popen(journal.argv(command), env=clean_env(tmp_path, **journal.env()),
                                        stderr=journal.stream))
        wait_until(connected, "a daemon that listens")
        return connected()

    def connected():
        with contextlib.suppress(OSError):
            return Client(str(tmp_path / "s"))
    started = []
    yield start
    for process in started:
        process.terminate()
        assert process.wait(60) == 0


def test_fields_of_a_job(journal, daemon):
    c = daemon()
    assert journal.next("MESSAGE")["PRIORITY"] == "6"
    job = c.generate("secret words", seed=11, width=64, height=32, steps=3)["job"]
    c.finish(job)
    entry = journal.next("KREAD_JOB")
    assert entry["KREAD_JOB"] == str(job) and entry["KREAD_OUTCOME"] == "done" and entry["PRIORITY"] == "6"
    assert (entry["KREAD_SEED"], entry["KREAD_WIDTH"], entry["KREAD_HEIGHT"], entry["KREAD_STEPS"]) == (
        "11", "64", "32", "3")
    assert float(entry["KREAD_TOTAL"]) >= 0 and entry["KREAD_UID"].isdigit() and int(entry["KREAD_PEAK"]) >= 0
    assert entry["SYSLOG_IDENTIFIER"] == "kread-fake" and "secret" not in json.dumps(entry)
    job = c.generate("secret fail=io")["job"]
    c.finish(job)
    entry = journal.next("KREAD_JOB")
    assert entry["KREAD_OUTCOME"] == "failed" and entry["KREAD_CODE"] == "io" and entry["PRIORITY"] == "4"
    assert "secret" not in json.dumps(entry)
    journal.other.setblocking(False)
    with pytest.raises(BlockingIOError):  # nothing of it went the other way
        journal.other.recv(1)


def test_prompts_where_the_owner_wants_them(journal, daemon):
    c = daemon("log_prompts = yes")
    c.finish(c.generate("red\nfox, \"quick\" " + "x" * 100)["job"])
    entry = journal.next("KREAD_JOB")
    assert "fox" in entry["MESSAGE"] and "x" * 100 in entry["MESSAGE"]


def test_prompts_on_standard_error(tmp_path):
    with Daemon(tmp_path, "log_prompts = yes") as d:
        c = Client(d)
        c.finish(c.generate("a fox\nkread: forged")["job"])
        d.logs("a fox?kread: forged")
