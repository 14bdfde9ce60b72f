/* SPDX-License-Identifier: Apache-2.0
 *
 * The row kernels with whatever the compiler was told the machine has.
 */
#define VEC_TARGET
#define ROW_KERNELS row_kernels_base
#include "kernels/cpu/row_kernels_body.h"
