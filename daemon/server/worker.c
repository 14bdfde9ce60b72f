/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/worker.h"

#include <assert.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/server/job.h"
#include "daemon/server/save.h"
#include "daemon/server/spool.h"

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
        struct image older = last->image;
        last->progress = event->progress;
        memcpy(last->stage, event->stage, sizeof last->stage);
        if (event->image.png) {
            last->image = event->image;
            event->image = older;
        }
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

/* The engine makes the pictures from job->first on; to everybody else they have their own numbers.
 */
struct run {
    struct worker *worker;
    struct job *job;
    struct kr_params params; /* the job's, from that picture on; its texts are the job's */
    struct image preview;    /* goes out with the progress that follows */
};

static void on_progress(void *user, const struct engine_progress *p)
{
    struct run *run = user;
    struct event *event = new_event(run->job, EVENT_PROGRESS);
    if (!event)
        return;
    event->progress = *p;
    event->progress.stage = NULL;
    event->progress.image += (int)run->job->first;
    event->progress.count = (int)run->job->params.count;
    strncpy(event->stage, p->stage ? p->stage : "", sizeof event->stage - 1);
    event->image = run->preview;
    run->preview.png = NULL;
    post(run->worker, event);
}

/* A copy of the engine's picture. false: no memory. */
static bool copy_image(const struct run *run, const struct engine_image *from, struct image *to)
{
    *to = (struct image){.index = from->index + (int)run->job->first,
                         .seed = from->seed,
                         .width = from->width,
                         .height = from->height,
                         .png = malloc(from->png_size + 1),
                         .size = from->png_size};
    if (to->png)
        memcpy(to->png, from->png, from->png_size);
    return to->png != NULL;
}

static void on_preview(void *user, const struct engine_image *preview)
{
    struct run *run = user;
    free(run->preview.png);
    copy_image(run, preview, &run->preview);
}

static int save(const struct run *run, int64_t index, const void *png, size_t size,
                struct kr_err *err)
{
    const struct worker *w = run->worker;
    char name[SPOOL_NAME];
    if (w->output_dir && save_png(w->output_dir, run->job->id, (int)index, png, size, err) < 0)
        return -1;
    if (!run->job->detach)
        return 0;
    spool_name(name, run->job->id, index);
    return spool_write(w->spool, name, png, size, err);
}

static int on_image(void *user, const struct engine_image *image, struct kr_err *err)
{
    struct run *run = user;
    struct event *event = new_event(run->job, EVENT_IMAGE);
    if (!event || !copy_image(run, image, &event->image)) {
        free(event);
        return kr_fail(err, KR_NO_MEMORY, "no memory for the finished picture (%zu bytes)",
                       image->png_size);
    }
    if (save(run, event->image.index, image->png, image->png_size, err) < 0) {
        event_free(event);
        return -1;
    }
    post(run->worker, event);
    return 0;
}

/* Runs the job to its end; false when the device is lost and no other job may start. */
static bool run_job(struct worker *w, struct job *job)
{
    struct run run = {.worker = w, .job = job, .params = job->params};
    struct event *start = new_event(job, EVENT_START), *end = &job->end;
    const struct engine_job work = {.id = job->id,
                                    .params = &run.params,
                                    .cancel = &job->cancel,
                                    .user = &run,
                                    .progress = on_progress,
                                    .image = on_image,
                                    .preview = on_preview};
    run.params.seed += job->first;
    run.params.count -= job->first;
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
    free(run.preview.png);
    bool lost = end->err.code == KR_DEVICE;
    post(w, end);
    return !lost;
}

static struct job *pop(struct worker *w)
{
    uv_mutex_lock(&w->lock);
    while (!w->next && !w->quit)
        uv_cond_wait(&w->given, &w->lock);
    struct job *job = w->quit ? NULL : w->next;
    w->next = NULL;
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

void worker_give(struct worker *w, struct job *job)
{
    uv_mutex_lock(&w->lock);
    assert(!w->next);
    w->next = job;
    uv_cond_signal(&w->given);
    uv_mutex_unlock(&w->lock);
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

int worker_start(struct worker *w, struct engine *engine, const char *output_dir,
                 const struct spool *spool, uv_async_t *wake, struct kr_err *err)
{
    *w = (struct worker){.engine = engine, .output_dir = output_dir, .spool = spool, .wake = wake};
    if (uv_mutex_init(&w->lock) != 0)
        return kr_fail(err, KR_NO_MEMORY, "out of memory");
    if (uv_cond_init(&w->given) != 0) {
        uv_mutex_destroy(&w->lock);
        return kr_fail(err, KR_NO_MEMORY, "out of memory");
    }
    int rc = start_thread(w);
    if (rc != 0) {
        uv_cond_destroy(&w->given);
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
    uv_cond_signal(&w->given);
    uv_mutex_unlock(&w->lock);
    uv_thread_join(&w->thread);
    w->running = false;
    struct event *next, *event = worker_events(w);
    for (; event; event = next) {
        next = event->next;
        event_free(event);
    }
    uv_cond_destroy(&w->given);
    uv_mutex_destroy(&w->lock);
}
