/* SPDX-License-Identifier: Apache-2.0
 *
 * Krea 2's single-stream diffusion transformer. The sequence is [text | image]: text tokens sit at
 * position 0 of every rotary axis, image tokens at (0, row, column). No token is padding, so
 * nothing is masked. The state (the residual stream) stays in F32; what enters a matrix product is
 * in the device's compute type. Each block takes its temporaries from the arena and gives them
 * back.
 *
 * Shapes in comments: n tokens, b batch, D width, T text width, cd the compute type.
 */
#include "daemon/model/mmdit.h"

#include <assert.h>

#include "daemon/model/rope.h"

static const float norm_eps = 1e-5f;
static const double rope_theta = 1000;
static const float time_period = 10000; /* of the sinusoid that t * 1000 becomes */

static const struct kr_tensor none; /* a gate: the product is added as it is */

/* -------------------------------------------------------------------------- a block's parts -- */

/* The normalised input [b, n, D] of an attention's maps, in what they like best: `gate` is apart
 * where the gate's map likes something else than those of queries, keys and values. */
struct attention_input {
    struct kr_tensor h, gate;
};

static struct attention_input attention_input(const struct mmdit_attention *a,
                                              struct kr_device *dev, struct kr_tensor x)
{
    const struct kr_weight *const w[] = {&a->wq, &a->wk, &a->wv, &a->gate};
    enum kr_dtype qkv = kr_input_dtype(dev, w, 3), gate = kr_input_dtype(dev, w + 3, 1);
    int64_t batch = x.rank == 3 ? x.dim[0] : 1, n = x.dim[x.rank - 2];
    struct attention_input in = {.h = kr_new(dev, qkv, batch, n, kr_cols(&x), 0)};

    if (gate != qkv)
        in.gate = kr_new(dev, gate, batch, n, kr_cols(&x), 0);
    return in;
}

static struct kr_tensor mlp_input(const struct mmdit_mlp *mlp, struct kr_device *dev,
                                  struct kr_tensor x)
{
    const struct kr_weight *const w[] = {&mlp->gate, &mlp->up};

    return kr_new(dev, kr_input_dtype(dev, w, 2), kr_rows(&x), kr_cols(&x), 0, 0);
}

/* [b, n, q | k | v | gate] */
static struct kr_tensor attention_products(const struct mmdit_attention *a, struct kr_device *dev,
                                           const struct attention_input *in)
{
    const struct kr_weight *const w[] = {&a->wq, &a->wk, &a->wv, &a->gate};
    int64_t qkv = a->wq.out + a->wk.out + a->wv.out;
    struct kr_tensor all =
        kr_new(dev, kr_compute_dtype(dev), in->h.dim[0], in->h.dim[1], qkv + a->gate.out, 0);

    if (in->gate.data == NULL) {
        kr_linear_many(dev, all, in->h, w, 4);
    } else {
        kr_linear_many(dev, kr_columns(all, 0, qkv), in->h, w, 3);
        kr_linear_many(dev, kr_columns(all, qkv, a->gate.out), in->gate, w + 3, 1);
    }
    return all;
}

/* x += gate * wo(sigmoid(gate(h)) * attention(h)) */
static void attend(const struct mmdit_attention *a, struct kr_device *dev, struct kr_tensor x,
                   struct kr_tensor gate, const struct attention_input *in,
                   const struct kr_rope *rope)
{
    const struct kr_weight *const out[] = {&a->wo};
    int64_t batch = in->h.dim[0], n = in->h.dim[1], head = kr_cols(&a->q_norm);
    int64_t wide = a->wq.out, kv = a->wk.out;
    struct kr_mark mark = kr_arena_mark(dev);
    struct kr_tensor all = attention_products(a, dev, in);
    struct kr_tensor by = kr_columns(all, wide + 2 * kv, wide);
    struct kr_qk qk = {.q = kr_columns(all, 0, wide),
                       .k = kr_columns(all, wide, kv),
                       .q_weight = a->q_norm,
                       .k_weight = a->k_norm};
    struct kr_attention attention = {.q = qk.q,
                                     .k = qk.k,
                                     .v = kr_columns(all, wide + kv, kv),
                                     .heads = wide / head,
                                     .kv_heads = kv / head};
    struct kr_tensor o = kr_new(dev, all.dtype, batch, n, wide, 0);
    enum kr_dtype best = kr_input_dtype(dev, out, 1);
    struct kr_tensor gated = best == o.dtype ? o : kr_new(dev, best, batch, n, wide, 0);

    kr_qk_norm_rope(dev, &qk, norm_eps, rope);
    if (best == o.dtype)
        attention.gate = by;
    kr_attention(dev, o, &attention);
    if (best != o.dtype)
        kr_mul_sigmoid(dev, gated, o, by);
    kr_linear_add(dev, x, gate, gated, &a->wo);
    kr_arena_release(dev, mark);
}

/* x += gate * down(silu(gate(h)) * up(h)) */
static void feed_forward(const struct mmdit_mlp *mlp, struct kr_device *dev, struct kr_tensor x,
                         struct kr_tensor gate, struct kr_tensor h)
{
    const struct kr_weight *const in[] = {&mlp->gate, &mlp->up}, *const out[] = {&mlp->down};
    int64_t n = kr_rows(&h), hidden = mlp->gate.out;
    struct kr_mark mark = kr_arena_mark(dev);
    struct kr_tensor both = kr_new(dev, kr_compute_dtype(dev), n, 2 * hidden, 0, 0);
    struct kr_tensor g = kr_new(dev, kr_input_dtype(dev, out, 1), n, hidden, 0, 0);

    kr_linear_many(dev, both, h, in, 2); /* [n, gate | up] */
    kr_swiglu(dev, g, kr_columns(both, 0, hidden), kr_columns(both, hidden, hidden));
    kr_linear_add(dev, x, gate, g, &mlp->down);
    kr_arena_release(dev, mark);
}

/* ----------------------------------------------------------------------------------- text ---- */

/* One block of the text fusion on x [b, n, T]: attention within each of the b rows, no positions.
 */
static void text_block(const struct mmdit_text_block *t, struct kr_device *dev, struct kr_tensor x)
{
    struct kr_mark mark = kr_arena_mark(dev);
    struct kr_tensor flat = kr_reshape(x, kr_rows(&x), kr_cols(&x), 0, 0);
    struct attention_input in = attention_input(&t->attn, dev, x);
    struct kr_tensor h2 = mlp_input(&t->mlp, dev, x);

    kr_rms_norm(dev, in.h, x, t->pre_norm, norm_eps, KR_ACT_NONE);
    if (in.gate.data != NULL)
        kr_rms_norm(dev, in.gate, x, t->pre_norm, norm_eps, KR_ACT_NONE);
    attend(&t->attn, dev, x, none, &in, NULL);
    kr_rms_norm(dev, h2, flat, t->post_norm, norm_eps, KR_ACT_NONE);
    feed_forward(&t->mlp, dev, x, none, h2);
    kr_arena_release(dev, mark);
}

void mmdit_text(const struct mmdit *m, struct kr_device *dev, struct kr_tensor text,
                struct kr_tensor taps)
{
    enum kr_dtype cd = kr_compute_dtype(dev);
    int64_t n = taps.dim[0];
    struct kr_mark mark = kr_arena_mark(dev);
    struct kr_tensor mixed = kr_new(dev, KR_F32, 1, n, m->text_width, 0);   /* [1, n, T] */
    struct kr_tensor h = kr_new(dev, cd, n, m->text_width, 0, 0);           /* [n, T] */
    struct kr_tensor g = kr_new(dev, cd, n, m->width, 0, 0);                /* [n, D] */
    struct kr_tensor x = kr_new(dev, KR_F32, n, m->taps, m->text_width, 0); /* [n, 12, T] */

    kr_copy(dev, x, taps);
    for (int i = 0; i < 2; i++)
        text_block(&m->layerwise[i], dev, x); /* the taps of a token look at each other */
    kr_mix_taps(dev, kr_reshape(mixed, n, m->text_width, 0, 0), x, m->projector);
    for (int i = 0; i < 2; i++)
        text_block(&m->refiner[i], dev, mixed); /* the tokens do */
    kr_rms_norm(dev, h, kr_reshape(mixed, n, m->text_width, 0, 0), m->text_norm, norm_eps,
                KR_ACT_NONE);
    kr_linear(dev, g, h, &m->text_in, KR_ACT_GELU_TANH);
    kr_linear(dev, text, g, &m->text_out, KR_ACT_NONE);
    kr_arena_release(dev, mark);
}

/* ------------------------------------------------------------------------------- positions ---- */

struct grid {
    int64_t text, columns; /* tokens of text; image tokens in a row */
};

static void place_token(const void *of, int64_t i, int64_t at[ROPE_AXES])
{
    const struct grid *grid = of;
    int64_t patch = i - grid->text;

    at[0] = 0;
    at[1] = patch < 0 ? 0 : patch / grid->columns;
    at[2] = patch < 0 ? 0 : patch % grid->columns;
}

struct kr_rope mmdit_rope(const struct mmdit *m, struct kr_device *dev, int64_t n, int64_t h,
                          int64_t w)
{
    struct grid grid = {.text = n, .columns = w / m->patch};
    struct rope_plan plan = {
        .axes = {m->rope_axes[0], m->rope_axes[1], m->rope_axes[2]},
        .theta = rope_theta,
        .pairs = KR_ROPE_INTERLEAVED,
        .place = place_token,
        .of = &grid,
    };

    return rope_tables(dev, &plan, n + h / m->patch * grid.columns);
}

/* ------------------------------------------------------------------------------------ step ---- */

/* Time to the vector [1, D] that the last layer takes and, from it, the modulation [6, D] that all
 * blocks share. */
static void embed_time(const struct mmdit *m, struct kr_device *dev, struct kr_tensor vector,
                       struct kr_tensor modulation, float t)
{
    struct kr_mark mark = kr_arena_mark(dev);
    struct kr_tensor wave = kr_new(dev, KR_F32, 1, m->time_width, 0, 0); /* [1, 256] */
    struct kr_tensor h = kr_new(dev, KR_F32, 1, m->width, 0, 0);         /* [1, D] */

    kr_timestep(dev, wave, 1000 * t, time_period);
    kr_linear(dev, h, wave, &m->time_in, KR_ACT_GELU_TANH);
    kr_linear(dev, vector, h, &m->time_out, KR_ACT_NONE);
    kr_gelu_tanh(dev, h, vector);
    kr_linear(dev, kr_reshape(modulation, 1, 6 * m->width, 0, 0), h, &m->time_modulation,
              KR_ACT_NONE);
    kr_arena_release(dev, mark);
}

/* x [n, D] through one block; mod [6, D]: scale, shift and gate of the attention, then of the MLP,
 * the gates with the scales of wo and down in them. */
static void block_forward(const struct mmdit_block *t, struct kr_device *dev, struct kr_tensor x,
                          struct kr_tensor mod, const struct kr_rope *rope)
{
    struct kr_mark mark = kr_arena_mark(dev);
    struct kr_tensor wide = kr_reshape(x, 1, x.dim[0], x.dim[1], 0); /* [1, n, D] */
    struct attention_input in = attention_input(&t->attn, dev, x);
    struct kr_tensor h2 = mlp_input(&t->mlp, dev, x);

    kr_rms_norm_modulate(dev, in.h, in.gate, wide, t->pre_norm, norm_eps, kr_slice(mod, 0, 1),
                         kr_slice(mod, 1, 1));
    attend(&t->attn, dev, wide, kr_slice(mod, 2, 1), &in, rope);
    kr_rms_norm_modulate(dev, h2, none, x, t->post_norm, norm_eps, kr_slice(mod, 3, 1),
                         kr_slice(mod, 4, 1));
    feed_forward(&t->mlp, dev, x, kr_slice(mod, 5, 1), h2);
    kr_arena_release(dev, mark);
}

static void all_blocks(const struct mmdit *m, struct kr_device *dev, struct kr_tensor x,
                       struct kr_tensor modulations, const struct kr_rope *rope)
{
    struct kr_repeat same = {rope->cos.data, x.dim[0]}; /* the rest lies where it lay */

    if (!kr_repeat_begin(dev, same))
        return;
    for (int64_t i = 0; i < m->block_count; i++)
        block_forward(&m->blocks[i], dev, x, kr_slice(modulations, 6 * i, 6), rope);
    kr_repeat_end(dev);
}

/* Image tokens x [n, D] to patches [n, channels * 4]; `vector` [1, D] is embed_time()'s. */
static void last_layer(const struct mmdit *m, struct kr_device *dev, struct kr_tensor patches,
                       struct kr_tensor x, struct kr_tensor vector)
{
    struct kr_mark mark = kr_arena_mark(dev);
    struct kr_tensor mod = kr_new(dev, KR_F32, 2, m->width, 0, 0); /* scale, shift */
    struct kr_tensor h = kr_new(dev, kr_compute_dtype(dev), x.dim[0], m->width, 0, 0);

    for (int64_t i = 0; i < 2; i++)
        kr_add(dev, kr_slice(mod, i, 1), vector, kr_slice(m->last_modulation, i, 1));
    kr_rms_norm_modulate(dev, h, none, x, m->last_norm, norm_eps, kr_slice(mod, 0, 1),
                         kr_slice(mod, 1, 1));
    kr_linear(dev, patches, h, &m->last, KR_ACT_NONE);
    kr_arena_release(dev, mark);
}

void mmdit_forward(const struct mmdit *m, struct kr_device *dev, struct kr_tensor velocity,
                   struct kr_tensor latent, struct kr_tensor text, const struct kr_rope *rope,
                   float t)
{
    int64_t n = text.dim[0], image = latent.dim[1] / m->patch * (latent.dim[2] / m->patch);
    struct kr_mark mark = kr_arena_mark(dev);
    struct kr_tensor x = kr_new(dev, KR_F32, n + image, m->width, 0, 0); /* [text | image, D] */
    struct kr_tensor patches = kr_new(dev, KR_F32, image, m->first.in, 0, 0); /* [image, 64] */
    struct kr_tensor vector = kr_new(dev, KR_F32, 1, m->width, 0, 0);
    struct kr_tensor modulation = kr_new(dev, KR_F32, 6, m->width, 0, 0);
    struct kr_tensor modulations = kr_new(dev, KR_F32, 6 * m->block_count, m->width, 0, 0);

    assert(latent.dim[1] % m->patch == 0 && latent.dim[2] % m->patch == 0);
    embed_time(m, dev, vector, modulation, t);
    kr_patchify(dev, patches, latent);
    kr_copy(dev, kr_slice(x, 0, n), text);
    kr_linear(dev, kr_slice(x, n, image), patches, &m->first, KR_ACT_NONE);
    kr_add(dev, modulations, m->modulations, modulation); /* the same six for every block */
    kr_scale_rows(dev, modulations, m->gate_scales);
    all_blocks(m, dev, x, modulations, rope);
    last_layer(m, dev, patches, kr_slice(x, n, image), vector);
    kr_unpatchify(dev, velocity, patches);
    kr_arena_release(dev, mark);
}
