# SPDX-License-Identifier: Apache-2.0
"""A daemon on its own socket and with no config file, and kreactl beside it."""
import json
import os
import pathlib
import subprocess
import time

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("KREAD_BUILD", ROOT / "build"))


class Daemon:
    """Started with `options`; a context manager that stops it with SIGTERM."""

    def __init__(self, folder, *options):
        self.folder = pathlib.Path(folder)
        self.socket = str(self.folder / "s")
        self.env = dict(os.environ, XDG_CONFIG_HOME=str(self.folder),
                        XDG_STATE_HOME=str(self.folder), KREAD_SOCKET=self.socket,
                        KREAD_DEMO_DIR=str(ROOT / "demo"))
        self.process = subprocess.Popen([BUILD / "kread", *options], env=self.env,
                                        stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def __enter__(self):
        deadline = time.monotonic() + 20
        while self.kreactl("status").returncode != 0:
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                raise RuntimeError("kread did not start: " + self.process.stderr.read().decode())
            time.sleep(0.02)
        return self

    def __exit__(self, *exception):
        self.process.terminate()
        _, errors = self.process.communicate(timeout=60)
        self.errors = errors.decode()

    def kreactl(self, *arguments, **options):
        return subprocess.run([BUILD / "kreactl", *map(str, arguments)], env=self.env,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=300, **options)


def golden_shares(folder, *options):
    """The demo's golden job on a daemon with `options`: how far each tensor is from what diffusers and
    transformers make of the shipped files (tests/reference/make_demo_golden.py), in shares of the error
    that they make themselves in bfloat16."""
    golden = ROOT / "tests/golden/demo"
    request = json.loads((golden / "request.json").read_text())
    allowed = json.loads((golden / "bf16-error.json").read_text())
    fields = [o for name, value in request.items() if name != "prompt" and value not in ("", None)
              for o in ("--" + name.replace("_", "-"), value)]
    (folder / "trace").mkdir()
    with Daemon(folder, "--trace", str(folder / "trace"), *options) as running:
        done = running.kreactl("generate", request["prompt"], *fields, "-o", folder / "p.png")
        assert done.returncode == 0, done.stderr
    shares = {}
    for path in sorted(golden.glob("*.npy")):
        want, got = np.load(path), np.load(folder / "trace/1" / path.name)
        if path.stem == "tokens":
            assert np.array_equal(want, got)
            continue
        got = np.clip(got, -1, 1) if path.stem == "decoded" else got  # the reference clamps itself
        error = np.linalg.norm((got - want).astype(float)) / np.linalg.norm(want.astype(float))
        if path.stem in ("noise", "sigmas"):
            assert error < 1e-5, path.stem
        else:
            shares[path.stem] = error / allowed[path.stem]
    assert len(shares) == 4
    return shares


def within_the_yardstick(shares):
    return (max(shares.values()) <= 1 and np.exp(np.mean(np.log(list(shares.values())))) <= 0.6)
