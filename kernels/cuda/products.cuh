/* SPDX-License-Identifier: Apache-2.0
 *
 * What linear.cu is made of: products.cu, which has cuBLASLt multiply, multiply.cu, which does it
 * itself with FP8 weights, and stored.cu, which reads weights and inputs in the types that they are
 * stored in.
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

enum { PRODUCT_BIAS = 1, PRODUCT_GELU = 2 /* the one with tanh, after the bias */ };

/* out[n,N] = alpha x[n,K] W[N,K]^T + bias, or out += that: everything that decides about the
 * algorithm. There are no unused bytes, so two are compared as memory. */
struct cuda_product {
    int64_t n, out, in;
    int64_t stride;                      /* of out, in elements */
    int32_t factors;                     /* enum cuda_factors_of */
    int32_t to;                          /* KR_F32 or KR_BF16 */
    int32_t add, gated;                  /* gated: alpha is a vector of N */
    int32_t ending;                      /* PRODUCT_BIAS, PRODUCT_GELU, both or none */
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

/* ------------------------------------------------------------------------- multiply.cu ------ */

/* out = act(scale x W^T + bias), each part of W's rows with its weight's scale; or out += that, or
 * out += gate x W^T with a gate that has the scale in it. */
enum { CUDA_MOST_PARTS = 4 };
struct cuda_multiply {
    struct kr_tensor out, x; /* x dense, BF16 or quantized by rows */
    const void *w;           /* E4M3, the parts one below the other, 256-aligned */
    const struct kr_weight *const *weights;
    int count;
    const float *bias, *gate; /* F32 [N]; NULL: none */
    int add;                  /* then out is F32, and act none */
    enum kr_act act;
};

/* Whether it can, with an x of this type at this address. */
int cuda_multiply_takes(const struct cuda_device *cuda, enum kr_dtype x, const void *at,
                        const struct kr_weight *const *w, int count);
void cuda_multiply(struct cuda_device *cuda, const struct cuda_multiply *m);

/* --------------------------------------------------------------------------- linear.cu ------ */

/* Bytes of scratch that weights are expanded into; tests make it smaller. */
extern int64_t cuda_expanded;

/* --------------------------------------------------------------------------- stored.cu ------ */

/* out BF16 [rows, cols], whatever the type of w; with a gate, F32 [rows] or NULL, its rows by that,
 * which takes whole WIDE columns. */
void cuda_expand(struct cuda_device *cuda, void *out, const void *w, enum kr_dtype dtype,
                 int64_t rows, int64_t cols, const float *gate);

/* out BF16 = x, which is quantized by rows. */
void cuda_dequantize(struct cuda_device *cuda, struct kr_tensor out, struct kr_tensor x);

/* out[count] E4M3 and *factor of the whole of x; parts is scratch. */
enum { CUDA_PARTS = 256 };
void cuda_quantize_tensor(struct cuda_device *cuda, void *out, float *factor, float *parts,
                          struct kr_tensor x);

/* out[N]: of each part of the rows its weight's scale. */
void cuda_fill_factors(struct cuda_device *cuda, float *out, const struct kr_weight *const *w,
                       int count);

/* Linear maps without tensor cores: out = act(v) or out += v, v = scale x w^T + bias, or out +=
 * gate x w^T; w is in device memory in the weight's type, x F32 or BF16. Reads W once for each four
 * rows of x. */
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
