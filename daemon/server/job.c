/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/job.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/server/conn.h"
#include "daemon/server/notice.h"
#include "daemon/server/state.h"

enum { REMEMBER = 100 };

static double wall_clock(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
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

int64_t job_position(const struct job *job)
{
    int64_t before = 0;
    if (job_ended(job))
        return 0;
    for (const struct job *j = job->prev; j; j = j->prev)
        before += !job_ended(j);
    return before;
}

struct job *jobs_running(struct server *server)
{
    for (struct job *job = server->jobs.first; job; job = job->next)
        if (job->state == JOB_RUNNING)
            return job;
    return NULL;
}

int64_t job_kept(const struct job *job)
{
    int64_t n = 0;
    for (int64_t i = 0; job->images && i < job->params.count; i++)
        n += job->images[i].png != NULL;
    return n;
}

struct image *job_image(struct job *job, int64_t index)
{
    return job->images && index >= 0 && index < job->params.count && job->images[index].png
               ? &job->images[index]
               : NULL;
}

/* ---------------------------------------------------------------------------- telling -------- */

/* Sends the message to all watchers; the last one gets the original. */
static void tell(struct job *job, struct kr_out *out, const struct image *image)
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

static void tell_progress(struct job *job)
{
    for (struct watcher *w = job->watchers; w; w = w->next) {
        struct kr_out out;
        kr_out_init(&out);
        notice_progress(&out, job);
        conn_send_progress(w->conn, &out);
    }
}

/* Jobs whose place in the queue changed are told. */
static void tell_positions(struct server *server)
{
    int64_t before = 0;
    for (struct job *job = server->jobs.first; job; job = job->next) {
        if (job_ended(job))
            continue;
        if (job->state == JOB_QUEUED && job->position != before) {
            job->position = before;
            tell_progress(job);
        }
        before++;
    }
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

/* ---------------------------------------------------------------------------- pictures ------- */

static void drop_image(struct jobs *jobs, struct image *image)
{
    if (!image->png)
        return;
    jobs->kept_images--;
    jobs->kept_bytes -= (int64_t)image->size;
    free(image->png);
    image->png = NULL;
}

static void drop_images(struct jobs *jobs, struct job *job)
{
    for (int64_t i = 0; job->images && i < job->params.count; i++)
        drop_image(jobs, &job->images[i]);
}

/* The oldest picture that is kept, a fetched one if there is any. */
static struct image *oldest_image(struct jobs *jobs)
{
    struct image *oldest = NULL;
    for (struct job *job = jobs->first; job; job = job->next)
        for (int64_t i = 0; job->images && i < job->params.count; i++) {
            struct image *image = &job->images[i];
            if (image->png && image->fetched)
                return image;
            if (image->png && !oldest)
                oldest = image;
        }
    return oldest;
}

static void keep_image(struct server *server, struct job *job, struct image *image)
{
    struct jobs *jobs = &server->jobs;
    if (!job->images || image->index < 0 || image->index >= job->params.count)
        return;
    struct image *slot = &job->images[image->index];
    drop_image(jobs, slot);
    *slot = *image;
    image->png = NULL;
    jobs->kept_images++;
    jobs->kept_bytes += (int64_t)slot->size;
    while (jobs->kept_images > server->options.keep_images ||
           jobs->kept_bytes > server->options.keep_bytes)
        drop_image(jobs, oldest_image(jobs));
}

/* ---------------------------------------------------------------------------- life ----------- */

static void free_job(struct job *job)
{
    struct jobs *jobs = &job->server->jobs;
    drop_watchers(job, NULL);
    drop_images(jobs, job);
    if (job->prev)
        job->prev->next = job->next;
    else
        jobs->first = job->next;
    if (job->next)
        job->next->prev = job->prev;
    else
        jobs->last = job->prev;
    free(job->images);
    free(job->client);
    kr_params_fini(&job->params);
    free(job);
}

void jobs_trim(struct server *server)
{
    struct jobs *jobs = &server->jobs;
    struct job *next;
    for (struct job *job = jobs->first; job && jobs->remembered > REMEMBER; job = next) {
        next = job->next;
        if (job_ended(job) && job_kept(job) == 0) {
            jobs->remembered--;
            free_job(job);
        }
    }
}

static int watch_new(struct job *job, struct conn *owner, struct kr_err *err)
{
    for (struct conn *c = job->server->conns; c; c = c->next)
        if (c->watch_all && job_watch(job, c, c->watch_all_images, err) < 0)
            return -1;
    return job_watch(job, owner, true, err);
}

struct job *job_new(struct server *server, struct conn *owner, struct kr_params *params,
                    struct kr_err *err)
{
    struct jobs *jobs = &server->jobs;
    struct job *job = calloc(1, sizeof *job);
    if (!job) {
        kr_fail(err, KR_NO_MEMORY, "out of memory");
        return NULL;
    }
    atomic_init(&job->cancel, 0);
    job->server = server;
    job->id = jobs->last_id + 1;
    job->params = *params;
    *params = (struct kr_params){0};
    job->detach = kr_has(&job->params, KR_F_DETACH) && job->params.detach;
    job->owner = owner;
    job->uid = owner->uid;
    job->prev = jobs->last;
    *(jobs->last ? &jobs->last->next : &jobs->first) = job;
    jobs->last = job;
    if (job->detach)
        job->images = calloc((size_t)job->params.count, sizeof *job->images);
    if (owner->name)
        job->client = strdup(owner->name);
    if ((job->detach && !job->images) || (owner->name && !job->client)) {
        kr_fail(err, KR_NO_MEMORY, "out of memory");
        free_job(job);
        return NULL;
    }
    if (watch_new(job, owner, err) < 0) {
        free_job(job);
        return NULL;
    }
    jobs->last_id++;
    jobs->active++;
    job->submitted_at = wall_clock();
    job->submitted_ns = uv_hrtime();
    job->position = job_position(job);
    return job;
}

void job_start(struct job *job)
{
    const struct kr_params *p = &job->params;
    server_log(job->server, SERVER_DEBUG, "job %" PRIu64 " queued by uid %u: \"%s\"", job->id,
               (unsigned)job->uid, p->prompt);
    worker_push(&job->server->worker, job);
}

static void log_end(const struct job *job)
{
    const struct kr_params *p = &job->params;
    const struct engine_times *t = &job->times;
    char error[600] = "";
    if (job->state == JOB_FAILED)
        snprintf(error, sizeof error, " (%s: %s)", kr_code_name(job->error.code), job->error.text);
    double queued = job->started_ns ? (double)(job->started_ns - job->submitted_ns) / 1e9 : 0;
    double total = (double)(job->finished_ns - job->submitted_ns) / 1e9;
    server_log(job->server, job->state == JOB_FAILED ? SERVER_WARN : SERVER_INFO,
               "job %" PRIu64 " %s%s: uid %u, %" PRId64 "x%" PRId64 ", %" PRId64 " steps, count "
               "%" PRId64 ", seed %" PRId64 ", queued %.2f s, encode %.2f s, denoise %.2f s, "
               "decode %.2f s, png %.2f s, total %.2f s, peak %zu MiB",
               job->id, job_state_name(job), error, (unsigned)job->uid, p->width, p->height,
               p->steps, p->count, p->seed, queued, t->encode, t->denoise, t->decode, t->png, total,
               t->peak >> 20);
}

/* The one way in which a job ends. It frees nothing: callers walk the list of jobs. */
static void end_job(struct job *job, const struct kr_err *err)
{
    struct server *server = job->server;
    struct jobs *jobs = &server->jobs;
    struct kr_out out;
    assert(!job_ended(job));
    job->state = err->code == KR_OK          ? JOB_DONE
                 : err->code == KR_CANCELLED ? JOB_CANCELLED
                                             : JOB_FAILED;
    job->error = *err;
    job->finished_at = wall_clock();
    job->finished_ns = uv_hrtime();
    job->position = 0;
    jobs->active--;
    jobs->remembered++;
    *(job->state == JOB_DONE        ? &jobs->done
      : job->state == JOB_CANCELLED ? &jobs->cancelled
                                    : &jobs->failed) += 1;
    kr_out_init(&out);
    notice_end(&out, job);
    tell(job, &out, NULL);
    drop_watchers(job, NULL);
    job->owner = NULL;
    log_end(job);
    tell_positions(server);
    server_step(server);
}

void job_cancel(struct job *job)
{
    if (job_ended(job))
        return;
    atomic_store(&job->cancel, 1);
    if (job->state == JOB_QUEUED && worker_remove(&job->server->worker, job)) {
        const struct kr_err err = {KR_CANCELLED, "cancelled"};
        end_job(job, &err);
    } else {
        job->state = JOB_RUNNING; /* the worker has it, even if its first event is still to come */
    }
}

void jobs_forget(struct server *server, struct conn *conn)
{
    for (struct job *job = server->jobs.first; job; job = job->next) {
        drop_watchers(job, conn);
        if (job->owner != conn)
            continue;
        job->owner = NULL;
        if (!job->detach)
            job_cancel(job);
    }
}

void jobs_refuse(struct server *server, const char *why)
{
    struct kr_err err;
    kr_fail(&err, KR_SHUTDOWN, "%s", why);
    for (struct job *job = server->jobs.first; job; job = job->next)
        if (job->state == JOB_QUEUED && worker_remove(&server->worker, job))
            end_job(job, &err);
}

/* ---------------------------------------------------------------------------- events --------- */

static void on_start(struct job *job)
{
    struct server *server = job->server;
    job->state = JOB_RUNNING;
    job->started_at = wall_clock();
    job->started_ns = uv_hrtime();
    job->position = 0;
    tell_progress(job);
    tell_positions(server);
    server_step(server);
}

static void on_progress(struct job *job, const struct event *event)
{
    job->progress = event->progress;
    memcpy(job->stage, event->stage, sizeof job->stage);
    tell_progress(job);
}

static void on_image(struct job *job, struct event *event)
{
    struct kr_out out;
    kr_out_init(&out);
    notice_image(&out, job, &event->image);
    tell(job, &out, &event->image);
    keep_image(job->server, job, &event->image);
}

void jobs_take(struct server *server, struct event *event)
{
    struct job *job = event->job;
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
        if (event->err.code == KR_DEVICE && server->end == SERVER_STOPPED)
            server->end = SERVER_DEVICE_LOST;
        job->times = event->times;
        struct kr_err err = event->err; /* the event ends with the job */
        end_job(job, &err);
        return;
    }
    event_free(event);
}

void jobs_free(struct server *server)
{
    while (server->jobs.first)
        free_job(server->jobs.first);
}
