#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""How soon a started daemon takes a job, and what it adds to one: startup.py [FOLDER] [--tokenizer DIR] [--starts N]

Start-up: kread on files of full size (of FOLDER, else sparse ones that make_fullsize.py writes), from before its exec until
`generate` is answered, by a client that polls the socket; with the files in the page cache and dropped from it. Overhead: the demo's smallest picture over one
connection, from `generate` to `done` in the client, less the encoding, denoising, decoding and PNG that `done` tells of;
the prompts differ, so that each is encoded. Fails above 0.2 s
(median) or 1 ms. Of the build in $KREAD_BUILD, with its tests/kread-fake as well, as the harness wants."""
import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = os.environ.setdefault("KREAD_BUILD", str(ROOT / "build"))
sys.path[:0] = [str(HERE), str(HERE.parent / "server")]

from fullsize import REAL, config  # noqa: E402
from harness import Client, clean_env  # noqa: E402

START_LIMIT, OVERHEAD_LIMIT, JOBS = 0.2, 1.0, 100  # seconds, milliseconds
STAGES = "encode", "denoise", "decode", "png"


def median(values):
    return sorted(values)[len(values) // 2]


def first_answer(process, path):
    """A client of a daemon that is starting, its `hello` answered."""
    while True:
        if process.poll() is not None:
            sys.exit("kread ended before it took a job")
        try:
            return Client(path, hello="bench")
        except OSError:
            time.sleep(0.0005)


def start(argv, env, path):
    process = subprocess.Popen(argv, env=env, stderr=subprocess.DEVNULL)
    return process, first_answer(process, path)


def stop(process, client):
    client.close()
    process.terminate()
    process.wait()


def forget(folders):
    """Drops the folders' files from the page cache."""
    for path in (p for f in folders for p in pathlib.Path(f).iterdir() if p.is_file()):
        with open(path, "rb") as f:
            os.fsync(f.fileno())
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def starts(kread, ini, count, cold=()):
    """Seconds from before exec to an accepted job, which is then cancelled."""
    seconds = []
    with tempfile.TemporaryDirectory() as home:
        path = os.path.join(home, "s")
        argv = [kread, "--config", ini, "--profile", "full", "--socket", path]
        for _ in range(count):
            forget(cold)
            begin = time.monotonic()
            process, client = start(argv, clean_env(home), path)
            job = client.generate("a fox", width=256, height=256, steps=1, seed=1)["job"]
            seconds.append(time.monotonic() - begin)
            client.call("cancel", job=job)
            client.finish(job)
            stop(process, client)
    return seconds


def overhead(client, number):
    """Milliseconds of one job beside its stages."""
    begin = time.perf_counter()
    job = client.generate("a red circle %d" % number, width=64, height=64, steps=1, seed=number)["job"]
    end, about, _ = client.finish(job)
    seconds = time.perf_counter() - begin
    assert end == "done", about
    return (seconds - sum(about["times"][s] for s in STAGES)) * 1000


def overheads(kread):
    with tempfile.TemporaryDirectory() as home:
        path, env = os.path.join(home, "s"), clean_env(home, KREAD_DEMO_DIR=str(ROOT / "demo"))
        process, client = start([kread, "--socket", path], env, path)
        values = [overhead(client, i) for i in range(JOBS + JOBS // 10)][JOBS // 10:]
        stop(process, client)
    return values


def measure(folder, args):
    kread = os.path.join(BUILD, "kread")
    ini, fast = config(folder, args.tokenizer), True
    for name, cold in ("warm", ()), ("cold", (folder, args.tokenizer)):
        seconds = starts(kread, ini, args.starts, cold)
        print("exec to the first accepted job, files %s: median %.3f s, worst %.3f s of %d starts"
              % (name, median(seconds), max(seconds), len(seconds)), flush=True)
        fast = fast and median(seconds) <= START_LIMIT
    added = overheads(kread)
    print("a warm job beside its stages: median %.3f ms, worst %.3f ms of %d" % (median(added), max(added), len(added)))
    return fast and median(added) <= OVERHEAD_LIMIT


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    args.add_argument("folder", nargs="?")
    args.add_argument("--tokenizer", default=str(REAL), help="folder of Qwen's real tokenizer")
    args.add_argument("--starts", type=int, default=20)
    args = args.parse_args()
    if not os.path.isdir(args.tokenizer):
        print("start-up was not measured: no tokenizer of real size at %s" % args.tokenizer)
        return 0
    folder = pathlib.Path(args.folder or tempfile.mkdtemp(prefix="kread-start-", dir="/var/tmp"))
    try:
        if not list(folder.glob("*.safetensors")):
            subprocess.run([sys.executable, HERE / "make_fullsize.py", "--sparse", folder], check=True,
                           stdout=subprocess.DEVNULL)
        return 0 if measure(folder, args) else 1
    finally:
        if not args.folder:
            shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
