/* SPDX-License-Identifier: Apache-2.0
 *
 * Most files that kread refuses are good files of another kind. These tables turn "bad header" into
 * a sentence that says what the file is and which one to take instead. They decide nothing: a file
 * that reaches them is refused anyway.
 */
#include "daemon/weights/foreign.h"

#include <string.h>

#define TAKE "take the file in safetensors format"

static const struct {
    const char *magic;
    size_t size;
    const char *is;
} containers[] = {
    {"GGUF", 4,
     "is a GGUF file, which kread does not read; take the fp8_scaled or bf16 safetensors"},
    {"PK\3\4", 4, "is a PyTorch checkpoint or zip archive (pickle can run code); " TAKE},
    {"\x80\2", 2, "is a Python pickle (.pt, .ckpt), which can run code; " TAKE},
    {"\x80\3", 2, "is a Python pickle (.pt, .ckpt), which can run code; " TAKE},
    {"\x80\4", 2, "is a Python pickle (.pt, .ckpt), which can run code; " TAKE},
    {"\x80\5", 2, "is a Python pickle (.pt, .ckpt), which can run code; " TAKE},
    {"\x89HDF", 4, "is an HDF5 file; " TAKE},
    {"version https://git-lfs", 23,
     "is a Git LFS pointer, not the model; fetch it with git lfs pull"},
    {"<!DOCTYPE", 9,
     "is a web page, so its download failed; many models need a login: download it again"},
    {"<!doctype", 9,
     "is a web page, so its download failed; many models need a login: download it again"},
    {"<html", 5,
     "is a web page, so its download failed; many models need a login: download it again"},
    {"{", 1,
     "is a JSON text (perhaps the index of a split model); take the model as one .safetensors"},
    {"\x1f\x8b", 2, "is gzip-compressed; unpack it"},
    {"\x28\xb5\x2f\xfd", 4, "is zstd-compressed; unpack it"},
};

const char *foreign_container(const unsigned char *head, size_t size)
{
    size_t i;

    for (i = 0; i < sizeof containers / sizeof *containers; i++)
        if (size >= containers[i].size && !memcmp(head, containers[i].magic, containers[i].size))
            return containers[i].is;
    return NULL;
}

static const struct {
    const char *start, *tells;
} layouts[] = {
    {"transformer_blocks.",
     "its tensors have diffusers' names; take the file with the original names, as "
     "Comfy-Org publishes it"},
    {"decoder.up_blocks.",
     "its tensors have diffusers' names; take qwen_image_vae.safetensors as Comfy-Org "
     "publishes it"},
    {"decoder.conv_in.",
     "its tensors have diffusers' names; take qwen_image_vae.safetensors as Comfy-Org "
     "publishes it"},
    {"lora_unet_", "it is a LoRA, which goes on top of a model"},
    {"lora_transformer_", "it is a LoRA, which goes on top of a model"},
    {"lycoris_", "it is a LoRA, which goes on top of a model"},
    {"base_model.model.", "it is a LoRA, which goes on top of a model"},
    {"noise_refiner.", "it is a Z-Image model"},
    {"double_blocks.", "it is a model of the FLUX or Hunyuan family"},
    {"double_stream_modulation_", "it is a FLUX.2 model"},
    {"joint_blocks.", "it is a Stable Diffusion 3 model"},
    {"input_blocks.", "it is a Stable Diffusion model"},
    {"first_stage_model.", "it is an all-in-one checkpoint; take the separate files"},
    {"txtfusion.", "it is a Krea 2 diffusion model"},
    {"blocks.0.self_attn.", "it is a Wan model"},
    {"encoder.block.", "it is a T5 text encoder"},
    {"text_model.", "it is a CLIP text encoder"},
    {"model.layers.", "it is a language model (a text encoder)"},
    {"model.language_model.", "it is a language model with vision (a text encoder)"},
    {"decoder.upsamples.", "it is a VAE of the Wan family"},
};

static const char *const prefixes[] = {"model.diffusion_model.", "diffusion_model.",
                                       "transformer."};

const char *foreign_layout(const char *tensor)
{
    size_t i, n;

    if (strstr(tensor, ".lora_A.") || strstr(tensor, ".lora_down.") || strstr(tensor, ".lokr_w"))
        return "it is a LoRA, which goes on top of a model";
    for (i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        n = strlen(prefixes[i]);
        if (!strncmp(tensor, prefixes[i], n)) {
            tensor += n;
            break;
        }
    }
    for (i = 0; i < sizeof layouts / sizeof *layouts; i++)
        if (!strncmp(tensor, layouts[i].start, strlen(layouts[i].start)))
            return layouts[i].tells;
    return NULL;
}

/* The telling ones first: several formats have a weight_scale, only one a weight_scale_2. */
static const struct {
    const char *suffix, *format;
} siblings[] = {
    {".weight_scale_2", "nvfp4"},
    {".weight_s_rel", "asym_w4a8_int8"},
    {".weight.absmax", "bitsandbytes 4-bit"},
    {".weight.quant_state.bitsandbytes__nf4", "bitsandbytes NF4"},
    {".weight.quant_state.bitsandbytes__fp4", "bitsandbytes FP4"},
    {".SCB", "bitsandbytes 8-bit"},
    {".wscales", "SVDQuant (Nunchaku)"},
    {".smooth_factor", "SVDQuant (Nunchaku)"},
    {".qzeros", "GPTQ or AWQ"},
    {".qweight", "SVDQuant, GPTQ or AWQ"},
    {".svd_up", "SDNQ"},
    {".zero_point", "SDNQ"},
};

const char *foreign_sibling(size_t i, const char **suffix)
{
    if (i >= sizeof siblings / sizeof *siblings)
        return NULL;
    *suffix = siblings[i].suffix;
    return siblings[i].format;
}
