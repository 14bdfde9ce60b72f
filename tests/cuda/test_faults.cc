/* SPDX-License-Identifier: Apache-2.0
 *
 * Planted faults in kernels: each stands beside the same kernel without it. The wrong one is
 * reported by its kind, the right one is not reported at all.
 */
#include "cuda_check.h"

#include <cuda_bf16.h>

#include "kernels/cuda/ptx.cuh"

enum { N = 256 };

/* A buffer of N floats, all of them 1. */
static float *ones_new(void)
{
    float host[N], *at = NULL;
    for (int i = 0; i < N; i++)
        host[i] = 1;
    CUDA(cudaMalloc(&at, sizeof host));
    CUDA(cudaMemcpy(at, host, sizeof host, cudaMemcpyHostToDevice));
    return at;
}

struct shape {
    unsigned blocks, threads;
    size_t dynamic;
};

template <typename... P, typename... A>
static cudaError_t run(struct shape s, void (*kernel)(P...), A... args)
{
    cudaLaunchConfig_t config = {dim3(s.blocks), dim3(s.threads), s.dynamic, 0, NULL, 0};
    cudaError_t error = cudaLaunchKernelEx(&config, kernel, args...);
    return error ? error : cudaDeviceSynchronize();
}

static void reported_only(enum emu_kind kind)
{
    for (int i = 0; emu_report_text(i); i++)
        if (emu_reports() != emu_reported(kind))
            print_error("%s\n", emu_report_text(i));
    assert_true(emu_reported(kind) > 0);
    assert_int_equal(emu_reports(), emu_reported(kind));
    emu_forget_reports();
}

/* Right, then wrong: kernels of (out, in) over N floats. */
static void plant(struct shape s, enum emu_kind kind, void (*right)(float *, float *),
                  void (*wrong)(float *, float *))
{
    for (unsigned seed = 1; seed <= 5; seed++) {
        device_open(90);
        emu_seed(seed);
        float *in = ones_new(), *out = ones_new();
        CUDA(run(s, right, out, in));
        assert_int_equal(emu_reports(), 0);
        cudaError_t error = run(s, wrong, out, in);
        assert_true(emu_reports() > 0);
        reported_only(kind);
        assert_int_equal(cudaFree(in), error); /* what ended the launch sticks */
        assert_int_equal(cudaFree(out), error);
        emu_forget_reports();
    }
}

/* -------------------------------------------------------------------------- shared memory ---- */

template <bool barrier> static __global__ void reverse(float *out, float *in)
{
    __shared__ float tile[N];
    int i = (int)threadIdx.x;
    tile[i] = in[i];
    if (barrier)
        __syncthreads();
    out[i] = tile[N - 1 - i];
}

static void test_dropped_barrier(void **)
{
    device_open(90);
    float *in = ones_new(), *out = ones_new();
    CUDA(run({1, N, 0}, reverse<true>, out, in));
    assert_int_equal(emu_reports(), 0);
    CUDA(run({1, N, 0}, reverse<false>, out, in));
    /* half of the threads read before the other half has written */
    assert_true(emu_reported(EMU_RACE_SHARED) > 0);
    assert_int_equal(emu_reports(), emu_reported(EMU_RACE_SHARED) + emu_reported(EMU_UNWRITTEN));
    emu_forget_reports();
    CUDA(cudaFree(in));
    CUDA(cudaFree(out));
    device_close();
}

/* Two steps over the same tile: the barrier that keeps the second from overwriting the first. */
template <bool barrier> static __global__ void two_steps(float *out, float *in)
{
    __shared__ float tile[N];
    int i = (int)threadIdx.x;
    float sum = 0;
    for (int step = 0; step < 2; step++) {
        tile[i] = in[i] + (float)step;
        __syncthreads();
        sum += tile[N - 1 - i];
        if (barrier)
            __syncthreads();
    }
    out[i] = sum;
}

static void test_dropped_barrier_of_a_loop(void **)
{
    plant({1, N, 0}, EMU_RACE_SHARED, two_steps<true>, two_steps<false>);
}

template <bool sync> static __global__ void neighbours(float *out, float *in)
{
    __shared__ float tile[N];
    int i = (int)threadIdx.x;
    tile[i] = in[i];
    __syncwarp();
    float left = tile[i ^ 1];
    if (sync)
        __syncwarp();
    tile[i] = left + 1;
    out[i] = tile[i];
}

static void test_dropped_syncwarp(void **)
{
    plant({1, N, 0}, EMU_RACE_SHARED, neighbours<true>, neighbours<false>);
}

template <int last> static __global__ void past_shared_tile(float *out, float *in)
{
    float *tile = (float *)dynamic_shared;
    int i = (int)threadIdx.x;
    tile[i] = in[i];
    __syncthreads();
    out[i] = tile[i == N - 1 ? last : i + 1];
}

static void test_read_past_a_tile_in_dynamic_shared_memory(void **)
{
    plant({1, N, N * sizeof(float)}, EMU_BOUNDS, past_shared_tile<0>, past_shared_tile<N>);
}

template <int row> static __global__ void past_static_tile(float *out, float *in)
{
    __shared__ float tile[8][32];
    int i = (int)threadIdx.x;
    tile[i / 32][i % 32] = in[i];
    __syncthreads();
    int at = i / 32 + row;
    out[i] = tile[at][i % 32];
}

static void test_read_past_a_static_tile(void **)
{
    plant({1, N, 0}, EMU_BOUNDS, past_static_tile<0>, past_static_tile<1>);
}

/* Each block has shared memory of its own: what the block before wrote is not there. */
template <bool wrong> static __global__ void partly_written(float *out, float *in)
{
    __shared__ float tile[64];
    int i = (int)threadIdx.x, b = (int)blockIdx.x;
    if (!wrong || i < 60 || b != 2)
        tile[i] = in[i];
    __syncthreads();
    out[64 * b + i] = tile[i];
}

static void test_read_of_unwritten_shared_memory(void **)
{
    plant({4, 64, 0}, EMU_UNWRITTEN, partly_written<false>, partly_written<true>);
}

/* ------------------------------------------------------------------------------- barriers ---- */

template <bool wrong> static __global__ void divergent(float *out, float *in)
{
    int i = (int)threadIdx.x;
    float x = in[i];
    if (wrong && i < 32) {
        x += 1;
        __syncthreads();
    } else {
        x -= 1;
        __syncthreads();
    }
    out[i] = x;
}

static void test_divergent_barrier(void **)
{
    plant({1, N, 0}, EMU_BARRIER, divergent<false>, divergent<true>);
}

template <bool wrong> static __global__ void early_return(float *out, float *in)
{
    int i = (int)threadIdx.x;
    if (wrong && i >= 200)
        return;
    float x = in[i];
    __syncthreads();
    out[i] = x;
}

static void test_return_before_a_barrier(void **)
{
    plant({1, N, 0}, EMU_BARRIER, early_return<false>, early_return<true>);
}

template <bool wrong> static __global__ void half_shuffle(float *out, float *in)
{
    int i = (int)threadIdx.x;
    float x = in[i];
    if (!wrong || i % 32 < 16)
        x = __shfl_xor_sync(0xffffffffu, x, 1);
    out[i] = x;
    __syncthreads();
}

static void test_shuffle_whose_lanes_do_not_all_come(void **)
{
    plant({1, N, 0}, EMU_WARP, half_shuffle<false>, half_shuffle<true>);
}

template <bool wrong> static __global__ void two_masks(float *out, float *in)
{
    int i = (int)threadIdx.x;
    float x = in[i];
    if (i % 32 < 16)
        x = __shfl_xor_sync(0x0000ffffu, x, 1);
    else
        x = __shfl_xor_sync(wrong ? 0xffffffffu : 0xffff0000u, x, 1);
    out[i] = x;
    __syncthreads();
}

static void test_masks_that_do_not_agree(void **)
{
    plant({1, N, 0}, EMU_WARP, two_masks<false>, two_masks<true>);
}

/* -------------------------------------------------------------------------- global memory ---- */

template <int shift> static __global__ void past_buffer(float *out, float *in)
{
    int i = (int)threadIdx.x;
    out[i] = in[i + shift];
}

static void test_read_past_a_buffer(void **)
{
    plant({1, N, 0}, EMU_BOUNDS, past_buffer<0>, past_buffer<1>);
    plant({1, N, 0}, EMU_BOUNDS, past_buffer<0>, past_buffer<-1>);
}

template <bool wrong> static __global__ void block_results(float *out, float *in)
{
    int i = (int)threadIdx.x, b = (int)blockIdx.x;
    out[wrong ? i : b * 64 + i] = in[b * 64 + i];
}

static void test_two_blocks_write_the_same(void **)
{
    plant({4, 64, 0}, EMU_RACE_GLOBAL, block_results<false>, block_results<true>);
}

template <bool wrong> static __global__ void in_place(float *out, float *in)
{
    int i = (int)(blockIdx.x * 64 + threadIdx.x);
    float x = in[wrong ? (i + 64) % N : i];
    in[i] = x + 1;
    out[i] = x;
}

static void test_a_block_reads_what_another_one_writes(void **)
{
    plant({4, 64, 0}, EMU_RACE_GLOBAL, in_place<false>, in_place<true>);
}

template <bool atomic> static __global__ void count(float *out, float *in)
{
    float x = in[threadIdx.x];
    if (atomic)
        atomicAdd(out, x);
    else
        out[0] += x;
}

static void test_sum_without_an_atomic(void **)
{
    plant({1, N, 0}, EMU_RACE_GLOBAL, count<true>, count<false>);
    plant({4, 1, 0}, EMU_RACE_GLOBAL, count<true>, count<false>);
}

template <int offset> static __global__ void vectors(float *out, float *in)
{
    int i = (int)threadIdx.x;
    float4 v = *(const float4 *)(in + 4 * i + (i == 7 ? offset : 0));
    *(float4 *)(out + 4 * i) = v;
}

static void test_misaligned_vector_load(void **)
{
    plant({1, 32, 0}, EMU_MISALIGNED, vectors<0>, vectors<2>);
}

static __global__ void add_one(float *out, float *in)
{
    int i = (int)threadIdx.x;
    out[i] = in[i] + 1;
}

static void test_read_of_unwritten_global_memory(void **)
{
    device_open(90);
    float *in = NULL, *out = ones_new();
    CUDA(cudaMalloc(&in, N * sizeof(float)));
    CUDA(cudaMemset(in, 0, (N - 1) * sizeof(float)));
    CUDA(run({1, N - 1, 0}, add_one, out, in));
    assert_int_equal(emu_reports(), 0);
    CUDA(run({1, N, 0}, add_one, out, in));
    reported_only(EMU_UNWRITTEN);
    CUDA(cudaFree(in));
    CUDA(cudaFree(out));
    device_close();
}

static void test_use_after_free(void **)
{
    device_open(90);
    float *in = ones_new(), *out = ones_new();
    CUDA(cudaFree(in));
    assert_int_equal(run({1, N, 0}, add_one, out, in), cudaErrorIllegalAddress);
    reported_only(EMU_FREED);
    assert_int_equal(cudaFree(out), cudaErrorIllegalAddress);
    emu_forget_reports();
}

static void test_host_pointer_in_a_kernel(void **)
{
    float host[N] = {}, *pinned = NULL;
    device_open(90);
    float *out = ones_new();
    CUDA(cudaMallocHost(&pinned, sizeof host));
    CUDA(run({1, N, 0}, add_one, out, pinned));
    CUDA(cudaHostRegister(host, sizeof host, cudaHostRegisterReadOnly));
    CUDA(run({1, N, 0}, add_one, out, (float *)host));
    assert_int_equal(emu_reports(), 0);
    CUDA(cudaHostUnregister(host));
    assert_int_equal(run({1, N, 0}, add_one, out, (float *)host), cudaErrorIllegalAddress);
    reported_only(EMU_HOST_MEMORY);
    cudaFreeHost(pinned);
    cudaFree(out);
    emu_forget_reports();
}

static void test_write_to_read_only_memory(void **)
{
    float host[N] = {};
    device_open(90);
    float *in = ones_new();
    CUDA(cudaHostRegister(host, sizeof host, cudaHostRegisterReadOnly));
    assert_int_equal(run({1, N, 0}, add_one, (float *)host, in), cudaErrorIllegalAddress);
    reported_only(EMU_READ_ONLY);
    cudaHostUnregister(host);
    cudaFree(in);
    emu_forget_reports();
}

/* What is not checked is still seen when there is no memory at all, or a guard was overwritten. */
static void test_faults_of_kernels_that_are_not_checked(void **)
{
    device_open(90);
    emu_check_memory(0);
    float *in = ones_new(), *out = ones_new();
    assert_int_equal(run({1, N, 0}, past_buffer<(1 << 20)>, out, in), cudaErrorIllegalAddress);
    reported_only(EMU_BOUNDS);
    assert_int_equal(cudaFree(in), cudaErrorIllegalAddress);
    cudaFree(out);
    emu_forget_reports();
    device_open(90);
    emu_check_memory(0);
    in = ones_new(), out = ones_new();
    CUDA(run({1, N, 0}, past_buffer<-1>, out + 1, in + 1)); /* one too far at the end */
    assert_int_equal(emu_reports(), 0);
    CUDA(cudaFree(out));
    reported_only(EMU_BOUNDS);
    CUDA(cudaFree(in));
    device_close();
    emu_check_memory(1);
}

/* ----------------------------------------------------------------------- special instructions  */

/* Two stages: waits leave `left` groups under way. */
template <int left> static __global__ void pipeline(float *out, float *in)
{
    float *tile = (float *)dynamic_shared;
    int i = (int)threadIdx.x;
    cp_async_16(tile + 4 * i, in + 4 * i, true);
    cp_async_commit();
    cp_async_16(tile + 128 + 4 * i, in + 128 + 4 * i, true);
    cp_async_commit();
    cp_async_wait<left>();
    __syncthreads();
    out[i] = tile[127 - i];
    out[32 + i] = tile[4 * i + (left ? 128 : 0)];
    cp_async_wait<0>();
    __syncthreads();
    out[64 + i] = tile[128 + i];
}

static void test_missing_wait_for_an_asynchronous_copy(void **)
{
    plant({1, 32, 1024}, EMU_ASYNC_COPY, pipeline<0>, pipeline<1>);
}

template <bool barrier> static __global__ void copy_seen_by_others(float *out, float *in)
{
    float *tile = (float *)dynamic_shared;
    int i = (int)threadIdx.x;
    cp_async_4(tile + i, in + i, true);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    float mine = tile[N - 1 - i];
    if (barrier)
        __syncthreads();
    cp_async_4(tile + i, in, false);
    cp_async_commit();
    cp_async_wait<0>();
    out[i] = mine + tile[i];
}

static void test_asynchronous_copy_over_what_others_read(void **)
{
    plant({1, N, N * 4}, EMU_RACE_SHARED, copy_seen_by_others<true>, copy_seen_by_others<false>);
}

template <int offset> static __global__ void matrix_rows(float *out, float *in)
{
    int i = (int)threadIdx.x;
    uint32_t r[4];
    for (int k = i; k < 256; k += 32)
        ((float *)dynamic_shared)[k] = in[k];
    __syncthreads();
    ldmatrix_x4(r, dynamic_shared + 16 * i + (i == 3 ? offset : 0));
    out[i] = __uint_as_float(r[0]);
}

static void test_wrong_ldmatrix_alignment(void **)
{
    plant({1, 32, 1024}, EMU_MISALIGNED, matrix_rows<0>, matrix_rows<8>);
}

template <int offset> static __global__ void misaligned_copy(float *out, float *in)
{
    float *tile = (float *)dynamic_shared;
    int i = (int)threadIdx.x;
    cp_async_16(tile + 4 * i, in + 4 * i + offset, true);
    cp_async_commit();
    cp_async_wait<0>();
    out[i] = tile[4 * i];
}

static void test_misaligned_asynchronous_copy(void **)
{
    plant({1, 32, 512}, EMU_MISALIGNED, misaligned_copy<0>, misaligned_copy<1>);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dropped_barrier),
        cmocka_unit_test(test_dropped_barrier_of_a_loop),
        cmocka_unit_test(test_dropped_syncwarp),
        cmocka_unit_test(test_read_past_a_tile_in_dynamic_shared_memory),
        cmocka_unit_test(test_read_past_a_static_tile),
        cmocka_unit_test(test_read_of_unwritten_shared_memory),
        cmocka_unit_test(test_divergent_barrier),
        cmocka_unit_test(test_return_before_a_barrier),
        cmocka_unit_test(test_shuffle_whose_lanes_do_not_all_come),
        cmocka_unit_test(test_masks_that_do_not_agree),
        cmocka_unit_test(test_read_past_a_buffer),
        cmocka_unit_test(test_two_blocks_write_the_same),
        cmocka_unit_test(test_a_block_reads_what_another_one_writes),
        cmocka_unit_test(test_sum_without_an_atomic),
        cmocka_unit_test(test_misaligned_vector_load),
        cmocka_unit_test(test_read_of_unwritten_global_memory),
        cmocka_unit_test(test_use_after_free),
        cmocka_unit_test(test_host_pointer_in_a_kernel),
        cmocka_unit_test(test_write_to_read_only_memory),
        cmocka_unit_test(test_faults_of_kernels_that_are_not_checked),
        cmocka_unit_test(test_missing_wait_for_an_asynchronous_copy),
        cmocka_unit_test(test_asynchronous_copy_over_what_others_read),
        cmocka_unit_test(test_wrong_ldmatrix_alignment),
        cmocka_unit_test(test_misaligned_asynchronous_copy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
