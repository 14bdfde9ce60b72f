/* SPDX-License-Identifier: Apache-2.0
 *
 * Element types and tensors as values: arithmetic on shapes, no device.
 */
#include "kernels/kernels.h"

#include <assert.h>

static const struct {
    const char *name;
    size_t size;
} dtypes[KR_DTYPES] = {
    [KR_F32] = {"F32", 4},         [KR_BF16] = {"BF16", 2},       [KR_F16] = {"F16", 2},
    [KR_F8_E4M3] = {"F8_E4M3", 1}, [KR_F8_E5M2] = {"F8_E5M2", 1}, [KR_I8] = {"I8", 1},
    [KR_U8] = {"U8", 1},           [KR_I16] = {"I16", 2},         [KR_I32] = {"I32", 4},
    [KR_I64] = {"I64", 8},         [KR_F64] = {"F64", 8},         [KR_BOOL] = {"BOOL", 1},
};

size_t kr_dtype_size(enum kr_dtype dtype)
{
    assert(dtype < KR_DTYPES);
    return dtypes[dtype].size;
}

const char *kr_dtype_name(enum kr_dtype dtype)
{
    assert(dtype < KR_DTYPES);
    return dtypes[dtype].name;
}

int64_t kr_count(const struct kr_tensor *t)
{
    int64_t count = 1;
    for (int i = 0; i < t->rank; i++)
        count *= t->dim[i];
    return count;
}

int64_t kr_cols(const struct kr_tensor *t)
{
    return t->rank > 0 ? t->dim[t->rank - 1] : 1;
}

int64_t kr_rows(const struct kr_tensor *t)
{
    int64_t rows = 1;
    for (int i = 0; i + 1 < t->rank; i++)
        rows *= t->dim[i];
    return rows;
}

int64_t kr_stride(const struct kr_tensor *t)
{
    return t->stride ? t->stride : kr_cols(t);
}

/* Integers, because a planned tensor points nowhere. */
static void advance(struct kr_tensor *t, int64_t elements)
{
    if (t->data)
        t->data = (void *)((uintptr_t)t->data + (size_t)elements * kr_dtype_size(t->dtype));
}

struct kr_tensor kr_columns(struct kr_tensor t, int64_t first, int64_t count)
{
    assert(t.rank > 0 && first >= 0 && count > 0 && first <= kr_cols(&t) - count);
    t.stride = count == kr_cols(&t) ? t.stride : kr_stride(&t);
    t.dim[t.rank - 1] = count;
    advance(&t, first);
    return t;
}

struct kr_tensor kr_slice(struct kr_tensor t, int64_t first, int64_t count)
{
    assert(t.rank > 0 && first >= 0 && count >= 0 && first <= t.dim[0] - count);
    assert(t.rank > 1 || !t.stride);
    int64_t rows = t.dim[0] > 0 ? kr_rows(&t) / t.dim[0] : 0;
    advance(&t, t.rank > 1 ? first * rows * kr_stride(&t) : first);
    t.dim[0] = count;
    return t;
}

struct kr_tensor kr_reshape(struct kr_tensor t, int64_t d0, int64_t d1, int64_t d2, int64_t d3)
{
    const int64_t dim[KR_MAX_RANK] = {d0, d1, d2, d3};
    int64_t count = kr_count(&t), cols = kr_cols(&t);
    t.rank = 0;
    while (t.rank < KR_MAX_RANK && dim[t.rank] > 0) {
        t.dim[t.rank] = dim[t.rank];
        t.rank++;
    }
    assert(kr_count(&t) == count && (!t.stride || kr_cols(&t) == cols));
    (void)count, (void)cols;
    return t;
}
