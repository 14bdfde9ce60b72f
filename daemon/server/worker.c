/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/worker.h"

#include <assert.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/server/job.h"
#include "daemon/server/save.h"

enum { STACK = 8 << 20 };

/* ---------------------------------------------------------------------------- events --------- */

/* Appends, or overwrites the last event where both are progress of one job: the loop may be slow
 * and only the newest is of use. */
static void post(struct worker *w, struct event *event)
{
    struct event *stale = NULL;
    uv_mutex_lock(&w->lock);
    struct event *last = w->events_end;
    if (last && last->kind == EVENT_PROGRESS && event->kind == EVENT_PROGRESS &&
        last->job == event->job) {
        last->progress = event->progress;
        memcpy(last->stage, event->stage, sizeof last->stage);
        stale = event;
    } else {
        event->next = NULL;
        if (last)
            last->next = event;
        else
            w->events = event;
        w->events_end = event;
    }
    uv_mutex_unlock(&w->lock);
    event_free(stale);
    uv_async_send(w->wake);
}

static struct event *new_event(struct job *job, enum event_kind kind)
{
    struct event *event = calloc(1, sizeof *event);
    if (event) {
        event->job = job;
        event->kind = kind;
    }
    return event;
}

struct event *worker_events(struct worker *w)
{
    uv_mutex_lock(&w->lock);
    struct event *all = w->events;
    w->events = w->events_end = NULL;
    uv_mutex_unlock(&w->lock);
    return all;
}

void event_free(struct event *event)
{
    if (!event || event->kind == EVENT_END) /* that one is part of the job */
        return;
    free(event->image.png);
    free(event);
}

/* ---------------------------------------------------------------------------- one job -------- */

struct run {
    struct worker *worker;
    struct job *job;
};

static void on_progress(void *user, const struct engine_progress *p)
{
    struct run *run = user;
    struct event *event = new_event(run->job, EVENT_PROGRESS);
    if (!event)
        return;
    event->progress = *p;
    event->progress.stage = NULL;
    strncpy(event->stage, p->stage ? p->stage : "", sizeof event->stage - 1);
    post(run->worker, event);
}

static int on_image(void *user, const struct engine_image *image, struct kr_err *err)
{
    struct run *run = user;
    const char *dir = run->worker->output_dir;
    if (dir && save_png(dir, run->job->id, image->index, image->png, image->png_size, err) < 0)
        return -1;
    struct event *event = new_event(run->job, EVENT_IMAGE);
    void *png = event ? malloc(image->png_size + 1) : NULL;
    if (!png) {
        free(event);
        return kr_fail(err, KR_NO_MEMORY, "no memory for the finished picture (%zu bytes)",
                       image->png_size);
    }
    memcpy(png, image->png, image->png_size);
    event->image = (struct image){.index = image->index,
                                  .seed = image->seed,
                                  .width = image->width,
                                  .height = image->height,
                                  .png = png,
                                  .size = image->png_size};
    post(run->worker, event);
    return 0;
}

/* Runs the job to its end; false when the device is lost and no other job may start. */
static bool run_job(struct worker *w, struct job *job)
{
    struct run run = {w, job};
    struct event *start = new_event(job, EVENT_START), *end = &job->end;
    const struct engine_job work = {.id = job->id,
                                    .params = &job->params,
                                    .cancel = &job->cancel,
                                    .user = &run,
                                    .progress = on_progress,
                                    .image = on_image};
    *end = (struct event){.kind = EVENT_END, .job = job};
    if (!start) {
        kr_fail(&end->err, KR_NO_MEMORY, "no memory to start the job");
    } else {
        post(w, start);
        if (atomic_load(&job->cancel))
            kr_fail(&end->err, KR_CANCELLED, "cancelled");
        else if (engine_generate(w->engine, &work, &end->times, &end->err) == 0)
            end->err.code = KR_OK;
        else
            assert(end->err.code != KR_OK);
    }
    bool lost = end->err.code == KR_DEVICE;
    post(w, end);
    return !lost;
}

static struct job *pop(struct worker *w)
{
    uv_mutex_lock(&w->lock);
    while (!w->first && !w->quit)
        uv_cond_wait(&w->pushed, &w->lock);
    struct job *job = w->quit ? NULL : w->first;
    if (job) {
        w->first = job->queue_next;
        if (!w->first)
            w->last = NULL;
        job->queue_next = NULL;
    }
    uv_mutex_unlock(&w->lock);
    return job;
}

static void work(void *arg)
{
    struct worker *w = arg;
    struct job *job;
    while ((job = pop(w)) && run_job(w, job))
        ;
}

/* ---------------------------------------------------------------------------- the loop's side --
 */

void worker_push(struct worker *w, struct job *job)
{
    uv_mutex_lock(&w->lock);
    job->queue_next = NULL;
    if (w->last)
        w->last->queue_next = job;
    else
        w->first = job;
    w->last = job;
    uv_cond_signal(&w->pushed);
    uv_mutex_unlock(&w->lock);
}

bool worker_remove(struct worker *w, struct job *job)
{
    uv_mutex_lock(&w->lock);
    struct job *before = NULL, *at = w->first;
    while (at && at != job) {
        before = at;
        at = at->queue_next;
    }
    if (at) {
        if (before)
            before->queue_next = job->queue_next;
        else
            w->first = job->queue_next;
        if (w->last == job)
            w->last = before;
        job->queue_next = NULL;
    }
    uv_mutex_unlock(&w->lock);
    return at != NULL;
}

/* The thread starts with all signals blocked, so that they reach the loop's thread and the engine's
 * system calls are not interrupted; but for those that its own faults raise, whose handlers would
 * never hear of them. */
static int start_thread(struct worker *w)
{
    static const int faults[] = {SIGBUS, SIGSEGV, SIGFPE, SIGILL};
    const uv_thread_options_t options = {.flags = UV_THREAD_HAS_STACK_SIZE, .stack_size = STACK};
    sigset_t all, before;
    sigfillset(&all);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        sigdelset(&all, faults[i]);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = uv_thread_create_ex(&w->thread, &options, work, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}

int worker_start(struct worker *w, struct engine *engine, const char *output_dir, uv_async_t *wake,
                 struct kr_err *err)
{
    *w = (struct worker){.engine = engine, .output_dir = output_dir, .wake = wake};
    if (uv_mutex_init(&w->lock) != 0)
        return kr_fail(err, KR_NO_MEMORY, "out of memory");
    if (uv_cond_init(&w->pushed) != 0) {
        uv_mutex_destroy(&w->lock);
        return kr_fail(err, KR_NO_MEMORY, "out of memory");
    }
    int rc = start_thread(w);
    if (rc != 0) {
        uv_cond_destroy(&w->pushed);
        uv_mutex_destroy(&w->lock);
        return kr_fail(err, KR_IO, "cannot start the worker thread: %s", uv_strerror(rc));
    }
    w->running = true;
    return 0;
}

void worker_stop(struct worker *w)
{
    if (!w->running)
        return;
    uv_mutex_lock(&w->lock);
    w->quit = true;
    uv_cond_signal(&w->pushed);
    uv_mutex_unlock(&w->lock);
    uv_thread_join(&w->thread);
    w->running = false;
    struct event *next, *event = worker_events(w);
    for (; event; event = next) {
        next = event->next;
        event_free(event);
    }
    uv_cond_destroy(&w->pushed);
    uv_mutex_destroy(&w->lock);
}
