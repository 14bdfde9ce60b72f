/* SPDX-License-Identifier: Apache-2.0
 *
 * From the body of a request to the parameters of a job. Each dialect has its own names, its own
 * scale of cfg and its own patience; what they share is said in docs/clients. Pure computation: no
 * request, no daemon, no state, so that it can be tested and fuzzed by itself.
 */
#ifndef KR_HTTP_ASK_H
#define KR_HTTP_ASK_H

#include "client/http/body.h"
#include "proto/fields.h"

enum family {
    FAMILY_KREAD, /* the page's own routes, and what belongs to nobody */
    FAMILY_SDAPI, /* AUTOMATIC1111 */
    FAMILY_SDCPP, /* stable-diffusion.cpp's jobs */
    FAMILY_OPENAI,
    FAMILIES
};

/* What the owner and the profile allow. */
struct policy {
    bool keep_sampling; /* what clients say by habit about steps and cfg counts */
    int64_t max_count, max_steps, max_pixels;
    int64_t width, height; /* of the profile, for a request that says neither */
};

struct ask {
    struct kr_params
        params;   /* what goes to the daemon; the seed always, steps and cfg if they count */
    json_t *echo; /* FAMILY_SDAPI: what it said, as far as it may be repeated */
    bool said_steps, said_cfg; /* it said so, and it does not count */
    int64_t steps;
    double cfg_scale;
};

/* Why it is refused. */
struct refusal {
    const char *what;  /* short, for programs: "prompt required" */
    const char *param; /* the field, where the dialect has a name for it; NULL */
    struct kr_err err;
};

/* 0, or -1 and the refusal; a->params holds nothing then. */
int ask_read(struct ask *a, enum family family, const char *body, size_t size,
             const struct policy *policy, struct refusal *refusal);
void ask_fini(struct ask *a);

/* kread's guidance for what sd.cpp and AUTOMATIC1111 call a CFG scale: theirs is 1 + kread's. */
double ask_cfg(double cfg_scale);

#endif
