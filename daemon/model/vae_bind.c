/* SPDX-License-Identifier: Apache-2.0
 *
 * A Qwen-Image (Wan 2.1) VAE's file to a struct vae. Names are Wan's own. Published files differ in
 * what a still picture never uses: the encoder half may be there as a whole or not at all, kernels
 * may have a time axis or none, the upsamplers may have a time_conv. All of it is accounted for by
 * name, so that a tensor this program has never heard of is still an error.
 */
#include "daemon/model/vae.h"

#include <stdio.h>
#include <string.h>

#include "daemon/model/shapes.h"

/* Mean and deviation of the latent space, on which the diffusion models were trained. */
enum { CHANNELS = 16 };
static const float latent_mean[CHANNELS] = {-.7571f, -.7089f, -.9113f, .1075f,  -.1745f, .9653f,
                                            -.1517f, 1.5508f, .4134f,  -.0715f, .5517f,  -.3632f,
                                            -.1922f, -.9497f, .2503f,  -.2921f};
static const float latent_std[CHANNELS] = {2.8184f, 1.4541f, 2.3275f, 2.6558f, 1.2196f, 1.7708f,
                                           2.6052f, 2.0743f, 3.2687f, 2.1526f, 2.8652f, 1.5579f,
                                           1.6382f, 1.1253f, 2.8251f, 1.9160f};

int vae_open(const char *path, struct weights **weights, struct kr_err *err)
{
    static const char *const prefixes[] = {"", "vae.", NULL};

    return weights_open(path, "VAE", prefixes, "decoder.middle.0.residual.0.gamma", weights, err);
}

static int read_sizes(struct vae *vae, const struct weights *w, struct kr_err *err)
{
    int64_t out;

    if (model_size(w, "conv2.weight", 0, &vae->channels, err) ||
        model_size(w, "decoder.head.0.gamma", 0, &vae->base, err) ||
        model_size(w, "decoder.head.2.weight", 0, &out, err))
        return -1;
    if (vae->channels != CHANNELS)
        return kr_fail(err, KR_BAD_FILE, "%s: its latents have %lld channels, Krea 2's have %d",
                       weights_name(w), (long long)vae->channels, CHANNELS);
    if (out != 3)
        return kr_fail(err, KR_BAD_FILE,
                       "%s: it gives %lld channels a pixel (an upscaling VAE?), want 3; take "
                       "qwen_image_vae.safetensors",
                       weights_name(w), (long long)out);
    return 0;
}

/* A conv2 of zeros decodes every latent to one flat colour. Such files exist: exports that forgot
 * the weights of this layer. */
static int check_conv2(const struct vae *vae, const struct weights *w, struct kr_err *err)
{
    const unsigned char *bytes = vae->conv2.data;
    size_t size = kr_dtype_size(vae->conv2.dtype);
    size_t n = (size_t)(vae->conv2.out * vae->conv2.in * vae->conv2.kt) * size;

    for (size_t i = 0; i < n; i++)
        if (bytes[i] & (i % size == size - 1 ? 0x7f : 0xff)) /* but for the sign: -0 is 0 */
            return 0;
    return kr_fail(err, KR_BAD_FILE,
                   "%s: conv2.weight is all zeros, so every picture would be one flat colour; the "
                   "file was exported wrongly, take qwen_image_vae.safetensors",
                   weights_name(w));
}

/* -------------------------------------------------------------------------------- decoder ---- */

static void bind_residual(struct binder *b, struct vae_residual *r, int64_t in, int64_t out,
                          const char *block)
{
    bind_vector(b, &r->norm1, in, 0, 0, "%s.residual.0.gamma", block);
    bind_conv(b, &r->conv1, out, in, 3, "%s.residual.2", block);
    bind_vector(b, &r->norm2, out, 0, 0, "%s.residual.3.gamma", block);
    bind_conv(b, &r->conv2, out, out, 3, "%s.residual.6", block);
    if (in != out)
        bind_conv(b, &r->shortcut, out, in, 1, "%s.shortcut", block);
}

static void bind_middle(struct binder *b, struct vae *vae)
{
    int64_t c = 4 * vae->base;

    bind_residual(b, &vae->middle[0], c, c, "decoder.middle.0");
    bind_vector(b, &vae->attn_norm, c, 0, 0, "decoder.middle.1.norm.gamma");
    bind_linear_bias(b, &vae->attn_qkv, 3 * c, c, "decoder.middle.1.to_qkv");
    bind_linear_bias(b, &vae->attn_proj, c, c, "decoder.middle.1.proj");
    bind_residual(b, &vae->middle[1], c, c, "decoder.middle.2");
}

/* The two resamplers next to the middle may have a time_conv, which only films need. */
static void ignore_time(struct binder *b, const char *half, int index)
{
    char name[80];

    snprintf(name, sizeof(name), "%s.%d.time_conv.weight", half, index);
    bind_ignore(b, name);
    snprintf(name, sizeof(name), "%s.%d.time_conv.bias", half, index);
    bind_ignore(b, name);
}

/* decoder.upsamples numbers the blocks of all stages and the upsamplers between them in a row. */
static void bind_stages(struct binder *b, struct vae *vae)
{
    const int64_t width[VAE_STAGES] = {4, 4, 2, 1}; /* in units of base */
    char block[64];
    int index = 0;

    for (int s = 0; s < VAE_STAGES; s++) {
        int64_t out = width[s] * vae->base;
        int64_t in = s == 0 ? out : width[s - 1] * vae->base / 2; /* upsamplers halve */

        for (int i = 0; i < VAE_BLOCKS; i++) {
            snprintf(block, sizeof(block), "decoder.upsamples.%d", index++);
            bind_residual(b, &vae->up[s][i], i == 0 ? in : out, out, block);
        }
        if (s == VAE_STAGES - 1)
            break;
        bind_conv(b, &vae->upsample[s], out / 2, out, 3, "decoder.upsamples.%d.resample.1", index);
        if (s < 2)
            ignore_time(b, "decoder.upsamples", index);
        index++;
    }
}

/* -------------------------------------------------------------------------------- encoder ---- */

/* The names of the encoder half, of which a file has all or none. */
struct half {
    struct binder *b;
    const struct weights *weights;
    const char *present, *missing; /* one that is there, one that isn't */
    char names[2][80];
};

static void take(struct half *half, const char *block, const char *tensor)
{
    char name[80];
    int64_t dim[8];
    int there;

    snprintf(name, sizeof(name), "%s%s", block, tensor);
    there = weights_shape(half->weights, name, dim) >= 0;
    if (there)
        bind_ignore(half->b, name);
    if (there && half->present == NULL)
        half->present = strcpy(half->names[0], name);
    if (!there && half->missing == NULL)
        half->missing = strcpy(half->names[1], name);
}

static void take_layer(struct half *half, const char *layer)
{
    take(half, layer, ".weight");
    take(half, layer, ".bias");
}

static void take_residual(struct half *half, const char *block, int shortcut)
{
    static const char *const tensors[] = {".residual.0.gamma",  ".residual.2.weight",
                                          ".residual.2.bias",   ".residual.3.gamma",
                                          ".residual.6.weight", ".residual.6.bias"};

    for (size_t i = 0; i < sizeof(tensors) / sizeof(*tensors); i++)
        take(half, block, tensors[i]);
    if (shortcut) {
        take(half, block, ".shortcut.weight");
        take(half, block, ".shortcut.bias");
    }
}

static void take_downsamples(struct half *half)
{
    char block[64];
    int index = 0;

    for (int s = 0; s < VAE_STAGES; s++) {
        for (int i = 0; i < 2; i++) {
            snprintf(block, sizeof(block), "encoder.downsamples.%d", index++);
            take_residual(half, block, i == 0 && (s == 1 || s == 2));
        }
        if (s == VAE_STAGES - 1)
            break;
        if (s > 0)
            ignore_time(half->b, "encoder.downsamples", index);
        snprintf(block, sizeof(block), "encoder.downsamples.%d.resample.1", index++);
        take_layer(half, block);
    }
}

static int take_encoder(struct binder *b, const struct weights *weights, struct kr_err *err)
{
    struct half half = {.b = b, .weights = weights};

    take_layer(&half, "conv1");
    take_layer(&half, "encoder.conv1");
    take_downsamples(&half);
    take_residual(&half, "encoder.middle.0", 0);
    take(&half, "encoder.middle.1", ".norm.gamma");
    take_layer(&half, "encoder.middle.1.to_qkv");
    take_layer(&half, "encoder.middle.1.proj");
    take_residual(&half, "encoder.middle.2", 0);
    take(&half, "encoder.head", ".0.gamma");
    take_layer(&half, "encoder.head.2");
    if (half.present != NULL && half.missing != NULL)
        return kr_fail(err, KR_BAD_FILE,
                       "%s: it has %s but not %s; its encoder must be there as a whole or not at "
                       "all, so the file is damaged",
                       weights_name(weights), half.present, half.missing);
    return 0;
}

/* ------------------------------------------------------------------------------------ all ---- */

static void bind_decoder(struct binder *b, struct vae *vae)
{
    bind_conv(b, &vae->conv2, vae->channels, vae->channels, 1, "conv2");
    bind_conv(b, &vae->conv_in, 4 * vae->base, vae->channels, 3, "decoder.conv1");
    bind_middle(b, vae);
    bind_stages(b, vae);
    bind_vector(b, &vae->out_norm, vae->base, 0, 0, "decoder.head.0.gamma");
    bind_conv(b, &vae->conv_out, 3, vae->base, 3, "decoder.head.2");
}

static int make_constants(struct vae *vae, struct kr_device *dev, struct kr_err *err)
{
    vae->latent_scale = kr_persist(dev, latent_std, CHANNELS, 0);
    vae->latent_shift = kr_persist(dev, latent_mean, CHANNELS, 0);
    if (vae->latent_scale.data == NULL || vae->latent_shift.data == NULL)
        return kr_fail(err, KR_NO_MEMORY, "no device memory for the VAE's constants");
    return 0;
}

int vae_bind(struct vae *vae, const struct weights *weights, struct kr_device *dev,
             struct kr_err *err)
{
    struct binder b;
    int whole;

    memset(vae, 0, sizeof(*vae));
    if (read_sizes(vae, weights, err) || binder_init(&b, weights, dev, err))
        return -1;
    bind_decoder(&b, vae);
    whole = take_encoder(&b, weights, b.failed ? NULL : err);
    if (binder_end(&b) || whole || check_conv2(vae, weights, err) ||
        (dev != NULL && make_constants(vae, dev, err))) {
        vae_fini(vae, dev);
        return -1;
    }
    return 0;
}

static void free_conv(struct kr_conv *conv, struct kr_device *dev)
{
    kr_conv_fini(dev, conv);
    kr_persist_free(dev, &conv->bias);
}

static void free_residual(struct vae_residual *r, struct kr_device *dev)
{
    kr_persist_free(dev, &r->norm1);
    kr_persist_free(dev, &r->norm2);
    free_conv(&r->conv1, dev);
    free_conv(&r->conv2, dev);
    free_conv(&r->shortcut, dev);
}

static void free_all(struct vae *vae, struct kr_device *dev)
{
    kr_persist_free(dev, &vae->latent_scale);
    kr_persist_free(dev, &vae->latent_shift);
    free_conv(&vae->conv2, dev);
    free_conv(&vae->conv_in, dev);
    free_conv(&vae->conv_out, dev);
    for (int i = 0; i < 2; i++)
        free_residual(&vae->middle[i], dev);
    kr_persist_free(dev, &vae->attn_norm);
    kr_persist_free(dev, &vae->attn_qkv.bias);
    kr_persist_free(dev, &vae->attn_proj.bias);
    for (int s = 0; s < VAE_STAGES; s++)
        for (int i = 0; i < VAE_BLOCKS; i++)
            free_residual(&vae->up[s][i], dev);
    for (int s = 0; s < VAE_STAGES - 1; s++)
        free_conv(&vae->upsample[s], dev);
    kr_persist_free(dev, &vae->out_norm);
}

void vae_fini(struct vae *vae, struct kr_device *dev)
{
    if (dev != NULL)
        free_all(vae, dev);
    memset(vae, 0, sizeof(*vae));
}
