/* SPDX-License-Identifier: Apache-2.0
 *
 * The daemon as the shim sees it: one link that is kept open for questions, what the daemon said of
 * its profile, and whether it is there. The link comes back by itself; what was last known of the
 * profile outlives the daemon's restart, so that clients which ask for the model's name in between
 * get it.
 */
#ifndef KR_HTTP_UPSTREAM_H
#define KR_HTTP_UPSTREAM_H

#include <jansson.h>

#include "client/http/link.h"

enum upstream_state { UPSTREAM_AWAY, UPSTREAM_LOADING, UPSTREAM_READY, UPSTREAM_STOPPING };

/* What the daemon says of its profile; `known` once it has said it. */
struct facts {
    bool known;
    char profile[80];
    bool turbo;  /* its training: few steps, no guidance */
    json_t *all; /* the whole answer to `profile` */
    struct kr_params defaults;
    int64_t max_pixels, max_steps, max_count; /* the daemon's own limits; 0: none */
    int64_t since;                            /* Unix seconds, when it was first known */
};

struct upstream {
    struct loop *loop;
    char *path; /* of the daemon's socket */
    struct facts facts;
    enum upstream_state state;
    /* private */
    struct link *link;
    struct loop_timer retry;
    void (*changed)(void *user); /* state or facts are others now; may be NULL */
    void *user;
};

/* Takes `path`, and begins to connect. */
void upstream_init(struct upstream *up, struct loop *loop, char *path);
void upstream_fini(struct upstream *up);

/* Begins a request on the kept link, which is opened if it has to be. -1: the daemon is away, or so
 * far behind with its answers that it counts as away. */
int upstream_begin(struct upstream *up, enum kr_method method, struct kr_out *out, uint32_t *id,
                   struct kr_err *err);

/* Sends it. `answer` is called exactly once, with the loss of the link as an error too, unless -1
 * is returned or it is forgotten. */
int upstream_send(struct upstream *up, struct kr_out *out, uint32_t id, link_answer *answer,
                  void *user, struct kr_err *err);
void upstream_forget(struct upstream *up, const void *user);

/* A received value as JSON; bytes become null. NULL: no memory. */
json_t *upstream_json(const struct kr_value *value);

#endif
