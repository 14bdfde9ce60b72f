/* SPDX-License-Identifier: Apache-2.0
 *
 * The checks of everything that multiplies matrices: linear maps, embeddings, attention,
 * convolutions. What they ask for is the contract in kernels.h.
 */
#include "kernels/check.h"

#include <math.h>

static int is_weight(const struct kr_weight *w)
{
    int known = w->dtype == KR_F32 || w->dtype == KR_BF16 || w->dtype == KR_F16 ||
                w->dtype == KR_F8_E4M3 || w->dtype == KR_F8_E5M2;
    int scaled = isfinite(w->scale) && w->scale != 0;
    return w->data && known && scaled && w->out > 0 && w->in > 0 &&
           (!w->bias.data || is_vector(&w->bias, w->out));
}

/* A weight as a tensor, for messages. */
static struct kr_tensor weight_shape(const struct kr_weight *w)
{
    return (struct kr_tensor){(void *)(uintptr_t)w->data, w->dtype, 2, {w->out, w->in}};
}

static int is_map(const struct kr_tensor *out, const struct kr_tensor *x, const struct kr_weight *w)
{
    return is_weight(w) && is_real(out) && is_real(x) && kr_rows(out) == kr_rows(x) &&
           kr_cols(x) == w->in && kr_cols(out) == w->out && is_apart(out, x);
}

void kr_linear(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x,
               const struct kr_weight *w, enum kr_act act)
{
    struct kr_tensor shape = weight_shape(w);
    if (KR_FITS(dev, "kr_linear", is_map(&out, &x, w),
                "out[n,N] = x[n,K] W[N,K] with a finite scale and a bias of N F32 or none",
                {"out", &out}, {"x", &x}, {"W", &shape}))
        dev->backend->linear(dev, out, x, w, act);
}

void kr_linear_add(struct kr_device *dev, struct kr_tensor y, struct kr_tensor gate,
                   struct kr_tensor x, const struct kr_weight *w)
{
    struct kr_tensor shape = weight_shape(w);
    int gated = !gate.data || (is_vector(&gate, w->out) && is_apart(&y, &gate));
    if (KR_FITS(dev, "kr_linear_add", gated && is_f32(&y) && is_map(&y, &x, w),
                "y[n,N] += gate[N] (x[n,K] W[N,K]) with y and gate F32", {"y", &y}, {"x", &x},
                {"W", &shape}))
        dev->backend->linear_add(dev, y, gate, x, w);
}

void kr_embed(struct kr_device *dev, struct kr_tensor out, const struct kr_weight *w,
              const int32_t *ids, int64_t n)
{
    struct kr_tensor shape = weight_shape(w);
    if (!KR_FITS(dev, "kr_embed",
                 is_weight(w) && is_real(&out) && kr_rows(&out) == n && kr_cols(&out) == w->in,
                 "out[n,N] of W[vocabulary,N] for n ids", {"out", &out}, {"W", &shape}))
        return;
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] >= 0 && ids[i] < w->out)
            continue;
        kr_fault_set(dev, KR_FAULT_MISUSE,
                     "kr_embed: token id %d lies outside the %lld of the "
                     "embedding",
                     ids[i], (long long)w->out);
        return;
    }
    if (kr_live(dev))
        dev->backend->embed(dev, out, w, ids, n);
}

static int64_t batch_of(const struct kr_tensor *t)
{
    return t->rank == 3 ? t->dim[0] : 1;
}

static int64_t length_of(const struct kr_tensor *t)
{
    return t->dim[t->rank - 2];
}

static int attends(const struct kr_tensor *out, const struct kr_tensor *q,
                   const struct kr_tensor *k, const struct kr_tensor *v, int64_t heads,
                   int64_t kv_heads, enum kr_mask mask)
{
    if (!is_real(out) || !is_real(q) || !is_real(k) || !is_real(v) || q->rank < 2 || q->rank > 3 ||
        k->rank < 2 || k->rank > 3)
        return 0;
    if (heads < 1 || kv_heads < 1 || heads % kv_heads || kr_cols(q) % heads)
        return 0;
    return is_same_shape(out, q) && is_same_shape(k, v) && batch_of(q) == batch_of(k) &&
           kr_cols(k) == kr_cols(q) / heads * kv_heads &&
           (mask == KR_MASK_NONE || length_of(q) == length_of(k)) && is_apart(out, q) &&
           is_apart(out, k) && is_apart(out, v);
}

void kr_attention(struct kr_device *dev, struct kr_tensor out, struct kr_tensor q,
                  struct kr_tensor k, struct kr_tensor v, int64_t heads, int64_t kv_heads,
                  enum kr_mask mask)
{
    if (KR_FITS(dev, "kr_attention", attends(&out, &q, &k, &v, heads, kv_heads, mask),
                "q and out [b,n,heads*d], k and v [b,m,kv_heads*d], kv_heads dividing heads, n = m "
                "when causal",
                {"out", &out}, {"q", &q}, {"k", &k}, {"v", &v}))
        dev->backend->attention(dev, out, q, k, v, heads, kv_heads, mask);
}

static int convolves(const struct kr_tensor *out, const struct kr_tensor *x,
                     const struct kr_conv *c)
{
    int known = c->dtype == KR_F32 || c->dtype == KR_BF16 || c->dtype == KR_F16;
    return c->data && known && c->out > 0 && c->in > 0 && c->kt > 0 && c->kh == c->kw &&
           (c->kh == 1 || c->kh == 3) && (!c->bias.data || is_vector(&c->bias, c->out)) &&
           is_real(out) && is_real(x) && out->rank == 3 && x->rank == 3 &&
           out->dim[0] == x->dim[0] && out->dim[1] == x->dim[1] && out->dim[2] == c->out &&
           x->dim[2] == c->in && is_apart(out, x);
}

static struct kr_tensor conv_shape(const struct kr_conv *c)
{
    return (struct kr_tensor){
        (void *)(uintptr_t)c->data, c->dtype, 4, {c->out, c->in, c->kh, c->kw}};
}

void kr_conv2d(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x,
               struct kr_conv *conv)
{
    struct kr_tensor shape = conv_shape(conv);
    if (KR_FITS(dev, "kr_conv2d", convolves(&out, &x, conv),
                "out[h,w,out] of x[h,w,in] and a kernel [out,in,k,k] with k 1 or 3", {"out", &out},
                {"x", &x}, {"kernel", &shape}))
        dev->backend->conv2d(dev, out, x, conv);
}

void kr_conv2d_add(struct kr_device *dev, struct kr_tensor y, struct kr_tensor x,
                   struct kr_conv *conv)
{
    struct kr_tensor shape = conv_shape(conv);
    if (KR_FITS(dev, "kr_conv2d_add", y.dtype == KR_F32 && convolves(&y, &x, conv),
                "y[h,w,out] F32, x[h,w,in] and a kernel [out,in,k,k] with k 1 or 3", {"y", &y},
                {"x", &x}, {"kernel", &shape}))
        dev->backend->conv2d_add(dev, y, x, conv);
}
