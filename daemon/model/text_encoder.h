/* SPDX-License-Identifier: Apache-2.0
 *
 * Qwen3-VL's text model as Krea 2 uses it: token ids to the hidden states behind 12 of its layers.
 * Vision is never run. Maths: transformers' Qwen3VLTextModel (positions 0..n-1 on all axes).
 */
#ifndef KR_TEXT_ENCODER_H
#define KR_TEXT_ENCODER_H

#include <stdint.h>

#include "daemon/weights/weights.h"
#include "kernels/kernels.h"

enum { TEXT_TAPS = 12 }; /* outputs of the first 2, 5, ... 35 layers */

struct text_layer {
    struct kr_tensor input_norm, post_norm; /* F32 [width] */
    struct kr_tensor q_norm, k_norm;        /* F32 [head] */
    struct kr_weight q, k, v, o, gate, up, down;
};

struct text_encoder {
    int64_t vocabulary, width, heads, kv_heads, head, hidden, layer_count;
    struct kr_weight embed; /* [vocabulary, width] */
    struct text_layer *layers;
};

/* Opens a text encoder's file with the prefixes in use. */
int text_encoder_open(const char *path, struct weights **weights, struct kr_err *err);

/* Fills te from the file. dev NULL: check only, and te needs no fini beyond text_encoder_fini(te,
 * NULL). without_vision: the owner vouches for a Qwen3-VL of full size without model.visual.*,
 * which is otherwise refused because Z-Image's Qwen3-4B has the same shapes. */
int text_encoder_bind(struct text_encoder *te, const struct weights *weights, bool without_vision,
                      struct kr_device *dev, struct kr_err *err);
void text_encoder_fini(struct text_encoder *te, struct kr_device *dev);

/* out F32 [n - skip, 12, width]: the taps of tokens skip.. (the template's prefix is dropped). */
void text_encoder_forward(const struct text_encoder *te, struct kr_device *dev, const int32_t *ids,
                          int64_t n, int64_t skip, struct kr_tensor out);

#endif
