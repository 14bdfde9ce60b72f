/* SPDX-License-Identifier: Apache-2.0
 *
 * Convolutions over [h,w,c] pictures, "same" padding, as a product that is never laid out: its rows
 * are pixels, its columns the channels that come out, and what is summed over are the taps and in
 * each tap the channels that go in. A block computes PIXELS pixels in reading order (so it crosses
 * from one row to the next) and N channels; tiles of DEPTH channels of one tap come through a ring.
 * A pixel whose neighbour lies beyond the border gets zeros from the copy.
 *
 * Every pixel is summed in the same order wherever it lies in a block, and a sum is never divided
 * among blocks. So a picture that is decoded in pieces equals the whole one to the bit.
 *
 * The kernel is brought into the product's order at first use, bfloat16 [out][tap][in], channels
 * filled up with zeros to whole tiles, from the last temporal slice of what the file has.
 */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/tiles.cuh"

#include <cuda_fp16.h>

namespace
{

enum {
    PIXELS = 128,
    DEPTH = 32,
    RING = 3,
    THREADS = 128,
    PER_THREAD = PIXELS * DEPTH / PIECE / THREADS
};

struct picture {
    const void *x;
    const __nv_bfloat16 *kernel; /* [out][taps * padded] */
    const float *bias;           /* NULL: none */
    void *out;
    int h, w, in, padded, channels, taps; /* channels: that come out */
    int groups;                           /* of N channels */
    int add, out_f32;
};

/* N channels from a warp's tile of ROWS x COLS. */
template <int N> struct warps {
    enum { ACROSS = N == 96 ? 2 : 1, ROWS = PIXELS / (4 / ACROSS), COLS = N / ACROSS };
};

/* ---------------------------------------------------------------------------- fetching ------ */

/* Eight values as bfloat16. */
__device__ __forceinline__ uint4 eight(const float *x)
{
    float4 a = *(const float4 *)x, b = *(const float4 *)(x + 4);
    return make_uint4(pack_bf16(a.x, a.y), pack_bf16(a.z, a.w), pack_bf16(b.x, b.y),
                      pack_bf16(b.z, b.w));
}

/* The same of the first `there` alone, zeros behind. */
template <typename X> __device__ __forceinline__ uint4 eight_part(const X *x, int there)
{
    float v[PIECE];
#pragma unroll
    for (int i = 0; i < PIECE; i++)
        v[i] = i < there ? (float)x[i] : 0.0f;
    return make_uint4(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]),
                      pack_bf16(v[6], v[7]));
}

template <bool WHOLE>
__device__ __forceinline__ void fetch_piece(__nv_bfloat16 *to, const __nv_bfloat16 *x, int there)
{
    if (WHOLE)
        cp_async_16(to, x, there > 0);
    else
        *(uint4 *)to = eight_part(x, there);
}

template <bool WHOLE>
__device__ __forceinline__ void fetch_piece(__nv_bfloat16 *to, const float *x, int there)
{
    if (WHOLE)
        *(uint4 *)to = there > 0 ? eight(x) : make_uint4(0, 0, 0, 0);
    else
        *(uint4 *)to = eight_part(x, there);
}

/* What a thread copies: one piece of PER_THREAD pixels in each tile, and pieces of the kernel. */
struct source {
    int y[PER_THREAD], x[PER_THREAD]; /* y far above the picture: no pixel */
    int tap, channel, stage;          /* of the tile that is fetched next */
};

__device__ __forceinline__ void find_pixels(const picture &p, source &s, int first)
{
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        int pixel = first + (int)threadIdx.x / 4 + i * (THREADS / 4);
        s.y[i] = pixel < p.h * p.w ? pixel / p.w : -2;
        s.x[i] = pixel % p.w;
    }
}

template <int N> __device__ __forceinline__ __nv_bfloat16 *ring_at(int stage)
{
    return (__nv_bfloat16 *)dynamic_shared + stage * (PIXELS + N) * DEPTH;
}

template <typename X, bool WHOLE>
__device__ __forceinline__ void fetch_pixels(const picture &p, const source &s, __nv_bfloat16 *to)
{
    int piece = (int)threadIdx.x % 4, channel = s.channel + piece * PIECE;
    int dy = p.taps == 9 ? s.tap / 3 - 1 : 0, dx = p.taps == 9 ? s.tap % 3 - 1 : 0;
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        int y = s.y[i] + dy, x = s.x[i] + dx;
        bool inside = y >= 0 && y < p.h && x >= 0 && x < p.w;
        int64_t at = inside ? ((int64_t)y * p.w + x) * p.in + channel : 0;
        fetch_piece<WHOLE>(to + tile_at<DEPTH>((int)threadIdx.x / 4 + i * (THREADS / 4), piece),
                           (const X *)p.x + (channel < p.in ? at : 0), inside ? p.in - channel : 0);
    }
}

template <typename X, int N, bool WHOLE>
__device__ __forceinline__ void fetch(const picture &p, source &s, int first_channel)
{
    __nv_bfloat16 *to = ring_at<N>(s.stage), *kernel = to + PIXELS * DEPTH;
    if (s.tap < p.taps) {
        fetch_pixels<X, WHOLE>(p, s, to);
#pragma unroll
        for (int i = (int)threadIdx.x; i < N * DEPTH / PIECE; i += THREADS) {
            int row = i / 4, piece = i % 4, channel = first_channel + row;
            bool valid = channel < p.channels;
            cp_async_16(kernel + tile_at<DEPTH>(row, piece),
                        p.kernel + ((int64_t)(valid ? channel : 0) * p.taps + s.tap) * p.padded +
                            s.channel + piece * PIECE,
                        valid);
        }
    }
    cp_async_commit();
    s.stage = (s.stage + 1) % RING;
    s.channel += DEPTH;
    if (s.channel == p.padded) {
        s.channel = 0;
        s.tap++;
    }
}

/* --------------------------------------------------------------------------- computing ------ */

template <int N>
__device__ __forceinline__ void multiply(float sum[warps<N>::ROWS / 16][warps<N>::COLS / 8][4],
                                         const __nv_bfloat16 *tile, int row, int column)
{
    const __nv_bfloat16 *kernel = tile + PIXELS * DEPTH;
    int lane = tile_lane<DEPTH>(), lane_b = tile_lane_b<DEPTH>();
#pragma unroll
    for (int k = 0; k < DEPTH; k += 16) {
        uint32_t a[warps<N>::ROWS / 16][4];
#pragma unroll
        for (int r = 0; r < warps<N>::ROWS / 16; r++)
            tile_read<DEPTH>(a[r], tile, lane, row + r * 16, k);
#pragma unroll
        for (int i = 0; i < warps<N>::COLS / 16; i++) {
            uint32_t b[4];
            tile_read<DEPTH>(b, kernel, lane_b, column + i * 16, k);
#pragma unroll
            for (int r = 0; r < warps<N>::ROWS / 16; r++) {
                mma_bf16_16816(sum[r][2 * i], a[r], b);
                mma_bf16_16816(sum[r][2 * i + 1], a[r], b + 2);
            }
        }
    }
}

__device__ __forceinline__ void put(const picture &p, int64_t pixel, int channel, float a)
{
    int64_t at = pixel * p.channels + channel;
    if (p.bias)
        a += p.bias[channel];
    if (p.add)
        ((float *)p.out)[at] += a;
    else if (p.out_f32)
        ((float *)p.out)[at] = a;
    else
        ((__nv_bfloat16 *)p.out)[at] = __float2bfloat16_rn(a);
}

/* Two neighbouring channels; an even channel. */
__device__ __forceinline__ void put_pair(const picture &p, int64_t pixel, int channel, float a,
                                         float b)
{
    int64_t at = pixel * p.channels + channel;
    if (p.channels % 2 || channel + 1 >= p.channels) {
        if (channel < p.channels)
            put(p, pixel, channel, a);
        if (channel + 1 < p.channels)
            put(p, pixel, channel + 1, b);
        return;
    }
    if (p.bias) {
        a += p.bias[channel];
        b += p.bias[channel + 1];
    }
    if (p.add) {
        float2 y = *(const float2 *)((const float *)p.out + at);
        *(float2 *)((float *)p.out + at) = make_float2(y.x + a, y.y + b);
    } else if (p.out_f32)
        *(float2 *)((float *)p.out + at) = make_float2(a, b);
    else
        *(uint32_t *)((__nv_bfloat16 *)p.out + at) = pack_bf16(a, b);
}

template <int N>
__device__ __forceinline__ void put_all(const picture &p,
                                        float sum[warps<N>::ROWS / 16][warps<N>::COLS / 8][4],
                                        int first, int first_channel)
{
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < warps<N>::ROWS / 8; r++) {
        int pixel = first + r * 8 + lane / 4;
        if (pixel >= p.h * p.w)
            continue;
#pragma unroll
        for (int i = 0; i < warps<N>::COLS / 8; i++)
            put_pair(p, pixel, first_channel + i * 8 + lane % 4 * 2, sum[r / 2][i][r % 2 * 2],
                     sum[r / 2][i][r % 2 * 2 + 1]);
    }
}

/* WHOLE: pieces of eight channels are aligned and none is cut. */
template <typename X, int N, bool WHOLE>
__global__ void __launch_bounds__(THREADS, sizeof(X) == 4 ? 2 : 3) convolve(const picture p)
{
    int warp = (int)threadIdx.x / 32;
    int row = warp / warps<N>::ACROSS * warps<N>::ROWS;
    int column = warp % warps<N>::ACROSS * warps<N>::COLS;
    int first = (int)blockIdx.x / p.groups * PIXELS, first_channel = (int)blockIdx.x % p.groups * N;
    int steps = p.taps * (p.padded / DEPTH), stage = 0;
    float sum[warps<N>::ROWS / 16][warps<N>::COLS / 8][4] = {};
    source s;
    find_pixels(p, s, first);
    s.tap = s.channel = s.stage = 0;
    for (int i = 0; i < RING - 1; i++)
        fetch<X, N, WHOLE>(p, s, first_channel);
    for (int i = 0; i < steps; i++) {
        cp_async_wait<RING - 2>();
        __syncthreads(); /* this tile is there, the last one is done with */
        fetch<X, N, WHOLE>(p, s, first_channel);
        multiply<N>(sum, ring_at<N>(stage), row, column);
        stage = (stage + 1) % RING;
    }
    put_all<N>(p, sum, first + row, first_channel + column);
}

/* --------------------------------------------------------------------------- preparing ------ */

/* out[channels][taps][padded] of the last temporal slice of from[channels][in][kt][taps] */
template <typename W>
__global__ void __launch_bounds__(THREADS)
    arrange(__nv_bfloat16 *out, const W *from, int64_t count, int in, int kt, int taps, int padded)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count)
        return;
    int c = (int)(i % padded), tap = (int)(i / padded % taps);
    int64_t channel = i / padded / taps;
    float v = 0;
    if (c < in)
        v = (float)from[((channel * in + c + 1) * kt - 1) * taps + tap];
    out[i] = __float2bfloat16_rn(v);
}

template <typename W>
void run_arrange(struct cuda_device *cuda, __nv_bfloat16 *out, const void *from,
                 const struct kr_conv *c, int padded)
{
    int taps = (int)(c->kh * c->kw);
    int64_t count = c->out * taps * padded;
    launch(cuda, arrange<W>, dim3((unsigned)cuda_pieces(count, THREADS)), dim3(THREADS), 0, out,
           (const W *)from, count, (int)c->in, (int)c->kt, taps, padded);
}

/* The kernel in the product's order; NULL while planning or after a fault. */
const __nv_bfloat16 *prepare(struct cuda_device *cuda, struct kr_conv *c, int padded)
{
    size_t stored = (size_t)(c->out * c->in * c->kt * c->kh * c->kw) * kr_dtype_size(c->dtype);
    struct kr_mark mark = kr_arena_mark(&cuda->base);
    int fresh;
    __nv_bfloat16 *made = (__nv_bfloat16 *)cuda_made(
        cuda, c->data, (size_t)(c->out * c->kh * c->kw * padded) * sizeof *made, &fresh);
    if (!fresh)
        return made;
    void *raw = kr_scratch(&cuda->base, stored);
    if (made && kr_live(&cuda->base) && cuda_bring(cuda, raw, c->data, stored)) {
        c->prepared = made;
        if (c->dtype == KR_F32)
            run_arrange<float>(cuda, made, raw, c, padded);
        else if (c->dtype == KR_F16)
            run_arrange<__half>(cuda, made, raw, c, padded);
        else
            run_arrange<__nv_bfloat16>(cuda, made, raw, c, padded);
    }
    kr_arena_release(&cuda->base, mark);
    return made;
}

/* --------------------------------------------------------------------------- launching ------ */

template <typename X, int N> void run_whole(struct cuda_device *cuda, picture &p)
{
    int whole = p.in % PIECE == 0 && (uintptr_t)p.x % 16 == 0;
    p.groups = (p.channels + N - 1) / N;
    dim3 grid((unsigned)(cuda_pieces((int64_t)p.h * p.w, PIXELS) * p.groups));
    launch(cuda, whole ? convolve<X, N, true> : convolve<X, N, false>, grid, dim3(THREADS),
           RING * (PIXELS + N) * DEPTH * sizeof(__nv_bfloat16), p);
}

template <typename X> void run(struct cuda_device *cuda, picture &p)
{
    if (p.channels <= 16)
        run_whole<X, 16>(cuda, p);
    else
        run_whole<X, 96>(cuda, p);
}

void convolution(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x,
                 struct kr_conv *conv, int add)
{
    struct cuda_device *cuda = cuda_of(dev);
    picture p = {};
    p.x = x.data;
    p.bias = (const float *)conv->bias.data;
    p.out = out.data;
    p.h = (int)x.dim[0];
    p.w = (int)x.dim[1];
    p.in = (int)conv->in;
    p.padded = (int)(cuda_pieces(conv->in, DEPTH) * DEPTH);
    p.channels = (int)conv->out;
    p.taps = (int)(conv->kh * conv->kw);
    p.add = add;
    p.out_f32 = out.dtype == KR_F32;
    p.kernel = prepare(cuda, conv, p.padded);
    if (!kr_live(dev))
        return;
    if (x.dtype == KR_F32)
        run<float>(cuda, p);
    else
        run<__nv_bfloat16>(cuda, p);
}

} // namespace

void cuda_conv2d(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x,
                 struct kr_conv *conv)
{
    convolution(dev, out, x, conv, 0);
}

void cuda_conv2d_add(struct kr_device *dev, struct kr_tensor y, struct kr_tensor x,
                     struct kr_conv *conv)
{
    convolution(dev, y, x, conv, 1);
}

void cuda_conv_fini(struct kr_device *dev, struct kr_conv *conv)
{
    cuda_made_free(cuda_of(dev), conv->data);
}
