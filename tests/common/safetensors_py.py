# SPDX-License-Identifier: Apache-2.0
"""A minimal safetensors writer for tests: NumPy in, a file out, with FP8 and BF16, which NumPy lacks."""
import json
import os
import struct

import numpy as np

SIZES = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "I64": 8, "I32": 4,
         "I8": 1, "U8": 1}
OF_NUMPY = {"float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64", "int32": "I32",
            "int8": "I8", "uint8": "U8"}


class Tensor:
    """dtype and shape as the file spells them; data: bytes-like, or a function of a file object and a
    size that writes them (for what is too large to hold)."""

    def __init__(self, dtype, shape, data):
        self.dtype, self.shape, self.data = dtype, [int(n) for n in shape], data
        self.size = SIZES[dtype] * int(np.prod(self.shape, dtype=np.int64))

    def write(self, f):
        start = f.tell()
        if callable(self.data):
            self.data(f, self.size)
        else:
            f.write(self.data)
        assert f.tell() == start + self.size, "data that does not fill its shape"


def plain(array):
    """An array in the type that NumPy has for it."""
    array = np.asarray(array)
    return Tensor(OF_NUMPY[array.dtype.name], array.shape, array.tobytes())


def bf16_bits(array):
    """float32 to BF16, rounded to nearest even, as uint16."""
    bits = np.ascontiguousarray(array, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7fff + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def bf16(array):
    return Tensor("BF16", np.shape(array), bf16_bits(array).tobytes())


def _e4m3_values():
    code = np.arange(127)
    exponent, fraction = code >> 3, code & 7
    return np.where(exponent > 0, np.ldexp(1 + fraction / 8, exponent - 7), fraction / 512)


def e4m3_bits(array):
    """float to F8_E4M3, rounded to nearest even, beyond the largest (448) cut to it, as uint8."""
    array = np.asarray(array, dtype=np.float64)
    values = _e4m3_values()
    middles = (values[1:] + values[:-1]) / 2
    code = np.searchsorted(middles, np.abs(array))
    tie = np.abs(array) == middles[np.minimum(code, len(middles) - 1)]
    code += (tie & (code % 2 == 1)).astype(code.dtype)
    return (code | np.where(np.signbit(array), 128, 0)).astype(np.uint8)


def scaled_fp8(array):
    """(weight, scale): one scale for the whole matrix, such that its largest value becomes 448."""
    largest = float(np.max(np.abs(array)))
    scale = np.float32(largest / 448 if largest > 0 else 1)
    return Tensor("F8_E4M3", np.shape(array), e4m3_bits(array / scale).tobytes()), plain(scale)


def text(string):
    """A comfy_quant tensor."""
    data = string.encode()
    return Tensor("U8", [len(data)], data)


def write(path, tensors, metadata=None):
    """Writes {name: Tensor} with the wide types first, so that all are aligned. Appears under its name
    only when it is complete."""
    names = sorted(tensors, key=lambda n: (-SIZES[tensors[n].dtype], tensors[n].dtype, n))
    header, at = {}, 0
    if metadata:
        header["__metadata__"] = metadata
    for name in names:
        t = tensors[name]
        header[name] = {"dtype": t.dtype, "shape": t.shape, "data_offsets": [at, at + t.size]}
        at += t.size
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    with open(path + ".part", "wb", buffering=0) as f:
        f.write(struct.pack("<Q", len(encoded)) + encoded)
        for name in names:
            tensors[name].write(f)
        f.truncate(8 + len(encoded) + at)
    os.rename(path + ".part", path)
