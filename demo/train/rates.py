# SPDX-License-Identifier: Apache-2.0
"""How often the model draws what it is asked for, by the judge; and a sheet of pictures to look at."""
import math
import random

import numpy as np
import torch

from common import world
from dit import sample
from judge import PARTS, judge

ALL = ("ok", "background", "count", *PARTS)


def test_prompts(n, seed=99):
    """Half with one object, half with two."""
    rng = random.Random(seed)
    return [world.caption(world.random_scene(rng, float(i % 2))) for i in range(n)]


@torch.no_grad()
def paint(dit, conditions, vae, prompts, seeds, size=(128, 128), steps=8, guidance=0.0):
    """uint8 pictures [n, height, width, 3]; noise as by torch's CPU generator, a seed for each."""
    out, (h, w) = [], size
    empty = conditions([""])
    for i in range(0, len(prompts), 32):
        taps, lengths = conditions(prompts[i:i + 32])
        noise = torch.stack([torch.randn(16, h // 8, w // 8, generator=torch.Generator().manual_seed(s))
                             for s in seeds[i:i + 32]])
        with torch.autocast("cpu", torch.bfloat16):
            z = sample(dit, noise, taps, lengths, empty, steps, guidance)
            x = torch.cat([vae.decode_normal(part).float() for part in z.split(8)])
        out.append(((x.clamp(-1, 1) * 0.5 + 0.5) * 255).round().byte().permute(0, 2, 3, 1))
    return torch.cat(out).numpy()


def rates(pictures, prompts):
    """Shares of right pictures, in all and by number of objects, and the verdicts."""
    verdicts = [judge(p, text) for p, text in zip(pictures, prompts)]
    groups = {"all": verdicts, "one": [v for v in verdicts if len(v["objects"]) == 1],
              "two": [v for v in verdicts if len(v["objects"]) == 2]}
    return {g: {k: float(np.mean([v[k] for v in vs])) for k in ALL} for g, vs in groups.items() if vs}, verdicts


def line(result):
    return "; ".join(f"{g}: " + " ".join(f"{k} {v:.0%}" for k, v in r.items()) for g, r in result.items())


def sheet(pictures, columns=8, marks=None):
    """One picture of all; those marked wrong get a red corner."""
    n, h, w, _ = pictures.shape
    rows = math.ceil(n / columns)
    page = np.zeros((rows * columns, h, w, 3), np.uint8)
    page[:n] = pictures
    for i, good in enumerate(marks or []):
        if not good:
            page[i, :8, :8] = (255, 0, 0)
    return page.reshape(rows, columns, h, w, 3).transpose(0, 2, 1, 3, 4).reshape(rows * h, columns * w, 3)
