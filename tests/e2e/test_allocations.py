# SPDX-License-Identifier: Apache-2.0
"""Memory runs out at every so manieth allocation while the files of a model are looked at: whatever
it hits, kread ends with one sentence, or does without."""
import errno
import os
import re
import subprocess

import pytest

from demo_daemon import BUILD, ROOT

SOURCE = ROOT / "tests" / "server" / "preload" / "faults.c"
SETS = ("halves", "plain", "prefixed", "scaled")
EVERY = 1 if os.environ.get("KREAD_FAULTS") == "all" else 97
ONE_BY_ONE = 20  # the first ones, of the config and the options

with open(BUILD / "kread", "rb") as _binary:
    SANITIZED = re.search(rb"__(asan|tsan)_init", _binary.read()) is not None
pytestmark = pytest.mark.skipif(SANITIZED, reason="a sanitizer wants to be the first library")


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    path = tmp_path_factory.mktemp("shim") / "faults.so"
    subprocess.run(["cc", "-std=c11", "-D_GNU_SOURCE", "-O1", "-fno-builtin", "-shared", "-fPIC", SOURCE, "-o", path],
                   check=True)
    return str(path)


def config_of(name, folder):
    """The options for a golden set as the profile; the demo needs none."""
    if name == "demo":
        return []
    files = ROOT / "tests" / "golden" / name
    path = folder / "kread.ini"
    path.write_text("[kread]\ndefault_profile = it\n[profile it]\narchitecture = krea2\nvariant = turbo\n"
                    + "".join("%s = %s\n" % (key, files / file) for key, file in
                              (("diffusion_model", "dit.safetensors"), ("text_encoder", "te.safetensors"),
                               ("vae", "vae.safetensors"), ("tokenizer", "tokenizer"))))
    return ["--config", path]


@pytest.mark.parametrize("name", ["demo", *SETS])
def test_inspect_without_memory(tmp_path, shim, name):
    env = dict(os.environ, XDG_CONFIG_HOME=str(tmp_path), KREAD_DEMO_DIR=str(ROOT / "demo"))
    command = [BUILD / "kread", "--inspect", *config_of(name, tmp_path)]
    assert subprocess.run(command, env=env, capture_output=True).returncode == 0
    mark, n, hit = tmp_path / "mark", 1, 0
    while True:
        env.update(LD_PRELOAD=shim, KREAD_FAULT="alloc:%d:%d" % (n, errno.ENOMEM), KREAD_FAULT_MARK=str(mark))
        got = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
        if not mark.exists():
            assert got.returncode == 0, got
            break
        mark.unlink()
        assert got.returncode in (0, 1) or "command line: " in got.stderr, (n, got)
        if got.returncode:
            assert got.stderr.startswith("kread: ") and got.stderr.count("\n") == 1, (n, got.stderr)
            assert len(got.stderr) > len("kread: x\n"), n
            assert "damaged" not in got.stderr, (n, got.stderr)  # the file is not to blame
        hit += 1
        n += 1 if n < ONE_BY_ONE else EVERY
    assert hit > ONE_BY_ONE
