/* SPDX-License-Identifier: Apache-2.0
 *
 * The products of multiply.cu against sums in double precision, and when they are chosen. Values
 * are exact in the types that they are stored in, so only the order of sums and the result's
 * rounding may make a difference.
 */
#include "tests/cuda/planned.h"

#include "kernels/cuda/products.cuh"

#include "tests/cuda/include/emu_convert.h"

struct shape {
    int64_t n, depth, out[CUDA_MOST_PARTS]; /* 0 ends the parts */
    int64_t first, beyond;                  /* columns of the result's rows before and behind */
    int fp8, large;                         /* x quantized by rows; large tiles */
    int bias, gate, add;
    enum kr_act act;
    enum kr_dtype to;
};

struct operands {
    int64_t wide, stride;
    int parts;
    struct kr_weight w[CUDA_MOST_PARTS];
    const struct kr_weight *weights[CUDA_MOST_PARTS];
    uint8_t *codes, *x_codes; /* W, and x where it is E4M3 */
    float *x, *factors, *bias, *gate, *before;
};

static uint8_t *some_codes(int64_t count)
{
    uint8_t *codes = (uint8_t *)malloc((size_t)count);
    assert_non_null(codes);
    for (int64_t i = 0; i < count; i++) {
        codes[i] = (uint8_t)number_below(256);
        codes[i] = (codes[i] & 0x7f) == 0x7f ? 0 : codes[i];
    }
    return codes;
}

static struct operands operands_of(const struct shape *s)
{
    struct operands o = {};
    for (; o.parts < CUDA_MOST_PARTS && s->out[o.parts]; o.parts++) {
        struct kr_weight *w = &o.w[o.parts];
        w->dtype = KR_F8_E4M3;
        w->out = s->out[o.parts];
        w->in = s->depth;
        w->scale = 0.001f * (float)(1 + number_below(9));
        o.weights[o.parts] = w;
        o.wide += w->out;
    }
    o.stride = s->first + o.wide + s->beyond;
    o.codes = some_codes(o.wide * s->depth);
    o.x_codes = some_codes(s->n * s->depth);
    o.x = numbers(s->n * s->depth, -2, 2);
    o.factors = numbers(s->n, 0.001f, 0.1f);
    for (int64_t i = 0; i < s->n * s->depth; i++)
        o.x[i] = s->fp8 ? emu_f32_of_fp8(o.x_codes[i], 0) : bf16_of(o.x[i]);
    o.bias = numbers(o.wide, -4, 4);
    o.gate = numbers(o.wide, -0.01f, 0.01f);
    o.before = numbers(s->n * o.stride, -4, 4);
    return o;
}

static void operands_done(struct operands *o)
{
    free(o->codes);
    free(o->x_codes);
    free(o->x);
    free(o->factors);
    free(o->bias);
    free(o->gate);
    free(o->before);
}

/* Bytes in the job's arena. */
static struct kr_tensor with_bytes(struct kr_tensor t, const void *bytes, int64_t count)
{
    CUDA(cudaMemcpy(t.data, bytes, (size_t)count, cudaMemcpyHostToDevice));
    return t;
}

static struct kr_tensor quantized(struct kr_device *dev, const struct shape *s,
                                  const struct operands *o)
{
    struct kr_tensor x = kr_new(dev, KR_F8_E4M3, s->n, s->depth, 0, 0);
    with_bytes(x, o->x_codes, s->n * s->depth);
    CUDA(cudaMemcpy(cuda_factors(&x), o->factors, (size_t)s->n * sizeof(float),
                    cudaMemcpyHostToDevice));
    return x;
}

/* All columns of the rows that the result lies in. */
static float *multiplied(struct kr_device *dev, const struct shape *s, const struct operands *o)
{
    char why[200] = "";
    if (kr_job_begin(dev, NULL, (size_t)16 << 20, why, sizeof why))
        fail_msg("%s", why);
    struct kr_tensor all = with_values(dev, s->to, s->n, o->stride, 0, o->before);
    struct kr_tensor w = kr_new(dev, KR_F8_E4M3, o->wide, s->depth, 0, 0);
    struct cuda_multiply m = {};
    m.out = kr_columns(all, s->first, o->wide);
    m.x = s->fp8 ? quantized(dev, s, o) : with_values(dev, KR_BF16, s->n, s->depth, 0, o->x);
    m.w = with_bytes(w, o->codes, o->wide * s->depth).data;
    m.weights = o->weights;
    m.count = o->parts;
    if (s->bias)
        m.bias = (const float *)with_values(dev, KR_F32, o->wide, 0, 0, o->bias).data;
    if (s->gate)
        m.gate = (const float *)with_values(dev, KR_F32, o->wide, 0, 0, o->gate).data;
    m.add = s->add;
    m.act = s->act;
    assert_true(cuda_multiply_takes(cuda_of(dev), m.x.dtype, m.x.data, m.weights, m.count));
    cuda_of(dev)->processors = s->large ? 1 : 1 << 20;
    cuda_multiply(cuda_of(dev), &m);
    float *got = floats_of(dev, all);
    kr_job_end(dev);
    return got;
}

static double gelu(double x)
{
    return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

/* Element (row, column), and what rounding may make of it. */
static double defined(const struct shape *s, const struct operands *o, int64_t row, int64_t column,
                      double *apart)
{
    double sum = 0, size = 0, by = s->fp8 ? o->factors[row] : 1;
    int64_t part = 0, end = s->out[0];
    while (column >= end)
        end += s->out[++part];
    by *= s->gate ? o->gate[column] : o->w[part].scale;
    for (int64_t k = 0; k < s->depth; k++) {
        double v = (double)o->x[row * s->depth + k] *
                   (double)emu_f32_of_fp8(o->codes[column * s->depth + k], 0);
        sum += v;
        size += fabs(v);
    }
    double v = sum * by + (s->bias ? o->bias[column] : 0);
    if (s->act == KR_ACT_GELU_TANH)
        v = gelu(v);
    if (s->add)
        v += o->before[row * o->stride + s->first + column];
    *apart = size * fabs(by) * 0x1p-20 + fabs(v) * (s->to == KR_BF16 ? 0x1.02p-8 : 0x1p-21) + 1e-6;
    return v;
}

static void check(int architecture, const struct shape *s)
{
    struct devices *d = devices_of(architecture);
    struct operands o = operands_of(s);
    float *got = multiplied(d->dev[GPU], s, &o);
    for (int64_t i = 0; i < s->n * o.stride; i++) {
        int64_t row = i / o.stride, column = i % o.stride - s->first;
        double apart = 0, want = s->to == KR_BF16 ? bf16_of(o.before[i]) : o.before[i];
        if (column >= 0 && column < o.wide)
            want = defined(s, &o, row, column, &apart);
        if (!(fabs(got[i] - want) <= apart))
            fail_msg("[%d,%d] to %d, FP8 %d, large %d, to %s, add %d: row %d, column %d is %g, not "
                     "%g",
                     (int)s->n, (int)s->depth, (int)o.wide, s->fp8, s->large, kr_dtype_name(s->to),
                     s->add, (int)row, (int)column, (double)got[i], want);
    }
    free(got);
    operands_done(&o);
}

/* Odd sizes, one more than a tile, long rows, parts that end within a tile, columns of wider rows,
 * every ending. */
static void test_shapes(void **)
{
    static const struct shape shapes[] = {
        {5, 16, {8}, 0, 0, 0, 0, 0, 0, 0, KR_ACT_NONE, KR_F32},
        {65, 144, {65}, 0, 0, 0, 0, 1, 0, 0, KR_ACT_GELU_TANH, KR_F32},
        {33, 2000, {30, 7}, 0, 0, 0, 0, 0, 0, 0, KR_ACT_NONE, KR_F32},
        {64, 192, {40, 24, 64, 2}, 6, 10, 0, 0, 0, 0, 0, KR_ACT_NONE, KR_BF16},
        {17, 80, {3, 60, 9}, 3, 1, 0, 0, 0, 0, 0, KR_ACT_NONE, KR_BF16},
        {20, 208, {77}, 1, 2, 0, 0, 0, 1, 1, KR_ACT_NONE, KR_F32},
        {70, 64, {70}, 0, 0, 0, 0, 1, 0, 1, KR_ACT_NONE, KR_F32},
        {129, 320, {130}, 0, 0, 0, 1, 1, 0, 0, KR_ACT_GELU_TANH, KR_BF16},
        {140, 48, {128, 129, 11}, 5, 0, 0, 1, 0, 0, 0, KR_ACT_NONE, KR_F32},
        {130, 272, {270}, 2, 2, 0, 1, 0, 1, 1, KR_ACT_NONE, KR_F32},
        {70, 16, {1100}, 0, 0, 0, 1, 0, 0, 0, KR_ACT_NONE, KR_F32}, /* more than eight tiles */
    };
    static const int architectures[] = {80, 86, 89, 90, 120};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (int fp8 = 0; fp8 < 2; fp8++) {
            struct shape s = shapes[i];
            s.fp8 = fp8;
            check(architectures[fp8 ? 2 + i % 3 : i % 5], &s);
        }
}

static void test_random_shapes(void **)
{
    numbers_seed(41);
    for (int i = 0; i < 24; i++) {
        struct shape s = {};
        s.n = 5 + number_below(i % 3 ? 60 : 150);
        s.depth = 16 * (1 + number_below(i % 5 ? 16 : 150));
        for (int part = 0; part <= i % 4; part++)
            s.out[part] = 1 + number_below(60);
        s.first = number_below(4);
        s.beyond = number_below(4);
        s.fp8 = i % 2;
        s.large = number_below(3) == 0 && s.n > 64;
        s.add = (int)number_below(2);
        s.gate = s.add && number_below(2);
        s.bias = !s.gate && number_below(2);
        s.act = !s.add && number_below(2) ? KR_ACT_GELU_TANH : KR_ACT_NONE;
        s.to = !s.add && number_below(2) ? KR_BF16 : KR_F32;
        check(i % 2 ? 89 : 80, &s);
    }
}

/* One row of x for each code, 1 at its own k: what comes out is W. NaN is a whole column's. */
static void test_every_code(void **)
{
    for (int i = 0; i < 4; i++) {
        struct shape s = {256, 256, {70}, 0, 0, i % 2, i / 2, 0, 0, 0, KR_ACT_NONE, KR_F32};
        struct operands o = operands_of(&s);
        o.w[0].scale = 1;
        for (int64_t k = 0; k < 256 * 256; k++) {
            o.x[k] = k / 256 == k % 256;
            o.x_codes[k] = k / 256 == k % 256 ? 0x38 : 0;
        }
        for (int64_t k = 0; k < 70 * 256; k++)
            o.codes[k] = ((k + k / 256) & 0x7f) == 0x7f ? 0x80 : (uint8_t)(k + k / 256);
        o.codes[3 * 256 + 5] = 0x7f;
        o.codes[66 * 256 + 200] = 0xff;
        for (int64_t row = 0; row < 256; row++)
            o.factors[row] = 1;
        float *got = multiplied(devices_of(89)->dev[GPU], &s, &o);
        for (int64_t row = 0; row < 256; row++)
            for (int64_t column = 0; column < 70; column++) {
                float have = got[row * 70 + column];
                if (column == 3 || column == 66)
                    assert_true(isnan(have));
                else
                    assert_true(have == emu_f32_of_fp8(o.codes[column * 256 + row], 0));
            }
        free(got);
        operands_done(&o);
    }
}

/* ------------------------------------------------------------------------------ choosing ------ */

struct choice {
    int architecture;
    enum kr_fp8 fp8;
    int64_t n;
    int full_precision; /* the weights are */
    int quantized;      /* x */
    int launches[3]; /* of q|k|v|gate with a scale each, of gate|up with one, and of a gated sum */
};

static int launched(struct kr_device *dev, int64_t before)
{
    assert_int_equal(kr_device_sync(dev), KR_FINE);
    return (int)(cuda_of(dev)->launches - before);
}

static int launches_of(struct kr_device *dev, const struct choice *c, int which)
{
    enum { WIDE = 32, PARTS = 4 };
    static uint8_t codes[PARTS][WIDE * WIDE];
    struct kr_weight w[PARTS] = {};
    const struct kr_weight *all[PARTS];
    int parts = which ? 2 : +PARTS;
    char why[200] = "";
    for (int i = 0; i < PARTS; i++) {
        w[i].data = codes[i];
        w[i].dtype = KR_F8_E4M3;
        w[i].out = w[i].in = WIDE;
        w[i].scale = which ? 0.5f : 0.5f + (float)i;
        w[i].full_precision = c->full_precision;
        all[i] = &w[i];
    }
    if (kr_job_begin(dev, NULL, (size_t)8 << 20, why, sizeof why))
        fail_msg("%s", why);
    float *zeros = numbers(c->n * WIDE * PARTS, 0, 0);
    struct kr_tensor x = with_values(dev, KR_BF16, c->n, WIDE, 0, zeros), q = x;
    struct kr_tensor y = with_values(dev, KR_F32, c->n, WIDE, 0, zeros);
    struct kr_tensor gate = with_values(dev, KR_F32, WIDE, 0, 0, zeros);
    struct kr_tensor out = kr_new(dev, KR_BF16, c->n, WIDE * parts, 0, 0);
    if (c->quantized) {
        q = kr_new(dev, KR_F8_E4M3, c->n, WIDE, 0, 0);
        cuda_quantize_rows(cuda_of(dev), q, x);
    }
    free(zeros);
    kr_linear(dev, y, q, &w[0], KR_ACT_NONE); /* what is made once is there */
    kr_linear_many(dev, out, q, all, parts);
    int64_t before = cuda_of(dev)->launches;
    if (which == 2)
        kr_linear_add(dev, y, gate, q, &w[0]);
    else
        kr_linear_many(dev, out, q, all, parts);
    int launches = launched(dev, before);
    kr_job_end(dev);
    kr_device_residency(dev, KR_RESIDENT, 0);
    return launches;
}

static void test_launches(void **)
{
    static const struct choice choices[] = {
        {80, KR_FP8_BEST, 300, 0, 0, {1, 1, 1}},
        {86, KR_FP8_BEST, 300, 0, 0, {1, 1, 1}},
        {89, KR_FP8_BEST, 300, 0, 1, {1, 1, 1}},
        {89, KR_FP8_BEST, 300, 0, 0, {2, 2, 2}}, /* quantizes first */
        {89, KR_FP8_BEST, 300, 1, 0, {1, 1, 1}},
        {89, KR_FP8_EXPAND, 300, 0, 0, {1, 1, 1}},
        {120, KR_FP8_BEST, 300, 0, 1, {1, 1, 1}},
        {90, KR_FP8_BEST, 300, 0, 1, {1, 1, 1}},
        {90, KR_FP8_BEST, 256, 1, 0, {4, 1, 1}}, /* weights lie together for all n or none */
        {90, KR_FP8_BEST, 257, 1, 0, {8, 2, 2}}, /* expanded, with the gate where there is one */
        {100, KR_FP8_BEST, 128, 1, 0, {4, 1, 1}},
        {100, KR_FP8_BEST, 129, 1, 0, {8, 2, 2}},
    };
    for (size_t i = 0; i < sizeof choices / sizeof choices[0]; i++) {
        struct devices *d = devices_of(choices[i].architecture);
        devices_cuda(d)->fp8 = choices[i].fp8;
        for (int which = 0; which < 3; which++) {
            int launches = launches_of(d->dev[GPU], &choices[i], which);
            if (launches != choices[i].launches[which])
                fail_msg("sm_%d, %d rows, full precision %d, quantized %d, map %d: %d launches",
                         choices[i].architecture, (int)choices[i].n, choices[i].full_precision,
                         choices[i].quantized, which, launches);
        }
        devices_cuda(d)->fp8 = KR_FP8_BEST;
    }
}

/* Tensor cores that don't multiply FP8 are not asked to. */
static void test_fp8_on_an_older_card_is_reported(void **)
{
    struct shape s = {8, 32, {16}, 0, 0, 1, 0, 0, 0, 0, KR_ACT_NONE, KR_F32};
    struct kr_device *dev = devices_of(86)->dev[GPU];
    struct operands o = operands_of(&s);
    char why[200] = "";
    if (kr_job_begin(dev, NULL, (size_t)1 << 20, why, sizeof why))
        fail_msg("%s", why);
    struct kr_tensor x = quantized(dev, &s, &o);
    assert_false(cuda_multiply_takes(cuda_of(dev), KR_F8_E4M3, x.data, o.weights, 1));
    struct cuda_multiply m = {};
    m.out = kr_new(dev, KR_F32, 8, 16, 0, 0);
    m.x = x;
    m.w = with_bytes(kr_new(dev, KR_F8_E4M3, 16, 32, 0, 0), o.codes, 512).data;
    m.weights = o.weights;
    m.count = 1;
    cuda_multiply(cuda_of(dev), &m);
    assert_int_equal(kr_device_sync(dev), KR_FAULT_LOST);
    assert_true(emu_reported(EMU_WARP) > 0);
    emu_forget_reports();
    kr_job_end(dev);
    operands_done(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_random_shapes),
        cmocka_unit_test(test_every_code),
        cmocka_unit_test(test_launches),
        cmocka_unit_test(test_fp8_on_an_older_card_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, close_devices);
}
