/* SPDX-License-Identifier: Apache-2.0
 *
 * The program's one state, and a request on its way through it. server.c takes requests from
 * libmicrohttpd and gives answers to it; routes.c says whose a request is; the handlers answer at
 * once, or wait for the daemon and answer later. All on the loop's thread.
 */
#ifndef KR_HTTP_SHIM_H
#define KR_HTTP_SHIM_H

#include <netinet/in.h>

#include "client/http/answer.h"
#include "client/http/ask.h"
#include "client/http/loop.h"
#include "client/http/settings.h"
#include "client/http/upstream.h"

struct render;
struct route;
struct server;

enum { STATUS_CLASSES = 6 }; /* 1xx to 5xx, by their first digit */

struct shim {
    struct loop *loop;
    struct http_settings settings;
    struct upstream up;
    struct server *server;
    char *token;            /* NULL: nothing is asked */
    struct render *renders; /* of requests that wait for their pictures, the oldest first */
    /* When a /sdapi client last left its pictures, and whence: what /interrupt has to know. */
    int64_t left_at;
    struct in6_addr left_from;
    uint64_t answered[FAMILIES][STATUS_CLASSES];
    int64_t started; /* client_now() */
    bool stopping;
};

struct request {
    struct shim *shim;
    struct MHD_Connection *connection;
    const struct route *route; /* NULL: none has this path and method */
    enum family family;
    char id[40];   /* what stands in the path for '*': a job */
    char last[24]; /* and for a second one */
    char *body;
    size_t size;
    /* private to server.c */
    size_t capacity;
    bool overflow, complete, waiting, gone;
    struct answer *answer;
    int64_t since;
    struct loop_watch hangup;
    void (*left)(void *op);
    void *op;
    struct request *next, **place; /* in the list of those that wait */
};

/* Answers, now or after waiting; takes the answer. NULL: there was no memory for one. */
void request_answer(struct request *r, struct answer *answer);

/* The handler returns and somebody answers later. If the client leaves before, left(op) is called
 * instead, and the request is not to be touched any more. */
void request_wait(struct request *r, void (*left)(void *op), void *op);

/* Where the client is, IPv4 addresses mapped into IPv6. */
struct in6_addr request_from(const struct request *r);

const char *request_query(const struct request *r, const char *key); /* NULL: it is not there */
const char *request_header(const struct request *r, const char *name);

/* An error in the shape that the family's clients read: its short name, and the sentence. */
struct answer *error_answer(enum family family, unsigned status, const char *what,
                            const char *param, const char *sentence);
void request_fail(struct request *r, unsigned status, const char *what, const char *sentence);

/* Why ask_read() or body_read() did not take the body. */
void request_refuse(struct request *r, const struct refusal *refusal);

/* What the daemon, or the way to it, answered with. `failed`: a job that was accepted. */
void request_fail_err(struct request *r, const struct kr_err *err, bool failed);

struct policy shim_policy(const struct shim *shim);

#endif
