/* SPDX-License-Identifier: Apache-2.0
 *
 * A flow model says at each step where it is heading: from the latent x at time t, velocity v leads
 * to x - t v at time 0. Mapped to colours, that is a recognizable picture after a step or two,
 * while x itself looks like noise until late.
 *
 * The map is a least-squares fit of decoded pictures to their latents in the sampler's normalized
 * space. Numbers of the published one: ComfyUI's latent_formats.py, Wan21, which that program
 * applies in the same space and in the same range of -1 to 1. A VAE of another make says its own in
 * its header (weights_preview()).
 */
#include "daemon/engine/preview.h"

#include <math.h>
#include <stdlib.h>

const struct preview_map preview_wan21 = {
    .factor = {{-0.1299f, -0.1692f, 0.2932f},
               {0.0671f, 0.0406f, 0.0442f},
               {0.3568f, 0.2548f, 0.1747f},
               {0.0372f, 0.2344f, 0.1420f},
               {0.0313f, 0.0189f, -0.0328f},
               {0.0296f, -0.0956f, -0.0665f},
               {-0.3477f, -0.4059f, -0.2925f},
               {0.0166f, 0.1902f, 0.1975f},
               {-0.0412f, 0.0267f, -0.1364f},
               {-0.1293f, 0.0740f, 0.1636f},
               {0.0680f, 0.3019f, 0.1128f},
               {0.0032f, 0.0581f, 0.0639f},
               {-0.1251f, 0.0927f, 0.1699f},
               {0.0060f, -0.0633f, 0.0005f},
               {0.3477f, 0.2275f, 0.2950f},
               {0.1984f, 0.0913f, 0.1861f}},
    .bias = {-0.1835f, -0.0868f, -0.3360f},
};

/* ---------------------------------------------------------------------------- reading ------ */

/* The next number of a text: 0, or -1 if there is none that a map can have. */
static int next_number(const char **text, float *value)
{
    char *end;

    *value = strtof(*text, &end);
    if (end == *text || !isfinite(*value) || (*end != ' ' && *end != '\0'))
        return -1;
    *text = end;
    return 0;
}

static int read_numbers(struct preview_map *map, const char *text)
{
    for (int k = 0; k < PREVIEW_CHANNELS; k++)
        for (int c = 0; c < 3; c++)
            if (next_number(&text, &map->factor[k][c]) < 0)
                return -1;
    for (int c = 0; c < 3; c++)
        if (next_number(&text, &map->bias[c]) < 0)
            return -1;
    return *text == '\0' ? 0 : -1;
}

int preview_map_read(struct preview_map *map, const char *text, const char *file,
                     struct kr_err *err)
{
    if (read_numbers(map, text) == 0)
        return 0;
    return kr_fail(
        err, KR_BAD_FILE,
        "%s: kread.latent_rgb of its header is not %d numbers with a space between them; "
        "write it again with demo/train/preview.py or take it out",
        file, 3 * PREVIEW_CHANNELS + 3);
}

/* ----------------------------------------------------------------------------- pixels ------ */

/* NaN, which finite but huge values can still add up to, is black too. */
static uint8_t level(float x)
{
    x = x > -1 ? x : -1;
    x = x < 1 ? x : 1;
    return (uint8_t)((x + 1) * 127.5f + 0.5f);
}

enum { PIECE = 256 }; /* pixels whose sums stay in the nearest cache */

static void piece(const struct preview_map *map, const float *latent, const float *velocity,
                  float t, int64_t stride, int64_t count, uint8_t *rgb)
{
    float sum[3][PIECE];

    for (int c = 0; c < 3; c++)
        for (int64_t i = 0; i < count; i++)
            sum[c][i] = map->bias[c];
    for (int k = 0; k < PREVIEW_CHANNELS; k++) {
        const float *x = latent + k * stride, *v = velocity + k * stride;

        for (int64_t i = 0; i < count; i++) {
            float clean = x[i] - t * v[i];

            sum[0][i] += map->factor[k][0] * clean;
            sum[1][i] += map->factor[k][1] * clean;
            sum[2][i] += map->factor[k][2] * clean;
        }
    }
    for (int64_t i = 0; i < count; i++)
        for (int c = 0; c < 3; c++)
            rgb[3 * i + c] = level(sum[c][i]);
}

void preview_pixels(const struct preview_map *map, const float *latent, const float *velocity,
                    float t, int64_t count, uint8_t *rgb)
{
    for (int64_t at = 0; at < count; at += PIECE)
        piece(map, latent + at, velocity + at, t, count, count - at < PIECE ? count - at : PIECE,
              rgb + 3 * at);
}
