/* SPDX-License-Identifier: Apache-2.0
 *
 * The device itself: planning against what is really used, marks, the sticky fault, cancelling,
 * misuse of every operation, memory that is not there, persistent vectors, element types.
 */
#include "tests/kernels/harness.h"

#include <pthread.h>
#include <unistd.h>

static struct kr_device *open_device(int threads)
{
    struct kr_device_options options = {.threads = threads};
    char why[200];
    struct kr_device *dev = kr_device_open_cpu(&options, why, sizeof why);
    if (!dev)
        fail_msg("%s", why);
    return dev;
}

static void begin(struct kr_device *dev, const atomic_int *cancel, size_t bytes)
{
    char why[200];
    if (kr_job_begin(dev, cancel, bytes, why, sizeof why))
        fail_msg("%s", why);
}

/* ---------------------------------------------------------------------------- planning ------ */

/* Weights for the little model below; one convolution. */
struct model {
    unsigned char bytes[256 * 64];
    struct kr_weight w, back;
    struct kr_conv conv;
    struct kr_tensor norm;
};

static void model_init(struct model *m, struct kr_device *dev)
{
    float ones[256];
    for (int i = 0; i < 256; i++)
        ones[i] = 1;
    memset(m->bytes, 0x30, sizeof m->bytes); /* 0.5 in E4M3 */
    m->w = (struct kr_weight){
        .data = m->bytes, .dtype = KR_F8_E4M3, .out = 256, .in = 64, .scale = 0.1f};
    m->back = (struct kr_weight){
        .data = m->bytes, .dtype = KR_F8_E4M3, .out = 64, .in = 256, .scale = 0.1f};
    m->conv = (struct kr_conv){
        .data = m->bytes, .dtype = KR_BF16, .out = 16, .in = 16, .kt = 1, .kh = 3, .kw = 3};
    m->norm = kr_persist(dev, ones, 64, 0);
    assert_non_null(m->norm.data);
}

/* A forward with every kind of scratch. Returns one number of its result. */
static float forward(struct model *m, struct kr_device *dev, int64_t n)
{
    float out[16], *host = random_floats((size_t)(n * 64));
    struct kr_tensor none = {0}, x = kr_new(dev, KR_F32, n, 64, 0, 0);
    struct kr_tensor y = kr_new(dev, KR_F32, n, 64, 0, 0);
    kr_upload(dev, x, host);
    kr_copy(dev, y, x);
    for (int i = 0; i < 3; i++) {
        struct kr_mark mark = kr_arena_mark(dev);
        struct kr_tensor h = kr_new(dev, KR_BF16, n, 64, 0, 0),
                         wide = kr_new(dev, KR_F32, n, 256, 0, 0);
        kr_rms_norm(dev, h, y, m->norm, 1e-6f, KR_ACT_NONE);
        kr_linear(dev, wide, h, &m->w, KR_ACT_SILU);
        kr_linear_add(dev, y, none, wide, &m->back);
        struct kr_tensor a = kr_new(dev, KR_F32, n, 64, 0, 0);
        kr_attention(dev, a, &(struct kr_attention){y, x, x, 4, 4, KR_MASK_CAUSAL, {0}});
        kr_arena_release(dev, mark);
    }
    struct kr_tensor picture = kr_reshape(y, n, 4, 16, 0);
    struct kr_tensor z = kr_new(dev, KR_F32, n, 4, 16, 0);
    kr_conv2d(dev, z, picture, &m->conv);
    struct kr_tensor one = kr_reshape(kr_slice(z, n - 1, 1), 64, 0, 0, 0);
    memset(out, 0, sizeof out);
    if (kr_download(dev, kr_slice(one, 0, 16), out) && !kr_device_fault_text(dev)[0])
        fail();
    free(host);
    return out[0];
}

static void test_planning_equals_the_peak(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 3; threads++) {
        struct kr_device *dev = open_device(threads);
        struct model m;
        model_init(&m, dev);
        for (int64_t n = 1; n < 700; n = n * 3 + 1) {
            kr_plan_begin(dev);
            assert_true(kr_planning(dev));
            assert_true(forward(&m, dev, n) == 0);
            assert_int_equal(kr_device_sync(dev), KR_FINE);
            size_t bytes = kr_plan_end(dev);
            assert_false(kr_planning(dev));
            assert_true(bytes > (size_t)n * 64 * 8);
            begin(dev, NULL, bytes);
            assert_true(forward(&m, dev, n) != 0);
            assert_int_equal(kr_device_sync(dev), KR_FINE);
            assert_int_equal(kr_job_peak(dev), bytes);
            kr_job_end(dev);
            begin(dev, NULL, bytes - 64); /* a little less does not do */
            forward(&m, dev, n);
            assert_int_equal(kr_device_sync(dev), KR_FAULT_NO_MEMORY);
            assert_non_null(strstr(kr_device_fault_text(dev), "out of memory"));
            kr_job_end(dev);
        }
        kr_conv_fini(dev, &m.conv);
        kr_persist_free(dev, &m.norm);
        assert_null(m.norm.data);
        kr_device_close(dev);
    }
}

/* Planning may happen between jobs and within one, and leaves that as it was. */
static void test_planning_leaves_the_job_alone(void **state)
{
    struct kr_device *dev = open_device(1);
    const float x[] = {1, 2, 3};
    float back[3];
    (void)state;
    begin(dev, NULL, 4096);
    struct kr_tensor t = tensor_of(dev, KR_F32, x, 3, 0, 0);
    kr_plan_begin(dev);
    kr_new(dev, KR_F32, 1000, 1000, 1000, 0);
    kr_check_finite(dev, t, "t");
    assert_true(kr_plan_end(dev) >= 4000000000u);
    assert_int_equal(kr_download(dev, t, back), 0);
    assert_memory_equal(x, back, sizeof x);
    kr_device_close(dev);
}

/* ----------------------------------------------------------------------- arena, memory ------ */

static void test_marks(void **state)
{
    struct kr_device *dev = open_device(1);
    (void)state;
    begin(dev, NULL, 1 << 16);
    struct kr_tensor a = kr_new(dev, KR_BF16, 3, 5, 0, 0);
    struct kr_mark mark = kr_arena_mark(dev);
    struct kr_tensor b = kr_new(dev, KR_F32, 7, 1, 2, 3);
    assert_int_equal((uintptr_t)a.data % 64, 0);
    assert_int_equal((uintptr_t)b.data % 64, 0);
    assert_true((char *)b.data >= (char *)a.data + 30);
    assert_int_equal(b.rank, 4);
    assert_int_equal(kr_count(&b), 42);
    assert_int_equal(kr_rows(&b), 14);
    assert_int_equal(kr_cols(&b), 3);
    kr_arena_release(dev, mark);
    struct kr_tensor c = kr_new(dev, KR_F32, 1, 0, 0, 0);
    assert_ptr_equal(c.data, b.data);
    assert_true(kr_job_peak(dev) >= 64 + 192);
    struct kr_tensor s = kr_slice(kr_reshape(b, 14, 3, 0, 0), 2, 5);
    assert_ptr_equal(s.data, (char *)b.data + 2 * 3 * 4);
    assert_int_equal(s.dim[0], 5);
    kr_device_close(dev);
}

static void test_no_memory(void **state)
{
    struct kr_device *dev = open_device(1);
    float one = 1;
    char why[200] = "";
    (void)state;
    begin(dev, NULL, 4096);
    struct kr_tensor t = kr_new(dev, KR_F32, 100000, 0, 0, 0);
    assert_int_equal(t.rank, 1);
    assert_int_equal(t.dim[0], 100000);
    assert_int_equal(kr_device_sync(dev), KR_FAULT_NO_MEMORY);
    assert_non_null(strstr(kr_device_fault_text(dev), "400000"));
    assert_int_equal(kr_download(dev, t, &one), -1);
    begin(dev, NULL, 4096); /* the next job starts clean */
    assert_int_equal(kr_device_sync(dev), KR_FINE);
    assert_string_equal(kr_device_fault_text(dev), "");
    kr_new(dev, KR_F32, INT64_MAX / 2, 9, 9, 9);
    assert_int_equal(kr_device_sync(dev), KR_FAULT_NO_MEMORY);
    assert_int_equal(kr_job_begin(dev, NULL, (size_t)1 << 60, why, sizeof why), -1);
    assert_non_null(strstr(why, "MiB"));
    assert_true(kr_device_free_memory(dev) > 1 << 20);
    kr_device_close(dev);
    kr_device_close(NULL);
}

/* -------------------------------------------------------------------------- cancelling ------ */

static void test_cancelled_before(void **state)
{
    struct kr_device *dev = open_device(2);
    atomic_int cancel = 0;
    const float x[] = {1, 2, 3};
    float back[3] = {7, 7, 7};
    (void)state;
    begin(dev, &cancel, 4096);
    struct kr_tensor t = tensor_of(dev, KR_F32, x, 3, 0, 0);
    atomic_store(&cancel, 1);
    kr_add(dev, t, t, t);
    assert_int_equal(kr_download(dev, t, back), -1);
    assert_true(back[0] == 7);
    assert_int_equal(kr_device_sync(dev), KR_FAULT_CANCELLED);
    atomic_store(&cancel, 0);
    assert_int_equal(kr_device_sync(dev), KR_FAULT_CANCELLED); /* sticky */
    begin(dev, &cancel, 4096);
    assert_int_equal(kr_device_sync(dev), KR_FINE);
    kr_device_close(dev);
}

static void *cancel_soon(void *flag)
{
    usleep(30000);
    atomic_store((atomic_int *)flag, 1);
    return NULL;
}

/* A product of seconds stops within its panels. */
static void test_cancelled_within(void **state)
{
    enum { N = 4096, K = 8192, OUT = 8192 };
    struct kr_device *dev = open_device(2);
    atomic_int cancel = 0;
    pthread_t thread;
    struct kr_weight w = {
        .data = calloc(OUT, K), .dtype = KR_F8_E4M3, .out = OUT, .in = K, .scale = 1};
    (void)state;
    assert_non_null(w.data);
    begin(dev, &cancel, (size_t)400 << 20);
    struct kr_tensor x = kr_new(dev, KR_BF16, N, K, 0, 0), y = kr_new(dev, KR_F32, N, OUT, 0, 0);
    assert_int_equal(pthread_create(&thread, NULL, cancel_soon, &cancel), 0);
    for (int i = 0; i < 100; i++)
        kr_linear(dev, y, x, &w, KR_ACT_NONE);
    assert_int_equal(kr_device_sync(dev), KR_FAULT_CANCELLED);
    pthread_join(thread, NULL);
    free((void *)(uintptr_t)w.data);
    kr_device_close(dev);
}

/* ------------------------------------------------------------------------------ misuse ------ */

/* What the cases below are made of. */
struct set {
    struct kr_device *dev;
    unsigned char bytes[6 * 4 * 9 * 4];
    struct kr_weight w;                        /* [6,4] */
    struct kr_conv c;                          /* 4 to 6 channels, 3 x 3 */
    struct kr_tensor none, x, y, h, v3, v4, p; /* [2,4], [2,6], BF16 [2,4], [3], [4], [4,5,4] */
    struct kr_rope rope;                       /* of 3 positions and heads of 4 */
};

static struct kr_tensor f32(struct set *s, int64_t d0, int64_t d1, int64_t d2)
{
    return kr_new(s->dev, KR_F32, d0, d1, d2, 0);
}

static void set_init(struct set *s, struct kr_device *dev)
{
    *s = (struct set){.dev = dev};
    s->w = (struct kr_weight){.data = s->bytes, .dtype = KR_F8_E4M3, .out = 6, .in = 4, .scale = 1};
    s->c = (struct kr_conv){
        .data = s->bytes, .dtype = KR_F32, .out = 6, .in = 4, .kt = 1, .kh = 3, .kw = 3};
    s->x = f32(s, 2, 4, 0);
    s->y = f32(s, 2, 6, 0);
    s->h = kr_new(dev, KR_BF16, 2, 4, 0, 0);
    s->v3 = f32(s, 3, 0, 0);
    s->v4 = f32(s, 4, 0, 0);
    s->p = f32(s, 4, 5, 4);
    s->rope = (struct kr_rope){f32(s, 3, 2, 0), f32(s, 3, 2, 0), KR_ROPE_HALVES};
}

/* Each is wrong in one way. */
#define WRONG(name, ...)                                                                           \
    static void name(struct set *s)                                                                \
    {                                                                                              \
        __VA_ARGS__;                                                                               \
    }
static const int32_t outside[] = {0, 6}; /* of 0..5 */
WRONG(linear_shape, kr_linear(s->dev, s->x, s->x, &s->w, KR_ACT_NONE))
WRONG(linear_scale, s->w.scale = NAN; kr_linear(s->dev, s->y, s->x, &s->w, KR_ACT_NONE))
WRONG(linear_type, s->w.dtype = KR_I8; kr_linear(s->dev, s->y, s->x, &s->w, KR_ACT_NONE))
WRONG(linear_bias, s->w.bias = s->v4; kr_linear(s->dev, s->y, s->x, &s->w, KR_ACT_NONE))
WRONG(linear_gate, kr_linear_add(s->dev, s->y, s->v4, s->x, &s->w))
WRONG(gate_and_bias, s->w.bias = f32(s, 6, 0, 0);
      kr_linear_add(s->dev, s->y, f32(s, 6, 0, 0), s->x, &s->w))
WRONG(linear_add_type, s->w.out = 4; kr_linear_add(s->dev, s->h, s->none, s->x, &s->w))
WRONG(embed_shape, kr_embed(s->dev, s->y, &s->w, outside, 2))
WRONG(embed_id, kr_embed(s->dev, s->x, &s->w, outside, 2))
WRONG(norm_weight, kr_rms_norm(s->dev, s->x, s->x, s->v3, 0, KR_ACT_NONE))
WRONG(norm_shape, kr_rms_norm(s->dev, s->y, s->x, s->v4, 0, KR_ACT_NONE))
WRONG(norm_shift, kr_rms_norm_modulate(s->dev, s->x, s->none, s->x, s->v4, 0, s->v4, s->v3))
WRONG(norm_also, kr_rms_norm_modulate(s->dev, s->x, s->y, s->x, s->v4, 0, s->v4, s->v4))
WRONG(scale_rows_length, kr_scale_rows(s->dev, s->x, s->v4))
WRONG(many_bias, const struct kr_weight *const w[] = {&s->w}; s->w.bias = f32(s, 6, 0, 0);
      kr_linear_many(s->dev, s->y, s->x, w, 1))
WRONG(many_cols, const struct kr_weight *const w[] = {&s->w, &s->w};
      kr_linear_many(s->dev, s->y, s->x, w, 2))
WRONG(head_length, struct kr_qk qk = {s->x, f32(s, 3, 4, 0), s->v3, s->v3};
      kr_qk_norm_rope(s->dev, &qk, 0, NULL))
WRONG(head_positions, struct kr_qk qk = {s->x, f32(s, 3, 4, 0), s->v4, s->v4};
      kr_qk_norm_rope(s->dev, &qk, 0, &s->rope))
WRONG(head_overlap, struct kr_qk qk = {s->x, s->x, s->v4, s->v4};
      kr_qk_norm_rope(s->dev, &qk, 0, NULL))
WRONG(attention_heads,
      kr_attention(s->dev, s->h, &(struct kr_attention){s->x, s->x, s->x, 3, 1, KR_MASK_NONE, {0}}))
WRONG(attention_gate,
      kr_attention(s->dev, s->h,
                   &(struct kr_attention){s->x, s->x, s->x, 1, 1, KR_MASK_NONE, s->y}))
WRONG(attention_causal, struct kr_tensor k = kr_reshape(s->y, 3, 4, 0, 0);
      kr_attention(s->dev, s->h, &(struct kr_attention){s->x, k, k, 1, 1, KR_MASK_CAUSAL, {0}}))
WRONG(norm_columns, kr_rms_norm(s->dev, f32(s, 3, 2, 0), kr_columns(s->x, 1, 2),
                                kr_slice(s->v4, 0, 2), 0, KR_ACT_NONE))
WRONG(swiglu_shape, kr_swiglu(s->dev, s->x, s->x, s->y))
WRONG(sigmoid_shape, kr_mul_sigmoid(s->dev, s->x, s->x, s->y))
WRONG(gelu_shape, kr_gelu_tanh(s->dev, s->y, s->x))
WRONG(add_overlap, kr_add(s->dev, kr_slice(s->p, 0, 2), kr_slice(s->p, 1, 2), kr_slice(s->p, 2, 2)))
WRONG(add_scaled_shape, kr_add_scaled(s->dev, s->x, 1, s->y))
WRONG(guide_type, kr_guide(s->dev, s->h, s->h, 1))
WRONG(mix_shape, kr_mix_taps(s->dev, s->x, s->p, s->v4))
WRONG(timestep_odd, kr_timestep(s->dev, s->v3, 1, 1e4f))
WRONG(patchify_shape, kr_patchify(s->dev, s->y, s->p))
WRONG(unpatchify_shape, kr_unpatchify(s->dev, s->p, s->y))
WRONG(planes_shape, kr_planes_to_pixels(s->dev, s->p, f32(s, 5, 4, 4)))
WRONG(pixels_shape, kr_pixels_to_planes(s->dev, s->p, f32(s, 4, 4, 5)))
WRONG(scale_shift_length, kr_scale_shift(s->dev, s->x, s->x, s->v4, s->v3))
WRONG(conv_shape, kr_conv2d(s->dev, s->p, s->p, &s->c))
WRONG(conv_even, s->c.kh = s->c.kw = 2; kr_conv2d(s->dev, f32(s, 4, 5, 6), s->p, &s->c))
WRONG(conv_add_type, kr_conv2d_add(s->dev, kr_new(s->dev, KR_BF16, 4, 5, 6, 0), s->p, &s->c))
WRONG(upsample_shape, kr_upsample2(s->dev, f32(s, 8, 5, 4), s->p))
WRONG(copy_count, kr_copy(s->dev, s->y, s->x))
WRONG(new_type, kr_new(s->dev, KR_I8, 3, 0, 0, 0))
WRONG(upload_nothing, kr_upload(s->dev, s->none, NULL))
WRONG(finite_nothing, kr_check_finite(s->dev, s->none, "x"))

static const struct {
    const char *op; /* which the text must name */
    void (*run)(struct set *s);
} wrong[] = {
    {"kr_linear", linear_shape},
    {"kr_linear", linear_scale},
    {"kr_linear", linear_type},
    {"kr_linear", linear_bias},
    {"kr_linear_add", linear_gate},
    {"kr_linear_add", gate_and_bias},
    {"kr_linear_add", linear_add_type},
    {"kr_embed", embed_shape},
    {"kr_embed", embed_id},
    {"kr_rms_norm", norm_weight},
    {"kr_rms_norm", norm_shape},
    {"kr_rms_norm_modulate", norm_shift},
    {"kr_rms_norm_modulate", norm_also},
    {"kr_scale_rows", scale_rows_length},
    {"kr_linear_many", many_bias},
    {"kr_linear_many", many_cols},
    {"kr_qk_norm_rope", head_length},
    {"kr_qk_norm_rope", head_positions},
    {"kr_qk_norm_rope", head_overlap},
    {"kr_rms_norm", norm_columns},
    {"kr_attention", attention_heads},
    {"kr_attention", attention_gate},
    {"kr_attention", attention_causal},
    {"kr_swiglu", swiglu_shape},
    {"kr_mul_sigmoid", sigmoid_shape},
    {"kr_gelu_tanh", gelu_shape},
    {"kr_add", add_overlap},
    {"kr_add_scaled", add_scaled_shape},
    {"kr_guide", guide_type},
    {"kr_mix_taps", mix_shape},
    {"kr_timestep", timestep_odd},
    {"kr_patchify", patchify_shape},
    {"kr_unpatchify", unpatchify_shape},
    {"kr_planes_to_pixels", planes_shape},
    {"kr_pixels_to_planes", pixels_shape},
    {"kr_scale_shift", scale_shift_length},
    {"kr_conv2d", conv_shape},
    {"kr_conv2d", conv_even},
    {"kr_conv2d_add", conv_add_type},
    {"kr_upsample2", upsample_shape},
    {"kr_copy", copy_count},
    {"kr_new", new_type},
    {"kr_upload", upload_nothing},
    {"kr_check_finite", finite_nothing},
};

static void test_misuse(void **state)
{
    struct kr_device *dev = open_device(1);
    struct set s;
    (void)state;
    for (int planning = 0; planning < 2; planning++)
        for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
            if (planning)
                kr_plan_begin(dev);
            else
                begin(dev, NULL, 1 << 16);
            set_init(&s, dev);
            assert_int_equal(kr_device_sync(dev), KR_FINE);
            wrong[i].run(&s);
            if (kr_device_sync(dev) != KR_FAULT_MISUSE)
                fail_msg("case %zu, %s: no fault", i, wrong[i].op);
            if (!strstr(kr_device_fault_text(dev), wrong[i].op))
                fail_msg("case %zu, %s: %s", i, wrong[i].op, kr_device_fault_text(dev));
            if (planning)
                kr_plan_end(dev);
        }
    kr_device_close(dev);
}

/* The first fault stays, whatever follows; nothing is computed after it. */
static void test_sticky(void **state)
{
    struct kr_device *dev = open_device(1);
    const float x[] = {1, INFINITY, 3}, fine[] = {1, 2, 3};
    float back[3] = {0};
    (void)state;
    begin(dev, NULL, 4096);
    struct kr_tensor good = tensor_of(dev, KR_F32, fine, 3, 0, 0);
    struct kr_tensor bad = tensor_of(dev, KR_F32, x, 3, 0, 0);
    kr_check_finite(dev, good, "the good one");
    assert_int_equal(kr_device_sync(dev), KR_FINE);
    kr_check_finite(dev, bad, "the latent");
    kr_add(dev, good, good, kr_new(dev, KR_F32, 5, 0, 0, 0));
    kr_new(dev, KR_F32, 1 << 30, 0, 0, 0);
    assert_int_equal(kr_device_sync(dev), KR_FAULT_NOT_FINITE);
    assert_string_equal(kr_device_fault_text(dev), "the latent has NaN or infinity");
    assert_int_equal(kr_download(dev, good, back), -1);
    kr_device_close(dev);
}

static void test_finite(void **state)
{
    static const float odd[] = {NAN, INFINITY, -INFINITY};
    struct kr_device *dev = open_device(2);
    (void)state;
    for (int dtype = 0; dtype < 2; dtype++)
        for (int i = 0; i < 3; i++)
            for (int64_t at = 0; at < 70001; at += 3333) {
                float *x = random_floats(70001);
                begin(dev, NULL, 1 << 20);
                struct kr_tensor t = tensor_of(dev, dtype ? KR_BF16 : KR_F32, x, 70001, 0, 0);
                kr_check_finite(dev, t, "x");
                assert_int_equal(kr_device_sync(dev), KR_FINE);
                x[at] = odd[i];
                kr_upload(dev, t, x);
                kr_check_finite(dev, t, "x");
                assert_int_equal(kr_device_sync(dev), KR_FAULT_NOT_FINITE);
                free(x);
            }
    kr_device_close(dev);
}

static void test_names(void **state)
{
    struct kr_device *dev = open_device(2);
    (void)state;
    assert_non_null(strstr(kr_device_name(dev), "cpu: 2 threads"));
    assert_string_equal(kr_dtype_name(KR_F8_E4M3), "F8_E4M3");
    assert_string_equal(kr_dtype_name(KR_BF16), "BF16");
    assert_int_equal(kr_dtype_size(KR_F8_E5M2), 1);
    assert_int_equal(kr_dtype_size(KR_F64), 8);
    kr_device_close(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_planning_equals_the_peak),
        cmocka_unit_test(test_planning_leaves_the_job_alone),
        cmocka_unit_test(test_marks),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_cancelled_before),
        cmocka_unit_test(test_cancelled_within),
        cmocka_unit_test(test_misuse),
        cmocka_unit_test(test_sticky),
        cmocka_unit_test(test_finite),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
