/* SPDX-License-Identifier: Apache-2.0
 *
 * The device's side of a job as columns of operations without errors or control flow that depends
 * on results. The memory plan runs them on a planning device, the worker on the real one.
 */
#ifndef KR_ENGINE_WORK_H
#define KR_ENGINE_WORK_H

#include "daemon/engine/family.h"

enum { SIDES = 2 }; /* the prompt, and the negative when guidance is on */

struct work {
    const struct family *family;
    void *model;
    struct kr_device *dev;
    struct family_dims dims;
    const struct kr_params *p;                 /* resolved */
    struct prompt prompt[SIDES];               /* owned */
    int sides;                                 /* 1, or 2 with guidance */
    int64_t h, w;                              /* of the latent */
    struct branch branch[SIDES];               /* in the arena, for the whole job */
    struct kr_tensor latent, velocity, uncond; /* in the arena, for one picture */
};

/* Makes the prompts of p, which must outlive it. work_fini() frees them, also after a failure. */
int work_init(struct work *w, const struct family *family, void *model, struct kr_device *dev,
              const struct kr_params *p, struct kr_err *err);
void work_fini(struct work *w);

size_t work_tokens(const struct work *w, int side); /* rows of its text */

/* Room for the text of all sides and their rotation tables; then either one fills a side's text. */
void work_begin(struct work *w);
void work_encode(struct work *w, int side, float *taps); /* taps: to the host too, if not NULL */
void work_recall(struct work *w, int side, const float *text);

/* Room for one picture; the caller releases it with the arena. */
void work_picture(struct work *w);
/* latent += dt * velocity(latent, t), guided. */
void work_step(struct work *w, float t, float dt);
/* F32 [3, H, W], newer in the arena than work_picture(). */
struct kr_tensor work_decode(struct work *w, int64_t rows);

#endif
