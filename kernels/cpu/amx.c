/* SPDX-License-Identifier: Apache-2.0
 *
 * The tile kernels of amx.h. Called only where features.c has found AMX (such CPUs have all of
 * AVX-512 that is used here).
 */
#include "kernels/cpu/amx.h"

#include <string.h>

#if defined(__x86_64__)

#include <immintrin.h>

#define TARGET                                                                                     \
    __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")))

enum { TILE_BYTES = 1024, TILE_ROW = 64 };

TARGET void amx_begin(void)
{
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.row_bytes[i] = TILE_ROW;
        config.rows[i] = 16;
    }
    /* The compiler believes that only the first 8 bytes are read. */
    __asm__ volatile("" : : "r"(&config) : "memory");
    _tile_loadconfig(&config);
}

TARGET void amx_end(void)
{
    _tile_release();
}

/* -------------------------------------------------------------------------- laying out ------ */

/* The even and the odd lanes of 64 consecutive values: one step and the next. */
TARGET static inline __m512i even_lanes(__m512i a, __m512i b)
{
    return _mm512_shuffle_i64x2(a, b, 0x88);
}

TARGET static inline __m512i odd_lanes(__m512i a, __m512i b)
{
    return _mm512_shuffle_i64x2(a, b, 0xdd);
}

/* 16 x 16 elements of 32 bits, in place. */
TARGET static inline void transpose(__m512i r[16])
{
    __m512i t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
        r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
    }
}

TARGET void amx_pack(uint16_t *to, int64_t apart, const uint16_t *x, int64_t stride, int64_t blocks)
{
    for (int64_t b = 0; b < blocks; b++, x += AMX_BLOCK, to += 2 * apart) {
        __m512i even[16], odd[16];
        for (int i = 0; i < 16; i++) {
            __m512i low = _mm512_loadu_si512(x + i * stride);
            __m512i high = _mm512_loadu_si512(x + i * stride + 32);
            even[i] = even_lanes(low, high);
            odd[i] = odd_lanes(low, high);
        }
        transpose(even);
        transpose(odd);
        for (int i = 0; i < 16; i++) {
            _mm512_storeu_si512(to + 32 * i, even[i]);
            _mm512_storeu_si512(to + apart + 32 * i, odd[i]);
        }
    }
}

TARGET void amx_turn(float *out, int64_t stride, const float *tile)
{
    __m512i r[16];
    for (int i = 0; i < 16; i++)
        r[i] = _mm512_loadu_si512(tile + 16 * i);
    transpose(r);
    for (int i = 0; i < 16; i++)
        _mm512_storeu_si512(out + i * stride, r[i]);
}

/* Where row r of a step's two tiles begins. */
static inline uint16_t *row_of(uint16_t *to, int64_t r)
{
    return to + (r >> 4) * AMX_TILE + (r & 15) * AMX_STEP;
}

TARGET static inline void load_table(__m512i t[4], const struct amx_table *table)
{
    t[0] = _mm512_loadu_si512(table->high);
    t[1] = _mm512_loadu_si512(table->high + 64);
    t[2] = _mm512_loadu_si512(table->low);
    t[3] = _mm512_loadu_si512(table->low + 64);
}

/* 64 codes as bfloat16: even lanes, and odd lanes a step later. */
TARGET static inline void look_up(uint16_t *even, __m512i codes, const __m512i t[4])
{
    __m512i sign = _mm512_set1_epi8((char)0x80);
    __m512i high = _mm512_permutex2var_epi8(t[0], codes, t[1]);
    __m512i low = _mm512_permutex2var_epi8(t[2], codes, t[3]);
    high = _mm512_ternarylogic_epi64(high, codes, sign, 0xf8); /* high | (codes & sign) */
    _mm512_store_si512(even, _mm512_unpacklo_epi8(low, high));
    _mm512_store_si512(even + 2 * AMX_TILE, _mm512_unpackhi_epi8(low, high));
}

static inline __mmask64 first_of_64(int64_t n)
{
    return n >= AMX_BLOCK ? ~0ull : n > 0 ? ~0ull >> (AMX_BLOCK - n) : 0;
}

TARGET void amx_expand(uint16_t *to, const struct amx_table *table, const uint8_t *x,
                       int64_t stride, int64_t rows, int64_t n, int64_t ahead)
{
    __m512i t[4];
    load_table(t, table);
    for (; n > 0; n -= AMX_BLOCK, x += AMX_BLOCK, to += 4 * AMX_TILE) {
        __mmask64 there = first_of_64(n);
        for (int64_t r = 0; r < rows; r++) {
            const uint8_t *at = x + r * stride;
            _mm_prefetch((const char *)((uintptr_t)at + (size_t)ahead), _MM_HINT_T1);
            look_up(row_of(to, r), _mm512_maskz_loadu_epi8(there, at), t);
        }
        for (int64_t r = rows; r < 32; r++)
            look_up(row_of(to, r), _mm512_setzero_si512(), t);
    }
}

TARGET void amx_spread(uint16_t *to, const void *x, int64_t stride, int64_t rows, int64_t n)
{
    const char *from = x;
    for (; n > 0; n -= AMX_BLOCK, from += 2 * AMX_BLOCK, to += 4 * AMX_TILE) {
        uint64_t there = first_of_64(n);
        for (int64_t r = 0; r < 32; r++) {
            const char *at = from + (r < rows ? r : 0) * stride * 2;
            uint64_t mask = r < rows ? there : 0;
            __m512i low = _mm512_maskz_loadu_epi16((__mmask32)mask, at);
            __m512i high = _mm512_maskz_loadu_epi16((__mmask32)(mask >> 32), at + 64);
            _mm512_store_si512(row_of(to, r), even_lanes(low, high));
            _mm512_store_si512(row_of(to, r) + 2 * AMX_TILE, odd_lanes(low, high));
        }
    }
}

/* ------------------------------------------------------------------------- multiplying ------ */

/* Two lines of what is wanted soon. */
TARGET static inline void look_ahead(struct amx_ahead *ahead)
{
    if (ahead->rows <= 0)
        return;
    _mm_prefetch(ahead->at + ahead->column, _MM_HINT_T1);
    _mm_prefetch(ahead->at + ahead->column + 64, _MM_HINT_T1);
    ahead->column += 128;
    if (ahead->column < ahead->bytes)
        return;
    ahead->column = 0;
    ahead->at = (const char *)((uintptr_t)ahead->at + (size_t)ahead->stride);
    ahead->rows--;
}

TARGET static void multiply_1(float *c, const uint16_t *a, const uint16_t *b, int64_t steps,
                              int add, struct amx_ahead *ahead)
{
    if (add) {
        _tile_loadd(0, c, TILE_ROW);
        _tile_loadd(1, c + AMX_SUMS, TILE_ROW);
    } else {
        _tile_zero(0);
        _tile_zero(1);
    }
    for (; steps > 0; steps--, a += 2 * AMX_TILE, b += AMX_TILE) {
        _tile_loadd(6, b, TILE_ROW);
        _tile_loadd(4, a, TILE_ROW);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(5, a + AMX_TILE, TILE_ROW);
        _tile_dpbf16ps(1, 5, 6);
        look_ahead(ahead);
    }
    _tile_stored(0, c, TILE_ROW);
    _tile_stored(1, c + AMX_SUMS, TILE_ROW);
}

TARGET static void multiply_2(float *c, const uint16_t *a, const uint16_t *b, int64_t steps,
                              int add, struct amx_ahead *ahead)
{
    if (add) {
        _tile_loadd(0, c, TILE_ROW);
        _tile_loadd(1, c + AMX_SUMS, TILE_ROW);
        _tile_loadd(2, c + 2 * AMX_SUMS, TILE_ROW);
        _tile_loadd(3, c + 3 * AMX_SUMS, TILE_ROW);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (; steps > 0; steps--, a += 2 * AMX_TILE, b += 2 * AMX_TILE) {
        _tile_loadd(6, b, TILE_ROW);
        _tile_loadd(4, a, TILE_ROW);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b + AMX_TILE, TILE_ROW);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, a + AMX_TILE, TILE_ROW);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
        look_ahead(ahead);
    }
    _tile_stored(0, c, TILE_ROW);
    _tile_stored(1, c + AMX_SUMS, TILE_ROW);
    _tile_stored(2, c + 2 * AMX_SUMS, TILE_ROW);
    _tile_stored(3, c + 3 * AMX_SUMS, TILE_ROW);
}

/* Six tiles of sums leave one for each operand, so B is loaded twice. */
TARGET static void multiply_3(float *c, const uint16_t *a, const uint16_t *b, int64_t steps,
                              int add, struct amx_ahead *ahead)
{
    if (add) {
        _tile_loadd(0, c, TILE_ROW);
        _tile_loadd(1, c + AMX_SUMS, TILE_ROW);
        _tile_loadd(2, c + 2 * AMX_SUMS, TILE_ROW);
        _tile_loadd(3, c + 3 * AMX_SUMS, TILE_ROW);
        _tile_loadd(4, c + 4 * AMX_SUMS, TILE_ROW);
        _tile_loadd(5, c + 5 * AMX_SUMS, TILE_ROW);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        _tile_zero(4);
        _tile_zero(5);
    }
    for (; steps > 0; steps--, a += 2 * AMX_TILE, b += 3 * AMX_TILE) {
        _tile_loadd(6, a, TILE_ROW);
        _tile_loadd(7, b, TILE_ROW);
        _tile_dpbf16ps(0, 6, 7);
        _tile_loadd(7, b + AMX_TILE, TILE_ROW);
        _tile_dpbf16ps(1, 6, 7);
        _tile_loadd(7, b + 2 * AMX_TILE, TILE_ROW);
        _tile_dpbf16ps(2, 6, 7);
        _tile_loadd(6, a + AMX_TILE, TILE_ROW);
        _tile_dpbf16ps(5, 6, 7);
        _tile_loadd(7, b + AMX_TILE, TILE_ROW);
        _tile_dpbf16ps(4, 6, 7);
        _tile_loadd(7, b, TILE_ROW);
        _tile_dpbf16ps(3, 6, 7);
        look_ahead(ahead);
    }
    _tile_stored(0, c, TILE_ROW);
    _tile_stored(1, c + AMX_SUMS, TILE_ROW);
    _tile_stored(2, c + 2 * AMX_SUMS, TILE_ROW);
    _tile_stored(3, c + 3 * AMX_SUMS, TILE_ROW);
    _tile_stored(4, c + 4 * AMX_SUMS, TILE_ROW);
    _tile_stored(5, c + 5 * AMX_SUMS, TILE_ROW);
}

void amx_multiply(float *c, const uint16_t *a, const uint16_t *b, int64_t steps, int columns,
                  int add, struct amx_ahead *ahead)
{
    __asm__ volatile("" ::: "memory"); /* the compiler does not see what tile loads read */
    if (columns == 1)
        multiply_1(c, a, b, steps, add, ahead);
    else if (columns == 2)
        multiply_2(c, a, b, steps, add, ahead);
    else
        multiply_3(c, a, b, steps, add, ahead);
}

/* ----------------------------------------------------------- expanding and multiplying ------ */

/* The next 64 of k of a strip, a few rows of it at a time. */
struct expansion {
    uint16_t *to;
    const uint8_t *const *row; /* 32, those that don't exist repeat the last that does */
    int64_t at, ahead;         /* bytes into the rows; how far to look ahead */
    __mmask64 there;
    __m512i table[4];
};

/* The barriers keep the compiler from undoing the mixture: the look-ups run in the shadow of the
 * tile products only where they stand between them. */
TARGET static inline __attribute__((always_inline)) void expand_rows(const struct expansion *e,
                                                                     int first, int count)
{
    if (!e->to)
        return;
    for (int r = first; r < first + count; r++) {
        const uint8_t *at = e->row[r] + e->at;
        _mm_prefetch((const char *)((uintptr_t)at + (size_t)e->ahead), _MM_HINT_T1);
        look_up(row_of(e->to, r), _mm512_maskz_loadu_epi8(e->there, at), e->table);
    }
    __asm__ volatile("" ::: "memory");
}

/* One step of k with three columns of tokens, and 16 rows of the expansion. */
TARGET static inline __attribute__((always_inline)) void mixed_step_3(const uint16_t *a,
                                                                      const uint16_t *b,
                                                                      const struct expansion *e,
                                                                      int row)
{
    _tile_loadd(6, a, TILE_ROW);
    _tile_loadd(7, b, TILE_ROW);
    _tile_dpbf16ps(0, 6, 7);
    expand_rows(e, row, 3);
    _tile_loadd(7, b + AMX_TILE, TILE_ROW);
    _tile_dpbf16ps(1, 6, 7);
    expand_rows(e, row + 3, 3);
    _tile_loadd(7, b + 2 * AMX_TILE, TILE_ROW);
    _tile_dpbf16ps(2, 6, 7);
    expand_rows(e, row + 6, 3);
    _tile_loadd(6, a + AMX_TILE, TILE_ROW);
    _tile_dpbf16ps(5, 6, 7);
    expand_rows(e, row + 9, 3);
    _tile_loadd(7, b + AMX_TILE, TILE_ROW);
    _tile_dpbf16ps(4, 6, 7);
    expand_rows(e, row + 12, 2);
    _tile_loadd(7, b, TILE_ROW);
    _tile_dpbf16ps(3, 6, 7);
    expand_rows(e, row + 14, 2);
}

TARGET static inline __attribute__((always_inline)) void mixed_step_2(const uint16_t *a,
                                                                      const uint16_t *b,
                                                                      const struct expansion *e,
                                                                      int row)
{
    _tile_loadd(6, a, TILE_ROW);
    _tile_loadd(7, b, TILE_ROW);
    _tile_dpbf16ps(0, 6, 7);
    expand_rows(e, row, 4);
    _tile_loadd(5, a + AMX_TILE, TILE_ROW);
    _tile_dpbf16ps(2, 5, 7);
    expand_rows(e, row + 4, 4);
    _tile_loadd(7, b + AMX_TILE, TILE_ROW);
    _tile_dpbf16ps(1, 6, 7);
    expand_rows(e, row + 8, 4);
    _tile_dpbf16ps(3, 5, 7);
    expand_rows(e, row + 12, 4);
}

TARGET static inline __attribute__((always_inline)) void mixed_step_1(const uint16_t *a,
                                                                      const uint16_t *b,
                                                                      const struct expansion *e,
                                                                      int row)
{
    _tile_loadd(6, a, TILE_ROW);
    _tile_loadd(7, b, TILE_ROW);
    _tile_dpbf16ps(0, 6, 7);
    expand_rows(e, row, 8);
    _tile_loadd(5, a + AMX_TILE, TILE_ROW);
    _tile_dpbf16ps(1, 5, 7);
    expand_rows(e, row + 8, 8);
}

TARGET static inline __attribute__((always_inline)) void mixed_block(int columns, const uint16_t *a,
                                                                     const uint16_t *b,
                                                                     const struct expansion *e)
{
    for (int step = 0; step < 2; step++, a += 2 * AMX_TILE, b += columns * AMX_TILE) {
        if (columns == 3)
            mixed_step_3(a, b, e, 16 * step);
        else if (columns == 2)
            mixed_step_2(a, b, e, 16 * step);
        else
            mixed_step_1(a, b, e, 16 * step);
    }
}

/* Blocks of 64 of k: while one is multiplied from one half of `buf` the next is expanded into the
 * other. The rows' bytes LOOK further on are called for, and at the rows' ends those of `next`. */
TARGET static inline __attribute__((always_inline)) void mixed_walk(int columns,
                                                                    struct expansion *e, int64_t n,
                                                                    const uint16_t *b,
                                                                    int64_t to_next)
{
    enum { LOOK = 256 };
    uint16_t buf[2][4 * AMX_TILE] __attribute__((aligned(64)));
    e->to = buf[0];
    e->there = first_of_64(n);
    e->ahead = LOOK < n ? LOOK : to_next + LOOK - n;
    expand_rows(e, 0, 32);
    for (int64_t k = 0; k < n; k += AMX_BLOCK, b += 2 * columns * AMX_TILE) {
        const uint16_t *a = buf[k / AMX_BLOCK & 1];
        e->at = k + AMX_BLOCK;
        e->to = e->at < n ? buf[~(k / AMX_BLOCK) & 1] : NULL;
        e->there = first_of_64(n - e->at);
        e->ahead = e->at + LOOK < n ? LOOK : to_next + LOOK - n;
        mixed_block(columns, a, b, e);
    }
}

TARGET static void zero_sums(void)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
}

TARGET static void store_sums(float *c, int columns)
{
    _tile_stored(0, c, TILE_ROW);
    _tile_stored(1, c + AMX_SUMS, TILE_ROW);
    if (columns == 1)
        return;
    _tile_stored(2, c + 2 * AMX_SUMS, TILE_ROW);
    _tile_stored(3, c + 3 * AMX_SUMS, TILE_ROW);
    if (columns == 2)
        return;
    _tile_stored(4, c + 4 * AMX_SUMS, TILE_ROW);
    _tile_stored(5, c + 5 * AMX_SUMS, TILE_ROW);
}

TARGET void amx_expand_multiply(float *c, const struct amx_table *table, const uint8_t *x,
                                int64_t stride, int64_t rows, int64_t n, const uint16_t *b,
                                int columns, const uint8_t *next)
{
    const uint8_t *row[32];
    struct expansion e = {.row = row};
    int64_t to_next = (int64_t)((uintptr_t)next - (uintptr_t)x);
    load_table(e.table, table);
    for (int64_t r = 0; r < 32; r++)
        row[r] = x + (r < rows ? r : rows - 1) * stride;
    zero_sums();
    if (columns == 1)
        mixed_walk(1, &e, n, b, to_next);
    else if (columns == 2)
        mixed_walk(2, &e, n, b, to_next);
    else
        mixed_walk(3, &e, n, b, to_next);
    store_sums(c, columns);
}

#else
typedef int no_amx; /* an empty file is no C */
#endif
