# SPDX-License-Identifier: Apache-2.0
"""Small things that all three trainings share."""
import math
import os
import sys
import time

import torch

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import world  # noqa: E402  (beside this folder)

PAUSE = os.environ.get("DEMO_PAUSE_FILE", "")


def wait_while_paused():
    """Sleeps while the file named by DEMO_PAUSE_FILE exists and is younger than 3 minutes; the seconds slept."""
    start = time.time()
    while PAUSE:
        try:
            if time.time() - os.stat(PAUSE).st_mtime > 180:
                break
        except OSError:
            break
        time.sleep(1)
    return time.time() - start


class Clock:
    """Training time, pauses left out; starts at `spent` when a run is resumed."""

    def __init__(self, seconds, spent=0.0):
        self.seconds, self.begin = seconds, time.time() - spent

    def tick(self):
        self.begin += wait_while_paused()
        return self.share()

    def spent(self):
        return time.time() - self.begin

    def share(self):
        return self.spent() / self.seconds


def pictures(scenes, height, width):
    """float32 [n, 3, height, width], -1 to 1."""
    x = torch.stack([torch.from_numpy(world.draw(s, height, width)) for s in scenes])
    return x.permute(0, 3, 1, 2).contiguous() * 2 - 1


def save(obj, path):
    torch.save(obj, path + ".part")
    os.replace(path + ".part", path)


def log(line, file=None):
    print(line, flush=True)
    if file:
        with open(file, "a", encoding="utf-8") as f:
            f.write(line + "\n")


def cosine(x):
    return math.cos(min(max(x, 0.0), 1.0) * math.pi / 2)


def fp8(weight):
    """Scaled FP8: values and their one scale."""
    scale = weight.abs().max().float().clamp(min=1e-12) / 448
    return (weight.float() / scale).to(torch.float8_e4m3fn), scale


def through_fp8(weight):
    values, scale = fp8(weight)
    return values.float() * scale
