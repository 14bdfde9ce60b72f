/* SPDX-License-Identifier: Apache-2.0
 *
 * The CUDA device's linear maps against the CPU's. Inputs are exact in bfloat16, so what the GPU
 * rounds on the way is known: nothing, or x to FP8. That rounding is done here, too, and the CPU
 * gets what comes out of it; then only the order of sums may differ, and the result's own rounding.
 */
#include "tests/cuda/planned.h"

#include "kernels/cuda/products.cuh"

#include "tests/cuda/include/emu_convert.h"

enum { MOST_PARTS = 5 };

enum map { PLAIN, ADD, MANY };

struct linear_case {
    int64_t n, in, out[MOST_PARTS]; /* 0 ends the parts */
    enum kr_dtype stored, x, y;     /* x may be KR_F8_E4M3, which comes from another operation */
    enum map map;
    enum kr_act act;
    int bias, gate;
    float scale[MOST_PARTS]; /* 0: as the first one */
    int full_precision;      /* a bit for each part */
    int architecture;
    enum kr_fp8 fp8;
    int fp8_products; /* how many are expected */
    int quirks;       /* of cuBLASLt */
    int64_t expanded; /* bytes at a time; 0: as the device has it */
};

struct linear_run {
    struct linear_case c;
    int64_t out; /* all parts */
    float *x, *y, *bias, *gate;
    float *seen; /* x as the GPU's product sees it */
    struct kr_weight w[MOST_PARTS];
    int parts;
};

/* Whether FP8 products have a factor for each row of x, and whether they keep sums in F32. */
static int by_rows(int architecture)
{
    return architecture == 89 || architecture == 90 || architecture == 120;
}

static int keeps_sums(const struct linear_case *c)
{
    return !c->fp8_products || c->architecture == 89 || c->architecture == 120;
}

static int on_gpu(const struct kr_device *dev)
{
    return dev->compute == KR_BF16;
}

/* x as it is, or quantized by rows on the GPU: a gate that is open passes everything. */
static struct kr_tensor input(struct kr_device *dev, const struct linear_run *r)
{
    const struct linear_case *c = &r->c;
    if (!on_gpu(dev))
        return with_values(dev, KR_F32, c->n, c->in, 0, r->seen);
    if (c->x != KR_F8_E4M3)
        return with_values(dev, c->x, c->n, c->in, 0, r->x);
    float *open = numbers(c->n * c->in, 60, 60);
    struct kr_tensor quantized = kr_new(dev, KR_F8_E4M3, c->n, c->in, 0, 0);
    struct kr_tensor x = with_values(dev, KR_BF16, c->n, c->in, 0, r->x);
    kr_mul_sigmoid(dev, quantized, x, with_values(dev, KR_BF16, c->n, c->in, 0, open));
    free(open);
    return quantized;
}

static struct kr_tensor map(struct kr_device *dev, const void *of)
{
    struct linear_run *r = (struct linear_run *)(uintptr_t)of;
    const struct linear_case *c = &r->c;
    const struct kr_weight *w[MOST_PARTS];
    struct kr_tensor gate = {}, x = input(dev, r);
    struct kr_tensor y = with_values(dev, on_gpu(dev) ? c->y : KR_F32, c->n, r->out, 0, r->y);
    if (c->gate)
        gate = with_values(dev, KR_F32, r->out, 0, 0, r->gate);
    for (int i = 0; i < r->parts; i++) {
        w[i] = &r->w[i];
        r->w[i].bias.data = NULL;
        if (c->bias)
            r->w[i].bias = with_values(dev, KR_F32, c->out[i], 0, 0, r->bias);
    }
    if (c->map == MANY)
        kr_linear_many(dev, y, x, w, r->parts);
    else if (c->map == ADD)
        kr_linear_add(dev, y, gate, x, w[0]);
    else
        kr_linear(dev, y, x, w[0], c->act);
    return y;
}

/* Random weights in the type that the file has, of magnitude 1 at most before the scale (and before
 * the 448 of E4M3, where all codes but NaN come up). */
static void *store(int64_t n, enum kr_dtype dtype)
{
    char *to = (char *)malloc((size_t)n * 4);
    assert_non_null(to);
    for (int64_t i = 0; i < n; i++) {
        float v = bf16_of(rintf(number_between(-1, 1) * 128) / 128);
        uint16_t bf16 = (uint16_t)(emu_bf16_of(v)), f16 = emu_f16_of(v);
        uint8_t code = (uint8_t)number_below(256);
        if (dtype == KR_F8_E4M3)
            to[i] = (char)((code & 0x7f) == 0x7f ? 0 : code);
        else if (dtype == KR_F8_E5M2)
            to[i] = (char)emu_fp8_of(v, 1, 1);
        else if (dtype == KR_F32)
            memcpy(to + 4 * i, &v, 4);
        else
            memcpy(to + 2 * i, dtype == KR_BF16 ? &bf16 : &f16, 2);
    }
    return to;
}

static float largest(const float *x, int64_t n)
{
    float most = 0;
    for (int64_t i = 0; i < n; i++)
        most = fmaxf(most, fabsf(x[i]));
    return most;
}

/* n numbers through FP8 with one factor. */
static void quantize(float *out, const float *x, int64_t n)
{
    float factor = fmaxf(largest(x, n), 1e-30f) / 448.0f, by = 1.0f / factor;
    for (int64_t i = 0; i < n; i++)
        out[i] = emu_f32_of_fp8(emu_fp8_of(x[i] * by, 0, 1), 0) * factor;
}

static struct linear_run run_of(const struct linear_case *c)
{
    struct linear_run r = {};
    r.c = *c;
    for (; r.parts < MOST_PARTS && c->out[r.parts]; r.parts++) {
        struct kr_weight w = {};
        w.data = store(c->out[r.parts] * c->in, c->stored);
        w.dtype = c->stored;
        w.out = c->out[r.parts];
        w.in = c->in;
        w.scale = c->scale[r.parts] != 0 ? c->scale[r.parts] : c->scale[0];
        w.full_precision = c->full_precision >> r.parts & 1;
        r.w[r.parts] = w;
        r.out += w.out;
    }
    r.x = numbers(c->n * c->in, -2, 2);
    for (int64_t i = 0; i < c->n * c->in; i++)
        r.x[i] = bf16_of(r.x[i] * (i / c->in % 3 == 1 ? 100.0f : 1.0f)); /* rows differ in size */
    r.y = numbers(c->n * r.out, -2, 2);
    r.bias = numbers(r.out, -1, 1);
    r.gate = numbers(r.out, -2, 2);
    r.seen = numbers(c->n * c->in, 0, 0);
    int rows = c->x == KR_F8_E4M3 || (c->fp8_products && by_rows(c->architecture));
    memcpy(r.seen, r.x, (size_t)(c->n * c->in) * sizeof *r.x);
    if (!rows && c->fp8_products)
        quantize(r.seen, r.x, c->n * c->in);
    for (int64_t i = 0; rows && i < c->n; i++)
        quantize(r.seen + i * c->in, r.x + i * c->in, c->in);
    /* Where the product is none of FP8's, what was quantized becomes bfloat16 again. */
    for (int64_t i = 0; rows && !c->fp8_products && i < c->n * c->in; i++)
        r.seen[i] = bf16_of(r.seen[i]);
    return r;
}

static void run_done(struct linear_run *r)
{
    for (int i = 0; i < r->parts; i++)
        free((void *)(uintptr_t)r->w[i].data);
    free(r->x);
    free(r->y);
    free(r->bias);
    free(r->gate);
    free(r->seen);
}

static float bound_of(const struct linear_run *r, int64_t at, float want)
{
    const struct linear_case *c = &r->c;
    float scale = 0, most = c->stored == KR_F8_E4M3 ? 448.0f : 1.0f;
    for (int i = 0; i < r->parts; i++)
        scale = fmaxf(scale, c->gate ? 1.0f : fabsf(r->w[i].scale)); /* a gate has it in it */
    float all = largest(r->seen + at / r->out * c->in, c->in) * most * scale * (float)c->in;
    float rounded = c->y == KR_BF16 ? fabsf(want) * 0x1p-8f : 0;
    /* A sum that cuBLASLt's FP8 products hand to the kernel behind them is bfloat16. */
    if (c->map == ADD && !keeps_sums(c))
        rounded += (fabsf(want) + fabsf(r->y[at]) + fabsf(r->bias[at % r->out])) * 0x1p-8f;
    /* Weights that are expanded take the gate along and are rounded with it. */
    if (c->gate && c->stored != KR_BF16 && !c->fp8_products)
        rounded += all * 2.0f / sqrtf((float)c->in) * 0x1p-9f;
    return rounded + all * (c->gate ? 2.0f : 1.0f) * 0x1p-21f + 1e-5f + fabsf(want) * 1e-5f;
}

static int part_of(const struct linear_case *c, int64_t column)
{
    int part = 0;
    for (; column >= c->out[part]; part++)
        column -= c->out[part];
    return part;
}

static void compare(const struct linear_case *c)
{
    struct devices *d = devices_with(c->architecture, c->quirks);
    int64_t before = devices_cuda(d)->products_in_fp8;
    int64_t expanded = cuda_expanded;
    devices_cuda(d)->fp8 = c->fp8;
    cuda_expanded = c->expanded ? c->expanded : expanded;
    struct linear_run r = run_of(c);
    float *got = run_planned(d->dev[GPU], map, &r), *want = run_planned(d->dev[CPU], map, &r);
    memcpy(r.seen, r.x, (size_t)(c->n * c->in) * sizeof *r.x);
    float *plain = run_planned(d->dev[CPU], map, &r);
    for (int64_t i = 0; i < c->n * r.out; i++) {
        if (c->fp8_products && r.w[part_of(c, i % r.out)].full_precision)
            want[i] = plain[i];
        if (!(fabsf(got[i] - want[i]) <= bound_of(&r, i, want[i])))
            fail_msg("[%d,%d] to %d in %d parts, %s x %s to %s, map %d, act %d, bias %d, gate %d, "
                     "sm_%d: %d is %g, not %g",
                     (int)c->n, (int)c->in, (int)r.out, r.parts, kr_dtype_name(c->x),
                     kr_dtype_name(c->stored), kr_dtype_name(c->y), c->map, c->act, c->bias,
                     c->gate, c->architecture, (int)i, (double)got[i], (double)want[i]);
    }
    free(plain);
    assert_int_equal(devices_cuda(d)->products_in_fp8 - before, c->fp8_products);
    cuda_expanded = expanded;
    free(got);
    free(want);
    run_done(&r);
}

/* Every type that a weight is stored in, few rows and many. */
static void test_stored_types(void **state)
{
    (void)state;
    static const enum kr_dtype stored[] = {KR_F32, KR_BF16, KR_F16, KR_F8_E4M3, KR_F8_E5M2};
    for (int i = 0; i < 5; i++) {
        struct linear_case c = {33,    48,          {72}, stored[i], KR_BF16, KR_F32,
                                PLAIN, KR_ACT_NONE, 0,    0,         {0.5f},  0,
                                80,    KR_FP8_BEST, 0,    0,         0};
        compare(&c);
        c.n = 1;
        c.x = KR_F32;
        c.bias = 1;
        c.act = KR_ACT_GELU_TANH;
        compare(&c);
        c.n = 3;
        c.in = 41; /* nothing is aligned */
        c.out[0] = 7;
        compare(&c);
        c.n = 19;
        c.y = KR_BF16;
        compare(&c);
    }
}

static void test_endings(void **state)
{
    (void)state;
    for (int i = 0; i < 96; i++) {
        struct linear_case c = {20,    64,          {48}, KR_BF16, KR_BF16, KR_F32,
                                PLAIN, KR_ACT_NONE, 0,    0,       {1.0f},  0,
                                90,    KR_FP8_BEST, 0,    0,       0};
        c.bias = i % 2;
        c.y = i / 2 % 2 ? KR_BF16 : KR_F32;
        c.act = (enum kr_act)(i / 4 % 3);
        if (i / 12 % 2)
            c.scale[0] = 0.25f;
        c.quirks = i / 48 ? ALPHA_VECTORS : 0;
        if (i / 24 % 2) {
            c.map = ADD;
            c.y = KR_F32;
            c.act = KR_ACT_NONE;
            c.gate = !c.bias && i / 2 % 2;
        }
        c.stored = i / 4 % 2 ? KR_BF16 : KR_F16;
        compare(&c);
    }
}

/* FP8 times FP8: by rows or, on sm_100, as a whole; and where it must not be. */
static void test_fp8(void **state)
{
    (void)state;
    static const int architectures[] = {80, 86, 89, 90, 100, 120};
    for (int i = 0; i < 6; i++)
        for (int j = 0; j < 8; j++) {
            struct linear_case c = {21,    64,          {96}, KR_F8_E4M3, KR_BF16,  KR_BF16,
                                    PLAIN, KR_ACT_NONE, 0,    0,          {0.003f}, 0,
                                    90,    KR_FP8_BEST, 0,    0,          0};
            c.architecture = architectures[i];
            c.quirks = i % 2 ? ALPHA_VECTORS : ROWS_TO_BF16;
            c.full_precision = j == 1;
            c.fp8 = j == 2 ? KR_FP8_EXPAND : KR_FP8_BEST;
            c.out[0] = j == 3 ? 88 : 96;
            c.in = j == 4 ? 56 : 64;
            c.x = j == 5 ? KR_F32 : KR_BF16;
            c.bias = c.act = j == 6 ? KR_ACT_GELU_TANH : KR_ACT_NONE;
            if (j == 7) {
                c.map = ADD;
                c.y = KR_F32;
                c.gate = 1;
            }
            c.fp8_products = c.architecture >= 89 && (j == 0 || j >= 5);
            compare(&c);
        }
}

/* Inputs that another operation quantized. */
static void test_quantized_inputs(void **state)
{
    (void)state;
    for (int i = 0; i < 9; i++) {
        struct linear_case c = {17,    80,          {64}, KR_F8_E4M3, KR_F8_E4M3, KR_BF16,
                                PLAIN, KR_ACT_NONE, 0,    0,          {0.003f},   0,
                                90,    KR_FP8_BEST, 1,    0,          0};
        if (i == 1 || i == 2 || i >= 6) {
            c.map = ADD;
            c.y = KR_F32;
            c.gate = i == 2 || i == 7;
            c.bias = i == 8;
            c.quirks = i >= 6 ? ROWS_TO_BF16 : 0;
        } else if (i == 3) {
            c.stored = KR_BF16; /* can't be multiplied with */
            c.fp8_products = 0;
        } else if (i == 4) {
            c.architecture = 86;
            c.fp8_products = 0;
        } else if (i == 5) {
            c.n = 2; /* few */
            c.fp8_products = 0;
        }
        compare(&c);
    }
}

static void test_many(void **state)
{
    (void)state;
    static const int architectures[] = {80, 89, 90, 100};
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 7; j++) {
            struct linear_case c = {
                18, 48, {64, 16, 16, 64}, KR_BF16, KR_BF16, KR_BF16,     MANY, KR_ACT_NONE,
                0,  0,  {1.0f},           0,       90,      KR_FP8_BEST, 0,    0,
                0};
            c.architecture = architectures[i];
            c.n = j == 1 ? 2 : 18;
            c.stored = j >= 2 ? KR_F8_E4M3 : KR_BF16;
            if (j == 3)
                c.scale[1] = 0.5f; /* one product with rows' factors, three without */
            if (j == 4)
                c.out[4] = 32; /* a part too many for one */
            if (j == 5)
                c.out[1] = 8;                  /* FP8 wants sixteen */
            c.full_precision = j == 6 ? 8 : 0; /* the last part goes alone */
            if (j >= 2 && c.architecture >= 89)
                c.fp8_products = j == 2   ? 1
                                 : j == 3 ? (by_rows(c.architecture) ? 1 : 3)
                                 : j == 4 ? 2
                                 : j == 5 ? 0
                                          : 1;
            compare(&c);
        }
}

/* cuBLASLt's GELU, and its bias where that has the result's type; else a kernel behind it. */
static void test_gelu_in_the_product(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct linear_case c = {20,      64,
                                {48},    KR_BF16,
                                KR_BF16, i % 2 ? KR_BF16 : KR_F32,
                                PLAIN,   KR_ACT_GELU_TANH,
                                i / 2,   0,
                                {0.5f},  0,
                                90,      KR_FP8_BEST,
                                0,       0,
                                0};
        int64_t before = devices_cuda(devices_of(90))->launches;
        compare(&c);
        int64_t launches = devices_cuda(devices_of(90))->launches - before;
        assert_int_equal(launches, i == 3 ? 2 : 1);
    }
}

/* Weights that don't fit into the scratch they are expanded in. */
static void test_panels(void **state)
{
    (void)state;
    for (int i = 0; i < 6; i++) {
        struct linear_case c = {};
        c.n = 20;
        c.in = 40;
        c.out[0] = i ? 200 : 128; /* the last panel is shorter, or not */
        c.stored = i % 3 ? KR_F8_E4M3 : KR_F32;
        c.x = c.y = KR_BF16;
        c.scale[0] = 0.003f;
        c.bias = i == 1 || i == 2;
        c.map = i >= 3 ? ADD : PLAIN;
        c.y = c.map == ADD || i == 2 ? KR_F32 : KR_BF16;
        c.gate = i == 4 || i == 5;
        c.quirks = i == 5 ? ALPHA_VECTORS : 0;
        c.architecture = 86;
        c.expanded = 64 * 40 * 2;
        compare(&c);
    }
}

static void test_random_shapes(void **state)
{
    (void)state;
    static const int architectures[] = {80, 86, 89, 90, 100, 120};
    static const enum kr_dtype stored[] = {KR_F32, KR_BF16, KR_F16, KR_F8_E4M3, KR_F8_E5M2};
    numbers_seed(99);
    for (int i = 0; i < 40; i++) {
        struct linear_case c = {};
        c.n = 1 + number_below(i % 4 ? 40 : 5);
        c.in = 1 + number_below(i % 7 ? 150 : 3000);
        c.out[0] = 1 + number_below(150);
        c.stored = stored[i % 5];
        c.x = number_below(3) ? KR_BF16 : KR_F32;
        c.y = number_below(2) ? KR_BF16 : KR_F32;
        c.act = (enum kr_act)number_below(3);
        c.bias = (int)number_below(2);
        if (number_below(3) == 0) {
            c.map = ADD;
            c.y = KR_F32;
            c.act = KR_ACT_NONE;
            c.gate = !c.bias && number_below(2);
        }
        c.scale[0] = number_below(2) ? 1.0f : -0.0078f;
        c.full_precision = 1;
        c.architecture = architectures[i * 6 / 40];
        compare(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stored_types), cmocka_unit_test(test_endings),
        cmocka_unit_test(test_fp8),          cmocka_unit_test(test_quantized_inputs),
        cmocka_unit_test(test_many),         cmocka_unit_test(test_gelu_in_the_product),
        cmocka_unit_test(test_panels),       cmocka_unit_test(test_random_shapes),
    };
    return cmocka_run_group_tests(tests, NULL, close_devices);
}
