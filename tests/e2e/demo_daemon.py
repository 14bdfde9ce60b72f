# SPDX-License-Identifier: Apache-2.0
"""A daemon on its own socket and with no config file, and kreactl beside it."""
import os
import pathlib
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("KREAD_BUILD", ROOT / "build"))


class Daemon:
    """Started with `options`; a context manager that stops it with SIGTERM."""

    def __init__(self, folder, *options):
        self.folder = pathlib.Path(folder)
        self.socket = str(self.folder / "s")
        self.env = dict(os.environ, XDG_CONFIG_HOME=str(self.folder), KREAD_SOCKET=self.socket,
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
