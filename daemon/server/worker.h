/* SPDX-License-Identifier: Apache-2.0
 *
 * The worker: the one thread that runs the engine's jobs, and the two lists between it and the
 * loop.
 *
 * The loop thread pushes jobs and takes events; the worker pops jobs and posts events. A job is the
 * loop's, who made it and will free it; the worker borrows it from the pop until it has posted the
 * job's last event (EVENT_END) and does not look at it afterwards. That last event lies inside the
 * job, so that it cannot be lost for want of memory; progress may be.
 */
#ifndef KR_WORKER_H
#define KR_WORKER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <uv.h>

#include "daemon/engine/engine.h"

struct job;

enum event_kind { EVENT_START, EVENT_PROGRESS, EVENT_IMAGE, EVENT_END };

struct image {
    int index;
    int64_t seed, width, height;
    void *png; /* owned; NULL: not made, or dropped */
    size_t size;
    bool fetched; /* the loop's */
};

struct event {
    struct event *next;
    enum event_kind kind;
    struct job *job;
    struct engine_progress progress; /* EVENT_PROGRESS; its stage is `stage` */
    char stage[16];
    struct image image;        /* EVENT_IMAGE; who takes the event takes the png */
    struct engine_times times; /* EVENT_END */
    struct kr_err err;         /* EVENT_END; KR_OK: the job is done */
};

struct worker {
    struct engine *engine;
    const char *output_dir; /* or NULL */
    uv_thread_t thread;
    uv_async_t *wake; /* the loop's */
    bool running;     /* there is a thread to join; the loop's */

    uv_mutex_t lock; /* guards what follows */
    uv_cond_t pushed;
    struct job *first, *last; /* the queue */
    struct event *events, *events_end;
    bool quit;
};

int worker_start(struct worker *w, struct engine *engine, const char *output_dir, uv_async_t *wake,
                 struct kr_err *err);

/* Waits for the job that runs now, leaves the queue alone, joins the thread and frees what was
 * posted but not taken. */
void worker_stop(struct worker *w);

void worker_push(struct worker *w, struct job *job);

/* Takes a job back out of the queue. False: the worker has it already. */
bool worker_remove(struct worker *w, struct job *job);

/* All events so far, oldest first, as a list. Each goes back with event_free(). */
struct event *worker_events(struct worker *w);
void event_free(struct event *event);

#endif
