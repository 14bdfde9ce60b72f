/* SPDX-License-Identifier: Apache-2.0
 *
 * The server's state, for the files of this room. All of it belongs to the loop's thread.
 */
#ifndef KR_STATE_H
#define KR_STATE_H

#include <uv.h>

#include "daemon/server/access.h"
#include "daemon/server/figures.h"
#include "daemon/server/health.h"
#include "daemon/server/job.h"
#include "daemon/server/keep.h"
#include "daemon/server/queue.h"
#include "daemon/server/server.h"
#include "daemon/server/worker.h"

enum { SIGNALS = 3 }; /* SIGTERM, SIGINT, SIGHUP */

enum server_phase {
    PHASE_READY,
    PHASE_DRAINING, /* no new jobs; the running one may finish */
    PHASE_CLOSING,  /* no job is left; what was promised is written */
    PHASE_CLOSED    /* all handles are closing */
};

struct conn;

struct server {
    struct server_options options;
    uv_loop_t loop;
    uv_pipe_t listener;
    uv_async_t wake; /* the worker has events */
    uv_signal_t signals[SIGNALS];
    uv_timer_t deadline; /* of the phase */
    uv_work_t pool;      /* starts libuv's threads */
    uv_timer_t tick;     /* health, and the age of kept pictures */
    struct worker worker;
    struct jobs jobs;
    struct queue queue;
    struct keep keep;
    struct access access;
    struct figures figures;
    struct health health;
    struct job *running;  /* the worker has it */
    struct job *starting; /* will be given to the worker when its record says so */
    uint64_t waiting_told_ns;
    struct conn *conns;
    int64_t conn_count;
    bool accept_owed; /* a client waits because there was no memory for it */
    enum server_phase phase;
    enum server_end end;
    bool untidy;    /* jobs ended since memory was last given back */
    bool hurry;     /* told to stop twice */
    bool cancelled; /* the running job, because its time is over */
    char told[120]; /* to the service manager, last */
    uint64_t started_ns;
};

void server_log(const struct server *server, enum server_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Clean stop, as SIGTERM. */
void server_stop(struct server *server, const char *why);

/* A job began or ended, or a client left. When the loop comes round the server goes on with
 * stopping if that is what it waited for, and tells the service manager how things stand. Changes
 * nothing at once, so it may be called from anywhere. */
void server_step(struct server *server);

/* Whether another job of this client may enter the queue. */
int server_admit(const struct server *server, const struct conn *conn, struct kr_err *err);

double server_wall_clock(void); /* Unix seconds */

#endif
