/* SPDX-License-Identifier: Apache-2.0
 *
 * bfloat16 as kernels name it.
 */
#ifndef EMU_CUDA_BF16_H
#define EMU_CUDA_BF16_H

#include <cuda_runtime.h>
#include "emu_convert.h"

struct __nv_bfloat16_raw {
    unsigned short x;
};
struct __nv_bfloat16 {
    uint16_t __x;
    __nv_bfloat16() = default;
    __nv_bfloat16(float f) : __x(emu_bf16_of(f))
    {
    }
    __nv_bfloat16(__nv_bfloat16_raw raw) : __x(raw.x)
    {
    }
    operator float() const
    {
        return emu_f32_of_bf16(__x);
    }
};
struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
    __nv_bfloat162() = default;
    __nv_bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) : x(a), y(b)
    {
    }
};
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

static inline __nv_bfloat16 __float2bfloat16_rn(float x)
{
    return __nv_bfloat16(x);
}
static inline __nv_bfloat16 __float2bfloat16(float x)
{
    return __nv_bfloat16(x);
}
static inline float __bfloat162float(__nv_bfloat16 x)
{
    return emu_f32_of_bf16(x.__x);
}
static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y)
{
    return __nv_bfloat162(x, y);
}
static inline __nv_bfloat162 __float22bfloat162_rn(float2 v)
{
    return __nv_bfloat162(v.x, v.y);
}
static inline float2 __bfloat1622float2(__nv_bfloat162 v)
{
    return {emu_f32_of_bf16(v.x.__x), emu_f32_of_bf16(v.y.__x)};
}
static inline float __low2float(__nv_bfloat162 v)
{
    return emu_f32_of_bf16(v.x.__x);
}
static inline float __high2float(__nv_bfloat162 v)
{
    return emu_f32_of_bf16(v.y.__x);
}
static inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 a, __nv_bfloat16 b)
{
    return __nv_bfloat162(a, b);
}
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x)
{
    return x.__x;
}
static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short x)
{
    return __nv_bfloat16(__nv_bfloat16_raw{x});
}

#endif
