/* SPDX-License-Identifier: Apache-2.0
 *
 * What a device can do: tensors, weights, an arena and the operations of the models. This header
 * knows no model and no file. daemon/model writes a forward as a straight column of these calls;
 * daemon/engine opens the device, starts and ends jobs on it and reads its verdict.
 *
 * Operations return nothing. The device remembers the first thing that went wrong (a shape that
 * does not fit, no memory, a failed launch, a cancelled job) with its text; from then on every
 * operation does nothing, while allocation still returns a tensor of the right shape. The verdict
 * is read at a step boundary with kr_device_sync(), or where results reach the host
 * (kr_download()). So cancelling and failing are one mechanism and a forward has no error ladder.
 *
 * Planning uses the same forward: between kr_plan_begin() and kr_plan_end() nothing is computed and
 * nothing is allocated; shapes are checked and the arena only counts. What comes out is the peak
 * that the real run will need.
 *
 * Threads: a device and all that belongs to it is used by one thread at a time (the worker). The
 * only thing another thread may touch is the cancel flag.
 */
#ifndef KR_KERNELS_H
#define KR_KERNELS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* ----------------------------------------------------------------------- element types ------ */

enum kr_dtype {
    KR_F32,
    KR_BF16,
    KR_F16,
    KR_F8_E4M3, /* 1-4-3, bias 7, no infinities, 0x7f and 0xff are NaN ("e4m3fn") */
    KR_F8_E5M2, /* 1-5-2, bias 15, IEEE-like */
    KR_I8,
    KR_U8,
    KR_I16,
    KR_I32,
    KR_I64,
    KR_F64,
    KR_BOOL,
    KR_DTYPES
};

size_t kr_dtype_size(enum kr_dtype dtype);
const char *kr_dtype_name(enum kr_dtype dtype); /* as safetensors spells it: "BF16", "F8_E4M3" */

/* ----------------------------------------------------------------------------- tensors ------ */

enum { KR_MAX_RANK = 4 };

/* Row-major, last dimension fastest, of dtype KR_F32 or KR_BF16. `data` points into the device's
 * memory: host code never reads through it. A tensor is a value; copying it copies no data, and it
 * needs no freeing (its storage belongs to the arena or to the model).
 *
 * A dtype of KR_F8_E4M3 is what some devices multiply best: kr_input_dtype() says when. Such a
 * tensor is quantized by rows: behind its data, 16-aligned, follow F32 [rows], the factors that
 * its rows are to be multiplied with. Only the operations that say "input" write or read one. */
struct kr_tensor {
    void *data;
    enum kr_dtype dtype;
    int rank;
    int64_t dim[KR_MAX_RANK];
    int64_t stride; /* elements from one row to the next where it is columns of a wider tensor,
                       which only the operations that say "columns" take; 0: dense */
};

int64_t kr_count(const struct kr_tensor *t); /* elements */
int64_t kr_cols(const struct kr_tensor *t);  /* the last dimension */
int64_t kr_rows(const struct kr_tensor *t);  /* the product of all others */

/* Elements [first, first + count) of the first dimension; shares storage. */
struct kr_tensor kr_slice(struct kr_tensor t, int64_t first, int64_t count);

/* Columns [first, first + count); shares storage. */
struct kr_tensor kr_columns(struct kr_tensor t, int64_t first, int64_t count);
int64_t kr_stride(const struct kr_tensor *t); /* elements from one row to the next */

/* The same elements under other dimensions (0 ends the list); shares storage. Of columns the last
 * dimension has to stay. */
struct kr_tensor kr_reshape(struct kr_tensor t, int64_t d0, int64_t d1, int64_t d2, int64_t d3);

/* ----------------------------------------------------------------------------- weights ------ */

/* The matrix of a linear map, [out, in] row-major, exactly as a file stores it: data points into
 * the file's mapping and need not be aligned. The true weight is `scale` times the stored values;
 * devices apply the scale after the product. Nothing outside kernels/ looks behind this struct. */
struct kr_weight {
    const void *data;
    enum kr_dtype dtype; /* KR_F32, KR_BF16, KR_F16, KR_F8_E4M3, KR_F8_E5M2 */
    int64_t out, in;
    float scale;           /* finite and not 0; 1 where the file has none */
    struct kr_tensor bias; /* F32 [out] in device memory; data == NULL: no bias */
    int full_precision; /* 1: the file asks that activations are not quantized for this product */
};

/* The kernel of a 2-D convolution with stride 1 and "same" padding. On file [out, in, kh, kw], or
 * [out, in, kt, kh, kw] of a causal 3-D convolution, of which a still picture uses the last
 * temporal slice only (the frames before it are zero). kh == kw, 1 or 3. */
struct kr_conv {
    const void *data;
    enum kr_dtype dtype; /* KR_F32, KR_BF16, KR_F16 */
    int64_t out, in, kt, kh, kw;
    struct kr_tensor bias; /* F32 [out]; data == NULL: no bias */
    void *prepared;        /* the device's own form, made at first use; kr_conv_fini() frees it */
    size_t prepared_bytes; /* of it, as counted in kr_prepared_bytes() */
    unsigned planned;      /* the last plan that it was used in */
};

/* ------------------------------------------------------------------------------ device ------ */

enum kr_fault {
    KR_FINE = 0,
    KR_FAULT_CANCELLED,
    KR_FAULT_NO_MEMORY,
    KR_FAULT_NOT_FINITE,
    KR_FAULT_MISUSE, /* shapes or types that do not fit: a bug or a broken model */
    KR_FAULT_LOST    /* the device is gone and will not come back */
};

struct kr_device;

/* Which instructions the CPU device may use at most; what the machine lacks is never used. */
enum kr_isa { KR_ISA_BEST, KR_ISA_BASE, KR_ISA_AVX2, KR_ISA_AVX512, KR_ISA_AMX };

/* What products take. BF16 is refused where neither AMX nor AVX512_BF16 can do it. */
enum kr_compute { KR_COMPUTE_BEST, KR_COMPUTE_F32, KR_COMPUTE_BF16 };

struct kr_device_options {
    int threads;             /* 0: all cores that the process may use */
    enum kr_isa isa;         /* for tests: zero means the best there is */
    enum kr_compute compute; /* likewise */
};

/* Opens the CPU device. Returns NULL and writes one sentence to why[size] when it can't. */
struct kr_device *kr_device_open_cpu(const struct kr_device_options *options, char *why,
                                     size_t size);

enum kr_fp8 {
    KR_FP8_BEST,  /* where the GPU multiplies FP8 */
    KR_FP8_EXPAND /* never: FP8 weights are expanded to BF16 on the way into the product */
};

struct kr_cuda_options {
    int device; /* ordinal among the visible ones */
    enum kr_fp8 fp8;
};

/* Opens a CUDA device through the module that has it, kread-cuda.so, which is looked for beside the
 * program, then in ../lib/kread of that. NULL: `why` says whether module, driver or GPU is missing.
 */
struct kr_device *kr_device_open_cuda(const struct kr_cuda_options *options, char *why,
                                      size_t size);

/* Whether the module is there and fits this program; looks for no GPU. -1: `why` says what is
 * wrong. */
int kr_cuda_check(char *why, size_t size);
void kr_device_close(struct kr_device *dev);

const char *kr_device_name(const struct kr_device *dev);     /* "cpu: 2 threads, bf16 (amx)" */
enum kr_dtype kr_compute_dtype(const struct kr_device *dev); /* what products take: BF16 or F32 */
size_t kr_device_free_memory(const struct kr_device *dev);   /* bytes, measured now */
int kr_device_has_memory(const struct kr_device *dev);       /* of its own, apart from the host's */

/* Starts a job: forgets the last fault, empties the arena and makes room for `bytes` (from
 * planning). `cancel` is looked at during long work and may be NULL. Returns -1 with why filled
 * when the memory can't be had. */
int kr_job_begin(struct kr_device *dev, const atomic_int *cancel, size_t bytes, char *why,
                 size_t size);
/* Ends it however it went; every tensor of the arena is gone. Returns the arena's memory. */
void kr_job_end(struct kr_device *dev);

/* Waits for all queued work and says how it went. The one place where a job learns of a fault. */
enum kr_fault kr_device_sync(struct kr_device *dev);
const char *kr_device_fault_text(const struct kr_device *dev); /* one sentence; "" when fine */

/* Where the weights of a device with memory of its own are. They lie in their files' mappings; such
 * a device copies what it multiplies with. The CPU multiplies with the mappings themselves, so all
 * of this means nothing to it. */
enum kr_residency {
    KR_RESIDENT, /* copied at first use and kept */
    KR_CACHED,   /* copied at first use and kept until the stage ends */
    KR_STREAM /* through a ring: while one is used the next ones are copied, in the plan's order */
};

/* Between jobs. ring: bytes for KR_STREAM, at least what kr_plan_weights() says. Gives all copies
 * back, so call it, too, when other weights lie at the addresses of earlier ones. */
void kr_device_residency(struct kr_device *dev, enum kr_residency residency, size_t ring);
void kr_stage_end(struct kr_device *dev); /* the weights used since the last one are done with */
size_t kr_weights_held(const struct kr_device *dev); /* bytes of device memory that they take now */

/* What the weights used since kr_plan_begin() take in device memory: all of them, the most that a
 * stage has, or the smallest ring. Valid until the next kr_plan_begin(). */
size_t kr_plan_weights(const struct kr_device *dev, enum kr_residency residency);

void kr_plan_begin(struct kr_device *dev);
size_t kr_plan_end(struct kr_device *dev); /* peak bytes of the arena, device scratch included */
int kr_planning(const struct kr_device *dev);

size_t kr_job_peak(const struct kr_device *dev); /* bytes of the arena used at most, this job */

/* Memory beside the arena: the prepared kernels of convolutions, and what else a device with memory
 * of its own makes of weights (there they are part of kr_plan_weights(), too). What they take now,
 * for any thread, and what those used since kr_plan_begin() take, prepared already or not. */
size_t kr_prepared_bytes(const struct kr_device *dev);
size_t kr_plan_prepared(const struct kr_device *dev);

/* -------------------------------------------------------------------------- allocation ------ */

/* From the job's arena, uninitialised (0 ends the dimensions). KR_F8_E4M3: with its factors. */
struct kr_tensor kr_new(struct kr_device *dev, enum kr_dtype dtype, int64_t d0, int64_t d1,
                        int64_t d2, int64_t d3);

struct kr_mark {
    size_t at;
};
struct kr_mark kr_arena_mark(const struct kr_device *dev);
void kr_arena_release(struct kr_device *dev, struct kr_mark mark); /* frees all newer tensors */

/* Outside the arena, for the small vectors of a model. Returns a tensor with data NULL and sets the
 * device's fault when there is no memory. `host` is F32; NULL: uninitialised. While planning a
 * device with memory of its own gives an address without memory, for planning alone, freed in
 * planning. */
struct kr_tensor kr_persist(struct kr_device *dev, const float *host, int64_t d0, int64_t d1);
void kr_persist_free(struct kr_device *dev, struct kr_tensor *t);
void kr_conv_fini(struct kr_device *dev, struct kr_conv *conv);

/* -------------------------------------------------------------------------- operations ------ */
/* Unless said otherwise tensors may be F32 or BF16 each, sums are kept in F32, `out` must not
 * overlap an input, and a wrong shape is KR_FAULT_MISUSE with a text that names the operation. The
 * same call gives the same bytes, with any number of threads. */

enum kr_act { KR_ACT_NONE, KR_ACT_GELU_TANH, KR_ACT_SILU };

/* Host to device and back. kr_download() syncs first; -1: a fault is set and `host` is untouched.
 * While planning it fills zeros and returns 0. */
void kr_upload(struct kr_device *dev, struct kr_tensor t, const float *host);
int kr_download(struct kr_device *dev, struct kr_tensor t, float *host);
void kr_copy(struct kr_device *dev, struct kr_tensor out,
             struct kr_tensor x); /* converts; both may be columns, then as many in both */

/* In all three maps x may be an input.
 *
 * out[n,N] = act(x[n,K] W^T + bias), W [N,K]. */
void kr_linear(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x,
               const struct kr_weight *w, enum kr_act act);

/* out[n, N1 + N2 + ...] = [x W1^T | x W2^T | ...], without biases: one product where the device
 * can. out may be columns. */
void kr_linear_many(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x,
                    const struct kr_weight *const *w, int count);

/* The dtype that the inputs of products with all of these weights should have: kr_compute_dtype(),
 * or KR_F8_E4M3. */
enum kr_dtype kr_input_dtype(const struct kr_device *dev, const struct kr_weight *const *w,
                             int count);

/* y[n,N] += x[n,K] W^T + bias, y F32. With a gate, F32 and not NULL, y += gate[N] * (x S^T) of W's
 * stored values S: the gate has w->scale in it already (kr_scale_rows() for all gates at once), and
 * w has no bias. */
void kr_linear_add(struct kr_device *dev, struct kr_tensor y, struct kr_tensor gate,
                   struct kr_tensor x, const struct kr_weight *w);

/* out[n,N] = rows of an embedding matrix; ids on the host, each in [0, w->out). */
void kr_embed(struct kr_device *dev, struct kr_tensor out, const struct kr_weight *w,
              const int32_t *ids, int64_t n);

/* Per row: out = act(x / sqrt(mean(x^2) + eps) * weight), weight F32 [cols]. */
void kr_rms_norm(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x,
                 struct kr_tensor weight, float eps, enum kr_act act);

/* The same, then out = norm * (1 + scale) + shift; scale and shift F32 [cols]. out may be an input.
 * `also`, F32 or BF16, gets the same as out, for products that want another dtype; its data may be
 * NULL. */
void kr_rms_norm_modulate(struct kr_device *dev, struct kr_tensor out, struct kr_tensor also,
                          struct kr_tensor x, struct kr_tensor weight, float eps,
                          struct kr_tensor scale, struct kr_tensor shift);

enum kr_rope_pairs {
    KR_ROPE_HALVES,     /* pair (i, i + d/2): Qwen */
    KR_ROPE_INTERLEAVED /* pair (2i, 2i + 1): Krea 2, Z-Image */
};

/* Rotation angles of n positions: cos and sin, each F32 [n, head_dim / 2]. */
struct kr_rope {
    struct kr_tensor cos, sin;
    enum kr_rope_pairs pairs;
};

/* In place on the queries q[..., n, heads * d] and the keys k[..., n, kv_heads * d], which may be
 * columns: per head RMS norm with weights F32 [d], then the rotation (rope NULL: none). */
struct kr_qk {
    struct kr_tensor q, k, q_weight, k_weight;
};
void kr_qk_norm_rope(struct kr_device *dev, const struct kr_qk *qk, float eps,
                     const struct kr_rope *rope);

enum kr_mask { KR_MASK_NONE, KR_MASK_CAUSAL };

/* out[b, n, heads*d] = softmax(q k^T / sqrt(d)) v; q shaped like out, k and v [b, m, kv_heads*d]
 * (rank 2: b = 1); q, k and v may be columns. Query head h uses kv head h * kv_heads / heads.
 * Causal: query i sees keys <= i, and n == m. With a gate, shaped like q and maybe columns, out is
 * sigmoid(gate) times that; its data may be NULL. */
struct kr_attention {
    struct kr_tensor q, k, v;
    int64_t heads, kv_heads;
    enum kr_mask mask;
    struct kr_tensor gate;
};
void kr_attention(struct kr_device *dev, struct kr_tensor out,
                  const struct kr_attention *attention);

/* out = silu(gate) * up; gate and up may be columns, out may be one of them or an input. */
void kr_swiglu(struct kr_device *dev, struct kr_tensor out, struct kr_tensor gate,
               struct kr_tensor up);

/* out = x * sigmoid(gate); gate may be columns, out may be x or an input. */
void kr_mul_sigmoid(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x,
                    struct kr_tensor gate);

/* out may be x. */
void kr_gelu_tanh(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x);

/* out = a + b, b repeated over a where it is shorter: a has whole multiples of it. out may be a, or
 * b where that does not repeat. */
void kr_add(struct kr_device *dev, struct kr_tensor out, struct kr_tensor a, struct kr_tensor b);

/* y[n, cols]: each row times its factor, F32 [n]. */
void kr_scale_rows(struct kr_device *dev, struct kr_tensor y, struct kr_tensor factors);

/* y += a x */
void kr_add_scaled(struct kr_device *dev, struct kr_tensor y, float a, struct kr_tensor x);

/* v = v + guidance (v - uncond), F32 */
void kr_guide(struct kr_device *dev, struct kr_tensor v, struct kr_tensor uncond, float guidance);

/* out[n, cols] = sum over j of weight[j] x[n, j, cols]; x rank 3, weight F32 [taps]. */
void kr_mix_taps(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x,
                 struct kr_tensor weight);

/* out F32 [1, dim]: cos(s f_k) in the first half, sin(s f_k) in the second, with
 * f_k = period^(-k / (dim / 2)). */
void kr_timestep(struct kr_device *dev, struct kr_tensor out, float s, float period);

/* Latent z F32 [c, h, w] <-> tokens [h/2 * w/2, c * 4]; a token's vector is ordered (channel, row,
 * column), channels slowest. */
void kr_patchify(struct kr_device *dev, struct kr_tensor out, struct kr_tensor z);
void kr_unpatchify(struct kr_device *dev, struct kr_tensor z, struct kr_tensor tokens);

/* Pictures are [h, w, c], channels fastest: [c,h,w] to [h,w,c], and back. */
void kr_planes_to_pixels(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x);
void kr_pixels_to_planes(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x);

/* out = x * scale + shift per column, scale and shift F32 [cols]; out may be x. */
void kr_scale_shift(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x,
                    struct kr_tensor scale, struct kr_tensor shift);

/* out[h,w,out] of x[h,w,in], zeros beyond the border. A pixel comes out the same to the bit whether
 * it is computed in the whole picture or in a band of its rows. */
void kr_conv2d(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x,
               struct kr_conv *conv);

/* y += the same; y F32. */
void kr_conv2d_add(struct kr_device *dev, struct kr_tensor y, struct kr_tensor x,
                   struct kr_conv *conv);

/* out[2h,2w,c] of x[h,w,c], nearest. */
void kr_upsample2(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x);

/* Columns of operations that come again. Where the device can replay what it did between the two
 * calls under the same key, with the same tensors at the same addresses, kr_repeat_begin() does so
 * and returns 0: skip the operations and kr_repeat_end(). Else it returns 1. Keys are the job's. */
struct kr_repeat {
    const void *address;
    int64_t rows;
};
int kr_repeat_begin(struct kr_device *dev, struct kr_repeat key);
void kr_repeat_end(struct kr_device *dev);

/* Sets KR_FAULT_NOT_FINITE with "WHAT has NaN or infinity" when x has one; `what` is a literal. */
void kr_check_finite(struct kr_device *dev, struct kr_tensor x, const char *what);

#endif
