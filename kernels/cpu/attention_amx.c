/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention with tiles: the online softmax of attention.c, in strips of 32 queries. Keys are packed
 * into pairs along d and values into pairs along the keys; queries and weights are left operands.
 * Everything is bfloat16 on its way into a product and F32 behind it.
 *
 * With few long sequences all keys and values are packed first, for all to use. With many short
 * ones (a batch of thousands, 12 long) a thread packs one, does all its queries and heads, and goes
 * on to the next, so that scratch stays small.
 */
#include "kernels/cpu/amx.h"
#include "kernels/cpu/cpu.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <math.h>
#include <string.h>

#define TARGET                                                                                     \
    __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))

enum {
    STRIP = 32,    /* queries that are two tiles, keys that are a step */
    QUERIES = 128, /* of an item */
    KEYS = 256,    /* scored at a time */
    SHORT = 512    /* keys of a sequence that is packed where it is used */
};

struct amx_attention {
    struct cpu_device *cpu;
    struct kr_tensor out, q, k, v;
    int64_t batch, heads, kv_heads, d, n, m;
    int causal;
    int64_t depth, width, keys; /* d padded for the scores and for the values; m padded */
    int64_t blocks;             /* of queries */
    size_t packed_bytes;        /* of one kv head's keys and values */
    char *packed;               /* [batch][kv head], or one for each thread */
    char *scratch;              /* `piece` bytes for each thread */
    size_t piece;
};

/* A thread's scratch. */
struct amx_work {
    uint16_t *rows, *q, *p; /* [32][most of depth, width]; strips of tiles; weights [32][KEYS] */
    float *s, *o;           /* [32][KEYS], [QUERIES][width] */
    float *top, *sum;       /* [QUERIES] */
};

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

static struct amx_work work_of(const struct amx_attention *at, int thread, size_t *bytes)
{
    int64_t most = at->depth > at->width ? at->depth : at->width;
    const size_t size[] = {(size_t)(STRIP * most * 2),
                           (size_t)(QUERIES * at->depth * 2),
                           STRIP * KEYS * 2,
                           STRIP * KEYS * 4,
                           (size_t)(QUERIES * at->width * 4),
                           QUERIES * 4,
                           QUERIES * 4};
    void *piece[7];
    uintptr_t base = (uintptr_t)at->scratch + (size_t)thread * at->piece;
    *bytes = 0;
    for (int i = 0; i < 7; i++) {
        piece[i] = (void *)(base + *bytes);
        *bytes += cpu_aligned(size[i]);
    }
    return (struct amx_work){piece[0], piece[1], piece[2], piece[3], piece[4], piece[5], piece[6]};
}

/* ----------------------------------------------------------------------------- packing ------ */

/* `rows` rows of one head as bfloat16, each `width` long with zeros behind, zero rows up to `all`.
 */
static void gather(const struct amx_attention *at, const struct kr_tensor *t, int64_t first,
                   int64_t head, int64_t rows, int64_t all, int64_t width, uint16_t *to)
{
    int64_t stride = kr_stride(t);
    for (int64_t r = 0; r < all; r++, to += width) {
        int64_t there = r < rows ? at->d : 0;
        if (there)
            at->cpu->rows->to_bf16(to,
                                   cpu_at(t->data, t->dtype, (first + r) * stride + head * at->d),
                                   t->dtype, (size_t)there);
        memset(to + there, 0, (size_t)(width - there) * sizeof *to);
    }
}

/* 32 rows (keys) of `width` values into tiles whose rows are pairs of keys. */
TARGET static void pair_rows(uint16_t *to, const uint16_t *rows, int64_t width)
{
    uint16_t index[64];
    for (int i = 0; i < 64; i++)
        index[i] = (uint16_t)(i / 2 + i % 2 * 32);
    __m512i low = _mm512_loadu_si512(index), high = _mm512_loadu_si512(index + 32);
    for (int64_t c = 0; c < width; c += 32, to += 2 * AMX_TILE)
        for (int64_t r = 0; r < 16; r++) {
            __m512i a = _mm512_loadu_si512(rows + 2 * r * width + c);
            __m512i b = _mm512_loadu_si512(rows + (2 * r + 1) * width + c);
            _mm512_storeu_si512(to + 32 * r, _mm512_permutex2var_epi16(a, low, b));
            _mm512_storeu_si512(to + AMX_TILE + 32 * r, _mm512_permutex2var_epi16(a, high, b));
        }
}

static uint16_t *keys_at(const struct amx_attention *at, char *packed, int64_t key)
{
    return (uint16_t *)(void *)packed + key * at->depth;
}

static uint16_t *values_at(const struct amx_attention *at, char *packed, int64_t key)
{
    return (uint16_t *)(void *)packed + at->keys * at->depth + key * at->width;
}

/* 32 keys and values of one sequence and head. */
static void pack_keys(const struct amx_attention *at, char *packed, int64_t batch, int64_t kv_head,
                      int64_t key, uint16_t *rows)
{
    int64_t first = batch * at->m + key, there = cpu_least(STRIP, at->m - key);
    gather(at, &at->k, first, kv_head, there, STRIP, at->depth, rows);
    for (int64_t half = 0; half < 2; half++)
        amx_pack(keys_at(at, packed, key) + half * AMX_TILE, 2 * AMX_TILE,
                 rows + half * 16 * at->depth, at->depth, at->depth / AMX_BLOCK);
    gather(at, &at->v, first, kv_head, there, STRIP, at->width, rows);
    pair_rows(values_at(at, packed, key), rows, at->width);
}

static void run_pack(void *arg, int64_t item, int thread)
{
    const struct amx_attention *at = arg;
    size_t bytes;
    struct amx_work w = work_of(at, thread, &bytes);
    int64_t strips = at->keys / STRIP, sequence = item / strips;
    pack_keys(at, at->packed + (size_t)sequence * at->packed_bytes, sequence / at->kv_heads,
              sequence % at->kv_heads, item % strips * STRIP, w.rows);
}

/* ------------------------------------------------------------------------ tile kernels ------ */

/* s[32, 32] = queries times keys; q two tiles a step, k two tiles a step. */
TARGET static __attribute__((noinline)) void score(float *s, const uint16_t *q, const uint16_t *k,
                                                   int64_t steps)
{
    enum { ROW = KEYS * sizeof(float) };
    __asm__ volatile("" ::: "memory");
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (; steps > 0; steps--, q += 2 * AMX_TILE, k += 2 * AMX_TILE) {
        _tile_loadd(4, q, 64);
        _tile_loadd(6, k, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, k + AMX_TILE, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, q + AMX_TILE, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, s, ROW);
    _tile_stored(1, s + 16, ROW);
    _tile_stored(2, s + 16 * KEYS, ROW);
    _tile_stored(3, s + 16 * KEYS + 16, ROW);
}

/* o[32, 32] += weights times values: steps of 32 keys, whose tiles of values are `apart` apart. */
TARGET static __attribute__((noinline)) void weigh(float *o, int64_t width, const uint16_t *p,
                                                   const uint16_t *v, int64_t apart, int64_t steps)
{
    enum { ROW = KEYS * sizeof(uint16_t) };
    int64_t row = width * (int64_t)sizeof(float);
    __asm__ volatile("" ::: "memory");
    _tile_loadd(0, o, row);
    _tile_loadd(1, o + 16, row);
    _tile_loadd(2, o + 16 * width, row);
    _tile_loadd(3, o + 16 * width + 16, row);
    for (; steps > 0; steps--, p += 32, v += apart) {
        _tile_loadd(4, p, ROW);
        _tile_loadd(6, v, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, v + AMX_TILE, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, p + 16 * KEYS, ROW);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, o, row);
    _tile_stored(1, o + 16, row);
    _tile_stored(2, o + 16 * width, row);
    _tile_stored(3, o + 16 * width + 16, row);
}

/* ----------------------------------------------------------------------------- softmax ------ */

/* 2^x for x <= 0, to F32's precision: x = n + f with |f| <= 1/2, and a polynomial in f. */
TARGET static inline __m512 exp2_of(__m512 x)
{
    __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 f = _mm512_sub_ps(x, n), p = _mm512_set1_ps(1.5403530e-4f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.3333558e-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.6181291e-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.5504109e-2f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.4022651e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.9314718e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, n);
}

TARGET static float top_of(const float *s, int64_t n)
{
    __m512 top = _mm512_set1_ps(-INFINITY);
    for (int64_t j = 0; j < n; j += 16) {
        __mmask16 there = n - j >= 16 ? 0xffff : (__mmask16)((1u << (n - j)) - 1);
        top = _mm512_mask_max_ps(top, there, top, _mm512_loadu_ps(s + j));
    }
    return _mm512_reduce_max_ps(top);
}

/* p = 2^(c s - top) as bfloat16 for the first `seen` of `keys` (a multiple of 32), zeros behind.
 * Returns their sum. */
TARGET static float weigh_row(uint16_t *p, const float *s, float c, float top, int64_t seen,
                              int64_t keys)
{
    __m512 factor = _mm512_set1_ps(c), minus = _mm512_set1_ps(-top), sum = _mm512_setzero_ps();
    for (int64_t j = 0; j < keys; j += 16) {
        int64_t left = seen - j;
        __mmask16 there = left >= 16 ? 0xffff : left > 0 ? (__mmask16)((1u << left) - 1) : 0;
        __m512 e = exp2_of(_mm512_fmadd_ps(_mm512_loadu_ps(s + j), factor, minus));
        e = _mm512_maskz_mov_ps(there, e);
        sum = _mm512_add_ps(sum, e);
        _mm256_storeu_si256((__m256i *)(void *)(p + j), (__m256i)_mm512_cvtneps_pbh(e));
    }
    return _mm512_reduce_add_ps(sum);
}

/* The scores of a strip become weights; what was summed up so far follows the new top. */
static void softmax_strip(const struct amx_attention *at, const struct amx_work *w, int64_t query,
                          int64_t strip, int64_t key, int64_t keys)
{
    float c = (float)(M_LOG2E / sqrt((double)at->d));
    int64_t padded = round_up(keys, STRIP);
    for (int64_t i = 0; i < STRIP; i++) {
        int64_t at_row = strip + i, seen = keys;
        if (at->causal)
            seen = cpu_least(keys, query + at_row + 1 - key);
        if (seen <= 0 || query + at_row >= at->n) {
            memset(w->p + i * KEYS, 0, (size_t)padded * sizeof *w->p);
            continue;
        }
        float top = top_of(w->s + i * KEYS, seen) * c;
        if (!(top <= w->top[at_row])) {
            float shrink = exp2f(w->top[at_row] - top);
            w->sum[at_row] *= shrink;
            at->cpu->rows->scale(w->o + at_row * at->width, shrink, (size_t)at->width);
            w->top[at_row] = top;
        }
        w->sum[at_row] +=
            weigh_row(w->p + i * KEYS, w->s + i * KEYS, c, w->top[at_row], seen, padded);
    }
}

/* ----------------------------------------------------------------------------- a block ------ */

/* One strip of queries with one block of keys. */
static void attend_strip(const struct amx_attention *at, const struct amx_work *w, char *packed,
                         int64_t query, int64_t strip, int64_t key)
{
    int64_t end = at->causal ? cpu_least(at->m, query + strip + STRIP) : at->m;
    int64_t keys = cpu_least(KEYS, end - key), steps = round_up(keys, STRIP) / STRIP;
    if (keys <= 0)
        return;
    for (int64_t j = 0; j < steps; j++)
        score(w->s + j * STRIP, w->q + strip * at->depth, keys_at(at, packed, key + j * STRIP),
              at->depth / AMX_STEP);
    softmax_strip(at, w, query, strip, key, keys);
    for (int64_t column = 0; column < at->width; column += 32)
        weigh(w->o + strip * at->width + column, at->width, w->p,
              values_at(at, packed, key) + column * 32, at->width * STRIP, steps);
}

static void finish_block(const struct amx_attention *at, const struct amx_work *w, int64_t batch,
                         int64_t head, int64_t query, int64_t queries)
{
    const struct row_kernels *k = at->cpu->rows;
    for (int64_t i = 0; i < queries; i++) {
        int64_t to = ((batch * at->n + query + i) * at->heads + head) * at->d;
        float *o = w->o + i * at->width;
        k->scale(o, 1.0f / w->sum[i], (size_t)at->d);
        if (at->out.dtype == KR_F32)
            memcpy((float *)at->out.data + to, o, (size_t)at->d * sizeof *o);
        cpu_put(at->cpu, &at->out, to, o, (size_t)at->d);
    }
}

static void attend(const struct amx_attention *at, const struct amx_work *w, char *packed,
                   int64_t batch, int64_t head, int64_t query)
{
    int64_t queries = cpu_least(QUERIES, at->n - query), all = round_up(queries, STRIP);
    for (int64_t strip = 0; strip < all; strip += STRIP) {
        int64_t there = cpu_least(STRIP, queries - strip);
        gather(at, &at->q, batch * at->n + query + strip, head, there, STRIP, at->depth, w->rows);
        amx_spread(w->q + strip * at->depth, w->rows, at->depth, STRIP, at->depth);
    }
    for (int64_t i = 0; i < all; i++) {
        w->top[i] = -INFINITY;
        w->sum[i] = 0;
    }
    memset(w->o, 0, (size_t)(all * at->width) * sizeof *w->o);
    for (int64_t key = 0; key < at->m && !kr_cancelled(&at->cpu->base); key += KEYS)
        for (int64_t strip = 0; strip < all; strip += STRIP)
            attend_strip(at, w, packed, query, strip, key);
    finish_block(at, w, batch, head, query, queries);
}

static void run_block(void *arg, int64_t item, int thread)
{
    const struct amx_attention *at = arg;
    size_t bytes;
    struct amx_work w = work_of(at, thread, &bytes);
    int64_t head = item / at->blocks % at->heads, batch = item / at->blocks / at->heads;
    int64_t kv = batch * at->kv_heads + head * at->kv_heads / at->heads;
    amx_begin();
    attend(at, &w, at->packed + (size_t)kv * at->packed_bytes, batch, head,
           item % at->blocks * QUERIES);
    amx_end();
}

/* A whole short sequence and kv head. */
static void run_sequence(void *arg, int64_t item, int thread)
{
    const struct amx_attention *at = arg;
    size_t bytes;
    struct amx_work w = work_of(at, thread, &bytes);
    char *packed = at->packed + (size_t)thread * at->packed_bytes;
    int64_t batch = item / at->kv_heads, kv = item % at->kv_heads;
    int64_t group = at->heads / at->kv_heads;
    for (int64_t key = 0; key < at->keys; key += STRIP)
        pack_keys(at, packed, batch, kv, key, w.rows);
    amx_begin();
    for (int64_t head = kv * group; head < (kv + 1) * group; head++)
        for (int64_t query = 0; query < at->n; query += QUERIES)
            attend(at, &w, packed, batch, head, query);
    amx_end();
}

void attention_amx(struct kr_device *dev, struct kr_tensor out, const struct kr_attention *a)
{
    struct amx_attention at = {.cpu = cpu_of(dev),
                               .out = out,
                               .q = a->q,
                               .k = a->k,
                               .v = a->v,
                               .heads = a->heads,
                               .kv_heads = a->kv_heads,
                               .causal = a->mask == KR_MASK_CAUSAL};
    int64_t threads = at.cpu->pool.threads;
    at.batch = at.q.rank == 3 ? at.q.dim[0] : 1;
    at.d = kr_cols(&at.q) / at.heads;
    at.n = at.q.dim[at.q.rank - 2];
    at.m = at.k.dim[at.k.rank - 2];
    at.depth = round_up(at.d, AMX_BLOCK);
    at.width = round_up(at.d, 32);
    at.keys = round_up(at.m, STRIP);
    at.blocks = (at.n + QUERIES - 1) / QUERIES;
    at.packed_bytes = (size_t)(at.keys * (at.depth + at.width)) * sizeof(uint16_t);
    int64_t sequences = at.batch * at.kv_heads;
    int by_sequence = at.m <= SHORT && at.batch > 1;
    work_of(&at, 0, &at.piece);
    at.packed = kr_scratch(dev, at.packed_bytes * (size_t)(by_sequence ? threads : sequences));
    at.scratch = kr_scratch(dev, at.piece * (size_t)threads);
    if (!kr_live(dev))
        return;
    if (by_sequence) {
        cpu_each(at.cpu, sequences, run_sequence, &at);
        return;
    }
    cpu_each(at.cpu, sequences * (at.keys / STRIP), run_pack, &at);
    cpu_each(at.cpu, at.batch * at.heads * at.blocks, run_block, &at);
}

#else
typedef int no_attention_amx; /* an empty file is no C */
#endif
