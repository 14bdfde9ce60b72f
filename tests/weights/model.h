/* SPDX-License-Identifier: Apache-2.0
 *
 * A model of a few tensors that has one of everything: what bind_model() asks for, model_draft()
 * has.
 */
#ifndef KR_TESTS_WEIGHTS_MODEL_H
#define KR_TESTS_WEIGHTS_MODEL_H

#include "tests/weights/draft.h"

struct model {
    struct kr_weight wq, wo, first, qkv;
    struct kr_tensor norm, modulation, mix, small;
    struct kr_conv conv, conv3d;
};

/* Plain: all BF16, F16 and F32; scaled: blocks.0.wq and blocks.0.wo FP8 with scales, declared
 * nowhere. */
void model_draft(struct draft *d);
void model_draft_scaled(struct draft *d);

/* Binds everything; dev NULL checks only. */
int model_bind(struct model *m, const struct weights *w, struct kr_device *dev, struct kr_err *err);

/* Writes the draft to FILE, opens and binds it (check only); must work, must fail so. */
void accepted_by_model(struct draft *d, const char *file, struct model *m);
void refused_by_model(struct draft *d, const char *file, const char *word, const char *word2);

#endif
