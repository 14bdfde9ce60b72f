/* SPDX-License-Identifier: Apache-2.0
 *
 * The instructions that CUDA C++ has no name for, and the one array of dynamic shared memory. All
 * are there from sm_80 on, but for one that says so. tests/cuda/include has a second ptx.cuh, with the same functions written
 * out for a CPU; a function that is added here is added there.
 *
 * Lanes of a warp are numbered l = 0..31; g = l / 4 and t = l % 4. Two bfloat16 or half values
 * stand in a uint32_t, the one with the lower index in the lower half.
 */
#ifndef KR_CUDA_PTX_CUH
#define KR_CUDA_PTX_CUH

#include <cuda_bf16.h>
#include <stdint.h>

/* As many bytes as the launch asks for, aligned for cp_async_16 and ldmatrix. */
extern __shared__ __align__(128) unsigned char dynamic_shared[];

/* What the asynchronous copies and ldmatrix take for an address in shared memory. */
__device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* d[16][8] += a[16][16] b[16][8], F32 sums of bfloat16 products. Each lane holds
 *   a: rows g and g + 8 by turns, columns 2t, 2t + 1, then the same rows, columns 2t + 8, 2t + 9;
 *   b: column g, rows 2t, 2t + 1, then rows 2t + 8, 2t + 9;
 *   d: row g, columns 2t, 2t + 1, then row g + 8. */
__device__ __forceinline__ void mma_bf16_16816(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* d[16][8] += a[16][32] b[32][8], sums of E4M3 products, from sm_89 on. Four values in a uint32_t,
 * the one with the lowest index in the lowest byte. Each lane holds
 *   a: rows g and g + 8 by turns, columns 4t..4t + 3, then the same rows, columns 4t + 16..4t + 19;
 *   b: column g, rows 4t..4t + 3, then rows 4t + 16..4t + 19;
 *   d: as above. */
__device__ __forceinline__ void mma_e4m3_16832(float d[4], const uint32_t a[4], const uint32_t b[2])
{
#if __CUDA_ARCH__ >= 890
    asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    asm volatile("trap;");
#endif
}

/* 8x8 matrices of 16-bit values: lane l gives the address of row l % 8 of matrix l / 8 (16 bytes,
 * 16-aligned) and gets, of each matrix, row g, columns 2t and 2t + 1. */
__device__ __forceinline__ void ldmatrix_x4(uint32_t r[4], const void *shared)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(shared))
                 : "memory");
}

/* Two matrices; lanes 16..31 give addresses that are not looked at. */
__device__ __forceinline__ void ldmatrix_x2(uint32_t r[2], const void *shared)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(shared_address(shared))
                 : "memory");
}

/* The same of transposed matrices: a lane gets rows 2t and 2t + 1 of column g. */
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t r[4], const void *shared)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(shared))
                 : "memory");
}

__device__ __forceinline__ void ldmatrix_x2_trans(uint32_t r[2], const void *shared)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(shared_address(shared))
                 : "memory");
}

/* Starts a copy of 16 bytes, both addresses 16-aligned, past the first-level cache. Not valid:
 * zeros come instead and `global` is not read. */
__device__ __forceinline__ void cp_async_16(void *shared, const void *global, bool valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(shared_address(shared)), "l"(global), "r"(valid ? 16 : 0)
                 : "memory");
}

/* Of 4 bytes, 4-aligned. */
__device__ __forceinline__ void cp_async_4(void *shared, const void *global, bool valid)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                 :
                 : "r"(shared_address(shared)), "l"(global), "r"(valid ? 4 : 0)
                 : "memory");
}

/* The copies started since the last commit become a group; a wait leaves the N youngest groups of
 * this thread under way and is done when all older ones are. Other threads see the data after a
 * barrier. */
__device__ __forceinline__ void cp_async_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int N> __device__ __forceinline__ void cp_async_wait()
{
    asm volatile("cp.async.wait_group %0;" : : "n"(N) : "memory");
}

/* 2^x to about 2 units in the last place; results below the normal range become 0. */
__device__ __forceinline__ float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Both rounded to nearest, ties to even. */
__device__ __forceinline__ uint32_t pack_bf16(float low, float high)
{
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

/* a * b, each half on its own, rounded to nearest; subnormal values are kept. */
__device__ __forceinline__ uint32_t mul_bf16x2(uint32_t a, uint32_t b)
{
    uint32_t product;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(a), "r"(b), "r"(0x80008000u));
    return product;
}

#endif
