/* SPDX-License-Identifier: Apache-2.0
 *
 * kr_attention against softmax(q k^T / sqrt(d)) v in double precision: one and more kv heads, every
 * length class (1 row, shorter than a block, several blocks), causal, batches, scores so large that
 * only a softmax that follows its maximum survives.
 */
#include "tests/kernels/harness.h"

struct shape {
    int64_t batch, n, m, heads, kv_heads, d;
    enum kr_mask mask;
    float spread; /* standard deviation of q and k */
};

static void attend(const struct shape *s, const float *q, const float *k, const float *v, int64_t b,
                   int64_t i, int64_t h, double *out, double *score)
{
    int64_t kv = h * s->kv_heads / s->heads, d = s->d;
    int64_t seen = s->mask == KR_MASK_CAUSAL ? i + 1 : s->m;
    double top = -INFINITY, sum = 0;
    for (int64_t j = 0; j < seen; j++) {
        score[j] = 0;
        for (int64_t c = 0; c < d; c++)
            score[j] += (double)q[((b * s->n + i) * s->heads + h) * d + c] *
                        k[((b * s->m + j) * s->kv_heads + kv) * d + c];
        score[j] /= sqrt((double)d);
        top = score[j] > top ? score[j] : top;
    }
    for (int64_t c = 0; c < d; c++)
        out[c] = 0;
    for (int64_t j = 0; j < seen; j++) {
        double e = exp(score[j] - top);
        sum += e;
        for (int64_t c = 0; c < d; c++)
            out[c] += e * v[((b * s->m + j) * s->kv_heads + kv) * d + c];
    }
    for (int64_t c = 0; c < d; c++)
        out[c] /= sum;
}

static double *define(const struct shape *s, const float *q, const float *k, const float *v)
{
    double *want = malloc((size_t)(s->batch * s->n * s->heads * s->d) * sizeof *want);
    double *score = malloc((size_t)s->m * sizeof *score);
    assert_true(want && score);
    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t i = 0; i < s->n; i++)
            for (int64_t h = 0; h < s->heads; h++)
                attend(s, q, k, v, b, i, h, want + ((b * s->n + i) * s->heads + h) * s->d, score);
    free(score);
    return want;
}

static struct kr_tensor filled(struct kr_device *dev, enum kr_dtype dtype, int64_t batch, int64_t n,
                               int64_t cols, float spread)
{
    float *host = random_floats((size_t)(batch * n * cols));
    for (int64_t i = 0; i < batch * n * cols; i++)
        host[i] *= spread;
    struct kr_tensor t = batch > 1 ? tensor_of(dev, dtype, host, batch, n, cols)
                                   : tensor_of(dev, dtype, host, n, cols, 0);
    free(host);
    return t;
}

/* want *= sigmoid(gate) */
static void gate_by(double *want, struct kr_device *dev, struct kr_tensor gate)
{
    float *host = values_of(dev, gate);
    for (int64_t i = 0; i < kr_count(&gate); i++)
        want[i] /= 1 + exp(-(double)host[i]);
    free(host);
}

/* Rounding q and k moves a score by up to about spread^2 2^-8 where scores are large. */
static void check(struct kr_device *dev, const struct shape *s, enum kr_dtype dtype)
{
    struct kr_mark mark = kr_arena_mark(dev);
    struct kr_tensor q = filled(dev, dtype, s->batch, s->n, s->heads * s->d, s->spread);
    int64_t kv = s->kv_heads * s->d; /* keys and values are columns of one tensor */
    struct kr_tensor both = filled(dev, dtype, s->batch, s->m, 2 * kv + 1, s->spread);
    struct kr_tensor k = kr_columns(both, 0, kv), v = kr_columns(both, kv + 1, kv);
    struct kr_tensor out = s->batch > 1 ? kr_new(dev, dtype, s->batch, s->n, s->heads * s->d, 0)
                                        : kr_new(dev, dtype, s->n, s->heads * s->d, 0, 0);
    float *hq = values_of(dev, q), *hk = values_of(dev, k), *hv = values_of(dev, v);
    double *want = define(s, hq, hk, hv);
    double spread = s->spread > 1 ? s->spread * s->spread : 1;
    struct kr_attention a = {q, k, v, s->heads, s->kv_heads, s->mask, {0}};
    if (s->n % 2) { /* columns, too, of an odd stride for some */
        int64_t wide = s->heads * s->d;
        a.gate = kr_columns(filled(dev, dtype, s->batch, s->n, wide + 2 + s->n % 4, 3), 2, wide);
        gate_by(want, dev, a.gate);
    }
    kr_attention(dev, out, &a);
    double product = kr_compute_dtype(dev) == KR_BF16 ? 8e-3 : 3e-6;
    assert_close(dev, out, want, spread * product + storage_tolerance(dtype));
    free(want);
    free(hq);
    free(hk);
    free(hv);
    kr_arena_release(dev, mark);
}

static void body(struct kr_device *dev)
{
    static const struct shape shapes[] = {
        {1, 1, 1, 1, 1, 32, KR_MASK_NONE, 1},       {1, 1, 300, 4, 2, 64, KR_MASK_NONE, 1},
        {1, 45, 45, 8, 2, 128, KR_MASK_CAUSAL, 1},  {1, 301, 301, 4, 1, 128, KR_MASK_NONE, 1},
        {1, 300, 300, 2, 2, 64, KR_MASK_CAUSAL, 1}, {40, 12, 12, 5, 5, 128, KR_MASK_NONE, 1},
        {3, 20, 17, 6, 3, 32, KR_MASK_NONE, 1},     {2, 33, 33, 3, 1, 80, KR_MASK_CAUSAL, 1},
        {1, 70, 600, 1, 1, 384, KR_MASK_NONE, 1},   {1, 19, 530, 2, 1, 7, KR_MASK_NONE, 1},
        {1, 130, 130, 2, 1, 64, KR_MASK_NONE, 5},   {1, 257, 257, 2, 1, 32, KR_MASK_CAUSAL, 5},
        {1, 64, 64, 2, 2, 16, KR_MASK_NONE, 1},     {2, 16, 32, 2, 2, 33, KR_MASK_NONE, 1},
        {1, 12, 12, 2, 2, 1, KR_MASK_CAUSAL, 1},    {2, 40, 530, 2, 1, 64, KR_MASK_NONE, 1},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        check(dev, &shapes[i], KR_F32);
        check(dev, &shapes[i], KR_BF16);
    }
    for (int i = 0; i < 10; i++) {
        int64_t groups = random_between(1, 4), kv = random_between(1, 3);
        struct shape s = {random_between(1, 3),
                          random_between(1, 150),
                          0,
                          kv * groups,
                          kv,
                          random_between(1, 150),
                          i % 2 ? KR_MASK_CAUSAL : KR_MASK_NONE,
                          1};
        s.m = i % 2 ? s.n : random_between(1, 300);
        check(dev, &s, i % 3 ? KR_F32 : KR_BF16);
    }
}

static void test_attention(void **state)
{
    (void)state;
    on_every_device(body);
}

/* All keys equal: every weight is 1/m, whatever the scores; and scores of +-1e4 stay finite. */
static void extreme_body(struct kr_device *dev)
{
    enum { N = 40, D = 64 };
    float q[N * D], k[N * D], v[N * D];
    double want[N * D], mean[D] = {0};
    for (int i = 0; i < N * D; i++) {
        q[i] = i % 2 ? 128 : -128;
        k[i] = i % D % 3 ? 64 : -64;
        v[i] = (float)(i / D % 8);
        mean[i % D] += v[i] / N;
    }
    for (int i = 0; i < N * D; i++)
        want[i] = mean[i % D];
    struct kr_tensor tq = tensor_of(dev, KR_F32, q, N, D, 0),
                     tk = tensor_of(dev, KR_F32, k, N, D, 0);
    struct kr_tensor tv = tensor_of(dev, KR_F32, v, N, D, 0), out = kr_new(dev, KR_F32, N, D, 0, 0);
    kr_attention(dev, out, &(struct kr_attention){tq, tk, tv, 1, 1, KR_MASK_NONE, {0}});
    assert_close(dev, out, want, 4e-3);
}

static void test_extremes(void **state)
{
    (void)state;
    on_every_device(extreme_body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_attention),
                                       cmocka_unit_test(test_extremes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
