/* SPDX-License-Identifier: Apache-2.0
 *
 * Jobs and the registry of them. The loop creates and frees every job; while one runs, the worker
 * reads the fields marked so. A job lives on after its end: the last hundred without pictures are
 * remembered for `jobs` and `watch`, and detached ones with pictures as long as these are kept.
 *
 * A job's way: job_new(); a detached one is accepted when its record lies in the spool (keep.c), an
 * attached one at once: job_accept() puts it into the queue. jobs_feed() gives the worker one job
 * at a time, a detached one after its record says that it was begun. What the worker posts comes
 * back in jobs_take(); a detached job's end is told to clients when its record has it.
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

/* A picture of a detached job: made, and as long as it is kept, a file of the spool. */
struct kept {
    bool made, there, fetched;
    size_t size;
};

struct job {
    uint64_t id;             /* constant; the worker reads it */
    struct kr_params params; /* constant from the queue on; the worker reads it */
    bool detach;             /* constant; the worker reads it */
    int64_t first;           /* the first picture still to be made; constant while it runs */
    atomic_int cancel;       /* set by the loop, read by the worker and the engine */
    struct event end;        /* the worker's until it is posted */

    /* All below is the loop's alone. */
    struct server *server;
    struct job *next, *prev;
    enum job_state state;
    bool linked;        /* in the list: accepted */
    bool waits;         /* in the queue */
    bool ending;        /* its end is being written to its record */
    bool unwanted;      /* somebody cancelled it, not the daemon's stopping */
    int tasks;          /* of keep.c that name it */
    struct conn *owner; /* NULL: gone */
    struct watcher *watchers;
    char *client; /* who submitted, from hello; or NULL */
    uid_t uid;
    int64_t position;                             /* as computed last */
    int64_t position_told;                        /* as told last */
    double wait;                                  /* seconds until it will start; < 0: not known */
    double submitted_at, started_at, finished_at; /* Unix seconds; 0: not yet */
    uint64_t submitted_ns, started_ns, finished_ns; /* of the monotonic clock */
    uint64_t heard_ns;                              /* when the worker last said something of it */
    struct engine_progress progress;                /* the newest; its stage is `stage` */
    char stage[16];
    void *preview; /* the newest, a PNG; NULL: none */
    size_t preview_size;
    struct kept *pictures;  /* params.count of them where detach is set, else NULL */
    int64_t record;         /* what its record in the spool is, SPOOL_RECORD before it ended */
    int64_t attempts, made; /* as in it */
    struct engine_times times;
    struct kr_err error; /* JOB_FAILED; while `ending`: how it will end */
};

struct jobs {
    struct job *first, *last; /* oldest first */
    uint64_t last_id;
    int64_t accepting;               /* not linked yet: their records are being written */
    int64_t attached;                /* not ended, and their clients wait for the end */
    int64_t done, failed, cancelled; /* since the start */
    bool crowded;                    /* jobs_trim() has something to look at */
};

/* A new job, in no list yet; takes over params. `owner` is NULL for one out of the spool, whose
 * number the caller fills in. */
struct job *job_new(struct server *server, struct conn *owner, struct kr_params *params,
                    struct kr_err *err);
void job_free(struct job *job); /* unlinks it where it is linked */

/* Links it behind the others, before those with higher numbers. */
void job_link(struct job *job);

/* Links it and puts it into the queue. `owner`, where it is set, and those who watch all jobs
 * become its watchers; they hear of it when the loop comes round, so that the answer goes out
 * before. */
int job_accept(struct job *job, struct kr_err *err);

struct job *job_find(struct server *server, uint64_t id);
bool job_ended(const struct job *job);
const char *job_state_name(const struct job *job);
int64_t job_kept(const struct job *job); /* pictures that wait to be fetched */
bool job_is_own(const struct job *job, const struct conn *conn);

int job_watch(struct job *job, struct conn *conn, bool images, struct kr_err *err);

/* Somebody does not want it any more: it ends now, or when the worker notices, or when its record
 * says so; in that last case the answer is true, and conn, if it is not NULL, is told then. */
bool job_cancel(struct job *job, struct conn *conn, uint32_t request);

/* The job's last word, in memory and to its watchers. It frees nothing: callers walk the list. */
void job_end(struct job *job, const struct kr_err *err);

/* Begins to end it: at once, or for a detached job when its record says so. */
void job_finish(struct job *job, const struct kr_err *err);

/* The client is gone: nobody to notify, and what it did not detach is cancelled. */
void jobs_forget(struct server *server, struct conn *conn);

/* Ends all attached jobs that wait with KR_SHUTDOWN; detached ones wait for the next start. */
void jobs_refuse(struct server *server, const char *why);

/* Gives the worker its next job if it has none and the server still starts any. */
void jobs_feed(struct server *server);

/* The record of the job that is to start says so, or it is to go on without. */
void jobs_begun(struct job *job);

/* What the worker posted. */
void jobs_take(struct event *event);

/* Tells those who wait how long that will be. */
void jobs_tell_waiting(struct server *server);

/* Forgets the oldest ended jobs beyond the number that is remembered. The only place where a linked
 * job is freed while the server runs. */
void jobs_trim(struct server *server);

void jobs_free(struct server *server);

#endif
