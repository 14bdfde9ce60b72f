/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads NumPy's .npy files, the form in which goldens and traces are kept: little-endian float32 or
 * int32 in C order. Needs libc only, so that tests of every room can link it.
 */
#ifndef KR_TESTS_NPY_H
#define KR_TESTS_NPY_H

#include <stddef.h>
#include <stdint.h>

enum { NPY_MAX_RANK = 8 };

struct npy {
    int rank; /* 0 for a scalar, which has count 1 */
    int64_t dim[NPY_MAX_RANK];
    size_t count; /* product of the dimensions */
    float *f32;   /* the data, if the file holds '<f4' ... */
    int32_t *i32; /* ... or '<i4'; the other one is NULL */
};

/* 0 with *a filled (npy_free it), or -1 with one sentence in message and *a zeroed. */
int npy_read(const char *path, struct npy *a, char *message, size_t size);
void npy_free(struct npy *a);

#endif
