/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations that work element by element or row by row. Memory bounds all of them, so what counts
 * is that each byte moves once, in pieces of 16 bytes: a thread takes WIDE elements where tensors
 * lie right for that (they do, unless a test sees to it), else one.
 */
#include "kernels/cuda/elements.cuh"

/* ------------------------------------------------------------------------ pointwise ------ */

/* One operation on rows; a and b may be shorter in that their stride is 0. */
struct walk {
    struct cuda_rows out, a, b;
    int64_t rows, cols;
};

template <int N, typename F>
__device__ __forceinline__ void step(const struct walk &w, const F &f, int64_t row, int64_t c)
{
    float a[N], b[N], v[N];
    get<N>(a, w.a, row * w.a.stride + c);
    if constexpr (F::two)
        get<N>(b, w.b, row * w.b.stride + c);
    f.template apply<N>(v, a, b, row, c);
    put<N>(w.out, row * w.out.stride + c, v);
}

template <int N, typename F> __global__ void each(struct walk w, F f)
{
    int64_t pieces = (w.cols + N - 1) / N;
    int64_t threads = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < pieces * w.rows;
         i += threads) {
        int64_t row = quotient(i, pieces), c = (i - row * pieces) * N;
        if (c + N <= w.cols)
            step<N>(w, f, row, c);
        else
            for (; c < w.cols; c++)
                step<1>(w, f, row, c);
    }
}

template <typename F> static void walk_over(struct cuda_device *cuda, const struct walk &w, F f)
{
    bool wide =
        cuda_is_wide(&w.out) && cuda_is_wide(&w.a) && (!F::two || cuda_is_wide(&w.b)) && f.wide();
    int64_t items = w.rows * cuda_pieces(w.cols, wide ? WIDE : 1);
    unsigned blocks = cuda_blocks(items, BLOCK_THREADS);
    launch(cuda, wide ? each<WIDE, F> : each<1, F>, blocks, BLOCK_THREADS, 0, w, f);
}

/* Rows are what lies together in all operands: everything, unless one is columns. */
static struct walk walk_of(const struct kr_tensor *out, const struct kr_tensor *a,
                           const struct kr_tensor *b)
{
    struct walk w = {cuda_rows_of(out), cuda_rows_of(a), cuda_rows_of(b), kr_rows(out),
                     kr_cols(out)};
    if (!out->stride && !a->stride && !b->stride) {
        w.rows = 1;
        w.cols = kr_count(out);
        w.out.stride = w.a.stride = w.b.stride = 0;
    }
    return w;
}

/* A functor gets N elements of each operand, from column c of a row on. */
struct of_one {
    static constexpr bool two = false;
    bool wide() const
    {
        return true;
    }
};

struct of_two {
    static constexpr bool two = true;
    bool wide() const
    {
        return true;
    }
};

struct copying : of_one {
    template <int N>
    __device__ void apply(float v[N], const float *a, const float *, int64_t, int64_t) const
    {
        for (int i = 0; i < N; i++)
            v[i] = a[i];
    }
};

struct gated_by_silu : of_two {
    template <int N>
    __device__ void apply(float v[N], const float *a, const float *b, int64_t, int64_t) const
    {
        for (int i = 0; i < N; i++)
            v[i] = silu(a[i]) * b[i];
    }
};

struct gated_by_sigmoid : of_two {
    template <int N>
    __device__ void apply(float v[N], const float *a, const float *b, int64_t, int64_t) const
    {
        for (int i = 0; i < N; i++)
            v[i] = a[i] * sigmoid(b[i]);
    }
};

struct gelu : of_one {
    template <int N>
    __device__ void apply(float v[N], const float *a, const float *, int64_t, int64_t) const
    {
        for (int i = 0; i < N; i++)
            v[i] = gelu_tanh(a[i]);
    }
};

/* One factor a row. */
struct scaled_rows : of_one {
    const float *by;
    template <int N>
    __device__ void apply(float v[N], const float *a, const float *, int64_t row, int64_t) const
    {
        for (int i = 0; i < N; i++)
            v[i] = a[i] * by[row];
    }
};

struct adding : of_two {
    template <int N>
    __device__ void apply(float v[N], const float *a, const float *b, int64_t, int64_t) const
    {
        for (int i = 0; i < N; i++)
            v[i] = a[i] + b[i];
    }
};

struct adding_scaled : of_two {
    float by;
    template <int N>
    __device__ void apply(float v[N], const float *a, const float *b, int64_t, int64_t) const
    {
        for (int i = 0; i < N; i++)
            v[i] = a[i] + by * b[i];
    }
};

struct guiding : of_two {
    float by;
    template <int N>
    __device__ void apply(float v[N], const float *a, const float *b, int64_t, int64_t) const
    {
        for (int i = 0; i < N; i++)
            v[i] = a[i] + by * (a[i] - b[i]);
    }
};

struct scaling_and_shifting : of_one {
    const float *scale, *shift;
    bool wide() const
    {
        return cuda_is_wide(scale) && cuda_is_wide(shift);
    }
    template <int N>
    __device__ void apply(float v[N], const float *a, const float *, int64_t, int64_t c) const
    {
        float by[N], plus[N];
        get_f32<N>(by, scale + c);
        get_f32<N>(plus, shift + c);
        for (int i = 0; i < N; i++)
            v[i] = a[i] * by[i] + plus[i];
    }
};

/* scale * row[n] * p + bias */
template <int N>
__device__ __forceinline__ void finished(float v[N], const float *p, float scale, const float *row,
                                         const float *bias, int64_t r, int64_t c)
{
    float by = row ? scale * row[r] : scale, plus[N];
    for (int i = 0; i < N; i++)
        v[i] = p[i] * by;
    if (!bias)
        return;
    get_f32<N>(plus, bias + c);
    for (int i = 0; i < N; i++)
        v[i] += plus[i];
}

struct finishing : of_one {
    float scale;
    const float *row, *bias;
    enum kr_act act;
    bool wide() const
    {
        return cuda_is_wide(bias);
    }
    template <int N>
    __device__ void apply(float v[N], const float *a, const float *, int64_t r, int64_t c) const
    {
        finished<N>(v, a, scale, row, bias, r, c);
        for (int i = 0; i < N; i++)
            v[i] = activated(v[i], act);
    }
};

/* a is the sum so far, b the product. */
struct finishing_and_adding : of_two {
    float scale;
    const float *row, *bias, *gate;
    bool wide() const
    {
        return cuda_is_wide(bias) && cuda_is_wide(gate);
    }
    template <int N>
    __device__ void apply(float v[N], const float *a, const float *b, int64_t r, int64_t c) const
    {
        float by[N];
        finished<N>(v, b, scale, row, bias, r, c);
        if (gate) {
            get_f32<N>(by, gate + c);
            for (int i = 0; i < N; i++)
                v[i] *= by[i];
        }
        for (int i = 0; i < N; i++)
            v[i] += a[i];
    }
};

/* Columns, too. */
void cuda_copy(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x)
{
    walk_over(cuda_of(dev), walk_of(&out, &x, &x), copying());
}

void cuda_gelu_tanh(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x)
{
    walk_over(cuda_of(dev), walk_of(&out, &x, &x), gelu());
}

void cuda_add(struct kr_device *dev, struct kr_tensor out, struct kr_tensor a, struct kr_tensor b)
{
    struct walk w = walk_of(&out, &a, &b);
    if (kr_count(&b) < kr_count(&a)) { /* rows of b's length, and b for each of them */
        w.cols = w.out.stride = w.a.stride = kr_count(&b);
        w.rows = kr_count(&a) / w.cols;
    }
    walk_over(cuda_of(dev), w, adding());
}

void cuda_scale_rows(struct kr_device *dev, struct kr_tensor y, struct kr_tensor factors)
{
    struct walk w = {cuda_rows_of(&y), cuda_rows_of(&y), cuda_rows_of(&y), kr_rows(&y),
                     kr_cols(&y)};
    struct scaled_rows f = {};
    f.by = (const float *)factors.data;
    walk_over(cuda_of(dev), w, f);
}

void cuda_add_scaled(struct kr_device *dev, struct kr_tensor y, float a, struct kr_tensor x)
{
    struct adding_scaled f = {{}, a};
    walk_over(cuda_of(dev), walk_of(&y, &y, &x), f);
}

void cuda_guide(struct kr_device *dev, struct kr_tensor v, struct kr_tensor uncond, float guidance)
{
    struct guiding f = {{}, guidance};
    walk_over(cuda_of(dev), walk_of(&v, &v, &uncond), f);
}

/* By rows, where a functor has to know the row and the column. */
static struct walk rows_of(const struct kr_tensor *out, const struct kr_tensor *a,
                           const struct kr_tensor *b)
{
    struct walk w = {cuda_rows_of(out), cuda_rows_of(a), cuda_rows_of(b), kr_rows(out),
                     kr_cols(out)};
    return w;
}

void cuda_scale_shift(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x,
                      struct kr_tensor scale, struct kr_tensor shift)
{
    struct scaling_and_shifting f = {{}, (const float *)scale.data, (const float *)shift.data};
    walk_over(cuda_of(dev), rows_of(&out, &x, &x), f);
}

void cuda_finish(struct cuda_device *cuda, struct kr_tensor out, const struct cuda_finish *f)
{
    struct finishing with = {{}, f->scale, f->row, f->bias, f->act};
    walk_over(cuda, rows_of(&out, &f->p, &f->p), with);
}

void cuda_finish_add(struct cuda_device *cuda, struct kr_tensor y, const struct cuda_finish *f)
{
    struct finishing_and_adding with = {{}, f->scale, f->row, f->bias, f->gate};
    walk_over(cuda, rows_of(&y, &y, &f->p), with);
}

/* ---------------------------------------------------------------- quantizing by rows ------ */

/* A thread works on pieces of N elements, GROUP pieces apart; N divides the columns. */
template <int GROUP, int N, typename F>
__global__ void __launch_bounds__(BLOCK_THREADS) quantize(struct walk w, F f, float *factors)
{
    int64_t row = group_row<GROUP>(), first = threadIdx.x % GROUP * N;
    float a[N], b[N], v[N], most = 0;
    if (row >= w.rows)
        return;
    for (int64_t c = first; c < w.cols; c += GROUP * N) {
        get<N>(a, w.a, row * w.a.stride + c);
        if constexpr (F::two)
            get<N>(b, w.b, row * w.b.stride + c);
        f.template apply<N>(v, a, b, row, c);
        for (int i = 0; i < N; i++)
            most = fmaxf(most, fabsf(v[i]));
    }
    float factor = factor_of(row_total<GROUP, true>(most)), by = 1.0f / factor;
    if (first == 0)
        factors[row] = factor;
    for (int64_t c = first; c < w.cols; c += GROUP * N) {
        get<N>(a, w.a, row * w.a.stride + c);
        if constexpr (F::two)
            get<N>(b, w.b, row * w.b.stride + c);
        f.template apply<N>(v, a, b, row, c);
        for (int i = 0; i < N; i++)
            v[i] *= by;
        put<N>(w.out, row * w.out.stride + c, v);
    }
}

template <typename F>
static void quantize_over(struct cuda_device *cuda, const struct kr_tensor *out,
                          const struct walk &w, F f)
{
    bool wide = cuda_is_wide(&w.out) && cuda_is_wide(&w.a) && (!F::two || cuda_is_wide(&w.b)) &&
                w.cols % WIDE == 0;
    bool warps = w.cols <= WARP_COLS;
    auto kernel = warps ? (wide ? quantize<WARP, WIDE, F> : quantize<WARP, 1, F>)
                        : (wide ? quantize<BLOCK_THREADS, WIDE, F> : quantize<BLOCK_THREADS, 1, F>);
    launch(cuda, kernel, cuda_blocks(w.rows, warps ? BLOCK_THREADS / WARP : 1), BLOCK_THREADS, 0, w,
           f, cuda_factors(out));
}

void cuda_quantize_rows(struct cuda_device *cuda, struct kr_tensor out, struct kr_tensor x)
{
    quantize_over(cuda, &out, rows_of(&out, &x, &x), copying());
}

template <typename F>
static void gate(struct kr_device *dev, const struct kr_tensor *out, const struct kr_tensor *a,
                 const struct kr_tensor *b, F f)
{
    if (out->dtype == KR_F8_E4M3)
        quantize_over(cuda_of(dev), out, rows_of(out, a, b), f);
    else
        walk_over(cuda_of(dev), walk_of(out, a, b), f);
}

void cuda_swiglu(struct kr_device *dev, struct kr_tensor out, struct kr_tensor gated,
                 struct kr_tensor up)
{
    gate(dev, &out, &gated, &up, gated_by_silu());
}

void cuda_mul_sigmoid(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x,
                      struct kr_tensor by)
{
    gate(dev, &out, &x, &by, gated_by_sigmoid());
}

/* --------------------------------------------------------------------------- others ------ */

struct mix {
    struct cuda_rows out, x;
    const float *weight;
    int64_t rows, taps, cols;
};

template <int N> __global__ void mix_taps(struct mix m)
{
    int64_t pieces = m.cols / N;
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    int64_t row = quotient(i, pieces), c = (i - row * pieces) * N;
    float v[N], sum[N];
    if (row >= m.rows)
        return;
    for (int k = 0; k < N; k++)
        sum[k] = 0;
    for (int64_t j = 0; j < m.taps; j++) {
        get<N>(v, m.x, (row * m.taps + j) * m.cols + c);
        for (int k = 0; k < N; k++)
            sum[k] += m.weight[j] * v[k];
    }
    put<N>(m.out, row * m.cols + c, sum);
}

void cuda_mix_taps(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x,
                   struct kr_tensor weight)
{
    struct mix m = {cuda_rows_of(&out), cuda_rows_of(&x), (const float *)weight.data,
                    x.dim[0],           x.dim[1],         x.dim[2]};
    bool wide = cuda_is_wide(&m.out) && cuda_is_wide(&m.x) && m.cols % WIDE == 0;
    launch(cuda_of(dev), wide ? mix_taps<WIDE> : mix_taps<1>,
           cuda_blocks(m.rows * (m.cols / (wide ? WIDE : 1)), BLOCK_THREADS), BLOCK_THREADS, 0, m);
}

/* Marks the check's number when an exponent has all its bits. */
template <int N> __global__ void find_bad(struct cuda_rows x, int64_t count, int *bad, int number)
{
    int64_t threads = (int64_t)gridDim.x * blockDim.x;
    int found = 0;
    for (int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N; i < count;
         i += threads * N) {
        float v[N];
        int n = count - i < N ? (int)(count - i) : N;
        if (n == N)
            get<N>(v, x, i);
        else
            for (int k = 0; k < n; k++)
                get<1>(v + k, x, i + k);
        for (int k = 0; k < n; k++)
            found |= (__float_as_uint(v[k]) & 0x7f800000u) == 0x7f800000u;
    }
    if (found)
        atomicMax(bad, number);
}

void cuda_check_finite(struct kr_device *dev, struct kr_tensor x, const char *what)
{
    struct cuda_device *cuda = cuda_of(dev);
    struct cuda_rows rows = cuda_rows_of(&x);
    int64_t count = kr_count(&x);
    if (cuda->checks == CUDA_CHECKS)
        dev->backend->sync(dev); /* reads the marks, which makes room */
    if (!kr_live(dev))
        return;
    bool wide = cuda_is_wide(&rows);
    int64_t items = cuda_pieces(count, wide ? WIDE : 1);
    int number = CUDA_CHECKS - cuda->checks; /* the first to fail is the largest */
    cuda->check[cuda->checks++] = what;
    launch(cuda, wide ? find_bad<WIDE> : find_bad<1>,
           (unsigned)cuda_least(cuda_pieces(items, BLOCK_THREADS), 8 * cuda->processors),
           BLOCK_THREADS, 0, rows, count, cuda->bad, number);
}
