/* SPDX-License-Identifier: Apache-2.0
 *
 * IEEE half precision as kernels name it.
 */
#ifndef EMU_CUDA_FP16_H
#define EMU_CUDA_FP16_H

#include <cuda_runtime.h>
#include "emu_convert.h"

struct __half_raw {
    unsigned short x;
};
struct __half {
    uint16_t __x;
    __half() = default;
    __half(float f) : __x(emu_f16_of(f))
    {
    }
    __half(__half_raw raw) : __x(raw.x)
    {
    }
    operator float() const
    {
        return emu_f32_of_f16(__x);
    }
};
struct alignas(4) __half2 {
    __half x, y;
    __half2() = default;
    __half2(__half a, __half b) : x(a), y(b)
    {
    }
};
struct __half2_raw {
    unsigned short x, y;
};
typedef __half half;
typedef __half2 half2;

static inline __half __float2half_rn(float x)
{
    return __half(x);
}
static inline __half __float2half(float x)
{
    return __half(x);
}
static inline float __half2float(__half x)
{
    return emu_f32_of_f16(x.__x);
}
static inline __half2 __floats2half2_rn(float x, float y)
{
    return __half2(x, y);
}
static inline float2 __half22float2(__half2 v)
{
    return {emu_f32_of_f16(v.x.__x), emu_f32_of_f16(v.y.__x)};
}
static inline unsigned short __half_as_ushort(__half x)
{
    return x.__x;
}
static inline __half __ushort_as_half(unsigned short x)
{
    return __half(__half_raw{x});
}

#endif
