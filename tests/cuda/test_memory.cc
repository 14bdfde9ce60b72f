/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening the device, its memory, and what happens when there is none or the device goes: at every
 * allocation and at many calls in turn, a job fails with its reason, the next one works where one
 * can, and nothing leaks.
 */
#include "tests/cuda/devices.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const size_t mib = (size_t)1 << 20;

static struct emu_options small_gpu(size_t memory)
{
    struct emu_options options = {};
    options.architecture = 80;
    options.memory = memory;
    return options;
}

/* --------------------------------------------------------------------------- opening ------ */

static void assert_refused(const char *version, int ordinal, const char *want)
{
    struct kr_cuda_options options = {ordinal, KR_FP8_BEST};
    char why[300] = "";
    assert_null(kr_cuda_open(version, &options, why, sizeof why));
    if (!strstr(why, want))
        fail_msg("\"%s\" does not say \"%s\"", why, want);
}

static void test_why_not(void **)
{
    struct emu_options options = small_gpu(64 * mib);
    emu_forget_reports();
    emu_open(&options);
    assert_refused("0.0.1", 0,
                   "kread is version 0.0.1 and its kread-cuda.so is version " KR_VERSION);
    assert_refused(KR_VERSION, 3, "there is no GPU 3: this process may use 1");
    assert_int_equal(emu_reports(), 0);
    options.no_device = 1;
    emu_open(&options);
    assert_refused(KR_VERSION, 0,
                   "no GPU that this process may use; see that nvidia-smi lists one");
    options.no_device = 2;
    emu_open(&options);
    assert_refused(KR_VERSION, 0, "no NVIDIA driver (libcuda.so.1); install NVIDIA's driver 580");
    options.no_device = 3;
    emu_open(&options);
    assert_refused(KR_VERSION, 0, "is too old: it serves CUDA 12.4 and kread was built with CUDA ");
    options.no_device = cudaErrorSystemDriverMismatch;
    emu_open(&options);
    assert_refused(KR_VERSION, 0, "of different versions, as after an update; restart the machine");
    options.no_device = cudaErrorUnknown;
    emu_open(&options);
    assert_refused(KR_VERSION, 0, "cudaErrorUnknown (unknown error); see that nvidia-smi works");
    options = small_gpu(64 * mib);
    options.architecture = 75;
    emu_open(&options);
    assert_refused(KR_VERSION, 0,
                   "RTX 2080 (emulated) has compute capability 7.5 and kread needs 8.0 or newer");
}

static void test_names(void **)
{
    static const struct {
        int architecture;
        enum kr_fp8 fp8;
        const char *end;
    } cases[] = {{80, KR_FP8_BEST, ", 8.0, bf16"},
                 {89, KR_FP8_BEST, ", 8.9, bf16+fp8"},
                 {90, KR_FP8_BEST, ", 9.0, bf16+fp8"},
                 {90, KR_FP8_EXPAND, ", 9.0, bf16"},
                 {120, KR_FP8_BEST, ", 12.0, bf16+fp8"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct emu_options options = small_gpu(64 * mib);
        struct kr_cuda_options how = {0, cases[i].fp8};
        char why[200];
        options.architecture = cases[i].architecture;
        emu_open(&options);
        struct kr_device *dev = kr_cuda_open(KR_VERSION, &how, why, sizeof why);
        assert_non_null(dev);
        const char *name = kr_device_name(dev), *end = cases[i].end;
        assert_memory_equal(name, "cuda: ", 6);
        assert_string_equal(name + strlen(name) - strlen(end), end);
        kr_device_close(dev);
    }
}

/* FP8 where all weights have it, nobody asks for more, and sizes fit. */
static void test_input_types(void **)
{
    struct kr_weight e4m3 = {}, other;
    const struct kr_weight *w[] = {&e4m3, &other};
    e4m3.data = "";
    e4m3.dtype = KR_F8_E4M3;
    e4m3.out = 32;
    e4m3.in = 16;
    for (int architecture = 80; architecture <= 90; architecture += 10) {
        struct emu_options options = small_gpu(64 * mib);
        options.architecture = architecture;
        struct devices d = devices_open(&options, 0);
        struct kr_device *dev = d.dev[GPU];
        enum kr_dtype best = architecture == 90 ? KR_F8_E4M3 : KR_BF16;
        assert_int_equal(kr_compute_dtype(dev), KR_BF16);
        other = e4m3;
        assert_int_equal(kr_input_dtype(dev, w, 2), best);
        other.full_precision = 1;
        assert_int_equal(kr_input_dtype(dev, w, 2), KR_BF16);
        assert_int_equal(kr_input_dtype(dev, w, 1), best);
        other = e4m3;
        other.dtype = KR_BF16;
        assert_int_equal(kr_input_dtype(dev, w, 2), KR_BF16);
        other = e4m3;
        other.out = 24;
        assert_int_equal(kr_input_dtype(dev, w, 2), KR_BF16);
        other = e4m3;
        other.dtype = KR_F8_E5M2;
        assert_int_equal(kr_input_dtype(dev, w, 2), KR_BF16);
        devices_close(&d);
    }
}

/* ---------------------------------------------------------------------------- memory ------ */

static void test_large_tensors_there_and_back(void **)
{
    struct emu_options options = small_gpu(128 * mib);
    struct devices d = devices_open(&options, 48 * mib);
    for (int type = 0; type < 2; type++) {
        struct both t =
            both_filled(&d, type ? KR_BF16 : KR_F32, 2500001, 0, 0, -1, 1); /* three pieces */
        both_near(&d, t, 0, 0);
        for (int s = 0; s < SIDES; s++)
            kr_arena_release(d.dev[s], (struct kr_mark){0});
    }
    devices_close(&d);
}

/* Hundreds of vectors of all sizes, which come and go, keep what they hold. */
static void test_vectors(void **)
{
    enum { COUNT = 200 };
    struct emu_options options = small_gpu(64 * mib);
    struct devices d = devices_open(&options, 0);
    struct kr_device *dev = d.dev[GPU];
    struct kr_tensor t[COUNT] = {};
    float *host = (float *)malloc(150000 * sizeof *host), got;
    assert_non_null(host);
    for (int round = 0; round < 3 * COUNT; round++) {
        int i = (int)number_below(COUNT);
        int64_t n = number_below(20) ? 1 + number_below(300) : 140000;
        kr_persist_free(dev, &t[i]);
        for (int64_t k = 0; k < n; k++)
            host[k] = (float)i;
        t[i] = kr_persist(dev, host, n, 0);
        assert_non_null(t[i].data);
        assert_int_equal((uintptr_t)t[i].data % CUDA_ALIGNMENT, 0);
    }
    for (int i = 0; i < COUNT; i++) {
        if (!t[i].data)
            continue;
        int64_t last = kr_count(&t[i]) - 1;
        assert_int_equal(kr_download(dev, kr_slice(t[i], last, 1), &got), 0);
        assert_true(got == (float)i);
        kr_persist_free(dev, &t[i]);
    }
    struct emu_figures figures;
    emu_read_figures(&figures);
    assert_true(figures.used < 2 * mib); /* the slabs are gone */
    free(host);
    devices_close(&d);
}

/* A model is bound to the planner's device, too, which has nothing of it. */
static void test_vectors_while_planning(void **)
{
    enum { COUNT = 3 };
    struct emu_options options = small_gpu(64 * mib);
    struct devices d = devices_open(&options, 0);
    struct kr_device *dev = d.dev[GPU];
    struct kr_tensor t[COUNT], out;
    float host[1000] = {};
    struct emu_figures before, after;
    emu_read_figures(&before);
    kr_plan_begin(dev);
    for (int i = 0; i < COUNT; i++)
        t[i] = kr_persist(dev, i ? host : NULL, 1000, i ? 0 : 300);
    for (int i = 0; i < 300; i++)
        kr_upload(dev, kr_slice(t[0], i, 1), host);
    kr_plan_end(dev);
    for (int times = 0; times < 2; times++) {
        kr_plan_begin(dev);
        out = kr_new(dev, KR_BF16, 50, 1000, 0, 0);
        kr_rms_norm(dev, out, out, t[1], 1e-6f, KR_ACT_NONE);
        assert_int_equal(kr_device_sync(dev), KR_FINE);
        assert_in_range(kr_plan_end(dev), 50 * 1000 * 2, 50 * 1000 * 2 + 63);
    }
    kr_plan_begin(dev);
    for (int i = 0; i < COUNT; i++)
        kr_persist_free(dev, &t[i]);
    kr_plan_end(dev);
    emu_read_figures(&after);
    assert_int_equal(after.allocations, before.allocations);
    assert_int_equal(after.runtime_calls, before.runtime_calls + 4); /* cuda_enter() of each plan */
    devices_close(&d);
}

static void begin_and_end(struct kr_device *dev, size_t bytes)
{
    char why[200];
    if (kr_job_begin(dev, NULL, bytes, why, sizeof why))
        fail_msg("%s", why);
    kr_job_end(dev);
}

static uint64_t allocations(void)
{
    struct emu_figures figures;
    emu_read_figures(&figures);
    return figures.allocations;
}

static void test_the_arena_is_kept_and_given_back(void **)
{
    struct emu_options options = small_gpu(512 * mib);
    struct devices d = devices_open(&options, 0);
    struct kr_device *dev = d.dev[GPU];
    char why[300];
    size_t free = kr_device_free_memory(dev);
    begin_and_end(dev, 300 * mib);
    uint64_t count = allocations();
    begin_and_end(dev, 300 * mib);
    begin_and_end(dev, 290 * mib);
    assert_int_equal(allocations(), count);
    assert_int_equal(kr_device_free_memory(dev), free); /* it would be given back */
    begin_and_end(dev, 400 * mib);
    assert_int_equal(allocations(), count + 1);
    void *at = cuda_take(devices_cuda(&d), 200 * mib); /* which only fits in its place */
    assert_non_null(at);
    assert_int_equal(kr_job_begin(dev, NULL, 400 * mib, why, sizeof why), -1);
    assert_non_null(strstr(why, "the job needs 400 MiB of memory and they can't be had"));
    begin_and_end(dev, 100 * mib);
    cuda_give(devices_cuda(&d), at);
    begin_and_end(dev, 400 * mib);
    devices_close(&d);
}

/* ----------------------------------------------------------------------- without memory ------ */

enum { WIDTH = 64, ROWS = 24 };

/* A little of everything that takes memory: vectors, an embedding, products, attention, a
 * convolution, and the way back. */
struct job {
    uint16_t *weights; /* bfloat16 */
    struct kr_weight w[4];
    struct kr_conv conv;
    float result[ROWS * WIDTH];
};

static void new_job(struct job *j)
{
    size_t count = (size_t)4 * WIDTH * WIDTH + 9 * WIDTH * WIDTH;
    memset(j, 0, sizeof *j);
    numbers_seed(99);
    j->weights = (uint16_t *)malloc(count * sizeof *j->weights);
    assert_non_null(j->weights);
    for (size_t i = 0; i < count; i++) {
        float f = number_between(-0.2f, 0.2f);
        cuda_to_bf16(j->weights + i, &f, 1);
    }
    for (int i = 0; i < 4; i++) {
        j->w[i].data = j->weights + (size_t)i * WIDTH * WIDTH;
        j->w[i].dtype = KR_BF16;
        j->w[i].out = j->w[i].in = WIDTH;
        j->w[i].scale = 1;
    }
    j->conv.data = j->weights + (size_t)4 * WIDTH * WIDTH;
    j->conv.dtype = KR_BF16;
    j->conv.out = j->conv.in = WIDTH;
    j->conv.kt = 1;
    j->conv.kh = j->conv.kw = 3;
}

static void forward(struct kr_device *dev, struct job *j, struct kr_tensor norm, int download)
{
    static const int32_t ids[ROWS] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8,
                                      9, 7, 9, 3, 2, 3, 8, 4, 6, 2, 6, 4};
    const struct kr_weight *qkv[] = {&j->w[0], &j->w[1], &j->w[2]};
    struct kr_mark mark = kr_arena_mark(dev);
    struct kr_tensor x = kr_new(dev, KR_F32, ROWS, WIDTH, 0, 0),
                     h = kr_new(dev, kr_compute_dtype(dev), ROWS, WIDTH, 0, 0),
                     all = kr_new(dev, kr_compute_dtype(dev), ROWS, 3 * WIDTH, 0, 0), none = {};
    struct kr_attention a = {kr_columns(all, 0, WIDTH),
                             kr_columns(all, WIDTH, WIDTH),
                             kr_columns(all, 2 * WIDTH, WIDTH),
                             2,
                             2,
                             KR_MASK_NONE,
                             {}};
    kr_embed(dev, x, &j->w[3], ids, ROWS);
    kr_rms_norm(dev, h, x, norm, 1e-6f, KR_ACT_NONE);
    kr_linear_many(dev, all, h, qkv, 3);
    kr_attention(dev, h, &a);
    kr_linear_add(dev, x, none, h, &j->w[3]);
    kr_rms_norm(dev, h, x, norm, 1e-6f, KR_ACT_SILU);
    kr_conv2d_add(dev, kr_reshape(x, 4, 6, WIDTH, 0), kr_reshape(h, 4, 6, WIDTH, 0), &j->conv);
    kr_check_finite(dev, x, "the result");
    if (download)
        kr_download(dev, x, j->result);
    kr_arena_release(dev, mark);
}

static size_t plan(struct kr_device *dev, struct job *j, struct kr_tensor norm)
{
    kr_plan_begin(dev);
    forward(dev, j, norm, 0);
    return kr_plan_end(dev);
}

/* NULL: it went well; else why not. */
static const char *run_job(struct kr_device *dev, struct job *j)
{
    static char why[400];
    float ones[WIDTH];
    for (int i = 0; i < WIDTH; i++)
        ones[i] = 1;
    struct kr_tensor norm = kr_persist(dev, ones, WIDTH, 0);
    const char *failed = NULL;
    memset(j->result, 0, sizeof j->result);
    if (!norm.data) {
        snprintf(why, sizeof why, "%s", kr_device_fault_text(dev));
        return why;
    }
    if (kr_job_begin(dev, NULL, plan(dev, j, norm), why, sizeof why) == 0) {
        forward(dev, j, norm, 1);
        if (kr_device_sync(dev) == KR_FINE)
            failed = NULL;
        else
            failed = strcpy(why, kr_device_fault_text(dev));
        kr_job_end(dev);
    } else {
        failed = why;
    }
    kr_persist_free(dev, &norm);
    return failed;
}

static void assert_same(const float *a, const float *b)
{
    for (int i = 0; i < ROWS * WIDTH; i++)
        if (a[i] != b[i])
            fail_msg("element %d is %g instead of %g", i, (double)a[i], (double)b[i]);
}

/* A device, a job that may fail, and one that may not. Returns whether all went well. */
static int run_with_failure(int nth, enum kr_residency residency, const float *want)
{
    struct emu_options options = small_gpu(256 * mib);
    struct kr_cuda_options how = {0, KR_FP8_BEST};
    struct job j;
    char why[400] = "";
    new_job(&j);
    emu_open(&options);
    emu_fail_allocation(nth);
    struct kr_device *dev = kr_cuda_open(KR_VERSION, &how, why, sizeof why);
    const char *failed = dev ? NULL : why;
    if (dev) {
        kr_device_residency(dev, residency, 16 * mib);
        failed = run_job(dev, &j);
        emu_fail_allocation(0);
        if (failed) {
            if (!strstr(failed, "memory"))
                fail_msg("allocation %d: \"%s\" does not speak of memory", nth, failed);
            failed = run_job(dev, &j);
            if (failed)
                fail_msg("after allocation %d failed, the next job did: %s", nth, failed);
            failed = why;
        }
        if (want)
            assert_same(j.result, want);
        kr_conv_fini(dev, &j.conv);
        kr_device_close(dev);
    }
    emu_fail_allocation(0);
    if (emu_leaks())
        fail_msg("allocation %d failed and something leaked: %s", nth, emu_report_text(0));
    free(j.weights);
    return !failed;
}

static void test_out_of_memory_at_every_allocation(void **)
{
    for (int residency = KR_RESIDENT; residency <= KR_STREAM; residency++) {
        struct emu_options options = small_gpu(256 * mib);
        struct devices d = devices_open(&options, 0);
        struct job j;
        new_job(&j);
        assert_null(run_job(d.dev[GPU], &j));
        kr_conv_fini(d.dev[GPU], &j.conv);
        devices_close(&d);
        int nth = 1;
        while (!run_with_failure(nth, (enum kr_residency)residency, j.result))
            nth++;
        assert_true(nth > 6 && nth < 60);
        assert_int_equal(emu_reports(), 0);
        free(j.weights);
    }
}

static uint64_t calls(void)
{
    struct emu_figures figures;
    emu_read_figures(&figures);
    return figures.runtime_calls;
}

/* A job on a device that goes at the nth call, 0: never. The calls so far when the device was open
 * and when the job was over. */
static void lose(int nth, uint64_t *opened, uint64_t *over)
{
    struct emu_options options = small_gpu(256 * mib);
    struct kr_cuda_options how = {0, KR_FP8_BEST};
    struct job j;
    char why[400] = "";
    new_job(&j);
    emu_open(&options);
    emu_lose_device(nth);
    struct kr_device *dev = kr_cuda_open(KR_VERSION, &how, why, sizeof why);
    *opened = calls();
    const char *failed = dev ? run_job(dev, &j) : why;
    *over = calls();
    assert_true(dev || strcmp(why, "") != 0);
    if (dev && nth) {
        (void)failed; /* the last calls of a job come after its result */
        assert_non_null(run_job(dev, &j));
        assert_int_equal(kr_device_sync(dev), KR_FAULT_LOST);
        assert_non_null(strstr(kr_device_fault_text(dev), "the GPU failed"));
    } else {
        assert_true(!dev || !failed);
    }
    if (dev)
        kr_conv_fini(dev, &j.conv);
    kr_device_close(dev);
    emu_lose_device(0);
    emu_leaks();
    emu_forget_reports();
    free(j.weights);
}

/* The job says so, and closing still works, whenever that is. */
static void test_a_lost_device(void **)
{
    uint64_t opened, over, ignored;
    lose(0, &opened, &over);
    assert_true(opened > 5 && over > opened + 50);
    for (uint64_t nth = 1; nth < over; nth += nth < opened ? 1 + opened / 10 : 3)
        lose((int)nth, &ignored, &ignored);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_why_not),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_input_types),
        cmocka_unit_test(test_large_tensors_there_and_back),
        cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_vectors_while_planning),
        cmocka_unit_test(test_the_arena_is_kept_and_given_back),
        cmocka_unit_test(test_out_of_memory_at_every_allocation),
        cmocka_unit_test(test_a_lost_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
