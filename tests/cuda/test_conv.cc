/* SPDX-License-Identifier: Apache-2.0
 *
 * The CUDA device's convolutions against the CPU's, on inputs and kernels that are exact in
 * bfloat16, so that only the order of the sums may differ; and bands against the whole.
 */
#include "tests/cuda/planned.h"

struct conv_case {
    int64_t h, w, in, out, k, kt;
    enum kr_dtype stored, x, y; /* of the kernel; on the GPU, F32 on the CPU */
    int bias, add;
    int64_t first, rows; /* the band of x that is computed; rows 0: all */
};

/* A case with its numbers, and what each device made of the kernel. */
struct conv_run {
    struct conv_case c;
    float *x, *y, *bias;
    void *kernel;
    struct kr_conv conv[SIDES];
};

static struct kr_tensor convolve(struct kr_device *dev, const void *of)
{
    struct conv_run *r = (struct conv_run *)(uintptr_t)of;
    const struct conv_case *c = &r->c;
    int gpu = dev->compute == KR_BF16;
    struct kr_conv *conv = &r->conv[gpu ? GPU : CPU];
    struct kr_tensor x = with_values(dev, gpu ? c->x : KR_F32, c->h, c->w, c->in, r->x);
    if (c->rows)
        x = kr_slice(x, c->first, c->rows);
    struct kr_tensor y = with_values(dev, gpu ? c->y : KR_F32, x.dim[0], c->w, c->out, r->y);
    if (c->bias)
        conv->bias = with_values(dev, KR_F32, c->out, 0, 0, r->bias);
    if (c->add)
        kr_conv2d_add(dev, y, x, conv);
    else
        kr_conv2d(dev, y, x, conv);
    return y;
}

/* The numbers as the file would have them: exact in bfloat16 and in half precision, too. */
static void *store(const float *x, int64_t n, enum kr_dtype dtype)
{
    char *to = (char *)malloc((size_t)n * 4);
    assert_non_null(to);
    for (int64_t i = 0; i < n; i++) {
        float v = x[i];
        uint32_t u;
        memcpy(&u, &v, sizeof u);
        uint16_t bf16 = (uint16_t)(u >> 16), sign = (uint16_t)(u >> 16 & 0x8000u);
        uint16_t f16 = v == 0 ? sign : (uint16_t)(sign | (((u >> 13) - (112u << 10)) & 0x7fffu));
        if (dtype == KR_F32)
            memcpy(to + 4 * i, &v, 4);
        else
            memcpy(to + 2 * i, dtype == KR_BF16 ? &bf16 : &f16, 2);
    }
    return to;
}

static struct conv_run run_of(struct conv_case c)
{
    struct conv_run r = {};
    int64_t weights = c.out * c.in * c.kt * c.k * c.k;
    float *kernel = numbers(weights, -1, 1);
    r.c = c;
    r.x = numbers(c.h * c.w * c.in, -2, 2);
    r.y = numbers(c.h * c.w * c.out, -2, 2);
    r.bias = numbers(c.out, -1, 1);
    for (int64_t i = 0; i < c.h * c.w * c.in; i++)
        r.x[i] = bf16_of(r.x[i]);
    for (int64_t i = 0; i < weights; i++) /* a multiple of 2^-7, which half precision has, too */
        kernel[i] = rintf(kernel[i] * 128) / 128;
    r.kernel = store(kernel, weights, c.stored);
    free(kernel);
    for (int i = 0; i < SIDES; i++) {
        struct kr_conv conv = {r.kernel, c.stored, c.out, c.in, c.kt, c.k, c.k, {}, NULL, 0, 0};
        r.conv[i] = conv;
    }
    return r;
}

static void run_done(struct devices *d, struct conv_run *r)
{
    for (int i = 0; i < SIDES; i++)
        kr_conv_fini(d->dev[i], &r->conv[i]);
    free(r->x);
    free(r->y);
    free(r->bias);
    free(r->kernel);
}

/* Sums of at most 9 in terms of magnitude 2, each addition rounded to F32: far below 2^-20 of what
 * could add up; then the result is rounded where it is bfloat16. */
static void compare(struct conv_case c, int architecture)
{
    struct devices *d = devices_of(architecture);
    struct conv_run r = run_of(c);
    float *got = run_planned(d->dev[GPU], convolve, &r),
          *want = run_planned(d->dev[CPU], convolve, &r);
    float bound = 2.0f * (float)(c.in * c.k * c.k) * 0x1p-20f + 1e-6f;
    for (int64_t i = 0; i < c.h * c.w * c.out; i++)
        if (!(fabsf(got[i] - want[i]) <= bound + (c.y == KR_BF16 ? fabsf(want[i]) * 0x1p-8f : 0)))
            fail_msg("[%d,%d,%d] to %d, k %d, kt %d, sm_%d: %d is %g, not %g", (int)c.h, (int)c.w,
                     (int)c.in, (int)c.out, (int)c.k, (int)c.kt, architecture, (int)i,
                     (double)got[i], (double)want[i]);
    free(got);
    free(want);
    run_done(d, &r);
}

static void test_shapes(void **state)
{
    (void)state;
    static const struct conv_case cases[] = {
        {9, 16, 16, 16, 1, 1, KR_F32, KR_F32, KR_F32, 1, 0, 0, 0},  /* conv2 */
        {7, 9, 16, 384, 3, 3, KR_BF16, KR_F32, KR_F32, 1, 0, 0, 0}, /* conv_in */
        {11, 13, 96, 96, 3, 3, KR_BF16, KR_BF16, KR_F32, 1, 1, 0, 0},
        {5, 7, 192, 96, 3, 1, KR_F16, KR_BF16, KR_BF16, 1, 0, 0, 0},
        {6, 6, 64, 32, 1, 3, KR_F32, KR_F32, KR_F32, 0, 0, 0, 0},    /* a shortcut */
        {12, 10, 96, 3, 3, 3, KR_BF16, KR_BF16, KR_F32, 1, 0, 0, 0}, /* conv_out */
        {1, 1, 8, 5, 3, 1, KR_F32, KR_BF16, KR_F32, 0, 1, 0, 0},
        {3, 50, 7, 19, 3, 1, KR_F16, KR_F32, KR_BF16, 1, 0, 0, 0},
        {50, 3, 3, 97, 3, 2, KR_F32, KR_BF16, KR_F32, 1, 1, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        compare(cases[i], i < 5 ? 86 : 90);
}

static void test_random_shapes(void **state)
{
    (void)state;
    static const int architectures[] = {80, 86, 89, 90, 100, 120};
    static const enum kr_dtype stored[] = {KR_F32, KR_BF16, KR_F16};
    numbers_seed(7);
    for (int i = 0; i < 12; i++) {
        struct conv_case c = {};
        c.h = 1 + number_below(20);
        c.w = 1 + number_below(20);
        c.in = 1 + number_below(70);
        c.out = 1 + number_below(110);
        c.k = number_below(3) ? 3 : 1;
        c.kt = 1 + number_below(3);
        c.stored = stored[i % 3];
        c.x = number_below(2) ? KR_BF16 : KR_F32;
        c.add = (int)number_below(2);
        c.y = c.add || number_below(2) ? KR_F32 : KR_BF16;
        c.bias = (int)number_below(2);
        compare(c, architectures[i / 2]);
    }
}

/* The rows of a band, but for the one at a cut, where neighbours are missing, are the whole's to
 * the bit, wherever the band begins. */
static void test_bands(void **state)
{
    (void)state;
    struct devices *d = devices_of(90);
    struct conv_case c = {21, 17, 40, 33, 3, 1, KR_F32, KR_BF16, KR_F32, 1, 0, 0, 0};
    struct conv_run r = run_of(c);
    int64_t row = c.w * c.out;
    float *whole = run_planned(d->dev[GPU], convolve, &r);
    for (r.c.first = 0; r.c.first + 6 <= c.h; r.c.first += 5) {
        r.c.rows = r.c.first == 15 ? 6 : 5;
        float *band = run_planned(d->dev[GPU], convolve, &r);
        int64_t from = r.c.first > 0, to = r.c.first + r.c.rows < c.h ? r.c.rows - 1 : r.c.rows;
        assert_memory_equal(band + from * row, whole + (r.c.first + from) * row,
                            (size_t)((to - from) * row) * sizeof *band);
        free(band);
    }
    free(whole);
    run_done(d, &r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_random_shapes),
        cmocka_unit_test(test_bands),
    };
    return cmocka_run_group_tests(tests, NULL, close_devices);
}
