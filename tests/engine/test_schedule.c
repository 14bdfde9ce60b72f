/* SPDX-License-Identifier: Apache-2.0
 *
 * Time grids: against torch bit by bit (make_data.py), against the tables that were published for
 * Turbo and Raw, and mu's line.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/engine/rounding.h"
#include "daemon/engine/schedule.h"
#include "tests/common/npy.h"

static const double mus[] = {0.5, 0.58125, 0.90625, 1.15, 2.20625};

static void check_torch(void (*grid)(double, int64_t, float *), const char *name)
{
    static const int steps[] = {1, 3, 8, 28, 52};

    for (int s = 0; s < 5; s++) {
        char path[128], message[256];
        float got[64];
        struct npy want;

        snprintf(path, sizeof(path), "tests/engine/data/%s_%d.npy", name, steps[s]);
        if (npy_read(path, &want, message, sizeof(message)) < 0)
            fail_msg("%s", message);
        for (int m = 0; m < 5; m++) {
            size_t count = (size_t)steps[s] + 1;

            grid(mus[m], steps[s], got);
            assert_memory_equal(got, want.f32 + (size_t)m * count, count * sizeof(*got));
        }
        npy_free(&want);
    }
}

static void test_krea(void **state)
{
    (void)state;
    check_torch(schedule_krea, "krea");
}

static void test_comfyui(void **state)
{
    (void)state;
    check_torch(schedule_comfyui, "comfyui");
}

static void test_turbo_table(void **state)
{
    static const double want[] = {1,         .95672369, .90453076, .84034878, .75951093,
                                  .65456676, .51284415, .31090108, 0};
    static const double network[] = {1000,     957.03125, 906.25,    839.84375,
                                     757.8125, 656.25,    511.71875, 310.546875};
    float got[9];

    (void)state;
    schedule_krea(1.15, 8, got);
    for (int i = 0; i < 9; i++)
        assert_true(fabs(got[i] - want[i]) < 1e-6);
    for (int i = 0; i < 8; i++) /* what the network is given, rounded to bfloat16 */
        assert_true(round_bf16(got[i]) * 1000.0 == network[i]);
}

static void test_raw_table(void **state)
{
    static const double head[] = {1, .9852563, .9698571, .9537576};
    static const double tail[] = {.1599367, .0839702, 0};
    float got[29];

    (void)state;
    schedule_krea(schedule_mu(0.5, 1.15, 4096), 28, got);
    for (int i = 0; i < 4; i++)
        assert_true(fabs(got[i] - head[i]) < 1e-6);
    for (int i = 0; i < 3; i++)
        assert_true(fabs(got[26 + i] - tail[i]) < 1e-6);
}

static void test_mu(void **state)
{
    static const struct {
        int width, height;
        double mu;
    } rows[] = {{256, 256, 0.5},
                {512, 512, 0.58125},
                {1024, 1024, 0.90625},
                {1536, 1024, 1.12292},
                {1280, 1280, 1.15},
                {2048, 2048, 2.20625},
                {16, 16, 0.5 - 255 * 0.65 / 6144}};

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        double mu = schedule_mu(0.5, 1.15, rows[i].width / 16 * (rows[i].height / 16));

        assert_true(fabs(mu - rows[i].mu) < 1e-5);
    }
    assert_true(fabs(schedule_mu(0.2, 0.2, 5000) - 0.2) < 1e-12);
}

/* From 1 to 0, falling, for any number of steps and any mu. */
static void test_shape(void **state)
{
    static const double any[] = {-10, -1, 0, 1.15, 10};
    static float got[1001];
    void (*grids[])(double, int64_t, float *) = {schedule_krea, schedule_comfyui};

    (void)state;
    for (int g = 0; g < 2; g++)
        for (int m = 0; m < 5; m++)
            for (int64_t steps = 1; steps <= 1000; steps += 37) {
                grids[g](any[m], steps, got);
                assert_true(got[0] == 1 && got[steps] == 0);
                for (int64_t i = 0; i < steps; i++)
                    assert_true(isfinite(got[i]) && got[i + 1] <= got[i]);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_krea),        cmocka_unit_test(test_comfyui),
        cmocka_unit_test(test_turbo_table), cmocka_unit_test(test_raw_table),
        cmocka_unit_test(test_mu),          cmocka_unit_test(test_shape),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
