/* SPDX-License-Identifier: Apache-2.0
 *
 * The operations that work element by element or row by row, and those that only move elements,
 * against their definitions in double precision, in every mix of F32 and BF16, at odd lengths.
 */
#include "tests/kernels/harness.h"

static const enum kr_dtype types[] = {KR_F32, KR_BF16};
static const int64_t lengths[] = {1, 2, 15, 16, 17, 64, 96, 130, 2048, 2049, 6144, 16384};
enum { LENGTHS = sizeof lengths / sizeof lengths[0] };

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double gelu(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static double act_of(double x, enum kr_act act)
{
    return act == KR_ACT_SILU ? x * sigmoid(x) : act == KR_ACT_GELU_TANH ? gelu(x) : x;
}

/* A random tensor, what it holds after rounding, and the values that are wanted of it. */
struct sample {
    struct kr_tensor t;
    float *x;
};

static struct sample sample(struct kr_device *dev, enum kr_dtype dtype, int64_t d0, int64_t d1,
                            int64_t d2)
{
    struct sample s = {.t = kr_new(dev, dtype, d0, d1, d2, 0)};
    float *host = random_floats((size_t)kr_count(&s.t));
    kr_upload(dev, s.t, host);
    free(host);
    s.x = values_of(dev, s.t);
    return s;
}

static double *wanted(int64_t n)
{
    double *want = malloc((size_t)n * sizeof *want);
    assert_non_null(want);
    return want;
}

/* ------------------------------------------------------------------------------- norms ------ */

static void norm_case(struct kr_device *dev, int64_t rows, int64_t cols, enum kr_dtype in,
                      enum kr_dtype out, int modulated, enum kr_act act, int in_place)
{
    struct kr_mark mark = kr_arena_mark(dev);
    struct sample x = sample(dev, in, rows, cols, 0), w = sample(dev, KR_F32, cols, 0, 0);
    struct sample scale = sample(dev, KR_F32, cols, 0, 0), shift = sample(dev, KR_F32, cols, 0, 0);
    struct kr_tensor y = in_place ? x.t : kr_new(dev, out, rows, cols, 0, 0);
    double *want = wanted(rows * cols);
    for (int64_t r = 0; r < rows; r++) {
        double sum = 0;
        for (int64_t c = 0; c < cols; c++)
            sum += (double)x.x[r * cols + c] * x.x[r * cols + c];
        double inverse = 1 / sqrt(sum / (double)cols + 1e-5);
        for (int64_t c = 0; c < cols; c++) {
            double v = x.x[r * cols + c] * inverse * w.x[c];
            want[r * cols + c] = modulated ? v * (1 + scale.x[c]) + shift.x[c] : act_of(v, act);
        }
    }
    struct kr_tensor also = {0};
    if (modulated && rows % 2)
        also = kr_new(dev, in, rows, cols, 0, 0);
    if (modulated)
        kr_rms_norm_modulate(dev, y, also, x.t, w.t, 1e-5f, scale.t, shift.t);
    else
        kr_rms_norm(dev, y, x.t, w.t, 1e-5f, act);
    assert_close(dev, y, want, storage_tolerance(y.dtype));
    if (also.data)
        assert_close(dev, also, want, storage_tolerance(in));
    free(want);
    free(x.x);
    free(w.x);
    free(scale.x);
    free(shift.x);
    kr_arena_release(dev, mark);
}

static void norm_body(struct kr_device *dev)
{
    for (int l = 0; l < LENGTHS; l++)
        for (int i = 0; i < 4; i++) {
            int64_t rows = random_between(1, 40);
            norm_case(dev, rows, lengths[l], types[i / 2], types[i % 2], 0, (enum kr_act)(l % 3),
                      0);
            norm_case(dev, rows, lengths[l], types[i / 2], types[i % 2], 1, KR_ACT_NONE, 0);
            norm_case(dev, 3, lengths[l], types[i / 2], types[i / 2], i % 2, KR_ACT_SILU, 1);
        }
}

static void test_norms(void **state)
{
    (void)state;
    on_every_device(norm_body);
}

static void rotate(double *v, int64_t d, const float *cos, const float *sin,
                   enum kr_rope_pairs pairs)
{
    for (int64_t i = 0; i < d / 2; i++) {
        int64_t a = pairs == KR_ROPE_HALVES ? i : 2 * i;
        int64_t b = pairs == KR_ROPE_HALVES ? i + d / 2 : 2 * i + 1;
        double x = v[a], y = v[b];
        v[a] = x * cos[i] - y * sin[i];
        v[b] = y * cos[i] + x * sin[i];
    }
}

/* Heads of x, whose rows are `stride` apart from column `first` on, as they shall be. */
static double *want_heads(const struct sample *x, int64_t first, int64_t heads, int64_t d,
                          const float *weight, const struct sample *cos, const struct sample *sin,
                          const enum kr_rope_pairs *pairs)
{
    int64_t rows = kr_rows(&x->t), stride = kr_cols(&x->t), n = x->t.dim[x->t.rank - 2];
    double *want = wanted(rows * heads * d);
    for (int64_t i = 0; i < rows * heads; i++) {
        const float *from = x->x + i / heads * stride + first + i % heads * d;
        double sum = 0, *v = want + i * d;
        int64_t angle = i / heads % n * (d / 2);
        for (int64_t c = 0; c < d; c++)
            sum += (double)from[c] * from[c];
        for (int64_t c = 0; c < d; c++)
            v[c] = from[c] / sqrt(sum / (double)d + 1e-6) * weight[c];
        if (pairs)
            rotate(v, d, cos->x + angle, sin->x + angle, *pairs);
    }
    return want;
}

/* Queries of 5 and keys of 2 heads, columns of one tensor with a gap between them, or dense. */
static void head_case(struct kr_device *dev, int64_t batch, int64_t n, int64_t d,
                      enum kr_dtype dtype, int roped, enum kr_rope_pairs pairs)
{
    struct kr_mark mark = kr_arena_mark(dev);
    int64_t wide = 7 * d + 3;
    struct sample all =
        batch > 1 ? sample(dev, dtype, batch, n, wide) : sample(dev, dtype, n, wide, 0);
    struct sample wq = sample(dev, KR_F32, d, 0, 0), wk = sample(dev, KR_F32, d, 0, 0);
    struct sample cos = sample(dev, KR_F32, n, d / 2, 0), sin = sample(dev, KR_F32, n, d / 2, 0);
    struct kr_rope rope = {cos.t, sin.t, pairs};
    struct kr_qk qk = {kr_columns(all.t, 0, 5 * d), kr_columns(all.t, 5 * d + 3, 2 * d), wq.t,
                       wk.t};
    double *want_q = want_heads(&all, 0, 5, d, wq.x, &cos, &sin, roped ? &pairs : NULL);
    double *want_k = want_heads(&all, 5 * d + 3, 2, d, wk.x, &cos, &sin, roped ? &pairs : NULL);
    kr_qk_norm_rope(dev, &qk, 1e-6f, roped ? &rope : NULL);
    assert_close(dev, qk.q, want_q, storage_tolerance(dtype));
    assert_close(dev, qk.k, want_k, storage_tolerance(dtype));
    free(want_q);
    free(want_k);
    free(all.x);
    free(wq.x);
    free(wk.x);
    free(cos.x);
    free(sin.x);
    kr_arena_release(dev, mark);
}

static void head_body(struct kr_device *dev)
{
    static const int64_t d[] = {2, 6, 32, 34, 64, 128, 96, 512};
    for (size_t i = 0; i < sizeof d / sizeof d[0]; i++)
        for (int t = 0; t < 2; t++)
            for (int roped = 0; roped < 2; roped++) {
                head_case(dev, 1, random_between(1, 50), d[i], types[t], roped, KR_ROPE_HALVES);
                head_case(dev, 3, random_between(1, 20), d[i], types[t], roped,
                          KR_ROPE_INTERLEAVED);
            }
}

static void test_qk_norm_rope(void **state)
{
    (void)state;
    on_every_device(head_body);
}

/* ----------------------------------------------------------------------------- element-wise --- */

enum pointwise { COPY, SWIGLU, MUL_SIGMOID, GELU, ADD, ADD_SCALED, GUIDE, POINTWISE };

static double define(enum pointwise op, double a, double b)
{
    switch (op) {
    case SWIGLU:
        return a * sigmoid(a) * b;
    case MUL_SIGMOID:
        return a * sigmoid(b);
    case GELU:
        return gelu(a);
    case ADD:
        return a + b;
    case ADD_SCALED:
        return a - 0.3f * b;
    case GUIDE:
        return a + 3.5 * (a - b);
    default:
        return a;
    }
}

static struct kr_tensor compute(struct kr_device *dev, enum pointwise op, struct kr_tensor out,
                                struct kr_tensor a, struct kr_tensor b)
{
    switch (op) {
    case COPY:
        kr_copy(dev, out, a);
        return out;
    case SWIGLU:
        kr_swiglu(dev, out, a, b);
        return out;
    case GELU:
        kr_gelu_tanh(dev, out, a);
        return out;
    case ADD:
        kr_add(dev, out, a, b);
        return out;
    case MUL_SIGMOID:
        kr_mul_sigmoid(dev, out, a, b);
        return out;
    case ADD_SCALED:
        kr_add_scaled(dev, a, -0.3f, b);
        return a;
    default:
        kr_guide(dev, a, b, 3.5f);
        return a;
    }
}

/* where: 0 a tensor of its own, 1 in place of a, 2 in place of b. */
static void pointwise_case(struct kr_device *dev, enum pointwise op, int64_t rows, int64_t cols,
                           const enum kr_dtype *t, int where)
{
    struct kr_mark mark = kr_arena_mark(dev);
    struct sample a = sample(dev, t[0], rows, cols, 0), b = sample(dev, t[1], rows, cols, 0);
    struct kr_tensor out = where == 1   ? a.t
                           : where == 2 ? b.t
                                        : kr_new(dev, t[2], rows, cols, 0, 0);
    double *want = wanted(rows * cols);
    for (int64_t i = 0; i < rows * cols; i++)
        want[i] = define(op, a.x[i], b.x[i]);
    out = compute(dev, op, out, a.t, b.t);
    assert_close(dev, out, want, storage_tolerance(out.dtype));
    free(want);
    free(a.x);
    free(b.x);
    kr_arena_release(dev, mark);
}

static void pointwise_body(struct kr_device *dev)
{
    for (int op = 0; op < POINTWISE; op++)
        for (int l = 0; l < LENGTHS; l++)
            for (int mix = 0; mix < 8; mix++) {
                enum kr_dtype t[] = {types[mix & 1], types[mix >> 1 & 1], types[mix >> 2]};
                int in_place = op == SWIGLU || op == ADD         ? l % 3
                               : op == GELU || op == MUL_SIGMOID ? l % 2
                                                                 : 0;
                if (op == GUIDE && mix)
                    continue;
                pointwise_case(dev, (enum pointwise)op, random_between(1, 30), lengths[l], t,
                               in_place);
            }
}

/* Both operands are columns of one tensor. */
static void columns_case(struct kr_device *dev, enum pointwise op, int64_t rows, int64_t cols,
                         enum kr_dtype dtype)
{
    struct kr_mark mark = kr_arena_mark(dev);
    struct sample both = sample(dev, dtype, rows, 2 * cols + 5, 0);
    double *want = wanted(rows * cols);
    for (int64_t i = 0; i < rows * cols; i++) {
        const float *row = both.x + i / cols * (2 * cols + 5) + i % cols;
        want[i] = define(op, row[1], row[cols + 3]);
    }
    struct kr_tensor out = compute(dev, op, kr_new(dev, KR_F32, rows, cols, 0, 0),
                                   kr_columns(both.t, 1, cols), kr_columns(both.t, cols + 3, cols));
    assert_close(dev, out, want, storage_tolerance(KR_F32));
    free(want);
    free(both.x);
    kr_arena_release(dev, mark);
}

/* a has `times` times the rows of b. */
static void repeat_case(struct kr_device *dev, int64_t times, int64_t rows, int64_t cols)
{
    struct kr_mark mark = kr_arena_mark(dev);
    struct sample a = sample(dev, KR_F32, times * rows, cols, 0);
    struct sample b = sample(dev, KR_F32, rows, cols, 0);
    double *want = wanted(times * rows * cols);
    for (int64_t i = 0; i < times * rows * cols; i++)
        want[i] = (double)a.x[i] + b.x[i % (rows * cols)];
    kr_add(dev, a.t, a.t, b.t);
    assert_close(dev, a.t, want, storage_tolerance(KR_F32));
    free(want);
    free(a.x);
    free(b.x);
    kr_arena_release(dev, mark);
}

static void columns_body(struct kr_device *dev)
{
    for (int l = 0; l < LENGTHS; l++)
        for (int t = 0; t < 2; t++) {
            columns_case(dev, SWIGLU, random_between(1, 30), lengths[l], types[t]);
            columns_case(dev, MUL_SIGMOID, random_between(1, 30), lengths[l], types[t]);
            repeat_case(dev, random_between(1, 5), 1 + t, lengths[l]);
        }
}

static void test_pointwise(void **state)
{
    (void)state;
    on_every_device(pointwise_body);
    on_every_device(columns_body);
}

static void scale_rows_body(struct kr_device *dev)
{
    for (int l = 0; l < LENGTHS; l++) {
        struct kr_mark mark = kr_arena_mark(dev);
        int64_t rows = random_between(1, 40);
        struct sample y = sample(dev, types[l % 2], rows, lengths[l], 0);
        struct sample by = sample(dev, KR_F32, rows, 0, 0);
        double *want = wanted(rows * lengths[l]);
        for (int64_t i = 0; i < rows * lengths[l]; i++)
            want[i] = (double)y.x[i] * by.x[i / lengths[l]];
        kr_scale_rows(dev, y.t, by.t);
        assert_close(dev, y.t, want, storage_tolerance(y.t.dtype));
        free(want);
        free(y.x);
        free(by.x);
        kr_arena_release(dev, mark);
    }
}

static void test_scale_rows(void **state)
{
    (void)state;
    on_every_device(scale_rows_body);
}

/* The functions at their ends: no overflow where the limit exists. */
static void ends_body(struct kr_device *dev)
{
    const float x[] = {0,  -0.0f, 1e-30f, 20,    -20,   88,     -88,
                       90, -90,   1e4f,   -1e4f, 3e38f, -3e38f, 1e-45f};
    enum { N = sizeof x / sizeof x[0] };
    struct kr_tensor t = tensor_of(dev, KR_F32, x, N, 0, 0), out = kr_new(dev, KR_F32, N, 0, 0, 0);
    float ones[N];
    for (int i = 0; i < N; i++)
        ones[i] = 1;
    struct kr_tensor one = tensor_of(dev, KR_F32, ones, N, 0, 0);
    kr_swiglu(dev, out, t, one);
    float *silu = values_of(dev, out);
    kr_gelu_tanh(dev, out, t);
    float *gelus = values_of(dev, out);
    kr_mul_sigmoid(dev, one, one, t);
    float *sigmoids = values_of(dev, one);
    for (int i = 0; i < N; i++) {
        double rest = 1e-6 * fabs(x[i]) + 1e-36;
        assert_true(fabs(silu[i] - x[i] * sigmoid(x[i])) <= rest);
        assert_true(fabs(sigmoids[i] - sigmoid(x[i])) <= 1e-6);
        assert_true(fabs(gelus[i] - (x[i] > 10 ? x[i] : x[i] < -10 ? 0 : gelu(x[i]))) <= rest);
    }
    free(silu);
    free(gelus);
    free(sigmoids);
}

static void test_ends(void **state)
{
    (void)state;
    on_every_device(ends_body);
}

/* Rounding to BF16: nearest, ties to even, at every tie and beside it; NaN and infinity stay. Below
 * 2^-126 a device may say 0. */
static void rounding_body(struct kr_device *dev)
{
    enum { N = 3 * 512 };
    static const uint32_t at[] = {0x3f800000, 0x00000000, 0x7f7f0000, 0xc2aa0000};
    for (size_t k = 0; k < sizeof at / sizeof at[0]; k++) {
        float x[N];
        for (uint32_t i = 0; i < N; i++) {
            uint32_t bits = at[k] + (i / 3 << 15) + i % 3 - 1;
            memcpy(&x[i], &bits, 4);
        }
        struct kr_tensor t = tensor_of(dev, KR_BF16, x, N, 0, 0);
        float *got = values_of(dev, t);
        for (uint32_t i = 0; i < N; i++) {
            uint32_t bits, low, want;
            memcpy(&bits, &x[i], 4);
            low = bits & 0xffff;
            want = (bits >> 16) + (low > 0x8000 || (low == 0x8000 && (bits >> 16 & 1)));
            if (isnan(x[i])) {
                assert_true(isnan(got[i]));
                continue;
            }
            want <<= 16;
            if (fabsf(x[i]) < 0x1p-126f && got[i] == 0)
                continue;
            assert_memory_equal(&want, &got[i], 4);
        }
        free(got);
    }
}

static void test_rounding(void **state)
{
    (void)state;
    on_every_device(rounding_body);
}

/* ---------------------------------------------------------------------------- the rest ------ */

static void mix_body(struct kr_device *dev)
{
    for (int i = 0; i < 4; i++) {
        int64_t n = random_between(1, 30), cols = lengths[random_between(0, LENGTHS - 1)];
        struct sample x = sample(dev, types[i % 2], n, 12, cols);
        struct sample w = sample(dev, KR_F32, 12, 0, 0);
        struct kr_tensor out = kr_new(dev, types[i / 2], n, cols, 0, 0);
        double *want = wanted(n * cols);
        for (int64_t j = 0; j < n * cols; j++) {
            want[j] = 0;
            for (int64_t tap = 0; tap < 12; tap++)
                want[j] += (double)w.x[tap] * x.x[(j / cols * 12 + tap) * cols + j % cols];
        }
        kr_mix_taps(dev, out, x.t, w.t);
        assert_close(dev, out, want, storage_tolerance(out.dtype));
        free(want);
        free(x.x);
        free(w.x);
    }
}

static void test_mix_taps(void **state)
{
    (void)state;
    on_every_device(mix_body);
}

static void timestep_body(struct kr_device *dev)
{
    struct kr_tensor out = kr_new(dev, KR_F32, 1, 256, 0, 0);
    double want[256];
    for (int k = 0; k < 128; k++) {
        double f = exp(-log(10000.0) * k / 128);
        want[k] = cos(876.5f * f);
        want[128 + k] = sin(876.5f * f);
    }
    kr_timestep(dev, out, 876.5f, 10000.0f);
    assert_close(dev, out, want, 1e-6);
}

static void test_timestep(void **state)
{
    (void)state;
    on_every_device(timestep_body);
}

static void patch_body(struct kr_device *dev)
{
    enum { C = 16, H = 6, W = 10 };
    for (int t = 0; t < 2; t++) {
        struct sample z = sample(dev, KR_F32, C, H, W);
        struct kr_tensor tokens = kr_new(dev, types[t], H / 2 * (W / 2), C * 4, 0, 0);
        double want[C * H * W], back[C * H * W];
        for (int token = 0; token < H / 2 * (W / 2); token++)
            for (int i = 0; i < C * 4; i++) {
                int y = token / (W / 2) * 2 + i % 4 / 2, x = token % (W / 2) * 2 + i % 2;
                want[token * C * 4 + i] = z.x[(i / 4 * H + y) * W + x];
            }
        for (int i = 0; i < C * H * W; i++)
            back[i] = z.x[i];
        kr_patchify(dev, tokens, z.t);
        assert_close(dev, tokens, want, t ? 4e-3 : 0);
        kr_unpatchify(dev, z.t, tokens);
        assert_close(dev, z.t, back, t ? 4e-3 : 0);
        free(z.x);
    }
}

static void test_patches(void **state)
{
    (void)state;
    on_every_device(patch_body);
}

static void planes_body(struct kr_device *dev)
{
    for (int i = 0; i < 4; i++) {
        int64_t c = random_between(1, 70), h = random_between(1, 20), w = random_between(1, 20);
        struct sample x = sample(dev, types[i % 2], c, h, w);
        struct kr_tensor out = kr_new(dev, types[i / 2], h, w, c, 0);
        struct kr_tensor again = kr_new(dev, KR_F32, c, h, w, 0);
        double *want = wanted(c * h * w), *same = wanted(c * h * w);
        for (int64_t j = 0; j < c * h * w; j++) {
            want[j] = x.x[j % c * h * w + j / c];
            same[j] = x.x[j];
        }
        kr_planes_to_pixels(dev, out, x.t);
        assert_close(dev, out, want, i % 2 == 0 && i / 2 == 1 ? 4e-3 : 0);
        kr_pixels_to_planes(dev, again, out);
        assert_close(dev, again, same, i % 2 == 0 && i / 2 == 1 ? 4e-3 : 0);
        free(want);
        free(same);
        free(x.x);
    }
}

static void test_planes(void **state)
{
    (void)state;
    on_every_device(planes_body);
}

static void scale_shift_body(struct kr_device *dev)
{
    for (int i = 0; i < 8; i++) {
        int64_t h = random_between(1, 9), w = random_between(1, 9);
        int64_t c = lengths[random_between(0, LENGTHS - 1)];
        struct sample x = sample(dev, types[i & 1], h, w, c);
        struct sample scale = sample(dev, KR_F32, c, 0, 0), shift = sample(dev, KR_F32, c, 0, 0);
        struct kr_tensor out = i & 4 ? x.t : kr_new(dev, types[i >> 1 & 1], h, w, c, 0);
        double *want = wanted(h * w * c);
        for (int64_t j = 0; j < h * w * c; j++)
            want[j] = (double)x.x[j] * scale.x[j % c] + shift.x[j % c];
        kr_scale_shift(dev, out, x.t, scale.t, shift.t);
        assert_close(dev, out, want, storage_tolerance(out.dtype));
        free(want);
        free(x.x);
        free(scale.x);
        free(shift.x);
    }
}

static void test_scale_shift(void **state)
{
    (void)state;
    on_every_device(scale_shift_body);
}

static void upsample_body(struct kr_device *dev)
{
    for (int i = 0; i < 4; i++) {
        int64_t h = random_between(1, 9), w = random_between(1, 9), c = random_between(1, 99);
        struct sample x = sample(dev, types[i & 1], h, w, c);
        struct kr_tensor out = kr_new(dev, types[i >> 1], 2 * h, 2 * w, c, 0);
        double *want = wanted(4 * h * w * c);
        for (int64_t y = 0; y < 2 * h; y++)
            for (int64_t j = 0; j < 2 * w * c; j++)
                want[y * 2 * w * c + j] = x.x[(y / 2 * w + j / c / 2) * c + j % c];
        kr_upsample2(dev, out, x.t);
        assert_close(dev, out, want, (i & 1) == 0 && i >> 1 ? 4e-3 : 0);
        free(want);
        free(x.x);
    }
}

static void test_upsample(void **state)
{
    (void)state;
    on_every_device(upsample_body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_norms),       cmocka_unit_test(test_qk_norm_rope),
        cmocka_unit_test(test_pointwise),   cmocka_unit_test(test_scale_rows),
        cmocka_unit_test(test_ends),        cmocka_unit_test(test_rounding),
        cmocka_unit_test(test_mix_taps),    cmocka_unit_test(test_timestep),
        cmocka_unit_test(test_patches),     cmocka_unit_test(test_planes),
        cmocka_unit_test(test_scale_shift), cmocka_unit_test(test_upsample),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
