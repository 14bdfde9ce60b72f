/* SPDX-License-Identifier: Apache-2.0
 *
 * The CUDA device's attention against the CPU's on the same inputs, for every kernel that the
 * head's size and the architecture choose.
 */
#include "tests/cuda/planned.h"

struct attention_case {
    int64_t batch, n, m, heads, kv_heads, d;
    enum kr_mask mask;
    enum kr_dtype in, out; /* on the GPU; F32 on the CPU */
    int columns;           /* q, k, v and a gate are columns of one tensor (n == m) */
    const float *values;   /* exact in bfloat16, enough for all */
};

/* Rank 2 where there is one batch. */
static struct kr_tensor rows_of(struct kr_device *dev, const struct attention_case *c,
                                enum kr_dtype dtype, int64_t rows, int64_t cols,
                                const float *values)
{
    if (dev->compute == KR_F32)
        dtype = KR_F32;
    if (c->batch > 1)
        return with_values(dev, dtype, c->batch, rows, cols, values);
    return with_values(dev, dtype, rows, cols, 0, values);
}

static struct kr_tensor attend(struct kr_device *dev, const void *of)
{
    const struct attention_case *c = (const struct attention_case *)of;
    int64_t wide = c->heads * c->d, kv = c->kv_heads * c->d;
    struct kr_attention a = {};
    a.heads = c->heads;
    a.kv_heads = c->kv_heads;
    a.mask = c->mask;
    struct kr_tensor out = rows_of(dev, c, c->out, c->n, wide, c->values);
    if (c->columns) {
        struct kr_tensor all = rows_of(dev, c, c->in, c->n, 2 * (wide + kv), c->values);
        a.q = kr_columns(all, 0, wide);
        a.k = kr_columns(all, wide, kv);
        a.v = kr_columns(all, wide + kv, kv);
        a.gate = kr_columns(all, wide + 2 * kv, wide);
    } else {
        a.q = rows_of(dev, c, c->in, c->n, wide, c->values);
        a.k = rows_of(dev, c, c->in, c->m, kv, c->values + c->batch * c->n * wide);
        a.v = rows_of(dev, c, c->in, c->m, kv, c->values + c->batch * (c->n * wide + c->m * kv));
    }
    kr_attention(dev, out, &a);
    return out;
}

enum { MOST = 2 /* of the values, in magnitude */ };

/* What weighs values is rounded to bfloat16, 2^-9 of each at most and they add up to one; then the
 * result is, where it is bfloat16. A typical error is a tenth of that: all of them together would
 * betray a single key too many. */
static void compare(struct attention_case c, int architecture)
{
    struct devices *d = devices_of(architecture);
    int64_t count = c.batch * c.n * c.heads * c.d, kv = c.batch * c.m * c.kv_heads * c.d;
    float *values = numbers(2 * (count + kv), -MOST, MOST);
    double sum = 0, all = 0;
    for (int64_t i = 0; i < 2 * (count + kv); i++)
        values[i] = bf16_of(values[i]);
    c.values = values;
    float *got = run_planned(d->dev[GPU], attend, &c), *want = run_planned(d->dev[CPU], attend, &c);
    for (int64_t i = 0; i < count; i++) {
        float bound = MOST * 0x1p-9f + 1e-5f + (c.out == KR_BF16 ? fabsf(want[i]) * 0x1p-8f : 0);
        if (!(fabsf(got[i] - want[i]) <= bound))
            fail_msg("[%d,%d,%d] heads %d/%d of %d, sm_%d: %d is %g, not %g", (int)c.batch,
                     (int)c.n, (int)c.m, (int)c.heads, (int)c.kv_heads, (int)c.d, architecture,
                     (int)i, (double)got[i], (double)want[i]);
        sum += (double)(got[i] - want[i]) * (got[i] - want[i]);
        all += (double)want[i] * want[i];
    }
    if (!(sqrt(sum / all) < 0.004))
        fail_msg("off by %g of the result", sqrt(sum / all));
    free(got);
    free(want);
    free(values);
}

static void test_heads(void **state)
{
    (void)state;
    static const struct attention_case cases[] = {
        {1, 129, 129, 2, 1, 128, KR_MASK_NONE, KR_BF16, KR_BF16, 1, NULL},
        {1, 70, 70, 4, 2, 64, KR_MASK_CAUSAL, KR_BF16, KR_F32, 1, NULL},
        {2, 33, 33, 3, 3, 32, KR_MASK_NONE, KR_BF16, KR_BF16, 1, NULL},
        {1, 1, 1, 1, 1, 128, KR_MASK_CAUSAL, KR_BF16, KR_F32, 0, NULL},
        {1, 5, 97, 2, 2, 128, KR_MASK_NONE, KR_BF16, KR_F32, 0, NULL},
        {3, 12, 12, 2, 2, 128, KR_MASK_NONE, KR_BF16, KR_BF16, 0, NULL},
        {1, 131, 131, 1, 1, 128, KR_MASK_CAUSAL, KR_BF16, KR_BF16, 0, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        compare(cases[i], i < 4 ? 86 : 90);
    compare(cases[0], 80);
    compare(cases[0], 89);
}

static void test_other_heads(void **state)
{
    (void)state;
    static const struct attention_case cases[] = {
        {1, 65, 65, 1, 1, 384, KR_MASK_NONE, KR_BF16, KR_BF16, 0, NULL},  /* the VAE's */
        {1, 67, 130, 2, 1, 192, KR_MASK_NONE, KR_BF16, KR_F32, 0, NULL},  /* three chunks */
        {1, 40, 40, 1, 1, 449, KR_MASK_CAUSAL, KR_BF16, KR_F32, 0, NULL}, /* two groups, odd */
        {1, 20, 20, 3, 1, 7, KR_MASK_NONE, KR_BF16, KR_BF16, 0, NULL},    /* filled up */
        {1, 20, 20, 2, 2, 16, KR_MASK_CAUSAL, KR_F32, KR_F32, 1, NULL},   /* F32, columns */
        {2, 9, 9, 2, 1, 100, KR_MASK_NONE, KR_F32, KR_BF16, 0, NULL},
        {1, 64, 64, 1, 1, 256, KR_MASK_CAUSAL, KR_BF16, KR_F32, 0, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        compare(cases[i], i < 4 ? 120 : 90);
}

static void test_random_shapes(void **state)
{
    (void)state;
    static const int64_t sizes[] = {32, 64, 128, 8, 40, 136, 33};
    static const int architectures[] = {80, 86, 89, 90, 100, 120};
    numbers_seed(2024);
    for (int i = 0; i < 14; i++) {
        struct attention_case c = {};
        c.batch = 1 + number_below(2);
        c.d = sizes[i % 7];
        c.kv_heads = 1 + number_below(2);
        c.heads = c.kv_heads * (1 + number_below(2));
        c.n = c.m = 1 + number_below(80);
        c.mask = number_below(2) ? KR_MASK_CAUSAL : KR_MASK_NONE;
        c.columns = (int)number_below(2);
        if (!c.mask && !c.columns)
            c.m = 1 + number_below(150);
        c.in = number_below(4) ? KR_BF16 : KR_F32;
        c.out = number_below(2) ? KR_BF16 : KR_F32;
        compare(c, architectures[i * 6 / 14]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_heads),
        cmocka_unit_test(test_other_heads),
        cmocka_unit_test(test_random_shapes),
    };
    return cmocka_run_group_tests(tests, NULL, close_devices);
}
