/* SPDX-License-Identifier: Apache-2.0
 *
 * One job on the worker: its columns (work.h) together with what surrounds them, the clock, the
 * client, the trace and the way to fail. Lives on the worker's stack during engine_generate().
 */
#ifndef KR_ENGINE_RUN_H
#define KR_ENGINE_RUN_H

#include "daemon/engine/internal.h"
#include "daemon/engine/trace.h"

struct run {
    struct engine *e;
    const struct engine_job *job;
    struct work work;
    struct plan plan;
    struct engine_times *times;
    struct trace trace; /* of the current picture */
    float *sigmas;      /* steps + 1 */
    float *host;        /* room for a picture [3, H, W] or a latent */
    uint8_t *rgb;
    float *taps[SIDES];  /* of this job's prompts, only with a trace */
    int image;           /* current one of job->params->count */
    double started;      /* seconds_now() */
    int64_t passes;      /* of the network, this job */
    double pass_seconds; /* in all of them */
    struct kr_err *err;
};

/* The boundary: waits for the device and turns its fault into the job's error, which names the
 * place. step 0: the stage as a whole. */
int run_boundary(struct run *r, const char *stage, int64_t step, int64_t steps);

/* Tells the client how far the current picture is, and asks whether to go on. */
int run_tick(struct run *r, const char *stage, int64_t step, int64_t steps);

/* sampler.c: from noise to the finished latent of the current picture. */
int sampler_run(struct run *r);

#endif
