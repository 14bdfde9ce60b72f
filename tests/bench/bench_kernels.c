/* SPDX-License-Identifier: Apache-2.0
 *
 * How far the operations are from what the machine allows, as ratios, because equal machines differ
 * fourfold and one machine does from minute to minute. Both sides of a ratio are measured by turns,
 * and the median of the rounds' ratios is printed:
 *
 *   block 256, block 1024   one block of the diffusion model at full width with scaled FP8 weights,
 *                           against its matrix products alone at oneDNN's best bfloat16 rate
 *                           (weights already in bfloat16 and in the layout oneDNN asks for)
 *   encoder                 45 tokens through layers of the text encoder, against reading those
 *                           layers' FP8 weights once
 *   vae                     the convolutions and norms of the decoder at 512 x 512, against the
 * same convolutions alone in oneDNN
 *
 * Weights are random and made in memory. Usage: bench_kernels [THREADS [b][e][v] [f32|avx512|avx2]]
 */
#include "kernels/kernels.h"
#include "tests/bench/bench.h"

#include <assert.h>
#include <dnnl.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int threads;

enum { ROUNDS = 7 };

/* What came out of the rounds: medians of the ratio and of both times. */
struct result {
    double ratio, low, high, seconds, yardstick;
};

/* ours(arg) and theirs(other) by turns, each after one run to warm up; both return seconds. */
static struct result compare(double (*ours)(void *), void *arg, double (*theirs)(void *),
                             void *other)
{
    double ratio[ROUNDS], seconds[ROUNDS], yardstick[ROUNDS];
    ours(arg);
    theirs(other);
    for (int i = 0; i < ROUNDS; i++) {
        yardstick[i] = theirs(other);
        seconds[i] = ours(arg);
        ratio[i] = seconds[i] / yardstick[i];
    }
    struct result r = {.ratio = median(ratio, ROUNDS)};
    r.low = ratio[0];
    r.high = ratio[ROUNDS - 1];
    r.seconds = median(seconds, ROUNDS);
    r.yardstick = median(yardstick, ROUNDS);
    return r;
}

static void *grab(size_t bytes)
{
    void *at = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!at) {
        fprintf(stderr, "bench_kernels: no %zu MiB of memory\n", bytes >> 20);
        exit(1);
    }
    return at;
}

static uint64_t state = 88172645463325252u;

static uint64_t bits(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

/* FP8 E4M3 without NaN; scaled so that a product of unit vectors has variance about 1. */
static struct kr_weight fp8_weight(int64_t out, int64_t in)
{
    size_t n = (size_t)(out * in);
    uint64_t *data = grab(n);
    for (size_t i = 0; i < n / 8; i++)
        data[i] = bits() & 0xb7b7b7b7b7b7b7b7u;
    return (struct kr_weight){
        .data = data, .dtype = KR_F8_E4M3, .out = out, .in = in, .scale = 0.02f};
}

static struct kr_tensor filled(struct kr_device *dev, enum kr_dtype dtype, int64_t d0, int64_t d1,
                               int64_t d2)
{
    struct kr_tensor t = kr_new(dev, dtype, d0, d1, d2, 0);
    float *host = grab((size_t)kr_count(&t) * sizeof *host);
    for (int64_t i = 0; i < kr_count(&t); i++)
        host[i] = (float)(bits() >> 40) / 8388608.0f - 1.0f;
    kr_upload(dev, t, host);
    free(host);
    return t;
}

static void check(dnnl_status_t status)
{
    if (status == dnnl_success)
        return;
    fprintf(stderr, "bench_kernels: oneDNN failed with status %d\n", (int)status);
    exit(1);
}

/* --------------------------------------------------------------- the yardstick: oneDNN ------ */

struct primitive {
    dnnl_primitive_t primitive;
    dnnl_exec_arg_t args[3];
    int times; /* how often the work has it */
};

/* All products, or all convolutions, of a piece of work. */
struct yardstick {
    struct primitive primitive[32];
    int count;
    double flops;
};

static dnnl_engine_t engine;
static dnnl_stream_t stream;

static dnnl_memory_t memory_of(const dnnl_memory_desc_t *desc)
{
    dnnl_memory_t memory;
    void *data;
    check(dnnl_memory_create(&memory, desc, engine, DNNL_MEMORY_ALLOCATE));
    check(dnnl_memory_get_data_handle(memory, &data));
    memset(data, 0x3c, dnnl_memory_desc_get_size(desc));
    return memory;
}

/* Everything as oneDNN likes it, on all threads. */
static void yardstick_add(struct yardstick *y, const_dnnl_op_desc_t desc, int times)
{
    const dnnl_query_t query[] = {dnnl_query_src_md, dnnl_query_weights_md, dnnl_query_dst_md};
    const int name[] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST};
    struct primitive *p = &y->primitive[y->count++];
    dnnl_primitive_desc_t pd;
    assert(y->count <= 32);
    omp_set_num_threads(threads);
    check(dnnl_primitive_desc_create(&pd, desc, NULL, engine, NULL));
    check(dnnl_primitive_create(&p->primitive, pd));
    for (int i = 0; i < 3; i++)
        p->args[i] =
            (dnnl_exec_arg_t){name[i], memory_of(dnnl_primitive_desc_query_md(pd, query[i], 0))};
    p->times = times;
    dnnl_primitive_desc_destroy(pd);
}

static double yardstick_run(void *arg)
{
    struct yardstick *y = arg;
    double seconds = 0;
    omp_set_num_threads(threads);
    for (int i = 0; i < y->count; i++) {
        struct primitive *p = &y->primitive[i];
        double start = now();
        check(dnnl_primitive_execute(p->primitive, stream, 3, p->args));
        check(dnnl_stream_wait(stream));
        seconds += p->times * (now() - start);
    }
    return seconds;
}

static void yardstick_fini(struct yardstick *y)
{
    for (int i = 0; i < y->count; i++) {
        for (int j = 0; j < 3; j++)
            dnnl_memory_destroy(y->primitive[i].args[j].memory);
        dnnl_primitive_destroy(y->primitive[i].primitive);
    }
}

static void add_product(struct yardstick *y, int64_t n, int64_t out, int64_t in,
                        dnnl_data_type_t type)
{
    const dnnl_dims_t a = {n, in}, b = {in, out}, c = {n, out};
    dnnl_memory_desc_t src, weights, dst;
    dnnl_matmul_desc_t desc;
    check(dnnl_memory_desc_init_by_tag(&src, 2, a, type, dnnl_ab));
    check(dnnl_memory_desc_init_by_tag(&weights, 2, b, type, dnnl_format_tag_any));
    check(dnnl_memory_desc_init_by_tag(&dst, 2, c, type, dnnl_ab));
    check(dnnl_matmul_desc_init(&desc, &src, &weights, NULL, &dst));
    yardstick_add(y, &desc, 1);
    y->flops += 2.0 * (double)(n * out * in);
}

static void add_conv(struct yardstick *y, int64_t size, int64_t in, int64_t out, int64_t k,
                     int times, dnnl_data_type_t type)
{
    const dnnl_dims_t x_dims = {1, in, size, size}, y_dims = {1, out, size, size};
    const dnnl_dims_t kernel = {out, in, k, k}, one = {1, 1}, pad = {k / 2, k / 2};
    dnnl_memory_desc_t src, weights, dst;
    dnnl_convolution_desc_t desc;
    check(dnnl_memory_desc_init_by_tag(&src, 4, x_dims, type, dnnl_nhwc));
    check(dnnl_memory_desc_init_by_tag(&weights, 4, kernel, type, dnnl_format_tag_any));
    check(dnnl_memory_desc_init_by_tag(&dst, 4, y_dims, type, dnnl_nhwc));
    check(dnnl_convolution_forward_desc_init(&desc, dnnl_forward_inference, dnnl_convolution_direct,
                                             &src, &weights, NULL, &dst, one, pad, pad));
    yardstick_add(y, &desc, times);
    y->flops += 2.0 * times * (double)(size * size * k * k * in * out);
}

static dnnl_data_type_t type_of(struct kr_device *dev)
{
    return kr_compute_dtype(dev) == KR_BF16 ? dnnl_bf16 : dnnl_f32;
}

static void begin(struct kr_device *dev, size_t bytes)
{
    char why[200];
    if (kr_job_begin(dev, NULL, bytes, why, sizeof why)) {
        fprintf(stderr, "bench_kernels: %s\n", why);
        exit(1);
    }
}

static void end(struct kr_device *dev)
{
    if (kr_device_sync(dev) != KR_FINE) {
        fprintf(stderr, "bench_kernels: %s\n", kr_device_fault_text(dev));
        exit(1);
    }
    kr_job_end(dev);
}

/* ---------------------------------------------------------------- a block of the model ------ */

enum { WIDTH = 6144, HEADS = 48, KV_HEADS = 12, HEAD = 128, HIDDEN = 16384 };

struct block {
    struct kr_device *dev;
    struct kr_weight wq, wk, wv, gate, wo, mlp_gate, up, down;
    struct kr_tensor x, norm, head_norm, scale, shift, residual_gate;
    struct kr_rope rope;
    double attention, rest; /* seconds of the last run */
};

static double run_block(void *arg)
{
    struct block *b = arg;
    struct kr_device *dev = b->dev;
    int64_t n = b->x.dim[0];
    struct kr_mark mark = kr_arena_mark(dev);
    struct kr_tensor h = kr_new(dev, KR_BF16, n, WIDTH, 0, 0);
    struct kr_tensor q = kr_new(dev, KR_BF16, n, WIDTH, 0, 0);
    struct kr_tensor k = kr_new(dev, KR_BF16, n, KV_HEADS * HEAD, 0, 0);
    struct kr_tensor v = kr_new(dev, KR_BF16, n, KV_HEADS * HEAD, 0, 0);
    struct kr_tensor a = kr_new(dev, KR_BF16, n, WIDTH, 0, 0);
    struct kr_tensor gate = kr_new(dev, KR_BF16, n, WIDTH, 0, 0);
    struct kr_tensor g = kr_new(dev, KR_BF16, n, HIDDEN, 0, 0);
    struct kr_tensor u = kr_new(dev, KR_BF16, n, HIDDEN, 0, 0);
    double begun = now(), start = begun;
    kr_rms_norm_modulate(dev, h, (struct kr_tensor){0}, b->x, b->norm, 1e-5f, b->scale, b->shift);
    b->rest = now() - start;
    kr_linear(dev, q, h, &b->wq, KR_ACT_NONE);
    kr_linear(dev, k, h, &b->wk, KR_ACT_NONE);
    kr_linear(dev, v, h, &b->wv, KR_ACT_NONE);
    kr_linear(dev, gate, h, &b->gate, KR_ACT_NONE);
    start = now();
    kr_qk_norm_rope(dev, &(struct kr_qk){q, k, b->head_norm, b->head_norm}, 1e-5f, &b->rope);
    b->rest += now() - start;
    start = now();
    kr_attention(dev, a, &(struct kr_attention){q, k, v, HEADS, KV_HEADS, KR_MASK_NONE, {0}});
    b->attention = now() - start;
    start = now();
    kr_mul_sigmoid(dev, a, a, gate);
    b->rest += now() - start;
    kr_linear_add(dev, b->x, b->residual_gate, a, &b->wo);
    start = now();
    kr_rms_norm_modulate(dev, h, (struct kr_tensor){0}, b->x, b->norm, 1e-5f, b->scale, b->shift);
    b->rest += now() - start;
    kr_linear(dev, g, h, &b->mlp_gate, KR_ACT_NONE);
    kr_linear(dev, u, h, &b->up, KR_ACT_NONE);
    start = now();
    kr_swiglu(dev, g, g, u);
    b->rest += now() - start;
    kr_linear_add(dev, b->x, b->residual_gate, g, &b->down);
    kr_arena_release(dev, mark);
    return now() - begun;
}

static void bench_block(struct kr_device *dev, struct block *b, int64_t n)
{
    static const int64_t shape[][2] = {
        {WIDTH, WIDTH}, {KV_HEADS * HEAD, WIDTH}, {KV_HEADS * HEAD, WIDTH}, {WIDTH, WIDTH},
        {WIDTH, WIDTH}, {HIDDEN, WIDTH},          {HIDDEN, WIDTH},          {WIDTH, HIDDEN}};
    struct yardstick products = {.count = 0};
    for (int i = 0; i < 8; i++)
        add_product(&products, n, shape[i][0], shape[i][1], type_of(dev));
    begin(dev, (size_t)1 << 30);
    b->dev = dev;
    b->x = filled(dev, KR_F32, n, WIDTH, 0);
    b->norm = filled(dev, KR_F32, WIDTH, 0, 0);
    b->head_norm = filled(dev, KR_F32, HEAD, 0, 0);
    b->scale = b->shift = b->residual_gate = b->norm;
    b->rope = (struct kr_rope){filled(dev, KR_F32, n, HEAD / 2, 0),
                               filled(dev, KR_F32, n, HEAD / 2, 0), KR_ROPE_INTERLEAVED};
    struct result r = compare(run_block, b, yardstick_run, &products);
    printf("block %lld+45: %.3f of its products alone (%.3f to %.3f; %.0f ms against %.0f ms at "
           "%.0f GFLOP/s; attention %.0f ms, rows %.0f ms)\n",
           (long long)n - 45, r.ratio, r.low, r.high, r.seconds * 1e3, r.yardstick * 1e3,
           products.flops / r.yardstick * 1e-9, b->attention * 1e3, b->rest * 1e3);
    yardstick_fini(&products);
    end(dev);
}

static void bench_blocks(struct kr_device *dev)
{
    struct block b = {.wq = fp8_weight(WIDTH, WIDTH),
                      .wk = fp8_weight(KV_HEADS * HEAD, WIDTH),
                      .wv = fp8_weight(KV_HEADS * HEAD, WIDTH),
                      .gate = fp8_weight(WIDTH, WIDTH),
                      .wo = fp8_weight(WIDTH, WIDTH),
                      .mlp_gate = fp8_weight(HIDDEN, WIDTH),
                      .up = fp8_weight(HIDDEN, WIDTH),
                      .down = fp8_weight(WIDTH, HIDDEN)};
    bench_block(dev, &b, 256 + 45);
    bench_block(dev, &b, 1024 + 45);
    const struct kr_weight *all[] = {&b.wq, &b.wk,       &b.wv, &b.gate,
                                     &b.wo, &b.mlp_gate, &b.up, &b.down};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free((void *)(uintptr_t)all[i]->data);
}

/* --------------------------------------------------------------- layers of the encoder ------ */

enum { E_WIDTH = 2560, E_HEADS = 32, E_KV = 8, E_HIDDEN = 9728, E_TOKENS = 45, LAYERS = 6 };

struct layer {
    struct kr_weight q, k, v, o, gate, up, down;
};

struct encoder {
    struct kr_device *dev;
    struct layer layer[LAYERS];
    struct kr_tensor x, norm, head_norm;
    struct kr_rope rope;
    int at; /* the layer that is read next, by one thread */
    uint64_t sum;
};

static void run_layer(struct encoder *e, const struct layer *l)
{
    struct kr_device *dev = e->dev;
    struct kr_tensor none = {0};
    struct kr_mark mark = kr_arena_mark(dev);
    struct kr_tensor h = kr_new(dev, KR_F32, E_TOKENS, E_WIDTH, 0, 0);
    struct kr_tensor q = kr_new(dev, KR_F32, E_TOKENS, E_HEADS * HEAD, 0, 0);
    struct kr_tensor k = kr_new(dev, KR_F32, E_TOKENS, E_KV * HEAD, 0, 0);
    struct kr_tensor v = kr_new(dev, KR_F32, E_TOKENS, E_KV * HEAD, 0, 0);
    struct kr_tensor a = kr_new(dev, KR_F32, E_TOKENS, E_HEADS * HEAD, 0, 0);
    struct kr_tensor g = kr_new(dev, KR_F32, E_TOKENS, E_HIDDEN, 0, 0);
    struct kr_tensor u = kr_new(dev, KR_F32, E_TOKENS, E_HIDDEN, 0, 0);
    kr_rms_norm(dev, h, e->x, e->norm, 1e-6f, KR_ACT_NONE);
    kr_linear(dev, q, h, &l->q, KR_ACT_NONE);
    kr_linear(dev, k, h, &l->k, KR_ACT_NONE);
    kr_linear(dev, v, h, &l->v, KR_ACT_NONE);
    kr_qk_norm_rope(dev, &(struct kr_qk){q, k, e->head_norm, e->head_norm}, 1e-6f, &e->rope);
    kr_attention(dev, a, &(struct kr_attention){q, k, v, E_HEADS, E_KV, KR_MASK_CAUSAL, {0}});
    kr_linear_add(dev, e->x, none, a, &l->o);
    kr_rms_norm(dev, h, e->x, e->norm, 1e-6f, KR_ACT_NONE);
    kr_linear(dev, g, h, &l->gate, KR_ACT_NONE);
    kr_linear(dev, u, h, &l->up, KR_ACT_NONE);
    kr_swiglu(dev, g, g, u);
    kr_linear_add(dev, e->x, none, g, &l->down);
    kr_arena_release(dev, mark);
}

static double run_encoder(void *arg)
{
    struct encoder *e = arg;
    double start = now();
    for (int i = 0; i < LAYERS; i++)
        run_layer(e, &e->layer[i]);
    return now() - start;
}

static size_t weights_of(const struct layer *l, const struct kr_weight *all[7])
{
    const struct kr_weight *w[7] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
    size_t bytes = 0;
    for (int i = 0; i < 7; i++) {
        all[i] = w[i];
        bytes += (size_t)(w[i]->out * w[i]->in);
    }
    return bytes;
}

static double read_weights(void *arg)
{
    struct encoder *e = arg;
    double start = now();
    uint64_t sum = 0;
    for (int i = 0; i < LAYERS; i++) {
        const struct kr_weight *all[7];
        weights_of(&e->layer[i], all);
        for (int j = 0; j < 7; j++) {
            const uint64_t *data = all[j]->data;
            int64_t n = all[j]->out * all[j]->in / 8;
#pragma omp parallel for simd reduction(+ : sum) num_threads(threads)
            for (int64_t k = 0; k < n; k++)
                sum += data[k];
        }
    }
    e->sum += sum;
    return now() - start;
}

static void bench_encoder(struct kr_device *dev)
{
    struct encoder e = {.dev = dev};
    size_t bytes = 0;
    for (int i = 0; i < LAYERS; i++) {
        const struct kr_weight *all[7];
        e.layer[i] = (struct layer){.q = fp8_weight(E_HEADS * HEAD, E_WIDTH),
                                    .k = fp8_weight(E_KV * HEAD, E_WIDTH),
                                    .v = fp8_weight(E_KV * HEAD, E_WIDTH),
                                    .o = fp8_weight(E_WIDTH, E_HEADS * HEAD),
                                    .gate = fp8_weight(E_HIDDEN, E_WIDTH),
                                    .up = fp8_weight(E_HIDDEN, E_WIDTH),
                                    .down = fp8_weight(E_WIDTH, E_HIDDEN)};
        bytes += weights_of(&e.layer[i], all);
    }
    begin(dev, (size_t)64 << 20);
    e.x = filled(dev, KR_F32, E_TOKENS, E_WIDTH, 0);
    e.norm = filled(dev, KR_F32, E_WIDTH, 0, 0);
    e.head_norm = filled(dev, KR_F32, HEAD, 0, 0);
    e.rope = (struct kr_rope){filled(dev, KR_F32, E_TOKENS, HEAD / 2, 0),
                              filled(dev, KR_F32, E_TOKENS, HEAD / 2, 0), KR_ROPE_HALVES};
    struct result r = compare(run_encoder, &e, read_weights, &e);
    printf("encoder, 45 tokens: %.3f of reading its weights (%.3f to %.3f; %.1f ms a layer against "
           "%.1f ms at %.1f GB/s)%s\n",
           r.ratio, r.low, r.high, r.seconds * 1e3 / LAYERS, r.yardstick * 1e3 / LAYERS,
           (double)bytes / r.yardstick * 1e-9, e.sum ? "" : " ");
    end(dev);
    for (int i = 0; i < LAYERS; i++) {
        const struct kr_weight *all[7];
        weights_of(&e.layer[i], all);
        for (int j = 0; j < 7; j++)
            free((void *)(uintptr_t)all[j]->data);
    }
}

/* ------------------------------------------------------------------- stages of the VAE ------ */

/* The decoder at 512 x 512, base 96: per stage the size, the channels that come in and go on, and
 * the residual blocks; an upsampling to half the channels behind all but the last. */
static const struct stage {
    int64_t size, in, out;
    int blocks, up;
} stages[] = {
    {64, 384, 384, 5, 1}, {128, 192, 384, 3, 1}, {256, 192, 192, 3, 1}, {512, 96, 96, 3, 0}};

struct vae {
    struct kr_device *dev;
    struct kr_conv conv[64];
    int convs;
    float *kernel, *norm;
    struct kr_tensor gamma;
};

static struct kr_conv *conv_of(struct vae *v, int at, int64_t out, int64_t in, int64_t k)
{
    struct kr_conv *c = &v->conv[at];
    assert(at < 64);
    if (at >= v->convs) {
        *c = (struct kr_conv){
            .data = v->kernel, .dtype = KR_F32, .out = out, .in = in, .kt = 1, .kh = k, .kw = k};
        v->convs = at + 1;
    }
    return c;
}

/* x[h,w,in] to [h,w,out]: norm, SiLU and convolution twice, and the way past them. */
static struct kr_tensor run_residual(struct vae *v, struct kr_tensor x, int64_t out, int *at)
{
    struct kr_device *dev = v->dev;
    int64_t h = x.dim[0], w = x.dim[1], in = x.dim[2];
    struct kr_tensor y = x;
    if (in != out) {
        y = kr_new(dev, KR_F32, h, w, out, 0);
        kr_conv2d(dev, y, x, conv_of(v, (*at)++, out, in, 1));
    }
    struct kr_mark mark = kr_arena_mark(dev);
    struct kr_tensor a = kr_new(dev, KR_BF16, h, w, in, 0), b = kr_new(dev, KR_BF16, h, w, out, 0);
    struct kr_tensor c = kr_new(dev, KR_BF16, h, w, out, 0);
    kr_rms_norm(dev, a, x, kr_slice(v->gamma, 0, in), 1e-12f, KR_ACT_SILU);
    kr_conv2d(dev, b, a, conv_of(v, (*at)++, out, in, 3));
    kr_rms_norm(dev, c, b, kr_slice(v->gamma, 0, out), 1e-12f, KR_ACT_SILU);
    kr_conv2d_add(dev, y, c, conv_of(v, (*at)++, out, out, 3));
    kr_arena_release(dev, mark);
    return y;
}

static double run_vae(void *arg)
{
    struct vae *v = arg;
    double start = now();
    struct kr_device *dev = v->dev;
    struct kr_mark mark = kr_arena_mark(dev);
    struct kr_tensor x = kr_new(dev, KR_F32, 64, 64, 384, 0);
    int at = 0;
    kr_scale_shift(dev, x, x, v->gamma, v->gamma); /* something finite to begin with */
    for (size_t s = 0; s < sizeof stages / sizeof stages[0]; s++) {
        for (int i = 0; i < stages[s].blocks; i++)
            x = run_residual(v, x, stages[s].out, &at);
        if (!stages[s].up)
            break;
        int64_t h = x.dim[0], c = x.dim[2];
        struct kr_tensor big = kr_new(dev, KR_BF16, 2 * h, 2 * h, c, 0);
        struct kr_tensor y = kr_new(dev, KR_F32, 2 * h, 2 * h, c / 2, 0);
        kr_upsample2(dev, big, x);
        kr_conv2d(dev, y, big, conv_of(v, at++, c / 2, c, 3));
        x = y;
    }
    struct kr_tensor a = kr_new(dev, KR_BF16, 512, 512, 96, 0);
    struct kr_tensor rgb = kr_new(dev, KR_F32, 512, 512, 3, 0);
    kr_rms_norm(dev, a, x, kr_slice(v->gamma, 0, 96), 1e-12f, KR_ACT_SILU);
    kr_conv2d(dev, rgb, a, conv_of(v, at++, 3, 96, 3));
    kr_arena_release(dev, mark);
    return now() - start;
}

static void add_convs(struct yardstick *y, dnnl_data_type_t type)
{
    for (size_t s = 0; s < sizeof stages / sizeof stages[0]; s++) {
        int64_t n = stages[s].size, in = stages[s].in, out = stages[s].out;
        add_conv(y, n, out, out, 3, 2 * stages[s].blocks - (in != out), type);
        if (in != out) {
            add_conv(y, n, in, out, 3, 1, type);
            add_conv(y, n, in, out, 1, 1, type);
        }
        if (stages[s].up)
            add_conv(y, 2 * n, out, out / 2, 3, 1, type);
    }
    add_conv(y, 512, 96, 3, 3, 1, type);
}

static void bench_vae(struct kr_device *dev)
{
    struct vae v = {.dev = dev, .kernel = grab(384 * 384 * 9 * sizeof *v.kernel)};
    struct yardstick convs = {.count = 0};
    add_convs(&convs, type_of(dev));
    for (int64_t i = 0; i < 384 * 384 * 9; i++)
        v.kernel[i] = ((float)(bits() >> 40) / 8388608.0f - 1.0f) * 0.03f;
    v.gamma = kr_persist(dev, v.kernel, 384, 0);
    kr_plan_begin(dev);
    run_vae(&v);
    size_t peak = kr_plan_end(dev);
    begin(dev, peak + (1 << 20));
    struct result r = compare(run_vae, &v, yardstick_run, &convs);
    printf("vae 512x512: %.3f of its convolutions alone (%.3f to %.3f; %.0f ms against %.0f ms at "
           "%.0f GFLOP/s; %.0f MiB)\n",
           r.ratio, r.low, r.high, r.seconds * 1e3, r.yardstick * 1e3,
           convs.flops / r.yardstick * 1e-9, (double)peak / 1048576);
    yardstick_fini(&convs);
    end(dev);
    for (int i = 0; i < v.convs; i++)
        kr_conv_fini(dev, &v.conv[i]);
    kr_persist_free(dev, &v.gamma);
    free(v.kernel);
}

/* Other CPUs' ways on this one (oneDNN has ONEDNN_MAX_CPU_ISA for its own). */
static void limit(struct kr_device_options *options, const char *to)
{
    if (!strcmp(to, "f32"))
        options->compute = KR_COMPUTE_F32;
    else if (!strcmp(to, "avx512"))
        options->isa = KR_ISA_AVX512;
    else if (!strcmp(to, "avx2"))
        options->isa = KR_ISA_AVX2, options->compute = KR_COMPUTE_F32;
}

int main(int argc, char **argv)
{
    char why[200];
    const char *only = argc > 2 ? argv[2] : "bev";
    threads = argc > 1 ? atoi(argv[1]) : omp_get_max_threads();
    struct kr_device_options options = {.threads = threads};
    if (argc > 3)
        limit(&options, argv[3]);
    struct kr_device *dev = kr_device_open_cpu(&options, why, sizeof why);
    if (!dev) {
        fprintf(stderr, "bench_kernels: %s\n", why);
        return 1;
    }
    check(dnnl_engine_create(&engine, dnnl_cpu, 0));
    check(dnnl_stream_create(&stream, engine, dnnl_stream_default_flags));
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("%s\n", kr_device_name(dev));
    if (strchr(only, 'b'))
        bench_blocks(dev);
    if (strchr(only, 'e'))
        bench_encoder(dev);
    if (strchr(only, 'v'))
        bench_vae(dev);
    dnnl_stream_destroy(stream);
    dnnl_engine_destroy(engine);
    kr_device_close(dev);
    return 0;
}
