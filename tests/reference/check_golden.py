# SPDX-License-Identifier: Apache-2.0
"""check_golden.py SET...: runs the public implementations again over golden sets and compares.

Prints the largest relative RMS difference of each case; exits 1 if tokens differ or a tensor is
further than 1e-5 away. Shows that a golden is what it says, whoever made it.
"""

import json
import pathlib
import sys

import numpy as np
import torch

import krea2


def check_case(reference, case):
    trace = krea2.run(reference, json.loads((case / "request.json").read_text()))
    want = {p.stem: np.load(p) for p in case.glob("*.npy")}
    missing = set(want) - set(trace)
    figures = krea2.errors(trace, {n: t for n, t in want.items() if n in trace})
    worst = max(figures, key=figures.get)
    same = np.array_equal(trace["tokens"], want["tokens"])
    print(f"{case}: tokens {'equal' if same else 'DIFFER'}, worst {worst} {figures[worst]:.2e}")
    return same and not missing and figures[worst] < 1e-5


def main():
    torch.set_num_threads(1)
    good = True
    for folder in map(pathlib.Path, sys.argv[1:]):
        reference = krea2.Reference(folder)
        for request in sorted(folder.glob("*/request.json")):
            good &= check_case(reference, request.parent)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
