/* SPDX-License-Identifier: Apache-2.0
 *
 * Convolutions with tiles, without any unfolding: a tile of the left operand is 16 neighbouring
 * pixels times 32 channels, read where it lies; for the next tap of the kernel it is read one pixel
 * or one row further on. The kernel is the right operand, packed once into pairs along the input
 * channels.
 *
 * A thread walks down a part of the picture with the rows that its kernel reaches in a ring:
 * bfloat16, channels padded to 32, a border of zeros on either side. Every pixel's sum runs over
 * taps, then channels, in that order, wherever it stands; so bands and whole pictures agree to the
 * bit.
 */
#include "kernels/cpu/cpu.h"

#if defined(__x86_64__)

#include "kernels/cpu/amx.h"

#include <immintrin.h>
#include <stdlib.h>
#include <string.h>

#define TARGET                                                                                     \
    __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))

enum {
    BLOCK = 32,             /* pixels, and output channels, of four tiles */
    RING_BYTES = 768 << 10, /* of the rows in work: well inside the second-level cache */
    TALL = 8,               /* output rows in work at most */
    TAPS = 9
};

struct amx_conv {
    struct cpu_device *cpu;
    struct kr_tensor out, x;
    const struct kr_conv *conv;
    int add;
    const uint16_t *kernel; /* [block of out][tap][step][tiles] */
    int64_t rim, depth;     /* kh / 2; channels padded to 32 */
    int64_t row;            /* values of a ring row */
    int64_t tall, part;     /* output rows in work, output rows of an item */
    char *scratch;          /* `piece` bytes for each thread: sums, ring */
    size_t piece;
};

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

/* Tiles of output channels of a block: one where 16 do. */
static int64_t tiles_of(const struct kr_conv *c)
{
    return c->out <= 16 ? 1 : 2;
}

/* --------------------------------------------------------------------------- preparing ------ */

/* One tile: pairs of input channels from `in`, 16 output channels from `out`, one tap. */
static void pack_tile(const struct cpu_device *cpu, const struct kr_conv *c, int64_t out,
                      int64_t in, int64_t tap, uint16_t *to)
{
    int64_t area = c->kh * c->kw;
    for (int64_t i = 0; i < AMX_STEP; i++)
        for (int64_t o = 0; o < 16; o++) {
            uint16_t *at = to + i / 2 * 32 + 2 * o + i % 2;
            int64_t plane = (out + o) * c->in + in + i;
            *at = 0;
            if (out + o < c->out && in + i < c->in)
                cpu->rows->to_bf16(
                    at, cpu_at(c->data, c->dtype, (plane * c->kt + c->kt - 1) * area + tap),
                    c->dtype, 1);
        }
}

static int64_t blocks_of(const struct kr_conv *c)
{
    return (c->out + 16 * tiles_of(c) - 1) / (16 * tiles_of(c));
}

static size_t prepared_size(const struct kr_conv *c)
{
    int64_t steps = round_up(c->in, AMX_STEP) / AMX_STEP;
    return (size_t)(blocks_of(c) * c->kh * c->kw * steps * tiles_of(c) * AMX_TILE) *
           sizeof(uint16_t);
}

static int prepare(const struct cpu_device *cpu, struct kr_conv *c)
{
    int64_t taps = c->kh * c->kw, steps = round_up(c->in, AMX_STEP) / AMX_STEP;
    int64_t tiles = tiles_of(c), blocks = blocks_of(c);
    uint16_t *to;
    if (posix_memalign(&c->prepared, KR_ALIGNMENT, prepared_size(c))) {
        c->prepared = NULL;
        return -1;
    }
    to = c->prepared;
    for (int64_t b = 0; b < blocks; b++)
        for (int64_t tap = 0; tap < taps; tap++)
            for (int64_t s = 0; s < steps; s++)
                for (int64_t t = 0; t < tiles; t++, to += AMX_TILE)
                    pack_tile(cpu, c, (b * tiles + t) * 16, s * AMX_STEP, tap, to);
    return 0;
}

/* ------------------------------------------------------------------------ tile kernels ------ */

/* c[4 tiles] of 32 pixels and 32 channels: over all taps, whose first pixel's values stand at
 * a[tap]. */
TARGET static __attribute__((noinline)) void multiply_2(float *c, const uint16_t *const a[TAPS],
                                                        int64_t taps, int64_t depth,
                                                        const uint16_t *b)
{
    int64_t row = depth * 2;
    __asm__ volatile("" ::: "memory");
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t tap = 0; tap < taps; tap++)
        for (int64_t i = 0; i < depth; i += AMX_STEP, b += 2 * AMX_TILE) {
            _tile_loadd(6, b, 64);
            _tile_loadd(4, a[tap] + i, row);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(7, b + AMX_TILE, 64);
            _tile_dpbf16ps(1, 4, 7);
            _tile_loadd(5, a[tap] + i + 16 * depth, row);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    _tile_stored(0, c, 128);
    _tile_stored(1, c + 16, 128);
    _tile_stored(2, c + 512, 128);
    _tile_stored(3, c + 528, 128);
}

/* The same with 16 channels. */
TARGET static __attribute__((noinline)) void multiply_1(float *c, const uint16_t *const a[TAPS],
                                                        int64_t taps, int64_t depth,
                                                        const uint16_t *b)
{
    int64_t row = depth * 2;
    __asm__ volatile("" ::: "memory");
    _tile_zero(0);
    _tile_zero(2);
    for (int64_t tap = 0; tap < taps; tap++)
        for (int64_t i = 0; i < depth; i += AMX_STEP, b += AMX_TILE) {
            _tile_loadd(6, b, 64);
            _tile_loadd(4, a[tap] + i, row);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(5, a[tap] + i + 16 * depth, row);
            _tile_dpbf16ps(2, 5, 6);
        }
    _tile_stored(0, c, 128);
    _tile_stored(2, c + 512, 128);
}

/* 16 channels of a pixel: bias, sum or store. */
TARGET static inline void finish_16(const struct amx_conv *v, int64_t at, const float *c,
                                    const float *bias, __mmask16 there)
{
    __m512 sum = _mm512_loadu_ps(c);
    if (bias)
        sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(there, bias));
    if (v->out.dtype == KR_BF16) {
        uint16_t *out = (uint16_t *)v->out.data + at;
        _mm256_mask_storeu_epi16(out, there, (__m256i)_mm512_cvtneps_pbh(sum));
        return;
    }
    float *out = (float *)v->out.data + at;
    if (v->add)
        sum = _mm512_add_ps(_mm512_maskz_loadu_ps(there, out), sum);
    _mm512_mask_storeu_ps(out, there, sum);
}

/* Sums c[pixels, 32] of the channels from `channel` on into the picture from pixel `pixel` on. */
TARGET static void finish(const struct amx_conv *v, const float *c, int64_t pixel, int64_t pixels,
                          int64_t channel)
{
    int64_t n = v->conv->out;
    const float *bias = v->conv->bias.data;
    for (int64_t half = channel; half < channel + 32 && half < n; half += 16) {
        __mmask16 there = n - half >= 16 ? 0xffff : (__mmask16)((1u << (n - half)) - 1);
        for (int64_t i = 0; i < pixels; i++)
            finish_16(v, (pixel + i) * n + half, c + i * 32 + half - channel,
                      bias ? bias + half : NULL, there);
    }
}

/* ----------------------------------------------------------------------------- walking ------ */

static uint16_t *ring_row(const struct amx_conv *v, uint16_t *ring, int64_t y)
{
    return ring + (y + v->rim) % (v->tall + 2 * v->rim) * v->row;
}

/* Row y of x into the ring: zeros, pixels, zeros; beyond the picture all zeros. */
static void bring_row(const struct amx_conv *v, uint16_t *ring, int64_t y)
{
    int64_t w = v->x.dim[1], in = v->conv->in;
    uint16_t *to = ring_row(v, ring, y), *pixel = to + v->rim * v->depth;
    if (y < 0 || y >= v->x.dim[0]) {
        memset(to, 0, (size_t)v->row * sizeof *to);
        return;
    }
    if (v->depth == in) {
        v->cpu->rows->to_bf16(pixel, cpu_at(v->x.data, v->x.dtype, y * w * in), v->x.dtype,
                              (size_t)(w * in));
    } else {
        for (int64_t i = 0; i < w; i++) {
            v->cpu->rows->to_bf16(pixel + i * v->depth,
                                  cpu_at(v->x.data, v->x.dtype, (y * w + i) * in), v->x.dtype,
                                  (size_t)in);
            memset(pixel + i * v->depth + in, 0, (size_t)(v->depth - in) * sizeof *to);
        }
    }
    memset(to, 0, (size_t)(v->rim * v->depth) * sizeof *to);
    memset(pixel + w * v->depth, 0, (size_t)(v->row - (w + v->rim) * v->depth) * sizeof *to);
}

/* Output row y, channels from `channel` on. */
static void convolve_row(const struct amx_conv *v, uint16_t *ring, float *c, int64_t y,
                         int64_t channel, const uint16_t *kernel)
{
    int64_t k = v->conv->kh, w = v->x.dim[1];
    for (int64_t x = 0; x < w; x += BLOCK) {
        const uint16_t *a[TAPS];
        for (int64_t tap = 0; tap < k * k; tap++)
            a[tap] = ring_row(v, ring, y + tap / k - v->rim) + (x + tap % k) * v->depth;
        if (tiles_of(v->conv) == 1)
            multiply_1(c, a, k * k, v->depth, kernel);
        else
            multiply_2(c, a, k * k, v->depth, kernel);
        finish(v, c, y * w + x, cpu_least(BLOCK, w - x), channel);
    }
}

static void run_part(void *arg, int64_t item, int thread)
{
    const struct amx_conv *v = arg;
    float *c = (float *)(void *)(v->scratch + (size_t)thread * v->piece);
    uint16_t *ring = (uint16_t *)(void *)(c + BLOCK * 32);
    int64_t h = v->x.dim[0], first = item * v->part, end = cpu_least(first + v->part, h);
    int64_t tiles = tiles_of(v->conv), brought = first - v->rim;
    int64_t block = v->conv->kh * v->conv->kw * v->depth / AMX_STEP * tiles * AMX_TILE;
    amx_begin();
    for (int64_t y = first; y < end && !kr_cancelled(&v->cpu->base); y += v->tall) {
        int64_t last = cpu_least(y + v->tall, end);
        for (; brought < last + v->rim; brought++)
            bring_row(v, ring, brought);
        const uint16_t *kernel = v->kernel;
        for (int64_t o = 0; o < v->conv->out; o += 16 * tiles, kernel += block)
            for (int64_t row = y; row < last; row++)
                convolve_row(v, ring, c, row, o, kernel);
    }
    amx_end();
}

void conv_amx(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x, struct kr_conv *conv,
              int add)
{
    struct amx_conv v = {.cpu = cpu_of(dev),
                         .out = out,
                         .x = x,
                         .conv = conv,
                         .add = add,
                         .rim = conv->kh / 2,
                         .depth = round_up(conv->in, AMX_STEP)};
    int64_t threads = v.cpu->pool.threads, h = x.dim[0];
    v.row = (round_up(x.dim[1], BLOCK) + 2 * v.rim) * v.depth;
    v.tall = RING_BYTES / (v.row * 2) - 2 * v.rim;
    v.tall = cpu_least(cpu_least(v.tall, TALL), h / (2 * threads));
    v.tall = v.tall < 1 ? 1 : v.tall;
    v.part = round_up((h + 4 * threads - 1) / (4 * threads), v.tall);
    v.piece = BLOCK * 32 * sizeof(float) +
              cpu_aligned((size_t)((v.tall + 2 * v.rim) * v.row) * sizeof(uint16_t));
    v.scratch = kr_scratch(dev, v.piece * (size_t)threads);
    if (dev->planning)
        kr_prepared_set(dev, conv, prepared_size(conv));
    if (!kr_live(dev))
        return;
    if (!conv->prepared && prepare(v.cpu, conv)) {
        kr_fault_set(dev, KR_FAULT_NO_MEMORY, "out of memory for a convolution's kernel");
        return;
    }
    kr_prepared_set(dev, conv, prepared_size(conv));
    v.kernel = conv->prepared;
    cpu_each(v.cpu, (h + v.part - 1) / v.part, run_part, &v);
}

#else
typedef int no_conv_amx; /* an empty file is no C */
#endif
