/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear maps with tiles. W is the left operand: its rows are read as they lie in the file and
 * become tiles without a transposition; the activations are brought into pairs once, and results
 * are turned as they leave. There is no other copy of a weight than the expanded one, and that is
 * in the cache.
 *
 * Few tokens (FEW): the time goes into reading W. A strip of 32 rows is expanded a piece at a time
 * into the first-level cache and multiplied at once.
 *
 * Many tokens: a panel of rows is expanded over DEEP of k into the second-level cache, and all
 * blocks of 48 tokens pass over it, their sums waiting in memory between one piece of k and the
 * next. While that goes on the panel's next piece of W is called into the cache.
 */
#include "kernels/cpu/amx.h"
#include "kernels/cpu/linear.h"

#include <string.h>

#if defined(__x86_64__)

enum {
    STRIP = 32,    /* rows of W that are two tiles */
    WIDE = 48,     /* tokens of a block: three tiles; the last may have fewer */
    FEW = 48,      /* tokens that are three tiles */
    SHALLOW = 512, /* of k at a time with few tokens */
    DEEP = 1024,   /* and with many */
    PANEL = 256,   /* rows of W at most */
    GROUP = 1104,  /* tokens whose sums are kept at a time */
    PIECE = 512    /* of k converted at a time in packing */
};

struct amx_linear {
    struct linear_op op;
    struct amx_table table;
    int coded;           /* W has codes that the table knows */
    int64_t n, k, depth; /* tokens, values of k, k padded */
    int64_t padded;      /* tokens, to a multiple of 16 */
    int64_t panel;       /* rows of W an item */
    uint16_t *b;         /* packed tokens: [block][step][1 to 3 tiles] */
    char *scratch;       /* `piece` bytes for each thread: */
    size_t piece, c_at, turned_at, rows_at;
};

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

/* ----------------------------------------------------------------------------- packing ------ */

/* Tokens of the block that begins at `token`. */
static int64_t width_at(const struct amx_linear *l, int64_t token)
{
    return cpu_least(WIDE, l->padded - token);
}

/* 16 tokens become a column of tiles. */
static void run_pack(void *arg, int64_t item, int thread)
{
    const struct amx_linear *l = arg;
    const struct kr_tensor *x = &l->op.x;
    uint16_t piece[16 * PIECE];
    int64_t token = item * 16, block = token / WIDE * WIDE, width = width_at(l, block);
    uint16_t *to = l->b + block * l->depth + (token - block) / 16 * AMX_TILE;
    (void)thread;
    for (int64_t k = 0; k < l->depth; k += PIECE) {
        int64_t n = cpu_least(PIECE, l->k - k), padded = cpu_least(PIECE, l->depth - k);
        for (int64_t i = 0; i < 16; i++) {
            uint16_t *row = piece + i * PIECE;
            int64_t there = token + i < l->n ? n : 0;
            if (there)
                l->op.cpu->rows->to_bf16(row, cpu_at(x->data, x->dtype, (token + i) * l->k + k),
                                         x->dtype, (size_t)there);
            memset(row + there, 0, (size_t)(padded - there) * sizeof *row);
        }
        amx_pack(to + k * width, width / 16 * AMX_TILE, piece, PIECE, padded / AMX_BLOCK);
    }
}

/* --------------------------------------------------------------------------- expanding ------ */

/* Rows first.. of W, values k..k + n, as a strip of tiles. */
static void expand(const struct amx_linear *l, uint16_t *a, int64_t first, int64_t rows, int64_t k,
                   int64_t n, uint16_t *converted, int64_t ahead)
{
    const struct kr_weight *w = l->op.w;
    const void *from = cpu_at(w->data, w->dtype, first * l->k + k);
    if (l->coded) {
        amx_expand(a, &l->table, from, l->k, rows, n, ahead);
        return;
    }
    if (w->dtype == KR_BF16) {
        amx_spread(a, from, l->k, rows, n);
        return;
    }
    for (int64_t r = 0; r < rows; r++)
        l->op.cpu->rows->to_bf16(converted + r * DEEP,
                                 cpu_at(w->data, w->dtype, (first + r) * l->k + k), w->dtype,
                                 (size_t)n);
    amx_spread(a, converted, DEEP, rows, n);
}

/* -------------------------------------------------------------------------- few tokens ------ */

/* One strip of rows times all tokens into c. */
static void multiply_strip(const struct amx_linear *l, float *c, uint16_t *a, uint16_t *converted,
                           int64_t first, int64_t rows)
{
    int tiles = (int)(l->padded / 16);
    struct amx_ahead none = {0};
    if (l->coded) {
        const uint8_t *x = (const uint8_t *)l->op.w->data + first * l->k;
        amx_expand_multiply(c, &l->table, x, l->k, rows, l->k, l->b, tiles,
                            x + cpu_least(STRIP, l->op.w->out - first) * l->k);
        return;
    }
    for (int64_t k = 0; k < l->k; k += SHALLOW) {
        int64_t n = cpu_least(SHALLOW, l->k - k);
        expand(l, a, first, rows, k, n, converted, 0);
        amx_multiply(c, a, l->b + k * l->padded, round_up(n, AMX_BLOCK) / AMX_STEP, tiles, k > 0,
                     &none);
    }
}

static void run_few(void *arg, int64_t item, int thread)
{
    const struct amx_linear *l = arg;
    char *scratch = l->scratch + (size_t)thread * l->piece;
    uint16_t *a = (uint16_t *)(void *)scratch;
    float *c = (float *)(void *)(scratch + l->c_at);
    float *turned = (float *)(void *)(scratch + l->turned_at);
    uint16_t *converted = (uint16_t *)(void *)(scratch + l->rows_at);
    int tiles = (int)(l->padded / 16);
    int64_t first = item * l->panel, rows = cpu_least(l->panel, l->op.w->out - first);
    amx_begin();
    for (int64_t s = 0; s < rows; s += STRIP) {
        multiply_strip(l, c, a, converted, first + s, cpu_least(STRIP, rows - s));
        for (int i = 0; i < 2 * tiles; i++)
            amx_turn(turned + i % tiles * 16 * PANEL + s + i / tiles * 16, PANEL, c + i * AMX_SUMS);
    }
    amx_end();
    linear_finish(&l->op, turned, PANEL, 0, l->n, first, rows);
}

/* ------------------------------------------------------------------------- many tokens ------ */

/* One thread's part of a panel. */
struct panel {
    const struct amx_linear *l;
    int64_t first, rows, strips; /* of W */
    int64_t token, tokens;       /* of this group */
    uint16_t *a;                 /* [strip][step][2 tiles], DEEP of k */
    float *c;                    /* [block of tokens][strip][2 to 6 tiles] */
    float *turned;               /* [WIDE tokens][PANEL] */
    uint16_t *converted;
};

static void multiply_piece(const struct panel *p, int64_t k, struct amx_ahead *ahead)
{
    const struct amx_linear *l = p->l;
    int64_t n = cpu_least(DEEP, l->k - k), steps = round_up(n, AMX_BLOCK) / AMX_STEP;
    for (int64_t s = 0; s < p->strips; s++)
        expand(l, p->a + s * steps * 2 * AMX_TILE, p->first + s * STRIP,
               cpu_least(STRIP, p->rows - s * STRIP), k, n, p->converted, DEEP / 4);
    float *c = p->c;
    for (int64_t t = p->token; t < p->token + p->tokens; t += WIDE) {
        int64_t width = width_at(l, t);
        const uint16_t *b = l->b + t * l->depth + k * width;
        for (int64_t s = 0; s < p->strips; s++, c += STRIP * width)
            amx_multiply(c, p->a + s * steps * 2 * AMX_TILE, b, steps, (int)(width / 16), k > 0,
                         ahead);
    }
}

static void finish_panel(const struct panel *p)
{
    const float *c = p->c;
    for (int64_t t = p->token; t < p->token + p->tokens; t += WIDE) {
        int64_t tiles = width_at(p->l, t) / 16;
        for (int64_t s = 0; s < p->strips; s++)
            for (int64_t i = 0; i < 2 * tiles; i++, c += AMX_SUMS)
                amx_turn(p->turned + i % tiles * 16 * PANEL + s * STRIP + i / tiles * 16, PANEL, c);
        linear_finish(&p->l->op, p->turned, PANEL, t, cpu_least(WIDE, p->token + p->tokens - t),
                      p->first, p->rows);
    }
}

static void run_panel(void *arg, int64_t item, int thread)
{
    const struct amx_linear *l = arg;
    const struct kr_weight *w = l->op.w;
    char *scratch = l->scratch + (size_t)thread * l->piece;
    struct panel p = {.l = l,
                      .first = item * l->panel,
                      .a = (uint16_t *)(void *)scratch,
                      .c = (float *)(void *)(scratch + l->c_at),
                      .turned = (float *)(void *)(scratch + l->turned_at),
                      .converted = (uint16_t *)(void *)(scratch + l->rows_at)};
    p.rows = cpu_least(l->panel, w->out - p.first);
    p.strips = (p.rows + STRIP - 1) / STRIP;
    amx_begin();
    for (p.token = 0; p.token < l->n && !kr_cancelled(&l->op.cpu->base); p.token += GROUP) {
        p.tokens = cpu_least(GROUP, l->n - p.token);
        for (int64_t k = 0; k < l->k && !kr_cancelled(&l->op.cpu->base); k += DEEP) {
            int64_t next = k + DEEP;
            size_t size = kr_dtype_size(w->dtype);
            struct amx_ahead ahead = {0};
            if (next < l->k)
                ahead = (struct amx_ahead){.at = cpu_at(w->data, w->dtype, p.first * l->k + next),
                                           .bytes = cpu_least(DEEP, l->k - next) * (int64_t)size,
                                           .rows = p.rows,
                                           .stride = l->k * (int64_t)size};
            multiply_piece(&p, k, &ahead);
        }
        finish_panel(&p);
    }
    amx_end();
}

/* -------------------------------------------------------------------------------- both ------ */

static void make_table(struct amx_linear *l)
{
    enum kr_dtype dtype = l->op.w->dtype;
    uint8_t codes[128];
    uint16_t values[128];
    l->coded = dtype == KR_F8_E4M3 || dtype == KR_F8_E5M2;
    if (!l->coded)
        return;
    for (int i = 0; i < 128; i++)
        codes[i] = (uint8_t)i;
    l->op.cpu->rows->to_bf16(values, codes, dtype, 128);
    for (int i = 0; i < 128; i++) {
        l->table.high[i] = (uint8_t)(values[i] >> 8);
        l->table.low[i] = (uint8_t)values[i];
    }
}

/* Rows of W an item: as many as the caches like, fewer when threads would go without. */
static int64_t panel_rows(const struct amx_linear *l, int few)
{
    int64_t share = l->op.w->out / (l->op.cpu->pool.threads * 3);
    return cpu_least(share < STRIP ? STRIP : share / STRIP * STRIP, few ? PANEL / 2 : PANEL);
}

void linear_amx(const struct linear_op *op)
{
    struct kr_device *dev = &op->cpu->base;
    struct amx_linear l = {.op = *op, .n = kr_rows(&op->x), .k = op->w->in};
    int few = l.n <= FEW;
    l.padded = round_up(l.n, 16);
    l.depth = round_up(l.k, AMX_BLOCK);
    l.panel = panel_rows(&l, few);
    int64_t deep = few ? SHALLOW : DEEP, rows = few ? STRIP : PANEL;
    int64_t sums = rows * cpu_least(GROUP, l.padded);
    l.c_at = cpu_aligned((size_t)(rows * deep) * sizeof(uint16_t));
    l.turned_at = l.c_at + cpu_aligned((size_t)sums * sizeof(float));
    l.rows_at = l.turned_at + (size_t)(PANEL * WIDE) * sizeof(float);
    l.piece = l.rows_at + (size_t)(STRIP * DEEP) * sizeof(uint16_t);
    l.b = kr_scratch(dev, (size_t)(l.padded * l.depth) * sizeof(uint16_t));
    l.scratch = kr_scratch(dev, l.piece * (size_t)op->cpu->pool.threads);
    if (!kr_live(dev))
        return;
    make_table(&l);
    cpu_each(op->cpu, l.padded / 16, run_pack, &l);
    cpu_each(op->cpu, (op->w->out + l.panel - 1) / l.panel, few ? run_few : run_panel, &l);
}

#else
typedef int no_linear_amx; /* an empty file is no C */
#endif
