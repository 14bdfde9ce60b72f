/* SPDX-License-Identifier: Apache-2.0
 *
 * The row kernels with AVX2.
 */
#if defined(__x86_64__)
#define VEC_256
#define VEC_TARGET  __attribute__((target("avx2,f16c")))
#define ROW_KERNELS row_kernels_avx2
#include "kernels/cpu/row_kernels_body.h"
#else
typedef int no_avx2; /* an empty file is no C */
#endif
