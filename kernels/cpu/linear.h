/* SPDX-License-Identifier: Apache-2.0
 *
 * One linear map on its way through the CPU device: what linear.c (oneDNN) and linear_amx.c (tiles)
 * share.
 */
#ifndef KR_CPU_LINEAR_H
#define KR_CPU_LINEAR_H

#include "kernels/cpu/cpu.h"

struct linear_op {
    struct cpu_device *cpu;
    struct kr_tensor out, x;
    const struct kr_weight *w;
    const float *gate; /* with add: NULL for ones */
    int add;
    enum kr_act act;
};

enum { LINEAR_PANEL = 512 }; /* rows of W whose results are finished together, at most */

/* Results c[tokens, rows], its rows `stride` apart, of the rows of W from `first` on, become out of
 * the tokens from `token` on: scale, bias, activation or gated sum. rows <= LINEAR_PANEL. */
void linear_finish(const struct linear_op *op, const float *c, int64_t stride, int64_t token,
                   int64_t tokens, int64_t first, int64_t rows);

void linear_amx(const struct linear_op *op);

#endif
