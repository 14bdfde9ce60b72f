/* SPDX-License-Identifier: Apache-2.0
 *
 * The loop's side of the spool. Whatever waits for the disk is a task: its work runs on a thread of
 * libuv's pool, its `done` on the loop's. Tasks run one after the other, in the order in which they
 * were made; so a record's later version never overtakes an earlier one, and a file is read before
 * a removal that was asked for later. The one writer beside them is the worker, for pictures.
 *
 * Where a crash may come, and what the next start finds:
 *   before a job's first record has its name    no job; its client has no answer
 *   then, until it is begun                     queued: it waits again
 *   while it runs                               queued, begun once more: pictures that are there
 *                                               are not made again; given up at MOST_ATTEMPTS
 *   after its last picture, before its record   queued with all pictures: done, without running
 *   after its record has its end                ended
 *   while its pictures are dropped              fewer pictures; its record goes last
 */
#ifndef KR_KEEP_H
#define KR_KEEP_H

#include <uv.h>

#include "daemon/server/job.h"
#include "daemon/server/spool.h"

enum { KEEP_NUMBERS = 500 }; /* that are reserved at a time */

struct task {
    struct task *next;
    uv_work_t request;
    struct server *server;
    void (*work)(struct task *task); /* a pool thread; touches what follows and the spool */
    void (*done)(struct task *task); /* the loop's; the task is freed after it. May be NULL */
    struct job *job;                 /* not freed before the task; or NULL */
    struct conn *conn;               /* who waits for an answer; NULL: nobody, or he is gone */
    uint32_t request_id;
    char name[SPOOL_NAME]; /* of the file */
    void *data;            /* to be written, or what was read; owned */
    size_t size;
    int64_t index;     /* of a picture, or how many there are */
    int64_t record;    /* what the record becomes where it cannot be written */
    uint64_t number;   /* to be reserved */
    char warning[480]; /* for the answer */
    int rc;
    struct kr_err err;
};

struct keep {
    struct spool spool;
    struct kr_err unusable;    /* code KR_OK: detached jobs are taken; else why not */
    struct task *first, *last; /* the first one is at work */
    uint64_t reserved;         /* no number above it is given out before DIR/number has it */
    bool reserving;
    int64_t images, bytes; /* files of pictures */
    int64_t fetched;       /* of them, those that somebody has */
    int64_t damaged;       /* files set aside, at the start and before */
};

/* Opens the state directory and takes over its jobs. -1: another daemon uses a directory that was
 * named, or there is no memory; a directory that cannot be used is only noted. */
int keep_open(struct server *server, struct kr_err *err);
void keep_close(struct server *server); /* after the last task */

/* Whether detached jobs are taken. */
int keep_admits(const struct server *server, struct kr_err *err);

/* The number for a new job. Numbers are reserved on disk in blocks, ahead of time; `behind`: jobs
 * come faster than the disk takes that, and the next must wait for it. Where the disk refuses, jobs
 * go on, and numbers may come again after the next start. */
uint64_t keep_number(struct server *server);
bool keep_is_behind(const struct server *server);

/* Jobs whose first record is being written: those of a client, or where conn is NULL, of a user. */
int64_t keep_accepting(const struct server *server, const struct conn *conn, uid_t uid);

/* Writes a new job's record, then calls done with rc, err and what the caller put into the task. */
struct task *keep_accept(struct job *job, void (*done)(struct task *), struct kr_err *err);

/* Writes that the job is begun; then jobs_begun(), or its end where that fails. */
void keep_begin(struct job *job);

/* Writes how it ended, then tells it with job_end() and answers conn, if there is one. */
void keep_end(struct job *job, const struct kr_err *how, struct conn *conn, uint32_t request_id);

/* Writes that it waits again: the daemon stops before it is finished. */
void keep_requeue(struct job *job);

/* A picture of a job was written by the worker. */
void keep_made(struct job *job, int64_t index, size_t size);

/* Reads a picture, then calls done. */
struct task *keep_fetch(struct job *job, int64_t index, void (*done)(struct task *),
                        struct kr_err *err);
void keep_fetched(struct job *job, int64_t index);

/* Drops pictures beyond the limits on number, bytes and age: fetched ones first, then the oldest.
 */
void keep_trim(struct server *server);

/* Removes the record of a job that is forgotten. */
void keep_remove(struct job *job);

bool keep_busy(const struct server *server); /* a task is at work or waits */
void keep_forget(struct server *server, const struct conn *conn);
bool keep_owes(const struct server *server, const struct conn *conn); /* an answer */

#endif
