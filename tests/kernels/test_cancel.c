/* SPDX-License-Identifier: Apache-2.0
 *
 * How much is done after a cancel, counted and not timed. A page of what an operation reads is
 * protected; the handler of the fault that reading it raises lets it be read and sets the flag. So
 * the flag is set in the middle of the operation by the very thread that computes, at the same
 * place on every machine, however busy. After that, no thread may begin more than the item that it
 * was about to take; and on one thread, what lies behind that place must not be written.
 */
#include "tests/kernels/harness.h"

#include <signal.h>
#include <sys/mman.h>

#include "kernels/cpu/cpu.h"

#define UNTOUCHED 12345.0f

static struct trap {
    struct cpu_pool *pool;
    char *page;
    size_t size;
    atomic_int flag;
    _Atomic int64_t next; /* item when the flag was set */
} trap;

static void spring(int number, siginfo_t *info, void *context)
{
    char *at = info->si_addr;
    (void)context;
    if (at < trap.page || at >= trap.page + trap.size) { /* another fault: let it kill */
        signal(number, SIG_DFL);
        return;
    }
    atomic_store(&trap.flag, 1);
    atomic_store(&trap.next, atomic_load(&trap.pool->next));
    mprotect(trap.page, trap.size, PROT_READ | PROT_WRITE);
}

/* Protects the first whole page behind `share` of the `bytes` at `data`. */
static void set_trap(struct kr_device *dev, const void *data, size_t bytes, double share)
{
    size_t size = (size_t)sysconf(_SC_PAGESIZE);
    uintptr_t at = (uintptr_t)data + (uintptr_t)((double)bytes * share);
    trap.pool = &cpu_of(dev)->pool;
    trap.size = size;
    trap.page = (char *)((at + size - 1) / size * size);
    assert_true(trap.page + size <= (char *)(uintptr_t)data + bytes);
    atomic_store(&trap.flag, 0);
    atomic_store(&trap.next, -1);
    assert_int_equal(mprotect(trap.page, size, PROT_NONE), 0);
}

static void begin(struct kr_device *dev, const atomic_int *cancel)
{
    char why[200];
    assert_int_equal(kr_job_begin(dev, cancel, (size_t)256 << 20, why, sizeof why), 0);
}

static struct kr_tensor untouched(struct kr_device *dev, int64_t d0, int64_t d1, int64_t d2)
{
    struct kr_tensor t = kr_new(dev, KR_F32, d0, d1, d2, 0);
    for (int64_t i = 0; i < kr_count(&t); i++)
        ((float *)t.data)[i] = UNTOUCHED;
    return t;
}

static double share_written(struct kr_tensor t)
{
    int64_t n = 0;
    for (int64_t i = 0; i < kr_count(&t); i++)
        n += ((float *)t.data)[i] != UNTOUCHED;
    return (double)n / (double)kr_count(&t);
}

/* After the operation that read the trap a quarter down its input. */
static void check_cancelled(struct kr_device *dev, struct kr_tensor out)
{
    int threads = trap.pool->threads;
    assert_int_equal(atomic_load(&trap.flag), 1);
    assert_int_equal(kr_device_sync(dev), KR_FAULT_CANCELLED);
    assert_true(atomic_load(&trap.next) > 0);
    if (atomic_load(&trap.pool->next) - atomic_load(&trap.next) > threads)
        fail_msg("%s: %d items begun after the flag", kr_device_name(dev),
                 (int)(atomic_load(&trap.pool->next) - atomic_load(&trap.next)));
    if (threads == 1 && share_written(out) > 0.5)
        fail_msg("%s: %.2f of the result was computed", kr_device_name(dev), share_written(out));
}

static void linear(struct kr_device *dev)
{
    enum { N = 512, K = 512, OUT = 2048, BYTES = OUT * K };
    struct kr_weight w = {.dtype = KR_F8_E4M3, .out = OUT, .in = K, .scale = 1};
    void *codes = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(codes != MAP_FAILED);
    w.data = codes;
    for (int cancel = 0; cancel < 2; cancel++) {
        begin(dev, &trap.flag);
        float *host = random_floats((size_t)N * K);
        struct kr_tensor x = tensor_of(dev, KR_F32, host, N, K, 0), y = untouched(dev, N, OUT, 0);
        if (cancel)
            set_trap(dev, codes, BYTES, 0.25);
        kr_linear(dev, y, x, &w, KR_ACT_NONE);
        if (cancel)
            check_cancelled(dev, y);
        else
            assert_true(share_written(y) == 1);
        free(host);
    }
    munmap(codes, BYTES);
}

static void attention(struct kr_device *dev)
{
    enum { N = 2048, HEADS = 4, D = 64 };
    for (int cancel = 0; cancel < 2; cancel++) {
        begin(dev, &trap.flag);
        float *host = random_floats((size_t)N * HEADS * D);
        struct kr_tensor q = tensor_of(dev, KR_F32, host, N, HEADS * D, 0),
                         k = tensor_of(dev, KR_F32, host, N, HEADS * D, 0),
                         out = untouched(dev, N, HEADS * D, 0);
        if (cancel)
            set_trap(dev, q.data, (size_t)N * HEADS * D * sizeof(float), 0.25);
        kr_attention(dev, out, &(struct kr_attention){q, k, k, HEADS, HEADS, KR_MASK_NONE, {0}});
        if (cancel)
            check_cancelled(dev, out);
        else
            assert_true(share_written(out) == 1);
        free(host);
    }
}

static void convolution(struct kr_device *dev)
{
    enum { SIDE = 128, C = 64 };
    struct kr_conv c = {.dtype = KR_F32, .out = C, .in = C, .kt = 1, .kh = 3, .kw = 3};
    float *kernel = random_floats(C * C * 9), *host = random_floats(SIDE * SIDE * C);
    c.data = kernel;
    for (int cancel = 0; cancel < 2; cancel++) {
        begin(dev, &trap.flag);
        struct kr_tensor x = tensor_of(dev, KR_F32, host, SIDE, SIDE, C),
                         out = untouched(dev, SIDE, SIDE, C);
        if (cancel)
            set_trap(dev, x.data, SIDE * SIDE * C * sizeof(float), 0.25);
        kr_conv2d(dev, out, x, &c);
        if (cancel)
            check_cancelled(dev, out);
        else
            assert_true(share_written(out) == 1);
    }
    kr_conv_fini(dev, &c);
    free(host);
    free(kernel);
}

static void (*operation)(struct kr_device *dev);

static void body(struct kr_device *dev)
{
    if (!kr_device_has_memory(dev)) { /* another device's memory can't be protected */
        atomic_store(&trap.flag, 0);
        operation(dev);
    }
    begin(dev, NULL);
}

/* Every level with several threads and with one. */
static void check(void (*op)(struct kr_device *dev))
{
    static const struct kr_device_options single[] = {{1, KR_ISA_AVX2, KR_COMPUTE_F32},
                                                      {1, KR_ISA_AVX512, KR_COMPUTE_F32},
                                                      {1, KR_ISA_AVX512, KR_COMPUTE_BF16}};
    const struct sigaction action = {.sa_sigaction = spring, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &action, NULL); /* cmocka's own, which it put there, comes back after it */
    operation = op;
    on_every_device(body);
    for (size_t i = 0; i < sizeof single / sizeof single[0]; i++) {
        char why[200];
        struct kr_device *dev = kr_device_open_cpu(&single[i], why, sizeof why);
        if (dev) /* not every CPU multiplies BF16 */
            run_on(dev, body);
    }
}

static void test_linear(void **state)
{
    (void)state;
    check(linear);
}

static void test_attention(void **state)
{
    (void)state;
    check(attention);
}

static void test_conv(void **state)
{
    (void)state;
    check(convolution);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_linear),
                                       cmocka_unit_test(test_attention),
                                       cmocka_unit_test(test_conv)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
