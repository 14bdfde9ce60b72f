/* SPDX-License-Identifier: Apache-2.0
 *
 * Rounding to bfloat16, which the official program does to times, noise and pixels and which is
 * therefore part of the dialect "krea".
 */
#ifndef KR_ENGINE_ROUNDING_H
#define KR_ENGINE_ROUNDING_H

#include <stdint.h>
#include <string.h>

/* The nearest bfloat16 of a finite value, ties to even, as a float again. */
static inline float round_bf16(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    bits += 0x7fff + (bits >> 16 & 1);
    bits &= 0xffff0000u;
    memcpy(&x, &bits, sizeof(bits));
    return x;
}

#endif
