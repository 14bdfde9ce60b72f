# SPDX-License-Identifier: Apache-2.0
"""Writes the trained model in the layout that Comfy-Org distributes Krea 2 in, and reads it back."""
import json
import os
import shutil

import torch
from safetensors.torch import load_file, save_file

from common import fp8

DIT = "krea2_demo_fp8_scaled.safetensors"
TEXT = "qwen3vl_demo_fp8_scaled.safetensors"
VAE = "qwen_image_vae_demo.safetensors"
TOKENIZER = ("vocab.json", "merges.txt", "tokenizer_config.json")


def is_block_linear(name):
    return name.startswith(("blocks.", "txtfusion.")) and name.endswith(".weight") and "projector" not in name


def dit_tensors(state):
    """Scaled FP8 for the blocks' linears, named in the header; BF16 for the rest."""
    tensors, layers = {}, {}
    for name, p in state.items():
        if is_block_linear(name):
            layer = name.removesuffix(".weight")
            tensors[name], tensors[layer + ".weight_scale"] = fp8(p)
            layers[layer] = {"format": "float8_e4m3fn"}
            if layer.endswith(("attn.gate", "attn.wo")):
                layers[layer]["full_precision_matrix_mult"] = True
        else:
            tensors[name] = p.to(torch.bfloat16)
    return tensors, {"_quantization_metadata": json.dumps({"format_version": "1.0", "layers": layers})}


def text_tensors(state):
    """Scaled FP8 for the linears, each marked by a tensor beside it; BF16 for the rest."""
    mark = torch.tensor(list(json.dumps({"format": "float8_e4m3fn"}).encode()), dtype=torch.uint8)
    tensors = {}
    for name, p in state.items():
        name = "model." + name
        if name.endswith("_proj.weight"):
            layer = name.removesuffix(".weight")
            tensors[name], tensors[layer + ".weight_scale"] = fp8(p)
            tensors[layer + ".comfy_quant"] = mark.clone()
        else:
            tensors[name] = p.to(torch.bfloat16)
    return tensors


def vae_tensors(state):
    """Decoder and conv2 in BF16; 3-D kernels whose last slice in time is the 2-D kernel."""
    tensors = {}
    for name, p in state.items():
        if not name.startswith(("decoder.", "conv2.")):
            continue
        if name.endswith("gamma"):
            p = p.view(-1, 1, 1) if ".middle.1." in name else p.view(-1, 1, 1, 1)
        elif p.dim() == 4 and "resample" not in name and "middle.1." not in name:
            if p.shape[-1] == 3:
                p = torch.stack((torch.zeros_like(p), torch.zeros_like(p), p), 2)
            else:
                p = p[:, :, None]
        tensors[name] = p.to(torch.bfloat16).contiguous()
    for i in (3, 7):                                    # there for films, never used for a still picture
        c = state[f"decoder.upsamples.{i}.resample.1.weight"].shape[1]
        tensors[f"decoder.upsamples.{i}.time_conv.weight"] = torch.zeros(2 * c, c, 3, 1, 1, dtype=torch.bfloat16)
        tensors[f"decoder.upsamples.{i}.time_conv.bias"] = torch.zeros(2 * c, dtype=torch.bfloat16)
    return tensors


def export(source, target):
    """From the trainings' checkpoints in `source`; every file is complete before any is replaced."""
    state = lambda name: torch.load(os.path.join(source, name))
    os.makedirs(os.path.join(target, "tokenizer"), exist_ok=True)
    dit, metadata = dit_tensors(state("dit.pt")["averaged"])
    save_file(dit, os.path.join(target, DIT + ".part"), metadata)
    save_file(text_tensors(state("text.pt")), os.path.join(target, TEXT + ".part"))
    save_file(vae_tensors(state("vae.pt")), os.path.join(target, VAE + ".part"))
    names = [DIT, TEXT, VAE, *(os.path.join("tokenizer", n) for n in TOKENIZER)]
    for name in names[3:]:
        shutil.copyfile(os.path.join(source, name), os.path.join(target, name + ".part"))
    for name in names:
        os.chmod(os.path.join(target, name + ".part"), 0o644)       # safetensors keeps them to their owner
        os.replace(os.path.join(target, name + ".part"), os.path.join(target, name))
    return {name: os.path.getsize(os.path.join(target, name)) for name in names}


def dequantized(path):
    """An exported file's weights as float32, by their own names, without the quantization's tensors."""
    tensors = load_file(path)
    out = {}
    for name, p in tensors.items():
        if name.endswith((".weight_scale", ".comfy_quant")):
            continue
        scale = tensors.get(name.removesuffix(".weight") + ".weight_scale")
        out[name] = p.float() * (1 if scale is None else scale)
    return out


def load(folder):
    """The exported model as this package's own modules."""
    from dit import DiT
    from text import Prompts, TextEncoder, load_tokenizer
    from vae import VAE as Vae
    tokenizer = load_tokenizer(os.path.join(folder, "tokenizer"))
    dit, encoder, vae = DiT(), TextEncoder(tokenizer.get_vocab_size()), Vae()
    dit.load_state_dict(dequantized(os.path.join(folder, DIT)))
    encoder.load_state_dict({n.removeprefix("model."): p for n, p in dequantized(os.path.join(folder, TEXT)).items()})
    flat = {}
    for name, p in dequantized(os.path.join(folder, VAE)).items():
        if "time_conv" in name:
            continue
        flat[name] = p.flatten() if name.endswith("gamma") else p[:, :, -1] if p.dim() == 5 else p
    missing, unexpected = vae.load_state_dict(flat, strict=False)
    if unexpected or any(not n.startswith(("encoder.", "conv1.")) for n in missing):
        raise ValueError(f"{VAE}: missing {missing}, unexpected {unexpected}")
    return Prompts(tokenizer), dit.eval(), encoder.eval(), vae.eval().to(memory_format=torch.channels_last)
