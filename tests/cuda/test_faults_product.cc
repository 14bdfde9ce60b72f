/* SPDX-License-Identifier: Apache-2.0
 *
 * The product's kernels without each of their waits in turn: every barrier, every __syncwarp and
 * every wait for asynchronous copies that they reach has to be missed by the checks, in some order
 * of the threads. A wait that nothing misses is either not needed or not tested.
 */
#include "tests/cuda/planned.h"

#include "kernels/cuda/elements.cuh"

struct job {
    const char *name;
    void (*run)(struct kr_device *dev);
};

static struct kr_tensor filled(struct kr_device *dev, enum kr_dtype dtype, int64_t d0, int64_t d1,
                               int64_t d2)
{
    int64_t count = d0 * (d1 ? d1 : 1) * (d2 ? d2 : 1);
    float *x = numbers(count, -1, 1);
    struct kr_tensor t = with_values(dev, dtype, d0, d1, d2, x);
    free(x);
    return t;
}

static void attend(struct kr_device *dev, int64_t n, int64_t m, int64_t heads, int64_t d,
                   enum kr_mask mask)
{
    struct kr_attention a = {filled(dev, KR_BF16, n, heads * d, 0),
                             filled(dev, KR_BF16, m, d, 0),
                             filled(dev, KR_BF16, m, d, 0),
                             heads,
                             1,
                             mask,
                             {}};
    struct kr_tensor out = kr_new(dev, KR_BF16, n, heads * d, 0, 0);
    kr_attention(dev, out, &a);
}

static void narrow_attention(struct kr_device *dev)
{
    attend(dev, 150, 200, 1, 32, KR_MASK_NONE);
    attend(dev, 140, 140, 2, 64, KR_MASK_CAUSAL);
    attend(dev, 20, 150, 1, 128, KR_MASK_NONE);
}

static void wide_attention(struct kr_device *dev)
{
    attend(dev, 70, 200, 1, 384, KR_MASK_NONE);
}

static void convolution(struct kr_device *dev)
{
    float *kernel = numbers(40 * 40 * 9, -1, 1);
    struct kr_conv conv = {kernel, KR_F32, 40, 40, 1, 3, 3, {}, NULL, 0, 0};
    struct kr_tensor x = filled(dev, KR_BF16, 12, 20, 40), y = kr_new(dev, KR_BF16, 12, 20, 40, 0);
    kr_conv2d(dev, y, x, &conv);
    kr_device_sync(dev);
    kr_conv_fini(dev, &conv);
    free(kernel);
}

static void product(struct kr_device *dev)
{
    uint8_t codes[40 * 208];
    struct kr_weight w = {codes, KR_F8_E4M3, 40, 208, 0.01f, {}, 0};
    struct kr_tensor x = filled(dev, KR_BF16, 20, 208, 0), y = kr_new(dev, KR_F32, 20, 40, 0, 0);
    memset(codes, 0x21, sizeof codes);
    kr_linear(dev, y, x, &w, KR_ACT_NONE);
    kr_device_sync(dev);
}

static void norms(struct kr_device *dev)
{
    struct kr_tensor x = filled(dev, KR_BF16, 3, 700, 0), weight = filled(dev, KR_F32, 700, 0, 0);
    struct kr_tensor out = kr_new(dev, KR_BF16, 3, 700, 0, 0);
    kr_rms_norm(dev, out, x, weight, 1e-6f, KR_ACT_NONE);
    x = filled(dev, KR_BF16, 3, 6000, 0), weight = filled(dev, KR_F32, 6000, 0, 0);
    out = kr_new(dev, KR_F8_E4M3, 3, 6000, 0, 0);
    kr_rms_norm(dev, out, x, weight, 1e-6f, KR_ACT_NONE);
}

static void heads(struct kr_device *dev)
{
    struct kr_qk qk = {filled(dev, KR_BF16, 5, 256, 0), filled(dev, KR_BF16, 5, 128, 0),
                       filled(dev, KR_F32, 64, 0, 0), filled(dev, KR_F32, 64, 0, 0)};
    struct kr_rope rope = {filled(dev, KR_F32, 5, 32, 0), filled(dev, KR_F32, 5, 32, 0),
                           KR_ROPE_HALVES};
    kr_qk_norm_rope(dev, &qk, 1e-6f, &rope);
    rope.pairs = KR_ROPE_INTERLEAVED;
    kr_qk_norm_rope(dev, &qk, 1e-6f, &rope);
}

/* What row_total() promises and no kernel uses yet: two totals of one kind in a row. */
static __global__ void two_totals(float *out)
{
    float first = row_total<BLOCK_THREADS, false>(1.0f);
    out[threadIdx.x] = row_total<BLOCK_THREADS, false>(first);
}

static void totals(struct kr_device *dev)
{
    struct kr_tensor out = kr_new(dev, KR_F32, BLOCK_THREADS, 0, 0, 0);
    float host[BLOCK_THREADS];
    launch(cuda_of(dev), two_totals, 1, BLOCK_THREADS, 0, (float *)out.data);
    kr_download(dev, out, host);
}

static const struct job jobs[] = {
    {"narrow attention", narrow_attention},
    {"wide attention", wide_attention},
    {"convolution", convolution},
    {"product", product},
    {"norms", norms},
    {"heads", heads},
    {"totals", totals},
};

/* All of it on a fresh device; how many reports there are. A launch that was ended for what it did
 * takes the device with it. */
static int reports_of(const struct job *job, unsigned seed)
{
    struct emu_options options = {};
    struct kr_cuda_options product = {0, KR_FP8_BEST};
    char why[200] = "";
    options.architecture = 90;
    options.memory = (size_t)256 << 20;
    options.seed = seed;
    emu_open(&options);
    emu_forget_reports();
    struct kr_device *dev = kr_cuda_open(KR_VERSION, &product, why, sizeof why);
    if (!dev || kr_job_begin(dev, NULL, (size_t)32 << 20, why, sizeof why))
        fail_msg("%s", why);
    numbers_seed(1);
    job->run(dev);
    kr_device_sync(dev);
    int reports = emu_reports();
    kr_job_end(dev);
    kr_device_close(dev);
    return reports;
}

static const char *name_of(const struct emu_wait *w)
{
    static const char *const kinds[] = {"barrier", "__syncwarp", "wait for copies", "stream wait"};
    static char text[300];
    snprintf(text, sizeof text, "the %s at %s:%d", kinds[w->kind], w->file ? w->file : "host",
             w->line);
    return text;
}

/* Whether the jobs that reach the wait are reported without it, with one of some seeds. */
static int is_missed(int wait)
{
    for (size_t j = 0; j < sizeof jobs / sizeof jobs[0]; j++) {
        for (unsigned seed = 1; seed <= 4; seed++) {
            emu_skip_wait(wait);
            int reports = reports_of(&jobs[j], seed);
            emu_skip_wait(-1);
            if (reports)
                return 1;
        }
    }
    return 0;
}

static void test_each_wait_of_the_kernels_is_missed(void **)
{
    const struct emu_wait *waits;
    int kernels = 0, missing = 0;
    for (size_t j = 0; j < sizeof jobs / sizeof jobs[0]; j++) {
        if (reports_of(&jobs[j], 7))
            fail_msg("%s: %s", jobs[j].name, emu_report_text(0));
    }
    int count = emu_waits(&waits);
    for (int i = 0; i < count; i++) {
        if (waits[i].kind == EMU_WAIT_STREAM)
            continue;
        kernels++;
        if (is_missed(i))
            continue;
        print_error("nothing misses %s\n", name_of(&waits[i]));
        missing++;
    }
    emu_forget_reports();
    assert_true(kernels >= 10);
    assert_int_equal(missing, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_wait_of_the_kernels_is_missed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
