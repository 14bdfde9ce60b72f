/* SPDX-License-Identifier: Apache-2.0
 *
 * Convolutions over [h,w,c] pictures, "same" padding. A thread takes a band of output rows,
 * copies the rows that it needs into its scratch, in the compute type, with zeros around them, lets
 * oneDNN convolve that without any padding, and finishes the result: bias, or a sum onto y.
 *
 * Every band of a width goes through one and the same primitive, the last one of a picture with
 * rows of zeros at its end. So a row comes out the same wherever the bands of a picture begin, and
 * a picture that is decoded in pieces equals the whole one.
 *
 * The kernel is brought into oneDNN's own layout at first use, from the last temporal slice of what
 * the file has, and stays with the kr_conv.
 *
 * conv_amx.c does all that differently for CPUs with tiles.
 */
#include "kernels/cpu/cpu.h"

#include <dnnl.h>
#include <omp.h>
#include <stdlib.h>

enum { BAND = 8 /* rows, at most */ };

/* Multiplications of a band: so many that a core without AVX-512 is done within a cancel's time. */
static const int64_t band_work = 1 << 29;

struct prepared {
    dnnl_engine_t engine;
    int64_t width; /* of the pictures that `primitive` is for */
    int64_t band;
    enum kr_dtype compute;
    dnnl_primitive_t primitive;
    dnnl_memory_desc_t src, dst, scratch;
    dnnl_memory_desc_t kernel_desc;
    dnnl_memory_t kernel; /* in kernel_desc's layout */
};

struct conv_op {
    struct cpu_device *cpu;
    struct kr_tensor out, x;
    const struct kr_conv *conv;
    const struct prepared *prepared;
    int add;
    char *scratch; /* `piece` bytes for each thread */
    size_t piece, dst_at, mm_at;
    _Atomic int failed;
};

/* --------------------------------------------------------------------------- preparing ------ */

static dnnl_data_type_t dnnl_type(enum kr_dtype dtype)
{
    return dtype == KR_BF16 ? dnnl_bf16 : dnnl_f32;
}

static int64_t band_of(const struct kr_conv *c, int64_t width)
{
    int64_t row = c->in * c->out * c->kh * c->kw * width, band = BAND;
    while (band > 1 && band * row > band_work)
        band /= 2;
    return band;
}

static int make_primitive(struct prepared *p, const struct kr_conv *c, int64_t width)
{
    int64_t rim = c->kh - 1, band = band_of(c, width);
    const dnnl_dims_t src = {1, c->in, band + rim, width + rim}, dst = {1, c->out, band, width};
    const dnnl_dims_t kernel = {c->out, c->in, c->kh, c->kw}, one = {1, 1}, zero = {0, 0};
    dnnl_data_type_t type = dnnl_type(p->compute);
    dnnl_memory_desc_t any;
    dnnl_convolution_desc_t desc;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t pd = NULL;
    omp_set_num_threads(1);
    int failed =
        dnnl_memory_desc_init_by_tag(&p->src, 4, src, type, dnnl_nhwc) != dnnl_success ||
        dnnl_memory_desc_init_by_tag(&p->dst, 4, dst, dnnl_f32, dnnl_nhwc) != dnnl_success ||
        dnnl_memory_desc_init_by_tag(&any, 4, kernel, type, dnnl_format_tag_any) != dnnl_success ||
        dnnl_convolution_forward_desc_init(&desc, dnnl_forward_inference, dnnl_convolution_direct,
                                           &p->src, &any, NULL, &p->dst, one, zero,
                                           zero) != dnnl_success ||
        dnnl_primitive_attr_create(&attr) != dnnl_success ||
        dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user) ||
        dnnl_primitive_desc_create(&pd, &desc, attr, p->engine, NULL) != dnnl_success ||
        dnnl_primitive_create(&p->primitive, pd) != dnnl_success;
    if (!failed) {
        p->scratch = *dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
        p->kernel_desc = *dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0);
    }
    dnnl_primitive_desc_destroy(pd);
    dnnl_primitive_attr_destroy(attr);
    p->width = width;
    p->band = band;
    return failed;
}

/* The last temporal slice of the file's kernel, dense, as F32. */
static float *last_slice(const struct cpu_device *cpu, const struct kr_conv *c)
{
    int64_t area = c->kh * c->kw;
    float *slice = malloc((size_t)(c->out * c->in * area) * sizeof *slice);
    for (int64_t i = 0; slice && i < c->out * c->in; i++)
        cpu->rows->to_f32(slice + i * area, cpu_at(c->data, c->dtype, ((i + 1) * c->kt - 1) * area),
                          c->dtype, (size_t)area);
    return slice;
}

static int reorder(dnnl_memory_t from, dnnl_memory_t to, const dnnl_memory_desc_t *from_desc,
                   const dnnl_memory_desc_t *to_desc, dnnl_engine_t engine)
{
    dnnl_primitive_desc_t pd = NULL;
    dnnl_primitive_t primitive = NULL;
    dnnl_stream_t stream = NULL;
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}};
    int failed = dnnl_reorder_primitive_desc_create(&pd, from_desc, engine, to_desc, engine,
                                                    NULL) != dnnl_success ||
                 dnnl_primitive_create(&primitive, pd) != dnnl_success ||
                 dnnl_stream_create(&stream, engine, dnnl_stream_default_flags) != dnnl_success ||
                 dnnl_primitive_execute(primitive, stream, 2, args) != dnnl_success ||
                 dnnl_stream_wait(stream) != dnnl_success;
    dnnl_stream_destroy(stream);
    dnnl_primitive_destroy(primitive);
    dnnl_primitive_desc_destroy(pd);
    return failed;
}

static int bring_kernel(struct prepared *p, const struct cpu_device *cpu, const struct kr_conv *c)
{
    const dnnl_dims_t dims = {c->out, c->in, c->kh, c->kw};
    dnnl_memory_desc_t plain;
    dnnl_memory_t from = NULL;
    float *slice = last_slice(cpu, c);
    int failed = !slice || dnnl_memory_desc_init_by_tag(&plain, 4, dims, dnnl_f32, dnnl_oihw) ||
                 dnnl_memory_create(&from, &plain, p->engine, slice) != dnnl_success ||
                 dnnl_memory_create(&p->kernel, &p->kernel_desc, p->engine, DNNL_MEMORY_ALLOCATE) !=
                     dnnl_success ||
                 reorder(from, p->kernel, &plain, &p->kernel_desc, p->engine);
    dnnl_memory_destroy(from);
    free(slice);
    return failed;
}

static int with_tiles(struct kr_device *dev)
{
    return cpu_of(dev)->isa == KR_ISA_AMX && dev->compute == KR_BF16;
}

void cpu_conv_fini(struct kr_device *dev, struct kr_conv *conv)
{
    struct prepared *p = conv->prepared;
    if (!with_tiles(dev)) {
        dnnl_memory_destroy(p->kernel);
        dnnl_primitive_destroy(p->primitive);
        dnnl_engine_destroy(p->engine);
    }
    free(p);
}

/* Makes conv->prepared fit pictures of `width`. The kernel itself moves only when `live` and when
 * the layout that oneDNN wants has changed. */
static int prepare(struct cpu_device *cpu, struct kr_conv *conv, int64_t width)
{
    struct prepared *p = conv->prepared;
    if (!p) {
        p = conv->prepared = calloc(1, sizeof *p);
        if (!p || dnnl_engine_create(&p->engine, dnnl_cpu, 0) != dnnl_success)
            return -1;
        p->compute = cpu->base.compute;
    }
    dnnl_memory_desc_t before = p->kernel_desc;
    if (p->width != width) {
        dnnl_primitive_destroy(p->primitive);
        p->primitive = NULL;
        p->width = 0;
        if (make_primitive(p, conv, width))
            return -1;
    }
    if (p->kernel && dnnl_memory_desc_equal(&before, &p->kernel_desc))
        return 0;
    dnnl_memory_destroy(p->kernel);
    p->kernel = NULL;
    return cpu->base.planning ? 0 : bring_kernel(p, cpu, conv);
}

/* --------------------------------------------------------------------------- computing ------ */

/* n elements of x from `index` on into the band, in the compute type. */
static void convert(const struct conv_op *op, int64_t index, int64_t n, char *to)
{
    const void *from = cpu_at(op->x.data, op->x.dtype, index);
    if (op->prepared->compute == KR_BF16)
        op->cpu->rows->to_bf16((uint16_t *)(void *)to, from, op->x.dtype, (size_t)n);
    else
        op->cpu->rows->to_f32((float *)(void *)to, from, op->x.dtype, (size_t)n);
}

static void zero(char *to, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        to[i] = 0;
}

static void copy_band(const struct conv_op *op, int64_t y, char *to)
{
    int64_t rim = op->conv->kh / 2, h = op->x.dim[0], w = op->x.dim[1], c = op->conv->in;
    size_t size = kr_dtype_size(op->prepared->compute);
    size_t side = (size_t)(rim * c) * size, row = (size_t)(w * c) * size;
    for (int64_t r = y - rim; r < y + op->prepared->band + rim; r++, to += row + 2 * side) {
        if (r < 0 || r >= h) {
            zero(to, row + 2 * side);
            continue;
        }
        zero(to, side);
        convert(op, r * w * c, w * c, to + side);
        zero(to + side + row, side);
    }
}

static int convolve(const struct conv_op *op, char *scratch)
{
    const struct prepared *p = op->prepared;
    dnnl_exec_arg_t args[] = {{DNNL_ARG_WEIGHTS, p->kernel},
                              {DNNL_ARG_SRC, NULL},
                              {DNNL_ARG_DST, NULL},
                              {DNNL_ARG_SCRATCHPAD, NULL}};
    const dnnl_memory_desc_t *const descs[] = {NULL, &p->src, &p->dst, &p->scratch};
    void *const data[] = {NULL, scratch, scratch + op->dst_at, scratch + op->mm_at};
    dnnl_stream_t stream = NULL;
    int failed = dnnl_stream_create(&stream, p->engine, dnnl_stream_default_flags) != dnnl_success;
    for (int i = 1; i < 4 && !failed; i++)
        failed = dnnl_memory_create(&args[i].memory, descs[i], p->engine, data[i]) != dnnl_success;
    if (!failed)
        failed = dnnl_primitive_execute(p->primitive, stream, 4, args) != dnnl_success;
    for (int i = 1; i < 4; i++)
        dnnl_memory_destroy(args[i].memory);
    dnnl_stream_destroy(stream);
    return failed;
}

static void run_band(void *arg, int64_t item, int thread)
{
    struct conv_op *op = arg;
    const struct row_kernels *k = op->cpu->rows;
    char *scratch = op->scratch + (size_t)thread * op->piece;
    float *c = (float *)(void *)(scratch + op->dst_at);
    int64_t band = op->prepared->band, y = item * band, n = op->conv->out;
    int64_t pixels = cpu_least(band, op->out.dim[0] - y) * op->out.dim[1];
    const float *bias = op->conv->bias.data;
    copy_band(op, y, scratch);
    if (convolve(op, scratch)) {
        atomic_store(&op->failed, 1);
        return;
    }
    for (int64_t i = 0; i < pixels; i++, c += n) {
        int64_t at = (y * op->out.dim[1] + i) * n;
        float *out = cpu_room(&op->out, at, c);
        if (op->add)
            k->finish_add(out, c, 1.0f, bias, NULL, (size_t)n);
        else
            k->finish(out, c, 1.0f, bias, KR_ACT_NONE, (size_t)n);
        cpu_put(op->cpu, &op->out, at, out, (size_t)n);
    }
}

static void conv_onednn(struct conv_op *op, struct kr_conv *conv)
{
    struct kr_device *dev = &op->cpu->base;
    if (prepare(op->cpu, conv, op->x.dim[1])) {
        kr_fault_set(dev, KR_FAULT_NO_MEMORY, "oneDNN can't prepare a convolution [%lld,%lld,%lld]",
                     (long long)conv->out, (long long)conv->in, (long long)conv->kh);
        return;
    }
    const struct prepared *p = op->prepared = conv->prepared;
    kr_prepared_set(dev, conv, dnnl_memory_desc_get_size(&p->kernel_desc));
    op->dst_at = cpu_aligned(dnnl_memory_desc_get_size(&p->src));
    op->mm_at = op->dst_at + cpu_aligned(dnnl_memory_desc_get_size(&p->dst));
    op->piece = op->mm_at + cpu_aligned(dnnl_memory_desc_get_size(&p->scratch));
    op->scratch = kr_scratch(dev, op->piece * (size_t)op->cpu->pool.threads);
    if (!kr_live(dev))
        return;
    cpu_each(op->cpu, (op->out.dim[0] + p->band - 1) / p->band, run_band, op);
    if (op->failed)
        kr_fault_set(dev, KR_FAULT_LOST, "oneDNN failed in a convolution");
}

static void conv2d(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x,
                   struct kr_conv *conv, int add)
{
    struct conv_op op = {.cpu = cpu_of(dev), .out = out, .x = x, .conv = conv, .add = add};
    struct kr_mark mark = kr_arena_mark(dev);
#if defined(__x86_64__)
    if (with_tiles(dev))
        conv_amx(dev, out, x, conv, add);
    else
#endif
        conv_onednn(&op, conv);
    kr_arena_release(dev, mark);
}

void cpu_conv2d(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x,
                struct kr_conv *conv)
{
    conv2d(dev, out, x, conv, 0);
}

void cpu_conv2d_add(struct kr_device *dev, struct kr_tensor y, struct kr_tensor x,
                    struct kr_conv *conv)
{
    conv2d(dev, y, x, conv, 1);
}
