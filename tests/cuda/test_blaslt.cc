/* SPDX-License-Identifier: Apache-2.0
 *
 * The emulated cuBLASLt: products against a definition in double precision, and the refusals that
 * the documentation describes.
 */
#include "cuda_check.h"

#include <cublasLt.h>

#include "emu_convert.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static size_t size_of(cudaDataType type)
{
    return type == CUDA_R_32F ? 4 : type == CUDA_R_16BF || type == CUDA_R_16F ? 2 : 1;
}

static double load(const void *at, size_t i, cudaDataType type)
{
    switch (type) {
    case CUDA_R_32F:
        return ((const float *)at)[i];
    case CUDA_R_16BF:
        return emu_f32_of_bf16(((const uint16_t *)at)[i]);
    case CUDA_R_16F:
        return emu_f32_of_f16(((const uint16_t *)at)[i]);
    default:
        return emu_f32_of_fp8(((const uint8_t *)at)[i], type == CUDA_R_8F_E5M2);
    }
}

static void store(void *at, size_t i, cudaDataType type, float x)
{
    if (type == CUDA_R_32F)
        ((float *)at)[i] = x;
    else if (type == CUDA_R_16BF)
        ((uint16_t *)at)[i] = emu_bf16_of(x);
    else if (type == CUDA_R_16F)
        ((uint16_t *)at)[i] = emu_f16_of(x);
    else
        ((uint8_t *)at)[i] = emu_fp8_of(x, type == CUDA_R_8F_E5M2, 1);
}

/* A product to try: D is m x n, sums of k. */
struct product {
    cudaDataType a, b, d;
    int m, n, k;
    cublasOperation_t ta, tb;
    cublasLtEpilogue_t epilogue;
    float alpha, beta;
    int batch, pad; /* pad: how much longer the leading dimensions are */
    int scale;      /* 0: none, 1: one for each matrix, 2: vectors */
};

struct operand {
    char *host, *device;
    size_t count;
    cublasLtMatrixLayout_t layout;
    int rows, cols, ld;
    cudaDataType type;
};

static float small_number(void)
{
    return (float)(rand() % 33 - 16) / 8.0f;
}

static struct operand operand_new(cudaDataType type, int rows, int cols, int pad, int batch)
{
    struct operand o = {};
    o.type = type, o.rows = rows, o.cols = cols, o.ld = rows + pad;
    int64_t stride = (int64_t)o.ld * cols;
    o.count = (size_t)stride * (size_t)batch;
    o.host = (char *)malloc(o.count * size_of(type));
    assert_non_null(o.host);
    for (size_t i = 0; i < o.count; i++)
        store(o.host, i, type, small_number());
    CUDA(cudaMalloc(&o.device, o.count * size_of(type)));
    CUDA(cudaMemcpy(o.device, o.host, o.count * size_of(type), cudaMemcpyHostToDevice));
    assert_int_equal(
        cublasLtMatrixLayoutCreate(&o.layout, type, (uint64_t)rows, (uint64_t)cols, o.ld), 0);
    int32_t count = batch;
    assert_int_equal(cublasLtMatrixLayoutSetAttribute(o.layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                                                      &count, sizeof count),
                     0);
    assert_int_equal(cublasLtMatrixLayoutSetAttribute(o.layout,
                                                      CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                                      &stride, sizeof stride),
                     0);
    return o;
}

static void operand_free(struct operand *o)
{
    free(o->host);
    CUDA(cudaFree(o->device));
    cublasLtMatrixLayoutDestroy(o->layout);
}

static double element(const struct operand *o, int batch, int row, int col)
{
    return load(o->host,
                (size_t)batch * (size_t)o->ld * (size_t)o->cols + (size_t)col * (size_t)o->ld +
                    (size_t)row,
                o->type);
}

struct trial {
    struct product p;
    cublasLtHandle_t lt;
    cublasLtMatmulDesc_t desc;
    struct operand a, b, d, bias, a_scale, b_scale;
    char *workspace;
};

static void set_pointer(struct trial *t, cublasLtMatmulDescAttributes_t attr, const void *at)
{
    assert_int_equal(cublasLtMatmulDescSetAttribute(t->desc, attr, &at, sizeof at), 0);
}

static void set_int(struct trial *t, cublasLtMatmulDescAttributes_t attr, int32_t value)
{
    assert_int_equal(cublasLtMatmulDescSetAttribute(t->desc, attr, &value, sizeof value), 0);
}

static void trial_scales(struct trial *t)
{
    int vector = t->p.scale == 2;
    t->a_scale = operand_new(CUDA_R_32F, vector ? t->p.m : 1, 1, 0, 1);
    t->b_scale = operand_new(CUDA_R_32F, vector ? t->p.n : 1, 1, 0, 1);
    if (!t->p.scale)
        return;
    set_pointer(t, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, t->a_scale.device);
    set_pointer(t, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, t->b_scale.device);
    if (vector) {
        set_int(t, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
        set_int(t, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
    }
}

static void trial_open(struct trial *t, const struct product *p)
{
    *t = {};
    t->p = *p;
    int fp8 = size_of(p->a) == 1;
    cudaDataType bias = fp8 && p->d == CUDA_R_32F ? CUDA_R_16BF : p->d;
    assert_int_equal(cublasLtCreate(&t->lt), 0);
    assert_int_equal(cublasLtMatmulDescCreate(&t->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), 0);
    t->a = operand_new(p->a, p->ta ? p->k : p->m, p->ta ? p->m : p->k, p->pad, p->batch);
    t->b = operand_new(p->b, p->tb ? p->n : p->k, p->tb ? p->k : p->n, p->pad, p->batch);
    t->d = operand_new(p->d, p->m, p->n, p->pad, p->batch);
    t->bias = operand_new(bias, p->m, 1, 0, 1);
    CUDA(cudaMalloc(&t->workspace, 1 << 16));
    set_int(t, CUBLASLT_MATMUL_DESC_TRANSA, p->ta);
    set_int(t, CUBLASLT_MATMUL_DESC_TRANSB, p->tb);
    uint32_t epilogue = p->epilogue;
    assert_int_equal(cublasLtMatmulDescSetAttribute(t->desc, CUBLASLT_MATMUL_DESC_EPILOGUE,
                                                    &epilogue, sizeof epilogue),
                     0);
    if (p->epilogue & CUBLASLT_EPILOGUE_BIAS)
        set_pointer(t, CUBLASLT_MATMUL_DESC_BIAS_POINTER, t->bias.device);
    trial_scales(t);
}

/* The algorithm for it, with 64 KiB of workspace. */
static cublasStatus_t trial_heuristic(struct trial *t, cublasLtMatmulHeuristicResult_t *chosen)
{
    cublasLtMatmulPreference_t pref;
    uint64_t bytes = 1 << 16;
    uint32_t align = 16;
    int count = 0;
    cublasLtMatmulPreferenceCreate(&pref);
    cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes,
                                         sizeof bytes);
    for (int i = 0; i < 4; i++)
        cublasLtMatmulPreferenceSetAttribute(
            pref,
            (cublasLtMatmulPreferenceAttributes_t)(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES + i),
            &align, sizeof align);
    cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(t->lt, t->desc, t->a.layout, t->b.layout, t->d.layout,
                                       t->d.layout, pref, 1, chosen, &count);
    cublasLtMatmulPreferenceDestroy(pref);
    assert_int_equal(count, status == CUBLAS_STATUS_SUCCESS);
    return status;
}

static cublasStatus_t trial_run_at(struct trial *t, size_t a_offset)
{
    cublasLtMatmulHeuristicResult_t chosen;
    cublasStatus_t status = trial_heuristic(t, &chosen);
    if (status)
        return status;
    return cublasLtMatmul(t->lt, t->desc, &t->p.alpha, t->a.device + a_offset, t->a.layout,
                          t->b.device, t->b.layout, &t->p.beta, t->d.device, t->d.layout,
                          t->d.device, t->d.layout, &chosen.algo, t->workspace, 1 << 16, 0);
}

static void trial_close(struct trial *t)
{
    struct operand *all[] = {&t->a, &t->b, &t->d, &t->bias, &t->a_scale, &t->b_scale};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        operand_free(all[i]);
    CUDA(cudaFree(t->workspace));
    cublasLtMatmulDescDestroy(t->desc);
    cublasLtDestroy(t->lt);
}

static double expected(const struct trial *t, int batch, int row, int col)
{
    const struct product *p = &t->p;
    double sum = 0;
    for (int k = 0; k < p->k; k++)
        sum += element(&t->a, batch, p->ta ? k : row, p->ta ? row : k) *
               element(&t->b, batch, p->tb ? col : k, p->tb ? k : col);
    if (p->scale)
        sum *= element(&t->a_scale, 0, p->scale == 2 ? row : 0, 0) *
               element(&t->b_scale, 0, p->scale == 2 ? col : 0, 0);
    sum *= (double)p->alpha;
    sum += (double)p->beta * element(&t->d, batch, row, col);
    if (p->epilogue & CUBLASLT_EPILOGUE_BIAS)
        sum += element(&t->bias, 0, row, 0);
    if (p->epilogue & CUBLASLT_EPILOGUE_RELU)
        sum = sum > 0 ? sum : 0;
    if (p->epilogue & CUBLASLT_EPILOGUE_GELU)
        sum =
            0.5 * sum * (1 + tanh(sqrt(2 / 3.14159265358979) * (sum + 0.044715 * sum * sum * sum)));
    return sum;
}

static void check_product(const struct product *p)
{
    struct trial t;
    trial_open(&t, p);
    assert_int_equal(trial_run_at(&t, 0), CUBLAS_STATUS_SUCCESS);
    struct operand got = t.d;
    got.host = (char *)malloc(t.d.count * size_of(p->d));
    CUDA(cudaMemcpy(got.host, t.d.device, t.d.count * size_of(p->d), cudaMemcpyDeviceToHost));
    double ulp = p->d == CUDA_R_32F ? 1e-5 : p->d == CUDA_R_16BF ? 1.0 / 256 : 1.0 / 1024;
    for (int b = 0; b < p->batch; b++)
        for (int i = 0; i < p->m; i++)
            for (int j = 0; j < p->n; j++) {
                double want = expected(&t, b, i, j), have = element(&got, b, i, j);
                assert_true(fabs(want - have) <= ulp * (1 + fabs(want)));
            }
    free(got.host);
    trial_close(&t);
}

static const cublasOperation_t N = CUBLAS_OP_N, T = CUBLAS_OP_T;

static void test_products_are_the_definition(void **)
{
    const cudaDataType f32 = CUDA_R_32F, bf = CUDA_R_16BF, half = CUDA_R_16F;
    const cublasLtEpilogue_t none = CUBLASLT_EPILOGUE_DEFAULT;
    const struct product products[] = {
        {f32, f32, f32, 5, 7, 9, N, N, none, 1, 0, 1, 0, 0},
        {f32, f32, f32, 17, 33, 1, T, N, none, 0.5f, 2, 1, 3, 0},
        {f32, f32, f32, 16, 4, 20, N, T, CUBLASLT_EPILOGUE_BIAS, 1, 1, 3, 1, 0},
        {bf, bf, bf, 40, 3, 64, T, N, CUBLASLT_EPILOGUE_GELU_BIAS, 1, 0, 1, 0, 0},
        {bf, bf, f32, 31, 1, 77, T, N, CUBLASLT_EPILOGUE_RELU, 1, 1, 1, 5, 0},
        {bf, bf, f32, 20, 20, 20, T, T, CUBLASLT_EPILOGUE_BIAS, 2, 0, 2, 2, 0},
        {half, half, half, 20, 20, 20, T, N, CUBLASLT_EPILOGUE_RELU_BIAS, 1, 0, 1, 0, 0},
        {half, half, f32, 20, 20, 20, N, N, CUBLASLT_EPILOGUE_GELU, 1, 0, 1, 0, 0},
    };
    device_open(80);
    for (size_t i = 0; i < sizeof products / sizeof products[0]; i++)
        check_product(&products[i]);
    device_close();
}

static void test_fp8_products_are_the_definition(void **)
{
    const cudaDataType e4 = CUDA_R_8F_E4M3, e5 = CUDA_R_8F_E5M2, bf = CUDA_R_16BF, f32 = CUDA_R_32F;
    const cublasLtEpilogue_t none = CUBLASLT_EPILOGUE_DEFAULT;
    const struct product products[] = {
        {e4, e4, bf, 32, 7, 48, T, N, none, 1, 0, 1, 0, 0},
        {e4, e4, f32, 16, 1, 16, T, N, CUBLASLT_EPILOGUE_BIAS, 1, 1, 1, 16, 1},
        {e4, e5, bf, 64, 19, 128, T, N, CUBLASLT_EPILOGUE_BIAS, 2, 0, 2, 0, 1},
        {e5, e4, f32, 48, 5, 32, T, N, none, 1, 0, 1, 0, 1},
    };
    const int architectures[] = {89, 90, 100, 120};
    for (int a = 0; a < 4; a++) {
        device_open(architectures[a]);
        for (size_t i = 0; i < sizeof products / sizeof products[0]; i++)
            check_product(&products[i]);
        device_close();
    }
    const struct product rows = {e4, e4, bf, 32, 21, 64, T, N, none, 1, 0, 1, 0, 2};
    device_open(90);
    check_product(&rows);
    device_close();
}

/* No algorithm, and no product without one. */
static void refused(int architecture, const struct product *p)
{
    cublasLtMatmulHeuristicResult_t chosen;
    struct trial t;
    device_open(architecture);
    trial_open(&t, p);
    assert_int_equal(trial_heuristic(&t, &chosen), CUBLAS_STATUS_NOT_SUPPORTED);
    assert_int_equal(emu_reports(), 0);
    assert_int_equal(cublasLtMatmul(t.lt, t.desc, &p->alpha, t.a.device, t.a.layout, t.b.device,
                                    t.b.layout, &p->beta, t.d.device, t.d.layout, t.d.device,
                                    t.d.layout, NULL, NULL, 0, 0),
                     CUBLAS_STATUS_NOT_SUPPORTED);
    assert_int_equal(emu_reported(EMU_BLAS), 1);
    emu_forget_reports();
    trial_close(&t);
    device_close();
}

static void test_what_the_documentation_does_not_list_has_no_algorithm(void **)
{
    const cudaDataType e4 = CUDA_R_8F_E4M3, e5 = CUDA_R_8F_E5M2, bf = CUDA_R_16BF,
                       half = CUDA_R_16F, f32 = CUDA_R_32F;
    const cublasLtEpilogue_t none = CUBLASLT_EPILOGUE_DEFAULT;
    const struct {
        int architecture;
        struct product p;
    } all[] = {
        {80, {e4, e4, bf, 32, 32, 32, T, N, none, 1, 0, 1, 0, 0}},
        {86, {e4, e4, bf, 32, 32, 32, T, N, none, 1, 0, 1, 0, 1}},
        {90, {e5, e5, bf, 32, 32, 32, T, N, none, 1, 0, 1, 0, 0}},
        {90, {e4, e4, bf, 32, 32, 32, N, N, none, 1, 0, 1, 0, 0}},
        {89, {e4, e4, bf, 32, 32, 32, T, T, none, 1, 0, 1, 0, 0}},
        {89, {e4, e4, bf, 32, 32, 24, T, N, none, 1, 0, 1, 0, 0}},
        {89, {e4, e4, bf, 24, 32, 32, T, N, none, 1, 0, 1, 0, 0}},
        {89, {e4, e4, bf, 32, 32, 32, T, N, none, 1, 0, 1, 8, 0}},
        {89, {e4, e4, bf, 32, 32, 32, T, N, none, 1, 0, 1, 0, 2}},
        {100, {e4, e4, bf, 32, 32, 32, T, N, none, 1, 0, 1, 0, 2}},
        {90, {e4, bf, bf, 32, 32, 32, T, N, none, 1, 0, 1, 0, 0}},
        {90, {bf, half, bf, 32, 32, 32, T, N, none, 1, 0, 1, 0, 0}},
        {90, {f32, f32, bf, 32, 32, 32, T, N, none, 1, 0, 1, 0, 0}},
        {90, {bf, bf, half, 32, 32, 32, T, N, none, 1, 0, 1, 0, 0}},
        {90, {bf, bf, bf, 32, 32, 32, T, N, none, 1, 0, 1, 0, 1}},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        refused(all[i].architecture, &all[i].p);
}

static const struct product fine = {
    CUDA_R_8F_E4M3, CUDA_R_8F_E4M3,         CUDA_R_16BF, 32, 32, 32, CUBLAS_OP_T,
    CUBLAS_OP_N,    CUBLASLT_EPILOGUE_BIAS, 1,           0,  1,  0,  1};

static void expect_invalid(struct trial *t, size_t a_offset, const char *why)
{
    assert_int_equal(trial_run_at(t, a_offset), CUBLAS_STATUS_INVALID_VALUE);
    assert_int_equal(emu_reported(EMU_BLAS), 1);
    assert_non_null(strstr(emu_report_text(0), why));
    emu_forget_reports();
}

static void test_wrong_arguments_are_refused(void **)
{
    struct trial t;
    float host_scale = 1;
    device_open(89);
    trial_open(&t, &fine);
    expect_invalid(&t, 8, "offset 8"); /* and past its end */
    set_pointer(&t, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &host_scale);
    expect_invalid(&t, 0, "the scale of A is in host memory");
    set_pointer(&t, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, t.a_scale.device);
    set_pointer(&t, CUBLASLT_MATMUL_DESC_BIAS_POINTER, t.bias.device + 8);
    expect_invalid(&t, 0, "the bias needs");
    set_pointer(&t, CUBLASLT_MATMUL_DESC_BIAS_POINTER, t.bias.device);
    trial_close(&t);

    trial_open(&t, &fine); /* a smaller product in the middle of the same matrices */
    cublasLtMatrixLayoutDestroy(t.a.layout);
    assert_int_equal(cublasLtMatrixLayoutCreate(&t.a.layout, CUDA_R_8F_E4M3, 16, 32, 32), 0);
    cublasLtMatrixLayoutDestroy(t.b.layout);
    assert_int_equal(cublasLtMatrixLayoutCreate(&t.b.layout, CUDA_R_8F_E4M3, 16, 32, 32), 0);
    expect_invalid(&t, 8, "no multiple of 16");
    assert_int_equal(trial_run_at(&t, 16), CUBLAS_STATUS_SUCCESS);
    trial_close(&t);
    device_close();
}

static void test_workspace_has_to_be_what_the_algorithm_asked_for(void **)
{
    cublasLtMatmulHeuristicResult_t chosen;
    struct trial t;
    device_open(90);
    trial_open(&t, &fine);
    assert_int_equal(trial_heuristic(&t, &chosen), CUBLAS_STATUS_SUCCESS);
    assert_true(chosen.workspaceSize > 0);
    const struct {
        char *at;
        size_t bytes;
    } wrong[] = {{t.workspace, chosen.workspaceSize - 1},
                 {t.workspace + 16, chosen.workspaceSize},
                 {t.workspace + 0xff00, chosen.workspaceSize},
                 {t.a.host, chosen.workspaceSize}};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(cublasLtMatmul(t.lt, t.desc, &fine.alpha, t.a.device, t.a.layout,
                                        t.b.device, t.b.layout, &fine.beta, t.d.device, t.d.layout,
                                        t.d.device, t.d.layout, &chosen.algo, wrong[i].at,
                                        wrong[i].bytes, 0),
                         CUBLAS_STATUS_INVALID_VALUE);
        assert_int_equal(emu_reported(EMU_BLAS), i + 1);
    }
    emu_forget_reports();
    trial_close(&t);
    device_close();
}

/* D = alpha[row] (A B) + C, where the device is one that does it; else there is no algorithm. */
static void test_vectors_of_alpha(void **)
{
    const struct product p = {
        CUDA_R_16BF, CUDA_R_16BF, CUDA_R_32F, 20, 6, 40, T, N, CUBLASLT_EPILOGUE_DEFAULT,
        1,           1,           1,          0,  0};
    for (int takes = 0; takes < 2; takes++) {
        cublasLtMatmulHeuristicResult_t chosen;
        struct emu_options options = {};
        struct trial t;
        options.alpha_vectors = takes;
        emu_open(&options);
        trial_open(&t, &p);
        set_int(&t, CUBLASLT_MATMUL_DESC_POINTER_MODE,
                CUBLASLT_POINTER_MODE_ALPHA_DEVICE_VECTOR_BETA_HOST);
        cublasStatus_t status = trial_heuristic(&t, &chosen);
        assert_int_equal(status, takes ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED);
        if (takes) {
            struct operand got = t.d;
            got.host = (char *)malloc(t.d.count * 4);
            status = cublasLtMatmul(t.lt, t.desc, t.bias.device, t.a.device, t.a.layout, t.b.device,
                                    t.b.layout, &p.beta, t.d.device, t.d.layout, t.d.device,
                                    t.d.layout, &chosen.algo, t.workspace, 1 << 16, 0);
            assert_int_equal(status, CUBLAS_STATUS_SUCCESS);
            CUDA(cudaMemcpy(got.host, t.d.device, t.d.count * 4, cudaMemcpyDeviceToHost));
            for (int i = 0; i < p.m * p.n; i++) {
                int row = i % p.m, col = i / p.m;
                double c = element(&t.d, 0, row, col);
                double want = (expected(&t, 0, row, col) - c) * element(&t.bias, 0, row, 0) + c;
                assert_true(fabs(want - element(&got, 0, row, col)) <= 1e-5 * (1 + fabs(want)));
            }
            free(got.host);
        }
        trial_close(&t);
        device_close();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products_are_the_definition),
        cmocka_unit_test(test_fp8_products_are_the_definition),
        cmocka_unit_test(test_what_the_documentation_does_not_list_has_no_algorithm),
        cmocka_unit_test(test_wrong_arguments_are_refused),
        cmocka_unit_test(test_vectors_of_alpha),
        cmocka_unit_test(test_workspace_has_to_be_what_the_algorithm_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
