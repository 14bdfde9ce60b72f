#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the demo model's files in diffusers and transformers and writes down every step, for tests/golden/demo.

    make_demo_golden.py [DEMO FOLDER [GOLDEN FOLDER]] [--all]

What is written are files of `kread --trace` (all of them with --all, else those in KEPT, to stay small; float32; noise
of torch's CPU generator; t rounded to bfloat16, as the official program does), the request, and how far the same run
in bfloat16 strays from it (relative root mean square), which is the yardstick for any implementation. Needs torch,
diffusers 0.42 and transformers 5.24; users never run this.
"""
import json
import math
import os
import sys

import numpy as np
import torch
from diffusers import AutoencoderKLQwenImage, Krea2Transformer2DModel
from diffusers.loaders.single_file_utils import convert_wan_vae_to_diffusers
from safetensors import safe_open
from transformers import AutoTokenizer, Qwen3VLTextConfig, Qwen3VLTextModel

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
REQUEST = {"prompt": "a red star on a blue background", "width": 128, "height": 128, "steps": 8, "cfg": 0.0, "mu": 1.15,
           "seed": 42, "rng": "cpu"}
PREFIX = ("<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, "
          "spatial relationships of the objects and background:<|im_end|>\n<|im_start|>user\n")
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n"
KEPT = ("tokens", "conditioning", "noise", "sigmas", "velocity_00", "latent_07", "decoded")
TAPS = (2, 5, 8, 11, 14, 17, 20, 23, 26, 29, 32, 35)


def read(path):
    """A file's weights as float32, scaled FP8 multiplied out, the quantization's own tensors left out."""
    with safe_open(path, "pt") as f:
        tensors = {name: f.get_tensor(name) for name in f.keys()}
    out = {}
    for name, t in tensors.items():
        if name.endswith((".weight_scale", ".comfy_quant")):
            continue
        scale = tensors.get(name.removesuffix(".weight") + ".weight_scale")
        out[name] = t.float() if scale is None else t.float() * scale
    return out


def highest(names, before):
    """One more than the highest number that follows `before` in the names."""
    return 1 + max(int(n.removeprefix(before).split(".")[0]) for n in names if n.startswith(before))


NAMES = (("first.", "img_in."), ("tmlp.0.", "time_embed.linear_1."), ("tmlp.2.", "time_embed.linear_2."),
         ("tproj.1.", "time_mod_proj."), ("txtmlp.0.scale", "txt_in.norm.weight"), ("txtmlp.1.", "txt_in.linear_1."),
         ("txtmlp.3.", "txt_in.linear_2."), ("txtfusion.", "text_fusion."), ("blocks.", "transformer_blocks."),
         ("last.linear.", "final_layer.linear."), ("last.norm.scale", "final_layer.norm.weight"),
         ("last.modulation.lin", "final_layer.scale_shift_table"))
INNER = ((".attn.wq.", ".attn.to_q."), (".attn.wk.", ".attn.to_k."), (".attn.wv.", ".attn.to_v."),
         (".attn.wo.", ".attn.to_out.0."), (".attn.gate.", ".attn.to_gate."),
         (".attn.qknorm.qnorm.scale", ".attn.norm_q.weight"), (".attn.qknorm.knorm.scale", ".attn.norm_k.weight"),
         (".mlp.", ".ff."), (".prenorm.scale", ".norm1.weight"), (".postnorm.scale", ".norm2.weight"),
         (".mod.lin", ".scale_shift_table"))


def diffusers_name(name):
    for ours, theirs in NAMES:
        if name.startswith(ours):
            name = theirs + name.removeprefix(ours)
            break
    for ours, theirs in INNER:
        name = name.replace(ours, theirs)
    return name


def load_transformer(path):
    w = read(path)
    wide, head = w["first.weight"].shape[0], len(w["blocks.0.attn.qknorm.qnorm.scale"])
    text, text_head = w["txtmlp.0.scale"].shape[0], len(w["txtfusion.refiner_blocks.0.attn.qknorm.qnorm.scale"])
    share = head // 16
    model = Krea2Transformer2DModel(
        num_layers=highest(w, "blocks."), attention_head_dim=head, num_attention_heads=wide // head,
        num_key_value_heads=len(w["blocks.0.attn.wk.weight"]) // head,
        intermediate_size=len(w["blocks.0.mlp.up.weight"]), timestep_embed_dim=w["tmlp.0.weight"].shape[1],
        text_hidden_dim=text, num_text_layers=w["txtfusion.projector.weight"].shape[1],
        text_num_attention_heads=text // text_head, text_num_key_value_heads=text // text_head,
        text_intermediate_size=len(w["txtfusion.refiner_blocks.0.mlp.up.weight"]),
        axes_dims_rope=(head - 12 * share, 6 * share, 6 * share))
    renamed = {diffusers_name(n): t for n, t in w.items()}
    shapes = model.state_dict()
    model.load_state_dict({n: t.view(shapes[n].shape) if n in shapes else t for n, t in renamed.items()})
    return model.eval()


def load_encoder(path):
    w = {n.removeprefix("model."): t for n, t in read(path).items()}
    head = len(w["layers.0.self_attn.q_norm.weight"])
    config = Qwen3VLTextConfig(
        vocab_size=len(w["embed_tokens.weight"]), hidden_size=w["embed_tokens.weight"].shape[1],
        intermediate_size=len(w["layers.0.mlp.up_proj.weight"]), num_hidden_layers=highest(w, "layers."),
        num_attention_heads=len(w["layers.0.self_attn.q_proj.weight"]) // head,
        num_key_value_heads=len(w["layers.0.self_attn.k_proj.weight"]) // head, head_dim=head, rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 5e6, "mrope_interleaved": True,
                         "mrope_section": [head // 2 - 2 * (head // 6), head // 6, head // 6]})
    model = Qwen3VLTextModel(config)
    model.load_state_dict(w)
    return model.eval()


def load_vae(path):
    w = read(path)
    model = AutoencoderKLQwenImage(base_dim=w["decoder.head.0.gamma"].shape[0])
    missing, unexpected = model.load_state_dict(convert_wan_vae_to_diffusers(w), strict=False)
    if unexpected or any(not n.startswith(("encoder.", "quant_conv.")) for n in missing):
        raise ValueError(f"{path}: missing {missing}, unexpected {unexpected}")
    return model.eval()


@torch.no_grad()
def run(tokenizer, encoder, transformer, vae, request, dtype):
    """The trace, as float32 arrays."""
    trace = {}
    ids = torch.tensor([tokenizer(PREFIX + request["prompt"] + SUFFIX).input_ids])
    prefix = len(tokenizer(PREFIX).input_ids)
    states = encoder(input_ids=ids, output_hidden_states=True).hidden_states
    taps = torch.stack([states[i] for i in TAPS], 2)[:, prefix:]
    trace["tokens"], trace["conditioning"] = ids[0].int(), taps[0]
    h, w = request["height"] // 8, request["width"] // 8
    x = torch.randn(1, 16, h, w, generator=torch.Generator().manual_seed(request["seed"]))
    a, u = math.exp(request["mu"]), torch.linspace(1, 0, request["steps"] + 1)
    sigmas = a / (a + 1 / u - 1)
    trace["noise"], trace["sigmas"] = x[0], sigmas
    positions = torch.zeros(taps.shape[1] + h * w // 4, 3)
    positions[taps.shape[1]:, 1] = torch.arange(h // 2).repeat_interleave(w // 2)
    positions[taps.shape[1]:, 2] = torch.arange(w // 2).repeat(h // 2)
    x = x.to(dtype)
    for i, (t, after) in enumerate(zip(sigmas[:-1], sigmas[1:])):
        packed = x.view(1, 16, h // 2, 2, w // 2, 2).permute(0, 2, 4, 1, 3, 5).reshape(1, h * w // 4, 64)
        v = transformer(hidden_states=packed, encoder_hidden_states=taps.to(dtype), position_ids=positions,
                        timestep=t.view(1).to(torch.bfloat16).to(dtype), return_dict=False)[0]
        v = v.view(1, h // 2, w // 2, 16, 2, 2).permute(0, 3, 1, 4, 2, 5).reshape(1, 16, h, w)
        x = x + ((after - t) * v.float()).to(dtype)
        trace[f"velocity_{i:02d}"], trace[f"latent_{i:02d}"] = v[0], x[0]
    mean, std = (torch.tensor(c).view(1, 16, 1, 1, 1).to(dtype)
                 for c in (vae.config.latents_mean, vae.config.latents_std))
    z = vae.post_quant_conv(x[:, :, None] * std + mean)
    trace["decoded"] = vae.decoder(z)[0, :, 0]          # before clamping, which vae.decode does
    return {n: (t if t.dtype == torch.int32 else t.float()).numpy() for n, t in trace.items()}


def main():
    folders = [a for a in sys.argv[1:] if a != "--all"]
    source = folders[0] if folders else os.path.join(ROOT, "demo")
    target = folders[1] if len(folders) > 1 else os.path.join(ROOT, "tests", "golden", "demo")
    path = lambda name: os.path.join(source, name)
    tokenizer = AutoTokenizer.from_pretrained(path("tokenizer"))
    models = (load_encoder(path("qwen3vl_demo_fp8_scaled.safetensors")),
              load_transformer(path("krea2_demo_fp8_scaled.safetensors")),
              load_vae(path("qwen_image_vae_demo.safetensors")))
    exact = run(tokenizer, *models, REQUEST, torch.float32)
    rough = run(tokenizer, *(m.to(torch.bfloat16) for m in models), REQUEST, torch.bfloat16)
    os.makedirs(target, exist_ok=True)
    for name, array in exact.items():
        if name in KEPT or "--all" in sys.argv:
            np.save(os.path.join(target, name + ".npy"), np.ascontiguousarray(array))
    error = lambda a, b: float(np.sqrt(((a - b) ** 2).mean() / (a ** 2).mean()))
    errors = {n: error(exact[n], rough[n]) for n in exact if n != "tokens"}
    for name, content in (("request.json", REQUEST), ("bf16-error.json", errors)):
        with open(os.path.join(target, name), "w", encoding="utf-8") as f:
            json.dump(content, f, indent=1)
            f.write("\n")
    print(json.dumps(errors, indent=1))


if __name__ == "__main__":
    main()
