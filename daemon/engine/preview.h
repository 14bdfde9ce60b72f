/* SPDX-License-Identifier: Apache-2.0
 *
 * What a picture will look like, from its latent alone: each cell of the latent becomes one pixel
 * by a linear map. Pure; any thread.
 */
#ifndef KR_ENGINE_PREVIEW_H
#define KR_ENGINE_PREVIEW_H

#include <stdint.h>

#include "proto/err.h"

enum { PREVIEW_CHANNELS = 16 };

/* Red, green and blue, -1 to 1, are bias[c] + sum over k of factor[k][c] latent[k]. */
struct preview_map {
    float factor[PREVIEW_CHANNELS][3], bias[3];
};

/* The published map of the Wan 2.1 latent space, which is Qwen-Image's and Krea 2's. */
extern const struct preview_map preview_wan21;

/* Reads a map as a VAE's header may carry it: 51 numbers, the factors channel by channel, then the
 * bias. `file` names it in messages. */
int preview_map_read(struct preview_map *map, const char *text, const char *file,
                     struct kr_err *err);

/* count RGB pixels of the picture that lies ahead: latent - t velocity, both F32
 * [PREVIEW_CHANNELS, count] in the sampler's space. */
void preview_pixels(const struct preview_map *map, const float *latent, const float *velocity,
                    float t, int64_t count, uint8_t *rgb);

#endif
