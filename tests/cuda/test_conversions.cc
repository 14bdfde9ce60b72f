/* SPDX-License-Identifier: Apache-2.0
 *
 * The emulated number formats: every code against its definition, roundings against a search for
 * the nearest code, ties to even, what is too large, NaN.
 */
#include "cuda_check.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <math.h>
#include <stdlib.h>

/* A format of 1 sign, `exponent` and `mantissa` bits. */
struct format {
    const char *name;
    int exponent, mantissa, bits;
    int infinities; /* the top exponent is IEEE's; else only its last code is NaN */
    double (*decode)(unsigned code);
    unsigned (*encode)(float x);
    int saturates; /* what is too large becomes the largest finite number */
};

static double decode_bf16(unsigned code)
{
    return (double)__bfloat162float(__ushort_as_bfloat16((unsigned short)code));
}
static unsigned encode_bf16(float x)
{
    return __bfloat16_as_ushort(__float2bfloat16_rn(x));
}
static double decode_f16(unsigned code)
{
    return (double)__half2float(__ushort_as_half((unsigned short)code));
}
static unsigned encode_f16(float x)
{
    return __half_as_ushort(__float2half_rn(x));
}
static double decode_e4m3(unsigned code)
{
    __half_raw raw = __nv_cvt_fp8_to_halfraw((unsigned char)code, __NV_E4M3);
    return (double)__half2float(__half(raw));
}
static unsigned encode_e4m3(float x)
{
    return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
}
static unsigned encode_e4m3_nosat(float x)
{
    return __nv_cvt_float_to_fp8(x, __NV_NOSAT, __NV_E4M3);
}
static double decode_e5m2(unsigned code)
{
    __half_raw raw = __nv_cvt_fp8_to_halfraw((unsigned char)code, __NV_E5M2);
    return (double)__half2float(__half(raw));
}
static unsigned encode_e5m2(float x)
{
    return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E5M2);
}

static const struct format formats[] = {
    {"bf16", 8, 7, 16, 1, decode_bf16, encode_bf16, 0},
    {"f16", 5, 10, 16, 1, decode_f16, encode_f16, 0},
    {"e4m3", 4, 3, 8, 0, decode_e4m3, encode_e4m3, 1},
    {"e4m3 nosat", 4, 3, 8, 0, decode_e4m3, encode_e4m3_nosat, 0},
    {"e5m2", 5, 2, 8, 1, decode_e5m2, encode_e5m2, 1},
};
enum { FORMATS = sizeof formats / sizeof formats[0] };

/* The value of a code by its definition; NAN, INFINITY. */
static double defined(const struct format *f, unsigned code)
{
    unsigned top = (1u << f->exponent) - 1, e = code >> f->mantissa & top;
    unsigned m = code & ((1u << f->mantissa) - 1);
    double sign = code >> (f->bits - 1) ? -1 : 1;
    int bias = (1 << (f->exponent - 1)) - 1;
    if (f->infinities && e == top)
        return m ? (double)NAN : sign * (double)INFINITY;
    if (!f->infinities && e == top && m == (1u << f->mantissa) - 1)
        return (double)NAN;
    if (e == 0)
        return sign * ldexp((double)m, 1 - bias - f->mantissa);
    return sign * ldexp((double)(m + (1u << f->mantissa)), (int)e - bias - f->mantissa);
}

static unsigned largest(const struct format *f) /* the code of the largest finite number */
{
    unsigned top = (1u << (f->bits - 1)) - 1;
    return f->infinities ? (((1u << f->exponent) - 1) << f->mantissa) - 1 : top - 1;
}

static void test_every_code(void **)
{
    for (int i = 0; i < FORMATS; i++) {
        const struct format *f = &formats[i];
        for (unsigned code = 0; code < 1u << f->bits; code++) {
            double want = defined(f, code), have = f->decode(code);
            if (isnan(want)) {
                assert_true(isnan(have));
                assert_true(isnan(f->decode(f->encode((float)want))));
                continue;
            }
            assert_true(want == have && signbit(want) == signbit(have));
            if (isfinite(want) || !f->saturates)
                assert_int_equal(f->encode((float)want), code);
        }
    }
}

/* The nearest code to |x| <= largest, of two equally near ones the even. Codes grow with values. */
static unsigned nearest(const struct format *f, double x)
{
    unsigned low = 0, high = largest(f);
    while (high - low > 1) {
        unsigned middle = (low + high) / 2;
        if (defined(f, middle) <= x)
            low = middle;
        else
            high = middle;
    }
    double down = x - defined(f, low), up = defined(f, high) - x;
    return down < up || (down == up && low % 2 == 0) ? low : high;
}

static void check_rounding(const struct format *f, float x)
{
    unsigned sign = signbit(x) ? 1u << (f->bits - 1) : 0;
    double size = fabs((double)x), most = defined(f, largest(f));
    double past = most + (most - defined(f, largest(f) - 1)) / 2; /* from here on too large */
    unsigned beyond = f->saturates ? largest(f) : largest(f) + 1;
    unsigned want = size < past ? (size >= most ? largest(f) : nearest(f, size)) : beyond;
    if (size == past) /* a tie: to the even code */
        want = largest(f) % 2 == 0 ? largest(f) : beyond;
    if (f->encode(x) != (sign | want))
        print_error("%s of %a: %x, not %x\n", f->name, (double)x, f->encode(x), sign | want);
    assert_int_equal(f->encode(x), sign | want);
}

static void test_roundings(void **)
{
    srand(1);
    for (int i = 0; i < FORMATS; i++) {
        const struct format *f = &formats[i];
        for (unsigned code = 0; code < largest(f); code += f->bits == 16 ? 7 : 1) {
            double middle = (defined(f, code) + defined(f, code + 1)) / 2;
            check_rounding(f, (float)middle); /* exact in F32 unless below its normal numbers */
            check_rounding(f, nextafterf((float)middle, 0));
            check_rounding(f, -nextafterf((float)middle, INFINITY));
        }
        for (int n = 0; n < 200000; n++) {
            float x = emu_f32_of(((uint32_t)rand() << 16) ^ (uint32_t)rand());
            if (isfinite(x))
                check_rounding(f, x);
        }
        check_rounding(f, (float)defined(f, largest(f)) * 1.5f);
        check_rounding(f, INFINITY);
        check_rounding(f, -INFINITY);
        check_rounding(f, -0.0f);
    }
}

static void test_pairs(void **)
{
    __nv_bfloat162 b = __floats2bfloat162_rn(1.5f, -3.0f);
    assert_true(__low2float(b) == 1.5f && __high2float(b) == -3.0f);
    assert_int_equal(sizeof b, 4);
    float2 v = {2.0f, -0.5f};
    __nv_fp8x2_storage_t pair = __nv_cvt_float2_to_fp8x2(v, __NV_SATFINITE, __NV_E4M3);
    assert_int_equal(pair & 0xff, encode_e4m3(2.0f)); /* x in the low byte */
    assert_int_equal(pair >> 8, encode_e4m3(-0.5f));
    __half2_raw halves = __nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3);
    assert_true(__half2float(__ushort_as_half(halves.x)) == 2.0f);
    assert_true(__half2float(__ushort_as_half(halves.y)) == -0.5f);
    assert_true((float)__nv_fp8_e4m3(500.0f) == 448.0f);
    assert_true((float)__nv_fp8_e5m2(1e9f) == 57344.0f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_code),
        cmocka_unit_test(test_roundings),
        cmocka_unit_test(test_pairs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
