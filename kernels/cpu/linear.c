/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear maps from weights as the file stores them. The rows of W are cut into panels; a thread
 * takes a panel, expands it to the compute type in its own scratch (sized to stay in its cache),
 * multiplies all tokens with it and finishes the result: scale, bias, activation or gated sum. So
 * FP8 weights are read once, at one byte an element, and exist expanded only a panel a thread.
 *
 * FP8 values are exact in bfloat16 and the scale comes after the product, so only activations are
 * rounded.
 *
 * Here the product is oneDNN's; linear_amx.c has the one for CPUs with tiles.
 */
#include "kernels/cpu/linear.h"

enum {
    PANEL_BYTES = 768 << 10, /* of an expanded panel: with its results well inside a 2 MiB cache */
    PANEL_ROWS = 256,        /* at most */
    TOKENS = 512             /* multiplied at a time */
};

struct onednn_linear {
    struct linear_op op;   /* x of the compute type */
    int64_t tokens, panel; /* how many at a time */
    char *scratch;         /* a piece of `piece` bytes for each thread */
    size_t piece, c_at, mm_at;
    const struct matmul *mm[2][2]; /* [the last, shorter block of tokens][the last panel] */
    _Atomic int failed;
};

/* Row `first` and the following of W in the compute type: where they are, or expanded. */
static const void *expand(const struct linear_op *op, int64_t first, int64_t rows, void *panel)
{
    const struct kr_weight *w = op->w;
    const void *from = cpu_at(w->data, w->dtype, first * w->in);
    enum kr_dtype compute = op->cpu->base.compute;
    if (w->dtype == compute && (uintptr_t)from % kr_dtype_size(compute) == 0)
        return from;
    if (compute == KR_BF16)
        op->cpu->rows->to_bf16(panel, from, w->dtype, (size_t)(rows * w->in));
    else
        op->cpu->rows->to_f32(panel, from, w->dtype, (size_t)(rows * w->in));
    return panel;
}

void linear_finish(const struct linear_op *op, const float *c, int64_t stride, int64_t token,
                   int64_t tokens, int64_t first, int64_t rows)
{
    const struct row_kernels *k = op->cpu->rows;
    const float *bias = op->w->bias.data ? (const float *)op->w->bias.data + first : NULL;
    float scale = op->gate ? 1.0f : op->w->scale; /* a gate has it already */
    float buf[LINEAR_PANEL];
    for (int64_t t = 0; t < tokens; t++, c += stride) {
        int64_t at = (token + t) * kr_stride(&op->out) + first;
        float *out = cpu_room(&op->out, at, buf);
        if (op->add) {
            k->finish_add(out, c, scale, bias, op->gate ? op->gate + first : NULL, (size_t)rows);
            continue;
        }
        k->finish(out, c, scale, bias, op->act, (size_t)rows);
        cpu_put(op->cpu, &op->out, at, out, (size_t)rows);
    }
}

static void run_panel(void *arg, int64_t item, int thread)
{
    struct onednn_linear *l = arg;
    const struct linear_op *op = &l->op;
    char *scratch = l->scratch + (size_t)thread * l->piece;
    float *c = (float *)(void *)(scratch + l->c_at);
    int64_t first = item * l->panel, rows = cpu_least(l->panel, op->w->out - first);
    int64_t n = kr_rows(&op->x);
    const void *panel = expand(op, first, rows, scratch);
    for (int64_t t = 0; t < n && !kr_cancelled(&op->cpu->base); t += l->tokens) {
        int64_t tokens = cpu_least(l->tokens, n - t);
        const struct matmul *mm = l->mm[tokens < l->tokens][rows < l->panel];
        if (matmul_run(op->cpu, mm, cpu_at(op->x.data, op->x.dtype, t * op->w->in), panel, c,
                       scratch + l->mm_at)) {
            atomic_store(&l->failed, 1);
            return;
        }
        linear_finish(op, c, rows, t, tokens, first, rows);
    }
}

/* The shapes of this product, and the primitives for whole and last blocks. */
static int shape_up(struct onednn_linear *l)
{
    struct cpu_device *cpu = l->op.cpu;
    int64_t n = kr_rows(&l->op.x), k = l->op.w->in, out = l->op.w->out;
    int64_t fitting = PANEL_BYTES / (k * (int64_t)kr_dtype_size(cpu->base.compute));
    l->panel = cpu_least(cpu_least(fitting < 16 ? 16 : fitting / 16 * 16, PANEL_ROWS), out);
    l->tokens = cpu_least(n, TOKENS);
    const int64_t tokens[2] = {l->tokens, n % l->tokens}, rows[2] = {l->panel, out % l->panel};
    size_t most = 0;
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++) {
            if (!tokens[i] || !rows[j])
                continue;
            l->mm[i][j] = matmul_get(cpu, tokens[i], rows[j], k);
            if (!l->mm[i][j])
                return -1;
            size_t bytes = matmul_scratch(l->mm[i][j]);
            most = bytes > most ? bytes : most;
        }
    l->c_at = cpu_aligned((size_t)(l->panel * k) * kr_dtype_size(cpu->base.compute));
    l->mm_at = l->c_at + cpu_aligned((size_t)(l->tokens * l->panel) * sizeof(float));
    l->piece = l->mm_at + cpu_aligned(most);
    return 0;
}

static void linear_onednn(const struct linear_op *op)
{
    struct onednn_linear l = {.op = *op};
    struct kr_device *dev = &op->cpu->base;
    struct kr_tensor x = op->x;
    if (shape_up(&l)) {
        kr_fault_set(dev, KR_FAULT_MISUSE, "oneDNN can't multiply [%lld,%lld] by [%lld,%lld]",
                     (long long)kr_rows(&x), (long long)op->w->in, (long long)op->w->out,
                     (long long)op->w->in);
        return;
    }
    if (x.dtype != dev->compute) {
        l.op.x.dtype = dev->compute;
        l.op.x.data = kr_scratch(dev, (size_t)kr_count(&x) * kr_dtype_size(dev->compute));
    }
    l.scratch = kr_scratch(dev, l.piece * (size_t)op->cpu->pool.threads);
    if (!kr_live(dev))
        return;
    if (x.dtype != dev->compute)
        cpu_copy(dev, l.op.x, x);
    cpu_each(op->cpu, (op->w->out + l.panel - 1) / l.panel, run_panel, &l);
    if (l.failed)
        kr_fault_set(dev, KR_FAULT_LOST, "oneDNN failed in a matrix product");
}

static void linear(const struct linear_op *op)
{
    struct kr_device *dev = &op->cpu->base;
    struct kr_mark mark = kr_arena_mark(dev);
#if defined(__x86_64__)
    if (op->cpu->isa == KR_ISA_AMX && dev->compute == KR_BF16)
        linear_amx(op);
    else
#endif
        linear_onednn(op);
    kr_arena_release(dev, mark);
}

void cpu_linear(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x,
                const struct kr_weight *w, enum kr_act act)
{
    struct linear_op op = {.cpu = cpu_of(dev), .out = out, .x = x, .w = w, .act = act};
    linear(&op);
}

void cpu_linear_add(struct kr_device *dev, struct kr_tensor y, struct kr_tensor gate,
                    struct kr_tensor x, const struct kr_weight *w)
{
    struct linear_op op = {
        .cpu = cpu_of(dev), .out = y, .x = x, .w = w, .gate = gate.data, .add = 1};
    linear(&op);
}
