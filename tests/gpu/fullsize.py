#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Model files of full size on a machine that has nothing but Python.

    tests/gpu/fullsize.py pack FOLDER OUT     what sparse files of tests/bench/make_fullsize.py hold
    tests/gpu/fullsize.py write IN FOLDER     the files again, their matrices filled with numbers

A packed file is its size and the pieces that are no holes: header, norms, scales, biases. Writing puts
them back and fills each matrix from a pattern of normal random codes, as tests/bench/make_fullsize.py
does, but without numpy: a byte at random picks one of 256 quantiles.
"""
import json
import math
import os
import pathlib
import statistics
import struct
import sys
import zlib

PATTERN = 4194301  # codes; a prime, so that no two rows of a matrix start alike
FP8_SPREAD = 100.0
LEAST = 4096  # bytes of a matrix that the packed pieces may have of its beginning


def pieces(path):
    """(offset, bytes) of all that is no hole."""
    size, at, out = path.stat().st_size, 0, []
    with open(path, "rb") as f:
        while at < size:
            try:
                at = os.lseek(f.fileno(), at, os.SEEK_DATA)
            except OSError:  # only a hole is left
                break
            end = os.lseek(f.fileno(), at, os.SEEK_HOLE)
            out.append((at, os.pread(f.fileno(), end - at, at)))
            at = end
    return out


def pack(folder, out):
    with open(out, "wb") as f:
        for path in sorted(folder.glob("*.safetensors")):
            found = pieces(path)
            head = {"name": path.name, "size": path.stat().st_size,
                    "pieces": [[at, len(data)] for at, data in found]}
            body = zlib.compress(b"".join(data for _, data in found), 6)
            line = json.dumps(dict(head, body=len(body))).encode() + b"\n"
            f.write(line + body)


def e4m3(x):
    """The code of the nearest FP8 number."""
    sign, x = (0x80 if x < 0 else 0), min(abs(x), 448.0)
    exponent = max(math.frexp(x)[1] - 1, -6) if x else -6
    fraction = round(x / 2.0 ** (exponent - 3))
    if fraction == 16:
        exponent, fraction = exponent + 1, 8
    return sign | (fraction if fraction < 8 else (exponent + 7 << 3) + fraction - 8)


def bf16(x):
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16


class Patterns:
    def __init__(self):
        normal = statistics.NormalDist()
        self.quantiles = [normal.inv_cdf((i + 0.5) / 256) for i in range(256)]
        self.random, self.made = os.urandom(PATTERN), {}

    def of(self, dtype, deviation):
        if (dtype, deviation) not in self.made:
            if dtype == "F8_E4M3":
                table = bytes(e4m3(q * deviation) for q in self.quantiles)
                self.made[dtype, deviation] = self.random.translate(table)
            else:
                codes = [bf16(q * deviation) for q in self.quantiles]
                low, high = (bytes(c >> s & 255 for c in codes) for s in (0, 8))
                both = bytearray(2 * PATTERN)
                both[0::2], both[1::2] = self.random.translate(low), self.random.translate(high)
                self.made[dtype, deviation] = bytes(both)
        return self.made[dtype, deviation]


def fill(f, begin, end, pattern):
    f.seek(begin)
    start = begin // 7 % len(pattern) & ~1
    while begin < end:
        begin += f.write(pattern[start:start + end - begin])
        start = 0


def write_one(head, body, folder, patterns):
    with open(folder / head["name"], "wb") as f:
        f.truncate(head["size"])
        at = 0
        for offset, length in head["pieces"]:
            f.seek(offset)
            f.write(body[at:at + length])
            at += length
        length = struct.unpack("<Q", body[:8])[0]
        for tensor in json.loads(body[8:8 + length]).values():
            dtype, shape = tensor.get("dtype"), tensor.get("shape", [])
            if dtype not in ("F8_E4M3", "BF16") or len(shape) < 2:
                continue
            begin, end = (8 + length + o for o in tensor["data_offsets"])
            if end - begin <= LEAST:
                continue
            deviation = FP8_SPREAD
            if dtype == "BF16":
                inputs = math.prod(shape[1:]) if len(shape) < 5 else math.prod(shape[1:]) // shape[2]
                deviation = 2.0 ** round(math.log2(1 / math.sqrt(inputs)))
            fill(f, begin + LEAST, end, patterns.of(dtype, deviation))


def write(packed, folder):
    patterns = Patterns()
    folder.mkdir(parents=True, exist_ok=True)
    with open(packed, "rb") as f:
        for line in iter(f.readline, b""):
            head = json.loads(line)
            write_one(head, zlib.decompress(f.read(head["body"])), folder, patterns)


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in ("pack", "write"):
        sys.exit(__doc__)
    what, first, second = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
    (pack if what == "pack" else write)(first, second)
