/* SPDX-License-Identifier: Apache-2.0
 *
 * The row kernels with AVX-512.
 */
#if defined(__x86_64__)
#include <immintrin.h>
#define VEC_512
#define VEC_TARGET  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define ROW_KERNELS row_kernels_avx512
#include "kernels/cpu/row_kernels_body.h"
#else
typedef int no_avx512; /* an empty file is no C */
#endif
