/* SPDX-License-Identifier: Apache-2.0
 *
 * Norms over rows, with what comes behind them in the same pass: modulation, an activation,
 * quantization; and over the heads of queries and keys, with their rotation. A row is read once
 * for its sum and again, from a cache, for its elements.
 */
#include "kernels/cuda/elements.cuh"

struct norm {
    struct cuda_rows out, also, x; /* also.data may be NULL; it is never quantized */
    int64_t rows, cols;
    const float *weight, *scale, *shift; /* scale NULL: no modulation */
    float *factors;                      /* where out is quantized */
    float eps;
    enum kr_act act;
};

template <int N>
__device__ __forceinline__ void normed(float v[N], const struct norm &m, float r, int64_t row,
                                       int64_t c)
{
    float by[N], plus[N];
    get<N>(v, m.x, row * m.x.stride + c);
    get_f32<N>(by, m.weight + c);
    for (int i = 0; i < N; i++)
        v[i] = v[i] * r * by[i];
    if (m.scale) {
        get_f32<N>(by, m.scale + c);
        get_f32<N>(plus, m.shift + c);
        for (int i = 0; i < N; i++)
            v[i] = v[i] * (1.0f + by[i]) + plus[i];
    }
    for (int i = 0; i < N; i++)
        v[i] = activated(v[i], m.act);
}

template <int GROUP, int N> __global__ void __launch_bounds__(BLOCK_THREADS) rms_norm(struct norm m)
{
    int64_t row = group_row<GROUP>(), first = threadIdx.x % GROUP * N;
    float v[N], sum = 0, by = 1;
    if (row >= m.rows)
        return;
    for (int64_t c = first; c < m.cols; c += GROUP * N) {
        get<N>(v, m.x, row * m.x.stride + c);
        for (int i = 0; i < N; i++)
            sum += v[i] * v[i];
    }
    float r = 1.0f / sqrtf(row_total<GROUP, false>(sum) / (float)m.cols + m.eps);
    if (m.factors) {
        float most = 0;
        for (int64_t c = first; c < m.cols; c += GROUP * N) {
            normed<N>(v, m, r, row, c);
            for (int i = 0; i < N; i++)
                most = fmaxf(most, fabsf(v[i]));
        }
        float factor = factor_of(row_total<GROUP, true>(most));
        if (first == 0)
            m.factors[row] = factor;
        by = 1.0f / factor;
    }
    for (int64_t c = first; c < m.cols; c += GROUP * N) {
        normed<N>(v, m, r, row, c);
        if (m.also.data)
            put<N>(m.also, row * m.also.stride + c, v);
        for (int i = 0; i < N; i++)
            v[i] *= by;
        put<N>(m.out, row * m.out.stride + c, v);
    }
}

void cuda_rms_norm(struct kr_device *dev, struct kr_tensor out, struct kr_tensor also,
                   struct kr_tensor x, struct kr_tensor weight, float eps, enum kr_act act,
                   struct kr_tensor scale, struct kr_tensor shift)
{
    struct norm m = {};
    m.out = cuda_rows_of(&out);
    if (also.data)
        m.also = cuda_rows_of(&also);
    m.x = cuda_rows_of(&x);
    m.rows = kr_rows(&x);
    m.cols = kr_cols(&x);
    m.weight = (const float *)weight.data;
    m.scale = (const float *)scale.data;
    m.shift = (const float *)shift.data;
    m.factors = out.dtype == KR_F8_E4M3 ? cuda_factors(&out) : NULL;
    m.eps = eps;
    m.act = act;
    bool wide = cuda_is_wide(&m.out) && cuda_is_wide(&m.also) && cuda_is_wide(&m.x) &&
                cuda_is_wide(m.weight) && cuda_is_wide(m.scale) && cuda_is_wide(m.shift) &&
                m.cols % WIDE == 0;
    bool warps = m.cols <= WARP_COLS;
    auto kernel = warps ? (wide ? rms_norm<WARP, WIDE> : rms_norm<WARP, 1>)
                        : (wide ? rms_norm<BLOCK_THREADS, WIDE> : rms_norm<BLOCK_THREADS, 1>);
    launch(cuda_of(dev), kernel, cuda_blocks(m.rows, warps ? BLOCK_THREADS / WARP : 1),
           BLOCK_THREADS, 0, m);
}

/* A warp takes one head of one position, of the queries or of the keys. */
struct heads {
    struct cuda_rows x[2];
    const float *weight[2], *cos, *sin; /* cos NULL: no rotation */
    int64_t count[2];
    int64_t rows, positions, d;
    float eps;
    enum kr_rope_pairs pairs;
};

/* The elements of pairs p .. p + N - 1, first ones before second ones. */
template <int N>
__device__ __forceinline__ void get_pairs(float first[N], float second[N],
                                          const struct cuda_rows &x, int64_t at, int64_t p,
                                          int64_t middle, enum kr_rope_pairs pairs)
{
    if (pairs == KR_ROPE_HALVES || N == 1) { /* one pair may lie anywhere */
        get<N>(first, x, at + (pairs == KR_ROPE_HALVES ? p : 2 * p));
        get<N>(second, x, at + (pairs == KR_ROPE_HALVES ? middle + p : 2 * p + 1));
        return;
    }
    float both[2 * N];
    get<2 * N>(both, x, at + 2 * p);
    for (int i = 0; i < N; i++)
        first[i] = both[2 * i], second[i] = both[2 * i + 1];
}

template <int N>
__device__ __forceinline__ void put_pairs(const float first[N], const float second[N],
                                          const struct cuda_rows &x, int64_t at, int64_t p,
                                          int64_t middle, enum kr_rope_pairs pairs)
{
    if (pairs == KR_ROPE_HALVES || N == 1) {
        put<N>(x, at + (pairs == KR_ROPE_HALVES ? p : 2 * p), first);
        put<N>(x, at + (pairs == KR_ROPE_HALVES ? middle + p : 2 * p + 1), second);
        return;
    }
    float both[2 * N];
    for (int i = 0; i < N; i++)
        both[2 * i] = first[i], both[2 * i + 1] = second[i];
    put<2 * N>(x, at + 2 * p, both);
}

template <int N>
__device__ __forceinline__ void turn_head(const struct heads &h, const struct cuda_rows &x,
                                          const float *weight, float r, int64_t at, int64_t angle)
{
    int64_t middle = h.d / 2;
    const struct cuda_rows w = {(void *)weight, 0, KR_F32};
    for (int64_t p = threadIdx.x % WARP * N; p < middle; p += WARP * N) {
        float a[N], b[N], c[N], s[N], u[N], v[N];
        get_pairs<N>(a, b, x, at, p, middle, h.pairs);
        get_pairs<N>(c, s, w, 0, p, middle, h.pairs);
        for (int i = 0; i < N; i++)
            a[i] *= r * c[i], b[i] *= r * s[i];
        get_f32<N>(c, h.cos + angle + p);
        get_f32<N>(s, h.sin + angle + p);
        for (int i = 0; i < N; i++) {
            u[i] = a[i] * c[i] - b[i] * s[i];
            v[i] = b[i] * c[i] + a[i] * s[i];
        }
        put_pairs<N>(u, v, x, at, p, middle, h.pairs);
    }
}

template <int N>
__device__ __forceinline__ void scale_head(const struct heads &h, const struct cuda_rows &x,
                                           const float *weight, float r, int64_t at)
{
    for (int64_t c = threadIdx.x % WARP * N; c < h.d; c += WARP * N) {
        float v[N], by[N];
        get<N>(v, x, at + c);
        get_f32<N>(by, weight + c);
        for (int i = 0; i < N; i++)
            v[i] *= r * by[i];
        put<N>(x, at + c, v);
    }
}

/* N elements, or pairs, at a time; it divides them. */
template <int N> __global__ void __launch_bounds__(BLOCK_THREADS) norm_heads(struct heads h)
{
    int64_t of_row = h.count[0] + h.count[1];
    int64_t number = (int64_t)blockIdx.x * (BLOCK_THREADS / WARP) + threadIdx.x / WARP;
    int64_t row = quotient(number, of_row), head = number - row * of_row;
    if (row >= h.rows)
        return;
    int keys = head >= h.count[0];
    const struct cuda_rows x = keys ? h.x[1] : h.x[0]; /* no index: it would need the stack */
    const float *weight = keys ? h.weight[1] : h.weight[0];
    int64_t at = row * x.stride + (head - (keys ? h.count[0] : 0)) * h.d;
    float v[N], sum = 0;
    for (int64_t c = threadIdx.x % WARP * N; c < h.d; c += WARP * N) {
        get<N>(v, x, at + c);
        for (int i = 0; i < N; i++)
            sum += v[i] * v[i];
    }
    float r = 1.0f / sqrtf(row_total<WARP, false>(sum) / (float)h.d + h.eps);
    __syncwarp(); /* lanes write what others have read */
    if (h.cos)
        turn_head<N>(h, x, weight, r, at, row % h.positions * (h.d / 2));
    else
        scale_head<N>(h, x, weight, r, at);
}

void cuda_qk_norm_rope(struct kr_device *dev, const struct kr_qk *qk, float eps,
                       const struct kr_rope *rope)
{
    struct heads h = {};
    h.x[0] = cuda_rows_of(&qk->q);
    h.x[1] = cuda_rows_of(&qk->k);
    h.weight[0] = (const float *)qk->q_weight.data;
    h.weight[1] = (const float *)qk->k_weight.data;
    h.d = kr_count(&qk->q_weight);
    h.count[0] = kr_cols(&qk->q) / h.d;
    h.count[1] = kr_cols(&qk->k) / h.d;
    h.rows = kr_rows(&qk->q);
    h.positions = rope ? rope->cos.dim[0] : 1;
    h.cos = rope ? (const float *)rope->cos.data : NULL;
    h.sin = rope ? (const float *)rope->sin.data : NULL;
    h.eps = eps;
    h.pairs = rope ? rope->pairs : KR_ROPE_HALVES;
    bool even = h.d % 8 == 0 && cuda_is_wide(&h.x[0]) && cuda_is_wide(&h.x[1]) &&
                cuda_is_wide(h.weight[0]) && cuda_is_wide(h.weight[1]) && cuda_is_wide(h.cos) &&
                cuda_is_wide(h.sin);
    launch(cuda_of(dev), even ? norm_heads<2> : norm_heads<1>,
           cuda_blocks(h.rows * (h.count[0] + h.count[1]), BLOCK_THREADS / WARP), BLOCK_THREADS, 0,
           h);
}
