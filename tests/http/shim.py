# SPDX-License-Identifier: Apache-2.0
"""Starts kread-http beside the daemon with the pretending engine, and speaks HTTP to it, well and badly."""
import base64
import contextlib
import http.client
import json
import os
import re
import socket
import struct
import subprocess
import sys
import threading
import zlib

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "server"))

from harness import BUILD, PATIENCE, clean_env, wait_until  # noqa: E402

KREAD_HTTP = os.path.join(BUILD, "kread-http")


class Answer:
    def __init__(self, response):
        self.status, self.headers = response.status, response.headers
        self.body = response.read()

    def json(self):
        assert self.headers["Content-Type"] == "application/json", self.headers
        return json.loads(self.body)


class Shim:
    """kread-http for the daemon on `daemon`. `settings` are lines of [http]."""

    def __init__(self, folder, daemon, settings="", args=(), listen=("127.0.0.1:0",), wait=True, env=None, **popen):
        self.folder = str(folder)
        os.makedirs(self.folder, exist_ok=True)
        config = os.path.join(self.folder, "http.ini")
        with open(config, "w") as f:
            f.write("[http]\nlog_level = debug\n" + settings + "\n")
        self.log = open(os.path.join(self.folder, "http.log"), "w+")
        words = [w for l in listen for w in ("--listen", l)]
        self.process = subprocess.Popen(
            [KREAD_HTTP, "--config", config, "--socket", daemon if isinstance(daemon, str) else daemon.socket,
             *words, *args], stderr=self.log, env=clean_env(folder, **(env or {})), **popen)
        self.port = 0
        if wait:
            self.wait_ready()

    def logged(self):
        with open(self.log.name) as f:
            return f.read()

    def wait_ready(self, daemon=True):
        wait_until(lambda: self.process.poll() is not None or "listening on" in self.logged()
                   and (not daemon or "kread is ready" in self.logged()), "kread-http is ready")
        assert self.process.poll() is None, self.logged()
        self.port = int(re.search(r"listening on http://[^ ]*:(\d+)/", self.logged()).group(1))

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
        code = self.process.wait(PATIENCE)
        text = self.logged()
        assert not re.search(r"Sanitizer|runtime error", text), text
        return code

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            assert self.stop() == 0, self.logged()
        elif self.process.poll() is None:
            self.process.kill()
            self.process.wait()
            print(self.logged()[-8000:])
        self.log.close()

    def connection(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)

    def ask(self, method, path, body=None, **headers):
        """body: bytes, or what becomes JSON. Header names: '_' for '-'."""
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        with contextlib.closing(self.connection()) as c:
            c.request(method, path, body=body, headers={k.replace("_", "-"): v for k, v in headers.items()})
            return Answer(c.getresponse())

    def get(self, path, **headers):
        return self.ask("GET", path, **headers)

    def post(self, path, body=None, **headers):
        return self.ask("POST", path, body, **headers)

    def txt2img(self, prompt, **fields):
        return self.post("/sdapi/v1/txt2img", dict(fields, prompt=prompt))

    def raw(self, data=b"", wait=True):
        """Bytes as they are on a new connection; all that comes back until it closes, or the open socket."""
        s = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)
        with contextlib.suppress(ConnectionError):
            s.sendall(data)
        return read_all(s) if wait else s

    def start(self, method, path, body=None, **headers):
        """A request that is waited for elsewhere: .result() gives its answer."""
        return Later(lambda: self.ask(method, path, body, **headers))

    def job(self, id):
        return self.get("/sdcpp/v1/jobs/" + id).json()

    def submit(self, prompt, **fields):
        answer = self.post("/sdcpp/v1/img_gen", dict(fields, prompt=prompt))
        assert answer.status == 202, answer.body
        return answer.json()["id"]

    def finish(self, id, *states):
        wait_until(lambda: self.job(id)["status"] in (states or ("completed", "failed", "cancelled")), "the job's end")
        return self.job(id)

    def memory(self):
        with open("/proc/%d/status" % self.process.pid) as f:
            return int(re.search(r"RssAnon:\s+(\d+)", f.read()).group(1)) * 1024

    def descriptors(self):
        return len(os.listdir("/proc/%d/fd" % self.process.pid))


class Later:
    def __init__(self, run):
        self.value = self.error = None
        self.thread = threading.Thread(target=self._run, args=(run,), daemon=True)
        self.thread.start()

    def _run(self, run):
        try:
            self.value = run()
        except Exception as e:  # noqa: BLE001
            self.error = e

    def done(self):
        return not self.thread.is_alive()

    def result(self):
        self.thread.join(PATIENCE)
        assert self.done(), "no answer came"
        if self.error:
            raise self.error
        return self.value


def read_all(s):
    data = b""
    with contextlib.closing(s):
        with contextlib.suppress(ConnectionError):
            while True:
                more = s.recv(1 << 16)
                if not more:
                    break
                data += more
    return data


def request(method, path, body=b"", *headers):
    lines = ["%s %s HTTP/1.1" % (method, path), "Host: localhost", *headers]
    if body:
        lines.append("Content-Length: %d" % len(body))
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def png_size(png):
    """Width and height, after every chunk's checksum was checked."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    at = 8
    while at < len(png):
        size, = struct.unpack(">I", png[at:at + 4])
        crc, = struct.unpack(">I", png[at + 8 + size:at + 12 + size])
        assert zlib.crc32(png[at + 4:at + 8 + size]) == crc
        at += 12 + size
    return struct.unpack(">II", png[16:24])


def png_of(text):
    """Strict base64, as clients want it: no prefix, no line ends."""
    assert re.fullmatch(r"[A-Za-z0-9+/]+={0,2}", text)
    return base64.b64decode(text, validate=True)


RAW_PROFILE = """
[profile raw]
architecture = krea2
variant = raw
diffusion_model = dit.safetensors
text_encoder = te.safetensors
vae = vae.safetensors
tokenizer = tokenizer
steps = 52
cfg = 3.5
"""
