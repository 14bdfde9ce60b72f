/* SPDX-License-Identifier: Apache-2.0
 *
 * How long the longest operations of the full-size model live on after a cancel, at any level of
 * the CPU's instructions: bench_cancel runs whole jobs, which take minutes without AMX. Pictures of
 * 1024x1024 and 2048x2048; the flag is set at random moments (seeded), the longest wait counts.
 *
 *   bench_cancel_ops [base|avx2|avx512|amx [MOMENTS]]
 *
 * oneDNN has levels of its own: set ONEDNN_MAX_CPU_ISA (SSE41, AVX2, AVX512_CORE_BF16) with them.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kernels/kernels.h"
#include "tests/bench/bench.h"

static const char *const isa_names[] = {"best", "base", "avx2", "avx512", "amx"};
static const size_t arena = (size_t)10 << 30; /* touched as far as used */

enum kind { LINEAR, ATTENTION, CONVOLUTION };

static const struct op {
    const char *name;
    enum kind kind;
    int64_t n, in, out; /* attention: tokens, width of queries, of keys */
    int64_t head, side;
} ops[] = {
    {"up, 4156 tokens", LINEAR, 4156, 6144, 16384, 0, 0},
    {"down, 4156 tokens", LINEAR, 4156, 16384, 6144, 0, 0},
    {"up, 16444 tokens", LINEAR, 16444, 6144, 16384, 0, 0},
    {"encoder's up, 94 tokens", LINEAR, 94, 2560, 9728, 0, 0},
    {"attention, 4156 tokens", ATTENTION, 4156, 6144, 1536, 128, 0},
    {"attention, 16444 tokens", ATTENTION, 16444, 6144, 1536, 128, 0},
    {"the VAE's attention, 128x128", ATTENTION, 16384, 384, 384, 384, 0},
    {"convolution of 384, 128x128", CONVOLUTION, 0, 384, 384, 0, 128},
    {"convolution of 384, 256x256", CONVOLUTION, 0, 384, 384, 0, 256},
    {"convolution of 384, 512x512", CONVOLUTION, 0, 384, 384, 0, 512},
    {"convolution of 192, 1024x1024", CONVOLUTION, 0, 192, 192, 0, 1024},
    {"convolution of 96, 2048x2048", CONVOLUTION, 0, 96, 96, 0, 2048},
};

static void *zeros(int64_t bytes)
{
    void *at = mmap(NULL, (size_t)bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (at == MAP_FAILED)
        die("no memory");
    return at;
}

/* What sets the flag, and when it did. */
struct timer {
    atomic_int flag;
    double delay, set;
};

static void *set_later(void *arg)
{
    struct timer *timer = arg;
    struct timespec t = {0, (long)(timer->delay * 1e9)};

    nanosleep(&t, NULL);
    timer->set = now();
    atomic_store(&timer->flag, 1);
    return NULL;
}

struct weights {
    struct kr_weight map;
    struct kr_conv conv;
};

static void run(struct kr_device *dev, const struct op *op, struct weights *w)
{
    enum kr_dtype dtype = kr_compute_dtype(dev);

    if (op->kind == LINEAR) {
        kr_linear(dev, kr_new(dev, dtype, op->n, op->out, 0, 0),
                  kr_new(dev, dtype, op->n, op->in, 0, 0), &w->map, KR_ACT_NONE);
    } else if (op->kind == ATTENTION) {
        struct kr_attention a = {.q = kr_new(dev, dtype, op->n, op->in, 0, 0),
                                 .k = kr_new(dev, dtype, op->n, op->out, 0, 0),
                                 .v = kr_new(dev, dtype, op->n, op->out, 0, 0),
                                 .heads = op->in / op->head,
                                 .kv_heads = op->out / op->head};

        kr_attention(dev, kr_new(dev, dtype, op->n, op->in, 0, 0), &a);
    } else {
        kr_conv2d(dev, kr_new(dev, dtype, op->side, op->side, op->out, 0),
                  kr_new(dev, dtype, op->side, op->side, op->in, 0), &w->conv);
    }
}

/* Seconds from the flag to the return; the operation comes again until then. */
static double cancelled_after(struct kr_device *dev, const struct op *op, struct weights *w)
{
    struct timer timer = {.delay = 0.02 + 0.6 * (double)rand() / (double)RAND_MAX};
    pthread_t thread;
    char why[200];
    double end;

    if (kr_job_begin(dev, &timer.flag, arena, why, sizeof(why)) < 0)
        die(why);
    if (pthread_create(&thread, NULL, set_later, &timer) != 0)
        die("no thread");
    while (kr_device_sync(dev) == KR_FINE) {
        struct kr_mark mark = kr_arena_mark(dev);

        run(dev, op, w);
        kr_arena_release(dev, mark);
    }
    end = now();
    pthread_join(thread, NULL);
    if (kr_device_sync(dev) != KR_FAULT_CANCELLED)
        die(kr_device_fault_text(dev));
    kr_job_end(dev);
    return end - timer.set;
}

static void measure(struct kr_device *dev, const struct op *op, int moments)
{
    struct weights w = {
        .map = {.dtype = KR_F8_E4M3, .out = op->out, .in = op->in, .scale = 1},
        .conv = {.dtype = KR_BF16, .out = op->out, .in = op->in, .kt = 1, .kh = 3, .kw = 3}};
    int64_t bytes = op->in * op->out * 18;
    double worst = 0;

    w.map.data = w.conv.data = zeros(bytes);
    for (int i = 0; i < moments; i++) {
        double seconds = cancelled_after(dev, op, &w);

        worst = seconds > worst ? seconds : worst;
    }
    printf("%-30s %6.1f ms\n", op->name, worst * 1e3);
    fflush(stdout);
    kr_conv_fini(dev, &w.conv);
    munmap((void *)(uintptr_t)w.map.data, (size_t)bytes);
}

int main(int argc, char **argv)
{
    struct kr_device_options options = {.isa = KR_ISA_BEST};
    int moments = argc > 2 ? atoi(argv[2]) : 3;
    struct kr_device *dev;
    char why[200];

    for (int isa = KR_ISA_BASE; argc > 1 && isa <= KR_ISA_AMX; isa++)
        if (strcmp(argv[1], isa_names[isa]) == 0)
            options.isa = (enum kr_isa)isa;
    if (argc > 1 && options.isa == KR_ISA_BEST)
        die("the level is base, avx2, avx512 or amx");
    dev = kr_device_open_cpu(&options, why, sizeof(why));
    if (!dev)
        die(why);
    printf("%s: from a cancel to the operation's return, at most\n", kr_device_name(dev));
    srand(1);
    for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++)
        measure(dev, &ops[i], moments);
    kr_device_close(dev);
    return 0;
}
