/* SPDX-License-Identifier: Apache-2.0
 *
 * The bodies of row_kernels.h. A file that includes this sets VEC_TARGET and ROW_KERNELS (the name
 * of its table).
 */
#include "kernels/cpu/row_kernels.h"
#include "kernels/cpu/vec.h"

#include <assert.h>

#define ROW_FN static VEC_TARGET

/* BODY once for every 16 elements and once for what is left; GET and PUT are whole or partial. */
#define EACH(n, BODY)                                                                              \
    do {                                                                                           \
        size_t i = 0;                                                                              \
        for (; i + VEC <= (n); i += VEC) {                                                         \
            BODY(vec_load, vec_store);                                                             \
        }                                                                                          \
        if (i < (n)) {                                                                             \
            size_t part = (n)-i;                                                                   \
            BODY(LOAD_PART, STORE_PART);                                                           \
        }                                                                                          \
    } while (0)
#define LOAD_PART(p)     vec_load_part(p, part)
#define STORE_PART(p, v) vec_store_part(p, v, part)

/* -------------------------------------------------------------------------- conversion ------ */

VEC_FN vf load_any(const char *x, enum kr_dtype dtype)
{
    vf v;
    vh h;
    if (dtype == KR_BF16) {
        memcpy(&h, x, sizeof h);
        return vec_of_bf16(h);
    }
    memcpy(&v, x, sizeof v);
    return v;
}

VEC_FN vf load_any_part(const char *x, enum kr_dtype dtype, size_t bytes)
{
    char part[VEC * sizeof(float)] = {0};
    memcpy(part, x, bytes);
    return load_any(part, dtype);
}

ROW_FN void of_bf16(float *out, const char *x, size_t n)
{
    size_t i = 0;
    for (; i + VEC <= n; i += VEC)
        vec_store(out + i, load_any(x + i * 2, KR_BF16));
    if (i < n)
        vec_store_part(out + i, load_any_part(x + i * 2, KR_BF16, (n - i) * 2), n - i);
}

ROW_FN void of_f16(float *restrict out, const char *restrict x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, x + 2 * i, sizeof h);
        out[i] = one_of_f16(h);
    }
}

ROW_FN void of_e4m3(float *restrict out, const uint8_t *restrict x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = one_of_e4m3(x[i]);
}

ROW_FN void of_e5m2(float *restrict out, const uint8_t *restrict x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = one_of_e5m2(x[i]);
}

ROW_FN void to_f32(float *out, const void *x, enum kr_dtype dtype, size_t n)
{
    switch (dtype) {
    case KR_BF16:
        of_bf16(out, x, n);
        break;
    case KR_F16:
        of_f16(out, x, n);
        break;
    case KR_F8_E4M3:
        of_e4m3(out, x, n);
        break;
    case KR_F8_E5M2:
        of_e5m2(out, x, n);
        break;
    default:
        assert(dtype == KR_F32);
        memcpy(out, x, n * sizeof *out);
    }
}

ROW_FN void round_to_bf16(uint16_t *out, const char *x, size_t n)
{
    size_t i = 0;
    for (; i + VEC <= n; i += VEC) {
        vh h = vec_to_bf16(load_any(x + i * 4, KR_F32));
        memcpy(out + i, &h, sizeof h);
    }
    if (i < n) {
        vh h = vec_to_bf16(load_any_part(x + i * 4, KR_F32, (n - i) * 4));
        memcpy(out + i, &h, (n - i) * sizeof *out);
    }
}

/* The other types by way of F32, a piece that stays in the first-level cache at a time. */
ROW_FN void to_bf16(uint16_t *out, const void *x, enum kr_dtype dtype, size_t n)
{
    enum { PIECE = 1024 };
    float piece[PIECE];
    const char *from = x;
    if (dtype == KR_F32) {
        round_to_bf16(out, x, n);
        return;
    }
    if (dtype == KR_BF16) {
        memcpy(out, x, n * sizeof *out);
        return;
    }
    for (size_t i = 0; i < n; i += PIECE) {
        size_t count = n - i < PIECE ? n - i : PIECE;
        to_f32(piece, from + i * kr_dtype_size(dtype), dtype, count);
        round_to_bf16(out + i, (const char *)piece, count);
    }
}

/* ------------------------------------------------------------------------------- norms ------ */

VEC_FN vf act_of(vf x, enum kr_act act)
{
    return act == KR_ACT_SILU ? vec_silu(x) : act == KR_ACT_GELU_TANH ? vec_gelu_tanh(x) : x;
}

VEC_FN void store_any(char *out, enum kr_dtype dtype, vf v)
{
    if (dtype == KR_BF16) {
        vh h = vec_to_bf16(v);
        memcpy(out, &h, sizeof h);
    } else {
        memcpy(out, &v, sizeof v);
    }
}

VEC_FN vf squares(const char *x, enum kr_dtype dtype)
{
    vf v = load_any(x, dtype);
    return v * v;
}

#if defined(VEC_BF16)
/* Two squares a lane at a time, exact before they are added. Whole pairs of vectors only. */
VEC_FN vf bf16_squares(const char *x, size_t n)
{
    __m512 a = _mm512_setzero_ps(), b = a;
    size_t i = 0;
    for (; i + 4 * VEC <= n; i += 4 * VEC) {
        __m512bh p = (__m512bh)_mm512_loadu_si512(x + 2 * i);
        __m512bh q = (__m512bh)_mm512_loadu_si512(x + 2 * i + 64);
        a = _mm512_dpbf16_ps(a, p, p);
        b = _mm512_dpbf16_ps(b, q, q);
    }
    if (i < n) {
        __m512bh p = (__m512bh)_mm512_loadu_si512(x + 2 * i);
        a = _mm512_dpbf16_ps(a, p, p);
    }
    return (vf)_mm512_add_ps(a, b);
}
#endif

VEC_FN float sum_squares(const char *x, enum kr_dtype dtype, size_t n)
{
#if defined(VEC_BF16)
    if (dtype == KR_BF16 && n % (2 * VEC) == 0)
        return vec_sum(bf16_squares(x, n));
#endif
    size_t size = dtype == KR_BF16 ? 2 : 4, i = 0;
    vf a = vec_all(0), b = a, c = a, d = a;
    for (; i + 4 * VEC <= n; i += 4 * VEC) {
        a += squares(x + i * size, dtype);
        b += squares(x + (i + VEC) * size, dtype);
        c += squares(x + (i + 2 * VEC) * size, dtype);
        d += squares(x + (i + 3 * VEC) * size, dtype);
    }
    for (; i + VEC <= n; i += VEC)
        a += squares(x + i * size, dtype);
    if (i < n) {
        vf v = load_any_part(x + i * size, dtype, (n - i) * size);
        b += v * v;
    }
    return vec_sum((a + b) + (c + d));
}

/* One vector's worth from element i on; `part` of it where the row ends. */
VEC_FN vf normed(vf x, float r, const struct row_norm *norm, enum kr_act act, int modulated,
                 size_t i, size_t part)
{
    int whole = part == VEC;
    const float *w = norm->weight + i;
    vf v = x * vec_all(r) * (whole ? vec_load(w) : vec_load_part(w, part));
    if (!modulated)
        return act_of(v, act);
    const float *scale = norm->scale + i, *shift = norm->shift + i;
    vf s = whole ? vec_load(scale) : vec_load_part(scale, part);
    return v * (vec_all(1.0f) + s) + (whole ? vec_load(shift) : vec_load_part(shift, part));
}

VEC_FN void rms_norm_of(char *out, enum kr_dtype out_type, const char *x, enum kr_dtype x_type,
                        const struct row_norm *norm, enum kr_act act, int modulated, size_t n)
{
    size_t out_size = out_type == KR_BF16 ? 2 : 4, x_size = x_type == KR_BF16 ? 2 : 4, i = 0;
    float r = 1.0f / __builtin_sqrtf(sum_squares(x, x_type, n) / (float)n + norm->eps);
    for (; i + VEC <= n; i += VEC)
        store_any(out + i * out_size, out_type,
                  normed(load_any(x + i * x_size, x_type), r, norm, act, modulated, i, VEC));
    if (i < n) {
        char part[VEC * sizeof(float)];
        vf v = load_any_part(x + i * x_size, x_type, (n - i) * x_size);
        store_any(part, out_type, normed(v, r, norm, act, modulated, i, n - i));
        memcpy(out + i * out_size, part, (n - i) * out_size);
    }
}

/* The types and the kind become constants, so that each mixture has its own loop. */
VEC_FN void rms_norm_typed(const struct row_tensor *out, const struct row_tensor *x,
                           const struct row_norm *norm, enum kr_act act, int modulated, size_t n)
{
    if (out->dtype == KR_BF16 && x->dtype == KR_BF16)
        rms_norm_of(out->data, KR_BF16, x->data, KR_BF16, norm, act, modulated, n);
    else if (out->dtype == KR_BF16)
        rms_norm_of(out->data, KR_BF16, x->data, KR_F32, norm, act, modulated, n);
    else if (x->dtype == KR_BF16)
        rms_norm_of(out->data, KR_F32, x->data, KR_BF16, norm, act, modulated, n);
    else
        rms_norm_of(out->data, KR_F32, x->data, KR_F32, norm, act, modulated, n);
}

ROW_FN void rms_norm(const struct row_tensor *out, const struct row_tensor *x,
                     const struct row_norm *norm, size_t n)
{
    if (norm->scale)
        rms_norm_typed(out, x, norm, KR_ACT_NONE, 1, n);
    else if (norm->act == KR_ACT_SILU)
        rms_norm_typed(out, x, norm, KR_ACT_SILU, 0, n);
    else if (norm->act == KR_ACT_GELU_TANH)
        rms_norm_typed(out, x, norm, KR_ACT_GELU_TANH, 0, n);
    else
        rms_norm_typed(out, x, norm, KR_ACT_NONE, 0, n);
}

ROW_FN void act_row(float *x, enum kr_act act, size_t n)
{
#define SILU(GET, PUT) PUT(x + i, vec_silu(GET(x + i)))
#define GELU(GET, PUT) PUT(x + i, vec_gelu_tanh(GET(x + i)))
    if (act == KR_ACT_SILU)
        EACH(n, SILU);
    else if (act == KR_ACT_GELU_TANH)
        EACH(n, GELU);
}

/* Pairs (i, i + d/2), or (2i, 2i + 1). */
ROW_FN void rope_halves(float *x, const float *cos, const float *sin, size_t half)
{
    float *y = x + half;
#define ROTATE(GET, PUT)                                                                           \
    vf a = GET(x + i), b = GET(y + i), c = GET(cos + i), s = GET(sin + i);                         \
    PUT(x + i, a * c - b * s);                                                                     \
    PUT(y + i, b * c + a * s)
    EACH(half, ROTATE);
}

ROW_FN void rope_interleaved(float *x, const float *cos, const float *sin, size_t half)
{
    size_t i = 0;
    for (; i + VEC <= half; i += VEC) {
        vf p = vec_load(x + 2 * i), q = vec_load(x + 2 * i + VEC);
        vf a = __builtin_shufflevector(p, q, VEC_EVEN), b = __builtin_shufflevector(p, q, VEC_ODD);
        vf c = vec_load(cos + i), s = vec_load(sin + i);
        vf u = a * c - b * s, v = b * c + a * s;
        vec_store(x + 2 * i, __builtin_shufflevector(u, v, VEC_LOW));
        vec_store(x + 2 * i + VEC, __builtin_shufflevector(u, v, VEC_HIGH));
    }
    for (; i < half; i++) {
        float a = x[2 * i], b = x[2 * i + 1];
        x[2 * i] = a * cos[i] - b * sin[i];
        x[2 * i + 1] = b * cos[i] + a * sin[i];
    }
}

ROW_FN void rope(float *x, const float *cos, const float *sin, size_t d, enum kr_rope_pairs pairs)
{
    if (pairs == KR_ROPE_HALVES)
        rope_halves(x, cos, sin, d / 2);
    else
        rope_interleaved(x, cos, sin, d / 2);
}

/* --------------------------------------------------------------------------- element-wise ------
 */

ROW_FN void swiglu(float *out, const float *gate, const float *up, size_t n)
{
#define SWIGLU(GET, PUT) PUT(out + i, vec_silu(GET(gate + i)) * GET(up + i))
    EACH(n, SWIGLU);
}

ROW_FN void mul_sigmoid(float *x, const float *gate, size_t n)
{
#define MUL_SIGMOID(GET, PUT) PUT(x + i, GET(x + i) * vec_sigmoid(GET(gate + i)))
    EACH(n, MUL_SIGMOID);
}

ROW_FN void add(float *out, const float *a, const float *b, size_t n)
{
#define ADD(GET, PUT) PUT(out + i, GET(a + i) + GET(b + i))
    EACH(n, ADD);
}

ROW_FN void add_scaled(float *y, float a, const float *x, size_t n)
{
#define ADD_SCALED(GET, PUT) PUT(y + i, GET(y + i) + vec_all(a) * GET(x + i))
    EACH(n, ADD_SCALED);
}

ROW_FN void guide(float *v, const float *uncond, float guidance, size_t n)
{
#define GUIDE(GET, PUT) PUT(v + i, GET(v + i) + vec_all(guidance) * (GET(v + i) - GET(uncond + i)))
    EACH(n, GUIDE);
}

ROW_FN void scale_shift(float *out, const float *x, const float *scale, const float *shift,
                        size_t n)
{
#define SCALE_SHIFT(GET, PUT) PUT(out + i, GET(x + i) * GET(scale + i) + GET(shift + i))
    EACH(n, SCALE_SHIFT);
}

/* x - x is 0 for all finite x, else NaN. */
ROW_FN int finite(const float *x, size_t n)
{
    vi bad = {0};
#define FINITE(GET, PUT)                                                                           \
    vf v = GET(x + i);                                                                             \
    bad |= v - v != v - v
    EACH(n, FINITE);
    int any = 0;
    for (int i = 0; i < VEC; i++)
        any |= bad[i];
    return !any;
}

/* --------------------------------------------------------------------- after a product ------ */

ROW_FN void finish(float *out, const float *c, float scale, const float *bias, enum kr_act act,
                   size_t n)
{
#define FINISH(GET, PUT)                                                                           \
    vf v = GET(c + i) * vec_all(scale);                                                            \
    if (bias)                                                                                      \
        v += GET(bias + i);                                                                        \
    PUT(out + i, act_of(v, act))
    EACH(n, FINISH);
}

ROW_FN void finish_add(float *y, const float *c, float scale, const float *bias, const float *gate,
                       size_t n)
{
#define FINISH_ADD(GET, PUT)                                                                       \
    vf v = GET(c + i) * vec_all(scale);                                                            \
    if (bias)                                                                                      \
        v += GET(bias + i);                                                                        \
    if (gate)                                                                                      \
        v *= GET(gate + i);                                                                        \
    PUT(y + i, GET(y + i) + v)
    EACH(n, FINISH_ADD);
}

/* ----------------------------------------------------------------------------- softmax ------ */

ROW_FN float top(const float *x, size_t n)
{
    if (n < VEC) {
        float most = x[0];
        for (size_t i = 1; i < n; i++)
            most = x[i] > most ? x[i] : most;
        return most;
    }
    vf most = vec_load(x + n - VEC);
    for (size_t i = 0; i + VEC <= n; i += VEC)
        most = vec_max(most, vec_load(x + i));
    return vec_top(most);
}

ROW_FN float exp_sum(float *s, float most, size_t n)
{
    vf sum = vec_all(0);
    size_t i = 0;
    for (; i + VEC <= n; i += VEC) {
        vf e = vec_exp(vec_load(s + i) - vec_all(most));
        vec_store(s + i, e);
        sum += e;
    }
    if (i < n) {
        vec_store_part(s + i, vec_exp(vec_load_part(s + i, n - i) - vec_all(most)), n - i);
        sum += vec_load_part(s + i, n - i);
    }
    return vec_sum(sum);
}

ROW_FN void scale_row(float *x, float a, size_t n)
{
#define SCALE(GET, PUT) PUT(x + i, GET(x + i) * vec_all(a))
    EACH(n, SCALE);
}

const struct row_kernels ROW_KERNELS = {
    .to_f32 = to_f32,
    .to_bf16 = to_bf16,
    .rms_norm = rms_norm,
    .act = act_row,
    .rope = rope,
    .swiglu = swiglu,
    .mul_sigmoid = mul_sigmoid,
    .add = add,
    .add_scaled = add_scaled,
    .guide = guide,
    .scale_shift = scale_shift,
    .finite = finite,
    .finish = finish,
    .finish_add = finish_add,
    .top = top,
    .exp_sum = exp_sum,
    .scale = scale_row,
};
