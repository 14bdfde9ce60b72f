/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations that only move elements about: patches, planes and pixels, upsampling. Each is one
 * question: where does an element of the output come from?
 */
#include "kernels/cuda/elements.cuh"

/* Piece i of out, N elements, from element f.from(i) of x. */
template <int N, typename F>
__global__ void gather(struct cuda_rows out, struct cuda_rows x, int64_t pieces, F f)
{
    int64_t threads = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < pieces; i += threads) {
        float v[N];
        get<N>(v, x, f.from(i));
        put<N>(out, i * N, v);
    }
}

template <int N, typename F>
static void gather_all(struct kr_device *dev, const struct kr_tensor *out,
                       const struct kr_tensor *x, F f)
{
    int64_t pieces = kr_count(out) / N;
    launch(cuda_of(dev), gather<N, F>, cuda_blocks(pieces, BLOCK_THREADS), BLOCK_THREADS, 0,
           cuda_rows_of(out), cuda_rows_of(x), pieces, f);
}

/* Element (channel, row, column) of token (y, x) is z[channel, 2y + row, 2x + column]. */
struct patches {
    int64_t channels, h, w;

    __device__ int64_t from(int64_t i) const
    {
        int64_t token = quotient(i, channels * 4), at = i - token * channels * 4;
        int64_t y = quotient(token, w / 2), x = token - y * (w / 2);
        return (at / 4 * h + 2 * y + at / 2 % 2) * w + 2 * x + at % 2;
    }
};

struct unpatched {
    int64_t channels, h, w;

    __device__ int64_t from(int64_t i) const
    {
        int64_t line = quotient(i, w), x = i - line * w;
        int64_t channel = quotient(line, h), y = line - channel * h;
        int64_t token = y / 2 * (w / 2) + x / 2;
        return (token * channels + channel) * 4 + y % 2 * 2 + x % 2;
    }
};

/* out[j, i] = x[i, j]; out has `cols` columns, x `rows`. */
struct turned {
    int64_t rows, cols;

    __device__ int64_t from(int64_t i) const
    {
        int64_t row = quotient(i, cols), col = i - row * cols;
        return col * rows + row;
    }
};

/* `pieces` of a pixel; w pixels in a row of x. */
struct upsampled {
    int64_t pieces, w, each;

    __device__ int64_t from(int64_t i) const
    {
        int64_t pixel = quotient(i, pieces), at = i - pixel * pieces;
        int64_t y = quotient(pixel, 2 * w), x = pixel - y * 2 * w;
        return ((y / 2 * w + x / 2) * pieces + at) * each;
    }
};

void cuda_patchify(struct kr_device *dev, struct kr_tensor out, struct kr_tensor z)
{
    struct patches f = {z.dim[0], z.dim[1], z.dim[2]};
    gather_all<1>(dev, &out, &z, f);
}

void cuda_unpatchify(struct kr_device *dev, struct kr_tensor z, struct kr_tensor tokens)
{
    struct unpatched f = {z.dim[0], z.dim[1], z.dim[2]};
    gather_all<1>(dev, &z, &tokens, f);
}

void cuda_planes_to_pixels(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x)
{
    struct turned f = {out.dim[0] * out.dim[1], out.dim[2]};
    gather_all<1>(dev, &out, &x, f);
}

void cuda_pixels_to_planes(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x)
{
    struct turned f = {out.dim[0], out.dim[1] * out.dim[2]};
    gather_all<1>(dev, &out, &x, f);
}

void cuda_upsample2(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x)
{
    struct cuda_rows to = cuda_rows_of(&out), of = cuda_rows_of(&x);
    int64_t c = x.dim[2];
    bool wide = c % WIDE == 0 && cuda_is_wide(&to) && cuda_is_wide(&of);
    struct upsampled f = {c / (wide ? WIDE : 1), x.dim[1], wide ? WIDE : 1};
    if (wide)
        gather_all<WIDE>(dev, &out, &x, f);
    else
        gather_all<1>(dev, &out, &x, f);
}
