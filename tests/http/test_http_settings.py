# SPDX-License-Identifier: Apache-2.0
"""Command line, kread.ini, systemd's sockets and messages."""
import os
import re
import socket
import subprocess

import pytest

from harness import FAKE, Daemon, clean_env, wait_until
from shim import KREAD_HTTP, Shim, request


def run(folder, *args, config=None, **env):
    if config is not None:
        (folder / "kread").mkdir(exist_ok=True)
        (folder / "kread" / "kread.ini").write_text(config)
    return subprocess.run([KREAD_HTTP, *args], env=clean_env(folder, **env), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, timeout=60, cwd=folder)


def test_help_names_every_setting(tmp_path):
    done = run(tmp_path, "--help")
    assert done.returncode == 0 and not done.stderr
    shown = run(tmp_path, "--check-config", config="").stdout
    for name in re.findall(r"^(?:; )?([a-z_]+) (?:= |is not set)", shown, re.M):
        assert re.search(r"^  (--)?%s\b" % name.replace("_", "[-_]"), done.stdout, re.M), name
    assert run(tmp_path, "-h").stdout == done.stdout
    assert all(len(line) <= 100 for line in done.stdout.splitlines())


def test_version(tmp_path):
    done = run(tmp_path, "--version")
    assert re.fullmatch(r"kread-http \d+\.\d+\.\d+\n", done.stdout) and done.returncode == 0


@pytest.mark.parametrize("args,says", [
    (["--nonsense"], "unknown option --nonsense"), (["extra"], '"extra" is no option'), (["--listen"], "needs a value"),
    (["--log-level", "loud"], "want error, warn, info or debug"), (["--help=x"], "takes no value"), (["--token_file", "x"], "unknown option"),
    (["--honour-client-sampling", "perhaps"], "want yes or no"), (["--cors", ""], "empty"), (["--max-count", "3"], "unknown option")])
def test_wrong_usage(tmp_path, args, says):
    done = run(tmp_path, *args)
    assert done.returncode == 2 and says in done.stderr and done.stderr.count("\n") == 1 and not done.stdout


@pytest.mark.parametrize("line,says", [
    ("nonsense = 1", "unknown name nonsense in [http]"), ("max_count = 0", "from 1 to 64"), ("max_count = 1\nmax_count = 2", "set twice"),
    ("max_body = 10", "from 1024"), ("listen =", "empty"), ("honour_client_sampling = maybe", "yes or no"), ("just words", "no \"name = value\""),
    ("hosts = " + "x" * 300, "shorten"), ("hosts = \udcff", "UTF-8"), ("config = x", "unknown name config"), ("max_steps = 1e3", "whole number")])
def test_wrong_lines(tmp_path, line, says):
    (tmp_path / "kread").mkdir()
    (tmp_path / "kread" / "kread.ini").write_bytes(("[http]\n" + line + "\n").encode(errors="surrogateescape"))
    done = run(tmp_path, "--check-config")
    assert done.returncode == 1 and says in done.stderr and "kread.ini:" in done.stderr, done.stderr


@pytest.mark.parametrize("listen,says", [("127.0.0.1", "want ADDRESS:PORT"), ("example.org:80", "want ADDRESS:PORT"), ("127.0.0.1:99999", "want ADDRESS:PORT"),
                                         ("127.0.0.1:x", "want ADDRESS:PORT"), ("[::1:80", "want ADDRESS:PORT"), (":80", "want ADDRESS:PORT"),
                                         (" , ", "no address"), (" ".join("127.0.0.1:%d" % p for p in range(1, 18)), "more than 16")])
def test_wrong_addresses(tmp_path, listen, says):
    done = run(tmp_path, "--check-config", "--listen", listen)
    assert done.returncode == 1 and says in done.stderr


def test_the_file_is_the_daemons_too(tmp_path):
    """Other sections are none of its business; the command line comes first."""
    config = "[kread]\nwhatever = 1\n[profile x]\nwidth = 64\n\n[http]\n  ; a comment\nmax_count = 3 ; another\ntoken_file = secret\ncors = a b\n" \
             "log_level=warn\n[generation]\nsteps = 9\n"
    (tmp_path / "kread").mkdir()
    (tmp_path / "kread" / "secret").write_text("x" * 20)
    done = run(tmp_path, "--check-config", "--cors", "c", "--cors", "d", config=config)
    assert done.returncode == 0, done.stderr
    assert "max_count = 3\n" in done.stdout and "cors = c d\n" in done.stdout and "log_level = warn\n" in done.stdout
    assert "token_file = %s\n" % (tmp_path / "kread" / "secret") in done.stdout
    again = run(tmp_path, "--check-config", config=done.stdout)  # what it prints it reads
    assert again.stdout == done.stdout


@pytest.mark.parametrize("where", ["found", "named", "linked"])
def test_the_daemons_socket_is_found_in_the_file(tmp_path, where):
    """A relative path starts where the daemon starts it: from the folder of the name, not of what it links to."""
    with Daemon(tmp_path) as daemon:
        file = tmp_path / ("other" if where == "named" else "kread") / "kread.ini"
        file.parent.mkdir()
        text = "[kread]\nsocket = ../kread.sock\ndefault_profile = p\n[profile p]\narchitecture = krea2\nvariant = turbo\n" \
               + "".join("%s = x\n" % key for key in ("diffusion_model", "text_encoder", "vae", "tokenizer"))
        if where == "linked":
            (tmp_path / "a" / "b" / "c").mkdir(parents=True)
            (tmp_path / "a" / "b" / "c" / "ini").write_text(text)
            file.symlink_to(tmp_path / "a" / "b" / "c" / "ini")
        else:
            file.write_text(text)
        checked = subprocess.run([FAKE, "--check-config", "--config", str(file)], env=clean_env(tmp_path), stdout=subprocess.PIPE, text=True)
        assert "socket = %s/../kread.sock\n" % file.parent in checked.stdout
        more = ["--config", str(file)] if where == "named" else []
        log = open(tmp_path / "h.log", "w+")
        p = subprocess.Popen([KREAD_HTTP, "--listen", "127.0.0.1:0", *more], env=clean_env(tmp_path), stderr=log)
        wait_until(lambda: "kread is ready" in open(tmp_path / "h.log").read())
        p.terminate()
        assert p.wait(60) == 0 and daemon


def test_a_port_that_is_taken(tmp_path):
    with Daemon(tmp_path) as daemon, Shim(tmp_path / "a", daemon) as s:
        done = run(tmp_path, "--listen", "127.0.0.1:%d" % s.port)
        assert done.returncode == 1 and "taken" in done.stderr and "--listen" in done.stderr


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as s:
            s.bind(("::1", 0))
        return True
    except OSError:
        return False


def test_several_addresses(tmp_path):
    listen = ("127.0.0.1:0", "127.0.0.2:0") + (("[::1]:0",) if has_ipv6() else ())
    with Daemon(tmp_path) as daemon, Shim(tmp_path / "a", daemon, listen=listen) as s:
        for address, port in re.findall(r"listening on http://\[?([0-9a-f.:]+?)\]?:(\d+)/", s.logged()):
            with socket.create_connection((address, int(port)), timeout=60) as c:
                c.sendall(request("GET", "/health", b"", "Connection: close"))
                assert b'"ok"' in b"".join(iter(lambda: c.recv(4096), b""))
        assert s.logged().count("listening on") == len(listen)


# -------------------------------------------------------------------------------------- systemd ---

def activated(folder, daemon, sock, *args, env=None):
    """As systemd starts it: the socket is descriptor 3, and LISTEN_PID is the process."""
    launcher = 'import os,sys\nos.dup2(int(sys.argv[1]), 3)\nos.environ["LISTEN_PID"]=str(os.getpid())\nos.execv(sys.argv[2], sys.argv[2:])'
    return subprocess.Popen(["/usr/bin/python3", "-c", launcher, str(sock.fileno()), KREAD_HTTP, "--socket", daemon.socket, *args],
                            env=clean_env(folder, LISTEN_FDS="1", **(env or {})), pass_fds=[sock.fileno()],
                            stderr=open(folder / "activated.log", "w"))


def test_socket_activation_and_notification(tmp_path):
    with Daemon(tmp_path) as daemon, socket.create_server(("127.0.0.1", 0)) as listening, \
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(str(tmp_path / "notify"))
        notify.settimeout(60)
        p = activated(tmp_path, daemon, listening, env={"NOTIFY_SOCKET": str(tmp_path / "notify")})
        said = b""
        while b"READY=1" not in said or b"STATUS=ready" not in said:
            said += notify.recv(4096) + b"\n"
        with socket.create_connection(listening.getsockname(), timeout=60) as c:
            c.sendall(request("GET", "/health", b"", "Connection: close"))
            assert b'"ok"' in b"".join(iter(lambda: c.recv(4096), b""))
        p.terminate()
        assert p.wait(60) == 0
        while b"STOPPING=1" not in said:
            said += notify.recv(4096) + b"\n"


@pytest.mark.parametrize("kind", ["unix", "open"])
def test_sockets_that_it_cannot_use(tmp_path, kind):
    with Daemon(tmp_path) as daemon:
        if kind == "unix":
            sock = socket.socket(socket.AF_UNIX)
            sock.bind(str(tmp_path / "u"))
            sock.listen()
        else:
            sock = socket.create_server(("0.0.0.0", 0))
        with sock:
            p = activated(tmp_path, daemon, sock)
            assert p.wait(60) == 1
        log = (tmp_path / "activated.log").read_text()
        assert ("no listening TCP socket" if kind == "unix" else "token_file") in log
    assert os.path.exists(tmp_path)
