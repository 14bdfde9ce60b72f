/* SPDX-License-Identifier: Apache-2.0
 *
 * What kernels that walk over rows share: elements in and out of memory as F32, N at a time (8 of
 * them are one or two transactions of 16 bytes), sums over the threads of a row, and the functions.
 */
#ifndef KR_CUDA_ELEMENTS_CUH
#define KR_CUDA_ELEMENTS_CUH

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/ptx.cuh"

#include <cuda_fp8.h>

enum { BLOCK_THREADS = 256, WARP = 32, WIDE = 8 };

#define FP8_MOST 448.0f /* the largest number of E4M3 */

/* A tensor as kernels see it. */
struct cuda_rows {
    void *data;
    int64_t stride; /* elements from one row to the next; 0: each row is the same */
    enum kr_dtype dtype;
};

static inline struct cuda_rows cuda_rows_of(const struct kr_tensor *t)
{
    struct cuda_rows rows = {t->data, kr_stride(t), t->dtype};
    return rows;
}

/* Whether every WIDE elements of a row lie as the vector loads and stores want them. */
static inline int cuda_is_wide(const struct cuda_rows *t)
{
    return (uintptr_t)t->data % 16 == 0 &&
           (size_t)t->stride * kr_dtype_size(t->dtype) % (t->dtype == KR_F8_E4M3 ? 8 : 16) == 0;
}

/* NULL is as good as any. */
static inline int cuda_is_wide(const float *vector)
{
    return (uintptr_t)vector % 16 == 0;
}

static inline unsigned cuda_blocks(int64_t items, int64_t an_block)
{
    return (unsigned)cuda_least(cuda_pieces(items, an_block), 1 << 30);
}

/* ---------------------------------------------------------------------- in and out ------ */

/* Division of numbers that are seldom large, where 64 bits cost four times as much. */
__device__ __forceinline__ int64_t quotient(int64_t a, int64_t b)
{
    if (a <= 0xffffffffll && b <= 0xffffffffll)
        return (int64_t)((uint32_t)a / (uint32_t)b);
    return a / b;
}

__device__ __forceinline__ void get_pair(float v[2], uint32_t bits)
{
    v[0] = __uint_as_float(bits << 16);
    v[1] = __uint_as_float(bits & 0xffff0000u);
}

template <int N> __device__ __forceinline__ void get_f32(float v[N], const float *p)
{
    if constexpr (N >= 4) {
        for (int i = 0; i < N; i += 4) {
            float4 f = *(const float4 *)(p + i);
            v[i] = f.x, v[i + 1] = f.y, v[i + 2] = f.z, v[i + 3] = f.w;
        }
    } else if constexpr (N == 2) {
        float2 f = *(const float2 *)p;
        v[0] = f.x, v[1] = f.y;
    } else {
        v[0] = *p;
    }
}

template <int N> __device__ __forceinline__ void get_bf16(float v[N], const uint16_t *p)
{
    if constexpr (N == 8) {
        uint4 u = *(const uint4 *)p;
        get_pair(v, u.x), get_pair(v + 2, u.y), get_pair(v + 4, u.z), get_pair(v + 6, u.w);
    } else if constexpr (N == 4) {
        uint2 u = *(const uint2 *)p;
        get_pair(v, u.x), get_pair(v + 2, u.y);
    } else if constexpr (N == 2) {
        get_pair(v, *(const uint32_t *)p);
    } else {
        v[0] = __uint_as_float((uint32_t)*p << 16);
    }
}

/* N elements from number `at` on. */
template <int N>
__device__ __forceinline__ void get(float v[N], const struct cuda_rows &t, int64_t at)
{
    if (t.dtype == KR_BF16)
        get_bf16<N>(v, (const uint16_t *)t.data + at);
    else
        get_f32<N>(v, (const float *)t.data + at);
}

template <int N> __device__ __forceinline__ void put_f32(float *p, const float v[N])
{
    if constexpr (N >= 4) {
        for (int i = 0; i < N; i += 4)
            *(float4 *)(p + i) = make_float4(v[i], v[i + 1], v[i + 2], v[i + 3]);
    } else if constexpr (N == 2) {
        *(float2 *)p = make_float2(v[0], v[1]);
    } else {
        *p = v[0];
    }
}

template <int N> __device__ __forceinline__ void put_bf16(uint16_t *p, const float v[N])
{
    if constexpr (N == 8)
        *(uint4 *)p = make_uint4(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]),
                                 pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7]));
    else if constexpr (N == 4)
        *(uint2 *)p = make_uint2(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]));
    else if constexpr (N == 2)
        *(uint32_t *)p = pack_bf16(v[0], v[1]);
    else
        *p = (uint16_t)pack_bf16(v[0], 0);
}

__device__ __forceinline__ uint32_t fp8_of(float v)
{
    return __nv_cvt_float_to_fp8(v, __NV_SATFINITE, __NV_E4M3);
}

template <int N> __device__ __forceinline__ void put_fp8(uint8_t *p, const float v[N])
{
    if constexpr (N == 8) {
        uint32_t u[2] = {0, 0};
        for (int i = 0; i < 8; i++)
            u[i / 4] |= fp8_of(v[i]) << 8 * (i % 4);
        *(uint2 *)p = make_uint2(u[0], u[1]);
    } else {
        for (int i = 0; i < N; i++)
            p[i] = (uint8_t)fp8_of(v[i]);
    }
}

template <int N>
__device__ __forceinline__ void put(const struct cuda_rows &t, int64_t at, const float v[N])
{
    if (t.dtype == KR_BF16)
        put_bf16<N>((uint16_t *)t.data + at, v);
    else if (t.dtype == KR_F32)
        put_f32<N>((float *)t.data + at, v);
    else
        put_fp8<N>((uint8_t *)t.data + at, v);
}

/* ------------------------------------------------------------------- over a row's threads ------
 */

template <bool MOST> __device__ __forceinline__ float joined(float a, float b)
{
    return MOST ? fmaxf(a, b) : a + b;
}

/* The sum, or the largest, of what the GROUP threads of a row have; all of them get it. GROUP is a
 * warp or the block; the same order every time. */
template <int GROUP, bool MOST> __device__ __forceinline__ float row_total(float v)
{
    for (int lanes = WARP / 2; lanes > 0; lanes /= 2)
        v = joined<MOST>(v, __shfl_xor_sync(0xffffffffu, v, lanes));
    if constexpr (GROUP > WARP) {
        __shared__ float part[GROUP / WARP];
        __syncthreads(); /* the last total has been read */
        if (threadIdx.x % WARP == 0)
            part[threadIdx.x / WARP] = v;
        __syncthreads();
        v = part[0];
        for (int i = 1; i < GROUP / WARP; i++)
            v = joined<MOST>(v, part[i]);
    }
    return v;
}

/* Rows of so many elements are a warp's; longer ones are a block's. */
enum { WARP_COLS = 1024 };

template <int GROUP> __device__ __forceinline__ int64_t group_row()
{
    return (int64_t)blockIdx.x * (BLOCK_THREADS / GROUP) + threadIdx.x / GROUP;
}

/* A row's factor is its largest magnitude over the type's largest number; a row of zeros, or of
 * numbers that are next to nothing, has one that can be divided by. */
__device__ __forceinline__ float factor_of(float most)
{
    return fmaxf(most, 1e-30f) / FP8_MOST;
}

/* ------------------------------------------------------------------------- functions ------ */

__device__ __forceinline__ float sigmoid(float x)
{
    return __fdividef(1.0f, 1.0f + expf(-x)); /* 0 where the power is too large for it */
}

__device__ __forceinline__ float silu(float x)
{
    return x * sigmoid(x);
}

/* x/2 (1 + tanh(u)) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3) */
__device__ __forceinline__ float gelu_tanh(float x)
{
    return x * sigmoid(1.5957691216f * (x + 0.044715f * x * x * x));
}

__device__ __forceinline__ float activated(float x, enum kr_act act)
{
    return act == KR_ACT_SILU ? silu(x) : act == KR_ACT_GELU_TANH ? gelu_tanh(x) : x;
}

#endif
