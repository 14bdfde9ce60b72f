/* SPDX-License-Identifier: Apache-2.0
 *
 * Krea 2's single-stream diffusion transformer: latent, text and time to velocity (noise - x0).
 * Maths: krea-ai/krea-2 (SingleStreamDiT) and diffusers' Krea2Transformer2DModel, which agree.
 */
#ifndef KR_MMDIT_H
#define KR_MMDIT_H

#include <stdint.h>

#include "daemon/weights/weights.h"
#include "kernels/kernels.h"

struct mmdit_attention {
    struct kr_weight wq, wk, wv, gate, wo;
    struct kr_tensor q_norm, k_norm; /* F32 [head], 1 + stored scale, as are all norms here */
};

struct mmdit_mlp {
    struct kr_weight gate, up, down;
};

struct mmdit_text_block {
    struct kr_tensor pre_norm, post_norm; /* [text_width] */
    struct mmdit_attention attn;
    struct mmdit_mlp mlp;
};

struct mmdit_block {
    struct kr_tensor pre_norm, post_norm; /* [width] */
    struct mmdit_attention attn;
    struct mmdit_mlp mlp;
};

struct mmdit {
    int64_t channels, patch;                      /* 16, 2 */
    int64_t width, heads, kv_heads, head, hidden; /* 6144, 48, 12, 128, 16384 */
    int64_t text_width, text_hidden;              /* 2560, 6912 */
    int64_t text_heads, text_kv_heads, text_head; /* 20, 20, 128 */
    int64_t taps, time_width, block_count;        /* 12, 256, 28 */
    int64_t rope_axes[3];                         /* frame, row, column: 32, 48, 48 */
    struct kr_weight first, time_in, time_out, time_modulation, text_in, text_out, last;
    struct kr_tensor text_norm, last_norm; /* [text_width], [width] */
    struct kr_tensor last_modulation;      /* [2, width]: scale, shift */
    struct kr_tensor projector;            /* [taps] */
    struct mmdit_text_block layerwise[2], refiner[2];
    struct mmdit_block *blocks;
    struct kr_tensor modulations; /* [blocks * 6, width]: a block's scale, shift and gate before the
                                     attention, then before the MLP */
    struct kr_tensor
        gate_scales; /* [blocks * 6]: 1, but of a gate the scale of the weight behind */
};

int mmdit_open(const char *path, struct weights **weights, struct kr_err *err);
int mmdit_bind(struct mmdit *m, const struct weights *weights, struct kr_device *dev,
               struct kr_err *err); /* dev NULL: check only */
void mmdit_fini(struct mmdit *m, struct kr_device *dev);

/* The part that does not depend on time: taps F32 [n, 12, text_width] to text F32 [n, width]. */
void mmdit_text(const struct mmdit *m, struct kr_device *dev, struct kr_tensor text,
                struct kr_tensor taps);

/* Rotation tables for n text tokens (angle 0) and a latent of h x w, in the arena. */
struct kr_rope mmdit_rope(const struct mmdit *m, struct kr_device *dev, int64_t n, int64_t h,
                          int64_t w);

/* velocity F32 [channels, h, w] of latent [channels, h, w] at time t (1 = noise, 0 = picture; the
 * caller has rounded t as its dialect wants). rope is mmdit_rope(.., rows of text, h, w). */
void mmdit_forward(const struct mmdit *m, struct kr_device *dev, struct kr_tensor velocity,
                   struct kr_tensor latent, struct kr_tensor text, const struct kr_rope *rope,
                   float t);

#endif
