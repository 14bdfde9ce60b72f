/* SPDX-License-Identifier: Apache-2.0
 *
 * The order in which queued jobs will run follows without a simulation: in the first round each
 * user has his oldest job, in the order in which they were last served, then each his second, and
 * so on. A job's place is the pair (how many of his own are before it, his user's place).
 */
#include "daemon/server/queue.h"

#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "daemon/server/job.h"
#include "daemon/server/state.h"

/* ---------------------------------------------------------------------------- users ---------- */

static struct turn *find(const struct queue *q, uid_t uid)
{
    for (size_t i = 0; i < q->count; i++)
        if (q->turns[i].uid == uid)
            return &q->turns[i];
    return NULL;
}

/* Whose job runs has had his turn just now. */
static bool just_served(const struct server *server, uid_t uid)
{
    return (server->running && server->running->uid == uid) ||
           (server->starting && server->starting->uid == uid);
}

static struct turn *add(struct queue *q, uid_t uid)
{
    if (q->count == q->room) {
        size_t room = q->room ? 2 * q->room : 8;
        struct turn *grown = realloc(q->turns, room * sizeof *grown);
        if (!grown)
            return NULL;
        q->turns = grown;
        q->room = room;
    }
    q->turns[q->count] = (struct turn){.uid = uid};
    return &q->turns[q->count++];
}

int queue_enter(struct server *server, struct job *job)
{
    struct queue *q = &server->queue;
    struct turn *turn = find(q, job->uid);
    if (!turn) {
        turn = add(q, job->uid);
        if (!turn)
            return -1;
        turn->served = just_served(server, job->uid) ? ++q->clock : 0;
    }
    turn->waiting++;
    q->waiting++;
    job->waits = true;
    return 0;
}

/* A user is remembered until nobody's job waits: who leaves and comes back does not jump ahead. */
void queue_leave(struct server *server, struct job *job)
{
    struct queue *q = &server->queue;
    if (!job->waits)
        return;
    job->waits = false;
    find(q, job->uid)->waiting--;
    if (--q->waiting == 0)
        q->count = 0;
}

int64_t queue_of(const struct server *server, uid_t uid)
{
    const struct turn *turn = find(&server->queue, uid);
    return turn ? turn->waiting : 0;
}

int64_t queue_users(const struct server *server)
{
    int64_t users = 0;
    for (size_t i = 0; i < server->queue.count; i++)
        users += server->queue.turns[i].waiting > 0;
    return users;
}

/* ---------------------------------------------------------------------------- the next one --- */

struct job *queue_next(struct server *server)
{
    const struct queue *q = &server->queue;
    const struct turn *best = NULL;
    for (size_t i = 0; i < q->count; i++)
        if (q->turns[i].waiting > 0 && (!best || q->turns[i].served < best->served))
            best = &q->turns[i];
    for (struct job *job = server->jobs.first; best && job; job = job->next)
        if (job->waits && job->uid == best->uid)
            return job;
    return NULL;
}

void queue_serve(struct server *server, const struct job *job)
{
    struct turn *turn = find(&server->queue, job->uid);
    if (turn)
        turn->served = ++server->queue.clock;
}

/* ---------------------------------------------------------------------------- the order ------ */

struct place {
    int64_t round;
    uint64_t served;
    size_t user; /* decides between two who were not served yet */
    struct job *job;
};

static int earlier(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    if (x->round != y->round)
        return x->round < y->round ? -1 : 1;
    if (x->served != y->served)
        return x->served < y->served ? -1 : 1;
    return (x->user > y->user) - (x->user < y->user);
}

/* What the running job still takes; below 0: not known. */
static double running_left(const struct server *server)
{
    const struct job *job = server->running;
    if (!job)
        return 0;
    double since = (double)(uv_hrtime() - job->heard_ns) / 1e9;
    double left = job->stage[0] ? job->progress.remaining : -1;
    if (left < 0) {
        left = figures_estimate(&server->figures, &job->params);
        since = job->started_ns ? (double)(uv_hrtime() - job->started_ns) / 1e9 : 0;
    }
    return left < 0 ? left : left > since ? left - since : 0;
}

static void fill(struct server *server, struct place *places)
{
    struct queue *q = &server->queue;
    int64_t n = 0;
    for (size_t i = 0; i < q->count; i++)
        q->turns[i].seen = 0;
    for (struct job *job = server->jobs.first; job; job = job->next) {
        if (!job->waits)
            continue;
        struct turn *turn = find(q, job->uid);
        places[n++] = (struct place){turn->seen++, turn->served, (size_t)(turn - q->turns), job};
    }
}

void queue_order(struct server *server)
{
    int64_t n = server->queue.waiting, before = server->running || server->starting;
    struct place *places = n ? calloc((size_t)n, sizeof *places) : NULL;
    if (!places)
        return;
    fill(server, places);
    qsort(places, (size_t)n, sizeof *places, earlier);
    double wait = running_left(server);
    if (server->starting)
        wait = figures_estimate(&server->figures, &server->starting->params);
    for (int64_t i = 0; i < n; i++) {
        struct job *job = places[i].job;
        job->position = before + i;
        job->wait = wait;
        double takes = figures_estimate(&server->figures, &job->params);
        wait = wait < 0 || takes < 0 ? -1 : wait + takes;
    }
    free(places);
}

void queue_fini(struct queue *queue)
{
    free(queue->turns);
    *queue = (struct queue){0};
}
