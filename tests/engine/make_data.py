# SPDX-License-Identifier: Apache-2.0
"""make_data.py FOLDER: writes the reference values that the engine's tests compare with.

    noise_cpu_SEED.npy    torch.randn() of torch's CPU generator, a latent of [16, 8, 8]
    noise_cuda_SEED.npy   Philox 4x32-10 and Box-Muller in Python's integers and doubles, the same size
    krea_STEPS.npy        the official program's timesteps() for several mu, one row each
    comfyui_STEPS.npy     ComfyUI's "simple" scheduler over its table of 10000, likewise

Needs torch and numpy; tests only read what is committed.
"""

import math
import pathlib
import sys

import numpy as np
import torch

SEEDS = (0, 42, 2**32 + 1, 2**63 - 1)
MUS = (0.5, 0.58125, 0.90625, 1.15, 2.20625)
STEPS = (1, 3, 8, 28, 52)
SHAPE = (16, 8, 8)


def philox(counter, key):
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def cuda_normal(seed, element):
    c = philox((0, 0, element, 0), (seed & 0xFFFFFFFF, seed >> 32))
    u = c[0] * 2.0**-32 + 2.0**-33
    return math.sqrt(-2 * math.log(u)) * math.sin(2 * math.pi * (c[1] * 2.0**-32 + 2.0**-33))


def timesteps(mu, steps):
    grid = torch.linspace(1, 0, steps + 1)
    return (math.exp(mu) / (math.exp(mu) + (1.0 / grid - 1.0) ** 1.0)).numpy()


def simple(mu, steps):
    table = torch.arange(1, 10001, 1) / 10000
    table = math.exp(mu) / (math.exp(mu) + (1 / table - 1) ** 1.0)
    picks = [float(table[-(1 + int(i * (len(table) / steps)))]) for i in range(steps)]
    return np.array(picks + [0.0], dtype=np.float32)


def main():
    folder = pathlib.Path(sys.argv[1])
    count = math.prod(SHAPE)
    for seed in SEEDS:
        noise = torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed)).numpy()
        np.save(folder / f"noise_cpu_{seed}.npy", noise)
        noise = np.array([cuda_normal(seed, i) for i in range(count)], dtype=np.float32)
        np.save(folder / f"noise_cuda_{seed}.npy", noise.reshape(SHAPE))
    for steps in STEPS:
        np.save(folder / f"krea_{steps}.npy", np.stack([timesteps(mu, steps) for mu in MUS]))
        np.save(folder / f"comfyui_{steps}.npy", np.stack([simple(mu, steps) for mu in MUS]))


main()
