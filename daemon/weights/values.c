/* SPDX-License-Identifier: Apache-2.0
 *
 * Stored numbers to float, for the small vectors and scales of a model. Matrices are never
 * converted here: devices read them as they are stored.
 */
#include <math.h>
#include <string.h>

#include "daemon/weights/internal.h"

static float from_bits(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

static float from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 0x3ff;

    if (exponent == 31)
        return from_bits(sign | 0x7f800000 | fraction << 13);
    if (exponent == 0)
        return copysignf(ldexpf((float)fraction, -24), from_bits(sign | 0x3f800000));
    return from_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

static float from_e4m3(unsigned char b)
{
    int exponent = b >> 3 & 15, fraction = b & 7;
    float value;

    if ((b & 0x7f) == 0x7f)
        return NAN;
    value = exponent ? ldexpf((float)(8 + fraction), exponent - 10) : ldexpf((float)fraction, -9);
    return b & 0x80 ? -value : value;
}

bool values_readable(enum kr_dtype dtype)
{
    return dtype == KR_F32 || dtype == KR_BF16 || dtype == KR_F16 || dtype == KR_F8_E4M3 ||
           dtype == KR_F8_E5M2;
}

void values_to_float(float *dst, const void *src, enum kr_dtype dtype, size_t n)
{
    const unsigned char *bytes = src;
    uint16_t half;
    size_t i;

    if (dtype == KR_F32) {
        memcpy(dst, src, n * sizeof *dst);
        return;
    }
    for (i = 0; i < n; i++) {
        if (dtype == KR_F8_E4M3) {
            dst[i] = from_e4m3(bytes[i]);
        } else if (dtype == KR_F8_E5M2) { /* the upper half of an F16 */
            dst[i] = from_f16((uint16_t)(bytes[i] << 8));
        } else {
            memcpy(&half, bytes + 2 * i, sizeof half);
            dst[i] = dtype == KR_BF16 ? from_bits((uint32_t)half << 16) : from_f16(half);
        }
    }
}
