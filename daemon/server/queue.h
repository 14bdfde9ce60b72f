/* SPDX-License-Identifier: Apache-2.0
 *
 * Which job is next. Users take turns: whoever was served longest ago is next, with the oldest of
 * his jobs. So a job waits for at most one job of each other user before each of his own, however
 * many another has submitted. All on the loop's thread.
 */
#ifndef KR_QUEUE_H
#define KR_QUEUE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct job;
struct server;

/* A user who has a job that waits or runs. */
struct turn {
    uid_t uid;
    uint64_t served; /* when, on a clock that ticks once a job; 0: not yet */
    int64_t waiting; /* his queued jobs */
    int64_t seen;    /* of those, while the order is computed */
};

struct queue {
    struct turn *turns;
    size_t count, room;
    uint64_t clock;
    int64_t waiting; /* queued jobs of all users */
};

/* A job begins to wait, or does not any longer (it is no mistake if it did not). -1: no memory for
 * its user. */
int queue_enter(struct server *server, struct job *job);
void queue_leave(struct server *server, struct job *job);

int64_t queue_of(const struct server *server, uid_t uid); /* jobs of a user that wait */
int64_t queue_users(const struct server *server);         /* users with a job that waits */

/* The next one, or NULL; it becomes its user's turn once queue_serve() is called. */
struct job *queue_next(struct server *server);
void queue_serve(struct server *server, const struct job *job);

/* Computes position and wait of all queued jobs anew. Without the memory it takes, they stay as
 * they were. */
void queue_order(struct server *server);

void queue_fini(struct queue *queue);

#endif
