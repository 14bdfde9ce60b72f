/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/keep.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/server/methods.h"
#include "daemon/server/state.h"
#include "proto/record.h"

enum { MOST_ATTEMPTS = 3 }; /* the daemon ended so often during a job: it may be the job */

/* ---------------------------------------------------------------------------- tasks ---------- */

static void run_first(struct keep *keep);

static void on_work(uv_work_t *request)
{
    struct task *task = request->data;
    task->work(task);
}

static void on_done(uv_work_t *request, int status)
{
    struct task *task = request->data;
    struct server *server = task->server;
    struct keep *keep = &server->keep;
    (void)status; /* nothing is ever cancelled */
    keep->first = task->next;
    if (keep->first)
        run_first(keep);
    else
        keep->last = NULL;
    if (task->job)
        task->job->tasks--;
    if (task->done)
        task->done(task);
    server->jobs.crowded = true;
    free(task->data);
    free(task);
    server_step(server);
}

static void run_first(struct keep *keep)
{
    struct task *task = keep->first;
    task->request.data = task;
    int rc = uv_queue_work(&task->server->loop, &task->request, on_work, on_done);
    assert(rc == 0);
    (void)rc;
}

static struct task *new_task(struct server *server, struct job *job, void (*work)(struct task *),
                             void (*done)(struct task *))
{
    struct task *task = calloc(1, sizeof *task);
    if (task) {
        task->server = server;
        task->job = job;
        task->work = work;
        task->done = done;
    }
    return task;
}

static void push(struct task *task)
{
    struct keep *keep = &task->server->keep;
    if (task->job)
        task->job->tasks++;
    *(keep->last ? &keep->last->next : &keep->first) = task;
    keep->last = task;
    if (keep->first == task)
        run_first(keep);
}

bool keep_busy(const struct server *server)
{
    return server->keep.first != NULL;
}

void keep_forget(struct server *server, const struct conn *conn)
{
    for (struct task *task = server->keep.first; task; task = task->next)
        if (task->conn == conn)
            task->conn = NULL;
}

bool keep_owes(const struct server *server, const struct conn *conn)
{
    for (const struct task *task = server->keep.first; task; task = task->next)
        if (task->conn == conn)
            return true;
    return false;
}

int64_t keep_accepting(const struct server *server, const struct conn *conn, uid_t uid)
{
    int64_t n = 0;
    for (const struct task *task = server->keep.first; task; task = task->next)
        n += task->job && !task->job->linked && (conn ? task->conn == conn : task->job->uid == uid);
    return n;
}

/* ---------------------------------------------------------------------------- records -------- */

static int64_t first_missing(const struct job *job)
{
    int64_t i = 0;
    while (i < job->params.count && job->pictures[i].made)
        i++;
    return i;
}

static void write_record(struct kr_out *out, const struct job *job, enum kr_record_state state)
{
    struct kr_record r = {
        .job = (int64_t)job->id,
        .uid = job->uid,
        .state = state,
        .attempts = job->attempts,
        .made = job->made,
        .client = job->client,
        .profile = (char *)(uintptr_t)job->server->options.profile, /* only read */
        .submitted_at = job->submitted_at,
        .started_at = job->started_at,
        .finished_at = job->finished_at,
        .encode = job->times.encode,
        .denoise = job->times.denoise,
        .decode = job->times.decode,
        .png = job->times.png,
        .peak = (int64_t)job->times.peak,
        .error = job->error,
        .params = job->params,
    };
    for (int64_t i = 0; i < job->params.count; i++)
        r.fetched |= (uint64_t)job->pictures[i].fetched << i;
    /* One that follows from a large size may be more than a request may ask for; left out, it
     * follows again. */
    if (r.params.mu < kr_fields[KR_F_MU].min || r.params.mu > kr_fields[KR_F_MU].max)
        r.params.set &= ~kr_bit(KR_F_MU);
    kr_record_write(out, &r);
}

/* A task with the record as the job is now; NULL: no memory. */
static struct task *record_task(struct job *job, enum kr_record_state state,
                                void (*work)(struct task *), void (*done)(struct task *),
                                struct kr_err *err)
{
    struct kr_out out;
    struct task *task = new_task(job->server, job, work, done);
    kr_out_init(&out);
    write_record(&out, job, state);
    void *data = kr_out_take(&out, task ? &task->size : &(size_t){0});
    if (!task || !data) {
        free(task);
        free(data);
        kr_fail(err, KR_NO_MEMORY, "no memory for the record of job %" PRIu64, job->id);
        return NULL;
    }
    task->data = data;
    spool_name(task->name, job->id, SPOOL_RECORD);
    return task;
}

static void work_write(struct task *task)
{
    task->rc =
        spool_write(&task->server->keep.spool, task->name, task->data, task->size, &task->err);
}

/* A first record that may or may not be there is no answer: it goes. */
static void work_accept(struct task *task)
{
    work_write(task);
    if (task->rc < 0)
        spool_remove(&task->server->keep.spool, task->name, NULL);
}

static void note_failure(struct task *task)
{
    if (task->rc < 0)
        server_log(task->server, SERVER_WARN, "%s", task->err.text);
}

int keep_admits(const struct server *server, struct kr_err *err)
{
    const struct kr_err *why = &server->keep.unusable;
    if (why->code == KR_OK)
        return 0;
    return kr_fail(err, KR_IO, "jobs cannot be detached here: %s", why->text);
}

struct task *keep_accept(struct job *job, void (*done)(struct task *), struct kr_err *err)
{
    struct kr_record again;
    struct task *task = record_task(job, KR_RECORD_QUEUED, work_accept, done, err);
    if (!task)
        return NULL;
    if (kr_record_read(&again, task->data, task->size, err) <
        0) { /* what is accepted can be read */
        free(task->data);
        free(task);
        return NULL;
    }
    kr_record_fini(&again);
    push(task);
    return task;
}

/* ---------------------------------------------------------------------------- a job's way ---- */

static void done_begin(struct task *task)
{
    struct job *job = task->job;
    if (task->rc < 0) {
        job->server->starting = NULL;
        job_finish(job, &task->err);
    } else {
        jobs_begun(job);
    }
}

void keep_begin(struct job *job)
{
    struct kr_err err;
    int64_t made = first_missing(job);
    job->first = made;
    if (made > job->made)
        job->attempts = 0;
    job->made = made;
    struct task *task = NULL;
    if (job->attempts >= MOST_ATTEMPTS) {
        kr_fail(&err, KR_IO,
                "the daemon ended %d times while this job was running, it is not begun again",
                MOST_ATTEMPTS);
    } else {
        job->attempts++;
        task = record_task(job, KR_RECORD_QUEUED, work_write, done_begin, &err);
    }
    if (task) {
        push(task);
    } else {
        job->server->starting = NULL;
        job_finish(job, &err);
    }
}

/* Where the end cannot be written, a full disk may still give the record another name, which tells
 * it, and let go of the pictures; where it does neither, rather no trace of a job that failed than
 * one that runs again. What is done has all its pictures and needs no record to be known as done.
 */
static void work_end(struct task *task)
{
    const struct spool *spool = &task->server->keep.spool;
    char name[SPOOL_NAME];
    work_write(task);
    if (task->rc == 0 || task->record == SPOOL_RECORD)
        return;
    spool_name(name, task->number, task->record);
    if (spool_rename(spool, task->name, name, NULL) < 0)
        task->record = SPOOL_RECORD;
    for (int64_t i = 0; i < task->index; i++) {
        spool_name(name, task->number, i);
        spool_remove(spool, name, NULL);
    }
    if (task->record == SPOOL_RECORD)
        spool_remove(spool, task->name, NULL);
}

static void drop_picture(struct keep *keep, struct kept *picture)
{
    if (!picture->there)
        return;
    picture->there = false;
    keep->images--;
    keep->bytes -= (int64_t)picture->size;
    keep->fetched -= picture->fetched;
}

static void done_end(struct task *task)
{
    struct job *job = task->job;
    const struct kr_err how = job->error;
    note_failure(task);
    if (task->rc < 0) {
        job->record = task->record;
        for (int64_t i = 0; i < task->index; i++)
            drop_picture(&job->server->keep, &job->pictures[i]);
    }
    job_end(job, &how);
    if (task->conn)
        methods_answer_cancel(task->conn, task->request_id, job);
}

void keep_end(struct job *job, const struct kr_err *how, struct conn *conn, uint32_t request_id)
{
    struct kr_err err;
    enum kr_record_state state = how->code == KR_OK          ? KR_RECORD_DONE
                                 : how->code == KR_CANCELLED ? KR_RECORD_CANCELLED
                                                             : KR_RECORD_FAILED;
    job->ending = true;
    job->error = *how;
    struct task *task = record_task(job, state, work_end, done_end, &err);
    if (!task) {
        server_log(job->server, SERVER_WARN, "%s", err.text);
        job_end(job, how);
        if (conn)
            methods_answer_cancel(conn, request_id, job);
        return;
    }
    task->conn = conn;
    task->request_id = request_id;
    task->number = job->id;
    task->index = how->code == KR_OK ? 0 : job->params.count;
    task->record = how->code == KR_OK          ? SPOOL_RECORD
                   : how->code == KR_CANCELLED ? SPOOL_CANCELLED
                                               : SPOOL_FAILED;
    push(task);
}

void keep_requeue(struct job *job)
{
    struct kr_err err;
    job->state = JOB_QUEUED;
    job->attempts = 0;
    server_log(job->server, SERVER_INFO, "job %" PRIu64 " waits for the next start", job->id);
    struct task *task = record_task(job, KR_RECORD_QUEUED, work_write, note_failure, &err);
    if (task)
        push(task);
    else
        server_log(job->server, SERVER_WARN, "%s", err.text);
}

/* ---------------------------------------------------------------------------- pictures ------- */

void keep_made(struct job *job, int64_t index, size_t size)
{
    struct keep *keep = &job->server->keep;
    if (index < 0 || index >= job->params.count)
        return;
    drop_picture(keep, &job->pictures[index]);
    job->pictures[index] = (struct kept){.made = true, .there = true, .size = size};
    keep->images++;
    keep->bytes += (int64_t)size;
}

static void work_read(struct task *task)
{
    task->rc = spool_read(&task->server->keep.spool, task->name, KR_MAX_REPLY - 1024, &task->data,
                          &task->size, &task->err);
}

struct task *keep_fetch(struct job *job, int64_t index, void (*done)(struct task *),
                        struct kr_err *err)
{
    struct task *task = new_task(job->server, job, work_read, done);
    if (!task) {
        kr_fail(err, KR_NO_MEMORY, "out of memory");
        return NULL;
    }
    task->index = index;
    spool_name(task->name, job->id, index);
    push(task);
    return task;
}

void keep_fetched(struct job *job, int64_t index)
{
    static const enum kr_record_state states[] = {
        KR_RECORD_QUEUED, KR_RECORD_QUEUED, KR_RECORD_DONE, KR_RECORD_FAILED, KR_RECORD_CANCELLED};
    struct kept *picture = &job->pictures[index];
    if (picture->fetched || !picture->there)
        return;
    picture->fetched = true;
    job->server->keep.fetched++;
    if (job->ending) /* that record is on its way; this bit may be forgotten with the daemon */
        return;
    struct task *task = record_task(job, states[job->state], work_write, note_failure, NULL);
    if (task)
        push(task);
}

static void work_remove(struct task *task)
{
    task->rc = spool_remove(&task->server->keep.spool, task->name, &task->err);
}

static void remove_file(struct server *server, const char *name)
{
    struct task *task = new_task(server, NULL, work_remove, note_failure);
    if (!task)
        return; /* the file stays until the next start finds it */
    strcpy(task->name, name);
    push(task);
}

static void remove_picture(struct job *job, int64_t index)
{
    char name[SPOOL_NAME];
    if (!job->pictures[index].there)
        return;
    drop_picture(&job->server->keep, &job->pictures[index]);
    job->server->jobs.crowded = true;
    spool_name(name, job->id, index);
    remove_file(job->server, name);
}

void keep_remove(struct job *job)
{
    char name[SPOOL_NAME];
    if (!spool_is_open(&job->server->keep.spool))
        return;
    spool_name(name, job->id, job->record);
    remove_file(job->server, name);
}

/* ---------------------------------------------------------------------------- limits --------- */

/* The next picture to go: of ended jobs one that was fetched, else the oldest. */
static struct job *next_to_go(struct server *server, int64_t *index)
{
    struct job *oldest = NULL;
    for (struct job *job = server->jobs.first; job; job = job->next) {
        if (!job->detach || !job_ended(job))
            continue;
        for (int64_t i = 0; i < job->params.count; i++) {
            const struct kept *picture = &job->pictures[i];
            if (!picture->there || (oldest && !picture->fetched))
                continue;
            oldest = job;
            *index = i;
            if (picture->fetched)
                return job;
        }
    }
    return oldest;
}

static void drop_aged(struct server *server, struct job *job)
{
    double age = (double)time(NULL) - job->finished_at;
    if (!job->detach || !job_ended(job) || age < (double)server->options.keep_days * 86400)
        return;
    for (int64_t i = 0; i < job->params.count; i++)
        remove_picture(job, i);
}

void keep_trim(struct server *server)
{
    const struct server_options *o = &server->options;
    struct keep *keep = &server->keep;
    for (struct job *job = server->jobs.first; job && o->keep_days > 0; job = job->next)
        drop_aged(server, job);
    while (keep->images > o->keep_images || keep->bytes > o->keep_bytes) {
        int64_t index;
        struct job *job = next_to_go(server, &index);
        if (!job)
            break; /* what is left belongs to jobs that are not ended */
        remove_picture(job, index);
    }
}

/* ---------------------------------------------------------------------------- numbers -------- */

static void work_reserve(struct task *task)
{
    task->rc = spool_set_number(&task->server->keep.spool, task->number, &task->err);
}

static void done_reserve(struct task *task)
{
    struct keep *keep = &task->server->keep;
    keep->reserving = false;
    note_failure(task);
    if (task->rc == 0 && task->number > keep->reserved)
        keep->reserved = task->number;
}

static void reserve_more(struct server *server, uint64_t last)
{
    struct keep *keep = &server->keep;
    struct task *task = keep->reserving ? NULL : new_task(server, NULL, work_reserve, done_reserve);
    if (!task)
        return;
    task->number = last + KEEP_NUMBERS;
    keep->reserving = true;
    if (keep->first) { /* no other task is about that file: it may overtake them */
        task->next = keep->first->next;
        keep->first->next = task;
        keep->last = task->next ? keep->last : task;
    } else {
        push(task);
    }
}

uint64_t keep_number(struct server *server)
{
    struct keep *keep = &server->keep;
    uint64_t number = ++server->jobs.last_id;
    if (spool_is_open(&keep->spool) && number + KEEP_NUMBERS / 2 > keep->reserved)
        reserve_more(server, number);
    return number;
}

bool keep_is_behind(const struct server *server)
{
    return server->keep.reserving && server->jobs.last_id >= server->keep.reserved;
}
