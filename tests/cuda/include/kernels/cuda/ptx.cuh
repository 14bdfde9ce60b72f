/* SPDX-License-Identifier: Apache-2.0
 *
 * The special instructions, executed on the CPU: the signatures of the device's
 * kernels/cuda/ptx.cuh with the lane layouts that the PTX ISA documents (emulation/warp.cc). An
 * instruction of a whole warp waits for the warp's 32 lanes at the same source line.
 */
#ifndef KR_CUDA_PTX_CUH
#define KR_CUDA_PTX_CUH

#include <cuda_bf16.h>
#include <cuda_runtime.h>

extern __shared__ __align__(128) unsigned char dynamic_shared[];

/* d[16x8] += a[16x16] b[16x8], row.col, f32 += bf16 * bf16 */
static __forceinline__ void mma_bf16_16816(float d[4], const uint32_t a[4], const uint32_t b[2],
                                           EMU_HERE)
{
    emu_mma(EMU_MMA_BF16, d, a, b, file, line);
}
static __forceinline__ void mma_f16_16816(float d[4], const uint32_t a[4], const uint32_t b[2],
                                          EMU_HERE)
{
    emu_mma(EMU_MMA_F16, d, a, b, file, line);
}
/* d[16x8] += a[16x32] b[32x8], f32 += e4m3 * e4m3; from sm_89 on */
static __forceinline__ void mma_e4m3_16832(float d[4], const uint32_t a[4], const uint32_t b[2],
                                           EMU_HERE)
{
    emu_mma(EMU_MMA_E4M3, d, a, b, file, line);
}

static __forceinline__ void ldmatrix_x4(uint32_t r[4], const void *shared, EMU_HERE)
{
    emu_ldmatrix(4, 0, r, shared, file, line);
}
static __forceinline__ void ldmatrix_x2(uint32_t r[2], const void *shared, EMU_HERE)
{
    emu_ldmatrix(2, 0, r, shared, file, line);
}
static __forceinline__ void ldmatrix_x4_trans(uint32_t r[4], const void *shared, EMU_HERE)
{
    emu_ldmatrix(4, 1, r, shared, file, line);
}
static __forceinline__ void ldmatrix_x2_trans(uint32_t r[2], const void *shared, EMU_HERE)
{
    emu_ldmatrix(2, 1, r, shared, file, line);
}

/* Copies to shared memory that arrive at the wait; zeros when !valid. */
static __forceinline__ void cp_async_16(void *shared, const void *global, bool valid)
{
    emu_cp_async(shared, global, 16, valid ? 16 : 0);
}
static __forceinline__ void cp_async_4(void *shared, const void *global, bool valid)
{
    emu_cp_async(shared, global, 4, valid ? 4 : 0);
}
static __forceinline__ void cp_async_commit(void)
{
    emu_cp_async_commit();
}
template <int N> static __forceinline__ void cp_async_wait(EMU_HERE)
{
    emu_cp_async_wait(N, file, line);
}

static __forceinline__ float exp2_fast(float x)
{
    float y = exp2f(x);
    return y < 1.17549435e-38f ? 0.0f : y;
}

static __forceinline__ uint32_t pack_bf16(float low, float high)
{
    return emu_bf16_of(low) | (uint32_t)emu_bf16_of(high) << 16;
}

static __forceinline__ uint32_t mul_bf16x2(uint32_t a, uint32_t b)
{
    return pack_bf16(emu_f32_of_bf16((uint16_t)a) * emu_f32_of_bf16((uint16_t)b),
                     emu_f32_of_bf16((uint16_t)(a >> 16)) * emu_f32_of_bf16((uint16_t)(b >> 16)));
}

#endif
