/* SPDX-License-Identifier: Apache-2.0
 *
 * cuBLASLt as its documentation describes it: descriptors, and what a product may be. A product
 * that the documentation does not list has no algorithm (CUBLAS_STATUS_NOT_SUPPORTED); a wrong
 * argument is CUBLAS_STATUS_INVALID_VALUE. Both are reported with the reason, except that asking
 * whether there is an algorithm is no mistake: there the answer alone tells.
 *
 * The rules, from the tables and notes at cublasLtMatmul():
 * - sums in F32, scale type F32; A and B both BF16, both F16 or both F32 (D the same, or F32), or
 * FP8;
 * - FP8 wants compute capability 8.9, A and B not both E5M2; D BF16, F16, F32 (C the same) or FP8;
 *   A transposed and B not (only 10.x takes other layouts); 16-byte multiples of the matrices'
 *   dimensions and leading dimensions, 16-byte alignment of every matrix;
 * - scales are F32 in device memory, for FP8 matrices only; a vector (OUTER_VEC_32F) for both A and
 * B and on 9.0 only;
 * - the bias has D's type; with FP8 operands and D F32 or FP8 it is BF16 (F16 where C is F16);
 * - the workspace is 256-byte aligned, and as large as the chosen algorithm says;
 * - matrices are as aligned as the preference promised when the algorithm was chosen.
 */
#include "blaslt.h"

#include <assert.h>
#include <stdarg.h>

struct emu_preference {
    uint32_t search, reduction, align[4]; /* of A, B, C, D */
    uint64_t workspace;
};

struct emu_blaslt {
    uint32_t magic;
};
enum { HANDLE_MAGIC = 0x4c54 };

static int objects; /* alive, for the leak check */

/* Data of an algorithm: what it was chosen for. */
enum { ALGO_MAGIC, ALGO_SHAPE, ALGO_WORKSPACE, ALGO_ALIGN_AB, ALGO_ALIGN_CD };
static const uint64_t magic_algo = 0x6b726561646c74u;

static int refuse(char why[200], const char *format, ...) __attribute__((format(printf, 2, 3)));
static int refuse(char why[200], const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(why, 200, format, args);
    va_end(args);
    return 0;
}

/* -------------------------------------------------------------------------- descriptors ------ */

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    entry call;
    if (call.error || fails_allocation())
        return call.error ? CUBLAS_STATUS_NOT_INITIALIZED : CUBLAS_STATUS_ALLOC_FAILED;
    *handle = (cublasLtHandle_t)calloc(1, sizeof **handle);
    assert(*handle);
    (*handle)->magic = HANDLE_MAGIC;
    objects++;
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t destroy(void *object)
{
    entry call;
    if (!object)
        return CUBLAS_STATUS_INVALID_VALUE;
    objects--;
    free(object);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    return destroy(handle);
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    return destroy(layout);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
    return destroy(desc);
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    return destroy(preference);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld)
{
    struct emu_layout *l = (struct emu_layout *)calloc(1, sizeof *l);
    assert(l);
    *l = {type, CUBLASLT_ORDER_COL, rows, cols, ld, 1, 0};
    *layout = l;
    objects++;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    struct emu_matmul *m = (struct emu_matmul *)calloc(1, sizeof *m);
    assert(m);
    m->compute = compute;
    m->scale = scale;
    m->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    m->bias_type = -1;
    *desc = m;
    objects++;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference)
{
    struct emu_preference *p = (struct emu_preference *)calloc(1, sizeof *p);
    assert(p);
    for (int i = 0; i < 4; i++)
        p->align[i] = 256;
    *preference = p;
    objects++;
    return CUBLAS_STATUS_SUCCESS;
}

/* An attribute's place in its descriptor. */
struct attribute {
    int number;
    size_t offset, bytes;
};
#define ATTRIBUTE(number, type, member)                                                            \
    {                                                                                              \
        number, offsetof(struct type, member), sizeof(((struct type *)0)->member)                  \
    }

static cublasStatus_t set(void *object, const struct attribute *known, size_t count, int number,
                          const void *value, size_t bytes)
{
    for (size_t i = 0; i < count && object; i++) {
        if (known[i].number != number)
            continue;
        if (!value || bytes != known[i].bytes) {
            report(EMU_BLAS, NULL, "attribute %d is set with %zu bytes; it has %zu", number, bytes,
                   known[i].bytes);
            return CUBLAS_STATUS_INVALID_VALUE;
        }
        memcpy((char *)object + known[i].offset, value, bytes);
        return CUBLAS_STATUS_SUCCESS;
    }
    report(EMU_BLAS, NULL, "attribute %d, which the emulation does not know", number);
    return CUBLAS_STATUS_INVALID_VALUE;
}
#define SET(object, known, number, value, bytes)                                                   \
    set(object, known, sizeof(known) / sizeof((known)[0]), number, value, bytes)

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attr,
                                                const void *value, size_t bytes)
{
    static const struct attribute known[] = {
        ATTRIBUTE(CUBLASLT_MATRIX_LAYOUT_TYPE, emu_layout, type),
        ATTRIBUTE(CUBLASLT_MATRIX_LAYOUT_ORDER, emu_layout, order),
        ATTRIBUTE(CUBLASLT_MATRIX_LAYOUT_ROWS, emu_layout, rows),
        ATTRIBUTE(CUBLASLT_MATRIX_LAYOUT_COLS, emu_layout, cols),
        ATTRIBUTE(CUBLASLT_MATRIX_LAYOUT_LD, emu_layout, ld),
        ATTRIBUTE(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, emu_layout, batch),
        ATTRIBUTE(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, emu_layout, stride),
    };
    return SET(layout, known, attr, value, bytes);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attr,
                                              const void *value, size_t bytes)
{
    static const struct attribute known[] = {
        ATTRIBUTE(CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, emu_matmul, compute),
        ATTRIBUTE(CUBLASLT_MATMUL_DESC_SCALE_TYPE, emu_matmul, scale),
        ATTRIBUTE(CUBLASLT_MATMUL_DESC_POINTER_MODE, emu_matmul, pointer_mode),
        ATTRIBUTE(CUBLASLT_MATMUL_DESC_TRANSA, emu_matmul, trans_a),
        ATTRIBUTE(CUBLASLT_MATMUL_DESC_TRANSB, emu_matmul, trans_b),
        ATTRIBUTE(CUBLASLT_MATMUL_DESC_TRANSC, emu_matmul, trans_c),
        ATTRIBUTE(CUBLASLT_MATMUL_DESC_EPILOGUE, emu_matmul, epilogue),
        ATTRIBUTE(CUBLASLT_MATMUL_DESC_BIAS_POINTER, emu_matmul, bias),
        ATTRIBUTE(CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, emu_matmul, bias_stride),
        ATTRIBUTE(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, emu_matmul, bias_type),
        ATTRIBUTE(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, emu_matmul, a_scale),
        ATTRIBUTE(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, emu_matmul, b_scale),
        ATTRIBUTE(CUBLASLT_MATMUL_DESC_C_SCALE_POINTER, emu_matmul, c_scale),
        ATTRIBUTE(CUBLASLT_MATMUL_DESC_D_SCALE_POINTER, emu_matmul, d_scale),
        ATTRIBUTE(CUBLASLT_MATMUL_DESC_AMAX_D_POINTER, emu_matmul, d_amax),
        ATTRIBUTE(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, emu_matmul, a_mode),
        ATTRIBUTE(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, emu_matmul, b_mode),
        ATTRIBUTE(CUBLASLT_MATMUL_DESC_FAST_ACCUM, emu_matmul, fast),
        ATTRIBUTE(CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, emu_matmul, processors),
    };
    return SET(desc, known, attr, value, bytes);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attr,
                                                    const void *value, size_t bytes)
{
    static const struct attribute known[] = {
        ATTRIBUTE(CUBLASLT_MATMUL_PREF_SEARCH_MODE, emu_preference, search),
        ATTRIBUTE(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, emu_preference, reduction),
        ATTRIBUTE(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, emu_preference, workspace),
        ATTRIBUTE(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, emu_preference, align[0]),
        ATTRIBUTE(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, emu_preference, align[1]),
        ATTRIBUTE(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, emu_preference, align[2]),
        ATTRIBUTE(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, emu_preference, align[3]),
    };
    return SET(preference, known, attr, value, bytes);
}

/* ------------------------------------------------------------------------------- the rules --- */

static int is_fp8(int type)
{
    return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2;
}

struct question {
    const struct emu_matmul *m;
    const struct emu_layout *a, *b, *c, *d;
};

/* Shapes that belong together: a wrong one is a wrong argument. */
static int shapes_fit(const struct question *q, char why[200])
{
    const struct emu_matmul *m = q->m;
    uint64_t am = m->trans_a ? q->a->cols : q->a->rows, ak = m->trans_a ? q->a->rows : q->a->cols;
    uint64_t bk = m->trans_b ? q->b->cols : q->b->rows, bn = m->trans_b ? q->b->rows : q->b->cols;
    const struct emu_layout *all[] = {q->a, q->b, q->c, q->d};
    for (int i = 0; i < 4; i++) {
        const struct emu_layout *l = all[i];
        if (!l->rows || !l->cols || l->ld < (int64_t)l->rows || l->batch < 1)
            return refuse(why, "matrix %c: %llu x %llu with a leading dimension of %lld", "ABCD"[i],
                          (unsigned long long)l -> rows, (unsigned long long)l -> cols,
                          (long long)l -> ld);
        if (l->batch != q->d->batch)
            return refuse(why, "batches of different counts");
    }
    if (am != q->d->rows || bn != q->d->cols || ak != bk || q->c->rows != q->d->rows ||
        q->c->cols != q->d->cols)
        return refuse(why, "op(A) %llu x %llu, op(B) %llu x %llu, D %llu x %llu",
                      (unsigned long long)am, (unsigned long long)ak, (unsigned long long)bk,
                      (unsigned long long)bn, (unsigned long long)q->d->rows,
                      (unsigned long long)q->d->cols);
    return 1;
}

static int plain_types_supported(const struct question *q, char why[200])
{
    int a = q->a->type, d = q->d->type;
    if (q->b->type != a || (a != CUDA_R_32F && a != CUDA_R_16BF && a != CUDA_R_16F))
        return refuse(why, "A of type %d with B of type %d", a, q->b->type);
    if (q->c->type != d || (d != a && d != CUDA_R_32F))
        return refuse(why, "C of type %d and D of type %d with A of type %d", q->c->type, d, a);
    if (q->m->compute != CUBLAS_COMPUTE_32F && q->m->compute != CUBLAS_COMPUTE_32F_PEDANTIC &&
        a != CUDA_R_32F)
        return refuse(why, "compute type %d with operands of type %d", q->m->compute, a);
    if (q->m->a_scale || q->m->b_scale || q->m->c_scale || q->m->d_scale || q->m->d_amax)
        return refuse(why, "a scale of a matrix that is not FP8");
    return 1;
}

static int fp8_types_supported(const struct question *q, char why[200])
{
    int a = q->a->type, b = q->b->type, c = q->c->type, d = q->d->type;
    if (architecture() < 89)
        return refuse(why, "FP8 on sm_%d", architecture());
    if (!is_fp8(a) || !is_fp8(b) || (a == CUDA_R_8F_E5M2 && b == CUDA_R_8F_E5M2))
        return refuse(why, "A of type %d with B of type %d", a, b);
    if (q->m->compute != CUBLAS_COMPUTE_32F)
        return refuse(why, "FP8 with compute type %d", q->m->compute);
    if (is_fp8(d) ? (c != CUDA_R_16BF && c != CUDA_R_16F) ||
                        (d == CUDA_R_8F_E5M2 && a == CUDA_R_8F_E4M3 && b == CUDA_R_8F_E4M3)
                  : c != d)
        return refuse(why, "FP8 with C of type %d and D of type %d", c, d);
    if (!is_fp8(d) && (q->m->d_scale || q->m->d_amax))
        return refuse(why, "a scale of D, which is not FP8");
    return 1;
}

static int fp8_layout_supported(const struct question *q, char why[200])
{
    const struct emu_matmul *m = q->m;
    const struct emu_layout *all[] = {q->a, q->b, q->c, q->d};
    if ((!m->trans_a || m->trans_b) && architecture() / 10 != 10)
        return refuse(why, "FP8 with A %stransposed and B %stransposed: it is TN only",
                      m->trans_a ? "" : "not ", m->trans_b ? "" : "not ");
    for (int i = 0; i < 4; i++) {
        size_t size = blas_type_size(all[i]->type);
        if (all[i]->rows * size % 16 || (size_t)all[i]->ld * size % 16 ||
            (size_t)all[i]->stride * size % 16)
            return refuse(why,
                          "FP8: matrix %c with %llu rows and a leading dimension of %lld, which "
                          "are not multiples of 16 bytes",
                          "ABCD"[i], (unsigned long long)all[i] -> rows, (long long)all[i] -> ld);
    }
    if (q->d->rows % 16)
        return refuse(why, "FP8: %llu rows of op(A), not a multiple of 16",
                      (unsigned long long)q->d->rows);
    return 1;
}

static int scale_modes_supported(const struct question *q, char why[200])
{
    int a = q->m->a_mode, b = q->m->b_mode;
    if (a == CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F && a == b)
        return 1;
    if (a != CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F || a != b)
        return refuse(why, "scale mode %d of A with %d of B", a, b);
    if (architecture() != 90)
        return refuse(why, "vectors of scales on sm_%d", architecture());
    if (!is_fp8(q->a->type) || is_fp8(q->d->type) ||
        (writes_rows_as_bf16() && q->d->type != CUDA_R_16BF))
        return refuse(why, "vectors of scales with A of type %d, D of type %d", q->a->type,
                      q->d->type);
    if (!q->m->a_scale || !q->m->b_scale)
        return refuse(why, "vectors of scales that are not given for both A and B");
    return 1;
}

static int bias_type_of(const struct question *q)
{
    if (!is_fp8(q->a->type))
        return q->d->type;
    if (q->d->type == CUDA_R_32F)
        return CUDA_R_16BF;
    return is_fp8(q->d->type) ? q->c->type : q->d->type;
}

static int epilogue_supported(const struct question *q, char why[200])
{
    switch (q->m->epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT:
    case CUBLASLT_EPILOGUE_RELU:
    case CUBLASLT_EPILOGUE_GELU:
        return 1;
    case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_RELU_BIAS:
    case CUBLASLT_EPILOGUE_GELU_BIAS:
        break;
    default:
        return refuse(why, "epilogue %u", q->m->epilogue);
    }
    if (q->m->bias_type >= 0 && q->m->bias_type != bias_type_of(q))
        return refuse(why, "a bias of type %d where it has to be %d", q->m->bias_type,
                      bias_type_of(q));
    return 1;
}

static int has_alpha_vector(const struct emu_matmul *m)
{
    return m->pointer_mode == CUBLASLT_POINTER_MODE_ALPHA_DEVICE_VECTOR_BETA_ZERO ||
           m->pointer_mode == CUBLASLT_POINTER_MODE_ALPHA_DEVICE_VECTOR_BETA_HOST;
}

static int is_supported(const struct question *q, char why[200])
{
    const struct emu_matmul *m = q->m;
    int fp8 = is_fp8(q->a->type) || is_fp8(q->b->type);
    const struct emu_layout *all[] = {q->a, q->b, q->c, q->d};
    for (int i = 0; i < 4; i++)
        if (all[i]->order != CUBLASLT_ORDER_COL)
            return refuse(why, "matrix %c: only column-major ones are emulated", "ABCD"[i]);
    if (m->scale != CUDA_R_32F)
        return refuse(why, "scale type %d", m->scale);
    if (m->pointer_mode == CUBLASLT_POINTER_MODE_DEVICE_VECTOR ||
        (has_alpha_vector(m) && !takes_alpha_vectors()))
        return refuse(why, "pointer mode %d", m->pointer_mode);
    if (m->trans_c != CUBLAS_OP_N)
        return refuse(why, "C transposed");
    return (fp8 ? fp8_types_supported(q, why) && fp8_layout_supported(q, why)
                : plain_types_supported(q, why)) &&
           scale_modes_supported(q, why) && epilogue_supported(q, why);
}

/* ---------------------------------------------------------------------------- heuristics ----- */

static uint64_t shape_hash(const struct question *q)
{
    const struct emu_layout *all[] = {q->a, q->b, q->c, q->d};
    uint64_t h = (uint64_t)q->m->trans_a | (uint64_t)q->m->trans_b << 2 |
                 (uint64_t)q->m->epilogue << 4 | (uint64_t)q->m->a_mode << 16 |
                 (uint64_t)q->m->compute << 20;
    for (int i = 0; i < 4; i++) {
        const uint64_t values[] = {(uint64_t)all[i]->type, all[i]->rows, all[i]->cols,
                                   (uint64_t)all[i]->ld, (uint64_t)all[i]->batch};
        for (size_t j = 0; j < sizeof values / sizeof values[0]; j++)
            h = (h ^ values[j]) * 0x100000001b3u;
    }
    return h;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int *returned)
{
    entry call;
    char why[200] = "";
    if (call.error || !handle || handle->magic != HANDLE_MAGIC)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!desc || !a || !b || !c || !d || !preference || requested < 1 || !results || !returned)
        return CUBLAS_STATUS_INVALID_VALUE;
    struct question q = {desc, a, b, c, d};
    *returned = 0;
    if (!shapes_fit(&q, why)) {
        report(EMU_BLAS, NULL, "cublasLtMatmulAlgoGetHeuristic: %s", why);
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    int least = is_fp8(a->type) ? 16 : 1;
    for (int i = 0; i < 4; i++)
        if (preference->align[i] < (uint32_t)least)
            return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!is_supported(&q, why))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    uint64_t sums = (d->rows * d->cols * 4 + 255) / 256 * 256; /* of a part of k */
    for (int i = 0; i < requested && i < 3; i++) { /* the best one likes to have workspace */
        cublasLtMatmulHeuristicResult_t *r = &results[i];
        *r = {};
        r->workspaceSize = i || sums > preference->workspace ? 0 : sums;
        r->state = CUBLAS_STATUS_SUCCESS;
        r->wavesCount = 1.0f;
        r->algo.data[ALGO_MAGIC] = magic_algo;
        r->algo.data[ALGO_SHAPE] = shape_hash(&q);
        r->algo.data[ALGO_WORKSPACE] = r->workspaceSize;
        r->algo.data[ALGO_ALIGN_AB] = preference->align[0] | (uint64_t)preference->align[1] << 32;
        r->algo.data[ALGO_ALIGN_CD] = preference->align[2] | (uint64_t)preference->align[3] << 32;
        ++*returned;
    }
    return CUBLAS_STATUS_SUCCESS;
}

/* -------------------------------------------------------------------------------- product ---- */

/* Device memory of that many bytes, all in one living allocation. */
static int device_holds(const void *at, size_t bytes, const char *what, char why[200])
{
    const struct allocation *a = allocation_of(at);
    size_t offset = a ? (size_t)((const char *)at - a->at) : 0;
    if (!is_device(at))
        return refuse(why, "%s is in host memory", what);
    if (!a || a->freed)
        return refuse(why, "%s is in %s memory", what, a ? "freed" : "no allocated");
    if (offset > a->bytes || bytes > a->bytes - offset)
        return refuse(why, "%s needs %zu bytes at offset %zu of an allocation of %zu", what, bytes,
                      offset, a->bytes);
    return 1;
}

static int matrices_fit(const struct product *p, const cublasLtMatmulAlgo_t *algo, char why[200])
{
    static const char *const names[] = {"matrix A", "matrix B", "matrix C", "matrix D"};
    const struct emu_layout *all[] = {&p->a, &p->b, &p->c, &p->d};
    const void *at[] = {p->A, p->B, p->C, p->D};
    int fp8 = is_fp8(p->a.type);
    for (int i = 0; i < 4; i++) {
        uint64_t pair = algo ? algo->data[i < 2 ? ALGO_ALIGN_AB : ALGO_ALIGN_CD] : 0;
        uint64_t align = i % 2 ? pair >> 32 : pair & 0xffffffffu;
        if (align < blas_type_size(all[i]->type))
            align = blas_type_size(all[i]->type);
        if (fp8 && align < 16)
            align = 16;
        if (i == 2 && p->beta == 0.0f && !p->beta_at && !p->C)
            continue; /* C is not looked at */
        if (!device_holds(at[i], layout_bytes(all[i]), names[i], why))
            return 0;
        if ((uintptr_t)at[i] % align)
            return refuse(why, "%s is at an address that is no multiple of %llu", names[i],
                          (unsigned long long)align);
    }
    if (p->C == p->D && p->C && (p->c.type != p->d.type || p->c.ld != p->d.ld))
        return refuse(why, "C and D are the same memory with different layouts");
    return 1;
}

static int vectors_fit(const struct product *p, char why[200])
{
    const struct emu_matmul *m = &p->desc;
    if (m->a_scale &&
        !device_holds(m->a_scale, m->a_mode ? 4 * p->d.rows : 4, "the scale of A", why))
        return 0;
    if (m->b_scale &&
        !device_holds(m->b_scale, m->b_mode ? 4 * p->d.cols : 4, "the scale of B", why))
        return 0;
    if (m->d_scale && !device_holds(m->d_scale, 4, "the scale of D", why))
        return 0;
    if (!(m->epilogue & CUBLASLT_EPILOGUE_BIAS))
        return 1;
    if (!p->bias)
        return refuse(why, "a bias epilogue without a bias");
    return device_holds(p->bias, p->d.rows * blas_type_size(p->bias_type), "the bias", why);
}

static int workspace_fits(const struct product *p, const cublasLtMatmulAlgo_t *algo, size_t given,
                          char why[200])
{
    if (algo && algo->data[ALGO_WORKSPACE] > given)
        return refuse(why, "a workspace of %zu bytes; the algorithm needs %llu", given,
                      (unsigned long long)algo->data[ALGO_WORKSPACE]);
    if (!p->workspace_bytes)
        return 1;
    if ((uintptr_t)p->workspace % 256)
        return refuse(why, "a workspace that is not 256-byte aligned");
    return device_holds(p->workspace, p->workspace_bytes, "the workspace", why);
}

static cublasStatus_t scalars(struct product *p, const void *alpha, const void *beta, char why[200])
{
    if (p->desc.pointer_mode == CUBLASLT_POINTER_MODE_DEVICE) {
        p->alpha_at = (const float *)alpha;
        p->beta_at = (const float *)beta;
        return device_holds(alpha, 4, "alpha", why) && device_holds(beta, 4, "beta", why)
                   ? CUBLAS_STATUS_SUCCESS
                   : CUBLAS_STATUS_INVALID_VALUE;
    }
    if (has_alpha_vector(&p->desc)) {
        p->alpha_vector = 1;
        p->alpha_at = (const float *)alpha;
        if (p->desc.pointer_mode == CUBLASLT_POINTER_MODE_ALPHA_DEVICE_VECTOR_BETA_HOST)
            p->beta = *(const float *)beta;
        return device_holds(alpha, 4 * p->d.rows, "the vector of alpha", why)
                   ? CUBLAS_STATUS_SUCCESS
                   : CUBLAS_STATUS_INVALID_VALUE;
    }
    if (is_device(alpha) || is_device(beta)) {
        refuse(why, "alpha or beta is in device memory, in host pointer mode");
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    p->alpha = *(const float *)alpha;
    p->beta = *(const float *)beta;
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t product_check(struct product *p, const void *alpha, const void *beta,
                                    const cublasLtMatmulAlgo_t *algo, size_t workspace_bytes,
                                    char why[200])
{
    struct question q = {&p->desc, &p->a, &p->b, &p->c, &p->d};
    if (!shapes_fit(&q, why))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!is_supported(&q, why))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (scalars(p, alpha, beta, why))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (algo &&
        (algo->data[ALGO_MAGIC] != magic_algo || algo->data[ALGO_SHAPE] != shape_hash(&q))) {
        refuse(why, "an algorithm that was chosen for another product");
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    p->bias = p->desc.bias;
    p->bias_type = bias_type_of(&q);
    p->workspace_bytes = algo ? algo->data[ALGO_WORKSPACE] : 0;
    return matrices_fit(p, algo, why) && vectors_fit(p, why) &&
                   workspace_fits(p, algo, workspace_bytes, why)
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *A, cublasLtMatrixLayout_t a, const void *B,
                              cublasLtMatrixLayout_t b, const void *beta, const void *C,
                              cublasLtMatrixLayout_t c, void *D, cublasLtMatrixLayout_t d,
                              const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream)
{
    entry call;
    char why[200] = "";
    if (call.error || !handle || handle->magic != HANDLE_MAGIC)
        return call.error && handle ? CUBLAS_STATUS_EXECUTION_FAILED
                                    : CUBLAS_STATUS_NOT_INITIALIZED;
    struct emu_stream *s = stream_of(stream);
    if (!desc || !alpha || !beta || !a || !b || !c || !d || !s)
        return CUBLAS_STATUS_INVALID_VALUE;
    struct product *p = (struct product *)operation_new(sizeof *p, product_run);
    p->desc = *desc;
    p->a = *a, p->b = *b, p->c = *c, p->d = *d;
    p->A = A, p->B = B, p->C = C, p->D = D;
    p->workspace = workspace;
    cublasStatus_t status = product_check(p, alpha, beta, algo, workspace_bytes, why);
    if (status) {
        report(EMU_BLAS, NULL, "cublasLtMatmul: %s", why);
        operation_free(&p->op);
        return status;
    }
    figures.products++;
    return stream_enqueue(s, &p->op) ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}

/* -------------------------------------------------------------------------------- the rest --- */

const char *cublasLtGetStatusName(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
        return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
        return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_ARCH_MISMATCH:
        return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CUBLAS_STATUS_MAPPING_ERROR:
        return "CUBLAS_STATUS_MAPPING_ERROR";
    case CUBLAS_STATUS_EXECUTION_FAILED:
        return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR:
        return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "CUBLAS_STATUS_NOT_SUPPORTED";
    }
    return "unknown status";
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    return cublasLtGetStatusName(status);
}

size_t cublasLtGetVersion(void)
{
    return 130000;
}

size_t cublasLtGetCudartVersion(void)
{
    return CUDART_VERSION;
}

int blaslt_leaks(int reporting)
{
    if (objects && reporting)
        report(EMU_LEAK, NULL, "%d cuBLASLt object(s)", objects);
    return objects;
}

void blaslt_open(void)
{
    objects = 0;
}
