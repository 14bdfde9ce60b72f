# SPDX-License-Identifier: Apache-2.0
"""make_golden.py FOLDER [SET...]: writes the golden sets that kread's tests compare with.

A set is a reduced Krea 2 with random weights (dit, te, vae, tokenizer/) in one of the file formats
that users have, and cases: a request and the trace of the public implementations for it, with the
error of the same run in bfloat16. Every set has other head sizes and another dialect of the format:

    scaled    head 32, 2 kv heads   FP8 with scales, Comfy's metadata; every sampler case
    prefixed  head 64, 1 kv head    FP8 with the older scale_weight spelling, prefixed names, extras
    plain     head 128, 1 kv head   BF16, HF names with a vision tower
    halves    head 64, 2 kv heads   F16 and F32, plain FP8 casts, 2-D VAE kernels

Weights and noise come from fixed seeds; another torch version gives the same within rounding.
Run once with torch 2.15, diffusers 0.42 and transformers 5.24; tests only read what is committed.
"""

import json
import math
import pathlib
import sys
import zlib

import torch
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

import krea2

LAYERS = 36
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
ADDED = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CAPTIONS = (
    "a small red boat on a calm blue lake at dawn",
    "an old stone bridge over a quiet green river in the morning mist",
    "two yellow tulips in a white vase on a wooden table",
    "a lighthouse on a rocky shore under dark clouds, oil painting",
    "the night market with paper lanterns and warm light",
    "a sleeping cat on a windowsill, soft light, shallow depth of field",
)


# ------------------------------------------------------------------------------ weights ----------


class Draw:
    """Random tensors that depend on a seed and their own name only."""

    def __init__(self, seed):
        self.seed = seed

    def __call__(self, name, *shape, std, mean=0.0):
        generator = torch.Generator().manual_seed(self.seed ^ zlib.crc32(name.encode()))
        return mean + std * torch.randn(*shape, generator=generator)


def dit_tensors(draw, width, head, kv_heads, hidden, blocks, time, text_width, text_head, text_kv,
                text_hidden):
    w = {}

    def linear(name, out, n, bias=False, gain=1.0):
        w[name + ".weight"] = draw(name, out, n, std=gain / math.sqrt(n))
        if bias:
            w[name + ".bias"] = draw(name + ".bias", out, std=0.1)

    def norm(name, n):
        w[name + ".scale"] = draw(name, n, std=0.2)

    def block(name, n, size, kv, mlp):
        norm(name + "prenorm", n)
        norm(name + "postnorm", n)
        linear(name + "attn.wq", n, n)
        linear(name + "attn.wk", size * kv, n)
        linear(name + "attn.wv", size * kv, n)
        linear(name + "attn.gate", n, n)
        linear(name + "attn.wo", n, n)
        norm(name + "attn.qknorm.qnorm", size)
        norm(name + "attn.qknorm.knorm", size)
        linear(name + "mlp.gate", mlp, n)
        linear(name + "mlp.up", mlp, n)
        linear(name + "mlp.down", n, mlp, gain=1.5)

    linear("first", width, 64, bias=True)
    linear("tmlp.0", width, time, bias=True, gain=1.5)
    linear("tmlp.2", width, width, bias=True, gain=1.5)
    linear("tproj.1", 6 * width, width, bias=True, gain=0.7)
    norm("txtmlp.0", text_width)
    linear("txtmlp.1", width, text_width, bias=True)
    linear("txtmlp.3", width, width, bias=True)
    w["txtfusion.projector.weight"] = draw("projector", 1, 12, std=0.4)
    for kind in ("layerwise", "refiner"):
        for i in range(2):
            block(f"txtfusion.{kind}_blocks.{i}.", text_width, text_head, text_kv, text_hidden)
    for i in range(blocks):
        block(f"blocks.{i}.", width, head, kv_heads, hidden)
        w[f"blocks.{i}.mod.lin"] = draw(f"mod{i}", 6 * width, std=0.3)
    norm("last.norm", width)
    linear("last.linear", 64, width, bias=True)
    w["last.modulation.lin"] = draw("last.mod", 2, width, std=0.3)
    return w


def encoder_tensors(draw, vocabulary, width, head, heads, kv_heads, hidden):
    w = {"embed_tokens.weight": draw("embed", vocabulary, width, std=1.0)}

    def linear(name, out, n, gain=1.0):
        w[name + ".weight"] = draw(name, out, n, std=gain / math.sqrt(n))

    for i in range(LAYERS):
        layer = f"layers.{i}."
        for name, n in (("input_layernorm", width), ("post_attention_layernorm", width),
                        ("self_attn.q_norm", head), ("self_attn.k_norm", head)):
            w[layer + name + ".weight"] = draw(layer + name, n, std=0.2, mean=1.0)
        linear(layer + "self_attn.q_proj", heads * head, width)
        linear(layer + "self_attn.k_proj", kv_heads * head, width)
        linear(layer + "self_attn.v_proj", kv_heads * head, width)
        linear(layer + "self_attn.o_proj", width, heads * head, gain=0.4)
        linear(layer + "mlp.gate_proj", hidden, width)
        linear(layer + "mlp.up_proj", hidden, width)
        linear(layer + "mlp.down_proj", width, hidden, gain=0.4)
    w["norm.weight"] = draw("norm", width, std=0.2, mean=1.0)
    return w


def vae_tensors(draw, base, kernel_time, encoder, time_conv):
    """Wan's names. kernel_time 0: 2-D kernels. What a still picture does not use of a 3-D kernel is a
    constant, which wrong code can not miss and gzip likes."""
    w = {}

    def conv(name, out, n, k, gain=1.0, flat=False):
        kernel = draw(name, out, n, k, k, std=gain / math.sqrt(n * k * k))
        if kernel_time and not flat:
            past = torch.full((out, n, (kernel_time if k == 3 else 1) - 1, k, k), 0.5)
            kernel = torch.cat((past, kernel[:, :, None]), 2)
        w[name + ".weight"] = kernel
        w[name + ".bias"] = draw(name + ".bias", out, std=0.05)

    def gamma(name, n, ones=(1, 1, 1)):
        w[name + ".gamma"] = draw(name, n, std=0.15, mean=1.0).reshape(n, *ones)

    def residual(name, n, out):
        gamma(name + "residual.0", n)
        conv(name + "residual.2", out, n, 3, gain=1.4)
        gamma(name + "residual.3", out)
        conv(name + "residual.6", out, out, 3, gain=0.7)
        if n != out:
            conv(name + "shortcut", out, n, 1)

    def middle(name, n):
        residual(name + "0.", n, n)
        gamma(name + "1.norm", n, (1, 1))
        conv(name + "1.to_qkv", 3 * n, n, 1, flat=True)
        conv(name + "1.proj", n, n, 1, flat=True)
        residual(name + "2.", n, n)

    def time(name, out, n):
        w[name + ".time_conv.weight"] = torch.full((out, n, 3, 1, 1), 0.5)
        w[name + ".time_conv.bias"] = torch.full((out,), 0.5)

    conv("conv2", 16, 16, 1)
    conv("decoder.conv1", 4 * base, 16, 3)
    middle("decoder.middle.", 4 * base)
    outs = (4 * base, 4 * base, 2 * base, base)
    for stage, out in enumerate(outs):
        n = outs[stage - 1] // 2 if stage else out
        for i in range(3):
            residual(f"decoder.upsamples.{4 * stage + i}.", n if i == 0 else out, out)
        if stage < 3:
            up = f"decoder.upsamples.{4 * stage + 3}"
            conv(up + ".resample.1", out // 2, out, 3, flat=True)
            if time_conv and stage < 2:
                time(up, 2 * out, out)
    gamma("decoder.head.0", base)
    conv("decoder.head.2", 3, base, 3, gain=0.6)
    if encoder:
        conv("conv1", 32, 32, 1)
        conv("encoder.conv1", base, 3, 3)
        ins = (base, base, 2 * base, 4 * base)
        for stage, out in enumerate((base, 2 * base, 4 * base, 4 * base)):
            at = 3 * stage
            residual(f"encoder.downsamples.{at}.", ins[stage], out)
            residual(f"encoder.downsamples.{at + 1}.", out, out)
            if stage < 3:
                conv(f"encoder.downsamples.{at + 2}.resample.1", out, out, 3, flat=True)
                if time_conv and stage > 0:
                    time(f"encoder.downsamples.{at + 2}", out, out)
        middle("encoder.middle.", 4 * base)
        gamma("encoder.head.0", 4 * base)
        conv("encoder.head.2", 32, 4 * base, 3)
    return w


# ------------------------------------------------------------------------------ formats ----------


def is_matrix(name, tensor):
    return name.endswith(".weight") and tensor.dim() == 2 and min(tensor.shape) > 1


def is_block_matrix(name, tensor):
    """What Comfy's fp8_scaled files quantize: the linears of blocks and text fusion, or of layers."""
    return is_matrix(name, tensor) and name.startswith(("blocks.", "txtfusion.", "layers."))


def quantize(tensor):
    scale = tensor.abs().max() / 448.0
    return (tensor / scale).to(torch.float8_e4m3fn), scale.float()


def coarse(tensor, bits):
    """Fewer mantissa bits, so that a float file compresses."""
    mantissa, exponent = torch.frexp(tensor)
    return torch.ldexp(torch.round(mantissa * 2.0**bits), exponent - bits)


def scaled(w, prefix, manifest):
    """FP8 linears with weight_scale; the manifest in the header ("header") or in tensors ("layers")."""
    out, layers = {}, {}
    for name, tensor in w.items():
        layer = name.removesuffix(".weight")
        if not is_block_matrix(name, tensor):
            out[prefix + name] = tensor.bfloat16()
            continue
        out[prefix + name], out[prefix + layer + ".weight_scale"] = quantize(tensor)
        layers[prefix + layer] = {"format": "float8_e4m3fn"}
        if layer.endswith(("attn.gate", "attn.wo")):
            layers[prefix + layer]["full_precision_matrix_mult"] = True
    if manifest == "layers":
        for layer, entry in layers.items():
            text = json.dumps(entry).encode()
            out[layer + ".comfy_quant"] = torch.tensor(list(text), dtype=torch.uint8)
        return out, {}
    return out, {"_quantization_metadata": json.dumps({"format_version": "1.0", "layers": layers})}


def older_scaled(w, prefix):
    """The spelling before the manifest: scale_weight beside each FP8 matrix and a marker tensor."""
    out = {prefix + "scaled_fp8": torch.zeros(0, dtype=torch.float8_e4m3fn)}
    for name, tensor in w.items():
        layer = name.removesuffix(".weight")
        if is_block_matrix(name, tensor):
            out[prefix + name], out[prefix + layer + ".scale_weight"] = quantize(tensor)
        else:
            out[prefix + name] = tensor.bfloat16()
    return out, {}


def plain(w, prefix):
    return {prefix + name: tensor.bfloat16() for name, tensor in w.items()}, {}


def halves(w, prefix, cast):
    """F16 matrices, F32 vectors, and FP8 without any scale for the matrices that `cast` matches."""
    out = {}
    for name, tensor in w.items():
        if is_matrix(name, tensor) and cast in name:
            dtype = torch.float8_e5m2 if ".up" in name else torch.float8_e4m3fn
            out[prefix + name] = tensor.to(dtype)
        elif is_matrix(name, tensor) or tensor.dim() >= 4:
            out[prefix + name] = coarse(tensor, 8).half()
        else:
            out[prefix + name] = coarse(tensor, 14)
    return out, {}


def save(path, tensors_and_metadata):
    tensors, metadata = tensors_and_metadata
    save_file({n: t.contiguous() for n, t in tensors.items()}, path, metadata=metadata or None)
    path.chmod(0o644)


def write_tokenizer(folder):
    """A byte-level BPE of the real kind, trained on the template and a few captions."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=440, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    template = (krea2.PREFIX + krea2.SUFFIX).replace("<|im_start|>", "").replace("<|im_end|>", "\n")
    tokenizer.train_from_iterator([template] * 9 + [*CAPTIONS] * 2, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    vocabulary = model["vocab"]
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    first = len(vocabulary)
    added = {
        str(first + i): {"content": text, "lstrip": False, "normalized": False, "rstrip": False,
                         "single_word": False, "special": True}
        for i, text in enumerate(ADDED)
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), "utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", "utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "add_prefix_space": False, "added_tokens_decoder": added, "model_max_length": 131072,
        "pad_token": "<|endoftext|>", "tokenizer_class": "Qwen2Tokenizer", "unk_token": None,
    }, indent=1) + "\n")
    return first + len(ADDED)


# --------------------------------------------------------------------------------- sets ----------


def make_scaled(folder, vocabulary):
    dit = dit_tensors(Draw(101), width=128, head=32, kv_heads=2, hidden=192, blocks=2, time=256,
                      text_width=32, text_head=16, text_kv=1, text_hidden=64)
    save(folder / "dit.safetensors", scaled(dit, "", "header"))
    te = encoder_tensors(Draw(102), vocabulary, 32, head=32, heads=2, kv_heads=1, hidden=40)
    save(folder / "te.safetensors", scaled(te, "model.", "layers"))
    save(folder / "vae.safetensors", plain(vae_tensors(Draw(103), 4, 3, False, True), ""))


def make_prefixed(folder, vocabulary):
    dit = dit_tensors(Draw(201), width=128, head=64, kv_heads=1, hidden=112, blocks=2, time=64,
                      text_width=48, text_head=16, text_kv=3, text_hidden=64)
    tensors, metadata = older_scaled(dit, "model.diffusion_model.")
    last = "model.diffusion_model.last."
    tensors[last + "modulation.lin"] = tensors[last + "modulation.lin"].flatten()
    tensors[last + "down.weight"] = torch.full((16, 128), 0.5).bfloat16()  # of an early release
    tensors[last + "up.weight"] = torch.full((64, 16), 0.5).bfloat16()
    save(folder / "dit.safetensors", (tensors, metadata))
    te = encoder_tensors(Draw(202), vocabulary, 48, head=16, heads=3, kv_heads=1, hidden=24)
    save(folder / "te.safetensors", older_scaled(te, "model."))
    save(folder / "vae.safetensors", plain(vae_tensors(Draw(203), 4, 3, True, True), ""))


def make_plain(folder, vocabulary):
    dit = dit_tensors(Draw(301), width=128, head=128, kv_heads=1, hidden=128, blocks=1, time=64,
                      text_width=32, text_head=32, text_kv=1, text_hidden=64)
    save(folder / "dit.safetensors", plain(dit, ""))
    te = encoder_tensors(Draw(302), vocabulary, 32, head=16, heads=2, kv_heads=1, hidden=24)
    tensors, metadata = plain(te, "model.language_model.")
    tensors["lm_head.weight"] = torch.full((vocabulary, 32), 0.5).bfloat16()
    for name, shape in (("patch_embed.proj.weight", (8, 3, 2, 4, 4)), ("pos_embed.weight", (4, 8)),
                        ("deepstack_merger_list.0.norm.weight", (8,))):
        tensors["model.visual." + name] = torch.full(shape, 0.5).bfloat16()
    save(folder / "te.safetensors", (tensors, metadata))
    save(folder / "vae.safetensors", plain(vae_tensors(Draw(303), 4, 1, False, False), ""))


def make_halves(folder, vocabulary):
    dit = dit_tensors(Draw(401), width=128, head=64, kv_heads=2, hidden=96, blocks=1, time=32,
                      text_width=32, text_head=32, text_kv=1, text_hidden=48)
    save(folder / "dit.safetensors", halves(dit, "diffusion_model.", ".mlp."))
    te = encoder_tensors(Draw(402), vocabulary, 32, head=64, heads=1, kv_heads=1, hidden=32)
    save(folder / "te.safetensors", halves(te, "", "_proj."))
    save(folder / "vae.safetensors", halves(vae_tensors(Draw(403), 8, 0, False, False), "", "?"))


def request(prompt, width, height, steps, seed, cfg=0.0, **rest):
    fields = {"prompt": prompt, "width": width, "height": height, "steps": steps, "cfg": cfg,
              "seed": seed, "rng": "cpu"}
    return {**fields, **rest}


SETS = {
    "scaled": (make_scaled, {
        "turbo": request("a small red boat on a calm lake", 64, 48, 8, 42, mu=1.15),
        "raw": request("an old stone bridge, morning mist", 48, 80, 5, 7, cfg=3.5,
                       negative="dark clouds"),
        "comfyui": request("paper lanterns in warm light", 48, 64, 4, 21, cfg=2.5, negative="",
                           dialect="comfyui"),
        "unicode": request("  nai\u0308ve \ufb02ower \u7d05 \U0001f6a3\n\n  42\tboats, WE'LL\u00a0", 48, 48, 2, 2**40 + 9, mu=1.15),
        "roundup": request("tulips", 70, 33, 2, 11, mu=0.7),
        "empty": request("", 32, 48, 1, 0, mu=1.15),
    }),
    "prefixed": (make_prefixed, {
        "turbo": request("a lighthouse under dark clouds", 48, 64, 4, 2024, mu=1.15),
        "raw": request("a sleeping cat", 64, 32, 2, 5, cfg=4.5),
    }),
    "plain": (make_plain, {
        "turbo": request("two yellow tulips in a white vase", 64, 64, 3, 99, mu=1.15),
    }),
    "halves": (make_halves, {
        "turbo": request("the night market", 80, 48, 3, 2**63 - 1, mu=1.15),
    }),
}


def main():
    torch.set_num_threads(1)
    root = pathlib.Path(sys.argv[1])
    for name in sys.argv[2:] or SETS:
        make, cases = SETS[name]
        folder = root / name
        vocabulary = write_tokenizer(folder / "tokenizer")
        make(folder, vocabulary)
        exact = krea2.Reference(folder)
        rounded = krea2.Reference(folder, torch.bfloat16)
        for case, fields in cases.items():
            trace = krea2.run(exact, fields)
            figures = krea2.errors(krea2.run(rounded, fields), trace)
            krea2.write_trace(folder / case, fields, trace, figures)
            print(name, case, " ".join(f"{n}={x:.4f}" for n, x in figures.items()), flush=True)


if __name__ == "__main__":
    main()
