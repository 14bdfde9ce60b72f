# SPDX-License-Identifier: Apache-2.0
"""Machines on which the CUDA module can't be loaded, or can't start: what `kread --device cuda` says,
and why `auto` took the CPU. The module is the real one, as nvcc makes it, where a build has it; the
driver that it finds is our own (driver.c), which is of some version and fails as it is told."""
import ctypes
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/e2e"))
from demo_daemon import BUILD, Daemon  # noqa: E402

HERE = pathlib.Path(__file__).parent
MODULE = BUILD / "kread-cuda.so"
OUT = "; set device to cpu or auto to do without"


def library(path, source, *options):
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", path, "-x", "c", "-", *options], check=True,
                   input=source, text=True)
    return path


def loads(name):
    try:
        return ctypes.CDLL(str(name))
    except OSError:
        return None


def refusal(folder, kread=BUILD / "kread"):
    """The sentence with which a start on `--device cuda` fails."""
    env = dict(os.environ, XDG_CONFIG_HOME=str(folder), KREAD_DEMO_DIR=str(ROOT / "demo"))
    done = subprocess.run([kread, "--device", "cuda", "--socket", folder / "s"], env=env, text=True,
                          stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
    assert done.returncode == 1, done
    lines = done.stderr.strip().split("\n")
    assert len(lines) == 1 and lines[0].endswith(OUT), done.stderr
    return lines[0]


def why_the_cpu(folder):
    """What `auto` gives as its reason."""
    with Daemon(folder) as running:
        status = running.kreactl("status").stdout.decode()
    assert "cpu:" in status and OUT not in status
    return status


def says(folder, sentence):
    assert sentence in refusal(folder)
    assert "chosen because the CUDA device can't be opened: " + sentence in why_the_cpu(folder)


# ---------------------------------------------------------------------------- the module -----

def test_a_module_that_is_not_there(tmp_path, monkeypatch):
    path = str(tmp_path / "kread-cuda.so")
    monkeypatch.setenv("KREAD_CUDA_MODULE", path)
    says(tmp_path, f"the CUDA module can't be loaded: {path}: cannot open shared object file: "
         "No such file or directory; see what KREAD_CUDA_MODULE names")


def test_an_installation_without_a_module(tmp_path, monkeypatch):
    monkeypatch.delenv("KREAD_CUDA_MODULE", raising=False)
    alone = tmp_path / "bin/kread"
    alone.parent.mkdir()
    shutil.copy2(BUILD / "kread", alone)
    assert ("this installation has no CUDA module (kread-cuda.so); install the package kread-cuda"
            in refusal(tmp_path, alone))


def test_a_module_beside_the_program_that_is_damaged(tmp_path, monkeypatch):
    monkeypatch.delenv("KREAD_CUDA_MODULE", raising=False)
    alone = tmp_path / "bin/kread"
    alone.parent.mkdir()
    shutil.copy2(BUILD / "kread", alone)
    (tmp_path / "lib/kread").mkdir(parents=True)
    (tmp_path / "lib/kread/kread-cuda.so").write_bytes(b"no library")
    said = refusal(tmp_path, alone)
    assert "can't be loaded" in said and "install it anew, from the same build as kread" in said


def test_a_module_without_cublas(tmp_path, monkeypatch):
    """One that needs a library which is gone by the time that it is loaded."""
    cublas = library(tmp_path / "libcublasLt.so.0", "int cublasLtCreate(void) { return 0; }",
                     "-Wl,-soname,libcublasLt.so.0")
    module = library(tmp_path / "kread-cuda.so",
                     "int cublasLtCreate(void); int kr_cuda_open(void) { return cublasLtCreate(); }",
                     "-x", "none", str(cublas))
    cublas.unlink()
    monkeypatch.setenv("KREAD_CUDA_MODULE", str(module))
    says(tmp_path, "the CUDA module can't be loaded: libcublasLt.so.0: cannot open shared object "
         "file: No such file or directory; install cuBLAS of CUDA 13 (NVIDIA's package "
         "libcublas-13-0)")


def test_a_module_of_something_else(tmp_path, monkeypatch):
    monkeypatch.setenv("KREAD_CUDA_MODULE", str(library(tmp_path / "kread-cuda.so", "int x;")))
    says(tmp_path, "the CUDA module is none of kread's, it has no kr_cuda_open; see what "
         "KREAD_CUDA_MODULE names")


# ---------------------------------------------------------------------------- the driver -----

@pytest.fixture
def driver(tmp_path, monkeypatch):
    """Puts a driver of this version and with this error in front of any other one."""
    if not MODULE.exists():
        pytest.skip("no nvcc: the module is not built")
    if not loads(MODULE):
        pytest.skip("the module can't be loaded: there is no cuBLAS here")
    monkeypatch.delenv("KREAD_CUDA_MODULE", raising=False)

    def put(version, error):
        library(tmp_path / "driver/libcuda.so.1", (HERE / "driver.c").read_text())
        monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path / "driver"))
        monkeypatch.setenv("STUB_VERSION", str(version))
        monkeypatch.setenv("STUB_ERROR", str(error))
    return put


def test_no_driver(driver, tmp_path):
    if loads("libcuda.so.1"):
        pytest.skip("this machine has a driver")
    says(tmp_path, "there is no NVIDIA driver (libcuda.so.1); install NVIDIA's driver 580 or newer")


@pytest.mark.parametrize("version, name", [(9000, "9.0"), (11040, "11.4"), (12080, "12.8")])
def test_a_driver_that_is_too_old(driver, tmp_path, version, name):
    driver(version, 0)
    says(tmp_path, f"the NVIDIA driver is too old: it serves CUDA {name} and kread was built with "
         "CUDA 13.")


@pytest.mark.parametrize("error, sentence", [
    (100, "the NVIDIA driver finds no GPU that this process may use; see that nvidia-smi lists one"),
    (34, "libcuda.so.1 is the CUDA toolkit's stub instead of a driver's"),
    (803, "the NVIDIA driver's library and its kernel module are of different versions"),
    (802, "CUDA can't start: cudaErrorSystemNotReady ("),
    (999, "CUDA can't start: cudaErrorUnknown (unknown error); see that nvidia-smi works"),
])
def test_a_driver_that_does_not_start(driver, tmp_path, error, sentence):
    driver(13000, error)
    says(tmp_path, sentence)
