/* SPDX-License-Identifier: Apache-2.0
 *
 * Tiles of bfloat16 values in shared memory, and the way from there into the registers of a warp's
 * products: what attention.cu, conv.cu and multiply.cu share.
 *
 * A tile is rows of COLS values, in pieces of 16 bytes. The pieces of a row are swapped by the
 * row's number, so that the same piece of eight rows lies in eight different groups of banks:
 * neither the copies that fill a tile nor ldmatrix, which reads eight rows at once, wait for a
 * bank.
 */
#ifndef KR_CUDA_TILES_CUH
#define KR_CUDA_TILES_CUH

#include "kernels/cuda/ptx.cuh"

enum { PIECE = 8 /* values that are 16 bytes */ };

/* Where in a tile of COLS columns a piece is, in values. */
template <int COLS> __device__ __forceinline__ int tile_at(int row, int piece)
{
    constexpr int pieces = COLS / PIECE, apart = pieces >= 8 ? 1 : 8 / pieces;
    static_assert(pieces >= 2 && (pieces & (pieces - 1)) == 0, "16, 32, 64, .. columns");
    constexpr int mask = pieces >= 8 ? 7 : pieces - 1;
    return (row * pieces + (piece ^ (row / apart & mask))) * PIECE;
}

/* A warp reads 16 rows and 16 columns of a tile at a time. Where a lane's part lies in the first
 * such square; as rows come by 16 and columns by even pieces, it lies in all others at this offset
 * with the column's bits turned over. The first is for a, and for b where the tile's rows are
 * summed over; the second for b where its columns are. */
template <int COLS> __device__ __forceinline__ int tile_lane()
{
    int lane = (int)threadIdx.x % 32;
    return tile_at<COLS>(lane % 16, lane / 16);
}

template <int COLS> __device__ __forceinline__ int tile_lane_b()
{
    int lane = (int)threadIdx.x % 32;
    return tile_at<COLS>(lane / 16 * 8 + lane % 8, lane / 8 % 2);
}

/* r: rows row..row + 16, columns column..column + 16 of a tile, as a, or as b of two products. */
template <int COLS>
__device__ __forceinline__ void tile_read(uint32_t r[4], const __nv_bfloat16 *tile, int lane,
                                          int row, int column)
{
    ldmatrix_x4(r, tile + row * COLS + (lane ^ column));
}

/* The same as b of two products, whose columns the tile's columns are. */
template <int COLS>
__device__ __forceinline__ void tile_read_b_rows(uint32_t r[4], const __nv_bfloat16 *tile, int lane,
                                                 int row, int column)
{
    ldmatrix_x4_trans(r, tile + row * COLS + (lane ^ column));
}

/* Starts the copy of ROWS rows of COLS values that lie `stride` apart; of rows from `there` on, and
 * of pieces from `columns` on, come zeros. All THREADS threads of the block take part. */
template <int COLS, int ROWS, int THREADS>
__device__ __forceinline__ void tile_fetch(__nv_bfloat16 *tile, const __nv_bfloat16 *from,
                                           int stride, int there, int columns = COLS)
{
    constexpr int pieces = COLS / PIECE, rows = THREADS / pieces;
    static_assert(ROWS % rows == 0 && rows % 8 == 0, "each thread copies pieces of one column");
    int row = (int)threadIdx.x / pieces, piece = (int)threadIdx.x % pieces;
    tile += tile_at<COLS>(row, piece);
    from += (int64_t)row * stride + piece * PIECE;
#pragma unroll
    for (int i = 0; i < ROWS; i += rows) {
        cp_async_16(tile + i * COLS, from, row + i < there && piece * PIECE < columns);
        from += rows * stride;
    }
}

#endif
