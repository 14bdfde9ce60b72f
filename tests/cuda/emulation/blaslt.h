/* SPDX-License-Identifier: Apache-2.0
 *
 * What the two halves of the emulated cuBLASLt share.
 */
#ifndef EMU_BLASLT_H
#define EMU_BLASLT_H

#include "internal.h"

#include <cublasLt.h>

struct emu_layout {
    int32_t type, order;
    uint64_t rows, cols;
    int64_t ld;
    int32_t batch;
    int64_t stride; /* elements from one matrix of the batch to the next */
};

struct emu_matmul {
    int32_t compute, scale, pointer_mode, trans_a, trans_b, trans_c;
    uint32_t epilogue;
    const void *bias;
    int64_t bias_stride;
    int32_t bias_type; /* -1: what the table says */
    const void *a_scale, *b_scale, *c_scale, *d_scale;
    void *d_amax;
    int32_t a_mode, b_mode;
    int8_t fast;
    int32_t processors;
};

/* A product as it will run. Everything is a copy: the caller's objects may go at once. */
struct product {
    struct operation op;
    struct emu_matmul desc;
    struct emu_layout a, b, c, d;
    const void *A, *B, *C, *bias;
    void *D, *workspace;
    const float *alpha_at, *beta_at; /* in device memory; NULL: the values are known */
    float alpha, beta;
    int alpha_vector; /* alpha_at has one for each row */
    size_t workspace_bytes;
    int bias_type;
};

cudaError_t product_run(struct operation *self);
size_t blas_type_size(int type);                 /* 0: a type that no product here takes */
size_t layout_bytes(const struct emu_layout *l); /* from the first element to behind the last */

#endif
