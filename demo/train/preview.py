# SPDX-License-Identifier: Apache-2.0
"""Fits the map from latents to colours that previews of the demo model use, and writes it into the VAE's header.

    preview.py TRACE VAE.safetensors

TRACE is what `kread --profile demo --trace TRACE` left behind for some pictures, one folder a job. Each picture, every
8x8 pixels averaged, is explained by its latent: least squares, 16 factors and a bias for each colour. The numbers go to
`kread.latent_rgb` of the header's metadata, factors channel by channel, then the bias; the tensors' bytes stay as they
are. Needs NumPy only.
"""
import glob
import json
import os
import sys

import numpy as np

CELL = 8                                                # pixels of the picture to one cell of the latent, each way


def pair(job):
    """Of one job: latents [cells, 16] and the colours they became [cells, 3], -1 to 1."""
    latent = np.load(sorted(glob.glob(os.path.join(job, "latent_*.npy")))[-1])
    picture = np.clip(np.load(os.path.join(job, "decoded.npy")), -1, 1)
    channels, h, w = latent.shape
    cells = picture.reshape(3, h, CELL, w, CELL).mean((2, 4))
    return latent.reshape(channels, -1).T, cells.reshape(3, -1).T


def fit(x, y):
    """[17, 3], the bias last, and the share of the variance that it explains."""
    x = np.hstack((x, np.ones((len(x), 1), x.dtype))).astype(np.float64)
    solution = np.linalg.lstsq(x, y, rcond=None)[0]
    return solution, 1 - ((x @ solution - y) ** 2).sum() / ((y - y.mean(0)) ** 2).sum()


def write(path, text):
    """Another header before the same data."""
    with open(path, "rb") as f:
        header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
        data = f.read()
    metadata = {**header.pop("__metadata__", {}), "kread.latent_rgb": text}
    header = {"__metadata__": metadata, **header}
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    with open(path + ".part", "wb") as f:
        f.write(len(raw).to_bytes(8, "little") + raw + data)
    os.replace(path + ".part", path)


def main():
    trace, path = sys.argv[1:]
    latents, colours = zip(*(pair(job) for job in sorted(glob.glob(os.path.join(trace, "*")))))
    solution, share = fit(np.concatenate(latents), np.concatenate(colours))
    write(path, " ".join(f"{value:.4f}" for value in solution.ravel()))
    print(f"{len(latents)} pictures; {share:.1%} of the variance explained")


if __name__ == "__main__":
    main()
