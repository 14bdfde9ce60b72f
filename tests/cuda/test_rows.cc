/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations on rows, elements and pictures on the emulated GPU against the CPU's: random shapes,
 * among them single rows and elements, rows that no vector divides, and columns that lie askew.
 */
#include "tests/cuda/devices.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct kr_tensor none = {};
static const size_t job = (size_t)8 << 20;

static struct devices open_devices(int architecture, uint64_t seed)
{
    struct emu_options options = {};
    options.architecture = architecture;
    options.memory = (size_t)128 << 20;
    options.seed = seed;
    numbers_seed(seed);
    return devices_open(&options, job);
}

static enum kr_dtype any_type(void)
{
    return number_below(2) ? KR_BF16 : KR_F32;
}

/* Widths that are a warp's and a block's, and that vectors divide, or nothing does. */
static int64_t any_width(void)
{
    static const int64_t widths[] = {1, 3, 8, 40, 96, 129, 256, 384, 1023, 1032, 1536, 2561};
    return widths[number_below(sizeof widths / sizeof *widths)];
}

#define EACH_SIDE(...)                                                                             \
    for (int s = 0; s < SIDES; s++) {                                                              \
        struct kr_device *dev = d.dev[s];                                                          \
        (void)dev;                                                                                 \
        __VA_ARGS__;                                                                               \
    }

/* Releases what a case took. */
static void next_case(const struct devices *d)
{
    for (int s = 0; s < SIDES; s++) {
        assert_string_equal(kr_device_fault_text(d->dev[s]), "");
        kr_arena_release(d->dev[s], (struct kr_mark){0});
    }
}

/* ----------------------------------------------------------------------------- norms ------ */

static void norm_case(struct devices d, enum kr_dtype to, int64_t rows, int64_t cols, int modulate,
                      enum kr_act act)
{
    struct both x = both_filled(&d, any_type(), rows, cols, 0, -3, 3);
    struct both out = to == KR_F8_E4M3 || number_below(3) ? both_new(&d, to, rows, cols, 0) : x;
    struct both w = both_filled(&d, KR_F32, cols, 0, 0, 0.5f, 2);
    struct both scale = both_filled(&d, KR_F32, cols, 0, 0, -0.5f, 1);
    struct both shift = both_filled(&d, KR_F32, cols, 0, 0, -1, 1);
    struct both also = {};
    if (modulate && number_below(2))
        also = both_new(&d, any_type(), rows, cols, 0);
    int64_t before = devices_cuda(&d)->launches;
    EACH_SIDE({
        if (modulate)
            kr_rms_norm_modulate(dev, out.at[s], also.at[s], x.at[s], w.at[s], 1e-5f, scale.at[s],
                                 shift.at[s]);
        else
            kr_rms_norm(dev, out.at[s], x.at[s], w.at[s], 1e-5f, act);
    });
    assert_int_equal(devices_cuda(&d)->launches, before + 1);
    if (to == KR_F8_E4M3)
        both_near_quantized(&d, out);
    else
        both_near(&d, out, step_of(out.at[GPU].dtype), 4e-6f);
    if (also.at[GPU].data)
        both_near(&d, also, step_of(also.at[GPU].dtype), 4e-6f);
    next_case(&d);
}

static void test_norms(void **)
{
    struct devices d = open_devices(80, 1);
    for (int i = 0; i < 24; i++)
        norm_case(d, any_type(), 1 + number_below(9), any_width(), i % 2,
                  (enum kr_act)number_below(3));
    norm_case(d, KR_BF16, 3, 6144, 1, KR_ACT_NONE);
    norm_case(d, KR_BF16, 300, 96, 0, KR_ACT_SILU);
    devices_close(&d);
}

static void test_norms_that_quantize(void **)
{
    struct devices d = open_devices(90, 2);
    for (int i = 0; i < 12; i++)
        norm_case(d, KR_F8_E4M3, 1 + number_below(9), any_width(), i % 2, KR_ACT_NONE);
    devices_close(&d);
}

/* One of a row's numbers is large, all are zero, or all so small that their inverse is none. */
static void test_rows_without_a_factor(void **)
{
    struct devices d = open_devices(90, 3);
    float host[4 * 48] = {0};
    struct both x = both_new(&d, KR_F32, 4, 48, 0), out = both_new(&d, KR_F8_E4M3, 4, 48, 0);
    host[0] = 3e38f;
    host[48 + 47] = -448;
    for (int i = 0; i < 48; i++)
        host[2 * 48 + i] = 1e-42f * (float)i;
    EACH_SIDE(kr_upload(dev, x.at[s], host));
    cuda_quantize_rows(devices_cuda(&d), out.at[GPU], x.at[GPU]);
    kr_copy(d.dev[CPU], out.at[CPU], x.at[CPU]);
    both_near_quantized(&d, out);
    devices_close(&d);
}

static struct kr_rope rope_on(const struct both *cos, const struct both *sin, int side,
                              enum kr_rope_pairs pairs)
{
    struct kr_rope rope = {cos->at[side], sin->at[side], pairs};
    return rope;
}

static void heads_case(struct devices d, enum kr_dtype type, int64_t head, int rotate,
                       int64_t offset)
{
    enum { HEADS = 3, KV = 2 };
    int64_t batch = 1 + number_below(2), n = 1 + number_below(5), wide = (HEADS + KV) * head;
    struct both all = both_filled(&d, type, batch, n, offset + wide, -2, 2);
    struct both q = both_columns(all, offset, HEADS * head);
    struct both k = both_columns(all, offset + HEADS * head, KV * head);
    struct both wq = both_filled(&d, KR_F32, head, 0, 0, 0.5f, 1.5f);
    struct both wk = both_filled(&d, KR_F32, head, 0, 0, 0.5f, 1.5f);
    struct both cos = {}, sin = {};
    enum kr_rope_pairs pairs = number_below(2) ? KR_ROPE_HALVES : KR_ROPE_INTERLEAVED;
    if (rotate) {
        cos = both_filled(&d, KR_F32, n, head / 2, 0, -1, 1);
        sin = both_filled(&d, KR_F32, n, head / 2, 0, -1, 1);
    }
    int64_t before = devices_cuda(&d)->launches;
    EACH_SIDE({
        struct kr_qk qk = {q.at[s], k.at[s], wq.at[s], wk.at[s]};
        struct kr_rope rope = rope_on(&cos, &sin, s, pairs);
        kr_qk_norm_rope(dev, &qk, 1e-6f, rotate ? &rope : NULL);
    });
    assert_int_equal(devices_cuda(&d)->launches, before + 1);
    both_near(&d, all, step_of(type), 8e-6f);
    next_case(&d);
}

static void test_heads(void **)
{
    struct devices d = open_devices(80, 4);
    static const int64_t heads[] = {2, 6, 32, 64, 120, 128, 200};
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        for (int askew = 0; askew < 2; askew++) {
            heads_case(d, KR_BF16, heads[i], 1, askew ? 3 : 8);
            heads_case(d, KR_F32, heads[i], 1, askew ? 1 : 0);
        }
    heads_case(d, KR_BF16, 7, 0, 0);
    heads_case(d, KR_BF16, 64, 0, 16);
    heads_case(d, KR_F32, 33, 0, 5);
    devices_close(&d);
}

/* ------------------------------------------------------------------------- pointwise ------ */

enum pointwise {
    COPY,
    SWIGLU,
    SIGMOID,
    GELU,
    ADD,
    ADD_SCALED,
    GUIDE,
    SCALE_ROWS,
    SCALE_SHIFT,
    POINTWISE
};

static void run_pointwise(struct kr_device *dev, enum pointwise op, struct kr_tensor out,
                          struct kr_tensor a, struct kr_tensor b, struct kr_tensor v,
                          struct kr_tensor w, struct kr_tensor r)
{
    if (op == COPY)
        kr_copy(dev, out, a);
    else if (op == SWIGLU)
        kr_swiglu(dev, out, a, b);
    else if (op == SIGMOID)
        kr_mul_sigmoid(dev, out, a, b);
    else if (op == GELU)
        kr_gelu_tanh(dev, out, a);
    else if (op == ADD)
        kr_add(dev, out, a, b);
    else if (op == ADD_SCALED)
        kr_add_scaled(dev, a, 0.75f, b);
    else if (op == GUIDE)
        kr_guide(dev, a, b, 3.5f);
    else if (op == SCALE_ROWS)
        kr_scale_rows(dev, a, r);
    else
        kr_scale_shift(dev, out, a, v, w);
}

static void pointwise_case(struct devices d, enum pointwise op, int64_t rows, int64_t cols)
{
    enum kr_dtype type = op == GUIDE ? KR_F32 : any_type();
    struct both a = both_filled(&d, type, rows, cols, 0, -6, 6);
    struct both b = both_filled(&d, op == GUIDE ? KR_F32 : any_type(), rows, cols, 0, -6, 6);
    struct both v = both_filled(&d, KR_F32, cols, 0, 0, -2, 2);
    struct both w = both_filled(&d, KR_F32, cols, 0, 0, -2, 2);
    struct both r = both_filled(&d, KR_F32, rows, 0, 0, -2, 2);
    int in_place =
        op == ADD_SCALED || op == GUIDE || op == SCALE_ROWS || (op != COPY && number_below(3) == 0);
    struct both out = in_place ? a : both_new(&d, any_type(), rows, cols, 0);
    int64_t before = devices_cuda(&d)->launches;
    EACH_SIDE(run_pointwise(dev, op, out.at[s], a.at[s], b.at[s], v.at[s], w.at[s], r.at[s]));
    assert_int_equal(devices_cuda(&d)->launches, before + 1);
    both_near(&d, out, step_of(out.at[GPU].dtype), 1e-5f);
    next_case(&d);
}

static void test_pointwise(void **)
{
    struct devices d = open_devices(80, 5);
    for (int op = 0; op < POINTWISE; op++)
        for (int i = 0; i < 8; i++)
            pointwise_case(d, (enum pointwise)op, 1 + number_below(7), any_width());
    devices_close(&d);
}

/* gate | up side by side, as a product leaves them. */
static void columns_case(struct devices d, enum pointwise op, enum kr_dtype to, int64_t rows,
                         int64_t cols, int64_t offset)
{
    struct both all = both_filled(&d, any_type(), rows, offset + 2 * cols, 0, -6, 6);
    struct both a = both_columns(all, offset, cols);
    struct both b = both_columns(all, offset + cols, cols);
    struct both out = both_new(&d, to, rows, cols, 0);
    EACH_SIDE(run_pointwise(dev, op, out.at[s], a.at[s], b.at[s], none, none, none));
    if (to == KR_F8_E4M3)
        both_near_quantized(&d, out);
    else
        both_near(&d, out, step_of(to), 1e-5f);
    next_case(&d);
}

static void test_gates_of_columns(void **)
{
    struct devices d = open_devices(90, 6);
    static const enum kr_dtype types[] = {KR_F32, KR_BF16, KR_F8_E4M3};
    for (int i = 0; i < 18; i++)
        columns_case(d, i % 2 ? SWIGLU : SIGMOID, types[i % 3], 1 + number_below(6), any_width(),
                     number_below(2) ? 8 : 5);
    columns_case(d, SWIGLU, KR_F8_E4M3, 2, 16384, 0);
    devices_close(&d);
}

static void test_sum_that_repeats(void **)
{
    struct devices d = open_devices(80, 7);
    for (int i = 0; i < 8; i++) {
        int64_t cols = any_width(), times = 1 + number_below(6);
        struct both a = both_filled(&d, any_type(), times * 2, cols, 0, -1, 1);
        struct both b = both_filled(&d, any_type(), 2, cols, 0, -1, 1);
        EACH_SIDE(kr_add(dev, a.at[s], a.at[s], b.at[s]));
        both_near(&d, a, step_of(a.at[GPU].dtype), 1e-6f);
        next_case(&d);
    }
    devices_close(&d);
}

/* What is left to do after a product, written out. */
static void finish_case(struct devices d, int64_t rows, int64_t cols, int offset, int add)
{
    struct both all = both_filled(&d, any_type(), rows, cols + offset, 0, -4, 4);
    struct both bias = both_filled(&d, KR_F32, cols, 0, 0, -1, 1);
    struct both gate = both_filled(&d, KR_F32, cols, 0, 0, -1, 1);
    struct both row = both_filled(&d, KR_F32, rows, 0, 0, 0.1f, 2);
    struct both y = both_filled(&d, KR_F32, rows, cols, 0, -1, 1);
    float *p = floats_of(d.dev[CPU], all.at[CPU]), *b = floats_of(d.dev[CPU], bias.at[CPU]),
          *g = floats_of(d.dev[CPU], gate.at[CPU]), *r = floats_of(d.dev[CPU], row.at[CPU]),
          *sum = floats_of(d.dev[CPU], y.at[CPU]);
    struct cuda_finish f = {kr_columns(all.at[GPU], offset, cols),
                            0.5f,
                            number_below(2) ? (const float *)row.at[GPU].data : NULL,
                            number_below(2) ? (const float *)bias.at[GPU].data : NULL,
                            add && number_below(2) ? (const float *)gate.at[GPU].data : NULL,
                            KR_ACT_NONE};
    if (add)
        cuda_finish_add(devices_cuda(&d), y.at[GPU], &f);
    else
        cuda_finish(devices_cuda(&d), y.at[GPU], &f);
    for (int64_t i = 0; i < rows * cols; i++) {
        float v = p[i / cols * (cols + offset) + offset + i % cols] * 0.5f;
        v = v * (f.row ? r[i / cols] : 1) + (f.bias ? b[i % cols] : 0);
        sum[i] = add ? sum[i] + v * (f.gate ? g[i % cols] : 1) : v;
    }
    kr_upload(d.dev[CPU], y.at[CPU], sum);
    both_near(&d, y, 4e-6f, 4e-6f);
    free(p), free(b), free(g), free(r), free(sum);
    next_case(&d);
}

static void test_what_follows_a_product(void **)
{
    struct devices d = open_devices(80, 8);
    for (int i = 0; i < 12; i++)
        finish_case(d, 1 + number_below(6), any_width(), i % 3 ? 8 : 3, i % 2);
    devices_close(&d);
}

/* ---------------------------------------------------------------------------- others ------ */

static void test_taps(void **)
{
    struct devices d = open_devices(80, 9);
    for (int i = 0; i < 6; i++) {
        int64_t n = 1 + number_below(5), taps = 1 + number_below(12), cols = any_width();
        struct both x = both_filled(&d, any_type(), n, taps, cols, -1, 1);
        struct both out = both_new(&d, any_type(), n, cols, 0);
        struct both w = both_filled(&d, KR_F32, taps, 0, 0, -1, 1);
        EACH_SIDE(kr_mix_taps(dev, out.at[s], x.at[s], w.at[s]));
        both_near(&d, out, step_of(out.at[GPU].dtype), 4e-6f);
        next_case(&d);
    }
    devices_close(&d);
}

static void test_waves_are_the_same_to_the_bit(void **)
{
    struct devices d = open_devices(80, 10);
    struct both out = both_new(&d, KR_F32, 1, 254, 0);
    EACH_SIDE(kr_timestep(dev, out.at[s], 987.654f, 10000));
    both_near(&d, out, 0, 0);
    devices_close(&d);
}

static void test_moves_are_the_same_to_the_bit(void **)
{
    struct devices d = open_devices(80, 11);
    for (int i = 0; i < 6; i++) {
        int64_t c = 1 + number_below(20), h = 2 * (1 + number_below(5)),
                w = 2 + 2 * number_below(6);
        struct both z = both_filled(&d, KR_F32, c, h, w, -1, 1);
        struct both z2 = both_new(&d, KR_F32, c, h, w);
        struct both tokens = both_new(&d, any_type(), h / 2 * (w / 2), c * 4, 0);
        struct both pixels = both_new(&d, any_type(), h, w, c);
        struct both planes = both_new(&d, any_type(), c, h, w);
        struct both large = both_new(&d, any_type(), 2 * h, 2 * w, c);
        EACH_SIDE({
            kr_patchify(dev, tokens.at[s], z.at[s]);
            kr_unpatchify(dev, z2.at[s], tokens.at[s]);
            kr_planes_to_pixels(dev, pixels.at[s], z.at[s]);
            kr_pixels_to_planes(dev, planes.at[s], pixels.at[s]);
            kr_upsample2(dev, large.at[s], pixels.at[s]);
        });
        both_near(&d, tokens, 0, 0);
        both_near(&d, z2, 0, 0);
        both_near(&d, pixels, 0, 0);
        both_near(&d, planes, 0, 0);
        both_near(&d, large, 0, 0);
        next_case(&d);
    }
    devices_close(&d);
}

static void test_upsampling_whole_vectors(void **)
{
    struct devices d = open_devices(80, 12);
    struct both x = both_filled(&d, KR_F32, 3, 5, 96, -1, 1);
    struct both out = both_new(&d, KR_BF16, 6, 10, 96);
    EACH_SIDE(kr_upsample2(dev, out.at[s], x.at[s]));
    both_near(&d, out, 0, 0);
    devices_close(&d);
}

/* Every code of each type, from an address that is a multiple of nothing. */
static void test_embedding(void **)
{
    struct devices d = open_devices(80, 13);
    enum { VOCABULARY = 64, WIDTH = 40, TOKENS = 9 };
    static const enum kr_dtype types[] = {KR_F32, KR_BF16, KR_F16, KR_F8_E4M3, KR_F8_E5M2};
    char *bytes = (char *)malloc(VOCABULARY * WIDTH * 4 + 1);
    int32_t ids[TOKENS];
    assert_non_null(bytes);
    for (int i = 0; i < TOKENS; i++)
        ids[i] = (int32_t)number_below(VOCABULARY);
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        struct kr_weight w = {};
        for (int i = 0; i < VOCABULARY * WIDTH * 4; i++)
            bytes[i + 1] = (char)number_below(types[t] == KR_F32 ? 64 : 256);
        w.data = bytes + 1;
        w.dtype = types[t];
        w.out = VOCABULARY;
        w.in = WIDTH;
        w.scale = 0.5f;
        for (int to = 0; to < 2; to++) {
            struct both out = both_new(&d, to ? KR_BF16 : KR_F32, TOKENS, WIDTH, 0);
            EACH_SIDE(kr_embed(dev, out.at[s], &w, ids, TOKENS));
            both_near(&d, out, 0, 0);
            next_case(&d);
        }
    }
    free(bytes);
    devices_close(&d);
}

/* ---------------------------------------------------------------- finding what is bad ------ */

static void spoil(struct kr_device *dev, struct kr_tensor t, int64_t at, float with)
{
    float *host = floats_of(dev, t);
    host[at] = with;
    kr_upload(dev, t, host);
    free(host);
}

static void test_the_first_bad_tensor_is_named(void **)
{
    struct devices d = open_devices(80, 14);
    struct kr_device *dev = d.dev[GPU];
    char why[100];
    for (int i = 0; i < 4; i++) {
        struct both good = both_filled(&d, any_type(), 1 + number_below(3000), 0, 0, -9, 9);
        struct both bad = both_filled(&d, any_type(), 1 + number_below(3000), 0, 0, -9, 9);
        spoil(dev, bad.at[GPU], number_below(kr_count(&bad.at[GPU])), i % 2 ? NAN : -INFINITY);
        kr_check_finite(dev, good.at[GPU], "good");
        kr_check_finite(dev, bad.at[GPU], "the first");
        kr_check_finite(dev, bad.at[GPU], "the second");
        assert_int_equal(kr_device_sync(dev), KR_FAULT_NOT_FINITE);
        assert_string_equal(kr_device_fault_text(dev), "the first has NaN or infinity");
        assert_int_equal(kr_job_begin(dev, NULL, job, why, sizeof why), 0);
        assert_int_equal(kr_device_sync(dev), KR_FINE);
        kr_arena_release(d.dev[CPU], (struct kr_mark){0});
    }
    devices_close(&d);
}

/* A job that ends between the check and the wait leaves nothing to the next one; more checks than
 * there is room for are no fault; a large finite number is none. */
static void test_checks_end_with_the_job(void **)
{
    struct devices d = open_devices(80, 15);
    struct kr_device *dev = d.dev[GPU];
    char why[100];
    struct both t = both_filled(&d, KR_F32, 100, 0, 0, 1e38f, 3e38f);
    for (int i = 0; i < 3 * CUDA_CHECKS / 2; i++)
        kr_check_finite(dev, t.at[GPU], "large");
    assert_int_equal(kr_device_sync(dev), KR_FINE);
    spoil(dev, t.at[GPU], 99, NAN);
    kr_check_finite(dev, t.at[GPU], "bad");
    assert_int_equal(kr_job_begin(dev, NULL, job, why, sizeof why), 0);
    t.at[GPU] = kr_new(dev, KR_F32, 100, 0, 0, 0);
    float zeros[100] = {0};
    kr_upload(dev, t.at[GPU], zeros);
    kr_check_finite(dev, t.at[GPU], "good");
    assert_int_equal(kr_device_sync(dev), KR_FINE);
    devices_close(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_norms),
        cmocka_unit_test(test_norms_that_quantize),
        cmocka_unit_test(test_rows_without_a_factor),
        cmocka_unit_test(test_heads),
        cmocka_unit_test(test_pointwise),
        cmocka_unit_test(test_gates_of_columns),
        cmocka_unit_test(test_sum_that_repeats),
        cmocka_unit_test(test_what_follows_a_product),
        cmocka_unit_test(test_taps),
        cmocka_unit_test(test_waves_are_the_same_to_the_bit),
        cmocka_unit_test(test_moves_are_the_same_to_the_bit),
        cmocka_unit_test(test_upsampling_whole_vectors),
        cmocka_unit_test(test_embedding),
        cmocka_unit_test(test_the_first_bad_tensor_is_named),
        cmocka_unit_test(test_checks_end_with_the_job),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
