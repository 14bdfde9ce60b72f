/* SPDX-License-Identifier: Apache-2.0
 *
 * What linear.cu is made of: products.cu, which has cuBLASLt multiply, and stored.cu, which reads
 * weights and inputs in the types that they are stored in.
 */
#ifndef KR_CUDA_PRODUCTS_CUH
#define KR_CUDA_PRODUCTS_CUH

#include "kernels/cuda/cuda.h"

/* ------------------------------------------------------------------------- products.cu ------ */

enum cuda_factors_of {
    PRODUCT_PLAIN, /* bfloat16 */
    PRODUCT_ROWS,  /* FP8, a factor for each row of W and of x */
    PRODUCT_TENSOR /* FP8, a factor for x */
};

/* out[n,N] = alpha x[n,K] W[N,K]^T + bias, or out += that: everything that decides about the
 * algorithm. There are no unused bytes, so two are compared as memory. */
struct cuda_product {
    int64_t n, out, in;
    int64_t stride;                      /* of out, in elements */
    int32_t factors;                     /* enum cuda_factors_of */
    int32_t to;                          /* KR_F32 or KR_BF16 */
    int32_t add, gated, bias;            /* gated: alpha is a vector of N */
    int32_t align_w, align_x, align_out; /* bytes that addresses are a multiple of */
};

struct cuda_operands {
    const void *w, *x;
    void *out;
    float alpha;
    const float *gate, *bias;           /* F32 [N], where the product has them */
    const float *w_factors, *x_factors; /* [N] and [n], or none and [1] */
};

/* What an address is a multiple of, up to what the arena gives. */
int32_t cuda_alignment(const void *at);

/* Whether cuBLASLt can; asks once for each product. */
int cuda_product_exists(struct cuda_device *cuda, const struct cuda_product *p);

/* Queues it; it has to exist. */
void cuda_product_run(struct cuda_device *cuda, const struct cuda_product *p,
                      const struct cuda_operands *o);

/* --------------------------------------------------------------------------- linear.cu ------ */

/* Bytes of scratch that weights are expanded into; tests make it smaller. */
extern int64_t cuda_expanded;

/* --------------------------------------------------------------------------- stored.cu ------ */

/* out BF16 [count], whatever the type of w. */
void cuda_expand(struct cuda_device *cuda, void *out, const void *w, enum kr_dtype dtype,
                 int64_t count);

/* out BF16 = x, which is quantized by rows. */
void cuda_dequantize(struct cuda_device *cuda, struct kr_tensor out, struct kr_tensor x);

/* out[count] E4M3 and *factor of the whole of x; parts is scratch. */
enum { CUDA_PARTS = 256 };
void cuda_quantize_tensor(struct cuda_device *cuda, void *out, float *factor, float *parts,
                          struct kr_tensor x);

/* out[N]: of each part of the rows its weight's scale, times gate where there is one. */
enum { CUDA_MOST_PARTS = 4 };
void cuda_fill_factors(struct cuda_device *cuda, float *out, const struct kr_weight *const *w,
                       int count, const float *gate);

/* Linear maps without cuBLASLt: out = act(v) or out += gate v, v = scale x w^T + bias; w is in
 * device memory in the weight's type, x F32 or BF16. Reads W once for each four rows of x. */
struct cuda_direct {
    struct kr_tensor out, x;
    const void *w;
    const struct kr_weight *weight;
    const float *gate;
    int add;
    enum kr_act act;
};
void cuda_direct(struct cuda_device *cuda, const struct cuda_direct *direct);

#endif
