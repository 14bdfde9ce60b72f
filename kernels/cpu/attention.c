/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention with the softmax taken online: a block of queries walks over blocks of keys and keeps,
 * for each query, the largest score so far, the sum of the exponentials and the weighted sum of the
 * values, which are rescaled when a larger score turns up. The score matrix never exists beyond
 * one block.
 *
 * Here the products are oneDNN's in F32; attention_amx.c has them in tiles.
 */
#include "kernels/cpu/cpu.h"

#include <dnnl.h>
#include <math.h>

enum { QUERIES = 128, KEYS = 256 };

struct attention_op {
    struct cpu_device *cpu;
    struct kr_tensor out, q, k, v;
    int64_t heads, kv_heads, d, n, m, blocks; /* blocks of queries */
    int causal;
    float *scratch; /* `piece` floats for each thread */
    size_t piece;
    _Atomic int failed;
};

/* A thread's scratch: converted blocks, scores, sums. */
struct attention_block {
    float *q, *k, *v, *s, *o;
    float top[QUERIES], sum[QUERIES];
};

static size_t piece_of(const struct attention_op *op)
{
    return (size_t)((2 * QUERIES + 2 * KEYS) * op->d + QUERIES * KEYS);
}

static void divide(const struct attention_op *op, int thread, struct attention_block *b)
{
    b->q = op->scratch + (size_t)thread * op->piece;
    b->o = b->q + QUERIES * op->d;
    b->k = b->o + QUERIES * op->d;
    b->v = b->k + KEYS * op->d;
    b->s = b->v + KEYS * op->d;
}

/* One head's columns of `rows` rows from `first` on, dense. */
static void gather(const struct attention_op *op, const struct kr_tensor *t, int64_t first,
                   int64_t head, int64_t rows, float *to)
{
    int64_t stride = kr_stride(t);
    for (int64_t r = 0; r < rows; r++)
        op->cpu->rows->to_f32(to + r * op->d,
                              cpu_at(t->data, t->dtype, (first + r) * stride + head * op->d),
                              t->dtype, (size_t)op->d);
}

/* Scores of `keys` keys from `key` on become weights; sums so far are rescaled to the new top. */
static void softmax_rows(const struct attention_op *op, struct attention_block *b, int64_t query,
                         int64_t queries, int64_t key, int64_t keys)
{
    const struct row_kernels *k = op->cpu->rows;
    for (int64_t i = 0; i < queries; i++) {
        float *s = b->s + i * keys;
        int64_t seen = op->causal ? cpu_least(keys, query + i + 1 - key) : keys;
        for (int64_t j = seen < 0 ? 0 : seen; j < keys; j++)
            s[j] = 0;
        if (seen <= 0)
            continue;
        float top = k->top(s, (size_t)seen);
        if (!(top <= b->top[i])) {
            float shrink = expf(b->top[i] - top);
            b->sum[i] *= shrink;
            k->scale(b->o + i * op->d, shrink, (size_t)op->d);
            b->top[i] = top;
        }
        b->sum[i] += k->exp_sum(s, b->top[i], (size_t)seen);
    }
}

static int walk_keys(const struct attention_op *op, struct attention_block *b, int64_t batch,
                     int64_t kv_head, int64_t query, int64_t queries)
{
    int64_t d = op->d, end = op->causal ? query + queries : op->m;
    for (int64_t key = 0; key < end && !kr_cancelled(&op->cpu->base); key += KEYS) {
        int64_t keys = cpu_least(KEYS, end - key);
        gather(op, &op->k, batch * op->m + key, kv_head, keys, b->k);
        gather(op, &op->v, batch * op->m + key, kv_head, keys, b->v);
        if (dnnl_sgemm('N', 'T', queries, keys, d, 1.0f, b->q, d, b->k, d, 0.0f, b->s, keys) !=
            dnnl_success)
            return -1;
        softmax_rows(op, b, query, queries, key, keys);
        if (dnnl_sgemm('N', 'N', queries, d, keys, 1.0f, b->s, keys, b->v, d, 1.0f, b->o, d) !=
            dnnl_success)
            return -1;
    }
    return 0;
}

static void run_block(void *arg, int64_t item, int thread)
{
    struct attention_op *op = arg;
    const struct row_kernels *k = op->cpu->rows;
    int64_t query = item % op->blocks * QUERIES, queries = cpu_least(QUERIES, op->n - query);
    int64_t head = item / op->blocks % op->heads, batch = item / op->blocks / op->heads;
    struct attention_block b;
    divide(op, thread, &b);
    gather(op, &op->q, batch * op->n + query, head, queries, b.q);
    k->scale(b.q, 1.0f / sqrtf((float)op->d), (size_t)(queries * op->d));
    for (int64_t i = 0; i < queries; i++) {
        b.top[i] = -INFINITY;
        b.sum[i] = 0;
    }
    for (int64_t i = 0; i < queries * op->d; i++)
        b.o[i] = 0;
    if (walk_keys(op, &b, batch, head * op->kv_heads / op->heads, query, queries))
        atomic_store(&op->failed, 1);
    for (int64_t i = 0; i < queries; i++) {
        int64_t at = ((batch * op->n + query + i) * op->heads + head) * op->d;
        float *o = b.o + i * op->d;
        k->scale(o, 1.0f / b.sum[i], (size_t)op->d);
        if (op->out.dtype == KR_F32)
            k->to_f32((float *)op->out.data + at, o, KR_F32, (size_t)op->d);
        cpu_put(op->cpu, &op->out, at, o, (size_t)op->d);
    }
}

static void attention_f32(struct attention_op *op, int64_t batch)
{
    struct kr_device *dev = &op->cpu->base;
    op->blocks = (op->n + QUERIES - 1) / QUERIES;
    op->piece = piece_of(op);
    op->scratch = kr_scratch(dev, op->piece * sizeof(float) * (size_t)op->cpu->pool.threads);
    if (!kr_live(dev))
        return;
    cpu_each(op->cpu, batch * op->heads * op->blocks, run_block, op);
    if (op->failed)
        kr_fault_set(dev, KR_FAULT_LOST, "oneDNN failed in an attention's product");
}

void cpu_attention(struct kr_device *dev, struct kr_tensor out, const struct kr_attention *a)
{
    struct attention_op op = {.cpu = cpu_of(dev),
                              .out = out,
                              .q = a->q,
                              .k = a->k,
                              .v = a->v,
                              .heads = a->heads,
                              .kv_heads = a->kv_heads,
                              .d = kr_cols(&a->q) / a->heads,
                              .n = a->q.dim[a->q.rank - 2],
                              .m = a->k.dim[a->k.rank - 2],
                              .causal = a->mask == KR_MASK_CAUSAL};
    struct kr_mark mark = kr_arena_mark(dev);
#if defined(__x86_64__)
    if (op.cpu->isa == KR_ISA_AMX && dev->compute == KR_BF16)
        attention_amx(dev, out, a);
    else
#endif
        attention_f32(&op, a->q.rank == 3 ? a->q.dim[0] : 1);
    kr_arena_release(dev, mark);
    if (a->gate.data && kr_live(dev))
        cpu_mul_sigmoid(dev, out, out, a->gate);
}
