/* SPDX-License-Identifier: Apache-2.0
 *
 * Jobs and the registry of them. The loop creates and frees every job; while one runs, the worker
 * reads the fields marked so. A job lives on after its end: the last hundred are remembered for
 * `jobs` and `watch`, and the pictures of detached ones are kept for `fetch` until the limits on
 * their number and size push them out (fetched ones first, then the oldest).
 */
#ifndef KR_JOB_H
#define KR_JOB_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/server/worker.h"
#include "proto/fields.h"

struct conn;
struct server;

enum job_state { JOB_QUEUED, JOB_RUNNING, JOB_DONE, JOB_FAILED, JOB_CANCELLED };

/* A client that gets the job's notifications. */
struct watcher {
    struct watcher *next;
    struct conn *conn;
    bool images;
};

struct job {
    uint64_t id;             /* constant; the worker reads it */
    struct kr_params params; /* constant from the queue on; the worker reads it */
    atomic_int cancel;       /* set by the loop, read by the worker and the engine */
    struct job *queue_next;  /* under the worker's lock */
    struct event end;        /* the worker's until it is posted */

    /* All below is the loop's alone. */
    struct server *server;
    struct job *next, *prev;
    enum job_state state;
    bool detach;
    struct conn *owner; /* NULL: gone */
    struct watcher *watchers;
    char *client; /* who submitted, from hello; or NULL */
    uid_t uid;
    int64_t position;                               /* as last told */
    double submitted_at, started_at, finished_at;   /* Unix seconds; 0: not yet */
    uint64_t submitted_ns, started_ns, finished_ns; /* of the monotonic clock */
    struct engine_progress progress;                /* the newest; its stage is `stage` */
    char stage[16];
    struct image *images; /* params.count of them where detach is set, else NULL */
    struct engine_times times;
    struct kr_err error; /* JOB_FAILED */
};

struct jobs {
    struct job *first, *last; /* oldest first */
    uint64_t last_id;
    int64_t active;                  /* queued and running */
    int64_t remembered;              /* ended */
    int64_t done, failed, cancelled; /* since the start */
    int64_t kept_images, kept_bytes;
};

/* A new job at the end of the queue; takes over params. The caller has checked the limit. */
struct job *job_new(struct server *server, struct conn *owner, struct kr_params *params,
                    struct kr_err *err);

/* Puts it before the worker. Apart from job_new() so that the answer goes out before. */
void job_start(struct job *job);

struct job *job_find(struct server *server, uint64_t id);
int64_t job_position(const struct job *job); /* how many run before it */
bool job_ended(const struct job *job);
const char *job_state_name(const struct job *job);

int job_watch(struct job *job, struct conn *conn, bool images, struct kr_err *err);
void job_cancel(struct job *job);

/* How many pictures wait to be fetched; one of them, or NULL. */
int64_t job_kept(const struct job *job);
struct image *job_image(struct job *job, int64_t index);

/* The client is gone: nobody to notify, and what it did not detach is cancelled. */
void jobs_forget(struct server *server, struct conn *conn);

/* Ends all queued jobs with KR_SHUTDOWN. */
void jobs_refuse(struct server *server, const char *why);

struct job *jobs_running(struct server *server); /* the first active one, or NULL */

/* What the worker posted. */
void jobs_take(struct server *server, struct event *event);

/* Forgets the oldest ended jobs beyond the number that is remembered; those that still keep
 * pictures stay as long as the pictures do. The only place where a job is freed while the server
 * runs. */
void jobs_trim(struct server *server);

void jobs_free(struct server *server);

#endif
