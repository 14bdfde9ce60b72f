/* SPDX-License-Identifier: Apache-2.0
 *
 * The arithmetic of a cuBLASLt product: D = epilogue(alpha op(A) op(B) + beta C), column-major,
 * sums in F32. Both operands are unpacked to F32 panels whose inner loop is plain vector code;
 * scales of FP8 operands go in after the sum.
 */
#include "blaslt.h"
#include "emu_convert.h"

#include <assert.h>

constexpr size_t PANEL = 16, COLUMNS = 4; /* rows and columns that are summed at a time */

size_t blas_type_size(int type)
{
    switch (type) {
    case CUDA_R_32F:
        return 4;
    case CUDA_R_16F:
    case CUDA_R_16BF:
        return 2;
    case CUDA_R_8F_E4M3:
    case CUDA_R_8F_E5M2:
        return 1;
    }
    return 0;
}

size_t layout_bytes(const struct emu_layout *l)
{
    size_t one = (size_t)(l->cols - 1) * (size_t)l->ld + l->rows;
    size_t before = l->batch > 1 ? (size_t)(l->batch - 1) * (size_t)l->stride : 0;
    return (before + one) * blas_type_size(l->type);
}

/* ----------------------------------------------------------------------------- elements ------ */

static float element_load(const void *at, size_t i, int type)
{
    switch (type) {
    case CUDA_R_32F:
        return ((const float *)at)[i];
    case CUDA_R_16F:
        return emu_f32_of_f16(((const uint16_t *)at)[i]);
    case CUDA_R_16BF:
        return emu_f32_of_bf16(((const uint16_t *)at)[i]);
    }
    return emu_f32_of_fp8(((const uint8_t *)at)[i], type == CUDA_R_8F_E5M2);
}

static void element_store(void *at, size_t i, int type, float x)
{
    switch (type) {
    case CUDA_R_32F:
        ((float *)at)[i] = x;
        break;
    case CUDA_R_16F:
        ((uint16_t *)at)[i] = emu_f16_of(x);
        break;
    case CUDA_R_16BF:
        ((uint16_t *)at)[i] = emu_bf16_of(x);
        break;
    default:
        ((uint8_t *)at)[i] = emu_fp8_of(x, type == CUDA_R_8F_E5M2, 1);
    }
}

static float round_tf32(float x) /* 10 bits of mantissa, to nearest, ties away */
{
    return emu_f32_of((emu_u32_of(x) + 0x1000u) & ~0x1fffu);
}

static float fp8_values[2][256]; /* e4m3, e5m2 */

/* count elements from `at`, `step` apart, to F32, written `out_step` apart. */
static void unpack(float *out, size_t out_step, const void *at, size_t step, size_t count, int type)
{
    const float *values = fp8_values[type == CUDA_R_8F_E5M2];
    if (!fp8_values[0][1])
        for (int i = 0; i < 256; i++)
            for (int e5m2 = 0; e5m2 < 2; e5m2++)
                fp8_values[e5m2][i] = emu_f32_of_fp8((uint8_t)i, e5m2);
    if (type == CUDA_R_16BF)
        for (size_t i = 0; i < count; i++)
            out[i * out_step] = emu_f32_of_bf16(((const uint16_t *)at)[i * step]);
    else if (type == CUDA_R_32F)
        for (size_t i = 0; i < count; i++)
            out[i * out_step] = ((const float *)at)[i * step];
    else if (blas_type_size(type) == 1)
        for (size_t i = 0; i < count; i++)
            out[i * out_step] = values[((const uint8_t *)at)[i * step]];
    else
        for (size_t i = 0; i < count; i++)
            out[i * out_step] = element_load(at, i * step, type);
}

/* ------------------------------------------------------------------------------- panels ------ */

struct operand {
    const char *at; /* of this batch */
    int type, trans, tf32;
    size_t ld;
};

/* Row r of op(X) along k, where op(X) is [rows, k] as A is; B is taken as its transpose. */
static void operand_row(const struct operand *x, size_t r, size_t k, float *out, size_t out_step)
{
    size_t first = x->trans ? r * x->ld : r, step = x->trans ? 1 : x->ld;
    unpack(out, out_step, x->at + first * blas_type_size(x->type), step, k, x->type);
    if (x->tf32)
        for (size_t i = 0; i < k; i++)
            out[i * out_step] = round_tf32(out[i * out_step]);
}

typedef float lanes __attribute__((vector_size(PANEL * sizeof(float)), aligned(4)));

/* sum[c][i] = sum over k of panel[k][i] column[c][k] */
__attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"))) static void sum_panel(
    const float *panel, const float *const column[COLUMNS], size_t k, float sum[COLUMNS][PANEL])
{
    lanes s0 = {}, s1 = {}, s2 = {}, s3 = {};
    for (size_t i = 0; i < k; i++) {
        lanes a = *(const lanes *)(panel + i * PANEL);
        s0 += a * column[0][i];
        s1 += a * column[1][i];
        s2 += a * column[2][i];
        s3 += a * column[3][i];
    }
    *(lanes *)sum[0] = s0;
    *(lanes *)sum[1] = s1;
    *(lanes *)sum[2] = s2;
    *(lanes *)sum[3] = s3;
}

static float gelu_tanh(float x)
{
    return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
}

/* Element (row, col) of batch `b` from its sum. */
static void finish(const struct product *p, int b, size_t row, size_t col, float sum)
{
    const struct emu_matmul *m = &p->desc;
    size_t at_c = (size_t)b * (size_t)p->c.stride + col * (size_t)p->c.ld + row;
    size_t at_d = (size_t)b * (size_t)p->d.stride + col * (size_t)p->d.ld + row;
    if (m->a_scale)
        sum *= ((const float *)m->a_scale)[m->a_mode ? row : 0];
    if (m->b_scale)
        sum *= ((const float *)m->b_scale)[m->b_mode ? col : 0];
    float x = (p->alpha_vector ? p->alpha_at[row] : p->alpha) * sum;
    if (p->beta != 0.0f)
        x += p->beta * element_load(p->C, at_c, p->c.type);
    if (m->epilogue & CUBLASLT_EPILOGUE_BIAS)
        x += element_load(p->bias, (size_t)b * (size_t)m->bias_stride + row, p->bias_type);
    if (m->epilogue & CUBLASLT_EPILOGUE_RELU)
        x = x > 0.0f ? x : 0.0f;
    if (m->epilogue & CUBLASLT_EPILOGUE_GELU)
        x = gelu_tanh(x);
    if (m->d_scale && blas_type_size(p->d.type) == 1)
        x *= *(const float *)m->d_scale;
    element_store(p->D, at_d, p->d.type, x);
}

static void multiply(const struct product *p, int b)
{
    size_t m = p->d.rows, n = p->d.cols, k = p->desc.trans_a ? p->a.rows : p->a.cols;
    int tf32 = p->desc.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    struct operand A = {(const char *)p->A +
                            (size_t)b * (size_t)p->a.stride * blas_type_size(p->a.type),
                        p->a.type, p->desc.trans_a, tf32, (size_t)p->a.ld};
    struct operand B = {(const char *)p->B +
                            (size_t)b * (size_t)p->b.stride * blas_type_size(p->b.type),
                        p->b.type, !p->desc.trans_b, tf32, (size_t)p->b.ld};
    size_t padded = (n + COLUMNS - 1) / COLUMNS * COLUMNS;
    float *columns = (float *)calloc(padded * k, sizeof(float));
    float *panel = (float *)calloc(k * PANEL, sizeof(float));
    assert(columns && panel);
    for (size_t j = 0; j < n; j++)
        operand_row(&B, j, k, columns + j * k, 1);
    for (size_t i = 0; i < m; i += PANEL) {
        size_t rows = m - i < PANEL ? m - i : PANEL;
        for (size_t r = 0; r < rows; r++)
            operand_row(&A, i + r, k, panel + r, PANEL);
        for (size_t j = 0; j < n; j += COLUMNS) {
            float sum[COLUMNS][PANEL];
            const float *c = columns + j * k;
            const float *const column[COLUMNS] = {c, c + k, c + 2 * k, c + 3 * k};
            sum_panel(panel, column, k, sum);
            for (size_t x = 0; x < COLUMNS && j + x < n; x++)
                for (size_t r = 0; r < rows; r++)
                    finish(p, b, i + r, j + x, sum[x][r]);
        }
    }
    free(columns);
    free(panel);
}

/* -------------------------------------------------------------------------- the operation ---- */

/* Each column of each matrix; what lies between the columns is not touched. */
static cudaError_t touch_matrix(const void *at, const struct emu_layout *l, const char *who,
                                int write)
{
    size_t size = blas_type_size(l->type), column = l->rows * size;
    for (int b = 0; b < l->batch; b++)
        for (size_t j = 0; j < l->cols; j++) {
            char *x = (char *)at + ((size_t)b * (size_t)l->stride + j * (size_t)l->ld) * size;
            cudaError_t error =
                write ? shadow_host_write(x, column, who) : shadow_host_read(x, column, who);
            if (error)
                return error;
        }
    return cudaSuccess;
}

static cudaError_t touch_vector(const void *at, size_t bytes, const char *who)
{
    return at ? shadow_host_read(at, bytes, who) : cudaSuccess;
}

static cudaError_t touch(const struct product *p)
{
    const struct emu_matmul *m = &p->desc;
    cudaError_t e = touch_matrix(p->A, &p->a, "cublasLtMatmul, matrix A", 0);
    e = e ? e : touch_matrix(p->B, &p->b, "cublasLtMatmul, matrix B", 0);
    e = e || p->beta == 0.0f ? e : touch_matrix(p->C, &p->c, "cublasLtMatmul, matrix C", 0);
    e = e ? e
          : touch_vector(m->a_scale, m->a_mode ? p->d.rows * 4 : 4, "cublasLtMatmul, scale of A");
    e = e ? e
          : touch_vector(m->b_scale, m->b_mode ? p->d.cols * 4 : 4, "cublasLtMatmul, scale of B");
    e = e ? e : touch_vector(m->d_scale, 4, "cublasLtMatmul, scale of D");
    if (!e && (m->epilogue & CUBLASLT_EPILOGUE_BIAS))
        e = touch_vector(p->bias, p->d.rows * blas_type_size(p->bias_type), "cublasLtMatmul, bias");
    if (!e && p->workspace_bytes)
        e = shadow_host_write(p->workspace, p->workspace_bytes, "cublasLtMatmul, workspace");
    return e ? e : touch_matrix(p->D, &p->d, "cublasLtMatmul, matrix D", 1);
}

cudaError_t product_run(struct operation *self)
{
    struct product *p = (struct product *)self;
    if (p->alpha_at && !p->alpha_vector)
        p->alpha = *p->alpha_at;
    if (p->beta_at)
        p->beta = *p->beta_at;
    cudaError_t error = touch(p);
    if (error)
        return error;
    if (p->workspace_bytes)
        memset(p->workspace, 0xff, p->workspace_bytes);
    for (int b = 0; b < p->d.batch; b++)
        multiply(p, b);
    return cudaSuccess;
}
