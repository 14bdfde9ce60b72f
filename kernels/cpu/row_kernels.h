/* SPDX-License-Identifier: Apache-2.0
 *
 * What the CPU does to one row of F32: the same code (row_kernels_body.h) compiled for several
 * instruction levels; the device picks a table when it is opened. No kernel needs alignment, and
 * where `out` and an input may be the same they may be so exactly.
 */
#ifndef KR_CPU_ROW_KERNELS_H
#define KR_CPU_ROW_KERNELS_H

#include "kernels/kernels.h"

/* A row of F32 or BF16 values. */
struct row_tensor {
    void *data;
    enum kr_dtype dtype;
};

/* What a norm does besides: * (1 + scale) + shift where there is a scale, else an activation. */
struct row_norm {
    const float *weight, *scale, *shift;
    float eps;
    enum kr_act act;
};

struct row_kernels {
    /* Any stored type to F32, or to bfloat16 rounded to nearest even. */
    void (*to_f32)(float *out, const void *x, enum kr_dtype dtype, size_t n);
    void (*to_bf16)(uint16_t *out, const void *x, enum kr_dtype dtype, size_t n);

    /* A whole row: x / sqrt(mean(x^2) + eps) * weight, then what `norm` says. F32 or BF16. */
    void (*rms_norm)(const struct row_tensor *out, const struct row_tensor *x,
                     const struct row_norm *norm, size_t n);
    void (*act)(float *x, enum kr_act act, size_t n);
    void (*rope)(float *x, const float *cos, const float *sin, size_t d, enum kr_rope_pairs pairs);

    void (*swiglu)(float *out, const float *gate, const float *up, size_t n);
    void (*mul_sigmoid)(float *x, const float *gate, size_t n);
    void (*add)(float *out, const float *a, const float *b, size_t n);
    void (*add_scaled)(float *y, float a, const float *x, size_t n);
    void (*guide)(float *v, const float *uncond, float guidance, size_t n);
    void (*scale_shift)(float *out, const float *x, const float *scale, const float *shift,
                        size_t n);
    int (*finite)(const float *x, size_t n);

    /* After a product: act(c * scale + bias), or y += gate * (c * scale + bias); NULL: none. */
    void (*finish)(float *out, const float *c, float scale, const float *bias, enum kr_act act,
                   size_t n);
    void (*finish_add)(float *y, const float *c, float scale, const float *bias, const float *gate,
                       size_t n);

    /* For a softmax: the largest value; s = e^(s - top) and its sum; x *= a. */
    float (*top)(const float *x, size_t n);
    float (*exp_sum)(float *s, float top, size_t n);
    void (*scale)(float *x, float a, size_t n);
};

extern const struct row_kernels row_kernels_base;
#if defined(__x86_64__)
extern const struct row_kernels row_kernels_avx2;
extern const struct row_kernels row_kernels_avx512;
extern const struct row_kernels row_kernels_bf16; /* AVX-512 with AVX512_BF16 */
#endif

#endif
