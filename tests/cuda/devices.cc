/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/cuda/devices.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct kr_device *open_cpu(void)
{
    struct kr_device_options options = {1, KR_ISA_BEST, KR_COMPUTE_F32};
    char why[200] = "";
    struct kr_device *dev = kr_device_open_cpu(&options, why, sizeof why);
    if (!dev)
        fail_msg("%s", why);
    return dev;
}

static struct kr_device *open_gpu(void)
{
    struct kr_cuda_options options = {0, KR_FP8_BEST};
    char why[200] = "";
    struct kr_device *dev = kr_cuda_open(KR_VERSION, &options, why, sizeof why);
    if (!dev)
        fail_msg("%s", why);
    return dev;
}

struct devices devices_open(const struct emu_options *options, size_t bytes)
{
    struct devices d;
    char why[200] = "";
    emu_forget_reports();
    emu_open(options);
    d.dev[CPU] = open_cpu();
    d.dev[GPU] = open_gpu();
    for (int i = 0; i < SIDES; i++)
        if (bytes && kr_job_begin(d.dev[i], NULL, bytes, why, sizeof why))
            fail_msg("%s", why);
    return d;
}

void devices_close(struct devices *d)
{
    for (int i = 0; i < SIDES; i++)
        kr_device_close(d->dev[i]);
    emu_leaks();
    for (int i = 0; emu_report_text(i); i++)
        print_error("%s\n", emu_report_text(i));
    assert_int_equal(emu_reports(), 0);
}

struct cuda_device *devices_cuda(const struct devices *d)
{
    return cuda_of(d->dev[GPU]);
}

/* --------------------------------------------------------------------------- numbers ------ */

static uint64_t state = 1;

void numbers_seed(uint64_t seed)
{
    state = seed * 0x9e3779b97f4a7c15u + 1;
}

static uint32_t next_number(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 32);
}

int64_t number_below(int64_t n)
{
    return (int64_t)(next_number() % (uint64_t)n);
}

float number_between(float low, float high)
{
    return low + (high - low) * ((float)(next_number() >> 8) * 0x1p-24f);
}

/* --------------------------------------------------------------------------- tensors ------ */

struct both both_new(const struct devices *d, enum kr_dtype dtype, int64_t d0, int64_t d1,
                     int64_t d2)
{
    struct both t;
    t.at[CPU] = kr_new(d->dev[CPU], dtype == KR_F8_E4M3 ? KR_F32 : dtype, d0, d1, d2, 0);
    t.at[GPU] = kr_new(d->dev[GPU], dtype, d0, d1, d2, 0);
    return t;
}

struct both both_filled(const struct devices *d, enum kr_dtype dtype, int64_t d0, int64_t d1,
                        int64_t d2, float low, float high)
{
    struct both t = both_new(d, dtype, d0, d1, d2);
    int64_t count = kr_count(&t.at[CPU]);
    float *host = (float *)malloc((size_t)count * sizeof *host);
    assert_non_null(host);
    for (int64_t i = 0; i < count; i++)
        host[i] = number_between(low, high);
    for (int i = 0; i < SIDES; i++)
        kr_upload(d->dev[i], t.at[i], host);
    free(host);
    return t;
}

struct both both_columns(struct both t, int64_t first, int64_t count)
{
    for (int i = 0; i < SIDES; i++)
        t.at[i] = kr_columns(t.at[i], first, count);
    return t;
}

float *floats_of(struct kr_device *dev, struct kr_tensor t)
{
    float *host = (float *)malloc((size_t)kr_count(&t) * sizeof *host);
    assert_non_null(host);
    if (kr_download(dev, t, host))
        fail_msg("%s", kr_device_fault_text(dev));
    return host;
}

static void check_near(float got, float want, float tolerance, int64_t at)
{
    if (isnan(want) && isnan(got))
        return;
    if (!(fabsf(got - want) <= tolerance) && got != want)
        fail_msg("element %lld is %.9g, the CPU has %.9g", (long long)at, (double)got,
                 (double)want);
}

void both_near(const struct devices *d, struct both t, float relative, float absolute)
{
    float *got = floats_of(d->dev[GPU], t.at[GPU]), *want = floats_of(d->dev[CPU], t.at[CPU]);
    for (int64_t i = 0; i < kr_count(&t.at[CPU]); i++)
        check_near(got[i], want[i], relative * fabsf(want[i]) + absolute, i);
    free(got);
    free(want);
}

void both_near_quantized(const struct devices *d, struct both t)
{
    int64_t rows = kr_rows(&t.at[GPU]), cols = kr_cols(&t.at[GPU]);
    uint8_t *codes = (uint8_t *)malloc((size_t)(rows * cols));
    float *factors = (float *)malloc((size_t)rows * sizeof *factors);
    float *got = (float *)malloc((size_t)cols * sizeof *got);
    float *want = floats_of(d->dev[CPU], t.at[CPU]);
    assert_true(codes && factors && got);
    assert_int_equal(kr_device_sync(d->dev[GPU]), KR_FINE);
    CUDA(cudaMemcpy(codes, t.at[GPU].data, (size_t)(rows * cols), cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(factors, cuda_factors(&t.at[GPU]), (size_t)rows * sizeof *factors,
                    cudaMemcpyDeviceToHost));
    for (int64_t r = 0; r < rows; r++) {
        float most = 0, largest = 0;
        cuda_to_f32(got, codes + r * cols, KR_F8_E4M3, cols);
        for (int64_t c = 0; c < cols; c++) {
            float w = want[r * cols + c];
            check_near(got[c] * factors[r], w, fabsf(w) * 0x1.02p-4f + factors[r] * 0x1p-9f,
                       r * cols + c);
            most = fmaxf(most, fabsf(got[c]));
            largest = fmaxf(largest, fabsf(w));
        }
        assert_true(isfinite(factors[r]) && factors[r] > 0);
        assert_true(most == (largest > 1e-20f ? 448.0f : 0.0f));
    }
    free(codes);
    free(factors);
    free(got);
    free(want);
}
