/* SPDX-License-Identifier: Apache-2.0
 *
 * A Krea 2 diffusion model's file to a struct mmdit. The names are the official ones of
 * krea-ai/krea-2, under one of the prefixes that programs put before them. Sizes come from the
 * shapes of the first block and are then demanded of all; what the file has beyond the model is
 * refused.
 */
#include "daemon/model/mmdit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/shapes.h"
#include "daemon/model/text_encoder.h"

static const char probe[] = "txtfusion.projector.weight";

int mmdit_open(const char *path, struct weights **weights, struct kr_err *err)
{
    static const char *const prefixes[] = {
        "", "model.diffusion_model.", "diffusion_model.", "model.model.", "net.", "model.", NULL};

    return weights_open(path, "diffusion model", prefixes, probe, weights, err);
}

/* ---------------------------------------------------------------------------------- sizes ---- */

static int read_sizes(struct mmdit *m, const struct weights *w, struct kr_err *err)
{
    struct model_heads joint, text;
    int64_t patch_values;

    if (model_size(w, "first.weight", 0, &m->width, err) ||
        model_size(w, "first.weight", 1, &patch_values, err) ||
        model_size(w, "tmlp.0.weight", 1, &m->time_width, err) ||
        model_size(w, "txtmlp.0.scale", 0, &m->text_width, err) ||
        model_size(w, probe, 1, &m->taps, err) ||
        model_size(w, "blocks.0.mlp.gate.weight", 0, &m->hidden, err) ||
        model_size(w, "txtfusion.layerwise_blocks.0.mlp.gate.weight", 0, &m->text_hidden, err) ||
        model_heads(w, "blocks.0.attn.qknorm.qnorm.scale", "blocks.0.attn.wq.weight",
                    "blocks.0.attn.wk.weight", &joint, err) ||
        model_heads(w, "txtfusion.layerwise_blocks.0.attn.qknorm.qnorm.scale",
                    "txtfusion.layerwise_blocks.0.attn.wq.weight",
                    "txtfusion.layerwise_blocks.0.attn.wk.weight", &text, err))
        return -1;
    m->patch = 2;
    m->channels = patch_values / (m->patch * m->patch);
    m->heads = joint.heads;
    m->kv_heads = joint.kv_heads;
    m->head = joint.head;
    m->text_heads = text.heads;
    m->text_kv_heads = text.kv_heads;
    m->text_head = text.head;
    m->block_count = model_layers(w, "blocks.");
    if (patch_values % (m->patch * m->patch) != 0)
        return kr_fail(err, KR_BAD_FILE,
                       "%s: first.weight takes %lld values a token, which aren't patches of 2 by 2",
                       weights_name(w), (long long)patch_values);
    return 0;
}

/* Rows, columns and frames share a head so: 6/16 each for row and column, the rest for frames. */
static void divide_rope(struct mmdit *m)
{
    m->rope_axes[1] = m->rope_axes[2] = 6 * (m->head / 16);
    m->rope_axes[0] = m->head - m->rope_axes[1] - m->rope_axes[2];
}

static int check_sizes(struct mmdit *m, const struct weights *w, struct kr_err *err)
{
    const char *file = weights_name(w);

    if (m->heads * m->head != m->width)
        return kr_fail(err, KR_BAD_FILE,
                       "%s: its width of %lld isn't its %lld heads of %lld elements", file,
                       (long long)m->width, (long long)m->heads, (long long)m->head);
    if (m->text_heads * m->text_head != m->text_width)
        return kr_fail(err, KR_BAD_FILE,
                       "%s: its text width of %lld isn't its %lld text heads of %lld elements",
                       file, (long long)m->text_width, (long long)m->text_heads,
                       (long long)m->text_head);
    if (m->head < 16)
        return kr_fail(err, KR_BAD_FILE,
                       "%s: heads of %lld elements have no room for rows and columns, want 16",
                       file, (long long)m->head);
    if (m->taps != TEXT_TAPS)
        return kr_fail(err, KR_BAD_FILE,
                       "%s: it mixes %lld layers of the text encoder, Krea 2 mixes %d", file,
                       (long long)m->taps, TEXT_TAPS);
    if (m->time_width % 2 != 0)
        return kr_fail(err, KR_BAD_FILE, "%s: tmlp.0.weight takes %lld values, want an even number",
                       file, (long long)m->time_width);
    divide_rope(m);
    return 0;
}

/* -------------------------------------------------------------------------------- binding ---- */

static void bind_attention(struct binder *b, struct mmdit_attention *a, int64_t width,
                           const struct model_heads *size, const char *block)
{
    int64_t kv = size->kv_heads * size->head;

    bind_linear(b, &a->wq, width, width, "%sattn.wq", block);
    bind_linear(b, &a->wk, kv, width, "%sattn.wk", block);
    bind_linear(b, &a->wv, kv, width, "%sattn.wv", block);
    bind_linear(b, &a->gate, width, width, "%sattn.gate", block);
    bind_linear(b, &a->wo, width, width, "%sattn.wo", block);
    bind_vector(b, &a->q_norm, size->head, 0, 1, "%sattn.qknorm.qnorm.scale", block);
    bind_vector(b, &a->k_norm, size->head, 0, 1, "%sattn.qknorm.knorm.scale", block);
}

static void bind_mlp(struct binder *b, struct mmdit_mlp *mlp, int64_t width, int64_t hidden,
                     const char *block)
{
    bind_linear(b, &mlp->gate, hidden, width, "%smlp.gate", block);
    bind_linear(b, &mlp->up, hidden, width, "%smlp.up", block);
    bind_linear(b, &mlp->down, width, hidden, "%smlp.down", block);
}

static void bind_text_block(struct binder *b, struct mmdit_text_block *t, const struct mmdit *m,
                            const char *kind, int i)
{
    struct model_heads size = {m->text_heads, m->text_kv_heads, m->text_head};
    char block[64];

    snprintf(block, sizeof(block), "txtfusion.%s_blocks.%d.", kind, i);
    bind_vector(b, &t->pre_norm, m->text_width, 0, 1, "%sprenorm.scale", block);
    bind_attention(b, &t->attn, m->text_width, &size, block);
    bind_vector(b, &t->post_norm, m->text_width, 0, 1, "%spostnorm.scale", block);
    bind_mlp(b, &t->mlp, m->text_width, m->text_hidden, block);
}

static void bind_block(struct binder *b, struct mmdit_block *t, const struct mmdit *m, int64_t i)
{
    struct model_heads size = {m->heads, m->kv_heads, m->head};
    char block[64];

    snprintf(block, sizeof(block), "blocks.%lld.", (long long)i);
    bind_vector_into(b, b->dev ? kr_slice(m->modulations, 6 * i, 6) : (struct kr_tensor){0}, 6,
                     m->width, 0, "%smod.lin", block);
    bind_vector(b, &t->pre_norm, m->width, 0, 1, "%sprenorm.scale", block);
    bind_attention(b, &t->attn, m->width, &size, block);
    bind_vector(b, &t->post_norm, m->width, 0, 1, "%spostnorm.scale", block);
    bind_mlp(b, &t->mlp, m->width, m->hidden, block);
}

static void bind_all(struct binder *b, struct mmdit *m)
{
    int64_t patch_values = m->channels * m->patch * m->patch;

    bind_linear_bias(b, &m->first, m->width, patch_values, "first");
    bind_linear_bias(b, &m->time_in, m->width, m->time_width, "tmlp.0");
    bind_linear_bias(b, &m->time_out, m->width, m->width, "tmlp.2");
    bind_linear_bias(b, &m->time_modulation, 6 * m->width, m->width, "tproj.1");
    for (int i = 0; i < 2; i++)
        bind_text_block(b, &m->layerwise[i], m, "layerwise", i);
    bind_vector(b, &m->projector, m->taps, 0, 0, probe);
    for (int i = 0; i < 2; i++)
        bind_text_block(b, &m->refiner[i], m, "refiner", i);
    bind_vector(b, &m->text_norm, m->text_width, 0, 1, "txtmlp.0.scale");
    bind_linear_bias(b, &m->text_in, m->width, m->text_width, "txtmlp.1");
    bind_linear_bias(b, &m->text_out, m->width, m->width, "txtmlp.3");
    for (int64_t i = 0; i < m->block_count; i++)
        bind_block(b, &m->blocks[i], m, i);
    bind_vector(b, &m->last_norm, m->width, 0, 1, "last.norm.scale");
    bind_vector(b, &m->last_modulation, 2, m->width, 0, "last.modulation.lin");
    bind_linear_bias(b, &m->last, patch_values, m->width, "last.linear");
}

/* The rows of the modulations that are gates take the scales along of what they gate. */
static void bind_gate_scales(struct binder *b, struct mmdit *m)
{
    size_t count = 6 * (size_t)m->block_count;
    float *scales;

    if (b->dev == NULL || b->failed)
        return;
    scales = malloc(count * sizeof(*scales));
    if (scales == NULL) {
        kr_fail(b->err, KR_NO_MEMORY, "no memory for the scales of the diffusion model's gates");
        b->failed = 1;
        return;
    }
    for (size_t i = 0; i < count; i++) {
        const struct mmdit_block *t = &m->blocks[i / 6];

        scales[i] = i % 6 == 2 ? t->attn.wo.scale : i % 6 == 5 ? t->mlp.down.scale : 1;
    }
    m->gate_scales = kr_persist(b->dev, scales, (int64_t)count, 0);
    free(scales);
}

int mmdit_bind(struct mmdit *m, const struct weights *weights, struct kr_device *dev,
               struct kr_err *err)
{
    struct binder b;

    memset(m, 0, sizeof(*m));
    if (read_sizes(m, weights, err) || check_sizes(m, weights, err))
        return -1;
    m->blocks = calloc((size_t)m->block_count, sizeof(*m->blocks));
    if (m->blocks == NULL)
        return kr_fail(err, KR_NO_MEMORY,
                       "no memory for the table of the diffusion model's blocks");
    if (binder_init(&b, weights, dev, err)) {
        mmdit_fini(m, dev);
        return -1;
    }
    if (dev != NULL)
        m->modulations = kr_persist(dev, NULL, 6 * m->block_count, m->width);
    bind_all(&b, m);
    bind_gate_scales(&b, m);
    if (binder_end(&b)) {
        mmdit_fini(m, dev);
        return -1;
    }
    return 0;
}

/* ---------------------------------------------------------------------------------- end ----- */

static void free_attention(struct mmdit_attention *a, struct kr_device *dev)
{
    kr_persist_free(dev, &a->q_norm);
    kr_persist_free(dev, &a->k_norm);
}

static void free_text_block(struct mmdit_text_block *t, struct kr_device *dev)
{
    kr_persist_free(dev, &t->pre_norm);
    kr_persist_free(dev, &t->post_norm);
    free_attention(&t->attn, dev);
}

static void free_block(struct mmdit_block *t, struct kr_device *dev)
{
    kr_persist_free(dev, &t->pre_norm);
    kr_persist_free(dev, &t->post_norm);
    free_attention(&t->attn, dev);
}

static void free_vectors(struct mmdit *m, struct kr_device *dev)
{
    struct kr_weight *biased[] = {&m->first,   &m->time_in,  &m->time_out, &m->time_modulation,
                                  &m->text_in, &m->text_out, &m->last};

    for (size_t i = 0; i < sizeof(biased) / sizeof(*biased); i++)
        kr_persist_free(dev, &biased[i]->bias);
    for (int i = 0; i < 2; i++) {
        free_text_block(&m->layerwise[i], dev);
        free_text_block(&m->refiner[i], dev);
    }
    for (int64_t i = 0; m->blocks != NULL && i < m->block_count; i++)
        free_block(&m->blocks[i], dev);
    kr_persist_free(dev, &m->modulations);
    kr_persist_free(dev, &m->gate_scales);
    kr_persist_free(dev, &m->text_norm);
    kr_persist_free(dev, &m->last_norm);
    kr_persist_free(dev, &m->last_modulation);
    kr_persist_free(dev, &m->projector);
}

void mmdit_fini(struct mmdit *m, struct kr_device *dev)
{
    if (dev != NULL)
        free_vectors(m, dev);
    free(m->blocks);
    memset(m, 0, sizeof(*m));
}
