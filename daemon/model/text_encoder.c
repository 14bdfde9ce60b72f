/* SPDX-License-Identifier: Apache-2.0
 *
 * Qwen3-VL's text model, as far as Krea 2 looks into it: the states behind layers 2, 5, ... 35 (the
 * last layer and the final norm are never run). With text alone its three-axis rotary positions are
 * 0..n-1 on every axis, which makes them ordinary ones.
 *
 * Shapes in comments: n tokens, D width, cd the device's compute type.
 */
#include "daemon/model/text_encoder.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/rope.h"
#include "daemon/model/shapes.h"

enum {
    FIRST_TAP = 2,                                        /* layers before the first tap ... */
    TAP_STEP = 3,                                         /* ... and between taps */
    USED_LAYERS = FIRST_TAP + TAP_STEP * (TEXT_TAPS - 1), /* 35 */
    FULL_WIDTH = 2560                                     /* of Qwen3-VL-4B, and of Qwen3-4B */
};

static const float norm_eps = 1e-6f;
static const double rope_theta = 5e6;

/* -------------------------------------------------------------------------------- binding ---- */

int text_encoder_open(const char *path, struct weights **weights, struct kr_err *err)
{
    static const char *const prefixes[] = {"", "model.", "model.language_model.",
                                           "language_model.model.", NULL};

    return weights_open(path, "text encoder", prefixes, "layers.0.input_layernorm.weight", weights,
                        err);
}

static int read_sizes(struct text_encoder *te, const struct weights *w, struct kr_err *err)
{
    struct model_heads size;

    if (model_size(w, "embed_tokens.weight", 0, &te->vocabulary, err) ||
        model_size(w, "embed_tokens.weight", 1, &te->width, err) ||
        model_size(w, "layers.0.mlp.gate_proj.weight", 0, &te->hidden, err) ||
        model_heads(w, "layers.0.self_attn.q_norm.weight", "layers.0.self_attn.q_proj.weight",
                    "layers.0.self_attn.k_proj.weight", &size, err))
        return -1;
    te->heads = size.heads;
    te->kv_heads = size.kv_heads;
    te->head = size.head;
    te->layer_count = model_layers(w, "layers.");
    if (te->layer_count <= USED_LAYERS)
        return kr_fail(err, KR_BAD_FILE,
                       "%s: it has %lld layers, and Krea 2 takes its text from a Qwen3-VL of %d",
                       weights_name(w), (long long)te->layer_count, USED_LAYERS + 1);
    return 0;
}

static void bind_layer(struct binder *b, const struct text_encoder *te, int64_t index)
{
    struct text_layer *l = &te->layers[index];
    int64_t q = te->heads * te->head, kv = te->kv_heads * te->head;
    char layer[64];

    snprintf(layer, sizeof(layer), "layers.%lld.", (long long)index);
    bind_vector(b, &l->input_norm, te->width, 0, 0, "%sinput_layernorm.weight", layer);
    bind_linear(b, &l->q, q, te->width, "%sself_attn.q_proj", layer);
    bind_linear(b, &l->k, kv, te->width, "%sself_attn.k_proj", layer);
    bind_linear(b, &l->v, kv, te->width, "%sself_attn.v_proj", layer);
    bind_linear(b, &l->o, te->width, q, "%sself_attn.o_proj", layer);
    bind_vector(b, &l->q_norm, te->head, 0, 0, "%sself_attn.q_norm.weight", layer);
    bind_vector(b, &l->k_norm, te->head, 0, 0, "%sself_attn.k_norm.weight", layer);
    bind_vector(b, &l->post_norm, te->width, 0, 0, "%spost_attention_layernorm.weight", layer);
    bind_linear(b, &l->gate, te->hidden, te->width, "%smlp.gate_proj", layer);
    bind_linear(b, &l->up, te->hidden, te->width, "%smlp.up_proj", layer);
    bind_linear(b, &l->down, te->width, te->hidden, "%smlp.down_proj", layer);
}

static int check_vision(const struct text_encoder *te, const struct weights *w, bool without_vision,
                        struct kr_err *err)
{
    if (te->width != FULL_WIDTH || without_vision || weights_count(w, "visual.") > 0 ||
        weights_count(w, "model.visual.") > 0)
        return 0;
    return kr_fail(err, KR_BAD_FILE,
                   "%s: it has no model.visual tensors, so it may be Z-Image's Qwen3-4B, which has "
                   "the shapes of Krea 2's Qwen3-VL-4B and gives wrong pictures; take "
                   "qwen3vl_4b_*.safetensors, or set text_encoder_without_vision = yes if it is a "
                   "Qwen3-VL without its vision",
                   weights_name(w));
}

int text_encoder_bind(struct text_encoder *te, const struct weights *weights, bool without_vision,
                      struct kr_device *dev, struct kr_err *err)
{
    struct binder b;

    memset(te, 0, sizeof(*te));
    if (read_sizes(te, weights, err) || check_vision(te, weights, without_vision, err))
        return -1;
    te->layers = calloc((size_t)te->layer_count, sizeof(*te->layers));
    if (te->layers == NULL)
        return kr_fail(err, KR_NO_MEMORY, "no memory for the table of the text encoder's layers");
    if (binder_init(&b, weights, dev, err)) {
        text_encoder_fini(te, dev);
        return -1;
    }
    for (int64_t i = 0; i < te->layer_count; i++)
        bind_layer(&b, te, i);
    bind_linear(&b, &te->embed, te->vocabulary, te->width, "embed_tokens");
    bind_ignore(&b, "norm.weight"); /* behind the last layer, which is never run */
    if (binder_end(&b)) {
        text_encoder_fini(te, dev);
        return -1;
    }
    return 0;
}

void text_encoder_fini(struct text_encoder *te, struct kr_device *dev)
{
    for (int64_t i = 0; dev != NULL && te->layers != NULL && i < te->layer_count; i++) {
        kr_persist_free(dev, &te->layers[i].input_norm);
        kr_persist_free(dev, &te->layers[i].post_norm);
        kr_persist_free(dev, &te->layers[i].q_norm);
        kr_persist_free(dev, &te->layers[i].k_norm);
    }
    free(te->layers);
    memset(te, 0, sizeof(*te));
}

/* -------------------------------------------------------------------------------- forward ---- */

static void place_token(const void *of, int64_t i, int64_t at[ROPE_AXES])
{
    (void)of;
    at[0] = i;
    at[1] = at[2] = 0;
}

/* x += o(attention(norm(x))); h [n, D] is room for the norm. */
static void attend(const struct text_encoder *te, const struct text_layer *l, struct kr_device *dev,
                   struct kr_tensor x, struct kr_tensor h, const struct kr_rope *rope)
{
    int64_t n = x.dim[0];
    struct kr_mark mark = kr_arena_mark(dev);
    const struct kr_weight *const in[] = {&l->q, &l->k, &l->v};
    int64_t wide = l->q.out, kv = l->k.out;
    struct kr_tensor all = kr_new(dev, h.dtype, n, wide + 2 * kv, 0, 0); /* [n, q | k | v] */
    struct kr_tensor o = kr_new(dev, h.dtype, n, wide, 0, 0);
    struct kr_qk qk = {.q = kr_columns(all, 0, wide),
                       .k = kr_columns(all, wide, kv),
                       .q_weight = l->q_norm,
                       .k_weight = l->k_norm};
    struct kr_attention attention = {.q = qk.q,
                                     .k = qk.k,
                                     .v = kr_columns(all, wide + kv, kv),
                                     .heads = te->heads,
                                     .kv_heads = te->kv_heads,
                                     .mask = KR_MASK_CAUSAL};

    kr_rms_norm(dev, h, x, l->input_norm, norm_eps, KR_ACT_NONE);
    kr_linear_many(dev, all, h, in, 3);
    kr_qk_norm_rope(dev, &qk, norm_eps, rope);
    kr_attention(dev, o, &attention);
    kr_linear_add(dev, x, (struct kr_tensor){0}, o, &l->o);
    kr_arena_release(dev, mark);
}

/* x += down(silu(gate(norm(x))) * up(norm(x))) */
static void feed_forward(const struct text_layer *l, struct kr_device *dev, struct kr_tensor x,
                         struct kr_tensor h)
{
    int64_t n = x.dim[0];
    struct kr_mark mark = kr_arena_mark(dev);
    const struct kr_weight *const in[] = {&l->gate, &l->up};
    int64_t hidden = l->gate.out;
    struct kr_tensor both = kr_new(dev, h.dtype, n, 2 * hidden, 0, 0); /* [n, gate | up] */
    struct kr_tensor g = kr_new(dev, h.dtype, n, hidden, 0, 0);

    kr_rms_norm(dev, h, x, l->post_norm, norm_eps, KR_ACT_NONE);
    kr_linear_many(dev, both, h, in, 2);
    kr_swiglu(dev, g, kr_columns(both, 0, hidden), kr_columns(both, hidden, hidden));
    kr_linear_add(dev, x, (struct kr_tensor){0}, g, &l->down);
    kr_arena_release(dev, mark);
}

/* out[i, tap] = x[skip + i] */
static void keep_tap(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x, int64_t tap)
{
    int64_t n = out.dim[0], width = out.dim[2];
    struct kr_tensor wide = kr_reshape(out, n, TEXT_TAPS * width, 0, 0);

    kr_copy(dev, kr_columns(wide, tap * width, width), kr_slice(x, x.dim[0] - n, n));
}

void text_encoder_forward(const struct text_encoder *te, struct kr_device *dev, const int32_t *ids,
                          int64_t n, int64_t skip, struct kr_tensor out)
{
    struct rope_plan plan = {
        .axes = {te->head}, .theta = rope_theta, .pairs = KR_ROPE_HALVES, .place = place_token};
    struct kr_mark mark = kr_arena_mark(dev);
    struct kr_rope rope = rope_tables(dev, &plan, n);
    struct kr_tensor x = kr_new(dev, KR_F32, n, te->width, 0, 0);                /* [n, D] F32 */
    struct kr_tensor h = kr_new(dev, kr_compute_dtype(dev), n, te->width, 0, 0); /* [n, D] cd */

    assert(skip >= 0 && skip < n && out.dim[0] == n - skip);
    kr_embed(dev, x, &te->embed, ids, n);
    for (int64_t i = 0; i < USED_LAYERS; i++) {
        attend(te, &te->layers[i], dev, x, h, &rope);
        feed_forward(&te->layers[i], dev, x, h);
        if ((i + 1 - FIRST_TAP) % TAP_STEP == 0)
            keep_tap(dev, out, x, (i + 1 - FIRST_TAP) / TAP_STEP);
    }
    kr_arena_release(dev, mark);
}
