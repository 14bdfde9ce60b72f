# SPDX-License-Identifier: Apache-2.0
"""What a stranger runs: the demo's script, the judge's own test, and an installation."""
import os
import subprocess
import sys

from demo_daemon import BUILD, ROOT


def run(argv, **options):
    return subprocess.run([str(a) for a in argv], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=300, text=True, **options)


def test_the_demo_ends_with_the_path_of_its_picture(tmp_path):
    done = run([ROOT / "demo/run", BUILD], env=dict(os.environ, TMPDIR=str(tmp_path)))
    assert done.returncode == 0, done.stdout
    path = done.stdout.strip().split("\n")[-1]
    assert path == str(BUILD / "demo.png")
    assert open(path, "rb").read(8) == b"\x89PNG\r\n\x1a\n"
    assert os.listdir(tmp_path) == []  # nothing is left behind


def test_the_judge_accepts_drawings_and_refuses_wrong_ones():
    done = run([sys.executable, ROOT / "demo/test_judge.py", 10])
    assert done.returncode == 0, done.stdout


def test_an_installation_finds_its_demo(tmp_path):
    make = ["make", "-C", ROOT, "B=%s" % BUILD, "DESTDIR=%s" % tmp_path, "PREFIX=/usr", "install-files"]
    assert run(make).returncode == 0
    kread = tmp_path / "usr/bin/kread"
    env = {k: v for k, v in os.environ.items() if not k.startswith(("KREAD_", "XDG_"))}
    done = run([kread, "--inspect"], env=dict(env, HOME=str(tmp_path)))
    assert done.returncode == 0 and "demo" in done.stdout, done.stdout
    for name in ("lib/systemd/system/kread.service", "lib/sysusers.d/kread.conf",
                 "share/doc/kread/README.md", "bin/kreactl"):
        assert (tmp_path / "usr" / name).exists(), name
    assert "@PREFIX@" not in (tmp_path / "usr/lib/systemd/system/kread.service").read_text()
