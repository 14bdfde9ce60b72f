/* SPDX-License-Identifier: Apache-2.0
 *
 * What this CPU can do, as the CPU and the kernel say it (nothing is tried out).
 */
#include "kernels/cpu/cpu.h"

#if defined(__x86_64__)

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Which register states the kernel saves: without that an instruction set is not usable. */
static uint64_t saved_states(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE))
        return 0;
    unsigned low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

/* Tiles are 8 KiB of state, so Linux wants to be asked before a process uses them. */
static int may_use_tiles(void)
{
#if defined(SYS_arch_prctl)
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
    return 0;
#endif
}

struct cpu_features cpu_features(void)
{
    enum { YMM = 0x6, ZMM = 0xe6, TILES = 3 << 17 };
    enum { B_AVX2 = 1 << 5, B_512F = 1 << 16, B_512DQ = 1 << 17, B_512BW = 1 << 30 };
    enum {
        D_AMX_BF16 = 1 << 22,
        D_AMX_TILE = 1 << 24,
        C_F16C = 1 << 29,
        A_512_BF16 = 1 << 5,
        C_VBMI = 1 << 1
    };
    const unsigned b_512vl = 1u << 31;
    struct cpu_features f = {0};
    uint64_t saved = saved_states();
    unsigned a, b, c, d, a1, b1, c1, d1;
    if (!__get_cpuid(1, &a1, &b1, &c1, &d1) || !__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return f;
    f.avx2 = (saved & YMM) == YMM && (b & B_AVX2) && (c1 & C_F16C);
    f.avx512 = f.avx2 && (saved & ZMM) == ZMM && (b & B_512F) && (b & B_512DQ) && (b & B_512BW) &&
               (b & b_512vl);
    unsigned vbmi = c & C_VBMI, tiles = (d & D_AMX_BF16) && (d & D_AMX_TILE);
    if (__get_cpuid_count(7, 1, &a, &b, &c, &d))
        f.avx512_bf16 = f.avx512 && (a & A_512_BF16);
    f.amx = f.avx512_bf16 && vbmi && tiles && (saved & TILES) == TILES && may_use_tiles();
    return f;
}

#else

struct cpu_features cpu_features(void)
{
    return (struct cpu_features){0};
}

#endif
