/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of daemon/model share: a golden set (three model files in a folder) bound to a CPU
 * device, and jobs that are planned before they run, so that every test also proves the plan.
 */
#ifndef KR_TESTS_MODEL_SET_H
#define KR_TESTS_MODEL_SET_H

#include <stdbool.h>

#include "daemon/model/mmdit.h"
#include "daemon/model/text_encoder.h"
#include "daemon/model/vae.h"

struct set {
    struct kr_device *dev;
    struct weights *dit_file, *te_file, *vae_file;
    struct mmdit dit;
    struct text_encoder te;
    struct vae vae;
};

/* A device with two threads; fails the test if it can't be had. */
struct kr_device *set_device(enum kr_compute compute);

/* Opens and binds FOLDER's dit, te and vae; fails the test with the sentence if it can't. */
void set_open(struct set *set, const char *folder, enum kr_compute compute);
void set_close(struct set *set);

/* Runs `job` twice: once planning, once in a job of just the bytes that planning found. Fails the
 * test on any fault and if the real run used another amount. Returns the bytes. */
size_t set_run(struct kr_device *dev, void (*job)(struct kr_device *dev, void *user), void *user);

/* Numbers of a deterministic sequence, about normal. */
void set_noise(float *out, size_t n, uint32_t seed);

/* Uploads host values to a new F32 tensor of the arena. */
struct kr_tensor set_upload(struct kr_device *dev, const float *host, int64_t d0, int64_t d1,
                            int64_t d2);

#endif
