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
    return (struct kr_tensor){(void *)(uintptr_t)w->data, w->dtype, 2, {w->out, w->in}, 0};
}

static int is_map(const struct kr_tensor *out, const struct kr_tensor *x, const struct kr_weight *w)
{
    return is_weight(w) && is_real(out) && is_input(x) && kr_rows(out) == kr_rows(x) &&
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

static int are_parts(const struct kr_tensor *out, const struct kr_tensor *x,
                     const struct kr_weight *const *w, int count)
{
    int64_t cols = 0;
    for (int i = 0; i < count; i++) {
        if (!is_weight(w[i]) || w[i]->in != kr_cols(x) || w[i]->bias.data)
            return 0;
        cols += w[i]->out;
    }
    return is_columns(out) && is_input(x) && kr_rows(out) == kr_rows(x) && kr_cols(out) == cols &&
           is_apart(out, x);
}

static void one_by_one(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x,
                       const struct kr_weight *const *w, int count)
{
    for (int64_t i = 0, at = 0; i < count; at += w[i++]->out)
        dev->backend->linear(dev, kr_columns(out, at, w[i]->out), x, w[i], KR_ACT_NONE);
}

void kr_linear_many(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x,
                    const struct kr_weight *const *w, int count)
{
    if (KR_FITS(dev, "kr_linear_many", count > 0 && are_parts(&out, &x, w, count),
                "out[n,N1+N2+..] = x[n,K] times W[N1,K], W[N2,K], .. without biases", {"out", &out},
                {"x", &x}))
        (dev->backend->linear_many ? dev->backend->linear_many : one_by_one)(dev, out, x, w, count);
}

enum kr_dtype kr_input_dtype(const struct kr_device *dev, const struct kr_weight *const *w,
                             int count)
{
    return dev->backend->input_dtype ? dev->backend->input_dtype(dev, w, count) : dev->compute;
}

void kr_linear_add(struct kr_device *dev, struct kr_tensor y, struct kr_tensor gate,
                   struct kr_tensor x, const struct kr_weight *w)
{
    struct kr_tensor shape = weight_shape(w);
    int gated = !gate.data || (is_vector(&gate, w->out) && is_apart(&y, &gate) && !w->bias.data);
    if (KR_FITS(dev, "kr_linear_add", gated && is_f32(&y) && is_map(&y, &x, w),
                "y[n,N] += gate[N] (x[n,K] W[N,K]) with y and gate F32, a gate or a bias",
                {"y", &y}, {"x", &x}, {"W", &shape}))
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

static int attends(const struct kr_tensor *out, const struct kr_attention *a)
{
    const struct kr_tensor *q = &a->q, *k = &a->k, *v = &a->v;
    if (!is_real(out) || !is_columns(q) || !is_columns(k) || !is_columns(v) || q->rank < 2 ||
        q->rank > 3 || k->rank < 2 || k->rank > 3)
        return 0;
    if (a->heads < 1 || a->kv_heads < 1 || a->heads % a->kv_heads || kr_cols(q) % a->heads)
        return 0;
    return is_same_shape(out, q) && is_same_shape(k, v) && batch_of(q) == batch_of(k) &&
           kr_cols(k) == kr_cols(q) / a->heads * a->kv_heads &&
           (a->mask == KR_MASK_NONE || length_of(q) == length_of(k)) && is_apart(out, q) &&
           is_apart(out, k) && is_apart(out, v) &&
           (!a->gate.data ||
            (is_columns(&a->gate) && is_same_shape(&a->gate, q) && is_apart(out, &a->gate)));
}

void kr_attention(struct kr_device *dev, struct kr_tensor out, const struct kr_attention *a)
{
    if (KR_FITS(dev, "kr_attention", attends(&out, a),
                "q, gate and out [b,n,heads*d], k and v [b,m,kv_heads*d], kv_heads dividing heads, "
                "n = m when causal",
                {"out", &out}, {"q", &a->q}, {"k", &a->k}, {"v", &a->v}))
        dev->backend->attention(dev, out, a);
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
        (void *)(uintptr_t)c->data, c->dtype, 4, {c->out, c->in, c->kh, c->kw}, 0};
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
