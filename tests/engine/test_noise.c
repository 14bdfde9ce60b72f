/* SPDX-License-Identifier: Apache-2.0
 *
 * Noise against torch: the first values that are published or were measured, and whole latents
 * that make_data.py wrote.
 */
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "daemon/engine/noise.h"
#include "daemon/engine/rounding.h"
#include "tests/common/golden.h"
#include "tests/common/npy.h"

static const uint64_t seeds[] = {0, 42, (UINT64_C(1) << 32) + 1, INT64_MAX};

static void check_first(void (*draw)(uint64_t, float *, size_t), const float want[4][4])
{
    float got[16];

    for (int i = 0; i < 4; i++) {
        draw(seeds[i], got, 16);
        for (int k = 0; k < 4; k++)
            assert_true(fabsf(got[k] - want[i][k]) < 2e-6f * (1 + fabsf(want[i][k])));
    }
}

static void test_cpu_first(void **state)
{
    static const float want[4][4] = {
        {-1.12584f, -1.15236f, -0.2505786f, -0.4338788f},
        {1.926915f, 1.487284f, 0.9007172f, -2.105521f},
        {-1.525596f, -0.7502318f, -0.6539809f, -1.609485f},
        {-2.664298f, -1.091049f, 0.4514474f, 0.2283607f},
    };

    (void)state;
    check_first(noise_cpu, want);
}

static void test_cuda_first(void **state)
{
    static const float want[4][4] = {
        {-0.9246624f, -0.4253439f, -2.643846f, 0.1451839f},
        {0.1940189f, 2.161374f, -0.1720506f, 0.8490601f},
        {0.854894f, -0.1142023f, -1.071755f, 1.695765f},
        {-0.8442158f, 1.742746f, 1.169782f, -0.8927032f},
    };

    (void)state;
    check_first(noise_cuda, want);
}

static void check_latents(void (*draw)(uint64_t, float *, size_t), const char *name)
{
    for (int i = 0; i < 4; i++) {
        char path[128], message[256];
        struct npy want;
        float *got;

        snprintf(path, sizeof(path), "tests/engine/data/%s_%" PRIu64 ".npy", name, seeds[i]);
        if (npy_read(path, &want, message, sizeof(message)) < 0)
            fail_msg("%s", message);
        got = malloc(want.count * sizeof(*got));
        draw(seeds[i], got, want.count);
        if (golden_max(got, want.f32, want.count) > 1e-5)
            fail_msg("%s is off by %g", path, golden_max(got, want.f32, want.count));
        free(got);
        npy_free(&want);
    }
}

static void test_cpu_latents(void **state)
{
    (void)state;
    check_latents(noise_cpu, "noise_cpu");
}

static void test_cuda_latents(void **state)
{
    (void)state;
    check_latents(noise_cuda, "noise_cuda");
}

/* A prefix of a longer draw is the shorter draw, and seeds that differ in their high word only are
 * the same on the CPU and not on CUDA. */
static void test_lengths_and_words(void **state)
{
    static float a[65536], b[65536];

    (void)state;
    noise_cpu(7, a, 65536);
    noise_cpu(7, b, 16);
    assert_memory_equal(a, b, 16 * sizeof(*a));
    noise_cpu(7 + (UINT64_C(5) << 32), b, 65536);
    assert_memory_equal(a, b, sizeof(a));
    noise_cuda(7, a, 65536);
    noise_cuda(7 + (UINT64_C(5) << 32), b, 65536);
    assert_true(a[0] != b[0]);
}

/* Normal to the extent that 2^20 values show: mean, variance, and the share beyond two sigma. */
static void check_distribution(void (*draw)(uint64_t, float *, size_t))
{
    enum { N = 1 << 20 };
    float *x = malloc(N * sizeof(*x));
    double sum = 0, squares = 0, beyond = 0;

    draw(2026, x, N);
    for (int i = 0; i < N; i++) {
        assert_true(isfinite(x[i]) && fabsf(x[i]) < 7);
        sum += x[i];
        squares += (double)x[i] * x[i];
        beyond += fabsf(x[i]) > 2;
    }
    free(x);
    assert_true(fabs(sum / N) < 0.005);
    assert_true(fabs(squares / N - 1) < 0.01);
    assert_true(fabs(beyond / N - 0.0455) < 0.001);
}

static void test_distribution(void **state)
{
    (void)state;
    check_distribution(noise_cpu);
    check_distribution(noise_cuda);
}

static void test_bf16(void **state)
{
    (void)state;
    assert_true(round_bf16(1.0f) == 1.0f);
    assert_true(round_bf16(1.00390625f) == 1.0f);      /* tie to even */
    assert_true(round_bf16(1.01171875f) == 1.015625f); /* tie to even, upwards */
    assert_true(round_bf16(-0.95672369f) == -0.95703125f);
    assert_true(round_bf16(0.0f) == 0.0f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cpu_first),
        cmocka_unit_test(test_cuda_first),
        cmocka_unit_test(test_cpu_latents),
        cmocka_unit_test(test_cuda_latents),
        cmocka_unit_test(test_lengths_and_words),
        cmocka_unit_test(test_distribution),
        cmocka_unit_test(test_bf16),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
