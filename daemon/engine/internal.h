/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine behind engine.h. Everything is fixed by engine_open() except what is marked; the
 * marks say which thread may touch it.
 */
#ifndef KR_ENGINE_INTERNAL_H
#define KR_ENGINE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "daemon/engine/cache.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/family.h"
#include "daemon/engine/infotext.h"
#include "daemon/engine/work.h"

enum { RESIDENCIES = ENGINE_STREAM + 1 };

/* What a job will need. */
struct plan {
    size_t arena;                    /* bytes on the device */
    size_t host;                     /* bytes of the picture on its way to the client */
    size_t prepared;                 /* bytes that the VAE's kernels will take on the host, yet */
    int64_t rows;                    /* decode in bands of so many latent rows; 0: whole */
    enum engine_residency residency; /* how the weights come to the device for it */
    size_t weights[RESIDENCIES];     /* bytes that they take there; 0 where the host's do */
    size_t ring;                     /* bytes for ENGINE_STREAM */
};

/* Requests are planned by the loop while the worker computes. The worker's device and model are the
 * worker's alone (convolutions keep what they prepared), so the loop has its own, on which nothing
 * is ever computed. */
struct planner {
    pthread_mutex_t lock;
    struct kr_device *dev; /* under the lock, like the next three */
    void *model;
    struct plan default_plan; /* of a request without values */
    bool default_known;
    size_t pretend_free; /* tests set it before use: so much is free; 0: what the device says */
};

struct engine {
    const struct family *family;
    const char *variant; /* the family's own string */
    char *profile, *trace;
    struct parts parts;
    struct family_dims dims;
    void *model;           /* the worker's */
    struct kr_device *dev; /* the worker's */
    bool cuda;             /* what dev is */
    char device_name[96], device_why[400];
    enum engine_residency residency;
    bool residency_chosen;         /* not set by the owner: a job that is too large may go lower */
    enum engine_residency applied; /* the worker's: what dev has now; 0: nothing yet */
    size_t ring;                   /* the worker's: of it, with ENGINE_STREAM */
    atomic_size_t idle_free;       /* of a device's own memory, nothing loaded; any thread */
    char residency_why[256];
    struct kr_params profile_defaults, generation_defaults;
    int64_t max_pixels, max_steps, max_count;
    double opened_in; /* seconds that engine_open() took */
    struct planner *planner;
    struct prompt_cache *cache;                  /* the worker's; counters: any thread */
    atomic_size_t in_use, last_arena, last_peak; /* bytes; any thread */
    double pass_rate, decode_rate; /* worker: seconds a token and a pixel took last, 0: unknown */
};

struct origin engine_origin(const struct engine *e);

/* plan.c */
void planner_free(struct planner *planner, const struct family *family);
/* Plans a job on its own device and finds the largest bands that fit. KR_NO_MEMORY with the numbers
 * if nothing does. */
int plan_job(const struct engine *e, struct work *w, struct plan *plan, struct kr_err *err);
/* The same on the planner's device, for any thread; `look` may read the work before it is gone. */
int plan_request(const struct engine *e, const struct kr_params *p, struct plan *plan,
                 void (*look)(const struct work *w, void *user), void *user, struct kr_err *err);
/* Fills residency and residency_why. */
int plan_residency(struct engine *e, enum engine_residency asked, struct kr_err *err);
/* A job with the profile's own defaults, for reports; found once. Any thread. */
struct plan plan_default(const struct engine *e);
size_t plan_free_memory(const struct engine *e); /* what a new job could have */
void plan_stage_begin(const struct engine *e, enum part part);
void plan_stage_end(const struct engine *e, enum part part);
void plan_apply(struct engine *e, const struct plan *plan); /* the worker's, between jobs */
void plan_step_end(const struct engine *e);
/* Measures what is free while no job runs; the worker's, and engine_open()'s. */
void plan_measure(struct engine *e);
const char *residency_name(enum engine_residency residency);

/* resolve.c */
int resolve_defaults(const struct engine *e, struct kr_params *p, struct kr_err *err);
/* All of engine_resolve(), and the plan that it found. */
int resolve_request(const struct engine *e, struct kr_params *p, char *warning, size_t size,
                    struct plan *plan, struct kr_err *err);

/* "17.4 GB" */
const char *bytes_text(size_t bytes, char buf[16]);

double seconds_now(void); /* monotonic */

#endif
