# SPDX-License-Identifier: Apache-2.0
"""The whole program on the emulated CUDA device: the module that kread opens at run time is the one
whose kernels are executed on the CPU (build/fast/kread-cuda.so). What tests/kernels asks of the
operations and tests/engine of whole jobs is asked of this device, too; then the daemon makes
pictures with it."""
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/e2e"))
from demo_daemon import BUILD, Daemon, golden_shares, within_the_yardstick  # noqa: E402

MODULE = BUILD / "fast/kread-cuda.so"
pytestmark = pytest.mark.skipif(not MODULE.exists(), reason="built with a sanitizer: no emulation")
LIMIT = 900  # seconds, for a machine that is busy with other things


@pytest.fixture
def gpu(monkeypatch):
    """Chooses the card that programs started from here on see."""
    def choose(architecture, **more):
        monkeypatch.setenv("KREAD_CUDA_MODULE", str(MODULE))
        monkeypatch.setenv("EMU_ARCHITECTURE", str(architecture))
        for name, value in more.items():
            monkeypatch.setenv(name, str(value))
    return choose


def run(program):
    done = subprocess.run([BUILD / "tests" / program], cwd=ROOT, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


@pytest.mark.parametrize("architecture", [80, 120])
@pytest.mark.parametrize("program", ["test_rows", "test_linear", "test_attention", "test_conv",
                                     "test_prepared"])
def test_operations(gpu, program, architecture):
    gpu(architecture)
    run("kernels/" + program)


def test_golden_jobs(gpu):
    gpu(90)
    run("engine/test_generate")


@pytest.mark.parametrize("architecture", [89, 90])  # our product, and cuBLASLt's
def test_golden_jobs_in_fp8(gpu, architecture):
    gpu(architecture, KREAD_TEST_FP8=1, KREAD_SHARED="none")
    run("engine/test_generate")


def test_memory_and_residency(gpu):
    gpu(86)
    run("engine/test_device_memory")


def test_the_demo_picture(gpu, tmp_path):
    gpu(80)
    shares = golden_shares(tmp_path, "--device", "cuda")
    assert within_the_yardstick(shares), shares


def test_status_says_what_it_runs_on(gpu, tmp_path):
    gpu(120)
    with Daemon(tmp_path) as running:  # device = auto
        status = running.kreactl("status").stdout.decode()
    assert "(emulated), 12.0" in status and "chosen because it is there" in status
    assert "weights_resident" in status and "weights_streamed" in status


@pytest.mark.parametrize("architecture, no_device, why", [
    (90, 1, "the NVIDIA driver finds no GPU"),
    (75, 0, "has compute capability 7.5 and kread needs 8.0"),
])
def test_a_machine_without_a_card(gpu, tmp_path, architecture, no_device, why):
    gpu(architecture, EMU_NO_DEVICE=no_device)
    with Daemon(tmp_path) as running:
        status = running.kreactl("status").stdout.decode()
    assert "cpu:" in status and "chosen because the CUDA device can't be opened" in status
    assert why in status and "set device to" not in status
    with pytest.raises(RuntimeError, match=why + ".*; set device to cpu or auto to do without\n"):
        Daemon(tmp_path, "--device", "cuda").__enter__()


def test_a_lost_card_ends_the_daemon_after_its_answer(gpu, tmp_path):
    gpu(90, EMU_LOSE_DEVICE=6000)
    with Daemon(tmp_path, "--device", "cuda") as running:
        done = running.kreactl("generate", "a red circle", "--width", 64, "--height", 64, "-o", "-")
        assert done.returncode == 1 and b"cudaError" in done.stderr, done
        assert running.process.wait(60) == 3
    assert "cudaError" in running.errors
