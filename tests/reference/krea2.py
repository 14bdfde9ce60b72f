# SPDX-License-Identifier: Apache-2.0
"""The public implementations of Krea 2's parts, fed from files in the layout that kread reads.

diffusers' Krea2Transformer2DModel and AutoencoderKLQwenImage and transformers' Qwen3VLTextModel are
built from the shapes of three safetensors files, and run() samples one picture with them, keeping
every tensor that `kread --trace` writes. The same code runs in float32 (the golden) and in bfloat16
(whose distance from it is the yardstick of how exact kread has to be).
"""

import json
import math
import re

import numpy as np
import torch
from diffusers import AutoencoderKLQwenImage, Krea2Transformer2DModel
from diffusers.loaders.single_file_utils import convert_wan_vae_to_diffusers
from diffusers.utils import logging as diffusers_logging
from safetensors import safe_open
from transformers import Qwen2Tokenizer
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLTextConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextModel

diffusers_logging.set_verbosity_error()  # it warns of the very cast that in_dtype() does right

TAPS = (2, 5, 8, 11, 14, 17, 20, 23, 26, 29, 32, 35)
PREFIX = (
    "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, "
    "text, spatial relationships of the objects and background:<|im_end|>\n<|im_start|>user\n"
)
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n"
TEXT_TOKENS, SUFFIX_TOKENS = 512, 5
DIT_PREFIXES = ("model.diffusion_model.", "diffusion_model.", "")
ENCODER_PREFIXES = ("model.language_model.", "model.", "")


# ---------------------------------------------------------------------------------- files --------


def read_weights(path, prefixes, probe):
    """Tensors as float32 without their prefix, scales applied, quantization's own tensors gone."""
    with safe_open(path, "pt") as file:
        raw = {name: file.get_tensor(name) for name in file.keys()}
    prefix = next(p for p in prefixes if p + probe in raw)
    raw = {(n[len(prefix) :] if n.startswith(prefix) else n): t for n, t in raw.items()}
    tensors = {}
    for name, tensor in raw.items():
        if re.search(r"\.(weight_scale|scale_weight|comfy_quant)$|^scaled_fp8$", name):
            continue
        layer = name.removesuffix(".weight")
        scale = raw.get(layer + ".weight_scale", raw.get(layer + ".scale_weight"))
        tensors[name] = tensor.float() * (scale.float() if scale is not None else 1.0)
    return tensors


def number_of(tensors, pattern):
    return 1 + max(int(m[1]) for m in (re.match(pattern, name) for name in tensors) if m)


# ------------------------------------------------------------------------------ models -----------

# Official name to diffusers', by longest match from the left; the first column is a regular expression.
DIT_NAMES = (
    (r"^first\.", "img_in."),
    (r"^tmlp\.0\.", "time_embed.linear_1."),
    (r"^tmlp\.2\.", "time_embed.linear_2."),
    (r"^tproj\.1\.", "time_mod_proj."),
    (r"^txtmlp\.0\.scale$", "txt_in.norm.weight"),
    (r"^txtmlp\.1\.", "txt_in.linear_1."),
    (r"^txtmlp\.3\.", "txt_in.linear_2."),
    (r"^txtfusion\.", "text_fusion."),
    (r"^blocks\.", "transformer_blocks."),
    (r"^last\.linear\.", "final_layer.linear."),
    (r"^last\.norm\.scale$", "final_layer.norm.weight"),
    (r"^last\.modulation\.lin$", "final_layer.scale_shift_table"),
    (r"\.attn\.wq\.", ".attn.to_q."),
    (r"\.attn\.wk\.", ".attn.to_k."),
    (r"\.attn\.wv\.", ".attn.to_v."),
    (r"\.attn\.wo\.", ".attn.to_out.0."),
    (r"\.attn\.gate\.", ".attn.to_gate."),
    (r"\.attn\.qknorm\.qnorm\.scale$", ".attn.norm_q.weight"),
    (r"\.attn\.qknorm\.knorm\.scale$", ".attn.norm_k.weight"),
    (r"\.mlp\.", ".ff."),
    (r"\.prenorm\.scale$", ".norm1.weight"),
    (r"\.postnorm\.scale$", ".norm2.weight"),
    (r"\.mod\.lin$", ".scale_shift_table"),
)


def rope_axes(head):
    return (head - 12 * (head // 16), 6 * (head // 16), 6 * (head // 16))


def load_dit(path):
    w = read_weights(path, DIT_PREFIXES, "txtfusion.projector.weight")
    for early in ("last.down.weight", "last.up.weight"):  # early releases had them; nothing reads them
        w.pop(early, None)
    head = len(w["blocks.0.attn.qknorm.qnorm.scale"])
    text_head = len(w["txtfusion.layerwise_blocks.0.attn.qknorm.qnorm.scale"])
    text = "txtfusion.layerwise_blocks.0."
    model = Krea2Transformer2DModel(
        in_channels=w["first.weight"].shape[1],
        num_layers=number_of(w, r"blocks\.(\d+)\."),
        attention_head_dim=head,
        num_attention_heads=len(w["blocks.0.attn.wq.weight"]) // head,
        num_key_value_heads=len(w["blocks.0.attn.wk.weight"]) // head,
        intermediate_size=len(w["blocks.0.mlp.gate.weight"]),
        timestep_embed_dim=w["tmlp.0.weight"].shape[1],
        text_hidden_dim=len(w["txtmlp.0.scale"]),
        num_text_layers=w["txtfusion.projector.weight"].shape[1],
        text_num_attention_heads=len(w[text + "attn.wq.weight"]) // text_head,
        text_num_key_value_heads=len(w[text + "attn.wk.weight"]) // text_head,
        text_intermediate_size=len(w[text + "mlp.gate.weight"]),
        axes_dims_rope=rope_axes(head),
    )
    shapes = {name: p.shape for name, p in model.state_dict().items()}
    state = {}
    for name, tensor in w.items():
        for pattern, new in DIT_NAMES:
            name = re.sub(pattern, new, name)
        state[name] = tensor.reshape(shapes[name])
    model.load_state_dict(state, strict=True)
    return model.eval()


def load_encoder(path):
    w = read_weights(path, ENCODER_PREFIXES, "layers.0.input_layernorm.weight")
    w = {n: t for n, t in w.items() if re.match(r"(layers|embed_tokens|norm)\.", n)}
    vocabulary, width = w["embed_tokens.weight"].shape
    head = len(w["layers.0.self_attn.q_norm.weight"])
    config = Qwen3VLTextConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=len(w["layers.0.mlp.gate_proj.weight"]),
        num_hidden_layers=number_of(w, r"layers\.(\d+)\."),
        num_attention_heads=len(w["layers.0.self_attn.q_proj.weight"]) // head,
        num_key_value_heads=len(w["layers.0.self_attn.k_proj.weight"]) // head,
        head_dim=head,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 5000000,
            "mrope_interleaved": True,
            "mrope_section": [head // 2 - 2 * (head // 6), head // 6, head // 6],
        },
        attn_implementation="sdpa",
    )
    model = Qwen3VLTextModel(config)
    model.load_state_dict(w, strict=True)
    return model.eval()


def load_vae(path):
    w = read_weights(path, ("",), "decoder.conv1.weight")
    base = len(w["decoder.head.0.gamma"].flatten())
    model = AutoencoderKLQwenImage(base_dim=base, z_dim=len(w["conv2.bias"]))
    shapes = {name: p.shape for name, p in model.state_dict().items()}
    state = convert_wan_vae_to_diffusers(w)
    for name, want in shapes.items():
        if name not in state:  # decoder-only files, files of still pictures without time_conv
            assert name.startswith(("encoder.", "quant_conv.")) or ".time_conv." in name, name
            state[name] = torch.zeros(want)
        elif state[name].dim() == 4 and len(want) == 5:  # 2-D kernels: the last temporal slice
            flat = torch.zeros(want)
            flat[:, :, -1] = state[name]
            state[name] = flat
        elif state[name].dim() == 5 and state[name].shape[2] != want[2]:
            flat = torch.zeros(want)
            flat[:, :, -1:] = state[name]
            state[name] = flat
        else:
            state[name] = state[name].reshape(want)
    model.load_state_dict(state, strict=True)
    return model.eval()


def in_dtype(model, dtype):
    """The model in a lower precision as from_pretrained() would give it: rotary tables and the
    diffusion model's norms stay in float32."""
    kept = {name: buffer.clone() for name, buffer in model.named_buffers()}
    for name, module in model.named_modules():
        if type(module).__name__ == "Krea2RMSNorm":
            kept[name + ".weight"] = module.weight.data.clone()
    model = model.to(dtype)
    for name, tensor in [*model.named_buffers(), *model.named_parameters()]:
        if name in kept:
            tensor.data = kept[name]
    return model


class Reference:
    def __init__(self, folder, dtype=torch.float32):
        self.dtype = dtype
        self.dit = in_dtype(load_dit(f"{folder}/dit.safetensors"), dtype)
        self.encoder = in_dtype(load_encoder(f"{folder}/te.safetensors"), dtype)
        self.vae = in_dtype(load_vae(f"{folder}/vae.safetensors"), dtype)
        self.tokenizer = Qwen2Tokenizer.from_pretrained(f"{folder}/tokenizer")


# ------------------------------------------------------------------------------- sampling --------


def tokens_of(reference, prompt, dialect):
    """ids of the template with the prompt, and how many of them are its prefix."""
    ids = lambda text: reference.tokenizer(text)["input_ids"]
    prefix = len(ids(PREFIX))
    if dialect == "comfyui":
        return ids(PREFIX + prompt + SUFFIX), prefix
    return ids(PREFIX + prompt)[: TEXT_TOKENS + prefix - SUFFIX_TOKENS] + ids(SUFFIX), prefix


def encode(reference, ids, prefix):
    out = reference.encoder(torch.tensor([ids]), output_hidden_states=True, use_cache=False)
    return torch.stack([out.hidden_states[i] for i in TAPS], dim=2)[:, prefix:]


def sigmas_of(request, image_tokens):
    steps, dialect = request["steps"], request.get("dialect", "krea")
    if "mu" in request:
        mu = request["mu"]
    elif dialect == "comfyui":
        mu = 1.15
    else:
        mu = 0.5 + (image_tokens - 256) * 0.65 / (6400 - 256)
    shift = lambda u: math.exp(mu) / (math.exp(mu) + 1 / u - 1) if u > 0 else 0.0
    # ComfyUI picks from a table of 10000, which is this grid where the steps divide 10000.
    assert dialect != "comfyui" or 10000 % steps == 0
    return [shift(1 - i / steps) for i in range(steps)] + [0.0]


def velocity(reference, latent, taps, t, dialect):
    channels, h, w = latent.shape
    grid_h, grid_w = h // 2, w // 2
    patches = latent.view(channels, grid_h, 2, grid_w, 2).permute(1, 3, 0, 2, 4)
    ids = torch.zeros(taps.shape[1] + grid_h * grid_w, 3)
    ids[taps.shape[1] :, 1] = torch.arange(grid_h).repeat_interleave(grid_w)
    ids[taps.shape[1] :, 2] = torch.arange(grid_w).repeat(grid_h)
    time = torch.tensor([t], dtype=torch.float32)
    if dialect != "comfyui":
        time = time.bfloat16()
    out = reference.dit(
        patches.reshape(1, grid_h * grid_w, channels * 4), taps, time, ids, return_dict=False
    )[0]
    out = out.view(grid_h, grid_w, channels, 2, 2).permute(2, 0, 3, 1, 4)
    return out.reshape(channels, h, w)


def decode(reference, latent):
    """One frame as AutoencoderKLQwenImage.decode() gives it: clamped to [-1, 1]."""
    vae = reference.vae
    mean = torch.tensor(vae.config.latents_mean)[:, None, None].to(latent.dtype)
    std = torch.tensor(vae.config.latents_std)[:, None, None].to(latent.dtype)
    z = latent * std + mean
    return vae.decoder(vae.post_quant_conv(z[None, :, None]))[0, :, 0].clamp(-1, 1)


@torch.no_grad()
def run(reference, request):
    """Samples one picture; returns the trace as {name: array}."""
    dialect, cfg = request.get("dialect", "krea"), request["cfg"]
    width, height = (-(-request[side] // 16) * 16 for side in ("width", "height"))
    trace = {}
    ids, prefix = tokens_of(reference, request["prompt"], dialect)
    trace["tokens"] = np.array(ids, np.int32)
    taps = encode(reference, ids, prefix)
    trace["conditioning"] = taps[0].float().numpy()
    if cfg > 0:
        ids, prefix = tokens_of(reference, request.get("negative", ""), dialect)
        negative = encode(reference, ids, prefix)
        trace["conditioning_negative"] = negative[0].float().numpy()
    generator = torch.Generator("cpu").manual_seed(request["seed"])
    latent = torch.randn(16, height // 8, width // 8, generator=generator)
    trace["noise"] = latent.numpy().copy()
    sigmas = sigmas_of(request, (height // 16) * (width // 16))
    trace["sigmas"] = np.array(sigmas, np.float32)
    latent = latent.to(reference.dtype)
    for step in range(request["steps"]):
        v = velocity(reference, latent, taps, sigmas[step], dialect)
        if cfg > 0:
            v = v + cfg * (v - velocity(reference, latent, negative, sigmas[step], dialect))
        latent = latent + ((sigmas[step + 1] - sigmas[step]) * v.float()).to(latent.dtype)
        trace[f"velocity_{step:02d}"] = v.float().numpy()
        trace[f"latent_{step:02d}"] = latent.float().numpy()
    trace["decoded"] = decode(reference, latent).float().numpy()
    return trace


def relative_error(got, want):
    return float(np.linalg.norm((got - want).ravel()) / np.linalg.norm(want.ravel()))


def errors(got, want):
    """Relative RMS error of each traced tensor, tokens left out: they are equal or wrong."""
    return {name: relative_error(got[name], want[name]) for name in want if name != "tokens"}


def write_trace(folder, request, trace, figures):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "request.json").write_text(json.dumps(request, indent=1) + "\n")
    (folder / "bf16-error.json").write_text(json.dumps(figures, indent=1) + "\n")
    for name, array in trace.items():
        np.save(folder / f"{name}.npy", np.ascontiguousarray(array))
