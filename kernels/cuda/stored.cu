/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels that read weights and inputs in the types that they are stored in: expanding to bfloat16,
 * quantizing, and the linear map for which cuBLASLt is no use: few rows (a step's time is one),
 * where W is read once at the width that it has, and shapes that the library refuses.
 */
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/products.cuh"

#include <cuda_fp16.h>

namespace
{

enum { ROWS = 4 /* of x, that a warp multiplies with a row of W */ };

struct e4m3 {
    uint8_t bits;
};
struct e5m2 {
    uint8_t bits;
};

/* A small float's exponent and mantissa, shifted to an F32's, are the value but for a power of 2.
 */
__device__ __forceinline__ float value(e4m3 x)
{
    uint32_t magnitude = x.bits & 0x7fu, sign = (x.bits & 0x80u) << 24;
    float v = __uint_as_float(magnitude << 20) * 0x1p120f;
    return __uint_as_float(magnitude == 0x7f ? 0x7fc00000u : __float_as_uint(v) | sign);
}

__device__ __forceinline__ float value(e5m2 x)
{
    uint32_t magnitude = x.bits & 0x7fu, sign = (x.bits & 0x80u) << 24;
    uint32_t bits = __float_as_uint(__uint_as_float(magnitude << 21) * 0x1p112f);
    return __uint_as_float((magnitude >= 0x7c ? magnitude << 21 | 0x7f800000u : bits) | sign);
}

__device__ __forceinline__ float value(__half x)
{
    return __half2float(x);
}

__device__ __forceinline__ float value(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}

__device__ __forceinline__ float value(float x)
{
    return x;
}

/* Calls f with a pointer of the type that dtype names. */
template <typename F> void of_type(enum kr_dtype dtype, const void *at, F f)
{
    if (dtype == KR_F8_E4M3)
        f((const e4m3 *)at);
    else if (dtype == KR_F8_E5M2)
        f((const e5m2 *)at);
    else if (dtype == KR_F16)
        f((const __half *)at);
    else if (dtype == KR_BF16)
        f((const __nv_bfloat16 *)at);
    else
        f((const float *)at);
}

/* WIDE elements in one access, or two of 16 bytes. */
template <typename W> struct __align__(sizeof(W) * WIDE > 16 ? 16 : sizeof(W) * WIDE) pack
{
    W x[WIDE];
};

/* N is 1 or WIDE; those are aligned as a pack. */
template <int N, typename W> __device__ __forceinline__ void load(float v[N], const W *from)
{
    if constexpr (N == WIDE) {
        pack<W> p = *(const pack<W> *)from;
        for (int i = 0; i < WIDE; i++)
            v[i] = value(p.x[i]);
    } else {
        v[0] = value(*from);
    }
}

/* ---------------------------------------------------------------------------- expanding ------ */

template <typename W>
__global__ void __launch_bounds__(BLOCK_THREADS)
    expand(uint16_t *out, const W *w, int64_t count, int64_t cols, const float *gate)
{
    int64_t i = ((int64_t)blockIdx.x * BLOCK_THREADS + threadIdx.x) * WIDE;
    float v[WIDE];
    if (i + WIDE <= count) {
        float by = gate ? gate[quotient(i, cols)] : 1.0f;
        load<WIDE>(v, w + i);
        for (int j = 0; j < WIDE; j++)
            v[j] *= by;
        put_bf16<WIDE>(out + i, v);
        return;
    }
    for (; i < count; i++) {
        load<1>(v, w + i);
        put_bf16<1>(out + i, v);
    }
}

/* N divides the columns. */
template <int N>
__global__ void __launch_bounds__(BLOCK_THREADS)
    dequantize(uint16_t *out, const e4m3 *x, const float *factors, int64_t count, int64_t cols)
{
    int64_t i = ((int64_t)blockIdx.x * BLOCK_THREADS + threadIdx.x) * N;
    float v[N];
    if (i >= count)
        return;
    float by = factors[quotient(i, cols)];
    load<N>(v, x + i);
    for (int j = 0; j < N; j++)
        v[j] *= by;
    put_bf16<N>(out + i, v);
}

/* --------------------------------------------------------------------------- quantizing ------ */

/* parts[block]: the largest magnitude of every gridDim.x-th piece of x. Here and below a thread
 * takes N elements, which divide x. */
template <int N>
__global__ void __launch_bounds__(BLOCK_THREADS)
    largest(float *parts, const struct cuda_rows x, int64_t count)
{
    float v[N], most = 0;
    for (int64_t i = ((int64_t)blockIdx.x * BLOCK_THREADS + threadIdx.x) * N; i < count;
         i += (int64_t)gridDim.x * BLOCK_THREADS * N) {
        get<N>(v, x, i);
        for (int j = 0; j < N; j++)
            most = fmaxf(most, fabsf(v[j]));
    }
    most = row_total<BLOCK_THREADS, true>(most);
    if (threadIdx.x == 0)
        parts[blockIdx.x] = most;
}

template <int N>
__global__ void __launch_bounds__(BLOCK_THREADS)
    quantize_all(uint8_t *out, float *factor, const float *parts, int count_of_parts,
                 const struct cuda_rows x, int64_t count)
{
    float v[N], most = (int)threadIdx.x < count_of_parts ? parts[threadIdx.x] : 0.0f;
    float by = factor_of(row_total<BLOCK_THREADS, true>(most));
    int64_t i = ((int64_t)blockIdx.x * BLOCK_THREADS + threadIdx.x) * N;
    if (i == 0)
        *factor = by;
    if (i >= count)
        return;
    get<N>(v, x, i);
    for (int j = 0; j < N; j++)
        v[j] *= 1.0f / by;
    put_fp8<N>(out + i, v);
}

struct factors {
    int64_t end[CUDA_MOST_PARTS];
    float scale[CUDA_MOST_PARTS];
};

__global__ void __launch_bounds__(BLOCK_THREADS)
    fill_factors(float *out, const struct factors f, int64_t count)
{
    int64_t i = (int64_t)blockIdx.x * BLOCK_THREADS + threadIdx.x;
    if (i >= count)
        return;
    float scale = f.scale[0];
    for (int part = 1; part < CUDA_MOST_PARTS; part++)
        scale = i >= f.end[part - 1] ? f.scale[part] : scale;
    out[i] = scale;
}

/* ------------------------------------------------------------------------------- direct ------ */

struct direct_op {
    struct cuda_rows out, x;
    int64_t n, wide, depth; /* rows of x, of W, and what both are long */
    float scale;
    const float *bias, *gate;
    int add;
    enum kr_act act;
};

__device__ __forceinline__ void direct_put(const direct_op &op, int64_t row, int64_t column,
                                           float sum)
{
    int64_t at = row * op.out.stride + column;
    float v = sum * op.scale;
    if (op.bias)
        v += op.bias[column];
    if (op.add) {
        if (op.gate)
            v *= op.gate[column];
        v += ((float *)op.out.data)[at];
    } else
        v = activated(v, op.act);
    put<1>(op.out, at, &v);
}

/* A warp multiplies a row of W with ROWS rows of x. */
template <int N, typename W>
__global__ void __launch_bounds__(BLOCK_THREADS, 2) direct(const struct direct_op op, const W *w)
{
    int lane = threadIdx.x % WARP;
    int64_t column = (int64_t)blockIdx.x * (BLOCK_THREADS / WARP) + threadIdx.x / WARP;
    int64_t row = (int64_t)blockIdx.y * ROWS;
    float sum[ROWS] = {}, a[N], b[N];
    if (column >= op.wide)
        return;
    for (int64_t k = lane * N; k < op.depth; k += WARP * N) {
        load<N>(a, w + column * op.depth + k);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (row + r >= op.n)
                break;
            get<N>(b, op.x, (row + r) * op.depth + k);
            for (int i = 0; i < N; i++)
                sum[r] = fmaf(a[i], b[i], sum[r]);
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float total = row_total<WARP, false>(sum[r]);
        if (lane == 0 && row + r < op.n)
            direct_put(op, row + r, column, total);
    }
}

} // namespace

void cuda_expand(struct cuda_device *cuda, void *out, const void *w, enum kr_dtype dtype,
                 int64_t rows, int64_t cols, const float *gate)
{
    int64_t count = rows * cols;
    assert(!gate || cols % WIDE == 0);
    of_type(dtype, w, [=](auto *from) {
        launch(cuda, expand<typename std::decay<decltype(*from)>::type>,
               dim3(cuda_blocks(count, BLOCK_THREADS * WIDE)), dim3(BLOCK_THREADS), 0,
               (uint16_t *)out, from, count, cols, gate);
    });
}

void cuda_dequantize(struct cuda_device *cuda, struct kr_tensor out, struct kr_tensor x)
{
    int64_t count = kr_count(&x), cols = kr_cols(&x);
    int n = cols % WIDE == 0 && (uintptr_t)x.data % WIDE == 0 ? WIDE : 1;
    launch(cuda, n == WIDE ? dequantize<WIDE> : dequantize<1>,
           dim3(cuda_blocks(count, BLOCK_THREADS * n)), dim3(BLOCK_THREADS), 0,
           (uint16_t *)out.data, (const e4m3 *)x.data, (const float *)cuda_factors(&x), count,
           cols);
}

void cuda_quantize_tensor(struct cuda_device *cuda, void *out, float *factor, float *parts,
                          struct kr_tensor x)
{
    struct cuda_rows rows = cuda_rows_of(&x);
    int64_t count = kr_count(&x);
    int n = count % WIDE == 0 && cuda_is_wide(&rows) ? WIDE : 1;
    unsigned blocks = cuda_blocks(count, BLOCK_THREADS * n);
    unsigned few = (unsigned)cuda_least(blocks, CUDA_PARTS);
    static_assert((int)CUDA_PARTS <= (int)BLOCK_THREADS, "a thread for each part");
    launch(cuda, n == WIDE ? largest<WIDE> : largest<1>, dim3(few), dim3(BLOCK_THREADS), 0, parts,
           rows, count);
    launch(cuda, n == WIDE ? quantize_all<WIDE> : quantize_all<1>, dim3(blocks),
           dim3(BLOCK_THREADS), 0, (uint8_t *)out, factor, (const float *)parts, (int)few, rows,
           count);
}

void cuda_fill_factors(struct cuda_device *cuda, float *out, const struct kr_weight *const *w,
                       int count)
{
    struct factors f = {};
    int64_t end = 0;
    assert(count <= CUDA_MOST_PARTS);
    for (int i = 0; i < CUDA_MOST_PARTS; i++) {
        end += i < count ? w[i]->out : 0;
        f.end[i] = end;
        f.scale[i] = i < count ? w[i]->scale : 1.0f;
    }
    launch(cuda, fill_factors, dim3(cuda_blocks(end, BLOCK_THREADS)), dim3(BLOCK_THREADS), 0, out,
           f, end);
}

void cuda_direct(struct cuda_device *cuda, const struct cuda_direct *d)
{
    struct direct_op op = {cuda_rows_of(&d->out),
                           cuda_rows_of(&d->x),
                           kr_rows(&d->x),
                           d->weight->out,
                           d->weight->in,
                           d->gate ? 1.0f : d->weight->scale, /* the gate has it */
                           (const float *)d->weight->bias.data,
                           d->gate,
                           d->add,
                           d->act};
    bool wide = op.depth % WIDE == 0 && cuda_is_wide(&op.x);
    dim3 grid(cuda_blocks(op.wide, BLOCK_THREADS / WARP), (unsigned)cuda_pieces(op.n, ROWS));
    of_type(d->weight->dtype, d->w, [=](auto *w) {
        typedef typename std::decay<decltype(*w)>::type W;
        launch(cuda, wide ? direct<WIDE, W> : direct<1, W>, grid, dim3(BLOCK_THREADS), 0, op, w);
    });
}
