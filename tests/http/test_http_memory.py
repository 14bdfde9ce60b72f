# SPDX-License-Identifier: Apache-2.0
"""Memory runs out at every so manieth allocation of kread-http, its libraries' included: it ends with a
sentence at the start, and later at most the one request is hurt. And too few descriptors."""
import contextlib
import errno
import http.client
import os
import re
import resource
import subprocess

import pytest

from harness import SANITIZED, Daemon, wait_until
from shim import Shim, request

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "server", "preload", "faults.c")
ALL = os.environ.get("KREAD_FAULTS") == "all"
STEP, ONE_BY_ONE = 1 if ALL else 211, 15  # the first ones are those of the start


@pytest.fixture(scope="module")
def faults(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("preload") / "faults.so")
    subprocess.run(["cc", "-std=c11", "-D_GNU_SOURCE", "-O1", "-fno-builtin", "-shared", "-fPIC", SOURCE, "-o", path], check=True)
    return path


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    with Daemon(tmp_path_factory.mktemp("daemon")) as d:
        yield d


def scripted(s):
    """Everything there is; any of it may be refused or cut off."""
    id = None
    body = b'{"prompt":"x"}'
    asks = [lambda: s.get("/page.js"), lambda: s.get("/kread/v1/status"), lambda: s.get("/metrics"), lambda: s.get("/nothing"),
            lambda: s.txt2img("x", negative_prompt="y", batch_size=2, steps=3, cfg_scale=2),
            lambda: s.post("/v1/images/generations", {"prompt": "x", "n": 2, "size": "32x32"}),
            lambda: s.post("/sdcpp/v1/img_gen", {"prompt": "x", "batch_count": 2, "kread": {"preview": 1}}),
            *(lambda path=path: s.get(path % id) for path in ("/sdcpp/v1/jobs/%s",) * 4 + ("/kread/v1/jobs/%s/images/1.png", "/kread/v1/jobs/%s/preview.png")),
            lambda: s.post("/sdcpp/v1/jobs/%s/cancel" % id), lambda: s.get("/v1/models"), lambda: s.get("/sdapi/v1/options"),
            lambda: s.get("/sdapi/v1/progress"), lambda: s.get("/sdcpp/v1/capabilities"), lambda: s.post("/sdapi/v1/png-info", {"image": "iVBORw0KGgo="}),
            lambda: s.post("/sdapi/v1/options", {"a": 1}), lambda: s.post("/sdapi/v1/txt2img", "{"), lambda: s.post("/sdapi/v1/interrupt"),
            lambda: s.raw(request("POST", "/sdapi/v1/txt2img", b'{"prompt":"x ms=20"}'), wait=False).close(),
            lambda: s.raw(request("POST", "/sdapi/v1/txt2img", b"", "Transfer-Encoding: chunked", "Connection: close") + b"e\r\n" + body + b"\r\n0\r\n\r\n")]
    for ask in asks:
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError, LookupError):
            answer = ask()
            if getattr(answer, "status", 0) == 202:
                id = answer.json()["id"]


@pytest.mark.skipif(SANITIZED, reason="a sanitizer wants to be the first library")
def test_every_allocation(tmp_path, daemon, faults):
    n, hit, mark = 1, 0, tmp_path / "mark"
    while True:
        s = Shim(tmp_path, daemon, wait=False, env={"LD_PRELOAD": faults, "KREAD_FAULT": "alloc:%d:%d" % (n, errno.ENOMEM), "KREAD_FAULT_MARK": str(mark)})
        wait_until(lambda: s.process.poll() is not None or "kread is ready" in s.logged())
        if s.process.poll() is None:
            s.port = int(re.search(r"listening on http://[^ ]*:(\d+)/", s.logged()).group(1))
            scripted(s)
            if mark.exists():
                assert s.txt2img("still here").status == 200, n
            assert s.stop() == 0, (n, s.logged())
        else:
            assert s.process.wait() == 1 and re.fullmatch(r"kread-http: .*(memory|allocate).*\n", s.logged()), (n, s.logged())
        if not mark.exists():
            break
        mark.unlink()
        hit += 1
        n += 1 if n < ONE_BY_ONE else STEP
    assert hit > ONE_BY_ONE + 2000 // STEP


@pytest.mark.parametrize("files", [8, 15, 16, 20])
def test_few_descriptors(tmp_path, daemon, files):
    s = Shim(tmp_path, daemon, wait=False, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files)))
    if files < 16:
        assert s.process.wait(60) == 1 and "ulimit -n" in s.logged() and s.logged().count("\n") == 1
        return
    s.wait_ready()
    crowd = [s.raw(wait=False) for _ in range(2 * files)]
    for c in crowd:
        c.close()
    assert s.txt2img("x").status == 200
    assert s.stop() == 0
