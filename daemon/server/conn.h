/* SPDX-License-Identifier: Apache-2.0
 *
 * One client. Its input is cut into frames, each a request for methods.c; its output is what
 * methods and jobs send. A client can cost the daemon a bounded amount and nobody else anything:
 *   - a frame has a largest size, and must be whole client_timeout after its first byte;
 *   - while more than OUTPUT_HIGH bytes wait for it to read, none of its requests is looked at and
 *     progress is dropped; results wait for it, unless it takes nothing for client_timeout;
 *   - a client that closed its sending side still gets what it asked for.
 */
#ifndef KR_CONN_H
#define KR_CONN_H

#include <stdbool.h>
#include <sys/types.h>
#include <uv.h>

#include "proto/message.h"

struct server;

struct conn {
    struct conn *next, *prev;
    struct server *server;
    uv_pipe_t pipe;
    uv_timer_t input_timer;  /* an unfinished frame; after the input's end: is it still there? */
    uv_timer_t output_timer; /* is it reading? */
    int handles;             /* not yet closed */

    char *input;
    size_t input_size, input_room;
    struct kr_scan scan;
    bool paused;    /* enough waits for it to read */
    bool finishing; /* close when all is written */
    bool doomed;    /* close when the loop comes round */
    bool closing;

    uint64_t queued;     /* bytes ever given to libuv */
    uint64_t last_taken; /* bytes ever taken by the client when output_timer last looked */

    uid_t uid;
    bool allowed; /* to use the daemon (access.h) */
    char *name;   /* from hello, or NULL */
    bool watch_all, watch_all_images;
    int watching; /* jobs that have it as a watcher */
};

void conn_accept(struct server *server);

/* Sends a message and empties `out`. Where there was no memory to build it, or far too much waits
 * already, the client is disconnected: better no answer than a wrong one. Never closes at once, so
 * it may be called from a walk over clients or watchers. */
void conn_send(struct conn *conn, struct kr_out *out);

/* The same for what may be lost. */
void conn_send_progress(struct conn *conn, struct kr_out *out);

/* Takes no more input and closes when all output is written. */
void conn_finish(struct conn *conn);

void conn_close(struct conn *conn);

/* Looks anew whether it may use the daemon. */
void conn_check_access(struct conn *conn);

#endif
