/* SPDX-License-Identifier: Apache-2.0
 *
 * The start: what the last daemon left in the state directory. Runs on the loop's thread before
 * anybody is served. Nothing that is found can keep the daemon from starting, but for another
 * daemon that uses the directory: a file that is damaged is set aside with its pictures, one that
 * the disk does not give is left for the next start, and a job that this daemon cannot run (another
 * profile, lower limits) fails with that reason.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/server/keep.h"
#include "daemon/server/state.h"
#include "proto/record.h"

/* A file of jobs/. */
struct entry {
    uint64_t job;
    int64_t what; /* SPOOL_RECORD and the like, or a picture's index */
    size_t size;
};

struct listing {
    struct entry *entries;
    size_t count, room;
    bool failed;
};

static void add_entry(void *user, const char *name, uint64_t job, int64_t what, size_t size)
{
    struct listing *list = user;
    (void)name;
    if (list->count == list->room) {
        size_t room = list->room ? 2 * list->room : 64;
        struct entry *grown = realloc(list->entries, room * sizeof *grown);
        if (!grown) {
            list->failed = true;
            return;
        }
        list->entries = grown;
        list->room = room;
    }
    list->entries[list->count++] = (struct entry){job, what, size};
}

/* By job, its record first. */
static int by_job(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    if (x->job != y->job)
        return x->job < y->job ? -1 : 1;
    return (x->what > y->what) - (x->what < y->what);
}

static void set_aside(struct server *server, const struct entry *e, const char *why)
{
    char name[SPOOL_NAME];
    struct kr_err err;
    spool_name(name, e->job, e->what);
    if (spool_set_aside(&server->keep.spool, name, &err) < 0)
        server_log(server, SERVER_WARN, "%s (%s)", err.text, why);
    else
        server_log(server, SERVER_WARN, "%s/jobs/%s was moved to damaged/: %s",
                   server->keep.spool.dir, name, why);
}

/* ---------------------------------------------------------------------------- one job -------- */

/* The record as a job, with the pictures that there are. */
static struct job *make_job(struct server *server, struct kr_record *r, const struct entry *e,
                            size_t count, struct kr_err *err)
{
    r->params.set |= kr_bit(KR_F_DETACH);
    r->params.detach = 1;
    struct job *job = job_new(server, NULL, &r->params, err);
    if (!job)
        return NULL;
    double waited = server_wall_clock() - r->submitted_at;
    uint64_t now = uv_hrtime();
    job->id = e->job;
    job->uid = (uid_t)r->uid;
    job->client = r->client;
    r->client = NULL;
    job->record = e->what;
    job->attempts = r->attempts;
    job->made = r->made;
    job->submitted_at = r->submitted_at;
    job->started_at = r->started_at;
    job->finished_at = r->finished_at;
    job->submitted_ns =
        waited > 0 && waited * 1e9 < (double)now ? now - (uint64_t)(waited * 1e9) : 1;
    job->times = (struct engine_times){.encode = r->encode,
                                       .denoise = r->denoise,
                                       .decode = r->decode,
                                       .png = r->png,
                                       .peak = (size_t)r->peak};
    for (size_t i = 1; i < count; i++) {
        int64_t index = e[i].what;
        if (index < 0 || index >= job->params.count) {
            set_aside(server, &e[i],
                      index < 0 ? "its job has ended" : "its job makes fewer pictures");
            continue;
        }
        keep_made(job, index, e[i].size);
        job->pictures[index].fetched = r->fetched >> index & 1;
        server->keep.fetched += job->pictures[index].fetched;
    }
    return job;
}

static void take_ended(struct job *job, const struct kr_record *r)
{
    static const enum job_state states[] = {[KR_RECORD_DONE] = JOB_DONE,
                                            [KR_RECORD_FAILED] = JOB_FAILED,
                                            [KR_RECORD_CANCELLED] = JOB_CANCELLED};
    job->state = states[r->state];
    job->error = r->error;
    for (int64_t i = 0; i < job->params.count && r->state == KR_RECORD_DONE; i++)
        job->pictures[i].made = true; /* what is not there was dropped */
    job_link(job);
}

/* Whether this daemon can run it as it was accepted. */
static int check_job(struct server *server, struct job *job, const struct kr_record *r,
                     struct kr_err *err)
{
    const char *profile = server->options.profile;
    char warning[480] = "";
    if (profile && r->profile && strcmp(profile, r->profile) != 0)
        return kr_fail(err, KR_BAD_CONFIG,
                       "the job was accepted for profile %.80s, and the daemon serves %.80s now",
                       r->profile, profile);
    return engine_resolve(server->options.engine, &job->params, warning, sizeof warning, err);
}

static void take_queued(struct server *server, struct job *job, const struct kr_record *r)
{
    struct kr_err err = {.code = KR_OK};
    bool complete = true;
    for (int64_t i = 0; i < job->params.count; i++)
        complete = complete && job->pictures[i].made;
    if (!complete && check_job(server, job, r, &err) == 0 && job_accept(job, &err) == 0)
        return;
    job_link(job);
    job_finish(job, &err);
}

/* The name says how it ended, the record does not. */
static void end_record(int64_t what, struct kr_record *r)
{
    r->state = what == SPOOL_CANCELLED ? KR_RECORD_CANCELLED : KR_RECORD_FAILED;
    if (r->state == KR_RECORD_FAILED)
        kr_fail(&r->error, KR_IO,
                "it failed, and the state directory had no room to keep the reason");
}

static int read_record(struct server *server, const struct entry *e, struct kr_record *r,
                       struct kr_err *err)
{
    char name[SPOOL_NAME];
    void *data;
    size_t size;
    spool_name(name, e->job, e->what);
    if (spool_read(&server->keep.spool, name, KR_MAX_RECORD, &data, &size, err) < 0)
        return -1;
    int rc = kr_record_read(r, data, size, err);
    free(data);
    if (rc == 0 && r->job != (int64_t)e->job) {
        rc = kr_fail(err, KR_BAD_FILE, "it is the record of job %" PRId64, r->job);
        kr_record_fini(r);
    }
    if (rc == 0 && e->what != SPOOL_RECORD && r->state == KR_RECORD_QUEUED)
        end_record(e->what, r);
    return rc;
}

/* The files of one job. -1: no memory. */
static int take_job(struct server *server, const struct entry *e, size_t count, struct kr_err *err)
{
    struct kr_record r;
    struct kr_err why;
    int rc = e->what < 0 ? read_record(server, e, &r, &why)
                         : kr_fail(&why, KR_BAD_FILE, "its job has no record");
    if (rc < 0 && why.code == KR_NO_MEMORY)
        return kr_fail(err, KR_NO_MEMORY, "%s", why.text);
    if (rc < 0 && why.code != KR_BAD_FILE) /* it may be fine the next time */
        server_log(server, SERVER_WARN, "%s; the next start will try again", why.text);
    for (size_t i = 0; rc < 0 && why.code == KR_BAD_FILE && i < count; i++)
        set_aside(server, &e[i], why.text);
    if (rc < 0)
        return 0;
    struct job *job = make_job(server, &r, e, count, err);
    if (job && r.state == KR_RECORD_QUEUED)
        take_queued(server, job, &r);
    else if (job)
        take_ended(job, &r);
    kr_record_fini(&r);
    return job ? 0 : -1;
}

/* ---------------------------------------------------------------------------- all of it ------ */

static int list_jobs(struct server *server, struct listing *list, struct kr_err *err)
{
    struct keep *keep = &server->keep;
    if (spool_list(&keep->spool, add_entry, list, err) < 0)
        return -1;
    if (list->failed)
        return kr_fail(err, KR_NO_MEMORY, "no memory for the jobs in %s", keep->spool.dir);
    if (list->count > 0) {
        qsort(list->entries, list->count, sizeof *list->entries, by_job);
        server->jobs.last_id = list->entries[list->count - 1].job;
    }
    return 0;
}

static int take_jobs(struct server *server, const struct listing *list, struct kr_err *err)
{
    for (size_t i = 0, n; i < list->count; i += n) {
        const struct entry *e = &list->entries[i];
        for (n = 1; i + n < list->count && e[n].job == e->job;)
            n++;
        if (take_job(server, e, n, err) < 0)
            return -1;
    }
    return 0;
}

/* Numbers go on where they ended, and the first block is reserved before the first job, and before
 * a damaged file with the highest of them is set aside. */
static void take_number(struct server *server)
{
    struct keep *keep = &server->keep;
    struct kr_err err;
    uint64_t number;
    if (spool_number(&keep->spool, &number, &err) < 0)
        server_log(server, SERVER_WARN, "%s; numbers go on after the highest found", err.text);
    if (number > server->jobs.last_id)
        server->jobs.last_id = number;
    keep->reserved = server->jobs.last_id + KEEP_NUMBERS;
    if (spool_set_number(&keep->spool, keep->reserved, &err) < 0)
        keep->unusable = err;
}

/* Without a state directory everything but detached jobs works. */
static int do_without(struct server *server, const struct kr_err *why)
{
    if (why != &server->keep.unusable)
        server->keep.unusable = *why;
    server_log(server, SERVER_WARN, "jobs cannot be detached: %s", why->text);
    return 0;
}

int keep_open(struct server *server, struct kr_err *err)
{
    struct keep *keep = &server->keep;
    const char *dir = server->options.state_dir;
    struct listing list = {0};
    struct kr_err why;
    keep->spool = (struct spool){.lock_fd = -1, .dir_fd = -1, .jobs_fd = -1};
    if (!dir) {
        kr_fail(&keep->unusable, KR_IO, "no state directory is known, set state_dir or HOME");
        return 0;
    }
    if (spool_open(&keep->spool, dir, &why) < 0) {
        if (why.code == KR_NO_MEMORY || (why.code == KR_BUSY && server->options.state_dir_named)) {
            *err = why;
            return -1;
        }
        return do_without(server, &why);
    }
    int rc = list_jobs(server, &list, err);
    if (rc == 0) {
        take_number(server);
        rc = take_jobs(server, &list, err);
    }
    free(list.entries);
    if (rc < 0 && err->code == KR_NO_MEMORY)
        return -1;
    if (rc < 0) {
        spool_close(&keep->spool);
        return do_without(server, err);
    }
    keep->damaged = spool_damaged(&keep->spool);
    server->jobs.crowded = true; /* limits may be lower, and pictures older, than they were */
    server_step(server);
    return keep->unusable.code == KR_OK ? 0 : do_without(server, &keep->unusable);
}

void keep_close(struct server *server)
{
    struct keep *keep = &server->keep;
    if (spool_is_open(&keep->spool))
        spool_set_number(&keep->spool, server->jobs.last_id, NULL);
    spool_close(&keep->spool);
}
