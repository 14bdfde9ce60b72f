/* SPDX-License-Identifier: Apache-2.0
 *
 * The decoder of the Qwen-Image VAE (Wan 2.1's, original tensor names) for one frame, where each
 * causal 3-D convolution is the 2-D one of its last temporal slice.
 * Maths: diffusers' AutoencoderKLQwenImage.
 */
#ifndef KR_VAE_H
#define KR_VAE_H

#include <stdint.h>

#include "daemon/weights/weights.h"
#include "kernels/kernels.h"

enum { VAE_SCALE = 8, VAE_STAGES = 4, VAE_BLOCKS = 3 };

struct vae_residual {
    struct kr_tensor norm1, norm2; /* F32 gamma; the norm itself, x / |x| * sqrt(C), is RMS's */
    struct kr_conv conv1, conv2, shortcut; /* shortcut.data NULL: the channels are equal */
};

struct vae {
    int64_t channels, base;                      /* 16, 96 */
    struct kr_tensor latent_scale, latent_shift; /* [channels]: std and mean of the latent space */
    struct kr_conv conv2, conv_in, conv_out;
    struct vae_residual middle[2];
    struct kr_tensor attn_norm;
    struct kr_weight attn_qkv, attn_proj;
    struct vae_residual up[VAE_STAGES][VAE_BLOCKS];
    struct kr_conv upsample[VAE_STAGES - 1];
    struct kr_tensor out_norm;
};

int vae_open(const char *path, struct weights **weights, struct kr_err *err);

/* dev NULL: check only. Refuses a conv2 of zeros, whose pictures would be one flat colour. */
int vae_bind(struct vae *vae, const struct weights *weights, struct kr_device *dev,
             struct kr_err *err);
void vae_fini(struct vae *vae, struct kr_device *dev);

/* picture F32 [3, 8h, 8w], not clamped, of latent F32 [channels, h, w] in the sampler's space.
 * The arena's peak grows with h * w: vae_decode_tiled() bounds it. */
void vae_decode(struct vae *vae, struct kr_device *dev, struct kr_tensor picture,
                struct kr_tensor latent);

/* The same picture, to the bit, in bands of `rows` latent rows at the full width: everything up to
 * and with the middle attention runs whole (it is small there), what follows is computed band by
 * band with the margin that its convolutions reach, so no seam can exist. */
void vae_decode_tiled(struct vae *vae, struct kr_device *dev, struct kr_tensor picture,
                      struct kr_tensor latent, int64_t rows);

#endif
