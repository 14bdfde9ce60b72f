# SPDX-License-Identifier: Apache-2.0
"""Starts the daemon with the pretending engine (fake_engine.c) and speaks to it in plain MessagePack."""
import atexit
import contextlib
import os
import pathlib
import re
import select
import signal
import socket
import subprocess
import tempfile
import time

import msgpack

BUILD = os.environ.get("KREAD_BUILD", os.path.abspath("build"))
FAKE = os.path.join(BUILD, "tests", "kread-fake")
with open(FAKE, "rb") as _binary:
    _sanitizer = re.search(rb"__(asan|tsan)_init", _binary.read())
SANITIZED = _sanitizer is not None
DEFERS_SIGNALS = SANITIZED and _sanitizer.group(1) == b"tsan"
PATIENCE = 60  # seconds until a test gives up waiting; sanitizers are slow

PROFILE = """
[profile test]
architecture = krea2
variant = turbo
diffusion_model = dit.safetensors
text_encoder = te.safetensors
vae = vae.safetensors
tokenizer = tokenizer
"""


class Refused(Exception):
    def __init__(self, error):
        super().__init__("%s: %s" % (error["code"], error["message"]))
        self.code, self.message = error["code"], error["message"]


def clean_env(folder, **more):
    """An environment in which only the test's own settings are found."""
    env = {k: v for k, v in os.environ.items()
           if k not in ("KREAD_SOCKET", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_STATE_HOME",
                        "STATE_DIRECTORY", "KREAD_DEMO_DIR",
                        "NOTIFY_SOCKET", "JOURNAL_STREAM", "LISTEN_FDS", "LISTEN_PID")}
    env.update(HOME=str(folder), XDG_CONFIG_HOME=str(folder), KREAD_DEMO_DIR=str(folder))
    env.update(more)
    return env


class Daemon:
    """kread-fake on a socket in `folder`. `settings` are lines of [kread]."""

    def __init__(self, folder, settings="", args=(), wait=True, env=None, **popen):
        self.folder = str(folder)
        self.socket = os.path.join(self.folder, "kread.sock")
        config = os.path.join(self.folder, "kread.ini")
        with open(config, "w") as f:
            f.write("[kread]\ndefault_profile = test\n" + settings + "\n" + PROFILE)
        self.log = open(os.path.join(self.folder, "log"), "w+")
        self.process = subprocess.Popen(
            [FAKE, "--config", config, "--socket", self.socket, *args],
            stderr=self.log, env=clean_env(folder, **(env or {})), **popen)
        atexit.register(self.process.kill)  # of a test that failed half-way
        if wait:
            self.wait_ready()

    def wait_ready(self):
        end = time.time() + PATIENCE
        while True:
            assert self.process.poll() is None, self.logged()
            try:
                Client(self).close()
                return
            except OSError:
                assert time.time() < end, "the daemon does not listen"
                time.sleep(0.005)

    def logs(self, text):
        """Waits until the log has it: what is logged comes after what is answered."""
        wait_until(lambda: text in self.logged(), "a log line with %r" % text)

    def logged(self):
        self.log.flush()
        with open(self.log.name) as f:
            return f.read()

    def kill(self):
        """As a power cut would."""
        self.process.kill()
        self.process.wait()

    def state(self, *names):
        """A path in the state directory."""
        return os.path.join(self.folder, ".local", "state", "kread", *names)

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def wait(self):
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError("it does not end: " + self.logged()) from None

    def stop(self):
        """Ends it cleanly; sanitizers speak up here, in status or log."""
        if self.process.poll() is None:
            self.signal()
            if DEFERS_SIGNALS:  # and of a few hundred that come right after the start forgets one
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(15)
                if self.process.poll() is None:
                    self.signal()
        code = self.wait()
        text = self.logged()
        assert not re.search(r"Sanitizer|runtime error", text), text
        return code

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            assert self.stop() == 0, self.logged()
            assert not os.path.exists(self.socket)
            assert not os.path.exists(self.socket + ".lock")
        elif self.process.poll() is None:
            self.process.kill()
            self.process.wait()
            print(self.logged())

    def memory(self):
        """Resident bytes that are its own."""
        with open("/proc/%d/status" % self.process.pid) as f:
            return int(re.search(r"RssAnon:\s+(\d+)", f.read()).group(1)) * 1024

    def descriptors(self):
        return len(os.listdir("/proc/%d/fd" % self.process.pid))


class Client:
    def __init__(self, daemon, hello=None):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(daemon if isinstance(daemon, str) else daemon.socket)
        self.socket.settimeout(PATIENCE)
        self.unpacker = msgpack.Unpacker(max_buffer_size=1 << 30)
        self.last_id = 0
        self.notices = []  # read while waiting for an answer
        if hello:
            self.call("hello", version=1, client=hello)

    def send_bytes(self, data):
        self.socket.sendall(data)

    def receive(self):
        """The next message, None at the end of the stream."""
        while True:
            for message in self.unpacker:
                return message
            data = self.socket.recv(1 << 16)
            if not data:
                return None
            self.unpacker.feed(data)

    def ask(self, method, **params):
        self.last_id += 1
        self.send_bytes(msgpack.packb([0, self.last_id, method, [params] if params else []]))
        return self.last_id

    def answer(self, wanted):
        while True:
            message = self.receive()
            assert message is not None, "the daemon hung up"
            if message[0] == 2:
                self.notices.append((message[1], message[2][0]))
                continue
            kind, number, error, result = message
            assert (kind, number) == (1, wanted), message
            if error is not None:
                raise Refused(error)
            return result

    def call(self, method, **params):
        return self.answer(self.ask(method, **params))

    def generate(self, prompt, **params):
        return self.call("generate", prompt=prompt, **params)

    def notice(self):
        if self.notices:
            return self.notices.pop(0)
        message = self.receive()
        if message is None:
            return None
        assert message[0] == 2, message
        return message[1], message[2][0]

    def finish(self, job):
        """Reads until the job's end: ("done" | "failed" | "cancelled", its map, all before it).
        What concerns other jobs is kept for later."""
        before, others = [], []
        while True:
            notice = self.notice()
            assert notice is not None, "the daemon hung up"
            name, about = notice
            if about["job"] != job:
                others.append(notice)
            elif name in ("done", "failed", "cancelled"):
                self.notices = others + self.notices
                return name, about, before
            else:
                before.append(notice)

    def silent(self, seconds):
        """Whether nothing arrives for so long."""
        return not self.notices and not select.select([self.socket], [], [], seconds)[0]

    def ended(self):
        """Whether the daemon closed the connection; reads what is left."""
        try:
            while self.receive() is not None:
                pass
        except ConnectionError:
            pass
        return True

    def close(self):
        self.socket.close()


@contextlib.contextmanager
def quick_folder():
    """A folder in memory where there is one: for tests that sync thousands of files."""
    where = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="kread-", dir=where) as path:
        yield pathlib.Path(path)


def wait_until(condition, what="the condition"):
    end = time.time() + PATIENCE
    while not condition():
        assert time.time() < end, "%s did not come true" % what
        time.sleep(0.005)
