/* SPDX-License-Identifier: Apache-2.0
 *
 * The row kernels with AVX-512 and its conversions to bfloat16, which take values below 2^-126 for
 * 0 (as the products behind them do).
 */
#if defined(__x86_64__)
#include <immintrin.h>
#define VEC_512
#define VEC_BF16
#define VEC_TARGET  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))
#define ROW_KERNELS row_kernels_bf16
#include "kernels/cpu/row_kernels_body.h"
#else
typedef int no_bf16; /* an empty file is no C */
#endif
