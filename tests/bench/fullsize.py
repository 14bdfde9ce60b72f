#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What full-size files cost before and beside the arithmetic: fullsize.py [FOLDER] [--tokenizer DIR] [--build DIR] [--keep]

Writes synthetic Krea 2 files of full size (tests/bench/make_fullsize.py, 18 GB) unless FOLDER has them,
then measures `kread --inspect`, the time from exec to the first accepted job, one step and a whole two-step
picture at 256x256, and the daemon's own memory (what is not the files' page cache). Prints a line each."""
import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
REAL = pathlib.Path(os.environ.get("KREAD_SHARED", ROOT.parent / "shared")) / "data/qwen25_tokenizer"


class Memory(threading.Thread):
    """Samples a process's anonymous memory (RssAnon) until it ends."""

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.path, self.peak = "/proc/%d/status" % pid, 0

    def run(self):
        while True:
            try:
                with open(self.path) as f:
                    fields = dict(l.split(":", 1) for l in f if l.startswith(("RssAnon", "RssShmem")))
            except OSError:
                return
            if not fields:
                return
            self.peak = max(self.peak, sum(int(v.split()[0]) for v in fields.values()) / 1024)
            time.sleep(0.002)


def config(folder, tokenizer):
    path = folder / "kread.ini"
    path.write_text("[profile full]\narchitecture = krea2\nvariant = turbo\n"
                    + "".join("%s = %s\n" % (k, next(iter(sorted(folder.glob(p)))))
                              for k, p in (("diffusion_model", "krea2*.safetensors"),
                                           ("text_encoder", "qwen3vl*.safetensors"),
                                           ("vae", "*vae*.safetensors")))
                    + "tokenizer = %s\n" % tokenizer)
    return path


def timed(argv, env):
    start = time.monotonic()
    process = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    memory = Memory(process.pid)
    memory.start()
    out, errors = process.communicate()
    if process.returncode != 0:
        sys.exit("%s: %s" % (" ".join(map(str, argv)), errors.decode()))
    return time.monotonic() - start, memory.peak, out.decode()


def measure(folder, build, tokenizer):
    ini = config(folder, tokenizer)
    env = dict(os.environ, KREAD_SOCKET=str(folder / "s"))
    seconds, peak, _ = timed([build / "kread", "--config", ini, "--profile", "full", "--inspect"], env)
    print("inspect:            %6.3f s, %4.0f MB of its own memory" % (seconds, peak), flush=True)

    start = time.monotonic()
    daemon = subprocess.Popen([build / "kread", "--config", ini, "--profile", "full", "--log-level", "info"], env=env)
    memory = Memory(daemon.pid)
    memory.start()
    kreactl = [build / "kreactl"]
    try:
        while subprocess.run([*kreactl, "status"], env=env, capture_output=True).returncode != 0:
            if daemon.poll() is not None:
                sys.exit("kread ended before it took a job")
        print("ready for a job:    %6.3f s after exec" % (time.monotonic() - start), flush=True)
        for steps in (1, 2):
            seconds, _, _ = timed([*kreactl, "generate", "a fox", "--width", "256", "--height", "256",
                                   "--steps", str(steps), "--seed", "1", "-o", folder / "full.png"], env)
            print("256x256, %d step(s): %6.1f s" % (steps, seconds), flush=True)
        print("peak memory:        %6.0f MB of its own" % memory.peak, flush=True)
    finally:
        daemon.terminate()
        daemon.wait()


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    args.add_argument("folder", nargs="?")
    args.add_argument("--tokenizer", default=str(REAL), help="folder of Qwen's real tokenizer")
    args.add_argument("--build", default=str(ROOT / "build"))
    args.add_argument("--keep", action="store_true")
    args = args.parse_args()
    folder = pathlib.Path(args.folder or tempfile.mkdtemp(prefix="kread-full-", dir="/var/tmp"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if not list(folder.glob("*.safetensors")):
            seconds, _, _ = timed([sys.executable, HERE / "make_fullsize.py", folder], os.environ)
            print("files written:      %6.1f s" % seconds, flush=True)
        measure(folder, pathlib.Path(args.build).resolve(), args.tokenizer)
    finally:
        if not args.keep and not args.folder:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
