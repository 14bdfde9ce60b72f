/* SPDX-License-Identifier: Apache-2.0
 *
 * The checks of everything that works element by element or row by row, pictures included.
 */
#include "kernels/check.h"

#include <math.h>

void kr_copy(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x)
{
    if (KR_FITS(dev, "kr_copy",
                is_columns(&out) && is_columns(&x) && kr_count(&out) == kr_count(&x) &&
                    ((!out.stride && !x.stride) || kr_cols(&out) == kr_cols(&x)) &&
                    is_apart(&out, &x),
                "as many elements in out as in x, and as many columns where either is columns",
                {"out", &out}, {"x", &x}) &&
        kr_live(dev))
        dev->backend->copy(dev, out, x);
}

void kr_rms_norm(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x,
                 struct kr_tensor weight, float eps, enum kr_act act)
{
    struct kr_tensor none = {0};
    if (KR_FITS(dev, "kr_rms_norm",
                is_input(&out) && is_real(&x) && is_same_shape(&out, &x) &&
                    is_vector(&weight, kr_cols(&x)) && is_same_or_apart(&out, &x),
                "out shaped like x and a weight F32 [cols]", {"out", &out}, {"x", &x},
                {"weight", &weight}) &&
        kr_live(dev))
        dev->backend->rms_norm(dev, out, none, x, weight, eps, act, none, none);
}

void kr_rms_norm_modulate(struct kr_device *dev, struct kr_tensor out, struct kr_tensor also,
                          struct kr_tensor x, struct kr_tensor weight, float eps,
                          struct kr_tensor scale, struct kr_tensor shift)
{
    int64_t n = kr_cols(&x);
    int both = !also.data || (is_real(&also) && is_same_shape(&also, &x) && is_apart(&also, &x) &&
                              is_apart(&also, &out));
    if (KR_FITS(dev, "kr_rms_norm_modulate",
                both && is_input(&out) && is_real(&x) && is_same_shape(&out, &x) &&
                    is_vector(&weight, n) && is_vector(&scale, n) && is_vector(&shift, n) &&
                    is_same_or_apart(&out, &x),
                "out and also shaped like x; weight, scale and shift F32 [cols]", {"out", &out},
                {"x", &x}, {"weight", &weight}, {"scale", &scale}, {"shift", &shift}) &&
        kr_live(dev))
        dev->backend->rms_norm(dev, out, also, x, weight, eps, KR_ACT_NONE, scale, shift);
}

static int rotates(const struct kr_tensor *x, int64_t d, const struct kr_rope *rope)
{
    if (!rope)
        return 1;
    int64_t n = x->dim[x->rank - 2];
    return d % 2 == 0 && is_f32(&rope->cos) && is_same_shape(&rope->cos, &rope->sin) &&
           is_f32(&rope->sin) && rope->cos.rank == 2 && rope->cos.dim[0] == n &&
           rope->cos.dim[1] == d / 2 && rope->cos.data && rope->sin.data;
}

/* x[..,n,heads*d] by weight[d]; out of d what both have to agree on */
static int are_heads(const struct kr_tensor *x, const struct kr_tensor *weight,
                     const struct kr_rope *rope)
{
    return is_columns(x) && x->rank >= 2 && is_f32(weight) && kr_cols(x) % kr_count(weight) == 0 &&
           rotates(x, kr_count(weight), rope);
}

void kr_qk_norm_rope(struct kr_device *dev, const struct kr_qk *qk, float eps,
                     const struct kr_rope *rope)
{
    if (KR_FITS(dev, "kr_qk_norm_rope",
                are_heads(&qk->q, &qk->q_weight, rope) && are_heads(&qk->k, &qk->k_weight, rope) &&
                    kr_count(&qk->q_weight) == kr_count(&qk->k_weight) &&
                    qk->q.dtype == qk->k.dtype && kr_rows(&qk->q) == kr_rows(&qk->k) &&
                    is_apart(&qk->q, &qk->k),
                "q[..,n,heads*d] and k[..,n,kv_heads*d] of one type, weights F32 [d], cos and sin "
                "F32 [n,d/2]",
                {"q", &qk->q}, {"k", &qk->k}, {"q_weight", &qk->q_weight},
                {"k_weight", &qk->k_weight}) &&
        kr_live(dev))
        dev->backend->qk_norm_rope(dev, qk, eps, rope);
}

static int is_pointwise(const struct kr_tensor *out, const struct kr_tensor *a,
                        const struct kr_tensor *b)
{
    return is_real(out) && is_real(a) && is_real(b) && is_same_shape(out, a) &&
           is_same_shape(out, b) && is_same_or_apart(out, a) && is_same_or_apart(out, b);
}

/* The same where columns come in and an input goes out. */
static int is_gated(const struct kr_tensor *out, const struct kr_tensor *a,
                    const struct kr_tensor *b)
{
    return is_input(out) && is_columns(a) && is_columns(b) && is_same_shape(out, a) &&
           is_same_shape(out, b) && is_same_or_apart(out, a) && is_same_or_apart(out, b);
}

void kr_swiglu(struct kr_device *dev, struct kr_tensor out, struct kr_tensor gate,
               struct kr_tensor up)
{
    if (KR_FITS(dev, "kr_swiglu", is_gated(&out, &gate, &up), "three equal shapes", {"out", &out},
                {"gate", &gate}, {"up", &up}) &&
        kr_live(dev))
        dev->backend->swiglu(dev, out, gate, up);
}

void kr_mul_sigmoid(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x,
                    struct kr_tensor gate)
{
    if (KR_FITS(dev, "kr_mul_sigmoid", is_gated(&out, &x, &gate) && is_apart(&out, &gate),
                "three equal shapes", {"out", &out}, {"x", &x}, {"gate", &gate}) &&
        kr_live(dev))
        dev->backend->mul_sigmoid(dev, out, x, gate);
}

void kr_gelu_tanh(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x)
{
    if (KR_FITS(dev, "kr_gelu_tanh", is_pointwise(&out, &x, &x), "two equal shapes", {"out", &out},
                {"x", &x}) &&
        kr_live(dev))
        dev->backend->gelu_tanh(dev, out, x);
}

void kr_scale_rows(struct kr_device *dev, struct kr_tensor y, struct kr_tensor factors)
{
    if (KR_FITS(dev, "kr_scale_rows", is_real(&y) && is_vector(&factors, kr_rows(&y)),
                "y[n,cols] by F32 [n]", {"y", &y}, {"factors", &factors}) &&
        kr_live(dev))
        dev->backend->scale_rows(dev, y, factors);
}

void kr_add(struct kr_device *dev, struct kr_tensor out, struct kr_tensor a, struct kr_tensor b)
{
    if (KR_FITS(dev, "kr_add",
                is_pointwise(&out, &a, &a) && is_real(&b) && kr_count(&a) % kr_count(&b) == 0 &&
                    (is_apart(&out, &b) ||
                     (kr_count(&a) == kr_count(&b) && is_same_or_apart(&out, &b))),
                "out shaped like a, and a whole multiples of b", {"out", &out}, {"a", &a},
                {"b", &b}) &&
        kr_live(dev))
        dev->backend->add(dev, out, a, b);
}

void kr_add_scaled(struct kr_device *dev, struct kr_tensor y, float a, struct kr_tensor x)
{
    if (KR_FITS(dev, "kr_add_scaled", is_pointwise(&y, &y, &x), "two equal shapes", {"y", &y},
                {"x", &x}) &&
        kr_live(dev))
        dev->backend->add_scaled(dev, y, a, x);
}

void kr_guide(struct kr_device *dev, struct kr_tensor v, struct kr_tensor uncond, float guidance)
{
    if (KR_FITS(dev, "kr_guide", is_f32(&v) && is_f32(&uncond) && is_pointwise(&v, &v, &uncond),
                "two equal shapes in F32", {"v", &v}, {"uncond", &uncond}) &&
        kr_live(dev))
        dev->backend->guide(dev, v, uncond, guidance);
}

void kr_mix_taps(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x,
                 struct kr_tensor weight)
{
    if (KR_FITS(dev, "kr_mix_taps",
                is_real(&out) && is_real(&x) && x.rank == 3 && kr_rows(&out) == x.dim[0] &&
                    kr_cols(&out) == x.dim[2] && is_vector(&weight, x.dim[1]) && is_apart(&out, &x),
                "out[n,cols] of x[n,taps,cols] and a weight F32 [taps]", {"out", &out}, {"x", &x},
                {"weight", &weight}) &&
        kr_live(dev))
        dev->backend->mix_taps(dev, out, x, weight);
}

void kr_timestep(struct kr_device *dev, struct kr_tensor out, float s, float period)
{
    if (KR_FITS(dev, "kr_timestep", is_f32(&out) && kr_count(&out) % 2 == 0 && period > 0,
                "out F32 of even length and a period above 0", {"out", &out}) &&
        kr_live(dev))
        dev->backend->timestep(dev, out, s, period);
}

static int is_patches(const struct kr_tensor *tokens, const struct kr_tensor *z)
{
    return is_real(tokens) && is_f32(z) && z->rank == 3 && tokens->rank == 2 &&
           z->dim[1] % 2 == 0 && z->dim[2] % 2 == 0 &&
           tokens->dim[0] == z->dim[1] / 2 * (z->dim[2] / 2) && tokens->dim[1] == z->dim[0] * 4 &&
           is_apart(tokens, z);
}

void kr_patchify(struct kr_device *dev, struct kr_tensor out, struct kr_tensor z)
{
    if (KR_FITS(dev, "kr_patchify", is_patches(&out, &z),
                "out[h/2*w/2,c*4] of z F32 [c,h,w] with even h and w", {"out", &out}, {"z", &z}) &&
        kr_live(dev))
        dev->backend->patchify(dev, out, z);
}

void kr_unpatchify(struct kr_device *dev, struct kr_tensor z, struct kr_tensor tokens)
{
    if (KR_FITS(dev, "kr_unpatchify", is_patches(&tokens, &z),
                "z F32 [c,h,w] with even h and w of tokens[h/2*w/2,c*4]", {"z", &z},
                {"tokens", &tokens}) &&
        kr_live(dev))
        dev->backend->unpatchify(dev, z, tokens);
}

/* ---------------------------------------------------------------------------- pictures ------ */

static int is_turned(const struct kr_tensor *pixels, const struct kr_tensor *planes)
{
    return is_real(pixels) && is_real(planes) && pixels->rank == 3 && planes->rank == 3 &&
           pixels->dim[0] == planes->dim[1] && pixels->dim[1] == planes->dim[2] &&
           pixels->dim[2] == planes->dim[0] && is_apart(pixels, planes);
}

void kr_planes_to_pixels(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x)
{
    if (KR_FITS(dev, "kr_planes_to_pixels", is_turned(&out, &x), "out[h,w,c] of x[c,h,w]",
                {"out", &out}, {"x", &x}) &&
        kr_live(dev))
        dev->backend->planes_to_pixels(dev, out, x);
}

void kr_pixels_to_planes(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x)
{
    if (KR_FITS(dev, "kr_pixels_to_planes", is_turned(&x, &out), "out[c,h,w] of x[h,w,c]",
                {"out", &out}, {"x", &x}) &&
        kr_live(dev))
        dev->backend->pixels_to_planes(dev, out, x);
}

void kr_scale_shift(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x,
                    struct kr_tensor scale, struct kr_tensor shift)
{
    if (KR_FITS(dev, "kr_scale_shift",
                is_pointwise(&out, &x, &x) && is_vector(&scale, kr_cols(&x)) &&
                    is_vector(&shift, kr_cols(&x)),
                "out shaped like x; scale and shift F32 [cols]", {"out", &out}, {"x", &x},
                {"scale", &scale}, {"shift", &shift}) &&
        kr_live(dev))
        dev->backend->scale_shift(dev, out, x, scale, shift);
}

void kr_upsample2(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x)
{
    if (KR_FITS(dev, "kr_upsample2",
                is_real(&out) && is_real(&x) && x.rank == 3 && out.rank == 3 &&
                    out.dim[0] == 2 * x.dim[0] && out.dim[1] == 2 * x.dim[1] &&
                    out.dim[2] == x.dim[2] && is_apart(&out, &x),
                "out[2h,2w,c] of x[h,w,c]", {"out", &out}, {"x", &x}) &&
        kr_live(dev))
        dev->backend->upsample2(dev, out, x);
}

int kr_repeat_begin(struct kr_device *dev, struct kr_repeat key)
{
    return !dev->backend->repeat_begin || !kr_live(dev) || dev->backend->repeat_begin(dev, key);
}

void kr_repeat_end(struct kr_device *dev)
{
    if (dev->backend->repeat_end && !dev->planning)
        dev->backend->repeat_end(dev);
}

void kr_check_finite(struct kr_device *dev, struct kr_tensor x, const char *what)
{
    if (KR_FITS(dev, "kr_check_finite", is_real(&x), "F32 or BF16", {"x", &x}) && kr_live(dev))
        dev->backend->check_finite(dev, x, what);
}
