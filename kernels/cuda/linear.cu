/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear maps: which of its ways a product takes (way_of), and what comes before and after it.
 *
 * FP8 times FP8: weights as the file has them, activations quantized, by rows where the product
 * takes a factor for each, else as a whole. Not where the file asks for full precision or the owner
 * for bfloat16.
 *
 * bfloat16, with FP8 weights that become bfloat16 in the product (multiply.cu), or by cuBLASLt with
 * other weights than bfloat16 expanded a panel of rows at a time into scratch of bounded size. So
 * no weight exists expanded as a whole.
 *
 * Direct (stored.cu): few rows, and whatever cuBLASLt refuses.
 *
 * The weight's scale comes after the product; a gate has it in it. So do bias, activation and gate:
 * in the product itself where the library can, else in a kernel behind it, on sums that are still
 * F32 (bfloat16 after FP8, whose rounding is far coarser).
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

/* All in the product? With rows' factors the gate is in place of those. */
int ends_at_once(const struct linear_op *op, struct plan *plan)
{
    int gated = op->gate && plan->p.factors != PRODUCT_ROWS, biased = bias_of(op) != NULL;
    int gelu = op->act == KR_ACT_GELU_TANH;
    if (op->act == KR_ACT_SILU || (gelu && plan->p.factors != PRODUCT_PLAIN) ||
        (biased && (op->add || op->out.dtype != KR_F32 || plan->p.factors != PRODUCT_PLAIN)))
        return 0;
    write_to(plan, op->out);
    plan->p.add = op->add;
    plan->p.gated = gated;
    plan->p.ending = (biased ? PRODUCT_BIAS : 0) | (gelu ? PRODUCT_GELU : 0);
    return exists(op, plan);
}

/* With a kernel behind it: in place, or from scratch. */
int ends_later(const struct linear_op *op, struct plan *plan)
{
    struct kr_tensor to = op->out;
    plan->finish = 1;
    plan->p.add = plan->p.gated = plan->p.ending = 0;
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

/* What all sums are multiplied with. */
float alpha_of(const struct linear_op *op)
{
    return op->gate ? 1.0f : op->w[0]->scale;
}

/* Rows first.. of W, which begin at o.w. */
void multiply(const struct linear_op *op, const struct plan *plan, struct cuda_operands o,
              int64_t first)
{
    struct cuda_product p = plan->p;
    const float *bias = bias_of(op);
    p.out = cuda_least(plan->panel, op->wide - first);
    o.out = (char *)plan->to.data + (size_t)first * kr_dtype_size(plan->to.dtype);
    o.gate = plan->p.gated ? op->gate + first : NULL;
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
    /* The gate is what rows' factors were. */
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

/* What each row of W is multiplied with: its weight's scale, a vector that is made once. */
const float *row_factors(const struct linear_op *op)
{
    struct cuda_device *cuda = op->cuda;
    int fresh;
    if (op->gate)
        return op->gate;
    float *factors = (float *)cuda_made(cuda, (const char *)op->w[0]->data + op->count - 1,
                                        (size_t)op->wide * sizeof *factors, &fresh);
    if (fresh && factors && kr_live(&cuda->base))
        cuda_fill_factors(cuda, factors, op->w, op->count);
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
    o.w = cuda_weight(cuda, op->w, op->count);
    if (!kr_live(&cuda->base))
        return;
    cuda_quantize_tensor(cuda, x.data, cuda_factors(&x), parts, op->x);
    o.x = x.data;
    o.x_factors = cuda_factors(&x);
    o.alpha = alpha_of(op);
    multiply(op, &plan, o, 0);
    finish(op, &plan);
}

enum cuda_factors_of fp8_factors(const struct linear_op *op)
{
    return op->cuda->fp8_rows ? PRODUCT_ROWS : PRODUCT_TENSOR;
}

/* Whether cuBLASLt can. */
int exists_in_fp8(const struct linear_op *op)
{
    struct kr_mark mark = kr_arena_mark(&op->cuda->base);
    const void *x = op->x.dtype == KR_F8_E4M3 ? op->x.data : NULL;
    struct plan plan;
    int can = cuda_alignment(x) >= 16 && make_plan(op, &plan, fp8_factors(op), x, op->wide);
    kr_arena_release(&op->cuda->base, mark);
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

/* Whether it did. A gate goes into weights that are expanded anyway: cuBLASLt may know no vector of
 * alpha, and one more rounding of a weight is what the reference, which scales it in bfloat16, does
 * too. */
int by_bf16(const struct linear_op *whole)
{
    struct cuda_device *cuda = whole->cuda;
    struct kr_tensor x = place_bf16(whole);
    enum kr_dtype stored = whole->w[0]->dtype;
    const float *gate = stored != KR_BF16 && whole->depth % 8 == 0 ? whole->gate : NULL;
    struct linear_op rest = *whole, *op = &rest;
    struct plan plan;
    struct cuda_operands o = {};
    if (gate)
        rest.gate = NULL;
    if (!make_plan(op, &plan, PRODUCT_PLAIN, x.data, panel_of(op)))
        return 0;
    void *panel =
        stored == KR_BF16 ? NULL : kr_scratch(&cuda->base, (size_t)(plan.panel * op->depth) * 2);
    const char *w = (const char *)cuda_weight(cuda, op->w, op->count);
    if (!kr_live(&cuda->base))
        return 1;
    bring_bf16(op, x);
    o.x = x.data;
    o.alpha = alpha_of(whole);
    for (int64_t first = 0; first < op->wide; first += plan.panel) {
        const char *from = w + (size_t)(first * op->depth) * kr_dtype_size(stored);
        int64_t rows = cuda_least(plan.panel, op->wide - first);
        o.w = stored == KR_BF16 ? from : (const char *)panel;
        if (stored != KR_BF16)
            cuda_expand(cuda, panel, from, stored, rows, op->depth, gate ? gate + first : NULL);
        multiply(op, &plan, o, first);
    }
    finish(op, &plan);
    return 1;
}

/* --------------------------------------------------------------------------- multiply.cu ------ */

void multiply_stored(const struct linear_op *op, struct kr_tensor x)
{
    struct cuda_multiply m = {op->out,     x,        NULL,    op->w,  op->count,
                              bias_of(op), op->gate, op->add, op->act};
    m.w = cuda_weight(op->cuda, op->w, op->count);
    if (!kr_live(&op->cuda->base))
        return;
    if (x.dtype == KR_BF16)
        bring_bf16(op, x);
    else if (op->x.dtype != KR_F8_E4M3)
        cuda_quantize_rows(op->cuda, x, op->x);
    cuda_multiply(op->cuda, &m);
}

void multiply_stored_rows(const struct linear_op *op)
{
    struct kr_tensor x = op->x;
    if (x.dtype != KR_F8_E4M3)
        x = kr_new(&op->cuda->base, KR_F8_E4M3, op->n, op->depth, 0, 0);
    multiply_stored(op, x);
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

/* ------------------------------------------------------------------------------- which ------ */

enum way {
    DIRECT,
    FP8_STORED,   /* multiply.cu's, x quantized by rows */
    FP8_ROWS,     /* cuBLASLt's */
    FP8_TENSOR,   /* likewise */
    BF16_STORED,  /* multiply.cu's */
    BF16_EXPANDED /* cuBLASLt's */
};

/* How many rows of x make cuBLASLt worth expanding an FP8 weight for. Up to sm_89, and on sm_120, a
 * tensor core does no more with another instruction than with multiply.cu's: never. On sm_90 and
 * sm_100 cuBLASLt has others, of 989 TFLOP/s instead of about 495, and 2250 instead of about 560;
 * but expanding a weight takes three bytes of traffic, of 4.8 and 8 TB/s, before they begin. Beside
 * two FLOP a row that is even at 310 and at 140 rows. */
int64_t most_stored(const struct cuda_device *cuda)
{
    if (cuda->capability == 90)
        return 256;
    return cuda->capability >= 100 && cuda->capability < 120 ? 128 : INT64_MAX;
}

int stored_always(const struct linear_op *op)
{
    return most_stored(op->cuda) == INT64_MAX &&
           cuda_multiply_takes(op->cuda, KR_BF16, NULL, op->w, op->count);
}

enum way way_of(const struct linear_op *op)
{
    const struct cuda_device *cuda = op->cuda;
    const void *fp8 = op->x.dtype == KR_F8_E4M3 ? op->x.data : NULL;
    const void *bf16 = op->x.dtype == KR_BF16 ? op->x.data : NULL;
    if (op->n <= FEW)
        return DIRECT;
    if (takes_fp8(op)) {
        /* cuBLASLt takes factors for rows on sm_90 alone. */
        if (cuda->fp8_rows && cuda->capability != 90 &&
            cuda_multiply_takes(cuda, KR_F8_E4M3, fp8, op->w, op->count))
            return FP8_STORED;
        if (exists_in_fp8(op))
            return cuda->fp8_rows ? FP8_ROWS : FP8_TENSOR;
    }
    if (op->n <= most_stored(cuda) && cuda_multiply_takes(cuda, KR_BF16, bf16, op->w, op->count))
        return BF16_STORED;
    return same_scales(op) ? BF16_EXPANDED : DIRECT;
}

void linear(const struct linear_op *op)
{
    struct kr_device *dev = &op->cuda->base;
    struct kr_mark mark = kr_arena_mark(dev);
    enum way way = way_of(op);
    if (way == FP8_STORED)
        multiply_stored_rows(op);
    else if (way == FP8_ROWS)
        multiply_rows(op);
    else if (way == FP8_TENSOR)
        multiply_tensor(op);
    else if (way == BF16_STORED)
        multiply_stored(op, place_bf16(op));
    else if (way == DIRECT || !by_bf16(op))
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
 * where only some of the parts are fit for FP8, or only the parts alone, those go alone. This does
 * not depend on x, as the weights' copies on the device lie together or apart by it. */
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
    return same_scales(op) || stored_always(op);
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
