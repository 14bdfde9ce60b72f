# SPDX-License-Identifier: Apache-2.0
"""What `make install` brings, and that `make uninstall` takes it away again. The Debian packages: check_deb."""
import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("KREAD_BUILD", ROOT / "build")).resolve()


def make(target, folder, *settings):
    done = subprocess.run(["make", "-C", str(ROOT), "B=%s" % BUILD, "DESTDIR=%s" % folder, *settings, target],
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=300)
    assert done.returncode == 0, done.stdout


def files(folder):
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if not p.is_dir()}


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("root")
    make("install-files", folder, "PREFIX=/usr")
    return folder


def test_everything_has_its_place(installed):
    there = files(installed)
    for name in ("bin/kread", "bin/kreactl", "bin/kread-http", "share/man/man8/kread.8", "share/man/man1/kreactl.1",
                 "share/man/man5/kread.ini.5", "share/man/man7/kread-protocol.7", "share/man/man8/kread-http.8",
                 "share/bash-completion/completions/kreactl", "share/zsh/site-functions/_kreactl",
                 "share/fish/vendor_completions.d/kreactl.fish", "lib/systemd/system/kread.service",
                 "lib/systemd/system/kread.socket", "lib/systemd/system/kread-http.service", "lib/systemd/user/kread.service",
                 "lib/systemd/user/kread.socket", "lib/systemd/user/kread-http.service", "lib/sysusers.d/kread.conf",
                 "lib/sysusers.d/kread-http.conf", "lib/tmpfiles.d/kread.conf", "share/kread/demo/demo.ini",
                 "share/doc/kread/README.md", "share/doc/kread/protocol.md", "share/doc/kread/kread.ini",
                 "share/doc/kread/cuda.conf", "share/doc/kread/examples/client.py"):
        assert "usr/" + name in there, name
    assert all(name.startswith("usr/") for name in there)
    for name in there:
        path = installed / name
        assert path.stat().st_mode & 0o7777 == (0o755 if "/bin/" in name else 0o644), name
        if "/systemd/" in name:
            text = path.read_text()
            assert "@" not in re.sub(r"@(system-service|privileged|resources)", "", text), name
            for program in re.findall(r"^ExecStart=(\S+)", text, flags=re.M):
                assert (installed / program.lstrip("/")).exists(), name


def test_another_prefix(tmp_path):
    make("install-files", tmp_path, "PREFIX=/opt/kread")
    assert all(name.startswith("opt/kread/") for name in files(tmp_path))
    assert "ExecStart=/opt/kread/bin/kread\n" in (tmp_path / "opt/kread/lib/systemd/system/kread.service").read_text()


def test_uninstall_takes_away_what_install_brought(tmp_path):
    make("install-files", tmp_path, "PREFIX=/usr")
    others = {"usr/bin/other", "usr/share/doc/other/README", "usr/share/kread/own.txt", "etc/kread/kread.ini"}
    for name in others:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("mine\n")
    make("uninstall", tmp_path, "PREFIX=/usr")
    assert files(tmp_path) == others
    assert not (tmp_path / "usr/share/doc/kread").exists() and not (tmp_path / "usr/share/kread/demo").exists()


def test_the_packages_name_every_file(installed):
    """What `make install` brings stands in one package's list, or `make deb` would stop at it."""
    lists = [line for path in (ROOT / "etc/debian").glob("*.install") for line in path.read_text().split("\n") if line]
    for name in files(installed):
        name = name.replace("usr/lib/systemd/system", "lib/systemd/system").replace("site-functions", "vendor-completions")
        assert len([entry for entry in lists if name == entry or name.startswith(entry + "/")]) == 1, name
