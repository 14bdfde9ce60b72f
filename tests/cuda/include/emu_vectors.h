/* SPDX-License-Identifier: Apache-2.0
 *
 * CUDA's vector types with their documented alignment: a kernel compiled with -fsanitize=alignment
 * reports each access through a pointer that breaks it, as the hardware would.
 */
#ifndef EMU_VECTORS_H
#define EMU_VECTORS_H

#include <stddef.h>
#include <stdint.h>

#define EMU_VECTOR2(name, type, align)                                                             \
    struct alignas(align) name {                                                                   \
        type x, y;                                                                                 \
    };                                                                                             \
    static inline name make_##name(type x, type y)                                                 \
    {                                                                                              \
        return {x, y};                                                                             \
    }
#define EMU_VECTOR3(name, type)                                                                    \
    struct name {                                                                                  \
        type x, y, z;                                                                              \
    };                                                                                             \
    static inline name make_##name(type x, type y, type z)                                         \
    {                                                                                              \
        return {x, y, z};                                                                          \
    }
#define EMU_VECTOR4(name, type, align)                                                             \
    struct alignas(align) name {                                                                   \
        type x, y, z, w;                                                                           \
    };                                                                                             \
    static inline name make_##name(type x, type y, type z, type w)                                 \
    {                                                                                              \
        return {x, y, z, w};                                                                       \
    }

EMU_VECTOR2(char2, signed char, 2)
EMU_VECTOR4(char4, signed char, 4)
EMU_VECTOR2(uchar2, unsigned char, 2)
EMU_VECTOR3(uchar3, unsigned char)
EMU_VECTOR4(uchar4, unsigned char, 4)
EMU_VECTOR2(short2, short, 4)
EMU_VECTOR4(short4, short, 8)
EMU_VECTOR2(ushort2, unsigned short, 4)
EMU_VECTOR4(ushort4, unsigned short, 8)
EMU_VECTOR2(int2, int, 8)
EMU_VECTOR3(int3, int)
EMU_VECTOR4(int4, int, 16)
EMU_VECTOR2(uint2, unsigned, 8)
EMU_VECTOR3(uint3, unsigned)
EMU_VECTOR4(uint4, unsigned, 16)
EMU_VECTOR2(float2, float, 8)
EMU_VECTOR3(float3, float)
EMU_VECTOR4(float4, float, 16)
EMU_VECTOR2(double2, double, 16)
EMU_VECTOR2(longlong2, long long, 16)
EMU_VECTOR2(ulonglong2, unsigned long long, 16)

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z)
    {
    }
};

#endif
