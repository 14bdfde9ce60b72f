/* SPDX-License-Identifier: Apache-2.0
 *
 * The last step to a picture: eight bits. Both reference programs cut off instead of rounding. The
 * official one does the arithmetic before that in bfloat16, which moves a value by up to one
 * level; ComfyUI does it in float32.
 *
 * Pure; any thread. Values are finite (the engine has checked).
 */
#include "daemon/engine/pixels.h"

#include "daemon/engine/rounding.h"

static float clamp(float x)
{
    return x < -1 ? -1 : x > 1 ? 1 : x;
}

static uint8_t level_krea(float x)
{
    float half = round_bf16(clamp(round_bf16(x)) * 0.5f + 0.5f);

    return (uint8_t)round_bf16(half * 255.0f);
}

static uint8_t level_comfyui(float x)
{
    return (uint8_t)((clamp(x) + 1.0f) / 2.0f * 255.0f);
}

void pixels_from_planes(enum kr_dialect dialect, const float *planes, int64_t pixels, int64_t first,
                        int64_t count, uint8_t *rgb)
{
    for (int64_t c = 0; c < 3; c++) {
        const float *x = planes + c * pixels + first;
        uint8_t *to = rgb + 3 * first + c;

        if (dialect == KR_DIALECT_KREA)
            for (int64_t i = 0; i < count; i++)
                to[3 * i] = level_krea(x[i]);
        else
            for (int64_t i = 0; i < count; i++)
                to[3 * i] = level_comfyui(x[i]);
    }
}
