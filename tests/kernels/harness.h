/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of kernels/ share: devices of every instruction level and compute type that this
 * machine has, random tensors, and the comparison with a definition written in double precision.
 *
 * Tolerances. A value stored as BF16 is off by at most 2^-8 of itself. A product whose operands are
 * rounded to BF16 is off by at most twice that; over many terms the errors are independent and
 * uniform, so its relative RMS error comes down to about 2^-8 / sqrt(3) / sqrt(2) * sqrt(2),
 * 0.0023. Sums in F32 add about 1e-6.
 */
#ifndef KR_TESTS_KERNELS_HARNESS_H
#define KR_TESTS_KERNELS_HARNESS_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/kernels.h"

#define UNUSED __attribute__((unused))

static uint64_t random_state = 88172645463325252u;

static UNUSED uint32_t random_bits(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 32);
}

/* Roughly normal, variance 1. */
static UNUSED float random_normal(void)
{
    double sum = 0;
    for (int i = 0; i < 3; i++)
        sum += random_bits() / 2147483648.0;
    return (float)(sum - 3);
}

static UNUSED int64_t random_between(int64_t low, int64_t high)
{
    return low + (int64_t)(random_bits() % (uint64_t)(high - low + 1));
}

static UNUSED float *random_floats(size_t n)
{
    float *x = malloc(n * sizeof *x + 1);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++)
        x[i] = random_normal();
    return x;
}

/* ----------------------------------------------------------------------- element types ------ */
/* Written from the formats' definitions, without a look at the code under test. */

static UNUSED double value_of_bits(uint32_t bits, int exponent_bits, int mantissa_bits, int bias,
                                   int has_infinity)
{
    uint32_t mantissa = bits & ((1u << mantissa_bits) - 1);
    uint32_t exponent = bits >> mantissa_bits & ((1u << exponent_bits) - 1);
    double sign = bits >> (mantissa_bits + exponent_bits) & 1 ? -1 : 1;
    uint32_t last = (1u << exponent_bits) - 1;
    if (has_infinity && exponent == last)
        return mantissa ? NAN : sign * INFINITY;
    if (!has_infinity && exponent == last && mantissa == (1u << mantissa_bits) - 1)
        return NAN;
    if (exponent == 0)
        return sign * ldexp(mantissa, 1 - bias - mantissa_bits);
    return sign * ldexp(mantissa + (1u << mantissa_bits), (int)exponent - bias - mantissa_bits);
}

static UNUSED double value_of(const void *data, enum kr_dtype dtype, size_t i)
{
    const unsigned char *b = data;
    uint16_t h;
    float f;
    switch (dtype) {
    case KR_F32:
        memcpy(&f, b + 4 * i, 4);
        return f;
    case KR_BF16:
        memcpy(&h, b + 2 * i, 2);
        return value_of_bits(h, 8, 7, 127, 1);
    case KR_F16:
        memcpy(&h, b + 2 * i, 2);
        return value_of_bits(h, 5, 10, 15, 1);
    case KR_F8_E4M3:
        return value_of_bits(b[i], 4, 3, 7, 0);
    case KR_F8_E5M2:
        return value_of_bits(b[i], 5, 2, 15, 1);
    default:
        fail();
        return 0;
    }
}

/* Random finite stored values of a type, at an odd address when that is asked for. */
static UNUSED unsigned char *random_stored(enum kr_dtype dtype, size_t n, int odd, void **to_free)
{
    size_t size = kr_dtype_size(dtype);
    unsigned char *all = malloc(n * size + 64), *data = all + odd;
    assert_non_null(all);
    for (size_t i = 0; i < n; i++) {
        float f = random_normal();
        uint32_t bits;
        memcpy(&bits, &f, 4);
        if (dtype == KR_BF16)
            bits >>= 16;
        else if (dtype == KR_F16) /* a random sign and mantissa, exponents of 1/16 to 2 */
            bits = (random_bits() & 0x83ff) | (uint32_t)random_between(11, 16) << 10;
        else if (dtype == KR_F8_E4M3)
            bits = (random_bits() & 0x87) | (uint32_t)random_between(0, 8) << 3;
        else if (dtype == KR_F8_E5M2)
            bits = (random_bits() & 0x83) | (uint32_t)random_between(0, 16) << 2;
        memcpy(data + i * size, &bits, size);
    }
    *to_free = all;
    return data;
}

/* ----------------------------------------------------------------------------- devices ------ */

static UNUSED void run_on(struct kr_device *dev, void (*body)(struct kr_device *dev))
{
    char why[200];
    assert_int_equal(kr_job_begin(dev, NULL, (size_t)256 << 20, why, sizeof why), 0);
    body(dev);
    if (kr_device_sync(dev) != KR_FINE)
        fail_msg("%s: %s", kr_device_name(dev), kr_device_fault_text(dev));
    kr_job_end(dev);
    kr_device_close(dev);
}

/* Calls body(dev) on every kind of device that this machine can be, within a job; and on the CUDA
 * device of the module that $KREAD_CUDA_MODULE names, where FP8 weights are expanded, so that the
 * tolerances are those of BF16. */
static UNUSED void on_every_device(void (*body)(struct kr_device *dev))
{
    static const struct kr_device_options all[] = {
        {1, KR_ISA_BASE, KR_COMPUTE_F32},   {3, KR_ISA_AVX2, KR_COMPUTE_F32},
        {2, KR_ISA_AVX512, KR_COMPUTE_F32}, {2, KR_ISA_AVX512, KR_COMPUTE_BF16},
        {3, KR_ISA_BEST, KR_COMPUTE_BEST},  {1, KR_ISA_BEST, KR_COMPUTE_BEST},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        char why[200];
        struct kr_device *dev = kr_device_open_cpu(&all[i], why, sizeof why);
        if (!dev) { /* only a type that this CPU can't multiply in may be refused */
            assert_int_equal(all[i].compute, KR_COMPUTE_BF16);
            continue;
        }
        run_on(dev, body);
    }
    if (getenv("KREAD_CUDA_MODULE")) {
        const struct kr_cuda_options options = {.fp8 = KR_FP8_EXPAND};
        char why[300] = "";
        struct kr_device *dev = kr_device_open_cuda(&options, why, sizeof why);
        if (!dev)
            fail_msg("%s", why);
        run_on(dev, body);
    }
}

static UNUSED struct kr_tensor tensor_of(struct kr_device *dev, enum kr_dtype dtype,
                                         const float *host, int64_t d0, int64_t d1, int64_t d2)
{
    struct kr_tensor t = kr_new(dev, dtype, d0, d1, d2, 0);
    kr_upload(dev, t, host);
    return t;
}

/* What the device holds: `host` after the rounding of its type. Columns are cut out of their rows.
 */
static UNUSED float *values_of(struct kr_device *dev, struct kr_tensor t)
{
    int64_t rows = kr_rows(&t), cols = kr_cols(&t), stride = kr_stride(&t);
    struct kr_tensor all = {t.data, t.dtype, 1, {(rows - 1) * stride + cols}, 0};
    float *host = malloc((size_t)kr_count(&all) * sizeof *host + 1);
    assert_non_null(host);
    if (kr_download(dev, all, host))
        fail_msg("%s: %s", kr_device_name(dev), kr_device_fault_text(dev));
    for (int64_t r = 1; r < rows && stride > cols; r++)
        memmove(host + r * cols, host + r * stride, (size_t)cols * sizeof *host);
    return host;
}

/* Relative RMS error of t against want[]. */
static UNUSED double error_of(struct kr_device *dev, struct kr_tensor t, const double *want)
{
    float *got = values_of(dev, t);
    double off = 0, all = 0;
    for (int64_t i = 0; i < kr_count(&t); i++) {
        off += (got[i] - want[i]) * (got[i] - want[i]);
        all += want[i] * want[i];
    }
    free(got);
    return all > 0 ? sqrt(off / all) : sqrt(off);
}

#define assert_close(dev, t, want, tolerance)                                                      \
    do {                                                                                           \
        double error_ = error_of(dev, t, want);                                                    \
        if (!(error_ <= (tolerance)))                                                              \
            fail_msg("%s: relative error %g, allowed %g", kr_device_name(dev), error_,             \
                     (double)(tolerance));                                                         \
    } while (0)

/* What a product of n terms may be off by where operands are rounded to the compute type. */
static UNUSED double product_tolerance(struct kr_device *dev, int64_t n)
{
    if (kr_compute_dtype(dev) == KR_F32)
        return 3e-6;
    return n < 200 ? 8e-3 : 3.5e-3;
}

static UNUSED double storage_tolerance(enum kr_dtype dtype)
{
    return dtype == KR_BF16 ? 4e-3 : 2e-6;
}

#endif
