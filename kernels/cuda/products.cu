/* SPDX-License-Identifier: Apache-2.0
 *
 * Matrix products by cuBLASLt. A row-major x[n,K] W[N,K]^T is, to a library that counts columns,
 * W'^T x with W' [K,N] and x [K,n], both as they lie, and a result [N,n]: the one arrangement that
 * FP8 allows, and the rows of W are the rows of the result, along which vectors of factors go.
 *
 * The library is asked for an algorithm once for each product; what it says is kept, a refusal too.
 * Sums that are divided among blocks may only be joined in a separate step, so that they are always
 * added in one order.
 */
#include "kernels/cuda/products.cuh"

#include <stdlib.h>
#include <string.h>

namespace
{

enum { KEPT = 512 /* then all are forgotten: pictures of many sizes came by */ };

struct kept {
    struct cuda_product product;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t w, x, out;
    cublasLtMatmulAlgo_t algo;
    int exists;
};

} // namespace

struct cuda_products {
    kept *all[KEPT];
    int count;
};

namespace
{

/* --------------------------------------------------------------------------- describing ------ */

cudaDataType_t type_of(enum kr_dtype dtype)
{
    return dtype == KR_F32 ? CUDA_R_32F : dtype == KR_BF16 ? CUDA_R_16BF : CUDA_R_8F_E4M3;
}

template <typename T>
int set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute, T value)
{
    return cublasLtMatmulDescSetAttribute(desc, attribute, &value, sizeof value) ==
           CUBLAS_STATUS_SUCCESS;
}

template <typename T>
int prefer(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
           T value)
{
    return cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value) ==
           CUBLAS_STATUS_SUCCESS;
}

const uint32_t epilogues[] = {CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS,
                              CUBLASLT_EPILOGUE_GELU, CUBLASLT_EPILOGUE_GELU_BIAS};

int describe(kept *k)
{
    const struct cuda_product *p = &k->product;
    int fp8 = p->factors != PRODUCT_PLAIN;
    if (cublasLtMatmulDescCreate(&k->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) !=
            CUBLAS_STATUS_SUCCESS ||
        !set(k->desc, CUBLASLT_MATMUL_DESC_TRANSA, (int32_t)CUBLAS_OP_T) ||
        !set(k->desc, CUBLASLT_MATMUL_DESC_TRANSB, (int32_t)CUBLAS_OP_N))
        return 0;
    if (p->gated && !set(k->desc, CUBLASLT_MATMUL_DESC_POINTER_MODE,
                         (int32_t)CUBLASLT_POINTER_MODE_ALPHA_DEVICE_VECTOR_BETA_HOST))
        return 0;
    if (p->ending && !set(k->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogues[p->ending]))
        return 0;
    if (p->ending & PRODUCT_BIAS &&
        !set(k->desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, (int32_t)CUDA_R_32F))
        return 0;
    /* Sums keep the tensor cores' own width over a whole row: what is lost is small beside the
     * rounding to FP8, and adding up in full costs a tenth of the speed. */
    if (fp8 && !set(k->desc, CUBLASLT_MATMUL_DESC_FAST_ACCUM, (int8_t)1))
        return 0;
    if (p->factors == PRODUCT_ROWS && (!set(k->desc, CUBLASLT_MATMUL_DESC_A_SCALE_MODE,
                                            (int32_t)CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F) ||
                                       !set(k->desc, CUBLASLT_MATMUL_DESC_B_SCALE_MODE,
                                            (int32_t)CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F)))
        return 0;
    return 1;
}

int lay_out(kept *k)
{
    const struct cuda_product *p = &k->product;
    cudaDataType_t in = type_of(p->factors == PRODUCT_PLAIN ? KR_BF16 : KR_F8_E4M3);
    uint64_t depth = (uint64_t)p->in, wide = (uint64_t)p->out, n = (uint64_t)p->n;
    return cublasLtMatrixLayoutCreate(&k->w, in, depth, wide, p->in) == CUBLAS_STATUS_SUCCESS &&
           cublasLtMatrixLayoutCreate(&k->x, in, depth, n, p->in) == CUBLAS_STATUS_SUCCESS &&
           cublasLtMatrixLayoutCreate(&k->out, type_of((enum kr_dtype)p->to), wide, n, p->stride) ==
               CUBLAS_STATUS_SUCCESS;
}

/* Vectors of factors that only the search for an algorithm sees: it wants to know that there are
 * some, and looks at none. */
int pretend_factors(struct cuda_device *cuda, kept *k)
{
    const void *somewhere = cuda->bad;
    return (k->product.factors != PRODUCT_ROWS ||
            set(k->desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, somewhere)) &&
           (k->product.factors == PRODUCT_PLAIN ||
            set(k->desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, somewhere)) &&
           (!(k->product.ending & PRODUCT_BIAS) ||
            set(k->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, somewhere));
}

int choose(struct cuda_device *cuda, kept *k)
{
    const struct cuda_product *p = &k->product;
    cublasLtMatmulPreference_t want = NULL;
    cublasLtMatmulHeuristicResult_t found = {};
    int count = 0;
    int chosen =
        cublasLtMatmulPreferenceCreate(&want) == CUBLAS_STATUS_SUCCESS &&
        prefer(want, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, (uint64_t)cuda->workspace_size) &&
        prefer(want, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
               (uint32_t)CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) &&
        prefer(want, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, (uint32_t)p->align_w) &&
        prefer(want, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, (uint32_t)p->align_x) &&
        prefer(want, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, (uint32_t)p->align_out) &&
        prefer(want, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, (uint32_t)p->align_out) &&
        cublasLtMatmulAlgoGetHeuristic(cuda->blas, k->desc, k->w, k->x, k->out, k->out, want, 1,
                                       &found, &count) == CUBLAS_STATUS_SUCCESS &&
        count == 1 && found.state == CUBLAS_STATUS_SUCCESS;
    if (want)
        cublasLtMatmulPreferenceDestroy(want);
    k->algo = found.algo;
    return chosen;
}

/* ------------------------------------------------------------------------------- keeping ------ */

void forget(kept *k)
{
    if (k->out)
        cublasLtMatrixLayoutDestroy(k->out);
    if (k->x)
        cublasLtMatrixLayoutDestroy(k->x);
    if (k->w)
        cublasLtMatrixLayoutDestroy(k->w);
    if (k->desc)
        cublasLtMatmulDescDestroy(k->desc);
    free(k);
}

void forget_all(struct cuda_products *products)
{
    while (products->count > 0)
        forget(products->all[--products->count]);
}

kept *known(const struct cuda_products *products, const struct cuda_product *p)
{
    for (int i = 0; i < products->count; i++)
        if (!memcmp(&products->all[i]->product, p, sizeof *p))
            return products->all[i];
    return NULL;
}

/* NULL: a fault is set. */
kept *find(struct cuda_device *cuda, const struct cuda_product *p)
{
    if (!cuda->products)
        cuda->products = (struct cuda_products *)calloc(1, sizeof *cuda->products);
    kept *k = cuda->products ? known(cuda->products, p) : NULL;
    if (k)
        return k;
    k = cuda->products ? (kept *)calloc(1, sizeof *k) : NULL;
    if (!k) {
        kr_fault_set(&cuda->base, KR_FAULT_NO_MEMORY, "out of memory for a product's description");
        return NULL;
    }
    if (cuda->products->count == KEPT)
        forget_all(cuda->products);
    k->product = *p;
    k->exists = describe(k) && lay_out(k) && pretend_factors(cuda, k) && choose(cuda, k);
    cuda->products->all[cuda->products->count++] = k;
    return k;
}

int point(kept *k, const struct cuda_operands *o)
{
    const struct cuda_product *p = &k->product;
    return (p->factors != PRODUCT_ROWS ||
            set(k->desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, (const void *)o->w_factors)) &&
           (p->factors == PRODUCT_PLAIN ||
            set(k->desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, (const void *)o->x_factors)) &&
           (!(p->ending & PRODUCT_BIAS) ||
            set(k->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, (const void *)o->bias));
}

} // namespace

int32_t cuda_alignment(const void *at)
{
    uintptr_t bits = (uintptr_t)at | KR_ALIGNMENT;
    return (int32_t)(bits & ~(bits - 1));
}

int cuda_product_exists(struct cuda_device *cuda, const struct cuda_product *p)
{
    kept *k = cuda->base.fault == KR_FINE ? find(cuda, p) : NULL;
    return k && k->exists;
}

void cuda_product_run(struct cuda_device *cuda, const struct cuda_product *p,
                      const struct cuda_operands *o)
{
    kept *k = find(cuda, p);
    void *workspace = cuda_workspace(cuda);
    float alpha = o->alpha, beta = p->add ? 1.0f : 0.0f;
    const void *by = p->gated ? (const void *)o->gate : &alpha;
    if (!k || !workspace)
        return;
    assert(k->exists);
    if (!point(k, o)) {
        kr_fault_set(&cuda->base, KR_FAULT_LOST, "cuBLASLt refused a product's operands");
        return;
    }
    for (int i = 0; i < cuda->streams; i++) {
        cublasStatus_t status = cublasLtMatmul(cuda->blas, k->desc, by, o->w, k->w, o->x, k->x,
                                               &beta, o->out, k->out, o->out, k->out, &k->algo,
                                               workspace, cuda->workspace_size, cuda->stream[i]);
        if (i > 0 && status != CUBLAS_STATUS_SUCCESS)
            cuda_record_failed(cuda);
        else if (i == 0 && !cuda_blas_ok(cuda, status, "cublasLtMatmul"))
            return;
    }
    cuda->products_in_fp8 += p->factors != PRODUCT_PLAIN;
    cuda_launched(cuda);
}

void cuda_products_close(struct cuda_device *cuda)
{
    if (!cuda->products)
        return;
    forget_all(cuda->products);
    free(cuda->products);
    cuda->products = NULL;
}
