/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear maps: which of its ways a product takes, from the best that the device, the weight and the
 * shape allow.
 *
 * FP8 times FP8: weights as the file has them, activations quantized, by rows where cuBLASLt can
 * take a factor for each, else as a whole. Not where the file asks for full precision or the owner
 * for expanding.
 *
 * bfloat16: other weights than bfloat16 are expanded a panel of rows at a time into scratch of
 * bounded size, so no weight exists expanded as a whole. That reads and writes memory, but beside
 * thousands of tokens it is a few hundredths of the product's time.
 *
 * Direct (stored.cu): few rows, and whatever cuBLASLt refuses.
 *
 * The weight's scale comes after the product. So do bias, activation and gate: in the product
 * itself where the library can, else in a kernel behind it, on sums that are still F32 (bfloat16
 * after FP8, whose rounding is far coarser).
 */
#include "kernels/cuda/products.cuh"

int64_t cuda_expanded = 6144 * 6144 * 2; /* the whole of all but the largest weights */

namespace
{

enum {
    FEW = 4,   /* rows */
    PANEL = 64 /* rows of W that a panel has a multiple of, unless it is the last */
};

struct linear_op {
    struct cuda_device *cuda;
    struct kr_tensor out, x;
    const struct kr_weight *const *w; /* one below the other */
    int count;
    int64_t n, wide, depth;
    const float *gate; /* with add; NULL for ones */
    int add;
    enum kr_act act;
};

const float *bias_of(const struct linear_op *op)
{
    return op->count == 1 ? (const float *)op->w[0]->bias.data : NULL;
}

/* --------------------------------------------------------------------- how it will end ------ */

/* A product and what is left to do after it. */
struct plan {
    struct cuda_product p;
    int64_t panel;       /* rows of W at a time */
    struct kr_tensor to; /* what the product writes */
    int finish;
};

int exists(const struct linear_op *op, const struct plan *plan)
{
    struct cuda_product p = plan->p;
    p.out = plan->panel;
    if (!cuda_product_exists(op->cuda, &p))
        return 0;
    p.out = op->wide % plan->panel;
    return p.out == 0 || cuda_product_exists(op->cuda, &p);
}

void write_to(struct plan *plan, struct kr_tensor to)
{
    plan->to = to;
    plan->p.to = to.dtype;
    plan->p.stride = kr_stride(&to);
    plan->p.align_out = cuda_alignment(to.data);
}

/* All in the product? With rows' factors the gate goes into those. */
int ends_at_once(const struct linear_op *op, struct plan *plan)
{
    int gated = op->gate && plan->p.factors != PRODUCT_ROWS, biased = bias_of(op) != NULL;
    if (op->act != KR_ACT_NONE ||
        (biased && (op->add || op->out.dtype != KR_F32 || plan->p.factors != PRODUCT_PLAIN)))
        return 0;
    write_to(plan, op->out);
    plan->p.add = op->add;
    plan->p.gated = gated;
    plan->p.bias = biased;
    return exists(op, plan);
}

/* With a kernel behind it: in place, or from scratch. */
int ends_later(const struct linear_op *op, struct plan *plan)
{
    struct kr_tensor to = op->out;
    plan->finish = 1;
    plan->p.add = plan->p.gated = plan->p.bias = 0;
    if (op->add || op->out.dtype != KR_F32) {
        int fp8 = plan->p.factors != PRODUCT_PLAIN;
        to = kr_new(&op->cuda->base, op->add && fp8 ? KR_BF16 : KR_F32, op->n, op->wide, 0, 0);
    }
    write_to(plan, to);
    return exists(op, plan);
}

/* Whether cuBLASLt has a way; x as the product will read it. */
int make_plan(const struct linear_op *op, struct plan *plan, enum cuda_factors_of factors,
              const void *x, int64_t panel)
{
    struct kr_mark mark = kr_arena_mark(&op->cuda->base);
    *plan = {};
    plan->panel = panel;
    plan->p.n = op->n;
    plan->p.in = op->depth;
    plan->p.factors = factors;
    plan->p.align_w = KR_ALIGNMENT;
    plan->p.align_x = cuda_alignment(x);
    if (ends_at_once(op, plan) || ends_later(op, plan))
        return 1;
    kr_arena_release(&op->cuda->base, mark);
    return 0;
}

/* ------------------------------------------------------------------------- multiplying ------ */

/* What each row of W's sums is multiplied with where the product takes the gate along. */
const float *gated_scales(const struct linear_op *op, const struct plan *plan)
{
    float *scales;
    if (!plan->p.gated || op->w[0]->scale == 1.0f)
        return op->gate;
    scales = (float *)kr_scratch(&op->cuda->base, (size_t)op->wide * sizeof *scales);
    if (kr_live(&op->cuda->base))
        cuda_fill_factors(op->cuda, scales, op->w, 1, op->gate);
    return scales;
}

/* Rows first.. of W, which begin at o.w. */
void multiply(const struct linear_op *op, const struct plan *plan, struct cuda_operands o,
              int64_t first)
{
    struct cuda_product p = plan->p;
    const float *bias = bias_of(op);
    p.out = cuda_least(plan->panel, op->wide - first);
    o.out = (char *)plan->to.data + (size_t)first * kr_dtype_size(plan->to.dtype);
    o.gate = plan->p.gated ? o.gate + first : NULL;
    o.bias = bias ? bias + first : NULL;
    cuda_product_run(op->cuda, &p, &o);
}

void finish(const struct linear_op *op, const struct plan *plan)
{
    struct cuda_finish f = {};
    if (!plan->finish)
        return;
    f.p = plan->to;
    f.scale = 1.0f;
    f.bias = bias_of(op);
    f.act = op->act;
    /* Where rows have factors the gate is in them already. */
    f.gate = plan->p.factors == PRODUCT_ROWS ? NULL : op->gate;
    if (op->add)
        cuda_finish_add(op->cuda, op->out, &f);
    else
        cuda_finish(op->cuda, op->out, &f);
}

int same_scales(const struct linear_op *op)
{
    for (int i = 1; i < op->count; i++)
        if (op->w[i]->scale != op->w[0]->scale)
            return 0;
    return 1;
}

/* --------------------------------------------------------------------------------- FP8 ------ */

int takes_fp8(const struct linear_op *op)
{
    const struct cuda_device *cuda = op->cuda;
    if (cuda->capability < 89 || cuda->fp8 == KR_FP8_EXPAND || op->depth % 16 || op->wide % 16 ||
        kr_stride(&op->out) % 16 || (uintptr_t)op->out.data % 16 ||
        (!cuda->fp8_rows && !same_scales(op)) || op->count > CUDA_MOST_PARTS)
        return 0;
    for (int i = 0; i < op->count; i++)
        if (op->w[i]->dtype != KR_F8_E4M3 || op->w[i]->full_precision)
            return 0;
    return cuda->fp8_rows || op->x.dtype != KR_F8_E4M3;
}

/* The scales of W's rows: made once, or for each gate. A bias can't be gated by them. */
const float *row_factors(const struct linear_op *op)
{
    struct cuda_device *cuda = op->cuda;
    size_t bytes = (size_t)op->wide * sizeof(float);
    int fresh = 1;
    float *factors;
    if (op->gate)
        factors = (float *)kr_scratch(&cuda->base, bytes);
    else
        factors =
            (float *)cuda_made(cuda, (const char *)op->w[0]->data + op->count - 1, bytes, &fresh);
    if (fresh && factors && kr_live(&cuda->base))
        cuda_fill_factors(cuda, factors, op->w, op->count, op->gate);
    return factors;
}

void multiply_rows(const struct linear_op *op)
{
    struct cuda_device *cuda = op->cuda;
    struct kr_tensor x = op->x;
    struct plan plan;
    struct cuda_operands o = {};
    if (x.dtype != KR_F8_E4M3)
        x = kr_new(&cuda->base, KR_F8_E4M3, op->n, op->depth, 0, 0);
    make_plan(op, &plan, PRODUCT_ROWS, x.data, op->wide);
    o.w_factors = row_factors(op);
    o.w = cuda_weight(cuda, op->w, op->count);
    if (!kr_live(&cuda->base))
        return;
    if (op->x.dtype != KR_F8_E4M3)
        cuda_quantize_rows(cuda, x, op->x);
    o.x = x.data;
    o.x_factors = cuda_factors(&x);
    o.alpha = 1.0f;
    multiply(op, &plan, o, 0);
    finish(op, &plan);
}

void multiply_tensor(const struct linear_op *op)
{
    struct cuda_device *cuda = op->cuda;
    struct plan plan;
    struct cuda_operands o = {};
    struct kr_tensor x = kr_new(&cuda->base, KR_F8_E4M3, op->n, op->depth, 0, 0);
    float *parts = (float *)kr_scratch(&cuda->base, CUDA_PARTS * sizeof *parts);
    make_plan(op, &plan, PRODUCT_TENSOR, x.data, op->wide);
    o.gate = gated_scales(op, &plan);
    o.w = cuda_weight(cuda, op->w, op->count);
    if (!kr_live(&cuda->base))
        return;
    cuda_quantize_tensor(cuda, x.data, cuda_factors(&x), parts, op->x);
    o.x = x.data;
    o.x_factors = cuda_factors(&x);
    o.alpha = op->w[0]->scale;
    multiply(op, &plan, o, 0);
    finish(op, &plan);
}

/* Whether it did. */
int by_fp8(const struct linear_op *op)
{
    struct kr_mark mark = kr_arena_mark(&op->cuda->base);
    enum cuda_factors_of factors = op->cuda->fp8_rows ? PRODUCT_ROWS : PRODUCT_TENSOR;
    const void *x = op->x.dtype == KR_F8_E4M3 ? op->x.data : NULL;
    struct plan plan;
    if (!takes_fp8(op) || cuda_alignment(x) < 16 ||
        (factors == PRODUCT_ROWS && op->gate && bias_of(op)))
        return 0;
    int can = make_plan(op, &plan, factors, x, op->wide);
    kr_arena_release(&op->cuda->base, mark);
    if (can && factors == PRODUCT_ROWS)
        multiply_rows(op);
    else if (can)
        multiply_tensor(op);
    return can;
}

/* ---------------------------------------------------------------------------- bfloat16 ------ */

/* x as bfloat16: where it is, or in scratch, which bring_bf16() fills. */
struct kr_tensor place_bf16(const struct linear_op *op)
{
    return op->x.dtype == KR_BF16 ? op->x
                                  : kr_new(&op->cuda->base, KR_BF16, op->n, op->depth, 0, 0);
}

void bring_bf16(const struct linear_op *op, struct kr_tensor x)
{
    if (op->x.dtype == KR_F8_E4M3)
        cuda_dequantize(op->cuda, x, op->x);
    else if (op->x.dtype != KR_BF16)
        cuda_copy(&op->cuda->base, x, op->x);
}

int64_t panel_of(const struct linear_op *op)
{
    int64_t fitting = cuda_expanded / (op->depth * 2) / PANEL * PANEL;
    return op->w[0]->dtype == KR_BF16 ? op->wide
                                      : cuda_least(fitting > PANEL ? fitting : +PANEL, op->wide);
}

/* Whether it did. */
int by_bf16(const struct linear_op *op)
{
    struct cuda_device *cuda = op->cuda;
    struct kr_tensor x = place_bf16(op);
    enum kr_dtype stored = op->w[0]->dtype;
    struct plan plan;
    struct cuda_operands o = {};
    if (!make_plan(op, &plan, PRODUCT_PLAIN, x.data, panel_of(op)))
        return 0;
    void *panel =
        stored == KR_BF16 ? NULL : kr_scratch(&cuda->base, (size_t)(plan.panel * op->depth) * 2);
    o.gate = gated_scales(op, &plan);
    const char *w = (const char *)cuda_weight(cuda, op->w, op->count);
    if (!kr_live(&cuda->base))
        return 1;
    bring_bf16(op, x);
    o.x = x.data;
    o.alpha = op->w[0]->scale;
    for (int64_t first = 0; first < op->wide; first += plan.panel) {
        const char *from = w + (size_t)(first * op->depth) * kr_dtype_size(stored);
        int64_t rows = cuda_least(plan.panel, op->wide - first);
        o.w = stored == KR_BF16 ? from : (const char *)panel;
        if (stored != KR_BF16)
            cuda_expand(cuda, panel, from, stored, rows * op->depth);
        multiply(op, &plan, o, first);
    }
    finish(op, &plan);
    return 1;
}

/* ------------------------------------------------------------------------------ direct ------ */

void by_hand(const struct linear_op *op)
{
    struct cuda_direct d = {op->out, op->x, NULL, NULL, op->gate, op->add, op->act};
    int quantized = op->x.dtype == KR_F8_E4M3;
    if (quantized)
        d.x = place_bf16(op);
    const char *w = (const char *)cuda_weight(op->cuda, op->w, op->count);
    if (!kr_live(&op->cuda->base))
        return;
    if (quantized)
        bring_bf16(op, d.x);
    for (int64_t i = 0, at = 0; i < op->count; at += op->w[i++]->out) {
        d.out = op->count == 1 ? op->out : kr_columns(op->out, at, op->w[i]->out);
        d.weight = op->w[i];
        d.w = w + (size_t)(at * op->depth) * kr_dtype_size(d.weight->dtype);
        cuda_direct(op->cuda, &d);
    }
}

void linear(const struct linear_op *op)
{
    struct kr_device *dev = &op->cuda->base;
    struct kr_mark mark = kr_arena_mark(dev);
    if (op->n <= FEW || (!by_fp8(op) && !by_bf16(op)))
        by_hand(op);
    kr_arena_release(dev, mark);
}

struct linear_op op_of(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x,
                       const struct kr_weight *const *w, int count)
{
    struct linear_op op = {};
    op.cuda = cuda_of(dev);
    op.out = out;
    op.x = x;
    op.w = w;
    op.count = count;
    op.n = kr_rows(&x);
    op.wide = kr_cols(&out);
    op.depth = kr_cols(&x);
    return op;
}

/* Whether one product should take all. It can't have two scales unless each row has its own; and
 * where only some of the parts are fit for FP8, or only the parts alone, those go alone. */
int are_one(const struct linear_op *op)
{
    struct linear_op part = *op;
    for (int i = 1; i < op->count; i++)
        if (op->w[i]->dtype != op->w[0]->dtype)
            return 0;
    if (takes_fp8(op))
        return 1;
    part.count = 1;
    for (int i = 0; i < op->count; i++) {
        part.w = op->w + i;
        part.wide = op->w[i]->out;
        if (takes_fp8(&part))
            return 0;
    }
    return same_scales(op);
}

} // namespace

void cuda_linear(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x,
                 const struct kr_weight *w, enum kr_act act)
{
    struct linear_op op = op_of(dev, out, x, &w, 1);
    op.act = act;
    linear(&op);
}

void cuda_linear_add(struct kr_device *dev, struct kr_tensor y, struct kr_tensor gate,
                     struct kr_tensor x, const struct kr_weight *w)
{
    struct linear_op op = op_of(dev, y, x, &w, 1);
    op.gate = (const float *)gate.data;
    op.add = 1;
    linear(&op);
}

void cuda_linear_many(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x,
                      const struct kr_weight *const *w, int count)
{
    int64_t at = 0;
    for (int i = 0, more; i < count; i += more) {
        struct linear_op op;
        for (more = count - i;; more--) {
            int64_t cols = 0;
            for (int j = i; j < i + more; j++)
                cols += w[j]->out;
            op = op_of(dev, kr_columns(out, at, cols), x, w + i, more);
            if (more == 1 || are_one(&op))
                break;
        }
        linear(&op);
        at += op.wide;
    }
}
