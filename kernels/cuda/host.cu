/* SPDX-License-Identifier: Apache-2.0
 *
 * Elements converted by the host, on their way to or from the device, and what is made of them on
 * that way: an embedding's rows, which are looked up here, since the matrix would fill a fifth of a
 * small card and a prompt wants a few hundred of its rows; and a time's waves, a few hundred
 * numbers that want double precision.
 */
#include "kernels/cuda/cuda.h"

#include <math.h>
#include <string.h>

static float from_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static float of_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, magnitude = h & 0x7fffu;
    if (magnitude >= 0x7c00)
        return from_bits(sign | 0x7f800000 | magnitude << 13);
    float f = magnitude < 0x400 ? (float)magnitude * 0x1p-24f
                                : from_bits((magnitude << 13) + (112u << 23));
    return sign ? -f : f;
}

static float of_e4m3(uint8_t b)
{
    uint32_t magnitude = b & 0x7fu;
    float f = magnitude == 0x7f ? NAN
              : magnitude < 8   ? (float)magnitude * 0x1p-9f
                                : from_bits((magnitude << 20) + (120u << 23));
    return b & 0x80 ? -f : f;
}

/* The size of a type in a loop, and how one of it becomes F32. */
template <typename T, typename F> static void convert(float *out, const void *x, int64_t n, F of)
{
    for (int64_t i = 0; i < n; i++) {
        T t;
        memcpy(&t, (const char *)x + (size_t)i * sizeof t, sizeof t);
        out[i] = of(t);
    }
}

void cuda_to_f32(float *out, const void *x, enum kr_dtype dtype, int64_t n)
{
    if (dtype == KR_BF16)
        convert<uint16_t>(out, x, n, [](uint16_t h) { return from_bits((uint32_t)h << 16); });
    else if (dtype == KR_F16)
        convert<uint16_t>(out, x, n, of_f16);
    else if (dtype == KR_F8_E4M3)
        convert<uint8_t>(out, x, n, of_e4m3);
    else if (dtype == KR_F8_E5M2)
        convert<uint8_t>(out, x, n, [](uint8_t b) { return of_f16((uint16_t)(b << 8)); });
    else
        memcpy(out, x, (size_t)n * sizeof *out);
}

/* To nearest, ties to even; NaN stays NaN. */
void cuda_to_bf16(uint16_t *out, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        out[i] =
            (uint16_t)(x[i] != x[i] ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
}

/* --------------------------------------------------------------------- embedding ------ */

struct lookup {
    const struct kr_weight *w;
    const int32_t *ids;
    enum kr_dtype dtype;
};

/* Elements [first, first + n) of the rows that the ids name, within one row. */
static void look_up(void *to, const struct lookup *l, int64_t first, int64_t n)
{
    enum { PIECE = 1024 };
    float piece[PIECE];
    int64_t from = l->ids[first / l->w->in] * l->w->in + first % l->w->in;
    for (int64_t i = 0; i < n; i += PIECE) {
        int64_t count = cuda_least(PIECE, n - i);
        cuda_to_f32(piece,
                    (const char *)l->w->data + (size_t)(from + i) * kr_dtype_size(l->w->dtype),
                    l->w->dtype, count);
        for (int64_t k = 0; k < count; k++)
            piece[k] *= l->w->scale;
        if (l->dtype == KR_F32)
            memcpy((float *)to + i, piece, (size_t)count * sizeof *piece);
        else
            cuda_to_bf16((uint16_t *)to + i, piece, count);
    }
}

static void fill_rows(void *to, const struct cuda_source *source, size_t at, size_t bytes)
{
    const struct lookup *l = (const struct lookup *)source->from;
    size_t size = kr_dtype_size(l->dtype);
    int64_t first = (int64_t)(at / size), end = first + (int64_t)(bytes / size), n;
    for (int64_t i = first; i < end; i += n) {
        n = cuda_least(l->w->in - i % l->w->in, end - i);
        look_up((char *)to + (size_t)(i - first) * size, l, i, n);
    }
}

void cuda_embed(struct kr_device *dev, struct kr_tensor out, const struct kr_weight *w,
                const int32_t *ids, int64_t n)
{
    struct lookup l = {w, ids, out.dtype};
    struct cuda_source source = {fill_rows, &l};
    (void)n;
    cuda_bring_made(cuda_of(dev), out.data, &source,
                    (size_t)kr_count(&out) * kr_dtype_size(out.dtype));
}

/* -------------------------------------------------------------------------- time ------ */

struct waves {
    float s, period;
    int64_t half;
};

/* In double, because s times a frequency is large and its cosine wants all its digits. */
static void fill_waves(void *to, const struct cuda_source *source, size_t at, size_t bytes)
{
    const struct waves *w = (const struct waves *)source->from;
    float *out = (float *)to;
    int64_t first = (int64_t)(at / sizeof *out), count = (int64_t)(bytes / sizeof *out);
    for (int64_t i = 0; i < count; i++) {
        int64_t k = (first + i) % w->half;
        double angle = w->s * pow(w->period, -(double)k / (double)w->half);
        out[i] = (float)(first + i < w->half ? cos(angle) : sin(angle));
    }
}

void cuda_timestep(struct kr_device *dev, struct kr_tensor out, float s, float period)
{
    struct waves w = {s, period, kr_count(&out) / 2};
    struct cuda_source source = {fill_waves, &w};
    cuda_bring_made(cuda_of(dev), out.data, &source, (size_t)kr_count(&out) * sizeof(float));
}
