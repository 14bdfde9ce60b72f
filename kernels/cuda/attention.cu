/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention with the softmax taken online: a block of queries walks over blocks of keys and keeps,
 * for each query, the largest score so far, the sum of the exponentials and the weighted sum of the
 * values, which are rescaled when a larger score turns up. Scores exist in registers only.
 *
 * attend_narrow() is for heads of 32, 64 and 128: four warps with 32 queries each, whose products
 * share every fragment of K and V between two tiles of queries. While scores are computed the
 * values are under way, and the next keys while the values are summed.
 *
 * attend_wide() is for larger heads (the VAE has one of 384): eight warps, 16 queries and half of a
 * block's keys each, then half of the values' columns. Queries, keys and values come in chunks of
 * 64 columns through a ring of three. Columns beyond WIDE_CHUNKS chunks are another block's, which
 * computes the same scores again.
 *
 * Heads of other sizes are filled up with zeros in scratch, as F32 and unaligned tensors go there:
 * zeros add nothing to scores, and what they make of the values is not stored.
 */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/tiles.cuh"

#include <math.h>

namespace
{

enum {
    NARROW_QUERIES = 128,
    NARROW_THREADS = 128,
    WIDE_QUERIES = 64,
    WIDE_KEYS = 64,
    WIDE_THREADS = 256,
    WIDE_COLS = 64,  /* of a chunk */
    WIDE_CHUNKS = 6, /* of values that a block keeps the sums of */
    WIDE_STAGES = 3,
    WIDE_STAGE = 2 * 64 * 64, /* values: a chunk of queries and one of keys, or one of values */
    GATHER_THREADS = 256
};

struct rows {
    const __nv_bfloat16 *data;
    int stride;
};

struct walk {
    rows q, k, v;
    const __nv_bfloat16 *gate; /* NULL: none */
    int gate_stride;
    void *out; /* [batch * n, heads * d] */
    int n, m, d, heads, kv_heads;
    int chunks; /* of 64 columns, of a wide head */
    int causal, out_f32;
    float scale; /* what a score is to be multiplied with to be an exponent of 2 */
};

/* ------------------------------------------------------------------------------ shared ------ */

/* x * sigmoid(gate), 0 where the power is too large for a float */
__device__ __forceinline__ float gated(float x, uint32_t gate)
{
    return __fdividef(x, 1.0f + exp2_fast(__uint_as_float(gate) * -1.44269504f));
}

/* Two neighbouring results of a query, gated; with a gate d is even. */
__device__ __forceinline__ void put_pair(const walk &w, int64_t query, int head, int column,
                                         float a, float b)
{
    int64_t at = (query * w.heads + head) * w.d + column;
    if (w.gate && column < w.d) {
        uint32_t by = *(const uint32_t *)(w.gate + query * w.gate_stride + head * w.d + column);
        a = gated(a, by << 16);
        b = gated(b, by & 0xffff0000u);
    }
    if (w.out_f32) {
        float *out = (float *)w.out + at;
        if (column < w.d)
            out[0] = a;
        if (column + 1 < w.d)
            out[1] = b;
        return;
    }
    __nv_bfloat16 *out = (__nv_bfloat16 *)w.out + at;
    if (column + 1 < w.d && w.d % 2 == 0) {
        *(uint32_t *)out = pack_bf16(a, b);
        return;
    }
    if (column < w.d)
        out[0] = __float2bfloat16_rn(a);
    if (column + 1 < w.d)
        out[1] = __float2bfloat16_rn(b);
}

/* Over the four lanes that share a row of a product. */
__device__ __forceinline__ float row_most(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

__device__ __forceinline__ float row_sum(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/* Keys that a query sees. */
__device__ __forceinline__ int sees(const walk &w, int query)
{
    return w.causal && query + 1 < w.m ? query + 1 : w.m;
}

/* Scores beyond what their queries see become -infinity. s is a tile of 16 queries from `query` on
 * and TILES tiles of 8 keys from `key` on. */
template <int TILES>
__device__ __forceinline__ void hide(const walk &w, float s[TILES][4], int query, int key)
{
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int seen = sees(w, query + lane / 4 + half * 8) - key - lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            s[i][2 * half] = i * 8 < seen ? s[i][2 * half] : -INFINITY;
            s[i][2 * half + 1] = i * 8 + 1 < seen ? s[i][2 * half + 1] : -INFINITY;
        }
    }
}

/* What exponents count from: the top, or 0 where a query has seen nothing yet. */
__device__ __forceinline__ float base_of(float top, float scale)
{
    return top == -INFINITY ? 0.0f : top * scale;
}

/* ------------------------------------------------------------------------ narrow heads ------ */

/* s[32 queries of this warp][KEYS] += q k^T */
template <int D, int KEYS>
__device__ __forceinline__ void narrow_scores(float s[2][KEYS / 8][4], const __nv_bfloat16 *q,
                                              const __nv_bfloat16 *k, int row)
{
    int lane = tile_lane<D>(), lane_b = tile_lane_b<D>();
#pragma unroll
    for (int c = 0; c < D; c += 16) {
        uint32_t a[2][4];
        tile_read<D>(a[0], q, lane, row, c);
        tile_read<D>(a[1], q, lane, row + 16, c);
#pragma unroll
        for (int i = 0; i < KEYS / 16; i++) {
            uint32_t b[4];
            tile_read<D>(b, k, lane_b, i * 16, c);
#pragma unroll
            for (int r = 0; r < 2; r++) {
                mma_bf16_16816(s[r][2 * i], a[r], b);
                mma_bf16_16816(s[r][2 * i + 1], a[r], b + 2);
            }
        }
    }
}

/* Scores become weights; what was summed so far shrinks to the new top. */
template <int D, int KEYS>
__device__ __forceinline__ void narrow_weights(float s[KEYS / 8][4], float o[D / 8][4],
                                               float top[2], float sum[2], float scale)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float most = top[half];
#pragma unroll
        for (int i = 0; i < KEYS / 8; i++)
            most = fmaxf(most, fmaxf(s[i][2 * half], s[i][2 * half + 1]));
        most = row_most(most);
        float base = base_of(most, scale), shrink = exp2_fast(fmaf(top[half], scale, -base));
        float part = 0;
        top[half] = most;
#pragma unroll
        for (int i = 0; i < KEYS / 8; i++)
#pragma unroll
            for (int j = 2 * half; j < 2 * half + 2; j++) {
                s[i][j] = exp2_fast(fmaf(s[i][j], scale, -base));
                part += s[i][j];
            }
        sum[half] = fmaf(sum[half], shrink, part);
#pragma unroll
        for (int i = 0; i < D / 8; i++) {
            o[i][2 * half] *= shrink;
            o[i][2 * half + 1] *= shrink;
        }
    }
}

/* o += weights v */
template <int D, int KEYS>
__device__ __forceinline__ void narrow_values(float o[2][D / 8][4], float s[2][KEYS / 8][4],
                                              const __nv_bfloat16 *v)
{
    int lane = tile_lane<D>();
#pragma unroll
    for (int i = 0; i < KEYS / 16; i++) {
        uint32_t a[2][4];
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                a[r][j] =
                    pack_bf16(s[r][2 * i + j / 2][j % 2 * 2], s[r][2 * i + j / 2][j % 2 * 2 + 1]);
#pragma unroll
        for (int c = 0; c < D / 16; c++) {
            uint32_t b[4];
            tile_read_b_rows<D>(b, v, lane, i * 16, c * 16);
#pragma unroll
            for (int r = 0; r < 2; r++) {
                mma_bf16_16816(o[r][2 * c], a[r], b);
                mma_bf16_16816(o[r][2 * c + 1], a[r], b + 2);
            }
        }
    }
}

template <int D>
__device__ __forceinline__ void narrow_put(const walk &w, float o[D / 8][4], const float sum[2],
                                           int query)
{
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float inverse = 1.0f / row_sum(sum[half]);
        int at = query + lane / 4 + half * 8;
        if (at >= w.n)
            continue;
#pragma unroll
        for (int i = 0; i < D / 8; i++)
            put_pair(w, (int64_t)blockIdx.z * w.n + at, (int)blockIdx.y, i * 8 + lane % 4 * 2,
                     o[i][2 * half] * inverse, o[i][2 * half + 1] * inverse);
    }
}

template <int D, int KEYS>
__global__ void __launch_bounds__(NARROW_THREADS, 2) attend_narrow(const walk w)
{
    __nv_bfloat16 *q = (__nv_bfloat16 *)dynamic_shared, *k = q + NARROW_QUERIES * D,
                  *v = k + KEYS * D;
    int row = (int)threadIdx.x / 32 * 32;
    int kv_head = (int)blockIdx.y * w.kv_heads / w.heads;
    /* The longest walks of a causal mask first. */
    int query = (int)(gridDim.x - 1 - blockIdx.x) * NARROW_QUERIES;
    int end = sees(w, query + NARROW_QUERIES - 1);
    const __nv_bfloat16 *from_k = w.k.data + (int64_t)blockIdx.z * w.m * w.k.stride + kv_head * D;
    const __nv_bfloat16 *from_v = w.v.data + (int64_t)blockIdx.z * w.m * w.v.stride + kv_head * D;
    float o[2][D / 8][4] = {}, sum[2][2] = {};
    float top[2][2] = {{-INFINITY, -INFINITY}, {-INFINITY, -INFINITY}};

    tile_fetch<D, NARROW_QUERIES, NARROW_THREADS>(
        q, w.q.data + ((int64_t)blockIdx.z * w.n + query) * w.q.stride + blockIdx.y * D, w.q.stride,
        w.n - query);
    tile_fetch<D, KEYS, NARROW_THREADS>(k, from_k, w.k.stride, end);
    cp_async_commit();
    for (int key = 0; key < end; key += KEYS) {
        float s[2][KEYS / 8][4] = {};
        cp_async_wait<0>();
        __syncthreads(); /* the keys are there, the last values are done with */
        tile_fetch<D, KEYS, NARROW_THREADS>(v, from_v + (int64_t)key * w.v.stride, w.v.stride,
                                            end - key);
        cp_async_commit();
        narrow_scores<D, KEYS>(s, q, k, row);
        cp_async_wait<0>();
        __syncthreads(); /* the values are there, the keys are done with */
        if (key + KEYS < end)
            tile_fetch<D, KEYS, NARROW_THREADS>(k, from_k + (int64_t)(key + KEYS) * w.k.stride,
                                                w.k.stride, end - key - KEYS);
        cp_async_commit();
#pragma unroll
        for (int r = 0; r < 2; r++) {
            if (key + KEYS > sees(w, query))
                hide<KEYS / 8>(w, s[r], query + row + r * 16, key);
            narrow_weights<D, KEYS>(s[r], o[r], top[r], sum[r], w.scale);
        }
        narrow_values<D, KEYS>(o, s, v);
    }
    narrow_put<D>(w, o[0], sum[0], query + row);
    narrow_put<D>(w, o[1], sum[1], query + row + 16);
}

/* -------------------------------------------------------------------------- wide heads ------ */

/* What comes through the ring, in its order: for each block of keys the chunks of queries and keys,
 * then the chunks of values from `first` on. */
struct wide_ring {
    const walk *w;
    const __nv_bfloat16 *q, *k, *v;
    int end, key; /* of the chunk that is fetched next, as are: */
    int queries, first, values, chunk, stage;
};

__device__ __forceinline__ __nv_bfloat16 *wide_stage(int stage)
{
    return (__nv_bfloat16 *)dynamic_shared + stage * WIDE_STAGE;
}

__device__ __forceinline__ void wide_fetch(wide_ring &ring)
{
    const walk &w = *ring.w;
    __nv_bfloat16 *to = wide_stage(ring.stage);
    int left = ring.end - ring.key;
    if (left > 0 && ring.chunk < w.chunks) {
        int at = ring.chunk * WIDE_COLS;
        tile_fetch<WIDE_COLS, WIDE_QUERIES, WIDE_THREADS>(to, ring.q + at, w.q.stride,
                                                          ring.queries);
        tile_fetch<WIDE_COLS, WIDE_KEYS, WIDE_THREADS>(
            to + WIDE_STAGE / 2, ring.k + (int64_t)ring.key * w.k.stride + at, w.k.stride, left);
    } else if (left > 0) {
        int at = (ring.first + ring.chunk - w.chunks) * WIDE_COLS;
        tile_fetch<WIDE_COLS, WIDE_KEYS, WIDE_THREADS>(
            to, ring.v + (int64_t)ring.key * w.v.stride + at, w.v.stride, left);
    }
    cp_async_commit();
    ring.stage = (ring.stage + 1) % WIDE_STAGES;
    if (++ring.chunk == w.chunks + ring.values) {
        ring.chunk = 0;
        ring.key += WIDE_KEYS;
    }
}

/* Waits for the next chunk, starts the one two behind it. Returns where it is. */
__device__ __forceinline__ const __nv_bfloat16 *wide_next(wide_ring &ring)
{
    const __nv_bfloat16 *at = wide_stage((ring.stage + 1) % WIDE_STAGES);
    cp_async_wait<WIDE_STAGES - 2>();
    __syncthreads();
    wide_fetch(ring);
    return at;
}

/* s[16 queries][32 keys] of this warp += q k^T */
__device__ __forceinline__ void wide_scores(float s[4][4], wide_ring &ring, int row, int column)
{
    int lane = tile_lane<WIDE_COLS>(), lane_b = tile_lane_b<WIDE_COLS>();
    for (int c = 0; c < ring.w->chunks; c++) {
        const __nv_bfloat16 *q = wide_next(ring), *k = q + WIDE_STAGE / 2;
#pragma unroll
        for (int x = 0; x < WIDE_COLS; x += 16) {
            uint32_t a[4], b[2][4];
            tile_read<WIDE_COLS>(a, q, lane, row, x);
            tile_read<WIDE_COLS>(b[0], k, lane_b, column, x);
            tile_read<WIDE_COLS>(b[1], k, lane_b, column + 16, x);
#pragma unroll
            for (int i = 0; i < 4; i++)
                mma_bf16_16816(s[i], a, b[i / 2] + i % 2 * 2);
        }
    }
}

/* What the two warps of the same queries tell each other. */
struct wide_exchange {
    __nv_bfloat16 weights[WIDE_QUERIES * WIDE_KEYS]; /* a tile */
    float part[2][WIDE_QUERIES];
};

/* Scores become weights in the exchange's tile; shrink is what earlier sums are multiplied with. */
__device__ __forceinline__ void wide_weights(wide_exchange &x, float s[4][4], float top[2],
                                             float sum[2], float shrink[2], int row, int column,
                                             float scale)
{
    int lane = (int)threadIdx.x % 32, side = column / 32;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float most = top[half];
#pragma unroll
        for (int i = 0; i < 4; i++)
            most = fmaxf(most, fmaxf(s[i][2 * half], s[i][2 * half + 1]));
        most = row_most(most);
        if (lane % 4 == 0)
            x.part[side][row + lane / 4 + half * 8] = most;
    }
    __syncthreads();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int at = row + lane / 4 + half * 8;
        float most = fmaxf(x.part[0][at], x.part[1][at]), base = base_of(most, scale), part = 0;
        shrink[half] = exp2_fast(fmaf(top[half], scale, -base));
        top[half] = most;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float a = exp2_fast(fmaf(s[i][2 * half], scale, -base));
            float b = exp2_fast(fmaf(s[i][2 * half + 1], scale, -base));
            part += a + b;
            *(uint32_t *)(x.weights + tile_at<WIDE_KEYS>(at, column / PIECE + i) + lane % 4 * 2) =
                pack_bf16(a, b);
        }
        sum[half] = fmaf(sum[half], shrink[half], part);
    }
    __syncthreads();
}

/* o = shrink o + weights v */
__device__ __forceinline__ void wide_values(float o[WIDE_CHUNKS][4][4], wide_exchange &x,
                                            wide_ring &ring, const float shrink[2], int row,
                                            int column)
{
    int lane = tile_lane<WIDE_COLS>();
    uint32_t a[WIDE_KEYS / 16][4];
#pragma unroll
    for (int i = 0; i < WIDE_KEYS / 16; i++)
        tile_read<WIDE_KEYS>(a[i], x.weights, lane, row, i * 16);
#pragma unroll
    for (int c = 0; c < WIDE_CHUNKS; c++) {
        if (c >= ring.values)
            break;
        const __nv_bfloat16 *v = wide_next(ring);
#pragma unroll
        for (int i = 0; i < 16; i++)
            o[c][i / 4][i % 4] *= shrink[i / 2 % 2];
#pragma unroll
        for (int i = 0; i < WIDE_KEYS / 16; i++) {
            uint32_t b[2][4];
            tile_read_b_rows<WIDE_COLS>(b[0], v, lane, i * 16, column);
            tile_read_b_rows<WIDE_COLS>(b[1], v, lane, i * 16, column + 16);
#pragma unroll
            for (int j = 0; j < 4; j++)
                mma_bf16_16816(o[c][j], a[i], b[j / 2] + j % 2 * 2);
        }
    }
}

__device__ __forceinline__ void wide_put(const walk &w, float o[WIDE_CHUNKS][4][4],
                                         wide_exchange &x, const float sum[2],
                                         const wide_ring &ring, int query, int row, int column)
{
    int lane = (int)threadIdx.x % 32, head = (int)blockIdx.y % w.heads;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float part = row_sum(sum[half]);
        if (lane % 4 == 0)
            x.part[column / 32][row + lane / 4 + half * 8] = part;
    }
    __syncthreads();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int at = row + lane / 4 + half * 8;
        float inverse = 1.0f / (x.part[0][at] + x.part[1][at]);
        if (query + at >= w.n)
            continue;
#pragma unroll
        for (int i = 0; i < WIDE_CHUNKS * 4; i++) {
            int to = (ring.first + i / 4) * WIDE_COLS + column + i % 4 * 8 + lane % 4 * 2;
            if (i / 4 < ring.values)
                put_pair(w, (int64_t)blockIdx.z * w.n + query + at, head, to,
                         o[i / 4][i % 4][2 * half] * inverse,
                         o[i / 4][i % 4][2 * half + 1] * inverse);
        }
    }
}

/* blockIdx.y counts heads, then groups of WIDE_CHUNKS chunks of the values. */
__global__ void __launch_bounds__(WIDE_THREADS) attend_wide(const walk w)
{
    wide_exchange &x = *(wide_exchange *)(dynamic_shared + WIDE_STAGES * WIDE_STAGE * 2);
    int warp = (int)threadIdx.x / 32, row = warp / 2 * 16, column = warp % 2 * 32;
    int head = (int)blockIdx.y % w.heads, kv_head = head * w.kv_heads / w.heads;
    int wide = w.chunks * WIDE_COLS;
    int query = (int)blockIdx.x * WIDE_QUERIES;
    float o[WIDE_CHUNKS][4][4] = {}, top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
    wide_ring ring = {};
    ring.w = &w;
    ring.q = w.q.data + ((int64_t)blockIdx.z * w.n + query) * w.q.stride + head * wide;
    ring.k = w.k.data + (int64_t)blockIdx.z * w.m * w.k.stride + kv_head * wide;
    ring.v = w.v.data + (int64_t)blockIdx.z * w.m * w.v.stride + kv_head * wide;
    ring.end = sees(w, query + WIDE_QUERIES - 1);
    ring.queries = w.n - query;
    ring.first = (int)blockIdx.y / w.heads * WIDE_CHUNKS;
    ring.values = w.chunks - ring.first < WIDE_CHUNKS ? w.chunks - ring.first : WIDE_CHUNKS;

    for (int i = 0; i < WIDE_STAGES - 1; i++)
        wide_fetch(ring);
    for (int key = 0; key < ring.end; key += WIDE_KEYS) {
        float s[4][4] = {}, shrink[2];
        wide_scores(s, ring, row, column);
        if (key + WIDE_KEYS > sees(w, query))
            hide<4>(w, s, query + row, key + column);
        wide_weights(x, s, top, sum, shrink, row, column, w.scale);
        wide_values(o, x, ring, shrink, row, column);
    }
    wide_put(w, o, x, sum, ring, query, row, column);
}

/* --------------------------------------------------------------------------- gathering ------ */

/* out[rows][heads][to] = x's [rows][heads][d], rows `stride` apart, and zeros */
template <typename X>
__global__ void __launch_bounds__(GATHER_THREADS)
    gather(__nv_bfloat16 *out, const X *x, int64_t count, int64_t stride, int64_t heads, int d,
           int to)
{
    int64_t i = (int64_t)blockIdx.x * GATHER_THREADS + threadIdx.x;
    if (i >= count)
        return;
    int64_t column = i % to, head = i / to % heads, row = i / to / heads;
    out[i] = column < d ? (__nv_bfloat16)(float)x[row * stride + head * d + column]
                        : (__nv_bfloat16)0.0f;
}

/* --------------------------------------------------------------------------- launching ------ */

struct shape {
    int64_t batch, n, m, d, filled; /* filled: d as the kernel takes it */
};

int64_t fill_up(int64_t d)
{
    if (d > 128)
        return cuda_pieces(d, WIDE_COLS) * WIDE_COLS;
    return d <= 32 ? 32 : d <= 64 ? 64 : 128;
}

shape shape_of(const struct kr_attention *a)
{
    shape s = {};
    s.batch = a->q.rank == 3 ? a->q.dim[0] : 1;
    s.n = a->q.dim[a->q.rank - 2];
    s.m = a->k.dim[a->k.rank - 2];
    s.d = kr_cols(&a->q) / a->heads;
    s.filled = fill_up(s.d);
    return s;
}

int fits_kernel(const struct kr_tensor *t, const shape *s)
{
    return t->dtype == KR_BF16 && s->d == s->filled && (uintptr_t)t->data % 16 == 0 &&
           kr_stride(t) % PIECE == 0;
}

/* Whether put_pair() can read the gate by pairs. */
int fits_epilogue(const struct kr_tensor *gate, const shape *s)
{
    return gate->dtype == KR_BF16 && s->d % 2 == 0 && (uintptr_t)gate->data % 4 == 0 &&
           kr_stride(gate) % 2 == 0;
}

/* The rows as a kernel takes them: where they are, or in scratch. */
rows bring_rows(struct cuda_device *cuda, const struct kr_tensor *t, int64_t heads, const shape *s)
{
    if (fits_kernel(t, s))
        return {(const __nv_bfloat16 *)t->data, (int)kr_stride(t)};
    int64_t count = kr_rows(t) * heads * s->filled;
    rows r = {(const __nv_bfloat16 *)kr_scratch(&cuda->base, (size_t)count * 2),
              (int)(heads * s->filled)};
    if (!kr_live(&cuda->base))
        return r;
    dim3 grid((unsigned)cuda_pieces(count, GATHER_THREADS));
    if (t->dtype == KR_F32)
        launch(cuda, gather<float>, grid, dim3(GATHER_THREADS), 0, (__nv_bfloat16 *)r.data,
               (const float *)t->data, count, kr_stride(t), heads, (int)s->d, (int)s->filled);
    else
        launch(cuda, gather<__nv_bfloat16>, grid, dim3(GATHER_THREADS), 0, (__nv_bfloat16 *)r.data,
               (const __nv_bfloat16 *)t->data, count, kr_stride(t), heads, (int)s->d,
               (int)s->filled);
    return r;
}

void run(struct cuda_device *cuda, void (*kernel)(walk), dim3 grid, unsigned threads, size_t shared,
         const walk &w)
{
    if (cuda_ok(
            cuda,
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared),
            "cudaFuncSetAttribute"))
        launch(cuda, kernel, grid, dim3(threads), shared, w);
}

template <int D, int KEYS> void run_narrow(struct cuda_device *cuda, const walk &w, int64_t batch)
{
    dim3 grid((unsigned)cuda_pieces(w.n, NARROW_QUERIES), (unsigned)w.heads, (unsigned)batch);
    run(cuda, attend_narrow<D, KEYS>, grid, NARROW_THREADS, (NARROW_QUERIES + 2 * KEYS) * D * 2, w);
}

void run_wide(struct cuda_device *cuda, const walk &w, int64_t batch)
{
    int groups = (w.chunks + WIDE_CHUNKS - 1) / WIDE_CHUNKS;
    dim3 grid((unsigned)cuda_pieces(w.n, WIDE_QUERIES), (unsigned)(w.heads * groups),
              (unsigned)batch);
    run(cuda, attend_wide, grid, WIDE_THREADS, WIDE_STAGES * WIDE_STAGE * 2 + sizeof(wide_exchange),
        w);
}

/* Two blocks share a processor. On sm_90 they have room for 48 keys; elsewhere either shared memory
 * or, beside a gate, registers only last for 32. */
void run_walk(struct cuda_device *cuda, const walk &w, const shape *s)
{
    if (s->filled > 128)
        run_wide(cuda, w, s->batch);
    else if (s->filled == 32)
        run_narrow<32, 64>(cuda, w, s->batch);
    else if (s->filled == 64)
        run_narrow<64, 64>(cuda, w, s->batch);
    else if (cuda->capability == 90)
        run_narrow<128, 48>(cuda, w, s->batch);
    else
        run_narrow<128, 32>(cuda, w, s->batch);
}

} // namespace

void cuda_attention(struct kr_device *dev, struct kr_tensor out, const struct kr_attention *a)
{
    struct cuda_device *cuda = cuda_of(dev);
    struct kr_mark mark = kr_arena_mark(dev);
    shape s = shape_of(a);
    walk w = {};
    w.q = bring_rows(cuda, &a->q, a->heads, &s);
    w.k = bring_rows(cuda, &a->k, a->kv_heads, &s);
    w.v = bring_rows(cuda, &a->v, a->kv_heads, &s);
    w.out = out.data;
    w.n = (int)s.n;
    w.m = (int)s.m;
    w.d = (int)s.d;
    w.heads = (int)a->heads;
    w.kv_heads = (int)a->kv_heads;
    w.chunks = (int)(s.filled / WIDE_COLS);
    w.causal = a->mask == KR_MASK_CAUSAL;
    w.out_f32 = out.dtype == KR_F32;
    w.scale = 1.44269504f / sqrtf((float)s.d);
    bool gated = a->gate.data && fits_epilogue(&a->gate, &s);
    if (gated) {
        w.gate = (const __nv_bfloat16 *)a->gate.data;
        w.gate_stride = (int)kr_stride(&a->gate);
    }
    if (kr_live(dev))
        run_walk(cuda, w, &s);
    kr_arena_release(dev, mark);
    if (a->gate.data && !gated && kr_live(dev))
        cuda_mul_sigmoid(dev, out, out, a->gate);
}
