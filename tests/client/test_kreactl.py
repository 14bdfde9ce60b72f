# SPDX-License-Identifier: Apache-2.0
"""kreactl against a daemon of our own making: exit status, files, signals, and what it prints."""
import contextlib
import fcntl
import json
import os
import pty
import random
import re
import resource
import signal
import socket
import stat
import struct
import subprocess
import termios
import time

import msgpack
import pytest

from fakedaemon import FakeDaemon, png

KREACTL = os.path.join(os.path.abspath(os.environ.get("KREAD_BUILD", "build")), "kreactl")


class Kreactl:
    """Runs kreactl in a folder of its own with a clean environment."""

    def __init__(self, folder):
        self.folder = str(folder)
        self.socket = os.path.join(self.folder, "s")
        self.work = os.path.join(self.folder, "work")
        os.mkdir(self.work)
        self.env = {"PATH": os.environ["PATH"], "HOME": self.folder, "KREAD_SOCKET": self.socket}
        for name in ("ASAN_OPTIONS", "UBSAN_OPTIONS", "LSAN_OPTIONS"):
            if name in os.environ:
                self.env[name] = os.environ[name]

    @contextlib.contextmanager
    def daemon(self, handler):
        fake = FakeDaemon(self.socket, handler)
        try:
            yield fake
        finally:
            fake.close()

    def start(self, *args, **kw):
        kw.setdefault("stdout", subprocess.PIPE)
        kw.setdefault("stderr", subprocess.PIPE)
        kw.setdefault("stdin", subprocess.DEVNULL)
        env = dict(self.env, **kw.pop("env", {}))
        return subprocess.Popen([KREACTL, *args], cwd=self.work, env=env, **kw)

    def run(self, *args, stdin=b"", **kw):
        p = self.start(*args, stdin=subprocess.PIPE, **kw)
        out, err = p.communicate(stdin, timeout=60)
        return p.returncode, out.decode(errors="surrogateescape"), err.decode(errors="surrogateescape")

    def files(self):
        return sorted(os.listdir(self.work))

    def read(self, name):
        with open(os.path.join(self.work, name), "rb") as f:
            return f.read()


@pytest.fixture
def ctl(tmp_path):
    return Kreactl(tmp_path)


def one_picture(c):
    c.accept()
    c.image()
    c.done()


def sentence(text):
    """One line of complaint, without control characters, from kreactl."""
    assert text.startswith("kreactl: ") and text.count("\n") == 1 and text.endswith("\n"), text
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", text), repr(text)
    return text


# ---------------------------------------------------------------------------- usage

@pytest.mark.parametrize("args, says", [
    ([], "no command was given"),
    (["nonsense"], 'unknown command "nonsense"'),
    (["--nonsense"], 'unknown option "--nonsense"'),
    (["-x"], 'unknown option "-x"'),
    (["--widt", "5"], 'unknown option "--widt"'),
    (["--width", "64", "generate", "x"], 'option "--width" belongs behind the command'),
    (["generate", "x", "--stepz", "4"], 'generate: unknown option "--stepz"'),
    (["generate", "x", "--shift_y1", "4"], 'generate: unknown option "--shift_y1"'),
    (["generate", "x", "--preview", "-1"], "preview is -1; it must be an integer from 0 to 1000 steps"),
    (["generate", "x", "--prompt", "y"], 'generate: unknown option "--prompt"'),
    (["status", "--width", "64"], 'status: unknown option "--width"'),
    (["status", "-o", "x"], 'status: unknown option "-o"'),
    (["status", "x"], 'status takes no argument, not "x"'),
    (["generate", "a", "b"], 'generate takes one argument, and "b" is another: put the text in quotes'),
    (["generate", "x", "--steps"], 'option "--steps" needs a value'),
    (["generate", "x", "--steps", "8x"], 'steps is "8x"; it must be an integer from 1 to 1000'),
    (["generate", "x", "--steps="], 'steps is ""; it must be an integer from 1 to 1000'),
    (["generate", "x", "--width", "9000"], "width is 9000; it must be an integer from 16 to 8192 pixels"),
    (["generate", "x", "--rng", "gpu"], 'rng is "gpu"; it must be cuda or cpu'),
    (["generate", "x", "--detach=maybe"], 'detach is "maybe"; it must be true or false'),
    (["generate", "x", "--json=1"], 'option "--json" takes no value'),
    (["generate", "x", "--socket="], "--socket needs a path"),
    (["generate", "x", "-o"], 'option "-o" needs a value'),
    (["cancel"], "cancel needs the number of a job; kreactl jobs lists them"),
    (["cancel", "0"], 'JOB is "0"; it must be a number from 1 on'),
    (["cancel", "-1"], 'cancel: unknown option "-1"'),
    (["cancel", "7x"], 'JOB is "7x"; it must be a number from 1 on'),
    (["cancel", "99999999999999999999"], "it must be a number from 1 on"),
    (["fetch", "7", "--index", "x"], 'index is "x"; it must be a number from 0 on'),
    (["help", "nonsense"], 'unknown command "nonsense"'),
    (["\x1b[2J\x07"], 'unknown command "\\x1b[2J\\x07"'),
])
def test_wrong_usage(ctl, args, says):
    status, out, err = ctl.run(*args)
    first, _, rest = err.partition("\n")
    assert (status, out) == (2, "")
    assert first.startswith("kreactl: ") and says in first
    assert re.fullmatch(r"Try: kreactl (--help|help \w+)\n", rest)


@pytest.mark.parametrize("args, says", [
    (["generate", "x", "--json", "-o", "-"], "--json and -o - both want standard output"),
    (["generate", "x", "--count", "2", "-o", "-"], "-o - takes one picture"),
    (["generate", "x", "--detach", "-o", "y"], "--detach writes no file"),
    (["generate", "x", "-o", "no/y.png"], 'there is no folder "no/"; make it first'),
    (["generate", "x", "-o", "/dev/null/y.png"], 'there is no folder "/dev/null/"'),
    (["generate", "x", "--preview", "2"], "--preview needs -o with a file's name"),
    (["generate", "x", "--preview", "2", "-o", "."], "--preview needs -o with a file's name"),
    (["generate", "x", "-o", "no/"], 'there is no folder "no/"'),
    (["generate", b"\xff"], "prompt is not valid UTF-8"),
])
def test_refused_before_the_daemon_is_asked(ctl, args, says):
    status, out, err = ctl.run(*args)  # there is no daemon to ask
    assert status == 2 and says in sentence(err)
    assert (ctl.files(), out.startswith("{")) == ([], "--json" in args)


def test_help_and_version(ctl):
    status, text, err = ctl.run("--help")
    assert (status, err) == (0, "")
    for word in ("generate", "status", "jobs", "watch", "cancel", "fetch", "tokens", "inspect",
                 "profile", "stop", "help", "--socket", "--json", "130"):
        assert word in text
    assert ctl.run("help") == (0, text, "")
    status, text, _ = ctl.run("help", "generate")
    assert ctl.run("generate", "--help") == (0, text, "")
    for name in ("negative", "width", "height", "steps", "cfg", "seed", "count", "mu", "shift-y1",
                 "shift-y2", "rng", "dialect", "detach", "output", "quiet"):
        assert "--%s" % name in text
    assert "16 to 8192 pixels" in text and "--prompt" not in text and "_" not in text.replace("KREAD_SOCKET", "").replace("XDG_RUNTIME_DIR", "")
    for topic in ("status", "watch", "cancel", "fetch", "tokens", "inspect", "profile", "stop", "help"):
        status, text, _ = ctl.run("help", topic)
        assert status == 0 and text.startswith("Usage: kreactl %s" % topic)
        assert all(len(line) < 80 for line in text.split("\n"))
    status, text, _ = ctl.run("--version")
    assert status == 0 and re.fullmatch(r"kreactl \d+\.\d+\.\d+ \(protocol version 1\)\n", text)


# --------------------------------------------------------------------- where the daemon is

def test_no_daemon(ctl):
    status, out, err = ctl.run("status")
    assert (status, out) == (3, "")
    assert "no daemon listens on %s" % ctl.socket in sentence(err)
    s = socket.socket(socket.AF_UNIX)
    s.bind(ctl.socket)  # a socket file that nobody listens on
    status, _, err = ctl.run("status")
    assert status == 3 and "no daemon listens" in sentence(err)
    s.close()
    status, out, err = ctl.run("--json", "status")
    assert status == 3 and json.loads(out)["error"]["code"] == "no_daemon"


def test_path_that_is_too_long(ctl):
    status, _, err = ctl.run("--socket", "/" + "x" * 200, "status")
    assert status == 2 and "the system allows 107" in sentence(err)


def test_not_a_socket(ctl):
    open(ctl.socket, "w").close()
    status, _, err = ctl.run("status")
    assert status == 3 and ctl.socket in sentence(err)


def status_answer(c):
    number, params = c.request("status")
    assert params == {}
    c.answer(number, {"name": "kread", "release": "9.9", "state": "ready", "pid": 1, "uptime": 200.0,
                      "running": None, "queued": 0, "queue_limit": 16,
                      "jobs": {"done": 1, "failed": 2, "cancelled": 3},
                      "engine": {"device": "cpu", "plan": {"weights_bytes": 13000000000}}})


def test_the_order_of_sockets(ctl):
    runtime, config = os.path.join(ctl.folder, "run"), os.path.join(ctl.folder, ".config/kread")
    os.mkdir(runtime)
    os.makedirs(config)
    with open(os.path.join(config, "kread.ini"), "w") as f:
        f.write("; a comment\nsocket = /wrong\n[generation]\nsocket = /wrong\n[kread] ; here\n"
                "#socket = /wrong\n; socket = /wrong\nqueue_limit = 4\n  socket =  in/c  ; ours\n")
    os.mkdir(os.path.join(config, "in"))
    places = {"option": ctl.socket + "o", "variable": ctl.socket,
              "config": os.path.join(config, "in/c"), "runtime": os.path.join(runtime, "kread.sock")}
    asked = []
    fakes = [FakeDaemon(path, lambda c, n=n: (asked.append(n), status_answer(c)))
             for n, path in places.items()]
    env = {"XDG_RUNTIME_DIR": runtime}
    try:
        assert ctl.run("--socket", places["option"], "status", env=env)[0] == 0
        assert ctl.run("status", env=env)[0] == 0
        env["KREAD_SOCKET"] = ""
        assert ctl.run("status", env=env)[0] == 0
        os.unlink(os.path.join(config, "kread.ini"))
        assert ctl.run("status", env=env)[0] == 0
        xdg = os.path.join(ctl.folder, "xdg")
        os.makedirs(os.path.join(xdg, "kread"))
        with open(os.path.join(xdg, "kread/kread.ini"), "w", encoding="utf-8-sig") as f:
            f.write("[ kread ]\nsocket: %s" % places["config"])
        assert ctl.run("status", env=dict(env, XDG_CONFIG_HOME=xdg))[0] == 0
    finally:
        for fake in fakes:
            fake.close()
    assert asked == ["option", "variable", "config", "runtime", "config"]
    _, _, err = ctl.run("status", env=env)
    if not os.path.exists("/run/kread/kread.sock") and not os.path.exists("/etc/kread/kread.ini"):
        assert "/run/kread/kread.sock" in err


# ------------------------------------------------------------------------------ generate

def test_a_picture(ctl):
    seen = []

    def handler(c):
        seen.append(c.accept())
        c.notify("progress", job=7, state="queued", position=1)
        c.notify("progress", job=7, state="running", stage="denoise", step=1, steps=8, remaining=2.0)
        c.notify("something_new", job=7)  # a later version's
        c.notify("done", job=8)           # another's
        c.image(data=png(5000))
        c.done()

    with ctl.daemon(handler):
        assert ctl.run("generate", "a red circle") == (0, "kread-42.png\n", "")
    assert seen == [{"prompt": "a red circle"}]
    assert ctl.files() == ["kread-42.png"] and ctl.read("kread-42.png") == png(5000)


def test_every_option_reaches_the_daemon(ctl):
    seen = []

    def handler(c):
        seen.append(c.accept())
        c.image(0, 9)
        c.image(1, 10)
        c.done()

    with ctl.daemon(handler):
        status, out, err = ctl.run(
            "generate", "--negative=blur", "--width", "512", "--height", "256", "--steps", "8", "--cfg",
            "3.5", "--seed", "9", "--count", "2", "--mu", "-1.5", "--shift-y1", "0.5", "--shift-y2",
            "1.15", "--rng", "cpu", "--dialect", "comfyui", "-oz.png", "--quiet", "--", "--dash")
    assert (status, out, err) == (0, "z-0.png\nz-1.png\n", "")
    assert seen == [{"prompt": "--dash", "negative": "blur", "width": 512, "height": 256, "steps": 8,
                     "cfg": 3.5, "seed": 9, "count": 2, "mu": -1.5, "shift_y1": 0.5, "shift_y2": 1.15,
                     "rng": "cpu", "dialect": "comfyui"}]


@pytest.mark.parametrize("args", [["generate"], ["generate", "-"]])
def test_prompt_from_standard_input(ctl, args):
    seen = []

    def handler(c):
        seen.append(c.accept()["prompt"])
        c.image()
        c.done()

    with ctl.daemon(handler):
        assert ctl.run(*args, stdin="zwei\nZeilen €\n".encode())[0] == 0
        assert ctl.run(*args, stdin=b"x" * 65536)[0] == 0
        assert ctl.run(*args, stdin=b"x" * 65536 + b"\n")[0] == 0
        for bad, says in ((b"x" * 65537, "65537 bytes"), (b"x" * 70000, "more than 65536 bytes"),
                          (b"a\xff", "UTF-8"), (b"a\0b", "NUL")):
            status, _, err = ctl.run(*args, stdin=bad)
            assert status == 2 and says in sentence(err)
    assert seen == ["zwei\nZeilen €", "x" * 65536, "x" * 65536]


def test_no_prompt_on_a_terminal(ctl):
    leader, follower = pty.openpty()
    p = ctl.start("generate", stdin=follower)
    _, err = p.communicate(timeout=20)
    assert p.returncode == 2 and b"no prompt" in err
    os.close(leader)
    os.close(follower)


@pytest.mark.parametrize("output, count, names", [
    (None, 1, ["kread-42.png"]),
    (None, 3, ["kread-42.png", "kread-43.png", "kread-44.png"]),
    ("a.png", 1, ["a.png"]),
    ("a.png", 2, ["a-0.png", "a-1.png"]),
    ("a.b.png", 2, ["a.b-0.png", "a.b-1.png"]),
    ("a", 2, ["a-0", "a-1"]),
    (".a", 2, [".a-0", ".a-1"]),
    ("a-%d.png", 2, ["a-0.png", "a-1.png"]),
    ("a-%d.png", 1, ["a-0.png"]),
    ("%d%d%s%n%5d%%.png", 2, ["00%s%n%5d%%.png", "11%s%n%5d%%.png"]),
    ("x", 12, ["x-%d" % i for i in range(12)]),
    ("./b.png", 1, ["b.png"]),
    (".", 2, ["kread-42.png", "kread-43.png"]),
])
def test_names(ctl, output, count, names):
    def handler(c):
        c.accept()
        for i in reversed(range(count)):  # in any order
            c.image(i, 42 + i, data=png(100 + i))
        c.done()

    args = (["-o", output] if output else []) + (["--count", str(count)] if count > 1 else [])
    with ctl.daemon(handler):
        status, out, err = ctl.run("generate", "x", *args)
    assert (status, err) == (0, "")
    assert ctl.files() == sorted(names)
    assert sorted(os.path.normpath(n) for n in out.splitlines()) == sorted(names)
    for i, name in enumerate(names):
        assert ctl.read(name) == png(100 + i)


def test_own_names_never_overwrite_and_given_names_do(ctl):
    with ctl.daemon(one_picture):
        outs = [ctl.run("generate", "x")[1] for _ in range(3)]
        assert outs == ["kread-42.png\n", "kread-42-1.png\n", "kread-42-2.png\n"]
        with open(os.path.join(ctl.work, "old.png"), "w") as f:
            f.write("old")
        assert ctl.run("generate", "x", "-o", "old.png")[0] == 0
    assert ctl.read("old.png") == png()
    assert ctl.files() == ["kread-42-1.png", "kread-42-2.png", "kread-42.png", "old.png"]


@pytest.mark.parametrize("mask, mode", [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_mode_is_the_umasks(ctl, mask, mode):
    with ctl.daemon(one_picture):
        assert ctl.run("generate", "x", "-o", "a.png", preexec_fn=lambda: os.umask(mask))[0] == 0
    assert stat.S_IMODE(os.stat(os.path.join(ctl.work, "a.png")).st_mode) == mode


def test_picture_on_standard_output(ctl):
    big = png(1 << 20)

    def handler(c):
        c.accept()
        c.image(data=big)
        c.done()

    with ctl.daemon(handler):
        p = ctl.start("generate", "x", "-o", "-")
        out, err = p.communicate(timeout=60)
    assert (p.returncode, err) == (0, b"") and out == big
    assert ctl.files() == []


def test_reader_that_leaves(ctl):
    def handler(c):
        c.accept()
        c.image(data=png(1 << 20))
        assert c.receive() is None

    with ctl.daemon(handler):
        p = ctl.start("generate", "x", "-o", "-")
        p.stdout.read(100)
        p.stdout.close()
        assert p.wait(20) == 1
        assert "whoever read standard output has closed it" in sentence(p.stderr.read().decode())


def test_to_a_device_and_a_pipe(ctl):
    fifo = os.path.join(ctl.work, "fifo")
    os.mkfifo(fifo)
    with ctl.daemon(one_picture):
        assert ctl.run("generate", "x", "-o", "/dev/null") == (0, "/dev/null\n", "")
        p = ctl.start("generate", "x", "-o", "fifo")
        with open(fifo, "rb") as f:
            assert f.read() == png()
        assert p.wait(20) == 0
    assert ctl.files() == ["fifo"] and stat.S_ISCHR(os.stat("/dev/null").st_mode)
    with ctl.daemon(lambda c: (c.accept(), c.image(), c.receive())):
        status, out, err = ctl.run("generate", "x", "-o", "/dev/full")
        assert status == 1 and "/dev/full: No space left" in sentence(err)


def limit_file_size():
    resource.setrlimit(resource.RLIMIT_FSIZE, (10000, 10000))


def test_disk_full(ctl):
    def handler(c):
        c.accept()
        c.image(0, data=png(5000))
        c.image(1, data=png(50000))
        assert c.receive() is None  # leaving cancels what is left

    with ctl.daemon(handler):
        status, out, err = ctl.run("generate", "x", "--count", "3", "-o", "a.png",
                                   preexec_fn=limit_file_size)
    assert (status, out) == (1, "a-0.png\n")
    assert "cannot write a.png: File too large" in sentence(err)
    assert ctl.files() == ["a-0.png"]


def test_disk_full_for_real(ctl):
    mount = os.path.join(ctl.folder, "small")
    os.mkdir(mount)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", mount],
                      stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode:
        pytest.skip("may not mount a small file system")
    try:
        def handler(c):
            c.accept()
            c.image(data=png(200000))
            assert c.receive() is None

        with ctl.daemon(handler):
            status, out, err = ctl.run("generate", "x", "-o", mount + "/a.png")
        assert (status, out) == (1, "") and "No space left on device" in sentence(err)
        assert os.listdir(mount) == []
    finally:
        subprocess.run(["umount", mount], check=True)


def test_folder_that_takes_no_file(ctl):
    folder = os.path.join(ctl.work, "dir")
    os.mkdir(folder, 0o555)
    with ctl.daemon(lambda c: c.receive()):
        if os.geteuid() == 0:
            status, _, err = ctl.run("generate", "x", "-o", "/proc/a.png")
        else:
            status, _, err = ctl.run("generate", "x", "-o", "dir/a.png")
    assert status == 1 and "cannot write into the folder" in sentence(err)


def test_standard_output_that_is_full_or_closed(ctl):
    with ctl.daemon(one_picture):
        with open("/dev/full", "wb") as full:
            p = ctl.start("generate", "x", stdout=full)
            err = p.communicate(timeout=20)[1].decode()
        assert p.returncode == 1 and "cannot write to standard output" in sentence(err)
    assert ctl.files() == ["kread-42.png"]  # the picture itself is safe


def test_closed_descriptors(ctl):
    with ctl.daemon(one_picture):
        for fds, status in (((1,), 1), ((0,), 0), ((2,), 0), ((0, 1, 2), 1)):
            p = ctl.start("generate", "x", "-o", "a.png", stdin=None, stdout=None, stderr=None,
                          preexec_fn=lambda: [os.close(fd) for fd in fds])
            assert p.wait(20) == status
            assert ctl.files() == ["a.png"] and ctl.read("a.png") == png()
            os.unlink(os.path.join(ctl.work, "a.png"))


def test_warning(ctl):
    def handler(c):
        c.accept(warning="width 500 was rounded up to 512\x1b[31m")
        c.image()
        c.done()

    with ctl.daemon(handler):
        status, out, err = ctl.run("generate", "x", "--width", "500")
        assert (status, out) == (0, "kread-42.png\n")
        assert sentence(err) == "kreactl: width 500 was rounded up to 512\\x1b[31m\n"
        assert ctl.run("generate", "x", "--quiet") == (0, "kread-42-1.png\n", "")


def test_json(ctl):
    def handler(c):
        c.accept(warning='a "warning"')
        c.notify("progress", job=7, state="running", stage="denoise", step=1, steps=8, remaining=None,
                 elapsed=0.1)
        c.image()
        c.done()

    with ctl.daemon(handler):
        status, out, err = ctl.run("--json", "generate", "x", "-o", 'a"€.png')
    lines = [json.loads(line) for line in out.splitlines()]
    assert status == 0 and [l["event"] for l in lines] == ["accepted", "progress", "image", "done"]
    assert lines[0]["job"] == 7 and lines[0]["warning"] == 'a "warning"'
    assert lines[1] == {"event": "progress", "job": 7, "state": "running", "stage": "denoise",
                        "step": 1, "steps": 8, "remaining": None, "elapsed": 0.1}
    assert lines[2] == {"event": "image", "job": 7, "index": 0, "seed": 42, "width": 64, "height": 64,
                        "bytes": 300, "path": 'a"€.png'}
    assert lines[3]["times"] == {"total": 1.5}


def test_usage_errors_before_json(ctl):
    for args in (["generate", "x", "--stepz", "--json"], ["--json", "nonsense"], ["nonsense", "--json"]):
        status, out, _ = ctl.run(*args)
        assert status == 2 and json.loads(out)["error"]["code"] == "bad_request"
    assert ctl.run("generate", "x", "--stepz", "--", "--json")[1] == ""


def test_previews(ctl):
    def shows(data):
        end = time.time() + 20
        while (ctl.read("a.preview.png") if "a.preview.png" in ctl.files() else None) != data:
            assert time.time() < end
            time.sleep(0.01)

    def handler(c):
        assert c.accept()["preview"] == 2
        for step in range(1, 5):
            more = {"preview": png(100 + step)} if step % 2 == 0 else {}
            c.notify("progress", job=7, state="running", stage="denoise", step=step, steps=5, **more)
            if more:
                shows(more["preview"])
        c.image()
        c.done()

    with ctl.daemon(handler):
        status, out, _ = ctl.run("generate", "x", "--preview", "2", "-o", "a.png")
        assert (status, out) == (0, "a.png\n") and ctl.files() == ["a.png"]
        _, out, _ = ctl.run("generate", "x", "--preview", "2", "-o", "a.png", "--json")
        events = [json.loads(line) for line in out.splitlines()]
        assert [e["path"] for e in events if e["event"] == "preview"] == ["a.preview.png"] * 2


def test_a_foreign_preview_file_stays(ctl):
    with open(os.path.join(ctl.work, "a.preview.png"), "w") as f:
        f.write("mine")
    with ctl.daemon(one_picture):
        assert ctl.run("generate", "x", "--preview", "2", "-o", "a.png")[0] == 0
    assert ctl.files() == ["a.png", "a.preview.png"]


def test_detach(ctl):
    seen = []

    def handler(c):
        seen.append(c.accept(job=12))

    with ctl.daemon(handler):
        assert ctl.run("generate", "x", "--detach") == (0, "12\n", "")
        status, out, _ = ctl.run("generate", "x", "--detach", "--json")
        assert status == 0 and json.loads(out)["job"] == 12
    assert seen[0] == {"prompt": "x", "detach": True} and ctl.files() == []


# ---------------------------------------------------------------- refusals and failures

@pytest.mark.parametrize("code, status", [
    ("bad_request", 2), ("bad_method", 2), ("bad_version", 2), ("no_job", 2), ("forbidden", 2),
    ("no_memory", 2), ("busy", 4), ("shutdown", 3), ("device", 1), ("io", 1), ("of_the_future", 1)])
def test_refused(ctl, code, status):
    def handler(c):
        c.refuse(c.request()[0], code, "no:\x1b[2J\x07 try later")

    with ctl.daemon(handler):
        assert ctl.run("generate", "x") == (status, "", "kreactl: no:?[2J? try later\n")
        got, out, _ = ctl.run("generate", "x", "--json")
        event = json.loads(out)
        assert got == status and event["event"] == "error"
        assert event["error"]["message"] == "no:?[2J? try later"
        assert ctl.run("status")[0] == status
    assert ctl.files() == []


def test_wrong_version_at_hello(ctl):
    def handler(c):
        number, params = c.request("hello")
        assert params["version"] == 1
        c.refuse(number, "bad_version", "this side speaks version 2")

    with ctl.daemon(handler):
        assert ctl.run("status") == (2, "", "kreactl: this side speaks version 2\n")


@pytest.mark.parametrize("code", ["no_memory", "not_finite", "device", "shutdown", "io"])
def test_failed_job(ctl, code):
    def handler(c):
        c.accept()
        c.notify("failed", job=7, error={"code": code, "message": "NaN in step 3"})

    with ctl.daemon(handler):
        assert ctl.run("generate", "x") == (1, "", "kreactl: NaN in step 3\n")
        status, out, _ = ctl.run("generate", "x", "--json")
        lines = [json.loads(line) for line in out.splitlines()]
        assert status == 1 and [l["event"] for l in lines] == ["accepted", "failed", "error"]
    assert ctl.files() == []


def test_cancelled_by_another(ctl):
    def handler(c):
        c.accept()
        c.notify("cancelled", job=7)

    with ctl.daemon(handler):
        assert ctl.run("generate", "x") == (130, "", "kreactl: cancelled\n")


# ------------------------------------------------------------------------------ signals

@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_cancels(ctl, number):
    seen = []

    def handler(c):
        c.accept()
        c.image(0, 42)
        c.sock.sendall(b"\x93")  # a notification has begun ...
        seen.append(c.request("cancel"))
        c.sock.sendall(b"\x02\xa9cancelled\x91\x81\xa3job\x07")  # ... and this it becomes
        assert c.receive() is None

    with ctl.daemon(handler):
        p = ctl.start("generate", "x", "--count", "2", "-o", "a.png")
        assert p.stdout.readline() == b"a-0.png\n"
        start = time.time()
        p.send_signal(number)
        assert p.wait(20) == 130 and time.time() - start < 2.9
        assert p.stderr.read() == b"kreactl: cancelled\n"
    assert len(seen) == 1 and seen[0][1] == {"job": 7}
    assert ctl.files() == ["a-0.png"]


def test_late_pictures_of_a_cancelled_job_are_not_written(ctl):
    def handler(c):
        c.accept()
        c.notify("progress", job=7, state="running")
        number, _ = c.request("cancel")
        c.answer(number, {"job": 7, "state": "running"})
        c.image()
        c.done()

    with ctl.daemon(handler):
        p = ctl.start("generate", "x", "--json")
        p.stdout.readline()
        p.stdout.readline()
        p.send_signal(signal.SIGINT)
        assert p.wait(20) == 130
    assert ctl.files() == []


def test_signal_with_a_daemon_that_does_not_answer(ctl):
    def handler(c):
        c.accept()
        c.notify("progress", job=7, state="running")
        c.request("cancel")
        assert c.receive() is None

    with ctl.daemon(handler):
        p = ctl.start("generate", "x", "--json")
        p.stdout.readline()
        p.stdout.readline()
        start = time.time()
        p.send_signal(signal.SIGINT)
        assert p.wait(20) == 130 and 2.5 < time.time() - start < 15
        p = ctl.start("generate", "x", "--json")
        p.stdout.readline()
        p.stdout.readline()
        start = time.time()
        p.send_signal(signal.SIGINT)
        time.sleep(0.3)
        p.send_signal(signal.SIGINT)  # a second one does not wait
        assert p.wait(20) == 130 and time.time() - start < 2.9
    assert ctl.files() == []


def test_signal_before_the_job_is_accepted(ctl):
    def handler(c):
        c.request("generate")
        assert c.receive() is None

    with ctl.daemon(handler):
        p = ctl.start("generate", "x")
        time.sleep(0.5)
        p.send_signal(signal.SIGINT)
        assert p.wait(20) == 130
    assert ctl.files() == []


def test_signal_while_reading_or_writing(ctl):
    p = ctl.start("generate", "-", stdin=subprocess.PIPE)
    time.sleep(0.3)
    p.send_signal(signal.SIGINT)
    assert p.wait(20) == 130

    def handler(c):
        c.accept()
        c.image(data=png(1 << 20))
        c.request("cancel")
        c.notify("cancelled", job=7)

    with ctl.daemon(handler):
        p = ctl.start("generate", "x", "-o", "-")  # nobody reads the pipe
        time.sleep(0.7)
        p.send_signal(signal.SIGINT)
        assert p.wait(20) == 130


def test_signal_while_nobody_reads_the_fifo(ctl):
    os.mkfifo(os.path.join(ctl.work, "fifo"))
    p = ctl.start("generate", "x", "-o", "fifo")
    time.sleep(0.3)
    p.send_signal(signal.SIGINT)
    assert p.wait(20) == 130


def test_ignored_interrupt_stays_ignored(ctl):
    def handler(c):
        c.accept()
        c.notify("progress", job=7, state="running")
        time.sleep(0.5)
        c.image()
        c.done()

    def ignore():
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    with ctl.daemon(handler):
        p = ctl.start("generate", "x", "--json", preexec_fn=ignore)
        p.stdout.readline()
        p.stdout.readline()
        p.send_signal(signal.SIGINT)
        assert p.wait(20) == 0


# ------------------------------------------------------------ a daemon that misbehaves

def raw(data, after=b""):
    def handler(c):
        c.request("hello") if after else None
        c.sock.sendall(data)
        c.sock.shutdown(socket.SHUT_WR)
        while c.sock.recv(65536):
            pass
    return handler


@pytest.mark.parametrize("data, says", [
    (b"", "kread closed the connection"),
    (b"\x94\x01", "in the middle of a message"),
    (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak kread's protocol"),
    (b"\xc1", "does not speak kread's protocol"),
    (b"\xdd\xff\xff\xff\xff", "does not speak kread's protocol"),
    (b"\x91" * 100, "nests deeper than 8"),
    (b"\xc6\xff\xff\xff\xff", "longer than the 268435456 bytes"),
    (b"\x94\x00\x01\xa5hello\x90", "it sent a request"),
    (b"\x94\x01\x01\xa3err\xc0", "its error is not a map"),
    (b"\x00" * 1000, "does not speak"),
    (os.urandom(0) + bytes(range(256)) * 20, "does not speak"),
    (b"\x94\x01\x00\x82\xa4code\xa9bad_frame\xa7message\xa4what\xc0", "kreactl: what"),
])
def test_garbage_instead_of_an_answer(ctl, data, says):
    with ctl.daemon(raw(data)):
        status, out, err = ctl.run("generate", "x")
    assert (status, out) == (3, "") and says in sentence(err)
    assert ctl.files() == []


@pytest.mark.parametrize("result", [None, {}, [], {"job": 0}, {"job": "7"}, {"job": 7, "count": 65}, 5])
def test_acceptance_without_sense(ctl, result):
    with ctl.daemon(lambda c: c.answer(c.request("generate")[0], result)):
        status, out, err = ctl.run("generate", "x")
    assert status == 3 and "without telling its number" in sentence(err)


@pytest.mark.parametrize("image, says", [
    (dict(index=1), "not asked for"), (dict(index=-1), "not asked for"), (dict(index=None), "not asked for"),
    (dict(png="text"), "no PNG"), (dict(png=b""), "no PNG"), (dict(png=b"GIF89a..."), "no PNG"),
])
def test_pictures_without_sense(ctl, image, says):
    def handler(c):
        c.accept()
        c.notify("image", **dict(dict(job=7, index=0, seed=1, png=png()), **image))
        c.receive()

    with ctl.daemon(handler):
        status, out, err = ctl.run("generate", "x")
    assert (status, out) == (3, "") and says in sentence(err)
    assert ctl.files() == []


def test_the_same_picture_twice_and_none(ctl):
    def twice(c):
        c.accept()
        c.image()
        c.image()
        c.receive()

    def none(c):
        c.accept()
        c.done()

    with ctl.daemon(twice):
        status, out, err = ctl.run("generate", "x", "-o", "a.png")
        assert status == 3 and "not asked for" in sentence(err)
    with ctl.daemon(none):
        status, out, err = ctl.run("generate", "x", "-o", "b.png")
        assert status == 3 and "without sending all 1 pictures" in sentence(err)
    assert ctl.files() == ["a.png"]


@pytest.mark.parametrize("stage", range(4))
def test_daemon_vanishes(ctl, stage):
    def handler(c):
        if stage == 0:
            return
        if stage == 1:
            c.request("generate")
            return
        c.accept()
        if stage == 3:
            packed = b"\x93\x02\xa5image\x91\x82\xa3job\x07\xa3png\xc6\x00\x10\x00\x00"
            c.sock.sendall(packed + png(10000))

    with ctl.daemon(handler):
        status, out, err = ctl.run("generate", "x")
    assert (status, out) == (3, "") and "kread closed the connection" in sentence(err)
    assert ctl.files() == []


MUTATIONS = int(os.environ.get("KREACTL_MUTATIONS", "60"))


@pytest.mark.parametrize("command", ["generate", "status", "jobs", "watch", "fetch", "tokens", "profile"])
def test_damaged_conversations(ctl, command):
    """Everything that a daemon would say, with a few bytes changed, cut or repeated."""
    answers = {"generate": {"job": 7, "count": 2, "warning": "w"}, "jobs": {"jobs": JOBS},
               "watch": {"job": 7, "state": "running", "position": 0},
               "fetch": {"job": 7, "count": 1, "index": 0, "seed": 1, "png": png(50)},
               "tokens": {"ids": [1, 2], "count": 2, "limit": 5, "cut": 0},
               "status": {"name": "kread", "jobs": {"done": 1}, "engine": {"memory": {"free": 5}}},
               "profile": {"a": {"b": [1, {"c": 1.5}]}, "uptime": 5.0, "x_at": 1.7e9}}
    stream = b"".join(msgpack.packb(m) for m in (
        [1, 1, None, {"version": 1}], [1, 2, None, answers[command]],
        [2, "progress", [{"job": 7, "state": "running", "stage": "denoise", "step": 1, "steps": 8}]],
        [2, "image", [{"job": 7, "index": 0, "seed": 1, "png": png(60)}]],
        [2, "image", [{"job": 7, "index": 1, "seed": 2, "png": png(60)}]],
        [2, "done", [{"job": 7, "seed": 1, "times": {"total": 1.0}}]]))
    args = {"generate": ["generate", "x", "--count", "2"], "watch": ["watch", "7"],
            "fetch": ["fetch", "7"], "tokens": ["tokens", "x"]}.get(command, [command])
    rng, sent = random.Random(command), []

    def handler(c):
        damaged = bytearray(stream)
        for _ in range(rng.randrange(4)):
            at = rng.randrange(len(damaged))
            kind = rng.randrange(4)
            if kind == 0:
                damaged[at] = rng.randrange(256)
            elif kind == 1:
                del damaged[at:at + rng.randrange(1, 20)]
            elif kind == 2:
                damaged[at:at] = damaged[at:at + rng.randrange(1, 20)]
            else:
                damaged[at] ^= 1 << rng.randrange(8)
        sent.append(bytes(damaged))
        c.sock.sendall(damaged)
        c.sock.shutdown(socket.SHUT_WR)
        while c.sock.recv(65536):
            pass

    statuses = set()
    with ctl.daemon(handler):
        for i in range(MUTATIONS):
            status, out, err = ctl.run(*args, *(["--json"] if i % 2 else []))
            statuses.add(status)
            assert status in (0, 1, 2, 3, 4, 130), (status, err, sent[-1])
            assert status == 0 or err.startswith("kreactl: ") or command == "watch", (err, sent[-1])
            for line in out.splitlines() if i % 2 else []:
                json.loads(line)
    assert {0, 3} <= statuses and not [n for n in ctl.files() if not n.endswith(".png")]


def test_a_large_picture_in_small_pieces(ctl):
    big = png(100) + os.urandom(3 << 20)

    def handler(c):
        c.accept()
        data = msgpack.packb([2, "image", [{"job": 7, "index": 0, "seed": 42, "png": big}]])
        for i in range(0, len(data), 4099):
            c.sock.sendall(data[i:i + 4099])
        c.done()

    with ctl.daemon(handler):
        assert ctl.run("generate", "x", "-o", "a.png")[0] == 0
    assert ctl.read("a.png") == big


# ------------------------------------------------------------------------- on a terminal

def on_terminal(ctl, *args, columns=80, term="xterm"):
    """Runs with standard error on a terminal: (status, standard output, what the terminal got)."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    p = ctl.start(*args, stderr=follower, env={"TERM": term})
    os.close(follower)
    shown = b""
    while True:
        try:
            data = os.read(leader, 65536)
        except OSError:
            break
        if not data:
            break
        shown += data
    os.close(leader)
    out = p.stdout.read().decode()
    return p.wait(20), out, shown.decode()


def slow_job(c):
    c.accept()
    c.notify("progress", job=7, state="queued", position=2)
    c.notify("progress", job=7, state="queued", position=1)
    c.notify("progress", job=7, state="running", stage="encode", step=0, steps=1, remaining=None)
    c.notify("progress", job=7, state="running", stage="denoise", step=4, steps=8, remaining=75.0,
             image=0, count=2)
    time.sleep(1.3)  # the time left runs on
    c.notify("progress", job=7, state="running", stage="de\x1b[31mcode", step=1, steps=1, remaining=0.0)
    c.image()
    c.done()


def test_progress_on_a_terminal(ctl):
    with ctl.daemon(slow_job):
        status, out, shown = on_terminal(ctl, "generate", "x")
    assert (status, out) == (0, "kread-42.png\n")
    assert "waiting: 2 jobs before this one" in shown and "waiting: 1 job before this one" in shown
    assert "[------------------------] encode" in shown
    assert "[############------------] picture 1 of 2, denoise 4/8, 1 min 15 s left" in shown
    assert "1 min 14 s left" in shown
    assert "de\\x1b[31mcode" in shown and "\x1b" not in shown and "\n" not in shown
    lines = shown.split("\r")
    assert all(len(line) < 80 for line in lines) and lines[-1] == "" and lines[-2].strip() == ""


def test_progress_fits_a_narrow_terminal(ctl):
    with ctl.daemon(slow_job):
        _, _, shown = on_terminal(ctl, "generate", "x", columns=30)
    assert all(len(line) < 30 for line in shown.split("\r"))
    assert "..." in shown


def test_quiet_on_a_terminal(ctl):
    with ctl.daemon(slow_job):
        assert on_terminal(ctl, "generate", "x", "--quiet") == (0, "kread-42.png\n", "")


# ------------------------------------------------------------------- the other commands

def test_status(ctl):
    with ctl.daemon(status_answer):
        status, out, err = ctl.run("status")
        assert (status, err) == (0, "")
        for part in ("kread 9.9, ready, process 1, up 3 min 20 s", "no job is running, 0 of at most 16",
                     "1 done, 2 failed, 3 cancelled", "device  cpu", "weights_bytes  13.0 GB"):
            assert part in out
        status, out, _ = ctl.run("status", "--json")
        assert status == 0 and json.loads(out)["engine"] == {"device": "cpu",
                                                             "plan": {"weights_bytes": 13000000000}}
        assert out.count("\n") == 1


JOBS = [
    {"job": 1, "state": "done", "seed": 2 ** 63 - 1, "width": 1024, "height": 768, "steps": 8,
     "prompt": "a cat"},
    {"job": 2, "state": "failed", "seed": 1, "width": 64, "height": 64, "steps": 8, "prompt": "x",
     "error": {"code": "no_memory", "message": "needs 3 GiB"}},
    {"job": 3, "state": "running", "seed": 1, "width": 64, "height": 64, "steps": 8,
     "prompt": "evil \x1b]0;title\x07\nline \u202e" + "long " * 20,
     "progress": {"stage": "denoise", "step": 3, "steps": 8}},
    {"job": 4, "state": "queued", "position": 1, "seed": 1, "width": 64, "height": 64, "steps": 8,
     "prompt": "€uro"},
]


def test_jobs(ctl):
    with ctl.daemon(lambda c: c.answer(c.request("jobs")[0], {"jobs": JOBS})):
        status, out, err = ctl.run("jobs")
        lines = out.splitlines()
        assert (status, err, len(lines)) == (0, "", 5)
        assert lines[0].split() == ["JOB", "STATE", "PROGRESS", "SIZE", "STEPS", "SEED", "PROMPT"]
        assert lines[1].split() == ["1", "done", "-", "1024x768", "8", "9223372036854775807", "a", "cat"]
        assert lines[2].endswith("needs 3 GiB")
        assert "denoise 3/8" in lines[3] and "\\x1b]0;title\\x07\\x0aline" in lines[3]
        assert lines[3].endswith("...") and "\x1b" not in out and "\u202e" not in out
        assert "1 before" in lines[4] and lines[4].endswith("€uro")
        status, out, _ = ctl.run("--json", "jobs")
        assert [json.loads(line) for line in out.splitlines()] == JOBS
    with ctl.daemon(lambda c: c.answer(c.request("jobs")[0], {"jobs": []})):
        assert ctl.run("jobs") == (0, "no jobs\n", "")
        assert ctl.run("jobs", "--json") == (0, "", "")


@pytest.mark.parametrize("state, says", [("cancelled", "cancelled"), ("running", "is being cancelled"),
                                         ("done", "done")])
def test_cancel(ctl, state, says):
    def handler(c):
        number, params = c.request("cancel")
        assert params == {"job": 5}
        c.answer(number, {"job": 5, "state": state})

    with ctl.daemon(handler):
        assert ctl.run("cancel", "5") == (0, "job 5: %s\n" % says, "")
        assert ctl.run("cancel", "5", "--json") == (0, '{"job": 5, "state": "%s"}\n' % state, "")
    with ctl.daemon(lambda c: c.refuse(c.request("cancel")[0], "no_job", "there is no job 5")):
        assert ctl.run("cancel", "5") == (2, "", "kreactl: there is no job 5\n")


def kept(count):
    def handler(c):
        while True:
            message = c.receive()
            if message is None:
                return
            _, number, method, [params] = message
            if method == "hello":
                c.answer(number, {"version": 1})
                continue
            assert method == "fetch" and params["job"] == 5
            index = params["index"]
            if index >= count:
                c.refuse(number, "bad_request", "job 5 has no picture %d" % index)
                continue
            c.answer(number, {"job": 5, "state": "done", "count": count, "index": index,
                              "seed": 42 + index, "width": 64, "height": 64, "png": png(100 + index)})
    return handler


def test_fetch(ctl):
    with ctl.daemon(kept(1)):
        assert ctl.run("fetch", "5") == (0, "kread-42.png\n", "")
        assert ctl.run("fetch", "5", "-o", "a.png") == (0, "a.png\n", "")
        p = ctl.start("fetch", "5", "-o", "-")
        assert p.communicate(timeout=20) == (png(100), b"") and p.returncode == 0
        status, out, err = ctl.run("fetch", "5", "--index", "3")
        assert (status, out, err) == (2, "", "kreactl: job 5 has no picture 3\n")
    assert ctl.files() == ["a.png", "kread-42.png"]


def test_fetch_several(ctl):
    with ctl.daemon(kept(3)):
        assert ctl.run("fetch", "5", "-o", "a.png") == (0, "a-0.png\na-1.png\na-2.png\n", "")
        assert ctl.run("fetch", "5", "-o", "b.png", "--index", "2") == (0, "b.png\n", "")
        status, out, err = ctl.run("fetch", "5", "-o", "-")
        assert (status, out) == (2, "") and "one picture" in sentence(err)
        status, out, _ = ctl.run("fetch", "5", "--json")
        assert [json.loads(l)["path"] for l in out.splitlines()] == ["kread-%d.png" % s for s in (42, 43, 44)]
    assert ctl.read("b.png") == png(102)


def test_tokens(ctl):
    for bad, says in ((b"\xff", "text is not valid UTF-8"), (b"x" * 70000, "more than 65536 bytes")):
        status, _, err = ctl.run("tokens", stdin=bad)
        assert status == 2 and says in sentence(err)
    seen = []

    def handler(c):
        number, params = c.request("tokens")
        seen.append(params)
        cut = 3 if len(params["text"]) > 10 else 0
        c.answer(number, {"ids": [64, 2518, 12767], "count": 3, "limit": 507, "cut": cut})

    with ctl.daemon(handler):
        assert ctl.run("tokens", "a red") == (0, "64 2518 12767\n3 tokens, at most 507 fit, nothing is cut\n", "")
        assert ctl.run("tokens", stdin=b"a red circle\n") == (
            0, "64 2518 12767\n3 tokens, at most 507 fit, the last 3 would be cut\n", "")
        assert ctl.run("--json", "tokens", "-", stdin="€".encode()) == (
            0, '{"ids": [64, 2518, 12767], "count": 3, "limit": 507, "cut": 0}\n', "")
    assert seen == [{"text": "a red"}, {"text": "a red circle"}, {"text": "€"}]


@pytest.mark.parametrize("method", ["inspect", "profile"])
def test_reports(ctl, method):
    report = {"profile": "demo", "files": [{"file": "dit\x1b.safetensors", "bytes": 4000},
                                           {"file": "vae", "bytes": 5 << 20}],
              "list": [1, 2.5, "x"], "empty": [], "none": None, "yes": True,
              "deep": {"deeper": {"deepest": [[1, 2], [3]]}}}
    with ctl.daemon(lambda c: c.answer(c.request(method)[0], report)):
        status, out, _ = ctl.run(method)
        assert status == 0 and "\x1b" not in out
        for part in ("profile  demo", "dit\\x1b.safetensors", "4.0 kB", "5.2 MB", "1 2.5 x", "yes"):
            assert part in out
        status, out, _ = ctl.run(method, "--json")
        assert status == 0 and json.loads(out) == report


def test_odd_values_become_valid_json(ctl):
    def handler(c):
        number, _ = c.request("profile")
        c.sock.sendall(b"\x94\x01" + bytes([number]) + b"\xc0\x87\xa1a\xcb\x7f\xf8\0\0\0\0\0\0"  # NaN
                       b"\xa1b\xa2\xff\x00\x01\x02\xa1c\xd4\x01\x02\xa1d\xcf\xff\xff\xff\xff\xff\xff\xff\xff"
                       b"\xa1e\xc4\x02\x00\x01\xa2f\"\xa4\x1b\"\\\x7f")

    with ctl.daemon(handler):
        status, out, _ = ctl.run("profile", "--json")
        assert status == 0
        value = json.loads(out)
        assert value["a"] is None and value["b"] is None and value["c"] is None
        assert value["d"] == 2.0 ** 64 and value["f\""] == "\x1b\"\\\x7f" and "e" not in value
        assert ctl.run("profile")[0] == 0


def watch_job(ending):
    def handler(c):
        number, params = c.request("watch")
        assert params == {"job": 5}
        c.answer(number, {"job": 5, "state": "running", "position": 0})
        c.notify("progress", job=5, state="running", stage="denoise", step=1, steps=8)
        ending(c)
        c.receive()
    return handler


def test_watch(ctl):
    with ctl.daemon(watch_job(lambda c: c.done(job=5))):
        assert ctl.run("watch", "5") == (0, "job 5: running\njob 5: done in 1.5 s, seed 42\n", "")
        status, out, _ = ctl.run("watch", "5", "--json")
        assert [json.loads(l)["event"] for l in out.splitlines()] == ["watching", "progress", "done"]
        _, out, shown = on_terminal(ctl, "watch", "5")
        assert "denoise 1/8" in shown and out.endswith("seed 42\n")
    with ctl.daemon(watch_job(lambda c: c.notify("failed", job=5, error={"code": "io", "message": "b\x07d"}))):
        assert ctl.run("watch", "5") == (1, "job 5: running\njob 5: failed: b?d\n", "")
    with ctl.daemon(watch_job(lambda c: c.notify("cancelled", job=5))):
        assert ctl.run("watch", "5")[:2] == (130, "job 5: running\njob 5: cancelled\n")
    with ctl.daemon(lambda c: c.refuse(c.request("watch")[0], "no_job", "there is no job 5")):
        assert ctl.run("watch", "5") == (2, "", "kreactl: there is no job 5\n")


def test_watch_all_and_interrupt(ctl):
    def handler(c):
        number, params = c.request("watch")
        assert params == {}
        c.answer(number, {"jobs": JOBS})
        c.done(job=3)
        c.notify("progress", job=4, state="running", stage="encode", step=0, steps=1)
        c.notify("failed", job=4, error={"code": "io", "message": "bad"})
        assert c.receive() is None  # no cancel: watching is all it does

    with ctl.daemon(handler):
        p = ctl.start("watch")
        lines = [p.stdout.readline().decode() for _ in range(3)]
        assert lines == ["job 3: done in 1.5 s, seed 42\n", "job 4: running\n", "job 4: failed: bad\n"]
        p.send_signal(signal.SIGINT)
        assert p.wait(20) == 130 and p.stderr.read() == b""  # nothing was cancelled


def test_stop(ctl):
    def handler(c):
        number, params = c.request("stop")
        assert params == {}
        c.answer(number, {"running": 3, "queued": 1})
        time.sleep(0.3)

    with ctl.daemon(handler):
        start = time.time()
        assert ctl.run("stop") == (0, "job 3 ends first\n", "")
        assert time.time() - start > 0.25  # it waits until the daemon is gone
        assert ctl.run("stop", "--json") == (0, '{"running": 3, "queued": 1}\n', "")
    with ctl.daemon(lambda c: c.refuse(c.request("stop")[0], "forbidden", "only its owner may")):
        assert ctl.run("stop") == (2, "", "kreactl: only its owner may\n")
    with ctl.daemon(lambda c: c.request("stop")):  # hangs up without an answer
        assert ctl.run("stop")[0] == 3
