/* SPDX-License-Identifier: Apache-2.0
 *
 * Words for the rules of the operations, so that each reads as its line in kernels.h does.
 */
#ifndef KR_KERNELS_CHECK_H
#define KR_KERNELS_CHECK_H

#include "kernels/backend.h"

#include <string.h>

static inline int is_real(const struct kr_tensor *t) /* F32 or BF16, nothing empty */
{
    return (t->dtype == KR_F32 || t->dtype == KR_BF16) && t->rank >= 1 && t->rank <= KR_MAX_RANK &&
           kr_count(t) > 0;
}

static inline int is_f32(const struct kr_tensor *t)
{
    return t->dtype == KR_F32 && t->rank >= 1 && t->rank <= KR_MAX_RANK && kr_count(t) > 0;
}

static inline int is_vector(const struct kr_tensor *t, int64_t n) /* F32, n elements, any rank */
{
    return is_f32(t) && kr_count(t) == n;
}

static inline int is_same_shape(const struct kr_tensor *a, const struct kr_tensor *b)
{
    return a->rank == b->rank && !memcmp(a->dim, b->dim, (size_t)a->rank * sizeof a->dim[0]);
}

static inline int is_apart(const struct kr_tensor *a, const struct kr_tensor *b)
{
    uintptr_t a0 = (uintptr_t)a->data, b0 = (uintptr_t)b->data;
    return a0 + (size_t)kr_count(a) * kr_dtype_size(a->dtype) <= b0 ||
           b0 + (size_t)kr_count(b) * kr_dtype_size(b->dtype) <= a0;
}

/* The same elements or none in common: fit for working in place. */
static inline int is_same_or_apart(const struct kr_tensor *out, const struct kr_tensor *x)
{
    return (out->data == x->data && out->dtype == x->dtype) || is_apart(out, x);
}

#endif
