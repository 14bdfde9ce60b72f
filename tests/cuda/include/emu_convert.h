/* SPDX-License-Identifier: Apache-2.0
 *
 * Small floating-point formats by their definition: sign, exponent of some bits, mantissa of some
 * bits; rounded to nearest, ties to even, subnormal numbers included.
 */
#ifndef EMU_CONVERT_H
#define EMU_CONVERT_H

#include <math.h>
#include <stdint.h>

static inline uint32_t emu_u32_of(float x)
{
    uint32_t u;
    __builtin_memcpy(&u, &x, sizeof u);
    return u;
}
static inline float emu_f32_of(uint32_t u)
{
    float x;
    __builtin_memcpy(&x, &u, sizeof x);
    return x;
}

static inline uint16_t emu_bf16_of(float x)
{
    uint32_t u = emu_u32_of(x);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return 0x7fff; /* NaN, the canonical one */
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
static inline float emu_f32_of_bf16(uint16_t b)
{
    return emu_f32_of((uint32_t)b << 16);
}

/* |x| as a code of `exponent` and `mantissa` bits that may run past the largest finite one. */
static inline uint32_t emu_round_code(float x, int exponent, int mantissa)
{
    uint32_t u = emu_u32_of(x) & 0x7fffffffu;
    int bias = (1 << (exponent - 1)) - 1;
    int e = (int)(u >> 23) - 127 + bias; /* the exponent that the code would have */
    int drop = 23 - mantissa;
    uint32_t value = (u & 0x7fffffu) | 0x800000u;
    if (e <= 0)
        drop += 1 - e; /* subnormal: the same unit as the smallest normal ones */
    if (drop > 24 || (u >> 23) == 0)
        return 0;
    uint32_t code = value >> drop, rest = value & ((1u << drop) - 1), half = 1u << (drop - 1);
    code += rest > half || (rest == half && (code & 1));
    return e <= 0 ? code : code + ((uint32_t)(e - 1) << mantissa);
}

static inline float emu_decode(uint32_t code, int exponent, int mantissa)
{
    int bias = (1 << (exponent - 1)) - 1;
    int e = (int)(code >> mantissa);
    float m = (float)(code & ((1u << mantissa) - 1));
    return e ? ldexpf(m + (float)(1 << mantissa), e - bias - mantissa)
             : ldexpf(m, 1 - bias - mantissa);
}

static inline uint16_t emu_f16_of(float x)
{
    uint32_t u = emu_u32_of(x);
    uint16_t sign = (uint16_t)(u >> 16 & 0x8000u);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return 0x7fff;
    uint32_t code = (u & 0x7fffffffu) == 0x7f800000u ? 0x7c00u : emu_round_code(x, 5, 10);
    return (uint16_t)(sign | (code > 0x7c00u ? 0x7c00u : code));
}
static inline float emu_f32_of_f16(uint16_t h)
{
    uint32_t code = h & 0x7fffu;
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    if (code >= 0x7c00u)
        return emu_f32_of(sign | 0x7f800000u | (code & 0x3ffu) << 13);
    return emu_f32_of(sign | emu_u32_of(emu_decode(code, 5, 10)));
}

/* e4m3: no infinities, 0x7f is NaN, 448 the largest. e5m2: as IEEE, 57344 the largest. */
static inline uint8_t emu_fp8_of(float x, int e5m2, int saturate)
{
    uint32_t u = emu_u32_of(x), top = e5m2 ? 0x7bu : 0x7eu, beyond = e5m2 ? 0x7cu : 0x7fu;
    uint8_t sign = (uint8_t)(u >> 24 & 0x80u);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return 0x7f;
    uint32_t code = (u & 0x7fffffffu) == 0x7f800000u
                        ? 0xffu
                        : (e5m2 ? emu_round_code(x, 5, 2) : emu_round_code(x, 4, 3));
    if (code > top)
        code = saturate ? top : beyond;
    return (uint8_t)(sign | code);
}
static inline float emu_f32_of_fp8(uint8_t b, int e5m2)
{
    uint32_t code = b & 0x7fu, sign = (uint32_t)(b & 0x80u) << 24;
    if (e5m2)
        return emu_f32_of_f16((uint16_t)(b << 8));
    if (code == 0x7fu)
        return emu_f32_of(sign | 0x7fc00000u);
    return emu_f32_of(sign | emu_u32_of(emu_decode(code, 4, 3)));
}

#endif
