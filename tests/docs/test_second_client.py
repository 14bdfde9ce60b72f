# SPDX-License-Identifier: Apache-2.0
"""The manual page of the protocol is enough to write a client by: second_client.py was."""
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "server"))
from harness import Daemon, clean_env, wait_until  # noqa: E402


@pytest.fixture
def daemon(tmp_path):
    with Daemon(tmp_path) as d:
        yield d


def second(daemon, *arguments):
    return subprocess.run([sys.executable, str(HERE / "second_client.py"), *map(str, arguments)], cwd=daemon.folder,
                          env=clean_env(daemon.folder, KREAD_SOCKET=daemon.socket), stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)


def test_a_picture(daemon, tmp_path):
    assert second(daemon, "make", "a red circle", "a.png").stdout == "done\n"
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_a_job_that_outlives_its_client(daemon, tmp_path):
    job = second(daemon, "detach", "a red circle ms=20").stdout.strip()
    assert second(daemon, "watch", job).stdout == "done\n"
    assert second(daemon, "fetch", job, "b.png").returncode == 0
    assert (tmp_path / "b.png").read_bytes().startswith(b"\x89PNG")
    assert "%s done" % job in second(daemon, "jobs").stdout


def test_cancel(daemon):
    job = second(daemon, "detach", "ms=200000").stdout.strip()
    wait_until(lambda: "%s running" % job in second(daemon, "jobs").stdout)
    assert second(daemon, "cancel", job).stdout in ("running\n", "cancelled\n")
    assert second(daemon, "watch", job).stdout == "cancelled\n"


def test_refusals(daemon):
    assert second(daemon, "watch", 999).stderr.startswith("no_job: ")
    assert second(daemon, "make", "x fail=io", "c.png").stderr.startswith("io: ")
    assert second(daemon, "make", "x" * 70000, "c.png").stderr.startswith("bad_request: ")
