/* SPDX-License-Identifier: Apache-2.0
 *
 * How long a GPU takes for each operation of Krea 2 at 1024 x 1024, and what fraction that is of
 * what the card could do: of its products' rate or of its memory's, whichever binds. tests/gpu/run
 * calls it and makes a table of the lines of JSON.
 *
 *   gpu TFLOPS_BF16 TFLOPS_FP8 GB_PER_S [DIVISOR [expand]]
 *
 * The peaks are the vendor's. DIVISOR makes everything smaller, for a try where there is no GPU.
 * Weights are random codes of FP8, so that the card switches as much as it would for real ones.
 */
#include "kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RUNS = 20, WARM = 3 };

struct bench {
    struct kr_device *dev;
    double peak[2], gbps; /* FLOP/s of bf16 and FP8, bytes/s */
    int runs;
    int64_t n, width, kv, head, hidden; /* tokens; sizes of a block */
    int64_t side, base;                 /* of the latent; channels of the VAE */
    enum kr_dtype input;                /* of products whose weights are FP8 without a flag */
};

/* One operation: what it does, how much that is, and how often a picture has it. */
struct op {
    const char *name;
    void (*run)(struct bench *b, void *of);
    void *of;
    double flop, bytes;
    int fp8, count;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void fail(const struct bench *b)
{
    fprintf(stderr, "gpu: %s\n", kr_device_fault_text(b->dev));
    exit(1);
}

static void measure(struct bench *b, const struct op *op)
{
    double before, seconds, least, of_products, of_memory;
    for (int i = 0; i < WARM; i++)
        op->run(b, op->of);
    if (kr_device_sync(b->dev) != KR_FINE)
        fail(b);
    before = now();
    for (int i = 0; i < b->runs; i++)
        op->run(b, op->of);
    if (kr_device_sync(b->dev) != KR_FINE)
        fail(b);
    seconds = (now() - before) / b->runs;
    of_products = op->flop / b->peak[op->fp8];
    of_memory = op->bytes / b->gbps;
    least = of_products > of_memory ? of_products : of_memory;
    printf("{\"op\": \"%s\", \"ms\": %.4f, \"count\": %d, \"tflops\": %.1f, \"gb_per_s\": %.0f, "
           "\"bound\": \"%s\", \"fraction\": %.3f}\n",
           op->name, seconds * 1e3, op->count, op->flop / seconds * 1e-12,
           op->bytes / seconds * 1e-9,
           of_products < of_memory ? "memory"
           : op->fp8               ? "fp8"
                                   : "bf16",
           least / seconds);
    fflush(stdout);
}

/* ---------------------------------------------------------------------------- products ------ */

struct product {
    struct kr_tensor out, x, gate;
    struct kr_weight w[4];
    const struct kr_weight *all[4];
    int count;
};

static struct kr_weight weight(enum kr_dtype dtype, int64_t out, int64_t in, int full_precision)
{
    struct kr_weight w = {
        .dtype = dtype, .out = out, .in = in, .scale = 1e-3f, .full_precision = full_precision};
    size_t size = (size_t)(out * in) * kr_dtype_size(dtype);
    uint8_t *codes = malloc(size);
    uint64_t state = 88172645463325252u;
    if (!codes)
        exit(1);
    for (size_t i = 0; i < size; i++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        codes[i] = (uint8_t)(state >> 40) & 0xbf; /* magnitudes below 2 */
    }
    w.data = codes;
    return w;
}

static void run_many(struct bench *b, void *of)
{
    struct product *p = of;
    kr_linear_many(b->dev, p->out, p->x, p->all, p->count);
}

static void run_add(struct bench *b, void *of)
{
    struct product *p = of;
    kr_linear_add(b->dev, p->out, p->gate, p->x, &p->w[0]);
}

/* Random values in a new tensor. */
static struct kr_tensor filled(struct bench *b, enum kr_dtype dtype, int64_t d0, int64_t d1,
                               int64_t d2)
{
    struct kr_tensor t = kr_new(b->dev, dtype, d0, d1, d2, 0);
    float *x = malloc((size_t)kr_count(&t) * sizeof *x);
    uint32_t state = 1;
    if (!x)
        exit(1);
    for (int64_t i = 0; i < kr_count(&t); i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = (float)(int32_t)state * 0x1p-31f;
    }
    kr_upload(b->dev, t, x);
    free(x);
    return t;
}

/* An input of products: quantized where they want it so. */
static struct kr_tensor input(struct bench *b, enum kr_dtype dtype, int64_t cols)
{
    struct kr_tensor x = filled(b, KR_BF16, b->n, cols, 0), q;
    if (dtype != KR_F8_E4M3)
        return x;
    q = kr_new(b->dev, dtype, b->n, cols, 0, 0);
    kr_swiglu(b->dev, q, x, x);
    return q;
}

static void many(struct bench *b, const char *name, const int64_t *outs, int count, int full,
                 enum kr_dtype x)
{
    struct kr_mark mark = kr_arena_mark(b->dev);
    struct product p = {.count = count};
    int64_t out = 0;
    for (int i = 0; i < count; i++) {
        p.w[i] = weight(KR_F8_E4M3, outs[i], b->width, full);
        p.all[i] = &p.w[i];
        out += outs[i];
    }
    p.x = input(b, x, b->width);
    p.out = kr_new(b->dev, KR_BF16, b->n, out, 0, 0);
    int fp8 = !full && b->input == KR_F8_E4M3;
    measure(b, &(struct op){name, run_many, &p, 2.0 * (double)(b->n * out * b->width),
                            (double)(out * b->width + b->n * (2 * out + b->width)), fp8, 28});
    for (int i = 0; i < count; i++)
        free((void *)(uintptr_t)p.w[i].data);
    kr_device_residency(b->dev, KR_RESIDENT, 0);
    kr_arena_release(b->dev, mark);
}

static void add(struct bench *b, const char *name, int64_t in, int full, enum kr_dtype x)
{
    struct kr_mark mark = kr_arena_mark(b->dev);
    struct product p = {.count = 1};
    p.w[0] = weight(KR_F8_E4M3, b->width, in, full);
    p.x = input(b, x, in);
    p.out = filled(b, KR_F32, b->n, b->width, 0);
    p.gate = filled(b, KR_F32, b->width, 0, 0);
    int fp8 = !full && b->input == KR_F8_E4M3;
    measure(b, &(struct op){name, run_add, &p, 2.0 * (double)(b->n * b->width * in),
                            (double)(b->width * in + b->n * (8 * b->width + in)), fp8, 28});
    free((void *)(uintptr_t)p.w[0].data);
    kr_device_residency(b->dev, KR_RESIDENT, 0);
    kr_arena_release(b->dev, mark);
}

/* The same product of bf16 inputs with weights of three types: E4M3, of which linear.cu has the
 * device's own product up to some number of rows (always up to sm_89 and on sm_120); E5M2, which
 * cuBLASLt gets expanded; bf16, which it gets as they are. Where the first two are even is where
 * linear.cu's limit should be. */
static void ways(struct bench *b, enum kr_dtype dtype, int64_t out)
{
    const int64_t rows[] = {64, 128, 256, 512, b->n};
    struct product p = {.count = 1};
    char name[80];
    p.w[0] = weight(dtype, out, b->width, 1);
    p.all[0] = &p.w[0];
    for (int i = 0; i < 5; i++) {
        struct kr_mark mark = kr_arena_mark(b->dev);
        int64_t n = rows[i];
        p.x = filled(b, KR_BF16, n, b->width, 0);
        p.out = kr_new(b->dev, KR_BF16, n, out, 0, 0);
        snprintf(name, sizeof name, "%d rows to %d, %s", (int)n, (int)out, kr_dtype_name(dtype));
        measure(b, &(struct op){name, run_many, &p, 2.0 * (double)(n * out * b->width),
                                (double)(out * b->width) * (double)kr_dtype_size(dtype) +
                                    (double)(2 * n * (out + b->width)),
                                0, 0});
        kr_arena_release(b->dev, mark);
    }
    free((void *)(uintptr_t)p.w[0].data);
    kr_device_residency(b->dev, KR_RESIDENT, 0);
}

/* ------------------------------------------------------------------------------- others ------ */

struct others {
    struct kr_tensor out, x, y, weight, shift;
    struct kr_qk qk;
    struct kr_rope rope;
    struct kr_attention attention;
    struct kr_conv conv;
};

static void run_attention(struct bench *b, void *of)
{
    struct others *o = of;
    kr_attention(b->dev, o->out, &o->attention);
}

static void run_rope(struct bench *b, void *of)
{
    struct others *o = of;
    kr_qk_norm_rope(b->dev, &o->qk, 1e-5f, &o->rope);
}

static void run_norm(struct bench *b, void *of)
{
    struct others *o = of;
    kr_rms_norm_modulate(b->dev, o->out, (struct kr_tensor){0}, o->x, o->weight, 1e-5f, o->weight,
                         o->shift);
}

static void run_swiglu(struct bench *b, void *of)
{
    struct others *o = of;
    kr_swiglu(b->dev, o->out, o->x, o->y);
}

static void run_conv(struct bench *b, void *of)
{
    struct others *o = of;
    kr_conv2d(b->dev, o->out, o->x, &o->conv);
}

static void run_norm_silu(struct bench *b, void *of)
{
    struct others *o = of;
    kr_rms_norm(b->dev, o->out, o->x, o->weight, 1e-30f, KR_ACT_SILU);
}

static void attention(struct bench *b)
{
    struct kr_mark mark = kr_arena_mark(b->dev);
    int64_t all = b->width + 2 * b->kv;
    struct kr_tensor x = filled(b, KR_BF16, b->n, all, 0);
    struct others o = {.out = kr_new(b->dev, KR_BF16, b->n, b->width, 0, 0)};
    struct kr_tensor half = filled(b, KR_F32, b->n, b->head / 2, 0);
    o.qk = (struct kr_qk){kr_columns(x, 0, b->width), kr_columns(x, b->width, b->kv),
                          filled(b, KR_F32, b->head, 0, 0), filled(b, KR_F32, b->head, 0, 0)};
    o.rope = (struct kr_rope){half, half, KR_ROPE_INTERLEAVED};
    o.attention = (struct kr_attention){o.qk.q,
                                        o.qk.k,
                                        kr_columns(x, b->width + b->kv, b->kv),
                                        b->width / b->head,
                                        b->kv / b->head,
                                        KR_MASK_NONE,
                                        {0}};
    measure(b, &(struct op){"attention", run_attention, &o, 4.0 * (double)(b->n * b->n * b->width),
                            (double)(2 * b->n * (all + b->width)), 0, 28});
    measure(b, &(struct op){"q and k norm, rotation", run_rope, &o, 0,
                            (double)(4 * b->n * (b->width + b->kv)), 0, 28});
    kr_arena_release(b->dev, mark);
}

static void rows(struct bench *b)
{
    struct kr_mark mark = kr_arena_mark(b->dev);
    struct others o = {.x = filled(b, KR_F32, b->n, b->width, 0),
                       .weight = filled(b, KR_F32, b->width, 0, 0),
                       .shift = filled(b, KR_F32, b->width, 0, 0)};
    int64_t size = b->input == KR_F8_E4M3 ? 1 : 2;
    o.out = kr_new(b->dev, b->input, b->n, b->width, 0, 0);
    measure(b, &(struct op){"norm and modulation", run_norm, &o, 0,
                            (double)(b->n * b->width * (4 + size)), 0, 2 * 28});
    struct kr_tensor both = filled(b, KR_BF16, b->n, 2 * b->hidden, 0);
    o.x = kr_columns(both, 0, b->hidden);
    o.y = kr_columns(both, b->hidden, b->hidden);
    o.out = kr_new(b->dev, b->input, b->n, b->hidden, 0, 0);
    measure(b, &(struct op){"swiglu", run_swiglu, &o, 0, (double)(b->n * b->hidden * (4 + size)), 0,
                            28});
    kr_arena_release(b->dev, mark);
}

/* A 3x3 convolution at `scale` times the latent's side, and the norm before it. */
static void conv(struct bench *b, const char *name, int64_t scale, int64_t channels)
{
    struct kr_mark mark = kr_arena_mark(b->dev);
    int64_t side = b->side * scale, pixels = side * side;
    float *kernel = malloc((size_t)(channels * channels * 9) * sizeof *kernel);
    char norm[64];
    if (!kernel)
        exit(1);
    for (int64_t i = 0; i < channels * channels * 9; i++)
        kernel[i] = (float)(i % 31 - 15) * 1e-3f;
    struct others o = {.x = filled(b, KR_BF16, side, side, channels),
                       .out = kr_new(b->dev, KR_F32, side, side, channels, 0),
                       .weight = filled(b, KR_F32, channels, 0, 0),
                       .conv = {kernel, KR_F32, channels, channels, 1, 3, 3, {0}, NULL}};
    measure(b, &(struct op){name, run_conv, &o, 18.0 * (double)(pixels * channels * channels),
                            (double)(pixels * channels * 6), 0, 0});
    o.y = o.x, o.x = o.out, o.out = o.y;
    snprintf(norm, sizeof norm, "norm and silu, %d channels", (int)channels);
    measure(b, &(struct op){norm, run_norm_silu, &o, 0, (double)(pixels * channels * 6), 0, 0});
    kr_conv_fini(b->dev, &o.conv);
    free(kernel);
    kr_arena_release(b->dev, mark);
}

static void vae_attention(struct bench *b)
{
    struct kr_mark mark = kr_arena_mark(b->dev);
    int64_t n = b->side * b->side, d = 4 * b->base;
    struct kr_tensor x = filled(b, KR_BF16, n, d, 0);
    struct others o = {.out = kr_new(b->dev, KR_BF16, n, d, 0, 0)};
    o.attention = (struct kr_attention){x, x, x, 1, 1, KR_MASK_NONE, {0}};
    measure(b, &(struct op){"attention of the VAE", run_attention, &o, 4.0 * (double)(n * n * d),
                            (double)(8 * n * d), 0, 0});
    kr_arena_release(b->dev, mark);
}

int main(int argc, char **argv)
{
    char why[300] = "";
    int64_t by = argc > 4 ? atoll(argv[4]) : 1;
    struct kr_cuda_options options = {.fp8 = argc > 5 ? KR_FP8_EXPAND : KR_FP8_BEST};
    struct bench b = {.runs = by > 1 ? 1 : RUNS,
                      .n = 4156 / by,
                      .width = 6144 / by,
                      .kv = 1536 / by,
                      .head = 128,
                      .hidden = 16384 / by,
                      .side = 128 / by,
                      .base = 96};
    if (argc < 4 || by < 1 || b.kv < b.head) {
        fprintf(stderr, "usage: gpu TFLOPS_BF16 TFLOPS_FP8 GB_PER_S [DIVISOR [expand]]\n");
        return 2;
    }
    b.peak[0] = atof(argv[1]) * 1e12;
    b.peak[1] = atof(argv[2]) * 1e12;
    b.gbps = atof(argv[3]) * 1e9;
    b.dev = kr_device_open_cuda(&options, why, sizeof why);
    if (!b.dev || kr_job_begin(b.dev, NULL, (size_t)(by > 1 ? 256 : 3072) << 20, why, sizeof why)) {
        fprintf(stderr, "gpu: %s\n", why);
        return 1;
    }
    const struct kr_weight plain = {.dtype = KR_F8_E4M3, .out = b.width, .in = b.width, .scale = 1};
    const struct kr_weight *const one[] = {&plain};
    b.input = kr_input_dtype(b.dev, one, 1);
    const int64_t qkv[] = {b.width, b.kv, b.kv}, wide[] = {b.width}, both[] = {b.hidden, b.hidden};
    many(&b, "q, k, v", qkv, 3, 0, KR_BF16);
    many(&b, "gate of the attention", wide, 1, 1, KR_BF16);
    attention(&b);
    add(&b, "output of the attention", b.width, 1, KR_BF16);
    many(&b, "gate and up", both, 2, 0, b.input);
    add(&b, "down", b.hidden, 0, b.input);
    rows(&b);
    conv(&b, "3x3, 96 channels, 1024x1024", 8, b.base);
    conv(&b, "3x3, 192 channels, 512x512", 4, 2 * b.base);
    conv(&b, "3x3, 384 channels, 256x256", 2, 4 * b.base);
    vae_attention(&b);
    const enum kr_dtype dtypes[] = {KR_F8_E4M3, KR_F8_E5M2, KR_BF16};
    for (int i = 0; i < 3; i++) {
        ways(&b, dtypes[i], b.width);
        ways(&b, dtypes[i], 2 * b.hidden);
    }
    kr_job_end(b.dev);
    kr_device_close(b.dev);
    return 0;
}
