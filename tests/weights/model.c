/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/weights/model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

static const float norm[4] = {0, 0.5f, -0.25f, 2};
/* 1, -2, 0.5, 65504; the largest and the smallest number of F16 are among them */
static const uint16_t halves[4] = {0x3c00, 0xc000, 0x3800, 0x7bff};
static const uint16_t brains[12] = {0x3f80, 0xc000, 0x3f00, 0x4080, 0x3f80, 0xc000,
                                    0x3f00, 0x4080, 0x3f80, 0xc000, 0x3f00, 0x4080};

void model_draft(struct draft *d)
{
    draft_scale(d, "probe", 1);
    draft_set(d, "blocks.0.wq.weight", "BF16", "[4,6]", NULL, 48);
    draft_set(d, "blocks.0.wo.weight", "F16", "[6,4]", NULL, 48);
    draft_set(d, "first.weight", "F32", "[4,2]", NULL, 32);
    draft_set(d, "first.bias", "F16", "[4]", halves, 8);
    draft_set(d, "qkv.weight", "BF16", "[12,4,1,1]", NULL, 96);
    draft_set(d, "qkv.bias", "F32", "[12]", NULL, 48);
    draft_set(d, "norm.weight", "F32", "[4]", norm, 16);
    draft_set(d, "modulation", "BF16", "[12]", brains, 24);
    draft_set(d, "mix.weight", "BF16", "[1,4]", brains, 8);
    draft_set(d, "gamma", "F16", "[4,1,1,1]", halves, 8);
    draft_set(d, "conv.weight", "BF16", "[2,3,3,3]", NULL, 108);
    draft_set(d, "conv.bias", "BF16", "[2]", brains, 4);
    draft_set(d, "conv3d.weight", "F32", "[2,3,3,1,1]", NULL, 72);
    draft_set(d, "conv3d.bias", "F32", "[2]", NULL, 8);
}

void model_draft_scaled(struct draft *d)
{
    model_draft(d);
    draft_set(d, "blocks.0.wq.weight", "F8_E4M3", "[4,6]", NULL, 24);
    draft_set(d, "blocks.0.wo.weight", "F8_E5M2", "[6,4]", NULL, 24);
    draft_scale(d, "blocks.0.wq.weight_scale", 0.5f);
    draft_scale(d, "blocks.0.wo.weight_scale", 0.25f);
}

int model_bind(struct model *m, const struct weights *w, struct kr_device *dev, struct kr_err *err)
{
    struct kr_tensor probe;
    struct binder b;

    if (binder_init(&b, w, dev, err) < 0)
        return -1;
    bind_vector(&b, &probe, 1, 0, 0, "probe");
    bind_linear(&b, &m->wq, 4, 6, "blocks.%d.wq", 0);
    bind_linear(&b, &m->wo, 6, 4, "blocks.%d.wo", 0);
    bind_linear_bias(&b, &m->first, 4, 2, "first");
    bind_linear_bias(&b, &m->qkv, 12, 4, "%s", "qkv");
    bind_vector(&b, &m->norm, 4, 0, 1, "norm.weight");
    bind_vector(&b, &m->modulation, 3, 4, 0, "modulation");
    bind_vector(&b, &m->mix, 4, 0, 0, "mix.weight");
    bind_vector(&b, &m->small, 4, 0, 0, "gamma");
    bind_conv(&b, &m->conv, 2, 3, 3, "conv");
    bind_conv(&b, &m->conv3d, 2, 3, 1, "conv3d");
    bind_ignore(&b, "encoder.");
    if (dev && probe.data)
        kr_persist_free(dev, &probe);
    return binder_end(&b);
}

void accepted_by_model(struct draft *d, const char *file, struct model *m)
{
    struct weights *w;
    struct kr_err err;

    draft_write(d, file);
    w = draft_open(file);
    if (model_bind(m, w, NULL, &err) < 0)
        fail_msg("%s", err.text);
    weights_close(w);
}

void refused_by_model(struct draft *d, const char *file, const char *word, const char *word2)
{
    struct weights *w;
    struct model m;
    struct kr_err err;

    draft_write(d, file);
    w = draft_open(file);
    if (model_bind(&m, w, NULL, &err) == 0)
        fail_msg("%s was accepted, want %s, %s", file, word, word2);
    weights_close(w);
    sentence(file, &err, KR_BAD_FILE, word, word2, NULL);
}
