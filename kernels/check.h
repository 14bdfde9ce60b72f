/* SPDX-License-Identifier: Apache-2.0
 *
 * Words for the rules of the operations, so that each reads as its line in kernels.h does.
 */
#ifndef KR_KERNELS_CHECK_H
#define KR_KERNELS_CHECK_H

#include "kernels/backend.h"

#include <string.h>

static inline int is_columns(const struct kr_tensor *t) /* F32 or BF16, nothing empty, or columns */
{
    return (t->dtype == KR_F32 || t->dtype == KR_BF16) && t->rank >= 1 && t->rank <= KR_MAX_RANK &&
           kr_count(t) > 0;
}

static inline int is_real(const struct kr_tensor *t) /* the same, dense */
{
    return is_columns(t) && !t->stride;
}

static inline int is_input(const struct kr_tensor *t) /* or quantized by rows */
{
    return is_real(t) || (t->dtype == KR_F8_E4M3 && t->rank >= 1 && t->rank <= KR_MAX_RANK &&
                          kr_count(t) > 0 && !t->stride);
}

static inline int is_f32(const struct kr_tensor *t)
{
    return t->dtype == KR_F32 && is_real(t);
}

static inline int is_vector(const struct kr_tensor *t, int64_t n) /* F32, n elements, any rank */
{
    return is_f32(t) && kr_count(t) == n;
}

static inline int is_same_shape(const struct kr_tensor *a, const struct kr_tensor *b)
{
    return a->rank == b->rank && !memcmp(a->dim, b->dim, (size_t)a->rank * sizeof a->dim[0]);
}

static inline uintptr_t end_of(const struct kr_tensor *t)
{
    int64_t last = (kr_rows(t) - 1) * kr_stride(t) + kr_cols(t);
    return (uintptr_t)t->data + (size_t)last * kr_dtype_size(t->dtype);
}

/* No byte in common, as far as columns of one tensor go, too. */
static inline int is_apart(const struct kr_tensor *a, const struct kr_tensor *b)
{
    uintptr_t a0 = (uintptr_t)a->data, b0 = (uintptr_t)b->data, row;
    if (end_of(a) <= b0 || end_of(b) <= a0)
        return 1;
    if (!a->stride || a->stride != b->stride || a->dtype != b->dtype)
        return 0;
    row = (size_t)a->stride * kr_dtype_size(a->dtype);
    uintptr_t off = (a0 > b0 ? a0 - b0 : b0 - a0) % row;
    const struct kr_tensor *first = a0 < b0 ? a : b, *second = a0 < b0 ? b : a;
    return (size_t)kr_cols(first) * kr_dtype_size(a->dtype) <= off &&
           off + (size_t)kr_cols(second) * kr_dtype_size(a->dtype) <= row;
}

/* The same elements or none in common: fit for working in place. */
static inline int is_same_or_apart(const struct kr_tensor *out, const struct kr_tensor *x)
{
    return (out->data == x->data && out->dtype == x->dtype && out->stride == x->stride) ||
           is_apart(out, x);
}

#endif
