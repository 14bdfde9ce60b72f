# SPDX-License-Identifier: Apache-2.0
"""What HTTP allows and few do, and what it forbids: targets, methods, lengths, codings, keep-alive, JSON."""
import contextlib
import json
import pathlib
import re
import socket
import time

import pytest

from harness import Daemon, wait_until
from shim import Shim, png_size, png_of, read_all, request

TXT2IMG = "/sdapi/v1/txt2img"
BODY = b'{"prompt":"x"}'


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    with Daemon(tmp_path_factory.mktemp("odd")) as d:
        yield d


@pytest.fixture(scope="module")
def shim(daemon, tmp_path_factory):
    with Shim(tmp_path_factory.mktemp("shim"), daemon) as s:
        yield s
        assert s.txt2img("still here").status == 200


def lines(line, *headers, body=b"", host="Host: localhost"):
    return "\r\n".join([line, *([host] if host else []), *headers, "Connection: close"]).encode("latin-1") + b"\r\n\r\n" + body


def status(data):
    assert data.startswith(b"HTTP/1.1 "), data[:80]
    return int(data.split()[1])


# --------------------------------------------------------------------------------------- targets ---

@pytest.mark.parametrize("target,code", [
    ("http://localhost/health", 200), ("HTTP://127.0.0.1:1234/health", 200), ("https://localhost//health/?x", 200), ("http://localhost", 200),
    ("http://localhost/nothing", 404), ("ftp://localhost/health", 404), ("/%68ealth", 200), ("/health%00", 404), ("/health%00.png", 404),
    ("/health%", 404), ("/health%4", 404), ("/health%zz", 404), ("/health%2", 404), ("/%ff%fe", 404), ("/../../etc/passwd", 404),
    ("/%2e%2e/%2e%2e/etc/passwd", 404), ("/health?%00=%00&&=&%zz", 200), ("/health#part", 404), ("*", 404), ("health", 404),
    ("/sdcpp/v1/jobs/%00", 404), ("/sdcpp/v1/jobs/job_00000001%00_00000001", 404), ("/kread/v1/jobs/x/images/%30.png%00", 404)])
def test_targets(shim, target, code):
    assert status(shim.raw(lines("GET %s HTTP/1.1" % target))) == code


def test_an_absolute_target_does_not_replace_the_host(shim):
    """A page whose name was bent to this address gets nothing, whatever its request line says."""
    for target in ("http://localhost/sdapi/v1/options", "/sdapi/v1/options"):
        assert status(shim.raw(lines("GET %s HTTP/1.1" % target, host="Host: evil.example"))) == 403


@pytest.mark.parametrize("host", ["Host: localhost\r\nHost: evil.example", "Host: evil.example\r\nHost: localhost", "Host: localhost\r\nhost: localhost", None])
def test_one_host_exactly(shim, host):
    assert status(shim.raw(lines("GET /sdapi/v1/options HTTP/1.1", host=host))) == 400


# --------------------------------------------------------------------------------------- methods ---

def every_route():
    """All paths of the table, and some that are none."""
    source = (pathlib.Path(__file__).resolve().parents[2] / "client/http/routes.c").read_text()
    paths = {p.replace("*", "x") for p in re.findall(r'\b(?:GET|POST|OPEN|TEXT|NOTHING|UNSUPPORTED)\("([^"]+)"', source)}
    assert len(paths) > 40
    return sorted(paths) + ["/nothing", "/no/such/path"]


def test_every_method_on_every_route(shim):
    for path in every_route():
        allowed = shim.ask("OPTIONS", path)
        assert allowed.status == 204 and allowed.body == b"" and "OPTIONS" in allowed.headers["Allow"]
        for method in ("HEAD", "get", "PUT", "DELETE", "PATCH", "TRACE", "PROPFIND", "X" * 50):
            answer = shim.ask(method, path)
            assert answer.status in ((200, 404, 405) if method == "HEAD" else (404, 405)), (method, path, answer.status)
            assert method != "HEAD" or answer.body == b""
            assert answer.status != 405 or answer.headers["Allow"] == allowed.headers["Allow"], (method, path)


# ----------------------------------------------------------------------------- lengths and codings ---

def test_expect(shim):
    data = shim.raw(lines("POST %s HTTP/1.1" % TXT2IMG, "Expect: 100-continue", "Content-Length: %d" % len(BODY), body=BODY))
    assert data.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200")
    for length in (40000, 1 << 30):  # it is not told to send what would be refused
        assert status(shim.raw(lines("POST /sdapi/v1/img2img%s HTTP/1.1" % ("x" if length < 1 << 20 else ""), "Expect: 100-continue",
                                     "Content-Length: %d" % length))) in (404, 405, 413)
    assert status(shim.raw(lines("POST %s HTTP/1.0" % TXT2IMG, "Expect: 100-continue", "Content-Length: %d" % len(BODY), body=BODY))) == 200


@pytest.mark.parametrize("coding", ["gzip", "identity", "xchunked", "gzip, chunked", "chunked, chunked", ";", "chunked;q=1"])
@pytest.mark.parametrize("method", ["POST", "GET"])
def test_codings_that_are_unknown(shim, coding, method):
    """Where such a body ends nobody knows: the answer comes at once, and the connection closes."""
    data = shim.raw(lines("%s /sdapi/v1/txt2img HTTP/1.1" % method, "Transfer-Encoding: " + coding))
    assert status(data) in (400, 501) and data.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("body,code", [
    (b"e\r\n" + BODY + b"\r\n0\r\n\r\n", 200), (b"E;name=value\r\n" + BODY + b"\r\n0;last\r\n\r\n", 200),
    (b"e\r\n" + BODY + b"\r\n0\r\nX-Trailer: y\r\nContent-Length: 500\r\nHost: evil.example\r\n\r\n", 200),
    (b"0e\r\n" + BODY + b"\r\n00\r\n\r\n", 200), (b"0xe\r\n" + BODY + b"\r\n0\r\n\r\n", 400), (b"-e\r\n" + BODY + b"\r\n0\r\n\r\n", 400),
    (b"f" * 17 + b"\r\n" + BODY, 413), (b"e\r\n" + BODY + b"xx0\r\n\r\n", 400), (b"\r\n" + BODY, 400)], ids=range(9))
def test_chunks(shim, body, code):
    data = shim.raw(lines("POST %s HTTP/1.1" % TXT2IMG, "Transfer-Encoding: chunked", body=body))
    assert status(data) == code and data.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("length", ["14\r\nContent-Length: 14", "14\r\nContent-Length: 15", "14\r\nTransfer-Encoding: chunked", "+14", "14abc", "", "0x0e",
                                    "14, 14", "18446744073709551630", "-14"])
def test_lengths(shim, length):
    data = shim.raw(lines("POST %s HTTP/1.1" % TXT2IMG, "Content-Length: " + length, body=BODY))
    assert status(data) in (400, 413) and b"images" not in data


@pytest.mark.parametrize("chunked", [False, True])
def test_100_megabytes(shim, chunked):
    before = shim.memory()
    s = shim.raw(lines("POST %s HTTP/1.1" % TXT2IMG, "Transfer-Encoding: chunked" if chunked else "Content-Length: %d" % (100 << 20)), wait=False)
    sent = 0
    with contextlib.suppress(ConnectionError):
        while sent < 100 << 20:
            s.sendall(b"%s%s%s" % (b"100000\r\n" * chunked, b" " * (1 << 20), b"\r\n" * chunked))
            sent += 1 << 20
    s.close()
    assert sent < 64 << 20 and shim.memory() - before < 16 << 20


# ---------------------------------------------------------------------------- versions, keep-alive ---

@pytest.mark.parametrize("version,code", [("HTTP/1.0", 200), ("HTTP/1.1", 200), ("HTTP/2.0", 505), ("HTTP/0.9", 400), ("http/1.1", 400), ("", 400)])
def test_versions(shim, version, code):
    data = shim.raw(lines("GET /health " + version))
    assert data == b"" or status(data) in (code, 400, 505) and (code != 200 or status(data) == 200)


def test_http_1_0_keeps_a_connection_only_when_asked(shim):
    assert status(shim.raw(b"GET /health HTTP/1.0\r\n\r\n")) == 200  # and closes
    s = shim.raw(b"GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", wait=False)
    assert status(s.recv(4096)) == 200
    s.sendall(b"GET /health HTTP/1.0\r\n\r\n")
    assert status(read_all(s)) == 200


def test_a_connection_is_good_after_errors(shim):
    with contextlib.closing(shim.connection()) as c:
        local = None
        for method, path, body, code in [
                ("POST", TXT2IMG, b"{", 400), ("GET", "/nothing", None, 404), ("PUT", "/health", b"x" * 100, 405), ("POST", "/nothing", b"x" * 30000, 405),
                ("POST", TXT2IMG, b"x" * 200000, 400), ("POST", TXT2IMG, b'{"prompt":"fail=not_finite"}', 500), ("HEAD", "/health", None, 200),
                ("POST", "/sdapi/v1/img2img", b"x" * 1000, 501), ("GET", "/sdcpp/v1/jobs/x", None, 404), ("POST", TXT2IMG, BODY, 200)]:
            c.request(method, path, body=body)
            r = c.getresponse()
            r.read()
            assert r.status == code, (method, path)
            local = local or c.sock.getsockname()
            assert c.sock.getsockname() == local


def test_pipelined_errors_come_in_order(shim):
    data = shim.raw(request("GET", "/nothing") + request("POST", TXT2IMG, b"{") + request("POST", TXT2IMG, BODY) + request("PUT", "/health", b"xy")
                    + request("GET", "/health", b"", "Connection: close"))
    assert [int(c) for c in re.findall(rb"HTTP/1\.1 (\d+)", data)] == [404, 400, 200, 405, 200]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/json; charset=utf-16", "", "x" * 1000])
def test_any_content_type(shim, kind):
    assert shim.post(TXT2IMG, BODY, Content_Type=kind).status == 200


def test_many_headers(shim):
    assert status(shim.raw(lines("GET /health HTTP/1.1", *("X-%d: y" % i for i in range(200))))) == 200
    assert status(shim.raw(lines("GET /health HTTP/1.1", "Cookie: " + "s=" + "x" * 12000))) == 200  # of all programs on this host
    assert status(shim.raw(lines("GET /health HTTP/1.1", *("X-%d: y" % i for i in range(10000))))) == 431


# ------------------------------------------------------------------------------------------- JSON ---

@pytest.mark.parametrize("text,says", [
    ('{"prompt":NaN}', "no JSON"), ('{"prompt":"x","seed":NaN}', "no JSON"), ('{"prompt":"x","cfg_scale":Infinity}', "no JSON"),
    ('{"prompt":"x","cfg_scale":-Infinity}', "no JSON"), ('{"prompt":"x","cfg_scale":1e400}', "too large"), ('{"prompt":"x","seed":-1e400}', "too large"),
    ('{"prompt":"x","seed":99999999999999999999}', "too large"), ('{"prompt":"\\ud83d"}', "no JSON"), ('{"prompt":"\\udc00\\ud83d"}', "no JSON"),
    ('{"prompt":"a\\u0000b"}', "NUL"), ('{"prompt":"x"}{"prompt":"y"}', "no JSON"), ('{"prompt":"x"} more', "no JSON"), ("{'prompt':'x'}", "no JSON"),
    ('{"prompt":"x",}', "no JSON"), ("[]", "object"), ("null", "object"), ('"x"', "object"), ("{" * 40, "nests deeper"), ('{"prompt":{}}', "prompt"),
    ('{"prompt":"x","seed":1e300,"n":2,"n_iter":2}', "seed"),
    ('{"prompt":"x","seed":9223372036854775807,"n":2,"n_iter":2}', "seed")])
def test_refused_bodies(shim, text, says):
    for path in (TXT2IMG, "/v1/images/generations"):
        answer = shim.post(path, text)
        assert answer.status == 400 and says in answer.body.decode(), answer.body


def test_numbers_at_the_ends(shim):
    for text in ('"seed":9223372036854775807', '"seed":1e300', '"steps":1e-400', '"width":"9e99","height":1', '"cfg_scale":1e308', '"batch_size":0.0', '"seed":-0.0'):
        answer = shim.post(TXT2IMG, '{"prompt":"x",%s}' % text)
        assert answer.status == 200 and png_size(png_of(answer.json()["images"][0])), text
    assert json.loads(shim.post(TXT2IMG, '{"prompt":"a","seed":1,"prompt":"b","seed":2}').json()["info"])["seed"] == 2


@pytest.mark.parametrize("text", ["", "=", "====", "!!!!", "A", "AA=A", "iVBORw0KGgo", "data:image/png;base64,", "data:image/png;base64,iVBORw0KGgo=", "\n" * 99])
def test_pictures_that_are_no_base64(shim, text):
    answer = shim.post("/sdapi/v1/png-info", {"image": text})
    assert answer.status == 200 and answer.json() == {"info": "", "items": {}, "parameters": {}}


def test_a_stalled_reader_is_disconnected(daemon, tmp_path):
    """What takes nothing of a large answer for request_timeout is gone; what reads slowly gets it all."""
    with Shim(tmp_path, daemon, "request_timeout = 1") as s:
        before = s.descriptors()
        stalled, slow = (socket.socket() for _ in range(2))
        for c in (stalled, slow):
            c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32768)
            c.settimeout(60)
            c.connect(("127.0.0.1", s.port))
            c.sendall(request("POST", TXT2IMG, b'{"prompt":"pad=6000000"}', "Connection: close"))
        wait_until(lambda: s.logged().count("txt2img: 200") == 2)
        assert s.descriptors() == before + 2
        got = 0
        while s.descriptors() > before + 1:
            got += len(slow.recv(30000))
            time.sleep(0.02)
        assert 0 < got < 8000000  # its answer was not through
        got += len(read_all(slow))
        assert got > 8000000
        stalled.close()
