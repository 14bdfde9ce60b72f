/* SPDX-License-Identifier: Apache-2.0
 *
 * An operation that is planned first, then run in a job that was given what planning found and not
 * a byte more: for operations that take scratch.
 */
#ifndef CUDA_PLANNED_H
#define CUDA_PLANNED_H

#include "tests/cuda/devices.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Random numbers, to be freed. */
static inline float *numbers(int64_t n, float low, float high)
{
    float *x = (float *)malloc((size_t)n * sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < n; i++)
        x[i] = number_between(low, high);
    return x;
}

/* To the nearest bfloat16, ties to even. */
static inline float bf16_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    u = (u + 0x7fff + (u >> 16 & 1)) & 0xffff0000u;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* A tensor of the arena with these values; 0 ends the dimensions. */
static inline struct kr_tensor with_values(struct kr_device *dev, enum kr_dtype dtype, int64_t d0,
                                           int64_t d1, int64_t d2, const float *values)
{
    struct kr_tensor t = kr_new(dev, dtype, d0, d1, d2, 0);
    kr_upload(dev, t, values);
    return t;
}

/* Takes its inputs from the arena, and returns its result, a tensor of that. */
typedef struct kr_tensor operation(struct kr_device *dev, const void *of);

/* The values of the result, to be freed. The device has no job. */
static inline float *run_planned(struct kr_device *dev, operation *run, const void *of)
{
    char why[256] = "";
    kr_plan_begin(dev);
    struct kr_tensor t = run(dev, of);
    size_t bytes = kr_plan_end(dev);
    if (kr_job_begin(dev, NULL, bytes, why, sizeof why))
        fail_msg("%s", why);
    t = run(dev, of);
    float *result = (float *)malloc((size_t)kr_count(&t) * sizeof *result);
    assert_non_null(result);
    if (kr_download(dev, t, result))
        fail_msg("%s", kr_device_fault_text(dev));
    assert_true(kr_job_peak(dev) <= bytes);
    kr_job_end(dev);
    return result;
}

/* What cuBLASLt may be able to do or not (emu.h). */
enum { ALPHA_VECTORS = 1, ROWS_TO_BF16 = 2 };

/* The devices, the GPU of this architecture; they stay open as long as the options do not change.
 * The weights of the last case are forgotten: others may lie at their addresses now. */
static inline struct devices *devices_with(int architecture, int quirks)
{
    static struct devices d;
    static struct emu_options opened;
    int alpha_vectors = quirks & ALPHA_VECTORS, rows_to_bf16 = quirks & ROWS_TO_BF16;
    int fits = opened.architecture == architecture && opened.alpha_vectors == alpha_vectors &&
               opened.rows_to_bf16 == rows_to_bf16;
    if (opened.architecture && !fits)
        devices_close(&d);
    opened.architecture = architecture;
    opened.alpha_vectors = alpha_vectors;
    opened.rows_to_bf16 = rows_to_bf16;
    opened.memory = (size_t)256 << 20;
    if (architecture && !fits)
        d = devices_open(&opened, 0);
    if (architecture)
        kr_device_residency(d.dev[GPU], KR_RESIDENT, 0);
    return &d;
}

static inline struct devices *devices_of(int architecture)
{
    return devices_with(architecture, 0);
}

/* A group's teardown. */
static inline int close_devices(void **state)
{
    (void)state;
    devices_of(0);
    return 0;
}

#endif
