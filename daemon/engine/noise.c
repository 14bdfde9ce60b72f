/* SPDX-License-Identifier: Apache-2.0
 *
 * The starting latent. A seed means a picture only together with the generator that turns it into
 * noise, so both generators of torch are reproduced: users bring seeds from programs that drew on
 * the GPU (the official one) and from programs that drew on the CPU (ComfyUI).
 *
 * CPU: mt19937, whose words become uniforms of 24 bits, and a Box-Muller transform over blocks of
 * 16 values: the first eight uniforms of a block are radii, the last eight are angles.
 *
 * CUDA: Philox 4x32-10, one independent counter for each element, of whose four words the first
 * two make one value. The uniforms are rounded to float32 the way cuRAND does it (the word to
 * float, then one fused multiply and add): close to 1 the logarithm makes that visible.
 *
 * Pure functions; any thread.
 */
#include "daemon/engine/noise.h"

#include <assert.h>
#include <math.h>

/* ----------------------------------------------------------------------- mt19937 ------ */

enum { MT_N = 624, MT_M = 397 };

struct mt19937 {
    uint32_t state[MT_N];
    int at;
};

static void mt_seed(struct mt19937 *mt, uint32_t seed)
{
    mt->state[0] = seed;
    for (uint32_t i = 1; i < MT_N; i++) {
        uint32_t last = mt->state[i - 1];

        mt->state[i] = 1812433253u * (last ^ last >> 30) + i;
    }
    mt->at = MT_N;
}

static void mt_refill(struct mt19937 *mt)
{
    uint32_t *s = mt->state;

    for (int i = 0; i < MT_N; i++) {
        uint32_t y = (s[i] & 0x80000000u) | (s[(i + 1) % MT_N] & 0x7fffffffu);

        s[i] = s[(i + MT_M) % MT_N] ^ y >> 1 ^ (y & 1 ? 0x9908b0dfu : 0);
    }
    mt->at = 0;
}

static uint32_t mt_next(struct mt19937 *mt)
{
    uint32_t y;

    if (mt->at == MT_N)
        mt_refill(mt);
    y = mt->state[mt->at++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680u;
    y ^= y << 15 & 0xefc60000u;
    return y ^ y >> 18;
}

void noise_cpu(uint64_t seed, float *out, size_t n)
{
    const float two_pi = 6.28318530717958647692f;
    struct mt19937 mt;

    assert(n % 16 == 0);
    mt_seed(&mt, (uint32_t)seed);
    for (size_t i = 0; i < n; i++)
        out[i] = (float)(mt_next(&mt) & 0xffffffu) * 0x1p-24f;

    for (size_t block = 0; block < n; block += 16) {
        for (size_t j = block; j < block + 8; j++) {
            float radius = sqrtf(-2.0f * logf(1.0f - out[j]));
            float angle = two_pi * out[j + 8];

            out[j] = radius * cosf(angle);
            out[j + 8] = radius * sinf(angle);
        }
    }
}

/* ------------------------------------------------------------------------ Philox ------ */

static void philox(uint32_t c[4], uint32_t k0, uint32_t k1)
{
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xd2511f53u * c[0];
        uint64_t b = (uint64_t)0xcd9e8d57u * c[2];

        c[0] = (uint32_t)(b >> 32) ^ c[1] ^ k0;
        c[1] = (uint32_t)b;
        c[2] = (uint32_t)(a >> 32) ^ c[3] ^ k1;
        c[3] = (uint32_t)a;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
}

void noise_cuda(uint64_t seed, float *out, size_t n)
{
    const float to_angle = 0x1p-32f * 6.2831855f;

    for (size_t i = 0; i < n; i++) {
        uint32_t c[4] = {0, 0, (uint32_t)i, 0};
        float u, angle;

        philox(c, (uint32_t)seed, (uint32_t)(seed >> 32));
        u = fmaf((float)c[0], 0x1p-32f, 0x1p-33f);
        angle = fmaf((float)c[1], to_angle, to_angle / 2);
        out[i] = sqrtf(-2.0f * logf(u)) * sinf(angle);
    }
}
