/* SPDX-License-Identifier: Apache-2.0
 *
 * An emulated GPU beside the CPU device, which is the definition: tensors with the same numbers on
 * both, and how far results may lie apart.
 */
#ifndef CUDA_DEVICES_H
#define CUDA_DEVICES_H

#include "kernels/cuda/cuda.h"

#include "tests/cuda/cuda_check.h"

extern "C" struct kr_device *kr_cuda_open(const char *version,
                                          const struct kr_cuda_options *options, char *why,
                                          size_t size);

enum { CPU, GPU, SIDES };

struct devices {
    struct kr_device *dev[SIDES];
};

/* Opens both and begins a job of `bytes` on each. 0: no job. */
struct devices devices_open(const struct emu_options *options, size_t bytes);
void devices_close(struct devices *d); /* and asserts that nothing was reported or is left */

struct cuda_device *devices_cuda(const struct devices *d);

/* A tensor on each, and random numbers. */
struct both {
    struct kr_tensor at[SIDES];
};

void numbers_seed(uint64_t seed);
int64_t number_below(int64_t n);
float number_between(float low, float high);

struct both both_new(const struct devices *d, enum kr_dtype dtype, int64_t d0, int64_t d1,
                     int64_t d2);
struct both both_filled(const struct devices *d, enum kr_dtype dtype, int64_t d0, int64_t d1,
                        int64_t d2, float low, float high);
struct both both_columns(struct both t, int64_t first, int64_t count);
float *floats_of(struct kr_device *dev, struct kr_tensor t); /* a dense tensor's, to be freed */

/* |gpu - cpu| <= relative |cpu| + absolute for every element; NaN only where both have it. */
void both_near(const struct devices *d, struct both t, float relative, float absolute);

/* The same for a tensor that is quantized by rows on the GPU and F32 on the CPU: half a step of the
 * type, and rows' largest numbers are the type's largest. */
void both_near_quantized(const struct devices *d, struct both t);

static inline float step_of(enum kr_dtype dtype)
{
    return dtype == KR_BF16 ? 0x1p-7f : 4e-6f;
}

#endif
