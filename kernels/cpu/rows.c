/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations that work element by element or row by row. Each is a walk over items of about 32 K
 * elements; within an item pieces of at most CHUNK elements go through the row kernels as F32,
 * converted on the stack where a tensor is BF16.
 */
#include "kernels/cpu/cpu.h"

#include <math.h>

enum { CHUNK = 2048 };

/* One operation's arguments, for the threads. */
struct row_op {
    struct cpu_device *cpu;
    struct kr_tensor out, a, b;
    const float *weight, *scale, *shift;
    const struct kr_rope *rope;
    const struct kr_weight *w;
    const int32_t *ids;
    float value;
    enum kr_act act;
    int64_t rows, cols, rows_an_item;
    void (*pointwise)(const struct row_op *op, float *out, const float *a, const float *b,
                      size_t n);
    _Atomic int flag;
};

static void each_item(struct row_op *op, void (*run)(void *op, int64_t item, int thread))
{
    op->rows_an_item = cpu_rows_an_item(op->cols);
    cpu_each(op->cpu, (op->rows + op->rows_an_item - 1) / op->rows_an_item, run, op);
}

/* --------------------------------------------------------------------------- pointwise ------ */

/* Rows here are what lies together in all operands: the whole tensor, a row where one is columns,
 * or b where it repeats. */
static int64_t together(const struct row_op *op)
{
    if (op->a.stride || op->b.stride || op->out.stride)
        return kr_cols(&op->out);
    return op->b.data && kr_count(&op->b) < kr_count(&op->a) ? kr_count(&op->b)
                                                             : kr_count(&op->out);
}

/* Where row `row` of rows of `cols` begins. */
static int64_t begins(const struct kr_tensor *t, int64_t row, int64_t cols)
{
    return t->stride ? row * t->stride : row * cols % kr_count(t);
}

static void run_pointwise(void *arg, int64_t item, int thread)
{
    const struct row_op *op = arg;
    float out_buf[CHUNK], a_buf[CHUNK], b_buf[CHUNK];
    int64_t end = cpu_least((item + 1) * op->rows_an_item, op->rows);
    size_t n;
    (void)thread;
    for (int64_t i = item * op->rows_an_item; i < end; i += (int64_t)n) {
        int64_t row = i / op->cols, at = i % op->cols;
        n = (size_t)cpu_least(cpu_least(end - i, op->cols - at), CHUNK);
        int64_t to = begins(&op->out, row, op->cols) + at;
        const float *a = cpu_get(op->cpu, &op->a, begins(&op->a, row, op->cols) + at, a_buf, n);
        const float *b =
            op->b.data ? cpu_get(op->cpu, &op->b, begins(&op->b, row, op->cols) + at, b_buf, n)
                       : NULL;
        float *out = cpu_room(&op->out, to, out_buf);
        op->pointwise(op, out, a, b, n);
        cpu_put(op->cpu, &op->out, to, out, n);
    }
}

static void pointwise(struct kr_device *dev, struct row_op op,
                      void (*kernel)(const struct row_op *op, float *out, const float *a,
                                     const float *b, size_t n))
{
    op.cpu = cpu_of(dev);
    op.pointwise = kernel;
    op.rows = kr_count(&op.out);
    op.cols = together(&op);
    op.rows_an_item = cpu_rows_an_item(1);
    cpu_each(op.cpu, (op.rows + op.rows_an_item - 1) / op.rows_an_item, run_pointwise, &op);
}

static void do_copy(const struct row_op *op, float *out, const float *a, const float *b, size_t n)
{
    (void)b;
    if (out != a)
        op->cpu->rows->to_f32(out, a, KR_F32, n);
}

static void do_swiglu(const struct row_op *op, float *out, const float *a, const float *b, size_t n)
{
    op->cpu->rows->swiglu(out, a, b, n);
}

/* The kernels that change their first operand get a copy of it where `out` is elsewhere. */
static void do_mul_sigmoid(const struct row_op *op, float *out, const float *a, const float *b,
                           size_t n)
{
    do_copy(op, out, a, b, n);
    op->cpu->rows->mul_sigmoid(out, b, n);
}

static void do_gelu(const struct row_op *op, float *out, const float *a, const float *b, size_t n)
{
    do_copy(op, out, a, b, n);
    op->cpu->rows->act(out, KR_ACT_GELU_TANH, n);
}

static void do_add(const struct row_op *op, float *out, const float *a, const float *b, size_t n)
{
    op->cpu->rows->add(out, a, b, n);
}

static void do_add_scaled(const struct row_op *op, float *out, const float *a, const float *b,
                          size_t n)
{
    do_copy(op, out, a, b, n);
    op->cpu->rows->add_scaled(out, op->value, b, n);
}

static void do_guide(const struct row_op *op, float *out, const float *a, const float *b, size_t n)
{
    do_copy(op, out, a, b, n);
    op->cpu->rows->guide(out, b, op->value, n);
}

void cpu_copy(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x)
{
    pointwise(dev, (struct row_op){.out = out, .a = x}, do_copy);
}

void cpu_swiglu(struct kr_device *dev, struct kr_tensor out, struct kr_tensor gate,
                struct kr_tensor up)
{
    pointwise(dev, (struct row_op){.out = out, .a = gate, .b = up}, do_swiglu);
}

void cpu_mul_sigmoid(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x,
                     struct kr_tensor gate)
{
    pointwise(dev, (struct row_op){.out = out, .a = x, .b = gate}, do_mul_sigmoid);
}

void cpu_gelu_tanh(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x)
{
    pointwise(dev, (struct row_op){.out = out, .a = x}, do_gelu);
}

void cpu_add(struct kr_device *dev, struct kr_tensor out, struct kr_tensor a, struct kr_tensor b)
{
    pointwise(dev, (struct row_op){.out = out, .a = a, .b = b}, do_add);
}

void cpu_add_scaled(struct kr_device *dev, struct kr_tensor y, float a, struct kr_tensor x)
{
    pointwise(dev, (struct row_op){.out = y, .a = y, .b = x, .value = a}, do_add_scaled);
}

void cpu_guide(struct kr_device *dev, struct kr_tensor v, struct kr_tensor uncond, float guidance)
{
    pointwise(dev, (struct row_op){.out = v, .a = v, .b = uncond, .value = guidance}, do_guide);
}

/* -------------------------------------------------------------------------- row by row ------ */

static struct row_tensor row_at(const struct kr_tensor *t, int64_t index)
{
    return (struct row_tensor){(void *)(uintptr_t)cpu_at(t->data, t->dtype, index), t->dtype};
}

static void run_norm(void *arg, int64_t item, int thread)
{
    const struct row_op *op = arg;
    const struct row_norm norm = {op->weight, op->scale, op->shift, op->value, op->act};
    int64_t end = cpu_least((item + 1) * op->rows_an_item, op->rows);
    (void)thread;
    for (int64_t row = item * op->rows_an_item; row < end; row++) {
        struct row_tensor out = row_at(&op->out, row * op->cols);
        struct row_tensor x = row_at(&op->a, row * op->cols);
        op->cpu->rows->rms_norm(&out, &x, &norm, (size_t)op->cols);
    }
}

void cpu_rms_norm(struct kr_device *dev, struct kr_tensor out, struct kr_tensor also,
                  struct kr_tensor x, struct kr_tensor weight, float eps, enum kr_act act,
                  struct kr_tensor scale, struct kr_tensor shift)
{
    struct row_op op = {.cpu = cpu_of(dev),
                        .out = out,
                        .a = x,
                        .weight = weight.data,
                        .scale = scale.data,
                        .shift = shift.data,
                        .value = eps,
                        .act = act,
                        .rows = kr_rows(&x),
                        .cols = kr_cols(&x)};
    if (also.data) { /* before x may go */
        op.out = also;
        each_item(&op, run_norm);
        op.out = out;
    }
    each_item(&op, run_norm);
}

/* A row here is one head of one position. Heads longer than the stack buffer don't exist in BF16:
 * they would be converted in pieces that RoPE can't be. */
static void head_row(const struct row_op *op, int64_t row, float *buf)
{
    const struct row_kernels *k = op->cpu->rows;
    const struct row_norm norm = {.weight = op->weight, .eps = op->value};
    size_t d = (size_t)op->cols;
    int64_t heads = kr_cols(&op->a) / op->cols;
    int64_t at = row / heads * kr_stride(&op->a) + row % heads * op->cols;
    struct row_tensor x = row_at(&op->a, at);
    if (!op->rope) {
        k->rms_norm(&x, &x, &norm, d);
        return;
    }
    struct row_tensor turned = {cpu_room(&op->a, at, buf), KR_F32};
    const struct kr_tensor *cos = &op->rope->cos;
    int64_t angle = row / heads % cos->dim[0] * cos->dim[1];
    k->rms_norm(&turned, &x, &norm, d);
    k->rope(turned.data, (const float *)cos->data + angle,
            (const float *)op->rope->sin.data + angle, d, op->rope->pairs);
    cpu_put(op->cpu, &op->a, at, turned.data, d);
}

static void run_heads(void *arg, int64_t item, int thread)
{
    const struct row_op *op = arg;
    float buf[CHUNK];
    int64_t end = (int64_t)(size_t)cpu_least((item + 1) * op->rows_an_item, op->rows);
    (void)thread;
    for (int64_t row = item * op->rows_an_item; row < end; row++)
        head_row(op, row, buf);
}

static void head_norm_rope(struct kr_device *dev, struct kr_tensor x, struct kr_tensor weight,
                           float eps, const struct kr_rope *rope)
{
    int64_t d = kr_count(&weight);
    if (x.dtype != KR_F32 && d > CHUNK) {
        kr_fault_set(dev, KR_FAULT_MISUSE,
                     "kr_qk_norm_rope: a head of %lld in BF16 is more than "
                     "the %d supported",
                     (long long)d, CHUNK);
        return;
    }
    struct row_op op = {.cpu = cpu_of(dev),
                        .a = x,
                        .weight = weight.data,
                        .value = eps,
                        .rope = rope,
                        .rows = kr_count(&x) / d,
                        .cols = d};
    each_item(&op, run_heads);
}

void cpu_qk_norm_rope(struct kr_device *dev, const struct kr_qk *qk, float eps,
                      const struct kr_rope *rope)
{
    head_norm_rope(dev, qk->q, qk->q_weight, eps, rope);
    head_norm_rope(dev, qk->k, qk->k_weight, eps, rope);
}

static void run_mix(void *arg, int64_t item, int thread)
{
    const struct row_op *op = arg;
    const struct row_kernels *k = op->cpu->rows;
    int64_t taps = op->a.dim[1],
            end = (int64_t)(size_t)cpu_least((item + 1) * op->rows_an_item, op->rows);
    float sum[CHUNK], a_buf[CHUNK];
    (void)thread;
    for (int64_t row = item * op->rows_an_item; row < end; row++) {
        for (int64_t c = 0; c < op->cols; c += CHUNK) {
            size_t n = (size_t)cpu_least(op->cols - c, CHUNK);
            for (size_t i = 0; i < n; i++)
                sum[i] = 0;
            for (int64_t j = 0; j < taps; j++) {
                int64_t at = (row * taps + j) * op->cols + c;
                k->add_scaled(sum, op->weight[j], cpu_get(op->cpu, &op->a, at, a_buf, n), n);
            }
            if (op->out.dtype == KR_F32)
                k->to_f32((float *)op->out.data + row * op->cols + c, sum, KR_F32, n);
            cpu_put(op->cpu, &op->out, row * op->cols + c, sum, n);
        }
    }
}

void cpu_mix_taps(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x,
                  struct kr_tensor weight)
{
    struct row_op op = {.cpu = cpu_of(dev),
                        .out = out,
                        .a = x,
                        .weight = weight.data,
                        .rows = x.dim[0],
                        .cols = x.dim[2]};
    each_item(&op, run_mix);
}

static void run_scale_rows(void *arg, int64_t item, int thread)
{
    const struct row_op *op = arg;
    float buf[CHUNK];
    int64_t end = cpu_least((item + 1) * op->rows_an_item, op->rows);
    (void)thread;
    for (int64_t row = item * op->rows_an_item; row < end; row++) {
        for (int64_t c = 0; c < op->cols; c += CHUNK) {
            size_t n = (size_t)cpu_least(op->cols - c, CHUNK);
            int64_t at = row * op->cols + c;
            float *y = cpu_room(&op->out, at, buf);
            do_copy(op, y, cpu_get(op->cpu, &op->out, at, buf, n), NULL, n);
            op->cpu->rows->scale(y, op->scale[row], n);
            cpu_put(op->cpu, &op->out, at, y, n);
        }
    }
}

void cpu_scale_rows(struct kr_device *dev, struct kr_tensor y, struct kr_tensor factors)
{
    struct row_op op = {.cpu = cpu_of(dev),
                        .out = y,
                        .scale = factors.data,
                        .rows = kr_rows(&y),
                        .cols = kr_cols(&y)};
    each_item(&op, run_scale_rows);
}

static void run_scale_shift(void *arg, int64_t item, int thread)
{
    const struct row_op *op = arg;
    float out_buf[CHUNK], a_buf[CHUNK];
    int64_t end = (int64_t)(size_t)cpu_least((item + 1) * op->rows_an_item, op->rows);
    (void)thread;
    for (int64_t row = item * op->rows_an_item; row < end; row++) {
        for (int64_t c = 0; c < op->cols; c += CHUNK) {
            size_t n = (size_t)cpu_least(op->cols - c, CHUNK);
            int64_t at = row * op->cols + c;
            const float *a = cpu_get(op->cpu, &op->a, at, a_buf, n);
            float *out = cpu_room(&op->out, at, out_buf);
            op->cpu->rows->scale_shift(out, a, op->scale + c, op->shift + c, n);
            cpu_put(op->cpu, &op->out, at, out, n);
        }
    }
}

void cpu_scale_shift(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x,
                     struct kr_tensor scale, struct kr_tensor shift)
{
    struct row_op op = {.cpu = cpu_of(dev),
                        .out = out,
                        .a = x,
                        .scale = scale.data,
                        .shift = shift.data,
                        .rows = kr_rows(&x),
                        .cols = kr_cols(&x)};
    each_item(&op, run_scale_shift);
}

static void run_embed(void *arg, int64_t item, int thread)
{
    const struct row_op *op = arg;
    float buf[CHUNK];
    int64_t end = (int64_t)(size_t)cpu_least((item + 1) * op->rows_an_item, op->rows);
    (void)thread;
    for (int64_t row = item * op->rows_an_item; row < end; row++) {
        for (int64_t c = 0; c < op->cols; c += CHUNK) {
            size_t n = (size_t)cpu_least(op->cols - c, CHUNK);
            float *out = cpu_room(&op->out, row * op->cols + c, buf);
            int64_t from = op->ids[row] * op->cols + c;
            op->cpu->rows->to_f32(out, cpu_at(op->w->data, op->w->dtype, from), op->w->dtype, n);
            op->cpu->rows->scale(out, op->w->scale, n);
            cpu_put(op->cpu, &op->out, row * op->cols + c, out, n);
        }
    }
}

void cpu_embed(struct kr_device *dev, struct kr_tensor out, const struct kr_weight *w,
               const int32_t *ids, int64_t n)
{
    struct row_op op = {
        .cpu = cpu_of(dev), .out = out, .w = w, .ids = ids, .rows = n, .cols = w->in};
    each_item(&op, run_embed);
}

/* ------------------------------------------------------------------------------ others ------ */

/* In double, because s times a frequency is large and its cosine wants all its digits. */
void cpu_timestep(struct kr_device *dev, struct kr_tensor out, float s, float period)
{
    float *at = out.data;
    int64_t half = kr_count(&out) / 2;
    (void)dev;
    for (int64_t k = 0; k < half; k++) {
        double angle = s * pow(period, -(double)k / (double)half);
        at[k] = (float)cos(angle);
        at[half + k] = (float)sin(angle);
    }
}

static void run_finite(void *arg, int64_t item, int thread)
{
    struct row_op *op = arg;
    float buf[CHUNK];
    int64_t end = (int64_t)(size_t)cpu_least((item + 1) * op->rows_an_item, op->rows);
    (void)thread;
    for (int64_t i = item * op->rows_an_item; i < end; i += CHUNK) {
        size_t n = (size_t)cpu_least(end - i, CHUNK);
        if (!op->cpu->rows->finite(cpu_get(op->cpu, &op->a, i, buf, n), n))
            atomic_store_explicit(&op->flag, 1, memory_order_relaxed);
    }
}

void cpu_check_finite(struct kr_device *dev, struct kr_tensor x, const char *what)
{
    struct row_op op = {.cpu = cpu_of(dev), .a = x, .rows = kr_count(&x), .cols = 1};
    each_item(&op, run_finite);
    if (op.flag)
        kr_fault_set(dev, KR_FAULT_NOT_FINITE, "%s has NaN or infinity", what);
}
