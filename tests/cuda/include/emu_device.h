/* SPDX-License-Identifier: Apache-2.0
 *
 * What device code may name: the built-in variables, barriers, warp exchanges, atomics and
 * intrinsics, under CUDA's names. A kernel runs on fibers (emulation/block.cc); a call that waits
 * for other threads switches to another fiber there. The place of a wait is its source line, taken
 * from the caller by default arguments, so that two threads which wait at different barriers are
 * told apart.
 */
#ifndef EMU_DEVICE_H
#define EMU_DEVICE_H

#include <cmath>
#include <math.h>
#include <string.h>

#include "emu_vectors.h"

#define __global__
#define __device__
#define __host__
#define __constant__    static const
#define __shared__      thread_local /* the block's memory: see emulation/shadow.cc */
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(n)    __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __CUDACC_EMULATED__ 1

/* ------------------------------------------------------------------- built-in variables ------ */

struct emu_place {
    uint3 thread, block;
    dim3 block_dim, grid_dim;
};
extern "C" struct emu_place emu_place; /* of the running fiber */

/* Read by an instruction that the memory checker does not see: these are registers. */
static __forceinline__ unsigned emu_register(const unsigned &from)
{
#if defined(__x86_64__)
    unsigned value;
    __asm__("movl %1, %0" : "=r"(value) : "m"(from));
    return value;
#else
    return from;
#endif
}

#define EMU_BUILTIN(name, member)                                                                  \
    struct emu_##name {                                                                            \
        struct {                                                                                   \
            __forceinline__ operator unsigned() const                                              \
            {                                                                                      \
                return emu_register(emu_place.member.x);                                           \
            }                                                                                      \
        } x;                                                                                       \
        struct {                                                                                   \
            __forceinline__ operator unsigned() const                                              \
            {                                                                                      \
                return emu_register(emu_place.member.y);                                           \
            }                                                                                      \
        } y;                                                                                       \
        struct {                                                                                   \
            __forceinline__ operator unsigned() const                                              \
            {                                                                                      \
                return emu_register(emu_place.member.z);                                           \
            }                                                                                      \
        } z;                                                                                       \
    };                                                                                             \
    inline constexpr struct emu_##name name = {};
EMU_BUILTIN(threadIdx, thread)
EMU_BUILTIN(blockIdx, block)
EMU_BUILTIN(blockDim, block_dim)
EMU_BUILTIN(gridDim, grid_dim)
static constexpr int warpSize = 32;

/* --------------------------------------------------------------------- barriers, warps ------ */

#define EMU_HERE        const char *file = __builtin_FILE(), int line = __builtin_LINE()
#define EMU_HERE_PARAMS const char *file, int line

enum emu_shuffle { EMU_SHFL_INDEX, EMU_SHFL_XOR, EMU_SHFL_DOWN, EMU_SHFL_UP };

extern "C" {
void emu_syncthreads(EMU_HERE_PARAMS);
void emu_syncwarp(unsigned mask, EMU_HERE_PARAMS);
uint64_t emu_shfl(int how, unsigned mask, uint64_t value, int lane, int width, EMU_HERE_PARAMS);
unsigned emu_ballot(unsigned mask, int predicate, EMU_HERE_PARAMS);
unsigned emu_active_mask(void);
void emu_fence(void);
}

static inline void __syncthreads(EMU_HERE)
{
    emu_syncthreads(file, line);
}
static inline void __syncwarp(unsigned mask = 0xffffffffu, EMU_HERE)
{
    emu_syncwarp(mask, file, line);
}
static inline void __threadfence(void)
{
    emu_fence();
}
static inline void __threadfence_block(void)
{
    emu_fence();
}
static inline unsigned __activemask(void)
{
    return emu_active_mask();
}

template <typename T>
static inline T emu_shfl_of(int how, unsigned mask, T value, int lane, int width, EMU_HERE_PARAMS)
{
    static_assert(sizeof(T) <= 8, "shuffles move 4 or 8 bytes");
    uint64_t bits = 0;
    __builtin_memcpy(&bits, &value, sizeof value);
    bits = emu_shfl(how, mask, bits, lane, width, file, line);
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
}
template <typename T>
static inline T __shfl_sync(unsigned mask, T v, int lane, int width = 32, EMU_HERE)
{
    return emu_shfl_of(EMU_SHFL_INDEX, mask, v, lane, width, file, line);
}
template <typename T>
static inline T __shfl_xor_sync(unsigned mask, T v, int lanes, int width = 32, EMU_HERE)
{
    return emu_shfl_of(EMU_SHFL_XOR, mask, v, lanes, width, file, line);
}
template <typename T>
static inline T __shfl_down_sync(unsigned mask, T v, unsigned delta, int width = 32, EMU_HERE)
{
    return emu_shfl_of(EMU_SHFL_DOWN, mask, v, (int)delta, width, file, line);
}
template <typename T>
static inline T __shfl_up_sync(unsigned mask, T v, unsigned delta, int width = 32, EMU_HERE)
{
    return emu_shfl_of(EMU_SHFL_UP, mask, v, (int)delta, width, file, line);
}
static inline unsigned __ballot_sync(unsigned mask, int predicate, EMU_HERE)
{
    return emu_ballot(mask, predicate, file, line);
}
static inline int __any_sync(unsigned mask, int predicate, EMU_HERE)
{
    return emu_ballot(mask, predicate, file, line) != 0;
}
static inline int __all_sync(unsigned mask, int predicate, EMU_HERE)
{
    return emu_ballot(mask, !predicate, file, line) == 0;
}

/* Under the names of kernels/cuda/ptx.cuh. */
extern "C" {
enum emu_mma { EMU_MMA_BF16, EMU_MMA_F16, EMU_MMA_E4M3 };
void emu_mma(int type, float *d, const uint32_t *a, const uint32_t *b, EMU_HERE_PARAMS);
void emu_ldmatrix(int count, int trans, uint32_t *r, const void *row, EMU_HERE_PARAMS);
void emu_cp_async(void *shared, const void *global, int bytes, int valid_bytes);
void emu_cp_async_commit(void);
void emu_cp_async_wait(int newest_left, EMU_HERE_PARAMS);
}

/* ------------------------------------------------------------------------------ atomics ------ */

extern "C" {
float emu_atomic_add_f32(float *at, float v);
unsigned emu_atomic_add_u32(unsigned *at, unsigned v);
unsigned emu_atomic_max_u32(unsigned *at, unsigned v);
int emu_atomic_max_i32(int *at, int v);
unsigned emu_atomic_min_u32(unsigned *at, unsigned v);
int emu_atomic_min_i32(int *at, int v);
unsigned emu_atomic_or_u32(unsigned *at, unsigned v);
unsigned emu_atomic_and_u32(unsigned *at, unsigned v);
unsigned emu_atomic_exch_u32(unsigned *at, unsigned v);
unsigned emu_atomic_cas_u32(unsigned *at, unsigned compare, unsigned v);
}

static inline float atomicAdd(float *at, float v)
{
    return emu_atomic_add_f32(at, v);
}
static inline int atomicAdd(int *at, int v)
{
    return (int)emu_atomic_add_u32((unsigned *)at, (unsigned)v);
}
static inline unsigned atomicAdd(unsigned *at, unsigned v)
{
    return emu_atomic_add_u32(at, v);
}
static inline int atomicMax(int *at, int v)
{
    return emu_atomic_max_i32(at, v);
}
static inline unsigned atomicMax(unsigned *at, unsigned v)
{
    return emu_atomic_max_u32(at, v);
}
static inline int atomicMin(int *at, int v)
{
    return emu_atomic_min_i32(at, v);
}
static inline unsigned atomicMin(unsigned *at, unsigned v)
{
    return emu_atomic_min_u32(at, v);
}
static inline int atomicOr(int *at, int v)
{
    return (int)emu_atomic_or_u32((unsigned *)at, (unsigned)v);
}
static inline unsigned atomicOr(unsigned *at, unsigned v)
{
    return emu_atomic_or_u32(at, v);
}
static inline unsigned atomicAnd(unsigned *at, unsigned v)
{
    return emu_atomic_and_u32(at, v);
}
static inline unsigned atomicExch(unsigned *at, unsigned v)
{
    return emu_atomic_exch_u32(at, v);
}
static inline int atomicExch(int *at, int v)
{
    return (int)emu_atomic_exch_u32((unsigned *)at, (unsigned)v);
}
static inline unsigned atomicCAS(unsigned *at, unsigned compare, unsigned v)
{
    return emu_atomic_cas_u32(at, compare, v);
}
static inline int atomicCAS(int *at, int compare, int v)
{
    return (int)emu_atomic_cas_u32((unsigned *)at, (unsigned)compare, (unsigned)v);
}

/* --------------------------------------------------------------------------- intrinsics ------ */

/* Byte i of the result is the byte of y:x that nibble i of the selector numbers; a nibble's top bit
 * would repeat the byte's sign instead. */
static __forceinline__ unsigned __byte_perm(unsigned x, unsigned y, unsigned selector)
{
    uint64_t all = (uint64_t)y << 32 | x;
    unsigned result = 0;
    for (int i = 0; i < 4; i++)
        result |= (unsigned)(all >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
    return result;
}

template <typename T> static __forceinline__ T __ldg(const T *at)
{
    return *at;
}
template <typename T> static __forceinline__ T __ldcg(const T *at)
{
    return *at;
}
template <typename T> static __forceinline__ T __ldcs(const T *at)
{
    return *at;
}
template <typename T> static __forceinline__ void __stcs(T *at, T v)
{
    *at = v;
}
template <typename T> static __forceinline__ void __stcg(T *at, T v)
{
    *at = v;
}

template <typename To, typename From> static __forceinline__ To emu_bits(From from)
{
    To to;
    static_assert(sizeof to == sizeof from, "the same bits");
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}
static inline unsigned __float_as_uint(float x)
{
    return emu_bits<unsigned>(x);
}
static inline int __float_as_int(float x)
{
    return emu_bits<int>(x);
}
static inline float __uint_as_float(unsigned x)
{
    return emu_bits<float>(x);
}
static inline float __int_as_float(int x)
{
    return emu_bits<float>(x);
}

/* Macros: the C library has functions of these names for itself. */
#define __expf(x)    expf(x)
#define __logf(x)    logf(x)
#define __log2f(x)   log2f(x)
#define __cosf(x)    cosf(x)
#define __sinf(x)    sinf(x)
#define __powf(x, y) powf(x, y)

static inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}
static inline float __fdividef(float x, float y)
{
    return x / y;
}
static inline float __fdiv_rn(float x, float y)
{
    return x / y;
}
static inline float __frcp_rn(float x)
{
    return 1.0f / x;
}
static inline float __fsqrt_rn(float x)
{
    return sqrtf(x);
}
static inline float __frsqrt_rn(float x)
{
    return (float)(1.0 / sqrt((double)x));
}
static inline float __fmaf_rn(float x, float y, float z)
{
    return fmaf(x, y, z);
}
/* Rounded by themselves: never contracted with another operation. */
static inline float __fadd_rn(float x, float y)
{
    volatile float sum = x + y;
    return sum;
}
static inline float __fsub_rn(float x, float y)
{
    volatile float difference = x - y;
    return difference;
}
static inline float __fmul_rn(float x, float y)
{
    volatile float product = x * y;
    return product;
}
static inline float __saturatef(float x)
{
    return x >= 0.0f ? (x <= 1.0f ? x : 1.0f) : 0.0f; /* NaN becomes 0 */
}
static inline float __int2float_rn(int x)
{
    return (float)x;
}
static inline int __float2int_rn(float x)
{
    if (x != x)
        return 0;
    if (x >= 2147483648.0f || x < -2147483648.0f)
        return x < 0 ? -2147483647 - 1 : 2147483647;
    return (int)nearbyintf(x);
}
static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
static inline int __clz(int x)
{
    return x ? __builtin_clz((unsigned)x) : 32;
}
static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}

#define EMU_MIN_MAX(type)                                                                          \
    static __forceinline__ constexpr type min(type a, type b)                                      \
    {                                                                                              \
        return b < a ? b : a;                                                                      \
    }                                                                                              \
    static __forceinline__ constexpr type max(type a, type b)                                      \
    {                                                                                              \
        return a < b ? b : a;                                                                      \
    }
EMU_MIN_MAX(int)
EMU_MIN_MAX(unsigned)
EMU_MIN_MAX(long)
EMU_MIN_MAX(unsigned long)
EMU_MIN_MAX(long long)
EMU_MIN_MAX(unsigned long long)
static inline float min(float a, float b)
{
    return fminf(a, b);
}
static inline float max(float a, float b)
{
    return fmaxf(a, b);
}
static inline double min(double a, double b)
{
    return fmin(a, b);
}
static inline double max(double a, double b)
{
    return fmax(a, b);
}

#endif
