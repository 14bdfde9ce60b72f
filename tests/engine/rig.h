/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of whole jobs share: an engine on a golden set's files, and a client that keeps
 * what a job hands over and can cancel it at a chosen moment.
 */
#ifndef KR_TESTS_ENGINE_RIG_H
#define KR_TESTS_ENGINE_RIG_H

#include <stdatomic.h>

#include "daemon/engine/engine.h"

enum { RIG_MAX_IMAGES = 4, RIG_MAX_TICKS = 256, RIG_MAX_PREVIEWS = 16 };

/* A config whose strings live in `rig`. */
struct rig {
    struct engine_config config;
    char path[4][512], trace[512];
    struct engine *engine;
};

/* The files of FOLDER (dit, te, vae, tokenizer/), variant turbo, the CPU with two threads, or the
 * CUDA device of $KREAD_CUDA_MODULE, which multiplies FP8 weights in FP8 only with $KREAD_TEST_FP8.
 */
void rig_init(struct rig *rig, const char *folder);
void rig_init_demo(struct rig *rig); /* the demo's files */
void rig_trace(struct rig *rig);     /* into a new folder below /tmp */
void rig_open(struct rig *rig);      /* fails the test with the sentence */
void rig_fini(struct rig *rig);      /* closes; removes the trace */

/* The client of one job. */
struct client {
    struct {
        void *png;
        size_t size;
        char *kread;
        int64_t seed;
    } image[RIG_MAX_IMAGES];
    int images;
    struct {
        void *png;
        size_t size;
        int64_t seed, width, height;
        int index;
        int ticks; /* that came before it */
    } preview[RIG_MAX_PREVIEWS];
    int previews;
    struct engine_progress tick[RIG_MAX_TICKS];
    int ticks;
    char warning[512];
    struct engine_times times;
    struct kr_err err;
    atomic_int cancel;
    const char *cancel_stage; /* cancel at the first tick of this stage with step >= cancel_step */
    int cancel_step;
    int refuse_image; /* the image call fails */
    int no_preview;   /* no such call */
    uint64_t id;      /* of the job */
};

/* Resolves p and runs the job: 0, or -1 with client->err. */
int client_run(struct client *client, struct engine *engine, struct kr_params *p);
void client_fini(struct client *client);

/* Fields of a JSON object (a request.json, or the text of a kread chunk; other keys are skipped).
 */
struct kr_params params_from_json(const char *text);
struct kr_params params_of(const char *prompt, int64_t width, int64_t height, int64_t steps);

/* Fails the test unless both are the same file. */
void assert_same_image(const struct client *a, int i, const struct client *b, int k);

char *read_file(const char *path, size_t *size); /* NUL behind it; NULL: cannot be read */

#endif
