/* SPDX-License-Identifier: Apache-2.0
 *
 * Products with FP8 weights as they are stored, on tensor cores, with everything that comes after
 * the sum in their last step: linear.cu says where they are better than cuBLASLt.
 *
 * A block computes a tile of TILE rows of x by TILE rows of W. 128 bytes of each row of x, and what
 * belongs to them of W, come through a ring of three; eight warps (four of a small tile) have half
 * of the tile's rows and 32 of its columns each. There are two kinds of products:
 *
 * To the tensor cores W is the left matrix, so results come out transposed; and rows of W go to
 * lanes such that their results are neighbours.
 *
 * x BF16: bytes of W become bfloat16 in registers on their way into the product. All codes come out
 * exact; that one was NaN is noted, and makes its column NaN in the end. Which element of a row is
 * which k of a product is free as long as x and W agree, so a lane reads 16 neighbouring bytes of a
 * row at once and takes them as those that the next products want from it.
 *
 * x quantized by rows: FP8 times FP8, from compute capability 8.9 on.
 *
 * Blocks go down x along ACROSS tiles of W before they go on to the next ones, so that those tiles
 * stay in the second-level cache. Every sum is computed by one warp in one order.
 */
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/products.cuh"
#include "kernels/cuda/tiles.cuh"

#include <math.h>

namespace
{

enum {
    STAGES = 3,
    ACROSS = 8,
    STEP = 64,              /* of x at a time, in units of 16 bits, as all lengths of rows here */
    W_STEP_BF16 = STEP / 2, /* of W beside an x of BF16 */
    WARP_W = 2              /* times sixteen rows of W, of a warp */
};

struct product {
    const __nv_bfloat16 *x, *w; /* or pairs of E4M3 */
    int x_long, w_long;
    struct cuda_rows out;
    int n, wide;
    const float *x_factors, *bias, *gate; /* NULL: none */
    int end[CUDA_MOST_PARTS];             /* of the weights, one below the other */
    float scale[CUDA_MOST_PARTS];
    int add, pairs; /* pairs: two neighbouring results may be stored at once */
    enum kr_act act;
};

/* What a block and a warp have. */
template <bool FP8, int TILE> struct sizes {
    enum {
        THREADS = 2 * TILE,
        WARP_X = TILE / 16,                  /* times eight rows of x, of a warp */
        W_STEP = FP8 ? +STEP : +W_STEP_BF16, /* of W, as STEP */
        STAGE = TILE * (STEP + W_STEP)
    };
};

/* Which tile of x and which of W. */
__device__ __forceinline__ void find_tile(const product &p, int tile, int &row, int &column)
{
    int down = (p.n + tile - 1) / tile, across = (p.wide + tile - 1) / tile;
    int group = (int)blockIdx.x / (ACROSS * down), within = (int)blockIdx.x % (ACROSS * down);
    int columns = min(across - group * ACROSS, (int)ACROSS);
    row = within / columns * tile;
    column = (group * ACROSS + within % columns) * tile;
}

/* Where in a stage's tile of W a piece is. The lanes that read at once have every other row, and of
 * those the same piece lies in different banks. */
template <int W_STEP> __device__ __forceinline__ int w_at(int row, int piece)
{
    int at = W_STEP == 64 ? row * 8 + (piece ^ (row / 2 & 7)) : row * 4 + piece;
    return (W_STEP == 64 ? at : at ^ (row / 2 & 1) * 4) * PIECE;
}

/* Starts the copy of TILE rows of W; zeros come of rows and pieces that are not `there`. */
template <bool FP8, int TILE>
__device__ __forceinline__ void fetch_w(__nv_bfloat16 *to, const __nv_bfloat16 *from, int stride,
                                        int there, int columns)
{
    typedef sizes<FP8, TILE> s;
    constexpr int pieces = s::W_STEP / PIECE, rows = s::THREADS / pieces;
    static_assert(rows % 16 == 0, "w_at() is the same for all of a thread's rows");
    int row = (int)threadIdx.x / pieces, piece = (int)threadIdx.x % pieces;
    to += w_at<s::W_STEP>(row, piece);
    from += (int64_t)row * stride + piece * PIECE;
#pragma unroll
    for (int i = 0; i < TILE; i += rows) {
        cp_async_16(to + i * s::W_STEP, from, row + i < there && piece * PIECE < columns);
        from += (int64_t)rows * stride;
    }
}

template <bool FP8, int TILE>
__device__ __forceinline__ void fetch(const product &p, int row, int column, int step)
{
    typedef sizes<FP8, TILE> s;
    __nv_bfloat16 *to = (__nv_bfloat16 *)dynamic_shared + step % STAGES * s::STAGE;
    int from_x = step * STEP, from_w = step * s::W_STEP;
    if (from_x < p.x_long) {
        tile_fetch<STEP, TILE, s::THREADS>(to, p.x + (int64_t)row * p.x_long + from_x, p.x_long,
                                           p.n - row, p.x_long - from_x);
        fetch_w<FP8, TILE>(to + TILE * STEP, p.w + (int64_t)column * p.w_long + from_w, p.w_long,
                           p.wide - column, p.w_long - from_w);
    }
    cp_async_commit();
}

/* ----------------------------------------------------------------------------- computing ------ */

__device__ __forceinline__ uint4 read_piece(const __nv_bfloat16 *tile, int at)
{
    return *(const uint4 *)(tile + at);
}

__device__ __forceinline__ uint32_t word(const uint4 &v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* Two E4M3 in the upper bytes of a pair. Exponent and mantissa are a bfloat16's but for a power of
 * two, which also makes normal numbers of subnormal ones. */
__device__ __forceinline__ uint32_t widen(uint32_t pair)
{
    return mul_bf16x2((pair >> 4 & 0x07f007f0u) | (pair & 0x80008000u), 0x7b807b80u); /* 2^120 */
}

/* Four E4M3 of a row; *bad gets a top bit where one is NaN. */
__device__ __forceinline__ void widen_four(uint32_t *low, uint32_t *high, uint32_t four,
                                           uint32_t *bad)
{
    *low = widen(__byte_perm(four, 0, 0x1404));
    *high = widen(__byte_perm(four, 0, 0x3424));
    *bad |= (four & 0x7f7f7f7fu) + 0x01010101u;
}

/* The part of a warp's sums that half of a stage gives. */
template <int WARP_X>
__device__ __forceinline__ void multiply_half(float sum[WARP_W][WARP_X][4], uint32_t bad[WARP_W][2],
                                              const uint4 x[WARP_X], const uint4 w[WARP_W][2],
                                              int half)
{
#pragma unroll
    for (int j = 0; j < 2; j++)
#pragma unroll
        for (int i = 0; i < WARP_W; i++) {
            uint32_t a[4];
#pragma unroll
            for (int r = 0; r < 2; r++)
                widen_four(&a[r], &a[r + 2], word(w[i][r], 2 * half + j), &bad[i][r]);
#pragma unroll
            for (int r = 0; r < WARP_X; r++) {
                uint32_t b[2] = {word(x[r], 2 * j), word(x[r], 2 * j + 1)};
                mma_bf16_16816(sum[i][r], a, b);
            }
        }
}

template <int WARP_X>
__device__ __forceinline__ void read_x(uint4 x[WARP_X], const __nv_bfloat16 *tile, int row,
                                       int half)
{
    int lane = (int)threadIdx.x % 32, at = tile_at<STEP>(lane / 4, lane % 4 * 2 + half);
#pragma unroll
    for (int i = 0; i < WARP_X; i++)
        x[i] = read_piece(tile, (row + i * 8) * STEP + at);
}

/* Two neighbouring rows of each sixteen. */
__device__ __forceinline__ void read_w(uint4 w[WARP_W][2], const __nv_bfloat16 *tile, int row)
{
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < WARP_W; i++)
#pragma unroll
        for (int r = 0; r < 2; r++)
            w[i][r] = read_piece(tile, (row + i * 16) * W_STEP_BF16 +
                                           w_at<W_STEP_BF16>(lane / 4 * 2 + r, lane % 4));
}

/* A stage of the ring; its second half is read before the first is multiplied. */
template <int WARP_X>
__device__ __forceinline__ void multiply_stage(float sum[WARP_W][WARP_X][4],
                                               uint32_t bad[WARP_W][2], const __nv_bfloat16 *x_tile,
                                               const __nv_bfloat16 *w_tile, int row, int column)
{
    uint4 x[2][WARP_X], w[WARP_W][2];
    read_w(w, w_tile, column);
    read_x<WARP_X>(x[0], x_tile, row, 0);
    read_x<WARP_X>(x[1], x_tile, row, 1);
    multiply_half<WARP_X>(sum, bad, x[0], w, 0);
    multiply_half<WARP_X>(sum, bad, x[1], w, 1);
}

template <int WARP_X>
__device__ __forceinline__ void multiply_stage_fp8(float sum[WARP_W][WARP_X][4],
                                                   const __nv_bfloat16 *x_tile,
                                                   const __nv_bfloat16 *w_tile, int row, int column)
{
    int lane = (int)threadIdx.x % 32, lane_x = tile_lane_b<STEP>();
    int lane_w = w_at<STEP>(lane % 8 * 2 + lane / 8 % 2, lane / 16);
#pragma unroll
    for (int k = 0; k < STEP; k += 16) {
        uint32_t a[WARP_W][4];
#pragma unroll
        for (int i = 0; i < WARP_W; i++)
            tile_read<STEP>(a[i], w_tile, lane_w, column + i * 16, k);
#pragma unroll
        for (int r = 0; r < WARP_X; r += 2) {
            uint32_t b[4];
            tile_read<STEP>(b, x_tile, lane_x, row + r * 8, k);
#pragma unroll
            for (int i = 0; i < WARP_W; i++) {
                mma_e4m3_16832(sum[i][r], a[i], b);
                mma_e4m3_16832(sum[i][r + 1], a[i], b + 2);
            }
        }
    }
}

/* ------------------------------------------------------------------------------- storing ------ */

/* What a column's sums are multiplied with. */
__device__ __forceinline__ float factor_of_column(const product &p, int column)
{
    if (p.gate)
        return p.gate[column];
    float scale = p.scale[0];
#pragma unroll
    for (int i = 1; i < CUDA_MOST_PARTS; i++)
        scale = column >= p.end[i - 1] ? p.scale[i] : scale;
    return scale;
}

template <int N> __device__ __forceinline__ void store(const product &p, int64_t at, float v[N])
{
    float y[N];
    if (p.out.dtype == KR_BF16) {
        put_bf16<N>((uint16_t *)p.out.data + at, v);
        return;
    }
    if (p.add) {
        get_f32<N>(y, (const float *)p.out.data + at);
#pragma unroll
        for (int i = 0; i < N; i++)
            v[i] += y[i];
    }
    put_f32<N>((float *)p.out.data + at, v);
}

__device__ __forceinline__ void store_two(const product &p, int row, int column, float v[2])
{
    int64_t at = row * p.out.stride + column;
    if (p.pairs && column + 1 < p.wide) {
        store<2>(p, at, v);
        return;
    }
    if (column < p.wide)
        store<1>(p, at, v);
    if (column + 1 < p.wide)
        store<1>(p, at + 1, v + 1);
}

/* Two columns of a lane's, NaN where W was. */
template <int WARP_X>
__device__ __forceinline__ void store_columns(const product &p, const float sum[WARP_X][4],
                                              const uint32_t bad[2], int row, int column)
{
    int lane = (int)threadIdx.x % 32;
    float by[2] = {}, bias[2] = {};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        unsigned nan = __ballot_sync(0xffffffffu, (bad[i] & 0x80808080u) != 0);
        if (column + i >= p.wide)
            continue;
        by[i] = nan >> lane / 4 * 4 & 15 ? NAN : factor_of_column(p, column + i);
        bias[i] = p.bias ? p.bias[column + i] : 0.0f;
    }
#pragma unroll
    for (int r = 0; r < 2 * WARP_X; r++) {
        int at = row + r / 2 * 8 + lane % 4 * 2 + r % 2;
        if (at >= p.n)
            continue;
        float factor = p.x_factors ? p.x_factors[at] : 1.0f, v[2];
#pragma unroll
        for (int i = 0; i < 2; i++)
            v[i] = activated(fmaf(sum[r / 2][r % 2 + i * 2] * factor, by[i], bias[i]), p.act);
        store_two(p, at, column, v);
    }
}

template <bool FP8, int TILE>
__global__ void __launch_bounds__(2 * TILE, 1) multiply_tile(const product p)
{
    typedef sizes<FP8, TILE> s;
    int warp = (int)threadIdx.x / 32, steps = (p.x_long + STEP - 1) / STEP, row, column;
    int warp_row = warp % 2 * (TILE / 2), warp_column = warp / 2 * (16 * WARP_W);
    float sum[WARP_W][s::WARP_X][4] = {};
    uint32_t bad[WARP_W][2] = {};
    find_tile(p, TILE, row, column);
    for (int i = 0; i < STAGES - 1; i++)
        fetch<FP8, TILE>(p, row, column, i);
    for (int step = 0; step < steps; step++) {
        cp_async_wait<STAGES - 2>();
        __syncthreads(); /* this stage is there, the last one is done with */
        fetch<FP8, TILE>(p, row, column, step + STAGES - 1);
        const __nv_bfloat16 *x_tile =
            (const __nv_bfloat16 *)dynamic_shared + step % STAGES * s::STAGE;
        const __nv_bfloat16 *w_tile = x_tile + TILE * STEP;
        if (FP8)
            multiply_stage_fp8<s::WARP_X>(sum, x_tile, w_tile, warp_row, warp_column);
        else
            multiply_stage<s::WARP_X>(sum, bad, x_tile, w_tile, warp_row, warp_column);
    }
    column += warp_column + (int)threadIdx.x % 32 / 4 * 2;
#pragma unroll
    for (int i = 0; i < WARP_W; i++)
        store_columns<s::WARP_X>(p, sum[i], bad[i], row + warp_row, column + i * 16);
}

/* ----------------------------------------------------------------------------- launching ------ */

template <bool FP8, int TILE> void run(struct cuda_device *cuda, const product &p)
{
    typedef sizes<FP8, TILE> s;
    int64_t tiles = cuda_pieces(p.n, TILE) * cuda_pieces(p.wide, TILE);
    size_t shared = (size_t)STAGES * s::STAGE * sizeof(__nv_bfloat16);
    if (cuda_ok(cuda,
                cudaFuncSetAttribute(multiply_tile<FP8, TILE>,
                                     cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared),
                "cudaFuncSetAttribute"))
        launch(cuda, multiply_tile<FP8, TILE>, dim3((unsigned)tiles), dim3(s::THREADS), shared, p);
}

/* Large tiles need half of the traffic, small ones occupy a card that large ones leave idle. */
template <bool FP8> void run_tiles(struct cuda_device *cuda, const product &p)
{
    if (p.n > 64 && cuda_pieces(p.n, 128) * cuda_pieces(p.wide, 128) >= cuda->processors)
        run<FP8, 128>(cuda, p);
    else
        run<FP8, 64>(cuda, p);
}

} // namespace

int cuda_multiply_takes(const struct cuda_device *cuda, enum kr_dtype x, const void *at,
                        const struct kr_weight *const *w, int count)
{
    if (w[0]->in % 16 || (uintptr_t)at % 16 || count > CUDA_MOST_PARTS ||
        (x == KR_F8_E4M3 && cuda->capability < 89))
        return 0;
    for (int i = 0; i < count; i++)
        if (w[i]->dtype != KR_F8_E4M3)
            return 0;
    return 1;
}

void cuda_multiply(struct cuda_device *cuda, const struct cuda_multiply *m)
{
    int fp8 = m->x.dtype == KR_F8_E4M3;
    int64_t depth = kr_cols(&m->x), stride = kr_stride(&m->out);
    product p = {};
    p.x = (const __nv_bfloat16 *)m->x.data;
    p.w = (const __nv_bfloat16 *)m->w;
    p.x_long = (int)(fp8 ? depth / 2 : depth);
    p.w_long = (int)(depth / 2);
    p.out = cuda_rows_of(&m->out);
    p.n = (int)kr_rows(&m->x);
    p.x_factors = fp8 ? cuda_factors(&m->x) : NULL;
    p.bias = m->bias;
    p.gate = m->gate;
    p.add = m->add;
    p.act = m->act;
    p.pairs = stride % 2 == 0 && (uintptr_t)m->out.data % (2 * kr_dtype_size(m->out.dtype)) == 0;
    for (int i = 0; i < CUDA_MOST_PARTS; i++) {
        p.wide += i < m->count ? (int)m->weights[i]->out : 0;
        p.end[i] = p.wide;
        p.scale[i] = i < m->count ? m->weights[i]->scale : 1.0f;
    }
    if (fp8)
        run_tiles<true>(cuda, p);
    else
        run_tiles<false>(cuda, p);
    cuda->products_in_fp8 += fp8;
}
