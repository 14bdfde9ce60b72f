/* SPDX-License-Identifier: Apache-2.0
 *
 * kr_linear, kr_linear_add and kr_embed against their definitions in double precision: every stored
 * type, aligned and not, odd shapes, biases, activations, gates, and all FP8 codes exactly.
 */
#include "tests/kernels/harness.h"

static const enum kr_dtype stored[] = {KR_F32, KR_BF16, KR_F16, KR_F8_E4M3, KR_F8_E5M2};
enum { STORED = sizeof stored / sizeof stored[0] };

static double act_of(double x, enum kr_act act)
{
    if (act == KR_ACT_SILU)
        return x / (1 + exp(-x));
    if (act == KR_ACT_GELU_TANH)
        return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    return x;
}

/* x W^T scale + bias, all in double. */
static double *product(const float *x, int64_t n, const struct kr_weight *w, const float *bias)
{
    double *out = malloc((size_t)(n * w->out) * sizeof *out);
    double *row = malloc((size_t)w->in * sizeof *row);
    assert_true(out && row);
    for (int64_t j = 0; j < w->out; j++) {
        for (int64_t k = 0; k < w->in; k++)
            row[k] = value_of(w->data, w->dtype, (size_t)(j * w->in + k));
        for (int64_t i = 0; i < n; i++) {
            double sum = 0;
            for (int64_t k = 0; k < w->in; k++)
                sum += x[i * w->in + k] * row[k];
            out[i * w->out + j] = sum * w->scale + (bias ? bias[j] : 0);
        }
    }
    free(row);
    return out;
}

static void check_linear(struct kr_device *dev, int64_t n, int64_t out, int64_t in,
                         enum kr_dtype dtype, int odd)
{
    struct kr_mark mark = kr_arena_mark(dev);
    enum kr_dtype x_type = random_bits() & 1 ? KR_BF16 : KR_F32;
    enum kr_dtype out_type = random_bits() & 1 ? KR_BF16 : KR_F32;
    enum kr_act act = (enum kr_act)random_between(0, 2);
    float *host = random_floats((size_t)(n * in)), *bias = random_floats((size_t)out);
    void *to_free;
    struct kr_weight w = {.dtype = dtype, .out = out, .in = in, .scale = 0.37f / sqrtf((float)in)};
    w.data = random_stored(dtype, (size_t)(out * in), odd, &to_free);
    struct kr_tensor x = tensor_of(dev, x_type, host, n, in, 0);
    struct kr_tensor y = kr_new(dev, out_type, n, out, 0, 0);
    if (random_bits() & 1)
        w.bias = tensor_of(dev, KR_F32, bias, out, 0, 0);
    float *rounded = values_of(dev, x);
    double *want = product(rounded, n, &w, w.bias.data ? bias : NULL);
    for (int64_t i = 0; i < n * out; i++)
        want[i] = act_of(want[i], act);
    kr_linear(dev, y, x, &w, act);
    assert_close(dev, y, want, product_tolerance(dev, in) + storage_tolerance(out_type));
    free(want);
    free(rounded);
    free(to_free);
    free(bias);
    free(host);
    kr_arena_release(dev, mark);
}

static void linear_body(struct kr_device *dev)
{
    static const int64_t shape[][3] = {
        {1, 1, 1},     {1, 7, 5},     {3, 33, 31},    {45, 96, 64},   {17, 300, 257}, {64, 64, 512},
        {513, 48, 40}, {2, 1000, 16}, {31, 40, 9728}, {1030, 17, 33}, {5, 130, 16384}};
    for (size_t s = 0; s < sizeof shape / sizeof shape[0]; s++)
        for (int d = 0; d < STORED; d++)
            check_linear(dev, shape[s][0], shape[s][1], shape[s][2], stored[d],
                         (int)(s + (size_t)d) % 3);
    for (int i = 0; i < 20; i++)
        check_linear(dev, random_between(1, 90), random_between(1, 400), random_between(1, 400),
                     stored[i % STORED], i % 2);
}

static void test_linear(void **state)
{
    (void)state;
    on_every_device(linear_body);
}

/* Three maps of one input, of different types, scales and sizes, side by side. */
static void check_many(struct kr_device *dev, int64_t n, int64_t in, enum kr_dtype dtype)
{
    static const int64_t outs[] = {40, 7, 129};
    struct kr_mark mark = kr_arena_mark(dev);
    float *host = random_floats((size_t)(n * in)), *zeros = calloc(129, sizeof *zeros);
    struct kr_tensor x = tensor_of(dev, KR_BF16, host, n, in, 0);
    struct kr_tensor out = kr_new(dev, dtype, n, 40 + 7 + 129, 0, 0);
    float *rounded = values_of(dev, x);
    struct kr_weight w[3];
    const struct kr_weight *all[] = {&w[0], &w[1], &w[2]};
    void *to_free[3];
    for (int i = 0; i < 3; i++) {
        w[i] = (struct kr_weight){.dtype = i == 1 ? KR_BF16 : KR_F8_E4M3,
                                  .out = outs[i],
                                  .in = in,
                                  .scale = (float)(i + 1) / sqrtf((float)in)};
        w[i].data = random_stored(w[i].dtype, (size_t)(outs[i] * in), 0, &to_free[i]);
    }
    kr_linear_many(dev, out, x, all, 3);
    for (int64_t i = 0, at = 0; i < 3; at += outs[i++]) {
        double *want = product(rounded, n, &w[i], zeros);
        assert_close(dev, kr_columns(out, at, outs[i]), want,
                     product_tolerance(dev, in) + storage_tolerance(dtype));
        free(want);
        free(to_free[i]);
    }
    free(rounded);
    free(zeros);
    free(host);
    kr_arena_release(dev, mark);
}

static void many_body(struct kr_device *dev)
{
    check_many(dev, 1, 64, KR_F32);
    check_many(dev, 37, 130, KR_F32);
    check_many(dev, 200, 512, KR_BF16);
}

static void test_linear_many(void **state)
{
    (void)state;
    on_every_device(many_body);
}

/* A gate holds the weight's scale, and goes without a bias. */
static void check_linear_add(struct kr_device *dev, int64_t n, int64_t out, int64_t in, int gated)
{
    struct kr_mark mark = kr_arena_mark(dev);
    float *host = random_floats((size_t)(n * in)), *before = random_floats((size_t)(n * out));
    float *gate = random_floats((size_t)out), *bias = random_floats((size_t)out);
    void *to_free;
    struct kr_weight w = {
        .dtype = KR_F8_E4M3, .out = out, .in = in, .scale = 1.5f / sqrtf((float)in)};
    w.data = random_stored(w.dtype, (size_t)(out * in), 1, &to_free);
    struct kr_tensor x = tensor_of(dev, KR_BF16, host, n, in, 0), g = {0};
    struct kr_tensor y = tensor_of(dev, KR_F32, before, n, out, 0);
    float *rounded = values_of(dev, x);
    double *want = product(rounded, n, &w, gated ? NULL : bias);
    for (int64_t i = 0; i < n * out; i++)
        want[i] = before[i] + (gated ? gate[i % out] : 1) * want[i];
    for (int64_t i = 0; i < out; i++)
        gate[i] *= w.scale;
    if (gated)
        g = tensor_of(dev, KR_F32, gate, out, 0, 0);
    else
        w.bias = tensor_of(dev, KR_F32, bias, out, 0, 0);
    kr_linear_add(dev, y, g, x, &w);
    assert_close(dev, y, want, product_tolerance(dev, in));
    free(want);
    free(rounded);
    free(to_free);
    free(bias);
    free(gate);
    free(before);
    free(host);
    kr_arena_release(dev, mark);
}

static void linear_add_body(struct kr_device *dev)
{
    check_linear_add(dev, 1, 3, 8, 1);
    check_linear_add(dev, 45, 100, 64, 0);
    check_linear_add(dev, 301, 257, 130, 1);
    check_linear_add(dev, 20, 70, 5000, 1);
}

static void test_linear_add(void **state)
{
    (void)state;
    on_every_device(linear_add_body);
}

/* A unit vector picks one code out of the weight: it must arrive exactly, NaN as NaN. */
static void codes_body(struct kr_device *dev)
{
    static const enum kr_dtype fp8[] = {KR_F8_E4M3, KR_F8_E5M2};
    unsigned char codes[257];
    for (int i = 0; i < 257; i++)
        codes[i] = (unsigned char)(i - 1);
    for (int d = 0; d < 2; d++) {
        float one = 1;
        struct kr_weight w = {.data = codes + 1, .dtype = fp8[d], .out = 256, .in = 1, .scale = 1};
        struct kr_tensor x = tensor_of(dev, KR_F32, &one, 1, 1, 0);
        struct kr_tensor y = kr_new(dev, KR_F32, 1, 256, 0, 0);
        kr_linear(dev, y, x, &w, KR_ACT_NONE);
        float *got = values_of(dev, y);
        int32_t ids[256];
        for (int i = 0; i < 256; i++)
            ids[i] = i;
        struct kr_tensor rows = kr_new(dev, KR_F32, 256, 1, 0, 0);
        kr_embed(dev, rows, &w, ids, 256);
        float *embedded = values_of(dev, rows);
        for (int i = 0; i < 256; i++) {
            double want = value_of(codes + 1, fp8[d], (size_t)i);
            assert_true(isnan(want) ? isnan(got[i]) : got[i] == want);
            assert_true(isnan(want) ? isnan(embedded[i]) : embedded[i] == want);
        }
        free(embedded);
        free(got);
    }
}

static void test_all_codes(void **state)
{
    (void)state;
    on_every_device(codes_body);
}

static void embed_body(struct kr_device *dev)
{
    static const int32_t ids[] = {0, 6, 3, 3, 1};
    for (int d = 0; d < STORED; d++) {
        void *to_free;
        struct kr_weight w = {.dtype = stored[d], .out = 7, .in = 2600, .scale = 0.75f};
        w.data = random_stored(w.dtype, 7 * 2600, 1, &to_free);
        struct kr_tensor out = kr_new(dev, d % 2 ? KR_BF16 : KR_F32, 5, 2600, 0, 0);
        double *want = malloc(5 * 2600 * sizeof *want);
        assert_non_null(want);
        for (int64_t i = 0; i < 5 * 2600; i++)
            want[i] = 0.75 * value_of(w.data, w.dtype, (size_t)(ids[i / 2600] * 2600 + i % 2600));
        kr_embed(dev, out, &w, ids, 5);
        assert_close(dev, out, want, storage_tolerance(out.dtype));
        free(want);
        free(to_free);
    }
}

static void test_embed(void **state)
{
    (void)state;
    on_every_device(embed_body);
}

/* The same bytes with any number of threads, and twice. */
static void test_threads_do_not_matter(void **state)
{
    enum { N = 45, OUT = 1000, IN = 2560 };
    float *first = NULL, *host = random_floats(N * IN);
    void *to_free;
    struct kr_weight w = {.dtype = KR_F8_E4M3, .out = OUT, .in = IN, .scale = 1};
    w.data = random_stored(w.dtype, OUT * IN, 0, &to_free);
    (void)state;
    for (int threads = 1; threads <= 5; threads++) {
        struct kr_device_options options = {.threads = threads};
        char why[200];
        struct kr_device *dev = kr_device_open_cpu(&options, why, sizeof why);
        assert_non_null(dev);
        assert_int_equal(kr_job_begin(dev, NULL, 64 << 20, why, sizeof why), 0);
        struct kr_tensor x = tensor_of(dev, KR_F32, host, N, IN, 0);
        struct kr_tensor y = kr_new(dev, KR_F32, N, OUT, 0, 0);
        for (int twice = 0; twice < 2; twice++) {
            kr_linear(dev, y, x, &w, KR_ACT_NONE);
            float *got = values_of(dev, y);
            if (first)
                assert_memory_equal(first, got, N * OUT * sizeof *got);
            else
                first = values_of(dev, y);
            free(got);
        }
        kr_device_close(dev);
    }
    free(first);
    free(to_free);
    free(host);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear),     cmocka_unit_test(test_linear_many),
        cmocka_unit_test(test_linear_add), cmocka_unit_test(test_all_codes),
        cmocka_unit_test(test_embed),      cmocka_unit_test(test_threads_do_not_matter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
