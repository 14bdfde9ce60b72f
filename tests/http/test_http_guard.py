# SPDX-License-Identifier: Apache-2.0
"""Who may use the server: addresses, token, Host, Origin, CORS."""
import base64
import subprocess

import pytest

from harness import Daemon, clean_env
from shim import KREAD_HTTP, Shim, request

TOKEN = "0123456789abcdef-secret"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    with Daemon(tmp_path_factory.mktemp("guard")) as d:
        yield d


@pytest.fixture(scope="module")
def shim(daemon, tmp_path_factory):
    with Shim(tmp_path_factory.mktemp("open"), daemon, "hosts = Kread.example  other.example\ncors = https://ui.example/ https://b.example:8443") as s:
        yield s


@pytest.fixture(scope="module")
def locked(daemon, tmp_path_factory):
    folder = tmp_path_factory.mktemp("locked")
    (folder / "token").write_text(TOKEN + "\nthe second line is not read\n")
    with Shim(folder, daemon, "token_file = token", listen=("0.0.0.0:0",)) as s:
        yield s


def refused(folder, *args, settings=""):
    """The one sentence with which it does not start."""
    (folder / "c.ini").write_text("[http]\n" + settings + "\n")
    done = subprocess.run([KREAD_HTTP, "--config", str(folder / "c.ini"), *args], env=clean_env(folder), stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode in (1, 2) and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


# ------------------------------------------------------------------------------------ addresses ---

@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:1234", "[2001:db8::1]:1234", "[::ffff:127.0.0.1]:0"])
def test_no_address_but_loopback_without_a_token(tmp_path, address):
    assert "token_file" in refused(tmp_path, "--listen", address)
    assert "token_file" in refused(tmp_path, settings="listen = " + address)


def test_loopback_is_the_default(tmp_path):
    done = subprocess.run([KREAD_HTTP, "--check-config", "--config", "/dev/null"], env=clean_env(tmp_path),
                          stdout=subprocess.PIPE, text=True, timeout=60)
    assert "listen = 127.0.0.1:1234 [::1]:1234\n" in done.stdout and done.returncode == 0


@pytest.mark.parametrize("content,says", [("", "16 to 512"), ("short\n", "16 to 512"), ("x" * 600, "16 to 512"),
                                          ("with blanks in between\n", "without blanks"), ("\n" + TOKEN, "16 to 512"),
                                          ("\u00fc" * 20, "without blanks")])
def test_token_files_that_are_none(tmp_path, content, says):
    (tmp_path / "token").write_text(content)
    assert says in refused(tmp_path, settings="token_file = token")


def test_a_token_file_that_is_not_there(tmp_path):
    assert "nothing: No such file" in refused(tmp_path, "--token-file", str(tmp_path / "nothing"))


# ---------------------------------------------------------------------------------------- token ---

def basic(text):
    return "Basic " + base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize("header", ["Bearer " + TOKEN, "bearer " + TOKEN, basic("user:" + TOKEN), basic(":" + TOKEN), basic(TOKEN),
                                    basic("user:" + TOKEN).rstrip("=")])
def test_the_token_opens(locked, header):
    assert locked.get("/sdapi/v1/options", Authorization=header).status == 200
    assert locked.post("/sdapi/v1/txt2img", {"prompt": "x"}, Authorization=header).status == 200


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Bearer " + TOKEN[:-1], "Bearer " + TOKEN + "x", "Bearer " + TOKEN.upper(),
                                    "Bearer  x" + TOKEN, "Basic ", "Basic !!!!", basic(TOKEN + ":user"), basic("user:" + TOKEN[:-1]),
                                    basic("user:x" + TOKEN), "Digest " + TOKEN, TOKEN, "Basic " + "A" * 4000, "Bearer " + TOKEN * 20])
def test_nothing_else_does(locked, header):
    for method, path in (("GET", "/sdapi/v1/options"), ("POST", "/sdapi/v1/txt2img"), ("GET", "/no/such/path"), ("GET", "/metrics"),
                         ("POST", "/v1/images/generations"), ("GET", "/kread/v1/status"), ("POST", "/sdapi/v1/interrupt")):
        answer = locked.ask(method, path, **({} if header is None else {"Authorization": header}))
        assert answer.status == 401 and answer.headers["WWW-Authenticate"].split()[0] in ("Basic", "Bearer")
        assert TOKEN.encode() not in answer.body
    assert TOKEN not in locked.logged()


def test_what_needs_no_token(locked):
    for path in ("/", "/page.js", "/health"):
        assert locked.get(path).status == 200
    assert locked.ask("OPTIONS", "/v1/images/generations").status == 204


def test_without_a_token_any_password_will_do(shim):
    for header in ("Basic ", "Basic garbage!", "Bearer x", ""):
        assert shim.get("/sdapi/v1/options", Authorization=header).status == 200


# ----------------------------------------------------------------------------------- Host, Origin ---

@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1234", "localhost.", "127.0.0.1:7860", "127.1.2.3", "[::1]:1234", "[::1]",
                                  "kread.example", "KREAD.example:80", "other.example", "192.168.1.7:1234"])
def test_hosts_that_are_us(shim, host):
    assert shim.get("/sdapi/v1/options", Host=host).status == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "evil.example:1234", "kread.example.evil",
                                  "[evil", "", "a" * 300, "evil.example localhost"])
def test_hosts_that_are_not(shim, host):
    for method, path in (("GET", "/"), ("GET", "/sdapi/v1/options"), ("POST", "/sdapi/v1/txt2img"), ("GET", "/nothing")):
        answer = shim.ask(method, path, Host=host)
        assert answer.status in (400, 403), answer.body


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost.evil.example", "https://ui.example.evil", "ui.example",
                                    "http://ui.example", "https://ui.example:444", "file://", "http://127.0.0.1.evil.example:1234", ""])
def test_foreign_origins(shim, origin):
    for path in ("/sdapi/v1/txt2img", "/v1/images/generations", "/sdcpp/v1/img_gen", "/sdapi/v1/interrupt", "/sdapi/v1/options"):
        answer = shim.post(path, '{"prompt":"x"}', Origin=origin, Content_Type="text/plain")
        assert answer.status == 403 and "Access-Control-Allow-Origin" not in answer.headers, path
    readable = shim.get("/sdapi/v1/options", Origin=origin)
    assert "Access-Control-Allow-Origin" not in readable.headers
    assert "Access-Control-Allow-Origin" not in shim.ask("OPTIONS", "/sdapi/v1/txt2img", Origin=origin,
                                                         Access_Control_Request_Method="POST").headers


@pytest.mark.parametrize("origin", ["https://ui.example", "HTTPS://UI.example", "https://b.example:8443", "http://localhost:5001",
                                    "http://127.0.0.1", "http://[::1]:8080"])
def test_allowed_origins(shim, origin):
    preflight = shim.ask("OPTIONS", "/v1/images/generations", Origin=origin, Access_Control_Request_Method="POST",
                         Access_Control_Request_Headers="authorization,content-type")
    assert preflight.status == 204
    for answer in (preflight, shim.get("/v1/models", Origin=origin), shim.post("/sdapi/v1/txt2img", {"prompt": "x"}, Origin=origin),
                   shim.post("/sdapi/v1/txt2img", {}, Origin=origin)):
        assert answer.headers["Access-Control-Allow-Origin"] == origin and "Origin" in answer.headers["Vary"]
        assert "Access-Control-Allow-Credentials" not in answer.headers
    assert "Authorization" in preflight.headers["Access-Control-Allow-Headers"]


def test_the_own_origin(shim):
    for host in ("localhost:1234", "kread.example"):
        answer = shim.post("/sdapi/v1/txt2img", {"prompt": "x"}, Host=host, Origin="http://" + host)
        assert answer.status == 200 and "Access-Control-Allow-Origin" not in answer.headers


def test_cors_star(daemon, tmp_path):
    with Shim(tmp_path, daemon, args=("--cors", "*")) as s:
        answer = s.post("/sdapi/v1/txt2img", {"prompt": "x"}, Origin="https://anybody.example")
        assert answer.status == 200 and answer.headers["Access-Control-Allow-Origin"] == "*"
        assert "Access-Control-Allow-Credentials" not in answer.headers


def test_options_answers_anybody_everywhere(shim):
    for path in ("/v1/images/generations", "/sdapi/v1/txt2img", "/", "/nothing", "*"):
        data = shim.raw(request("OPTIONS", path, b"", "Connection: close"))
        assert data.startswith(b"HTTP/1.1 204") and b"\r\nAllow: " in data, data
