/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside kernels/cuda/: the device and what its files share.
 *
 * device.cu opens and closes it, memory.cu hands out device memory and copies to and from the
 * host, weights.cu keeps the weights where the residency wants them, ring.cu streams them,
 * repeat.cu replays columns of operations as graphs; rows.cu, norms.cu and picture.cu have the
 * operations that memory bounds, linear.cu, attention.cu and conv.cu those that products bound,
 * host.cu what the host computes.
 *
 * All operations go to one stream, `compute`, in the order of the calls; so they need no waits
 * among each other and the arena may hand memory on as soon as the host lets go of it. Weights come
 * in on a second stream, and weights.cu and ring.cu alone make one wait for the other.
 *
 * These sources are compiled twice: by nvcc, and by the host's C++ compiler against
 * tests/cuda/include, where kernels are executed on the CPU. So a kernel is launched with launch()
 * only, and instructions that have no name in CUDA C++ stand in ptx.cuh.
 */
#ifndef KR_CUDA_H
#define KR_CUDA_H

#include <atomic>
using std::atomic_int; /* kernels.h and backend.h ask C's header for them */
using std::atomic_size_t;

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#include <cublasLt.h>
#include <cuda_runtime.h>

extern "C" {
#include "kernels/backend.h"
}

struct cuda_memory;
struct cuda_weights;
struct cuda_repeats;
struct cuda_products;

enum {
    CUDA_STREAMS = 2,
    CUDA_CHECKS = 64,     /* pending checks for NaN between two waits */
    CUDA_CAPABILITY = 80, /* the oldest cards that run these kernels */
    CUDA_BATCH = 4,       /* launches between two events of the queue's bound */
    CUDA_ALIGNMENT = 256,
};

struct cuda_device {
    struct kr_device base; /* first */
    int ordinal;
    int capability;     /* 80, 86, 89, 90, 100, 120, .. */
    int processors;     /* streaming multiprocessors */
    int reads_mappings; /* read-only mappings can be registered for copies */
    enum kr_fp8 fp8;    /* as the owner asked */
    int fp8_rows;       /* FP8 is multiplied with a factor for each row */

    /* What is queued goes to each of stream[0..streams): to the compute stream, and while a column
     * is recorded (repeat.cu) to the stream that only records, too. */
    cudaStream_t stream[CUDA_STREAMS];
    int streams;
    cudaStream_t copy;         /* weights */
    cudaEvent_t batch_end[2];  /* the queue's bound: see cuda_launched() */
    int turn;                  /* of the two */
    int64_t launches, batches; /* since the device was opened */
    double graph_ms;           /* of device time that a graph may hold: repeat.cu */
    int64_t products_in_fp8;   /* for tests: how many of them multiplied FP8 */

    cublasLtHandle_t blas;
    size_t workspace_size;
    void *workspace; /* of cuBLASLt; NULL until cuda_workspace() */

    int *bad;                       /* device: the first check that found NaN, counted downwards */
    int *bad_host;                  /* pinned */
    const char *check[CUDA_CHECKS]; /* what they looked at */
    int checks;

    struct cuda_memory *memory;
    struct cuda_weights *weights;
    struct cuda_repeats *repeats;
    struct cuda_products *products;
};

static inline struct cuda_device *cuda_of(struct kr_device *dev)
{
    return (struct cuda_device *)dev;
}

static inline const struct cuda_device *cuda_of(const struct kr_device *dev)
{
    return (const struct cuda_device *)dev;
}

static inline int64_t cuda_least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* How many pieces of `by` cover n. */
static inline int64_t cuda_pieces(int64_t n, int64_t by)
{
    return (n + by - 1) / by;
}

static inline size_t cuda_round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

/* --------------------------------------------------------------------------- device.cu ------ */

/* Whether a call went well; if not, the fault is set: KR_FAULT_NO_MEMORY, or KR_FAULT_LOST with the
 * error's name. `call` is what failed, a literal. */
int cuda_ok(struct cuda_device *cuda, cudaError_t error, const char *call);
int cuda_blas_ok(struct cuda_device *cuda, cublasStatus_t status, const char *call);

/* Makes the device the calling thread's, as a call that may be a thread's first has to. */
void cuda_enter(const struct cuda_device *cuda);

/* After each launch on all streams: counts it and keeps the host from running far ahead, so that a
 * cancelled job has little left to wait for. */
void cuda_launched(struct cuda_device *cuda);
void cuda_record_failed(struct cuda_device *cuda); /* repeat.cu: the recording is of no use */

/* cuBLASLt's workspace of workspace_size bytes; NULL: a fault is set. */
void *cuda_workspace(struct cuda_device *cuda);

/* Queues a kernel. Its parameters' types decide, so that literals may be passed. */
template <typename... P, typename... A>
static inline void launch(struct cuda_device *cuda, void (*kernel)(P...), dim3 grid, dim3 block,
                          size_t shared, A... args)
{
    for (int i = 0; i < cuda->streams; i++) {
        cudaLaunchConfig_t config = {};
        config.gridDim = grid;
        config.blockDim = block;
        config.dynamicSmemBytes = shared;
        config.stream = cuda->stream[i];
        cudaError_t error = cudaLaunchKernelEx(&config, kernel, args...);
        if (i > 0 && error != cudaSuccess)
            cuda_record_failed(cuda);
        else if (i == 0 && !cuda_ok(cuda, error, "a kernel's launch"))
            return;
    }
    cuda_launched(cuda);
}

/* --------------------------------------------------------------------------- memory.cu ------ */

int cuda_memory_open(struct cuda_device *cuda);
void cuda_memory_close(struct cuda_device *cuda);

/* Blocks of device memory outside the arena; gives kept memory back before it gives up. NULL: none
 * left, and no fault is set: the caller knows what it was for. Giving waits for what is queued. */
void *cuda_take(struct cuda_device *cuda, size_t bytes);
void cuda_give(struct cuda_device *cuda, void *at);

/* Pieces: small ones share slabs, one set of them for each purpose; large ones are blocks. */
enum cuda_slabs { CUDA_VECTORS, CUDA_WEIGHTS, CUDA_SLABS };
void *cuda_slab_take(struct cuda_device *cuda, enum cuda_slabs kind, size_t bytes);
void cuda_slab_give(struct cuda_device *cuda, enum cuda_slabs kind, void *at);
size_t cuda_slabs_held(const struct cuda_device *cuda, enum cuda_slabs kind);
int cuda_in_slab(size_t bytes);
size_t cuda_taken(size_t bytes);     /* what a piece takes in a slab, or a block of the driver's */
size_t cuda_slabs_for(size_t bytes); /* what slabs for pieces of so much take at most */

/* Bytes of host memory (a file's mapping) to the device, ordered on the compute stream; `from` may
 * be reused when it returns. Returns whether it could. */
int cuda_bring(struct cuda_device *cuda, void *to, const void *from, size_t bytes);
int cuda_bring_on(struct cuda_device *cuda, cudaStream_t stream, void *to, const void *from,
                  size_t bytes);

/* An operation's result that the host makes, by pieces that `fill` writes: `bytes` from byte `at`
 * on. */
struct cuda_source {
    void (*fill)(void *to, const struct cuda_source *source, size_t at, size_t bytes);
    const void *from;
};
int cuda_bring_made(struct cuda_device *cuda, void *to, const struct cuda_source *source,
                    size_t bytes);

void *cuda_map(struct kr_device *dev, size_t bytes);
void cuda_unmap(struct kr_device *dev, void *at, size_t bytes);
/* Vectors. What is allocated while planning has no device memory, is good for planning alone and
 * has to be freed while planning. */
void *cuda_alloc(struct kr_device *dev, size_t bytes);
void cuda_free(struct kr_device *dev, void *at);
size_t cuda_free_memory(const struct kr_device *dev);
void cuda_upload(struct kr_device *dev, struct kr_tensor t, const float *host);
void cuda_download(struct kr_device *dev, struct kr_tensor t, float *host);

/* -------------------------------------------------------------------------- weights.cu ------ */

int cuda_weights_open(struct cuda_device *cuda);
void cuda_weights_close(struct cuda_device *cuda);

/* The device's copy of weights of one type and one `in`, rows of one below the rows of the one
 * before, in the type that the file has, 256-aligned. Good until the next call (a stream's ring may
 * take it for the next weight then), so whoever uses two copies or asks for the parts together.
 * Called while planning, too. NULL: planning, or a fault. */
const void *cuda_weight(struct cuda_device *cuda, const struct kr_weight *const *parts, int count);

/* Device memory for what an operation makes of a weight at `key` (a convolution's kernel in its own
 * order), kept as long as a weight would be where nothing streams: until the device closes, or the
 * stage ends. *fresh: it has to be filled, which may be queued on the compute stream. While
 * planning NULL and fresh. Counted in kr_plan_weights() and kr_weights_held(), and by itself in
 * kr_plan_prepared() and kr_prepared_bytes(). */
void *cuda_made(struct cuda_device *cuda, const void *key, size_t bytes, int *fresh);
void cuda_made_free(struct cuda_device *cuda, const void *key);

enum kr_dtype cuda_input_dtype(const struct kr_device *dev, const struct kr_weight *const *w,
                               int count);
void cuda_residency(struct kr_device *dev, enum kr_residency residency, size_t ring);
void cuda_plan_begin(struct kr_device *dev);
size_t cuda_plan_weights(const struct kr_device *dev, enum kr_residency residency);
void cuda_stage_end(struct kr_device *dev);
size_t cuda_weights_held(const struct kr_device *dev);
int cuda_weights_stay(const struct cuda_device *cuda); /* at their addresses, till the stage ends */

/* --------------------------------------------------------------------------- repeat.cu ------ */

int cuda_repeats_open(struct cuda_device *cuda);
void cuda_repeats_close(struct cuda_device *cuda);
void cuda_repeats_forget(struct cuda_device *cuda); /* addresses are about to change */
void cuda_recorded(struct cuda_device *cuda);       /* by cuda_launched() */
int cuda_repeat_begin(struct kr_device *dev, struct kr_repeat key);
void cuda_repeat_end(struct kr_device *dev);

/* ----------------------------------------------------------------------------- host.cu ------ */

/* n elements of any type that weights have; x need not be aligned. */
void cuda_to_f32(float *out, const void *x, enum kr_dtype dtype, int64_t n);
void cuda_to_bf16(uint16_t *out, const float *x, int64_t n);

void cuda_embed(struct kr_device *dev, struct kr_tensor out, const struct kr_weight *w,
                const int32_t *ids, int64_t n);
void cuda_timestep(struct kr_device *dev, struct kr_tensor out, float s, float period);

/* ------------------------------------------------------------------- rows.cu, norms.cu ------ */

/* The factors behind an input's data (kernels.h). */
static inline float *cuda_factors(const struct kr_tensor *t)
{
    return (float *)((char *)t->data + cuda_round_up((size_t)kr_count(t), 16));
}

/* out = x, quantized by rows; x F32 or BF16, maybe columns. */
void cuda_quantize_rows(struct cuda_device *cuda, struct kr_tensor out, struct kr_tensor x);

/* What is left to do after a product p[n,N], F32 or BF16, maybe columns: v = scale * row[n] * p +
 * bias[N], then out = act(v), or y += gate[N] * v. NULL: no such factor. */
struct cuda_finish {
    struct kr_tensor p;
    float scale;
    const float *row, *bias, *gate;
    enum kr_act act;
};
void cuda_finish(struct cuda_device *cuda, struct kr_tensor out, const struct cuda_finish *f);
void cuda_finish_add(struct cuda_device *cuda, struct kr_tensor y, const struct cuda_finish *f);

void cuda_copy(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x);
void cuda_rms_norm(struct kr_device *dev, struct kr_tensor out, struct kr_tensor also,
                   struct kr_tensor x, struct kr_tensor weight, float eps, enum kr_act act,
                   struct kr_tensor scale, struct kr_tensor shift);
void cuda_qk_norm_rope(struct kr_device *dev, const struct kr_qk *qk, float eps,
                       const struct kr_rope *rope);
void cuda_swiglu(struct kr_device *dev, struct kr_tensor out, struct kr_tensor gate,
                 struct kr_tensor up);
void cuda_mul_sigmoid(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x,
                      struct kr_tensor gate);
void cuda_gelu_tanh(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x);
void cuda_add(struct kr_device *dev, struct kr_tensor out, struct kr_tensor a, struct kr_tensor b);
void cuda_scale_rows(struct kr_device *dev, struct kr_tensor y, struct kr_tensor factors);
void cuda_add_scaled(struct kr_device *dev, struct kr_tensor y, float a, struct kr_tensor x);
void cuda_guide(struct kr_device *dev, struct kr_tensor v, struct kr_tensor uncond, float guidance);
void cuda_mix_taps(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x,
                   struct kr_tensor weight);
void cuda_scale_shift(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x,
                      struct kr_tensor scale, struct kr_tensor shift);
void cuda_check_finite(struct kr_device *dev, struct kr_tensor x, const char *what);

/* -------------------------------------------------------------------------- picture.cu ------ */

void cuda_patchify(struct kr_device *dev, struct kr_tensor out, struct kr_tensor z);
void cuda_unpatchify(struct kr_device *dev, struct kr_tensor z, struct kr_tensor tokens);
void cuda_planes_to_pixels(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x);
void cuda_pixels_to_planes(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x);
void cuda_upsample2(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x);

/* -------------------------------------------- linear.cu, attention.cu, conv.cu ------ */

void cuda_products_close(struct cuda_device *cuda); /* `products` may be NULL */
void cuda_linear(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x,
                 const struct kr_weight *w, enum kr_act act);
void cuda_linear_add(struct kr_device *dev, struct kr_tensor y, struct kr_tensor gate,
                     struct kr_tensor x, const struct kr_weight *w);
void cuda_linear_many(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x,
                      const struct kr_weight *const *w, int count);
void cuda_attention(struct kr_device *dev, struct kr_tensor out, const struct kr_attention *a);
void cuda_conv2d(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x,
                 struct kr_conv *conv);
void cuda_conv2d_add(struct kr_device *dev, struct kr_tensor y, struct kr_tensor x,
                     struct kr_conv *conv);
void cuda_conv_fini(struct kr_device *dev, struct kr_conv *conv); /* calls cuda_made_free() */

#endif
