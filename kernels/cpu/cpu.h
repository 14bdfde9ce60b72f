/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside kernels/cpu/: the device and what its files share.
 *
 * device.c opens it, pool.c spreads work over the threads, rows.c and picture.c do what is bound by
 * memory, linear.c, attention.c and conv.c what is bound by products. Products are oneDNN's
 * (onednn.c), or our own where the CPU has AMX tiles (amx.c).
 *
 * Nothing here depends on the number of threads: work is cut into items by shape alone, an item is
 * computed by one thread in one order, and items share no sums. oneDNN therefore runs on one
 * thread at a time within an item. And no row of a product depends on how many other rows there
 * are, so that a picture decoded in bands equals the whole one to the bit.
 */
#ifndef KR_CPU_H
#define KR_CPU_H

#include "kernels/backend.h"
#include "kernels/cpu/row_kernels.h"

#include <pthread.h>

enum { CPU_MAX_THREADS = 256 };

struct matmul_cache;

struct cpu_pool {
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    pthread_t thread[CPU_MAX_THREADS];
    int threads;                 /* with the caller, who is thread 0 */
    _Atomic int running;         /* threads of the pool that still work on this generation */
    _Atomic unsigned generation; /* counts the pieces of work */
    _Atomic int quit;
    void (*run)(void *arg, int64_t item, int thread);
    void *arg;
    int64_t items;
    _Atomic int64_t next;
    const struct kr_device *dev; /* whose cancel flag is looked at between items */
};

struct cpu_device {
    struct kr_device base; /* first */
    enum kr_isa isa;
    const struct row_kernels *rows;
    struct cpu_pool pool;
    struct matmul_cache *matmuls;
};

static inline struct cpu_device *cpu_of(struct kr_device *dev)
{
    return (struct cpu_device *)dev;
}

/* ------------------------------------------------------------------------------ pool.c ------ */

int pool_open(struct cpu_pool *pool, const struct kr_device *dev, int threads);
void pool_close(struct cpu_pool *pool);

/* run(arg, i, thread) for every i < items, each once, on all threads, in any order; returns when
 * all are done. Stops early, with the fault set, when the job is cancelled. */
void cpu_each(struct cpu_device *cpu, int64_t items,
              void (*run)(void *arg, int64_t item, int thread), void *arg);

/* -------------------------------------------------------------------------- features.c ------ */

struct cpu_features {
    int avx2, avx512, avx512_bf16, amx;
};

struct cpu_features cpu_features(void); /* asks the kernel for the right to use AMX, too */

/* ---------------------------------------------------------------------------- elements ------ */

static inline const void *cpu_at(const void *data, enum kr_dtype dtype, int64_t index)
{
    return (const char *)data + (size_t)index * kr_dtype_size(dtype);
}

/* n elements of t from `index` as F32: in place where they are that, else converted into buf. */
static inline const float *cpu_get(const struct cpu_device *cpu, const struct kr_tensor *t,
                                   int64_t index, float *buf, size_t n)
{
    const void *at = cpu_at(t->data, t->dtype, index);
    if (t->dtype == KR_F32)
        return at;
    cpu->rows->to_f32(buf, at, t->dtype, n);
    return buf;
}

/* Where to compute n elements of t from `index`: in place, or in buf; cpu_put() then converts. */
static inline float *cpu_room(const struct kr_tensor *t, int64_t index, float *buf)
{
    return t->dtype == KR_F32 ? (float *)t->data + index : buf;
}

static inline void cpu_put(const struct cpu_device *cpu, const struct kr_tensor *t, int64_t index,
                           const float *x, size_t n)
{
    if (t->dtype == KR_BF16)
        cpu->rows->to_bf16((uint16_t *)t->data + index, x, KR_F32, n);
}

static inline int64_t cpu_least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline size_t cpu_aligned(size_t bytes)
{
    return (bytes + KR_ALIGNMENT - 1) / KR_ALIGNMENT * KR_ALIGNMENT;
}

/* How a thread's share of rows of so many elements is cut: about 32 K elements an item. */
static inline int64_t cpu_rows_an_item(int64_t cols)
{
    int64_t rows = (32 << 10) / (cols > 0 ? cols : 1);
    return rows > 0 ? rows : 1;
}

/* ---------------------------------------------------------------------------- onednn.c ------ */

/* c[m,n] = a[m,k] b[n,k]^T, dense; a and b of the device's compute type, c and the sums F32. */
struct matmul;
const struct matmul *matmul_get(struct cpu_device *cpu, int64_t m, int64_t n,
                                int64_t k);     /* by the device's thread; NULL: oneDNN can't */
size_t matmul_scratch(const struct matmul *mm); /* bytes that each run needs; NULL: 0 */
int matmul_run(struct cpu_device *cpu, const struct matmul *mm, const void *a, const void *b,
               float *c, void *scratch); /* any thread; -1: oneDNN failed */
void matmul_cache_free(struct matmul_cache *cache);

/* ---------------------------------------------------------------------- the operations ------ */

void cpu_linear(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x,
                const struct kr_weight *w, enum kr_act act);
void cpu_linear_add(struct kr_device *dev, struct kr_tensor y, struct kr_tensor gate,
                    struct kr_tensor x, const struct kr_weight *w);
void cpu_attention(struct kr_device *dev, struct kr_tensor out, const struct kr_attention *a);
void attention_amx(struct kr_device *dev, struct kr_tensor out,
                   const struct kr_attention *a); /* attention_amx.c, where the CPU has tiles */
void cpu_conv2d(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x,
                struct kr_conv *conv);
void cpu_conv2d_add(struct kr_device *dev, struct kr_tensor y, struct kr_tensor x,
                    struct kr_conv *conv);
void conv_amx(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x, struct kr_conv *conv,
              int add); /* conv_amx.c, where the CPU has tiles; prepared is one free()able piece */
void cpu_conv_fini(struct kr_device *dev, struct kr_conv *conv);

void cpu_copy(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x);
void cpu_embed(struct kr_device *dev, struct kr_tensor out, const struct kr_weight *w,
               const int32_t *ids, int64_t n);
void cpu_rms_norm(struct kr_device *dev, struct kr_tensor out, struct kr_tensor also,
                  struct kr_tensor x, struct kr_tensor weight, float eps, enum kr_act act,
                  struct kr_tensor scale, struct kr_tensor shift);
void cpu_scale_rows(struct kr_device *dev, struct kr_tensor y, struct kr_tensor factors);
void cpu_qk_norm_rope(struct kr_device *dev, const struct kr_qk *qk, float eps,
                      const struct kr_rope *rope);
void cpu_swiglu(struct kr_device *dev, struct kr_tensor out, struct kr_tensor gate,
                struct kr_tensor up);
void cpu_mul_sigmoid(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x,
                     struct kr_tensor gate);
void cpu_gelu_tanh(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x);
void cpu_add(struct kr_device *dev, struct kr_tensor out, struct kr_tensor a, struct kr_tensor b);
void cpu_add_scaled(struct kr_device *dev, struct kr_tensor y, float a, struct kr_tensor x);
void cpu_guide(struct kr_device *dev, struct kr_tensor v, struct kr_tensor uncond, float guidance);
void cpu_mix_taps(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x,
                  struct kr_tensor weight);
void cpu_timestep(struct kr_device *dev, struct kr_tensor out, float s, float period);
void cpu_patchify(struct kr_device *dev, struct kr_tensor out, struct kr_tensor z);
void cpu_unpatchify(struct kr_device *dev, struct kr_tensor z, struct kr_tensor tokens);
void cpu_planes_to_pixels(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x);
void cpu_pixels_to_planes(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x);
void cpu_scale_shift(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x,
                     struct kr_tensor scale, struct kr_tensor shift);
void cpu_upsample2(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x);
void cpu_check_finite(struct kr_device *dev, struct kr_tensor x, const char *what);

#endif
