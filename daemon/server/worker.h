/* SPDX-License-Identifier: Apache-2.0
 *
 * The worker: the one thread that runs the engine's jobs, and the list between it and the
 * loop.
 *
 * The loop gives the worker one job at a time and takes events. A job is the loop's, who made it
 * and will free it; the worker borrows it from worker_give() until it has posted the job's last
 * event (EVENT_END) and does not look at it afterwards. That last event lies inside the job, so
 * that it cannot be lost for want of memory; progress may be.
 *
 * The worker also writes finished pictures, into output_dir and for a detached job into the spool:
 * a job goes on only when its picture is safe.
 */
#ifndef KR_WORKER_H
#define KR_WORKER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <uv.h>

#include "daemon/engine/engine.h"

struct job;
struct spool;

enum event_kind { EVENT_START, EVENT_PROGRESS, EVENT_IMAGE, EVENT_END };

struct image {
    int index;
    int64_t seed, width, height;
    void *png; /* owned */
    size_t size;
};

struct event {
    struct event *next;
    enum event_kind kind;
    struct job *job;
    struct engine_progress progress; /* EVENT_PROGRESS; its stage is `stage` */
    char stage[16];
    struct image image;        /* EVENT_IMAGE; EVENT_PROGRESS: the step's preview, or no png */
    struct engine_times times; /* EVENT_END */
    struct kr_err err;         /* EVENT_END; KR_OK: the job is done */
};

struct worker {
    struct engine *engine;
    const char *output_dir;    /* or NULL */
    const struct spool *spool; /* of detached jobs; there are none where it is not open */
    uv_thread_t thread;
    uv_async_t *wake; /* the loop's */
    bool running;     /* there is a thread to join; the loop's */

    uv_mutex_t lock; /* guards what follows */
    uv_cond_t given;
    struct job *next; /* to be run */
    struct event *events, *events_end;
    bool quit;
};

int worker_start(struct worker *w, struct engine *engine, const char *output_dir,
                 const struct spool *spool, uv_async_t *wake, struct kr_err *err);

/* Waits for the job that runs now, joins the thread and frees what was posted but not taken. */
void worker_stop(struct worker *w);

/* The next job, when the one before has ended. */
void worker_give(struct worker *w, struct job *job);

/* All events so far, oldest first, as a list. Each goes back with event_free(). */
struct event *worker_events(struct worker *w);
void event_free(struct event *event);

#endif
