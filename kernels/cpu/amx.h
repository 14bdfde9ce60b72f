/* SPDX-License-Identifier: Apache-2.0
 *
 * Matrix products in the tile registers of CPUs with AMX, bfloat16 in, F32 sums.
 *
 * A tile is 16 rows of 64 bytes. TDPBF16PS adds to a tile C[16,16] of F32 the product of A[16,32]
 * and B[32,16], where B lies in pairs: its row r holds, for 16 columns, elements 2r and 2r + 1 of
 * k. Everything here multiplies in steps of 32 along k, and always in the order of k; so a sum
 * does not depend on how the work was cut.
 *
 * Along k the elements of every 64 stand in the order 0-7, 16-23, 32-39, 48-55 for one step and
 * 8-15, 24-31, 40-47, 56-63 for the next, in both operands, because that is how a register of 64
 * codes becomes two of bfloat16 without crossing lanes. What is missing to a multiple of 64 is
 * zeros.
 */
#ifndef KR_CPU_AMX_H
#define KR_CPU_AMX_H

#include "kernels/kernels.h"

enum {
    AMX_TILE = 512, /* bfloat16 values of an operand's tile */
    AMX_SUMS = 256, /* F32 values of a result's tile */
    AMX_STEP = 32,  /* of k */
    AMX_BLOCK = 64  /* k is padded to a multiple of this */
};

/* Makes the tile registers of this thread usable, and gives them back. */
void amx_begin(void);
void amx_end(void);

/* B: one tile of 16 columns in each of 2 * blocks steps, a step's tile `apart` values behind the
 * one before, from 16 rows of x of blocks * 64 values, `stride` values apart. */
void amx_pack(uint16_t *to, int64_t apart, const uint16_t *x, int64_t stride, int64_t blocks);

/* Upper and lower byte of the bfloat16 of each code of an 8-bit type, its sign aside. */
struct amx_table {
    uint8_t high[128], low[128];
};

/* A: two tiles a step (rows 0-15 and 16-31) from 32 rows of n codes, `stride` bytes apart, of which
 * `rows` exist. Each row's bytes that come `ahead` behind are called into the cache. */
void amx_expand(uint16_t *to, const struct amx_table *table, const uint8_t *x, int64_t stride,
                int64_t rows, int64_t n, int64_t ahead);

/* The same from rows of n bfloat16 values, `stride` values apart, at any address. */
void amx_spread(uint16_t *to, const void *x, int64_t stride, int64_t rows, int64_t n);

/* Cache lines that are wanted soon: `bytes` of each of `rows` rows. Called in as time allows. */
struct amx_ahead {
    const char *at;
    int64_t bytes, rows, stride;
    int64_t column; /* of the row at `at`, where it has got to */
};

/* c = (add: c +) A B over `steps`, A two tiles a step, B `columns` (1, 2 or 3) tiles a step. c's
 * tile of rows i and columns j is number i * columns + j. */
void amx_multiply(float *c, const uint16_t *a, const uint16_t *b, int64_t steps, int columns,
                  int add, struct amx_ahead *ahead);

/* Both at once for few tokens: c = A B with all n values of k of one strip of rows, expanded on the
 * way. `next` is the row that the caller will begin with after this, for the cache. */
void amx_expand_multiply(float *c, const struct amx_table *table, const uint8_t *x, int64_t stride,
                         int64_t rows, int64_t n, const uint16_t *b, int columns,
                         const uint8_t *next);

/* out[column, row] of c's tile [row, column], rows of out `stride` apart. */
void amx_turn(float *out, int64_t stride, const float *tile);

#endif
