#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes model files with the sizes, names and formats of the real ones and made-up weights.

    tests/bench/make_fullsize.py [--sparse] [--blocks N] [--layers N] [--only KIND] FOLDER

    krea2_turbo_fp8_scaled.safetensors   12.2 GiB, 686 tensors, header metadata as in Comfy-Org's file
    qwen3vl_4b_fp8_scaled.safetensors     4.9 GiB, comfy_quant tensors, vision tower included
    qwen_image_vae.safetensors            0.24 GiB, encoder and decoder

Matrices are filled from one block of normal random numbers, repeated from a new place for each tensor
and scaled by 1 / sqrt(inputs), so that activations keep their size; norms are about one. Pictures are
noise, but arithmetic, memory and time are those of the real model.

Writing them takes as long as the disk needs for 17 GiB. --sparse leaves the matrices as holes, which is
done at once and takes no disk: zeros, as good for times of loading and for memory (a hole that is read
takes its page of memory like any other), not for looking at values. --blocks and --layers make
smaller files of the full width.
"""
import argparse
import json
import math
import os
import sys
import time

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "common"))
import safetensors_py as st

PATTERN = 4194301  # values; a prime, so that no two rows of a matrix start alike
SMALL = 4096  # bytes of a matrix that is written in any case: kread refuses a VAE whose conv2 is all zeros
FP8_SPREAD = 100.0  # of the stored FP8 numbers: 448 lies 4.5 deviations out


class Filler:
    """Makes tensors whose data are written from repeated patterns, never held as a whole."""

    def __init__(self, sparse):
        self.sparse = sparse
        self.random = np.random.default_rng(20)
        self.normal = self.random.standard_normal(PATTERN, dtype=np.float32)
        self.patterns = {}

    def _pattern(self, dtype, deviation):
        key = dtype, deviation
        if key not in self.patterns:
            scaled = self.normal * np.float32(deviation)
            bits = st.bf16_bits(scaled) if dtype == "BF16" else st.e4m3_bits(scaled)
            self.patterns[key] = bits.tobytes() * 2
        return memoryview(self.patterns[key])

    def _repeated(self, dtype, deviation):
        start = int(self.random.integers(PATTERN)) * st.SIZES[dtype]
        period = PATTERN * st.SIZES[dtype]

        def fill(f, size):
            if self.sparse and size > SMALL:
                f.seek(size, os.SEEK_CUR)
                return
            block = self._pattern(dtype, deviation)[start:start + period]
            while size > 0:
                size -= f.write(block[:min(size, period)])

        return fill

    def fp8(self, shape, gain=1.0):
        """(weight, scale) of a matrix whose products are `gain` times as large as what goes in."""
        scale = gain / (FP8_SPREAD * math.sqrt(shape[1]))
        return (st.Tensor("F8_E4M3", shape, self._repeated("F8_E4M3", FP8_SPREAD)),
                st.plain(np.float32(scale)))

    def matrix(self, shape, gain=1.0, inputs=None):
        """BF16 weights; the deviation is rounded to a power of two so that patterns are few."""
        deviation = gain / math.sqrt(inputs or shape[1])
        return st.Tensor("BF16", shape,
                         self._repeated("BF16", 2.0 ** round(math.log2(deviation))))

    def vector(self, shape, mean=0.0, deviation=0.05):
        return st.bf16(mean + deviation * self.random.standard_normal(shape, dtype=np.float32))


def quantized(out, layers, fill, name, shape, gain=1.0, full=False):
    """Puts a scaled FP8 matrix into `out` and its declaration into `layers`."""
    out[name + ".weight"], out[name + ".weight_scale"] = fill.fp8(shape, gain)
    layers[name] = {"format": "float8_e4m3fn"}
    if full:
        layers[name]["full_precision_matrix_mult"] = True


def attention_and_mlp(out, layers, fill, name, width, kv_width, head, hidden):
    q = name + ".attn."
    for part, shape in (("wq", [width, width]), ("wk", [kv_width, width]), ("wv", [kv_width, width]),
                        ("gate", [width, width]), ("wo", [width, width])):
        quantized(out, layers, fill, q + part, shape, full=part in ("gate", "wo"))
    out[q + "qknorm.qnorm.scale"] = fill.vector([head])
    out[q + "qknorm.knorm.scale"] = fill.vector([head])
    quantized(out, layers, fill, name + ".mlp.gate", [hidden, width])
    quantized(out, layers, fill, name + ".mlp.up", [hidden, width])
    quantized(out, layers, fill, name + ".mlp.down", [width, hidden])
    out[name + ".prenorm.scale"] = fill.vector([width])
    out[name + ".postnorm.scale"] = fill.vector([width])


def diffusion_model(fill, blocks):
    width, kv_width, head, hidden = 6144, 1536, 128, 16384
    text, text_hidden, taps, time_width, pixels = 2560, 6912, 12, 256, 64
    out, layers = {}, {}
    for name, rows, columns in (("first", width, pixels), ("tmlp.0", width, time_width),
                                ("tmlp.2", width, width), ("tproj.1", 6 * width, width),
                                ("txtmlp.1", width, text), ("txtmlp.3", width, width),
                                ("last.linear", pixels, width)):
        gain = 0.25 if name == "tproj.1" else 1.0
        out[name + ".weight"] = fill.matrix([rows, columns], gain)
        out[name + ".bias"] = fill.vector([rows], deviation=0.01)
    out["txtmlp.0.scale"] = fill.vector([text])
    out["txtfusion.projector.weight"] = fill.vector([1, taps], 1 / taps, 0.02)
    out["last.norm.scale"] = fill.vector([width])
    out["last.modulation.lin"] = fill.vector([2, width])
    for part in ("layerwise_blocks.0", "layerwise_blocks.1", "refiner_blocks.0", "refiner_blocks.1"):
        attention_and_mlp(out, layers, fill, "txtfusion." + part, text, text, head, text_hidden)
    for i in range(blocks):
        out["blocks.%d.mod.lin" % i] = fill.vector([6 * width], deviation=0.1)
        attention_and_mlp(out, layers, fill, "blocks.%d" % i, width, kv_width, head, hidden)
    return out, {"_quantization_metadata": json.dumps({"format_version": "1.0", "layers": layers})}


def vision_tower(fill):
    """What text-to-image never reads, at its true size (415 M parameters)."""
    out, width, hidden, text = {}, 1024, 4096, 2560

    def linear(name, rows, columns):
        out[name + ".weight"] = fill.matrix([rows, columns])
        out[name + ".bias"] = fill.vector([rows])

    def norm(name, size):
        out[name + ".weight"] = fill.vector([size], 1)
        out[name + ".bias"] = fill.vector([size])

    out["patch_embed.proj.weight"] = fill.matrix([width, 3, 2, 16, 16], inputs=1536)
    out["patch_embed.proj.bias"] = fill.vector([width])
    out["pos_embed.weight"] = fill.matrix([2304, width])
    for i in range(24):
        norm("blocks.%d.norm1" % i, width)
        norm("blocks.%d.norm2" % i, width)
        linear("blocks.%d.attn.qkv" % i, 3 * width, width)
        linear("blocks.%d.attn.proj" % i, width, width)
        linear("blocks.%d.mlp.linear_fc1" % i, hidden, width)
        linear("blocks.%d.mlp.linear_fc2" % i, width, hidden)
    for name in ("merger", "deepstack_merger_list.0", "deepstack_merger_list.1",
                 "deepstack_merger_list.2"):
        norm(name + ".norm", width if name == "merger" else hidden)
        linear(name + ".linear_fc1", hidden, hidden)
        linear(name + ".linear_fc2", text, hidden)
    return {"model.visual." + name: tensor for name, tensor in out.items()}


def text_encoder(fill, layer_count):
    width, heads, kv_heads, head, hidden, vocabulary = 2560, 32, 8, 128, 9728, 151936
    out, layers = vision_tower(fill), {}
    out["model.embed_tokens.weight"] = fill.matrix([vocabulary, width])
    out["model.norm.weight"] = fill.vector([width], 1)
    for i in range(layer_count):
        name = "model.layers.%d." % i
        for part, rows, columns in (("self_attn.q_proj", heads * head, width),
                                    ("self_attn.k_proj", kv_heads * head, width),
                                    ("self_attn.v_proj", kv_heads * head, width),
                                    ("self_attn.o_proj", width, heads * head),
                                    ("mlp.gate_proj", hidden, width), ("mlp.up_proj", hidden, width),
                                    ("mlp.down_proj", width, hidden)):
            quantized(out, layers, fill, name + part, [rows, columns])
        out[name + "self_attn.q_norm.weight"] = fill.vector([head], 1)
        out[name + "self_attn.k_norm.weight"] = fill.vector([head], 1)
        out[name + "input_layernorm.weight"] = fill.vector([width], 1)
        out[name + "post_attention_layernorm.weight"] = fill.vector([width], 1)
    for name, declaration in layers.items():
        out[name + ".comfy_quant"] = st.text(json.dumps(declaration))
    return out, None


class Vae:
    """Wan 2.1's names: causal 3-D convolutions, 2-D ones for resampling and attention."""

    def __init__(self, fill):
        self.fill, self.out = fill, {}

    def conv(self, name, rows, columns, *kernel):
        # Of three temporal slices a still picture meets one.
        inputs = columns * kernel[-1] * kernel[-2]
        self.out[name + ".weight"] = self.fill.matrix([rows, columns, *kernel], inputs=inputs)
        self.out[name + ".bias"] = self.fill.vector([rows], deviation=0.02)

    def gamma(self, name, size, ones):
        self.out[name + ".gamma"] = self.fill.vector([size] + [1] * ones, 1)

    def residual(self, name, columns, rows):
        self.gamma(name + ".residual.0", columns, 3)
        self.conv(name + ".residual.2", rows, columns, 3, 3, 3)
        self.gamma(name + ".residual.3", rows, 3)
        self.conv(name + ".residual.6", rows, rows, 3, 3, 3)
        if columns != rows:
            self.conv(name + ".shortcut", rows, columns, 1, 1, 1)

    def middle(self, name, size):
        self.residual(name + ".0", size, size)
        self.gamma(name + ".1.norm", size, 2)
        self.conv(name + ".1.to_qkv", 3 * size, size, 1, 1)
        self.conv(name + ".1.proj", size, size, 1, 1)
        self.residual(name + ".2", size, size)

    def encoder(self, base, channels):
        sizes, at = [base, 2 * base, 4 * base, 4 * base], 0
        self.conv("encoder.conv1", base, 3, 3, 3, 3)
        for stage, size in enumerate(sizes):
            before = sizes[max(stage - 1, 0)]
            for columns in (before, size):
                self.residual("encoder.downsamples.%d" % at, columns, size)
                at += 1
            if stage < 3:
                self.conv("encoder.downsamples.%d.resample.1" % at, size, size, 3, 3)
                if stage > 0:
                    self.conv("encoder.downsamples.%d.time_conv" % at, size, size, 3, 1, 1)
                at += 1
        self.middle("encoder.middle", sizes[-1])
        self.gamma("encoder.head.0", sizes[-1], 3)
        self.conv("encoder.head.2", 2 * channels, sizes[-1], 3, 3, 3)
        self.conv("conv1", 2 * channels, 2 * channels, 1, 1, 1)

    def decoder(self, base, channels):
        sizes, at = [4 * base, 4 * base, 2 * base, base], 0
        self.conv("conv2", channels, channels, 1, 1, 1)
        self.conv("decoder.conv1", sizes[0], channels, 3, 3, 3)
        self.middle("decoder.middle", sizes[0])
        for stage, size in enumerate(sizes):
            first = size if stage == 0 else sizes[stage - 1] // 2  # upsampling halves the channels
            for columns in (first, size, size):
                self.residual("decoder.upsamples.%d" % at, columns, size)
                at += 1
            if stage < 3:
                self.conv("decoder.upsamples.%d.resample.1" % at, size // 2, size, 3, 3)
                if stage < 2:
                    self.conv("decoder.upsamples.%d.time_conv" % at, 2 * size, size, 3, 1, 1)
                at += 1
        self.gamma("decoder.head.0", base, 3)
        self.conv("decoder.head.2", 3, base, 3, 3, 3)


def vae(fill):
    v = Vae(fill)
    v.encoder(96, 16)
    v.decoder(96, 16)
    return v.out, None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder")
    parser.add_argument("--sparse", action="store_true", help="matrices as holes: instant, all zeros")
    parser.add_argument("--blocks", type=int, default=28, help="of the diffusion model (28)")
    parser.add_argument("--layers", type=int, default=36, help="of the text encoder (36)")
    parser.add_argument("--only", choices=("diffusion_model", "text_encoder", "vae"))
    args = parser.parse_args()
    os.makedirs(args.folder, exist_ok=True)
    kinds = {
        "diffusion_model": ("krea2_turbo_fp8_scaled", lambda f: diffusion_model(f, args.blocks)),
        "text_encoder": ("qwen3vl_4b_fp8_scaled", lambda f: text_encoder(f, args.layers)),
        "vae": ("qwen_image_vae", vae),
    }
    fill = Filler(args.sparse)
    for kind, (name, make) in kinds.items():
        if args.only in (None, kind):
            start = time.monotonic()
            tensors, metadata = make(fill)
            path = os.path.join(args.folder, name + ".safetensors")
            st.write(path, tensors, metadata)
            print("%s: %d tensors, %.2f GiB, %.1f s" % (path, len(tensors),
                                                        os.path.getsize(path) / 2 ** 30,
                                                        time.monotonic() - start))


if __name__ == "__main__":
    main()
