/* SPDX-License-Identifier: Apache-2.0
 *
 * kr_conv2d and kr_conv2d_add against the definition of a "same" convolution in double precision,
 * with kernels of rank 4 and the last temporal slice of rank 5; and the promise that a row comes
 * out the same to the bit whether a whole picture or a band of it is convolved.
 */
#include "tests/kernels/harness.h"

struct shape {
    int64_t h, w, in, out, k, kt;
};

static void fill_kernel(struct kr_conv *c, const struct shape *s, enum kr_dtype dtype,
                        void **to_free)
{
    *c = (struct kr_conv){
        .dtype = dtype, .out = s->out, .in = s->in, .kt = s->kt, .kh = s->k, .kw = s->k};
    c->data = random_stored(dtype, (size_t)(s->out * s->in * s->kt * s->k * s->k), 1, to_free);
}

/* One output pixel. */
static void convolve(const struct kr_conv *c, const struct shape *s, const float *x,
                     const double *w, int64_t y0, int64_t x0, double *out)
{
    for (int64_t o = 0; o < s->out; o++) {
        out[o] = 0;
        for (int64_t dy = 0; dy < s->k; dy++)
            for (int64_t dx = 0; dx < s->k; dx++) {
                int64_t py = y0 + dy - s->k / 2, px = x0 + dx - s->k / 2;
                if (py < 0 || py >= s->h || px < 0 || px >= s->w)
                    continue;
                for (int64_t i = 0; i < s->in; i++)
                    out[o] +=
                        x[(py * s->w + px) * s->in + i] *
                        w[((o * s->in + i) * s->kt + s->kt - 1) * s->k * s->k + dy * s->k + dx];
            }
    }
    (void)c;
}

static double *define(const struct kr_conv *c, const struct shape *s, const float *x,
                      const float *bias)
{
    size_t weights = (size_t)(s->out * s->in * s->kt * s->k * s->k);
    double *want = malloc((size_t)(s->h * s->w * s->out) * sizeof *want);
    double *w = malloc(weights * sizeof *w);
    assert_true(want && w);
    for (size_t i = 0; i < weights; i++)
        w[i] = value_of(c->data, c->dtype, i);
    for (int64_t y = 0; y < s->h; y++)
        for (int64_t px = 0; px < s->w; px++)
            convolve(c, s, x, w, y, px, want + (y * s->w + px) * s->out);
    for (int64_t i = 0; bias && i < s->h * s->w * s->out; i++)
        want[i] += bias[i % s->out];
    free(w);
    return want;
}

static void check(struct kr_device *dev, const struct shape *s, enum kr_dtype dtype,
                  enum kr_dtype in, enum kr_dtype out, int add, int biased)
{
    struct kr_mark mark = kr_arena_mark(dev);
    struct kr_conv c;
    void *to_free;
    int64_t n = s->h * s->w * s->out;
    float *host = random_floats((size_t)(s->h * s->w * s->in)),
          *bias = random_floats((size_t)s->out);
    float *before = random_floats((size_t)n);
    fill_kernel(&c, s, dtype, &to_free);
    if (biased)
        c.bias = tensor_of(dev, KR_F32, bias, s->out, 0, 0);
    struct kr_tensor x = tensor_of(dev, in, host, s->h, s->w, s->in);
    struct kr_tensor y = tensor_of(dev, add ? KR_F32 : out, before, s->h, s->w, s->out);
    float *rounded = values_of(dev, x);
    double *want = define(&c, s, rounded, biased ? bias : NULL);
    for (int64_t i = 0; add && i < n; i++)
        want[i] += before[i];
    for (int twice = 0; twice < 1 + !add; twice++) {
        if (add)
            kr_conv2d_add(dev, y, x, &c);
        else
            kr_conv2d(dev, y, x, &c);
        assert_close(dev, y, want,
                     product_tolerance(dev, s->in * s->k * s->k) + storage_tolerance(y.dtype));
    }
    kr_conv_fini(dev, &c);
    assert_null(c.prepared);
    free(want);
    free(rounded);
    free(to_free);
    free(before);
    free(bias);
    free(host);
    kr_arena_release(dev, mark);
}

static void body(struct kr_device *dev)
{
    static const struct shape shapes[] = {
        {1, 1, 1, 1, 3, 1},      {5, 7, 3, 4, 3, 3},     {8, 8, 16, 16, 1, 1},
        {9, 33, 16, 96, 3, 3},   {17, 20, 96, 3, 3, 3},  {16, 16, 96, 192, 1, 3},
        {10, 40, 64, 48, 3, 1},  {2, 100, 33, 65, 3, 3}, {30, 5, 40, 24, 1, 1},
        {12, 18, 192, 96, 3, 1},
    };
    static const enum kr_dtype stored[] = {KR_F32, KR_BF16, KR_F16};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (int mix = 0; mix < 4; mix++)
            check(dev, &shapes[i], stored[(i + (size_t)mix) % 3], mix & 1 ? KR_BF16 : KR_F32,
                  mix & 2 ? KR_BF16 : KR_F32, mix == 3, (i + (size_t)mix) % 4 != 0);
}

static void test_conv(void **state)
{
    (void)state;
    on_every_device(body);
}

/* Rows first..first+count of a picture of h rows, convolved alone with a margin of one row. */
static void bands_body(struct kr_device *dev)
{
    static const struct shape shapes[] = {
        {37, 40, 96, 96, 3, 3}, {41, 23, 48, 3, 3, 1}, {29, 64, 192, 96, 1, 1}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const struct shape *s = &shapes[i];
        struct kr_mark mark = kr_arena_mark(dev);
        struct kr_conv c;
        void *to_free;
        size_t row = (size_t)(s->w * s->out);
        float *host = random_floats((size_t)(s->h * s->w * s->in));
        fill_kernel(&c, s, KR_BF16, &to_free);
        struct kr_tensor x = tensor_of(dev, KR_BF16, host, s->h, s->w, s->in);
        struct kr_tensor whole = kr_new(dev, KR_F32, s->h, s->w, s->out, 0);
        kr_conv2d(dev, whole, x, &c);
        float *want = values_of(dev, whole);
        for (int64_t first = 1; first < s->h - 2; first += 5) {
            int64_t count = random_between(1, s->h - 1 - first);
            struct kr_tensor band = kr_new(dev, KR_F32, count + 2, s->w, s->out, 0);
            kr_conv2d(dev, band, kr_slice(x, first - 1, count + 2), &c);
            float *got = values_of(dev, band);
            assert_memory_equal(got + row, want + (size_t)first * row,
                                (size_t)count * row * sizeof *got);
            free(got);
        }
        kr_conv_fini(dev, &c);
        free(want);
        free(host);
        free(to_free);
        kr_arena_release(dev, mark);
    }
}

static void test_bands_are_exact(void **state)
{
    (void)state;
    on_every_device(bands_body);
}

/* One kr_conv for pictures of several widths, as tiles and sizes of pictures come and go. */
static void widths_body(struct kr_device *dev)
{
    static const int64_t widths[] = {8, 40, 8, 13};
    struct shape s = {6, 0, 16, 32, 3, 1};
    struct kr_conv c;
    void *to_free;
    fill_kernel(&c, &s, KR_F32, &to_free);
    for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++) {
        s.w = widths[i];
        float *host = random_floats((size_t)(s.h * s.w * s.in));
        struct kr_tensor x = tensor_of(dev, KR_F32, host, s.h, s.w, s.in);
        struct kr_tensor y = kr_new(dev, KR_F32, s.h, s.w, s.out, 0);
        double *want = define(&c, &s, host, NULL);
        kr_conv2d(dev, y, x, &c);
        assert_close(dev, y, want, product_tolerance(dev, 16 * 9));
        free(want);
        free(host);
    }
    kr_conv_fini(dev, &c);
    free(to_free);
}

static void test_widths(void **state)
{
    (void)state;
    on_every_device(widths_body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_conv),
                                       cmocka_unit_test(test_bands_are_exact),
                                       cmocka_unit_test(test_widths)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
