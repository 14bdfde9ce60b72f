/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/job.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/server/conn.h"
#include "daemon/server/health.h"
#include "daemon/server/keep.h"
#include "daemon/server/notice.h"
#include "daemon/server/state.h"

enum {
    REMEMBER = 100, /* ended jobs without pictures */
    TELL_WAITING =
        1000 /* milliseconds between two reports to a waiting job while it stays in place */
};

static double seconds(uint64_t from, uint64_t to)
{
    return from && to > from ? (double)(to - from) / 1e9 : 0;
}

/* ---------------------------------------------------------------------------- looking -------- */

bool job_ended(const struct job *job)
{
    return job->state >= JOB_DONE;
}

const char *job_state_name(const struct job *job)
{
    static const char *const names[] = {"queued", "running", "done", "failed", "cancelled"};
    return names[job->state];
}

struct job *job_find(struct server *server, uint64_t id)
{
    for (struct job *job = server->jobs.first; job; job = job->next)
        if (job->id == id)
            return job;
    return NULL;
}

int64_t job_kept(const struct job *job)
{
    int64_t n = 0;
    for (int64_t i = 0; job->pictures && i < job->params.count; i++)
        n += job->pictures[i].there;
    return n;
}

bool job_is_own(const struct job *job, const struct conn *conn)
{
    return access_owns(conn->uid, job->uid);
}

/* ---------------------------------------------------------------------------- telling -------- */

/* Sends the message to all watchers, or those that want pictures; the last one gets the original.
 */
static void tell(struct job *job, struct kr_out *out, bool image)
{
    struct watcher *last = NULL;
    for (struct watcher *w = job->watchers; w; w = w->next) {
        if (image && !w->images)
            continue;
        if (last) {
            struct kr_out copy;
            kr_out_init(&copy);
            kr_out_raw(&copy, out->data, out->size);
            copy.failed |= out->failed;
            conn_send(last->conn, &copy);
        }
        last = w;
    }
    if (last)
        conn_send(last->conn, out);
    else
        kr_out_fini(out);
}

/* A new preview goes to those that want pictures. */
static void tell_progress(struct job *job, bool preview)
{
    for (struct watcher *w = job->watchers; w; w = w->next) {
        struct kr_out out;
        kr_out_init(&out);
        notice_progress(&out, job, preview && w->images);
        conn_send_progress(w->conn, &out);
    }
}

/* Jobs whose place in the queue changed are told; all of them if `all`. */
static void tell_positions(struct server *server, bool all)
{
    for (struct job *job = server->jobs.first; job; job = job->next)
        if (job->waits && (all || job->position != job->position_told)) {
            job->position_told = job->position;
            tell_progress(job, false);
        }
}

static void order(struct server *server)
{
    queue_order(server);
    tell_positions(server, false);
}

/* While a job runs, the estimate for those behind it becomes better. */
void jobs_tell_waiting(struct server *server)
{
    uint64_t now = uv_hrtime();
    if (server->queue.waiting == 0 || now - server->waiting_told_ns < TELL_WAITING * 1000000ull)
        return;
    server->waiting_told_ns = now;
    queue_order(server);
    tell_positions(server, true);
}

int job_watch(struct job *job, struct conn *conn, bool images, struct kr_err *err)
{
    for (struct watcher *w = job->watchers; w; w = w->next)
        if (w->conn == conn) {
            w->images |= images;
            return 0;
        }
    struct watcher *w = malloc(sizeof *w);
    if (!w)
        return kr_fail(err, KR_NO_MEMORY, "out of memory");
    *w = (struct watcher){.next = job->watchers, .conn = conn, .images = images};
    job->watchers = w;
    conn->watching++;
    return 0;
}

/* Drops the watchers that belong to `conn`, all of them if it is NULL. */
static void drop_watchers(struct job *job, const struct conn *conn)
{
    struct watcher **at = &job->watchers;
    while (*at) {
        struct watcher *w = *at;
        if (conn && w->conn != conn) {
            at = &w->next;
            continue;
        }
        *at = w->next;
        w->conn->watching--;
        free(w);
    }
}

/* ---------------------------------------------------------------------------- life ----------- */

static void drop_preview(struct job *job)
{
    free(job->preview);
    job->preview = NULL;
    job->preview_size = 0;
}

static void job_unlink(struct job *job)
{
    struct jobs *jobs = &job->server->jobs;
    if (job->prev)
        job->prev->next = job->next;
    else
        jobs->first = job->next;
    if (job->next)
        job->next->prev = job->prev;
    else
        jobs->last = job->prev;
}

void job_free(struct job *job)
{
    drop_watchers(job, NULL);
    drop_preview(job);
    if (job->linked)
        job_unlink(job);
    free(job->pictures);
    free(job->client);
    kr_params_fini(&job->params);
    free(job);
}

void jobs_free(struct server *server)
{
    while (server->jobs.first)
        job_free(server->jobs.first);
}

static bool forgettable(const struct job *job)
{
    return job_ended(job) && job->tasks == 0 && job_kept(job) == 0;
}

void jobs_trim(struct server *server)
{
    struct jobs *jobs = &server->jobs;
    struct job *next;
    int64_t n = 0;
    if (!jobs->crowded)
        return;
    jobs->crowded = false;
    for (struct job *job = jobs->first; job; job = job->next)
        n += forgettable(job);
    for (struct job *job = jobs->first; job && n > REMEMBER; job = next) {
        next = job->next;
        if (forgettable(job)) {
            n--;
            if (job->detach)
                keep_remove(job);
            job_free(job);
        }
    }
}

struct job *job_new(struct server *server, struct conn *owner, struct kr_params *params,
                    struct kr_err *err)
{
    struct job *job = calloc(1, sizeof *job);
    if (!job) {
        kr_fail(err, KR_NO_MEMORY, "out of memory");
        return NULL;
    }
    atomic_init(&job->cancel, 0);
    job->server = server;
    job->params = *params;
    *params = (struct kr_params){0};
    job->detach = kr_has(&job->params, KR_F_DETACH) && job->params.detach;
    job->wait = -1;
    job->record = SPOOL_RECORD;
    if (job->detach)
        job->pictures = calloc((size_t)job->params.count, sizeof *job->pictures);
    if (owner && owner->name)
        job->client = strdup(owner->name);
    if ((job->detach && !job->pictures) || (owner && owner->name && !job->client)) {
        kr_fail(err, KR_NO_MEMORY, "out of memory");
        job_free(job);
        return NULL;
    }
    if (owner) {
        job->uid = owner->uid;
        job->id = keep_number(server);
        job->submitted_at = server_wall_clock();
        job->submitted_ns = uv_hrtime();
    }
    return job;
}

void job_link(struct job *job)
{
    struct jobs *jobs = &job->server->jobs;
    struct job *before = jobs->last;
    while (before && before->id > job->id) /* an attached one may have overtaken it meanwhile */
        before = before->prev;
    job->prev = before;
    job->next = before ? before->next : jobs->first;
    *(before ? &before->next : &jobs->first) = job;
    *(job->next ? &job->next->prev : &jobs->last) = job;
    job->linked = true;
}

static int watch_new(struct job *job, struct kr_err *err)
{
    for (struct conn *c = job->server->conns; c; c = c->next)
        if (c->watch_all && job_is_own(job, c) && job_watch(job, c, c->watch_all_images, err) < 0)
            return -1;
    return job->owner ? job_watch(job, job->owner, true, err) : 0;
}

int job_accept(struct job *job, struct kr_err *err)
{
    struct server *server = job->server;
    if (watch_new(job, err) < 0)
        return -1;
    if (queue_enter(server, job) < 0)
        return kr_fail(err, KR_NO_MEMORY, "out of memory");
    job_link(job);
    server->jobs.attached += !job->detach;
    server_log(server, SERVER_DEBUG, "job %" PRIu64 " queued by uid %u: \"%s\"", job->id,
               (unsigned)job->uid, job->params.prompt);
    queue_order(server);
    job->position_told = job->position; /* in the answer */
    tell_positions(server, false);
    server_step(server);
    return 0;
}

/* ---------------------------------------------------------------------------- its end -------- */

static void count_figures(const struct job *job)
{
    const struct engine_times *t = &job->times;
    const double took[FIGURES] = {
        [FIGURE_QUEUED] = seconds(job->submitted_ns, job->started_ns),
        [FIGURE_ENCODE] = t->encode,
        [FIGURE_DENOISE] = t->denoise,
        [FIGURE_DECODE] = t->decode,
        [FIGURE_PNG] = t->png,
        [FIGURE_TOTAL] = seconds(job->submitted_ns, job->finished_ns),
    };
    if (job->first == 0 && job->started_ns)
        figures_add(&job->server->figures, &job->params, took,
                    seconds(job->started_ns, job->finished_ns));
}

void job_end(struct job *job, const struct kr_err *err)
{
    struct server *server = job->server;
    struct jobs *jobs = &server->jobs;
    struct kr_out out;
    assert(!job_ended(job));
    job->state = err->code == KR_OK          ? JOB_DONE
                 : err->code == KR_CANCELLED ? JOB_CANCELLED
                                             : JOB_FAILED;
    job->error = *err;
    job->ending = false;
    if (!job->finished_ns) { /* else its record has it already */
        job->finished_at = server_wall_clock();
        job->finished_ns = uv_hrtime();
    }
    job->position = 0;
    jobs->attached -= !job->detach;
    jobs->crowded = true;
    server->untidy = true;
    *(job->state == JOB_DONE        ? &jobs->done
      : job->state == JOB_CANCELLED ? &jobs->cancelled
                                    : &jobs->failed) += 1;
    if (job->state == JOB_DONE)
        count_figures(job);
    drop_preview(job);
    kr_out_init(&out);
    notice_end(&out, job);
    tell(job, &out, false);
    drop_watchers(job, NULL);
    job->owner = NULL;
    notice_log(job);
    order(server);
    server_step(server);
}

static void finish(struct job *job, const struct kr_err *err, struct conn *conn, uint32_t request)
{
    queue_leave(job->server, job);
    job->finished_at = server_wall_clock();
    job->finished_ns = uv_hrtime();
    if (job->detach)
        keep_end(job, err, conn, request);
    else
        job_end(job, err);
}

void job_finish(struct job *job, const struct kr_err *err)
{
    finish(job, err, NULL, 0);
}

bool job_cancel(struct job *job, struct conn *conn, uint32_t request)
{
    static const struct kr_err err = {KR_CANCELLED, "cancelled"};
    const struct server *server = job->server;
    if (job_ended(job) || job->ending)
        return false;
    job->unwanted = true;
    atomic_store(&job->cancel, 1);
    if (job == server->running || job == server->starting) {
        job->state = JOB_RUNNING; /* the worker has it, even if its first event is still to come */
        return false;
    }
    finish(job, &err, conn, request);
    return job->detach;
}

void jobs_forget(struct server *server, struct conn *conn)
{
    for (struct job *job = server->jobs.first; job; job = job->next) {
        drop_watchers(job, conn);
        if (job->owner != conn)
            continue;
        job->owner = NULL;
        if (!job->detach)
            job_cancel(job, NULL, 0);
    }
}

void jobs_refuse(struct server *server, const char *why)
{
    struct kr_err err;
    kr_fail(&err, KR_SHUTDOWN, "%s", why);
    for (struct job *job = server->jobs.first; job; job = job->next)
        if (job->waits && !job->detach)
            job_finish(job, &err);
}

/* ---------------------------------------------------------------------------- the worker ----- */

static bool feeds(const struct server *server)
{
    return server->phase == PHASE_READY && server->end == SERVER_STOPPED && !server->running &&
           !server->starting;
}

static void give(struct server *server, struct job *job)
{
    server->running = job;
    job->heard_ns = uv_hrtime();
    worker_give(&server->worker, job);
}

void jobs_begun(struct job *job)
{
    struct server *server = job->server;
    server->starting = NULL;
    if (feeds(server))
        give(server, job);
    else if (job->unwanted) /* and nobody will start it to find that out */
        job_finish(job, &(const struct kr_err){KR_CANCELLED, "cancelled"});
    server_step(server);
}

void jobs_feed(struct server *server)
{
    struct job *job = feeds(server) ? queue_next(server) : NULL;
    if (!job)
        return;
    queue_serve(server, job);
    if (job->detach)
        server->starting = job;
    else
        give(server, job);
    queue_leave(server, job);
    job->position = 0;
    order(server);
    if (job->detach)
        keep_begin(job);
}

static void on_start(struct job *job)
{
    job->state = JOB_RUNNING;
    job->started_at = server_wall_clock();
    job->started_ns = uv_hrtime();
    tell_progress(job, false);
    server_step(job->server);
}

static void on_progress(struct job *job, struct event *event)
{
    struct server *server = job->server;
    health_heard(&server->health, job, event);
    job->progress = event->progress;
    memcpy(job->stage, event->stage, sizeof job->stage);
    bool preview = event->image.png != NULL;
    if (preview) {
        drop_preview(job);
        job->preview = event->image.png;
        job->preview_size = event->image.size;
        event->image.png = NULL;
    }
    tell_progress(job, preview);
    jobs_tell_waiting(server);
}

static void on_image(struct job *job, const struct event *event)
{
    struct kr_out out;
    kr_out_init(&out);
    notice_image(&out, job, &event->image);
    tell(job, &out, true);
    if (job->detach)
        keep_made(job, event->image.index, event->image.size);
}

static void on_end(struct job *job, const struct event *event)
{
    struct server *server = job->server;
    struct kr_err err = event->err; /* the event ends with the job */
    if (err.code == KR_DEVICE && server->end == SERVER_STOPPED)
        server->end = SERVER_DEVICE_LOST;
    job->times = event->times;
    server->running = NULL;
    if (err.code == KR_CANCELLED && job->detach && !job->unwanted)
        keep_requeue(job); /* the daemon stops before it could finish */
    else
        job_finish(job, &err);
    server_step(server);
}

void jobs_take(struct event *event)
{
    struct job *job = event->job;
    uint64_t now = uv_hrtime();
    switch (event->kind) {
    case EVENT_START:
        on_start(job);
        break;
    case EVENT_PROGRESS:
        on_progress(job, event);
        break;
    case EVENT_IMAGE:
        on_image(job, event);
        break;
    case EVENT_END:
        on_end(job, event);
        return;
    }
    job->heard_ns = now;
    event_free(event);
}
