/* SPDX-License-Identifier: Apache-2.0
 *
 * The emulation against definitions of its own: which element each lane holds, products of small
 * integers, exchanges, conversions of every code, the order of streams.
 */
#include "cuda_check.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "kernels/cuda/ptx.cuh"

/* --------------------------------------------------------------------------- the places ------ */

static __global__ void write_place(int *out, int stride)
{
    int block = (int)(blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z));
    int thread = (int)(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z));
    out[block * stride + thread] = block * 10000 + thread;
}

static void test_each_thread_of_each_block_runs_once(void **)
{
    int *at = NULL, host[24 * 30];
    device_open(80);
    CUDA(cudaMalloc(&at, sizeof host));
    cudaLaunchConfig_t config = {dim3(2, 3, 4), dim3(5, 2, 3), 0, 0, NULL, 0};
    CUDA(cudaLaunchKernelEx(&config, write_place, at, 30));
    CUDA(cudaMemcpy(host, at, sizeof host, cudaMemcpyDeviceToHost));
    for (int b = 0; b < 24; b++)
        for (int t = 0; t < 30; t++)
            assert_int_equal(host[b * 30 + t], b * 10000 + t);
    CUDA(cudaFree(at));
    device_close();
}

/* -------------------------------------------------------------- barriers and exchanges ------- */

/* Sums 256 floats of each block by warps, then over the warps through shared memory. */
static __global__ void block_sum(float *out, const float *x)
{
    __shared__ float warps[8];
    int i = (int)threadIdx.x;
    float sum = x[blockIdx.x * 256 + i];
    for (int d = 16; d; d /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, d);
    if (i % 32 == 0)
        warps[i / 32] = sum;
    __syncthreads();
    if (i == 0) {
        float total = 0;
        for (int w = 0; w < 8; w++)
            total += warps[w];
        out[blockIdx.x] = total;
    }
}

static void test_barriers_and_shuffles_add_up(void **)
{
    enum { BLOCKS = 7 };
    float host[BLOCKS * 256], sums[BLOCKS], *x = NULL, *out = NULL;
    device_open(89);
    for (int i = 0; i < BLOCKS * 256; i++)
        host[i] = (float)(i % 97);
    CUDA(cudaMalloc(&x, sizeof host));
    CUDA(cudaMalloc(&out, sizeof sums));
    CUDA(cudaMemcpy(x, host, sizeof host, cudaMemcpyHostToDevice));
    for (unsigned seed = 1; seed < 20; seed++) {
        emu_seed(seed);
        cudaLaunchConfig_t config = {dim3(BLOCKS), dim3(256), 0, 0, NULL, 0};
        CUDA(cudaLaunchKernelEx(&config, block_sum, out, x));
        CUDA(cudaMemcpy(sums, out, sizeof sums, cudaMemcpyDeviceToHost));
        for (int b = 0; b < BLOCKS; b++) {
            int want = 0;
            for (int i = 0; i < 256; i++)
                want += (b * 256 + i) % 97;
            assert_int_equal((int)sums[b], want);
        }
    }
    CUDA(cudaFree(x));
    CUDA(cudaFree(out));
    device_close();
}

enum { EXCHANGES = 10 };
static __global__ void exchange(unsigned *out)
{
    unsigned l = threadIdx.x, all = 0xffffffffu;
    unsigned *o = out + l * EXCHANGES;
    o[0] = __shfl_sync(all, l, 5);
    o[1] = __shfl_sync(all, l, (int)l + 3, 8);
    o[2] = __shfl_xor_sync(all, l, 9);
    o[3] = __shfl_down_sync(all, l, 3);
    o[4] = __shfl_down_sync(all, l, 3, 8);
    o[5] = __shfl_up_sync(all, l, 2, 16);
    o[6] = __ballot_sync(all, l % 3 == 0);
    o[7] = (unsigned)__any_sync(all, l == 31) + 2 * (unsigned)__all_sync(all, l < 32) +
           4 * (unsigned)__any_sync(all, l == 40) + 8 * (unsigned)__all_sync(all, l != 7);
    o[8] = l < 16 ? __shfl_sync(0x0000ffffu, l, 3) : __shfl_sync(0xffff0000u, l, 19);
    o[9] = __float_as_uint(__shfl_xor_sync(all, (float)l, 1));
}

static void test_exchanges_give_the_lane_that_is_documented(void **)
{
    unsigned host[32 * EXCHANGES], *out = NULL;
    device_open(80);
    CUDA(cudaMalloc(&out, sizeof host));
    cudaLaunchConfig_t config = {dim3(1), dim3(32), 0, 0, NULL, 0};
    CUDA(cudaLaunchKernelEx(&config, exchange, out));
    CUDA(cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost));
    for (unsigned l = 0; l < 32; l++) {
        const unsigned *o = host + l * EXCHANGES;
        unsigned group = l / 8 * 8, member = l % 8;
        float other = (float)(l % 2 ? l - 1 : l + 1);
        assert_int_equal(o[0], 5);
        assert_int_equal(o[1], group + (l + 3) % 8);
        assert_int_equal(o[2], l ^ 9);
        assert_int_equal(o[3], l + 3 < 32 ? l + 3 : l);
        assert_int_equal(o[4], member + 3 < 8 ? l + 3 : l);
        assert_int_equal(o[5], l % 16 >= 2 ? l - 2 : l);
        assert_int_equal(o[6], 0x49249249u);
        assert_int_equal(o[7], 1 + 2);
        assert_int_equal(o[8], l < 16 ? 3 : 19);
        assert_memory_equal(&o[9], &other, sizeof other);
    }
    CUDA(cudaFree(out));
    device_close();
}

/* ------------------------------------------------------------------------------ matrices ----- */

/* The PTX ISA's formulas for mma.m16n8k16, spelled as they stand there: element i of a fragment. */
static int a_row(int lane, int i)
{
    return (i >= 0 && i < 2) || (i >= 4 && i < 6) ? lane >> 2 : (lane >> 2) + 8;
}
static int a_col(int lane, int i)
{
    return i < 4 ? (lane % 4) * 2 + (i & 1) : (lane % 4) * 2 + (i & 1) + 8;
}
static int b_row(int lane, int i)
{
    return i < 2 ? (lane % 4) * 2 + (i & 1) : (lane % 4) * 2 + (i & 1) + 8;
}
static int b_col(int lane)
{
    return lane >> 2;
}
static int d_row(int lane, int i)
{
    return i < 2 ? lane >> 2 : (lane >> 2) + 8;
}
static int d_col(int lane, int i)
{
    return (lane % 4) * 2 + (i & 1);
}

struct fragments {
    uint32_t a[4], b[2];
    float d[4];
};

static __global__ void multiply(struct fragments *f, int f16)
{
    struct fragments mine = f[threadIdx.x];
    if (f16)
        mma_f16_16816(mine.d, mine.a, mine.b);
    else
        mma_bf16_16816(mine.d, mine.a, mine.b);
    f[threadIdx.x] = mine;
}

static void put16(uint32_t *pair, int high, float value, int f16)
{
    uint16_t bits = f16 ? __float2half_rn(value).__x : __float2bfloat16_rn(value).__x;
    *pair |= (uint32_t)bits << (16 * high);
}

static void multiply_matrices(int f16)
{
    struct fragments host[32] = {}, *at = NULL;
    int a[16][16], b[16][8], c[16][8];
    for (int i = 0; i < 256; i++)
        a[i / 16][i % 16] = (i * 7 + i / 16) % 23 - 11;
    for (int i = 0; i < 128; i++)
        b[i / 8][i % 8] = (i * 5 + 3) % 19 - 9, c[i / 8][i % 8] = i - 40;
    for (int l = 0; l < 32; l++) {
        for (int i = 0; i < 8; i++)
            put16(&host[l].a[i / 2], i % 2, (float)a[a_row(l, i)][a_col(l, i)], f16);
        for (int i = 0; i < 4; i++)
            put16(&host[l].b[i / 2], i % 2, (float)b[b_row(l, i)][b_col(l)], f16);
        for (int i = 0; i < 4; i++)
            host[l].d[i] = (float)c[d_row(l, i)][d_col(l, i)];
    }
    CUDA(cudaMalloc(&at, sizeof host));
    CUDA(cudaMemcpy(at, host, sizeof host, cudaMemcpyHostToDevice));
    cudaLaunchConfig_t config = {dim3(1), dim3(32), 0, 0, NULL, 0};
    CUDA(cudaLaunchKernelEx(&config, multiply, at, f16));
    CUDA(cudaMemcpy(host, at, sizeof host, cudaMemcpyDeviceToHost));
    for (int l = 0; l < 32; l++)
        for (int i = 0; i < 4; i++) {
            int row = d_row(l, i), col = d_col(l, i), want = c[row][col];
            for (int k = 0; k < 16; k++)
                want += a[row][k] * b[k][col];
            assert_int_equal((int)host[l].d[i], want);
        }
    CUDA(cudaFree(at));
}

/* The same of mma.m16n8k32 with 8-bit types; d is as above. */
static int a_row_8bit(int lane, int i)
{
    return (i >= 0 && i < 4) || (i >= 8 && i < 12) ? lane >> 2 : (lane >> 2) + 8;
}
static int a_col_8bit(int lane, int i)
{
    return i < 8 ? (lane % 4) * 4 + (i & 3) : (lane % 4) * 4 + (i & 3) + 16;
}
static int b_row_8bit(int lane, int i)
{
    return i < 4 ? (lane % 4) * 4 + (i & 3) : (lane % 4) * 4 + (i & 3) + 16;
}

static __global__ void multiply_8bit(struct fragments *f)
{
    struct fragments mine = f[threadIdx.x];
    mma_e4m3_16832(mine.d, mine.a, mine.b);
    f[threadIdx.x] = mine;
}

static void put8(uint32_t *four, int at, float value)
{
    *four |= (uint32_t)__nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3) << (8 * at);
}

static void multiply_8bit_matrices(void)
{
    struct fragments host[32] = {}, *at = NULL;
    int a[16][32], b[32][8];
    for (int i = 0; i < 512; i++)
        a[i / 32][i % 32] = (i * 7 + i / 32) % 23 - 11;
    for (int i = 0; i < 256; i++)
        b[i / 8][i % 8] = (i * 5 + i / 8) % 19 - 9;
    for (int l = 0; l < 32; l++) {
        for (int i = 0; i < 16; i++)
            put8(&host[l].a[i / 4], i % 4, (float)a[a_row_8bit(l, i)][a_col_8bit(l, i)]);
        for (int i = 0; i < 8; i++)
            put8(&host[l].b[i / 4], i % 4, (float)b[b_row_8bit(l, i)][b_col(l)]);
        for (int i = 0; i < 4; i++)
            host[l].d[i] = (float)(l - i);
    }
    CUDA(cudaMalloc(&at, sizeof host));
    CUDA(cudaMemcpy(at, host, sizeof host, cudaMemcpyHostToDevice));
    cudaLaunchConfig_t config = {dim3(1), dim3(32), 0, 0, NULL, 0};
    CUDA(cudaLaunchKernelEx(&config, multiply_8bit, at));
    CUDA(cudaMemcpy(host, at, sizeof host, cudaMemcpyDeviceToHost));
    for (int l = 0; l < 32; l++)
        for (int i = 0; i < 4; i++) {
            int want = l - i;
            for (int k = 0; k < 32; k++)
                want += a[d_row(l, i)][k] * b[k][d_col(l, i)];
            assert_int_equal((int)host[l].d[i], want);
        }
    CUDA(cudaFree(at));
}

static void test_mma_multiplies_by_the_documented_layout(void **)
{
    device_open(80);
    multiply_matrices(0);
    multiply_matrices(1);
    device_close();
    device_open(89);
    multiply_8bit_matrices();
    device_close();
}

/* Four 8x8 matrices in shared memory, element (row, column) of matrix m is 1000 m + 10 row +
 * column; each at a row stride of its own. */
static __global__ void load_matrices(uint32_t *out)
{
    uint16_t *shared = (uint16_t *)dynamic_shared;
    uint32_t r[4];
    int l = (int)threadIdx.x;
    for (int i = l; i < 256; i += 32) {
        int m = i / 64, row = i / 8 % 8, col = i % 8;
        shared[(m * 8 + row) * 16 + col] = (uint16_t)(1000 * m + 10 * row + col);
    }
    __syncthreads();
    const void *mine = shared + l * 16;
    ldmatrix_x4(r, mine);
    for (int i = 0; i < 4; i++)
        out[(0 + i) * 32 + l] = r[i];
    ldmatrix_x4_trans(r, mine);
    for (int i = 0; i < 4; i++)
        out[(4 + i) * 32 + l] = r[i];
    ldmatrix_x2(r, mine);
    for (int i = 0; i < 2; i++)
        out[(8 + i) * 32 + l] = r[i];
    ldmatrix_x2_trans(r, mine);
    for (int i = 0; i < 2; i++)
        out[(10 + i) * 32 + l] = r[i];
}

static void test_ldmatrix_gives_the_documented_elements(void **)
{
    uint32_t host[12 * 32], *out = NULL;
    device_open(80);
    CUDA(cudaMalloc(&out, sizeof host));
    cudaLaunchConfig_t config = {dim3(1), dim3(32), 32 * 32, 0, NULL, 0};
    CUDA(cudaLaunchKernelEx(&config, load_matrices, out));
    CUDA(cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 12; i++) {
        int m = i < 8 ? i % 4 : i % 2, trans = (i >= 4 && i < 8) || i >= 10;
        for (int l = 0; l < 32; l++) {
            unsigned row = (unsigned)l / 4, col = 2 * ((unsigned)l % 4);
            unsigned low = 1000u * (unsigned)m + (trans ? 10 * col + row : 10 * row + col);
            unsigned high = low + (trans ? 10 : 1);
            assert_int_equal(host[i * 32 + l], low | high << 16);
        }
    }
    CUDA(cudaFree(out));
    device_close();
}

/* ---------------------------------------------------------- copies, atomics, small words ----- */

static __global__ void copy_in_groups(float *out, const float *in)
{
    float *tile = (float *)dynamic_shared;
    int i = (int)threadIdx.x;
    cp_async_16(tile + 4 * i, in + 4 * i, i % 2 == 0);
    cp_async_commit();
    cp_async_4(tile + 128 + i, in + 128 + i, true);
    cp_async_commit();
    cp_async_wait<1>();
    for (int j = 0; j < 4; j++)
        out[4 * i + j] = tile[4 * i + j];
    cp_async_wait<0>();
    out[128 + i] = tile[128 + i];
}

static void test_asynchronous_copies_and_zeros(void **)
{
    float host[160], got[160], *in = NULL, *out = NULL;
    device_open(80);
    for (int i = 0; i < 160; i++)
        host[i] = (float)(i + 1);
    CUDA(cudaMalloc(&in, sizeof host));
    CUDA(cudaMalloc(&out, sizeof host));
    CUDA(cudaMemcpy(in, host, sizeof host, cudaMemcpyHostToDevice));
    cudaLaunchConfig_t config = {dim3(1), dim3(32), sizeof host, 0, NULL, 0};
    CUDA(cudaLaunchKernelEx(&config, copy_in_groups, out, (const float *)in));
    CUDA(cudaMemcpy(got, out, sizeof got, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 160; i++)
        assert_int_equal((int)got[i], i < 128 && i / 4 % 2 ? 0 : i + 1);
    CUDA(cudaFree(in));
    CUDA(cudaFree(out));
    device_close();
}

static __global__ void count_atomically(int *out)
{
    int i = (int)(blockIdx.x * 64 + threadIdx.x);
    atomicAdd(&out[0], i);
    atomicAdd((float *)&out[1], 0.5f);
    atomicMax(&out[2], i - 300);
    atomicOr((unsigned *)&out[3], 1u << (i % 20));
    atomicMin(&out[4], -i);
    for (int seen = atomicAdd(&out[5], 0);;) { /* one more, by comparing */
        int was = atomicCAS(&out[5], seen, seen + 1);
        if (was == seen)
            break;
        seen = was;
    }
}

static void test_atomics(void **)
{
    int host[6] = {0, 0, -1000, 0, 0, 0}, *out = NULL;
    device_open(80);
    CUDA(cudaMalloc(&out, sizeof host));
    CUDA(cudaMemcpy(out, host, sizeof host, cudaMemcpyHostToDevice));
    cudaLaunchConfig_t config = {dim3(4), dim3(64), 0, 0, NULL, 0};
    CUDA(cudaLaunchKernelEx(&config, count_atomically, out));
    CUDA(cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost));
    assert_int_equal(host[0], 256 * 255 / 2);
    assert_true(__int_as_float(host[1]) == 128.0f);
    assert_int_equal(host[2], -45);
    assert_int_equal(host[3], (1 << 20) - 1);
    assert_int_equal(host[4], -255);
    assert_int_equal(host[5], 256);
    CUDA(cudaFree(out));
    device_close();
}

static void test_small_words(void **)
{
    assert_int_equal(pack_bf16(1.0f, -2.0f), 0xc0003f80u);
    assert_int_equal(pack_bf16(1.00390625f, 1.01171875f), 0x3f823f80u);  /* ties to even */
    assert_int_equal(mul_bf16x2(0x40403fc0u, 0xbf804000u), 0xc0404040u); /* 1.5 2, 3 -1 */
    assert_int_equal(__byte_perm(0x33221100u, 0x77665544u, 0x2507), 0x22550077u);
    assert_true(exp2_fast(-3.0f) == 0.125f && exp2_fast(-140.0f) == 0.0f);
    assert_true(exp2_fast(-INFINITY) == 0.0f);
    assert_int_equal(__float2int_rn(2.5f), 2);
    assert_int_equal(__float2int_rn(3e9f), 2147483647);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_thread_of_each_block_runs_once),
        cmocka_unit_test(test_barriers_and_shuffles_add_up),
        cmocka_unit_test(test_exchanges_give_the_lane_that_is_documented),
        cmocka_unit_test(test_mma_multiplies_by_the_documented_layout),
        cmocka_unit_test(test_ldmatrix_gives_the_documented_elements),
        cmocka_unit_test(test_asynchronous_copies_and_zeros),
        cmocka_unit_test(test_atomics),
        cmocka_unit_test(test_small_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
