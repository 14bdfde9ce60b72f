/* SPDX-License-Identifier: Apache-2.0
 *
 * A request that waits for its pictures: a job on a link of its own, so that closing the link, for
 * whatever reason, cancels the job.
 */
#ifndef KR_HTTP_RENDER_H
#define KR_HTTP_RENDER_H

#include <time.h>

#include "client/http/link.h"
#include "client/http/shim.h"

struct render {
    struct shim *shim;
    struct request *r;
    struct link *link;
    struct ask ask;
    struct kr_params values; /* what the daemon says it uses */
    int64_t job;             /* 0: not accepted yet */
    bool running;
    char stage[16];
    int64_t step, steps, image; /* of the stage; which picture */
    double remaining;           /* seconds; < 0: not known */
    time_t began;
    struct picture *pictures; /* `count` of them */
    size_t count, made;
    struct loop_timer limit; /* render_timeout */
    struct render *next, **place;
};

/* answers.c: what the families' clients get for their pictures, which it takes. */
struct answer *render_answer(struct render *render);

/* Reads what the daemon says of a job's values. */
void render_values(struct kr_params *values, const struct kr_value *map);

/* A value of the daemon's as JSON; NULL where it is not set. */
json_t *render_value(const struct kr_params *values, enum kr_field_id id);

#endif
