/* SPDX-License-Identifier: Apache-2.0
 *
 * A register of floats at a time, in the compiler's own vector types: the file that includes this
 * says what it may use. VEC_TARGET is a target attribute or nothing; VEC_512 or VEC_256 make a
 * vector of 16 or 8 floats (else 4: SSE2 or NEON); VEC_512 and VEC_BF16 also allow to name
 * instructions of AVX-512 and AVX512_BF16. Sums are taken in an order that depends on the level, so
 * pictures of different CPUs may differ in last places; pictures of one don't.
 */
#ifndef KR_CPU_VEC_H
#define KR_CPU_VEC_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifndef VEC_TARGET
#define VEC_TARGET
#endif
#define VEC_FN static inline __attribute__((always_inline, unused)) VEC_TARGET

/* VEC floats; the elements of two vectors with even and with odd numbers; those of their lower and
 * of their upper halves by turns. */
#if defined(VEC_512)
enum { VEC = 16 };
#define VEC_EVEN 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define VEC_ODD  1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#define VEC_LOW  0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define VEC_HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif defined(VEC_256)
enum { VEC = 8 };
#define VEC_EVEN 0, 2, 4, 6, 8, 10, 12, 14
#define VEC_ODD  1, 3, 5, 7, 9, 11, 13, 15
#define VEC_LOW  0, 8, 1, 9, 2, 10, 3, 11
#define VEC_HIGH 4, 12, 5, 13, 6, 14, 7, 15
#else
enum { VEC = 4 };
#define VEC_EVEN 0, 2, 4, 6
#define VEC_ODD  1, 3, 5, 7
#define VEC_LOW  0, 4, 1, 5
#define VEC_HIGH 2, 6, 3, 7
#endif

/* Passing such vectors by value would depend on the level; here everything is inlined. */
#pragma GCC diagnostic ignored "-Wpsabi"

typedef float vf __attribute__((vector_size(VEC * 4)));
typedef int32_t vi __attribute__((vector_size(VEC * 4)));
typedef uint32_t vu __attribute__((vector_size(VEC * 4)));
typedef uint16_t vh __attribute__((vector_size(VEC * 2)));

VEC_FN vf vec_load(const float *p)
{
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}

VEC_FN void vec_store(float *p, vf v)
{
    memcpy(p, &v, sizeof v);
}

/* The first n < VEC elements, zeros behind. */
VEC_FN vf vec_load_part(const float *p, size_t n)
{
    float part[VEC] = {0};
    for (size_t i = 0; i < n; i++)
        part[i] = p[i];
    return vec_load(part);
}

VEC_FN void vec_store_part(float *p, vf v, size_t n)
{
    float part[VEC];
    vec_store(part, v);
    for (size_t i = 0; i < n; i++)
        p[i] = part[i];
}

VEC_FN vf vec_all(float x)
{
    return x - (vf){0};
}

/* a where the mask has ones, else b. */
VEC_FN vf vec_pick(vi mask, vf a, vf b)
{
    return (vf)(((vi)a & mask) | ((vi)b & ~mask));
}

/* The larger and the smaller; b where either is NaN. */
#if defined(VEC_512)
VEC_FN vf vec_max(vf a, vf b)
{
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
}

VEC_FN vf vec_min(vf a, vf b)
{
    return (vf)_mm512_min_ps((__m512)a, (__m512)b);
}
#else
VEC_FN vf vec_max(vf a, vf b)
{
    return vec_pick(a > b, a, b);
}

VEC_FN vf vec_min(vf a, vf b)
{
    return vec_pick(a < b, a, b);
}
#endif

/* Sum of the lanes in a fixed order: halves onto halves. */
VEC_FN float vec_sum(vf v)
{
#if defined(VEC_512)
    return _mm512_reduce_add_ps((__m512)v);
#else
    float a[VEC];
    vec_store(a, v);
    for (int step = VEC / 2; step > 0; step /= 2)
        for (int i = 0; i < step; i++)
            a[i] += a[i + step];
    return a[0];
#endif
}

VEC_FN float vec_top(vf v)
{
    float a[VEC];
    vec_store(a, v);
    for (int step = VEC / 2; step > 0; step /= 2)
        for (int i = 0; i < step; i++)
            a[i] = a[i] > a[i + step] ? a[i] : a[i + step];
    return a[0];
}

/* --------------------------------------------------------------------------- functions ------ */

/* e^x within 2 units in the last place for -87 <= x <= 88, and that of the nearer end beyond: what
 * is made of it (a sigmoid, a softmax's weight) does not care. NaN stays NaN.
 * x = n ln 2 + r with |r| <= ln 2 / 2, and a polynomial in r of degree 6. */
#if defined(VEC_512)
VEC_FN vf vec_exp(vf x)
{
    __m512 bounded = (__m512)vec_max(vec_all(-87.0f), vec_min(vec_all(88.0f), x));
    __m512 t = _mm512_mul_ps(bounded, _mm512_set1_ps(1.44269504f));
    __m512 n = _mm512_roundscale_ps(t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), bounded);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    __m512 p = _mm512_set1_ps(1.3981999507e-3f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
    p = _mm512_fmadd_ps(p, _mm512_mul_ps(r, r), _mm512_add_ps(r, _mm512_set1_ps(1.0f)));
    return (vf)_mm512_scalef_ps(p, n);
}

/* 1 / d for 1 <= d < 2^127: an estimate and one step of Newton's, a fourth of a division's time. */
VEC_FN vf vec_inverse(vf d)
{
    __m512 y = _mm512_rcp14_ps((__m512)d);
    return (vf)_mm512_mul_ps(y, _mm512_fnmadd_ps((__m512)d, y, _mm512_set1_ps(2.0f)));
}
#else
VEC_FN vf vec_exp(vf x)
{
    vf bounded = vec_max(vec_all(-87.0f), vec_min(vec_all(88.0f), x));
    vf magic = vec_all(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer */
    vf shifted = bounded * vec_all(1.44269504f) + magic;
    vf n = shifted - magic;
    vf r = bounded - n * vec_all(0.693359375f);
    r = r - n * vec_all(-2.12194440e-4f);
    vf p = vec_all(1.3981999507e-3f);
    p = p * r + vec_all(8.3334519073e-3f);
    p = p * r + vec_all(4.1665795894e-2f);
    p = p * r + vec_all(1.6666665459e-1f);
    p = p * r + vec_all(5.0000001201e-1f);
    p = p * (r * r) + r + vec_all(1.0f);
    /* The integer stands in the low bits of the shifted number: into the exponent with it. */
    return (vf)((vi)p + ((vi)shifted << 23));
}

VEC_FN vf vec_inverse(vf d)
{
    return vec_all(1.0f) / d;
}
#endif

/* 1 / (1 + e^-x). With AVX-512 over 2^t, t = -x log2 e: its rounding only matters where the sigmoid
 * is small, and there by a few units in the last place. */
#if defined(VEC_512)
VEC_FN vf vec_sigmoid(vf x)
{
    __m512 t = _mm512_mul_ps((__m512)x, _mm512_set1_ps(-1.44269504f));
    t = _mm512_min_ps(_mm512_set1_ps(126.0f), t); /* NaN passes */
    __m512 n = _mm512_roundscale_ps(t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 f = _mm512_sub_ps(t, n), p = _mm512_set1_ps(1.5403530e-4f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.3333558e-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.6181291e-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.5504109e-2f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.4022651e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.9314718e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    return vec_inverse((vf)_mm512_add_ps(_mm512_scalef_ps(p, n), _mm512_set1_ps(1.0f)));
}
#else
VEC_FN vf vec_sigmoid(vf x)
{
    return vec_inverse(vec_all(1.0f) + vec_exp(-x));
}
#endif

VEC_FN vf vec_silu(vf x)
{
    return x * vec_sigmoid(x);
}

/* x/2 (1 + tanh(u)) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3) */
VEC_FN vf vec_gelu_tanh(vf x)
{
    vf u = vec_all(1.5957691216f) * (x + vec_all(0.044715f) * x * x * x);
    return x * vec_sigmoid(u);
}

/* ----------------------------------------------------------------------- element types ------ */

VEC_FN vf vec_of_bf16(vh h)
{
    return (vf)(__builtin_convertvector(h, vu) << 16);
}

/* To nearest, ties to even; NaN stays NaN. */
#if defined(VEC_BF16)
VEC_FN vh vec_to_bf16(vf v)
{
    return (vh)_mm512_cvtneps_pbh((__m512)v);
}
#else
VEC_FN vh vec_to_bf16(vf v)
{
    vu u = (vu)v;
    vu rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    vu nan = (u >> 16) | 0x40;
    vu is_nan = (vu)(v != v);
    return __builtin_convertvector((nan & is_nan) | (rounded & ~is_nan), vh);
}
#endif

/* Elements of the small types one by one, for loops that the compiler turns into vectors itself;
 * hence masks and no branches. Subnormal values come from a conversion of their mantissa, since
 * arithmetic on subnormal F32 would cost a hundred times as much. */
VEC_FN float from_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

VEC_FN uint32_t to_bits(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

/* a where the condition holds, else b. */
VEC_FN uint32_t pick_bits(int condition, uint32_t a, uint32_t b)
{
    uint32_t mask = 0u - (uint32_t)condition;
    return (a & mask) | (b & ~mask);
}

VEC_FN float one_of_f16(uint16_t h)
{
    uint32_t magnitude = h & 0x7fffu, sign = (h & 0x8000u) << 16;
    uint32_t subnormal = to_bits((float)(int32_t)magnitude * 0x1p-24f);
    uint32_t normal = (magnitude << 13) + (112u << 23);
    uint32_t bits = pick_bits(magnitude < 0x400, subnormal, normal);
    bits = pick_bits(magnitude >= 0x7c00, magnitude << 13 | 0x7f800000, bits);
    return from_bits(bits | sign);
}

VEC_FN float one_of_e4m3(uint8_t b)
{
    uint32_t magnitude = b & 0x7fu, sign = (b & 0x80u) << 24;
    uint32_t subnormal = to_bits((float)(int32_t)magnitude * 0x1p-9f);
    uint32_t normal = (magnitude << 20) + (120u << 23);
    uint32_t bits = pick_bits(magnitude < 8, subnormal, normal);
    bits = pick_bits(magnitude == 0x7f, 0x7fc00000, bits);
    return from_bits(bits | sign);
}

VEC_FN float one_of_e5m2(uint8_t b)
{
    return one_of_f16((uint16_t)(b << 8));
}

#endif
