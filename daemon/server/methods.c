/* SPDX-License-Identifier: Apache-2.0
 *
 * One function a method: it reads its parameters and writes its result, or fails with an error that
 * becomes the answer. What must happen after the answer (a job's last notification, stopping) is
 * left in the struct call and done by methods_handle(). A request that has to wait for the disk (a
 * detached job, its picture, its cancelling) is answered later, by the task that keep.c runs.
 */
#include "daemon/server/methods.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/server/conn.h"
#include "daemon/server/keep.h"
#include "daemon/server/notice.h"
#include "daemon/server/status.h"
#include "daemon/server/state.h"

struct call {
    struct server *server;
    struct conn *conn;
    const struct kr_value *params;
    struct kr_out *out; /* the result goes here */
    uint32_t id;
    bool later;        /* somebody else answers */
    struct job *ended; /* after the answer: tell how it ended */
    bool stop;         /* after the answer: stop the daemon */
};

/* ---------------------------------------------------------------------------- parameters ----- */

static int get_text(const struct call *call, const char *key, const char **text, size_t *length,
                    struct kr_err *err)
{
    const struct kr_value *v = kr_value_get(call->params, key);
    if (kr_value_nil(v))
        return kr_fail(err, KR_BAD_REQUEST, "%s is missing", key);
    if (!kr_value_text(v, text, length))
        return kr_fail(err, KR_BAD_REQUEST, "%s must be text in UTF-8", key);
    return 0;
}

static int get_int(const struct call *call, const char *key, int64_t fallback, int64_t *value,
                   struct kr_err *err)
{
    const struct kr_value *v = kr_value_get(call->params, key);
    *value = fallback;
    if (kr_value_nil(v) || kr_value_int(v, value))
        return 0;
    return kr_fail(err, KR_BAD_REQUEST, "%s must be an integer", key);
}

static int get_flag(const struct call *call, const char *key, bool *value, struct kr_err *err)
{
    const struct kr_value *v = kr_value_get(call->params, key);
    *value = false;
    if (kr_value_nil(v) || kr_value_bool(v, value))
        return 0;
    return kr_fail(err, KR_BAD_REQUEST, "%s must be true or false", key);
}

/* The job that a parameter names. */
static int get_job(const struct call *call, struct job **job, struct kr_err *err)
{
    int64_t id;
    if (kr_value_nil(kr_value_get(call->params, "job")))
        return kr_fail(err, KR_BAD_REQUEST, "job is missing: give the number of a job");
    if (get_int(call, "job", 0, &id, err) < 0)
        return -1;
    *job = id > 0 ? job_find(call->server, (uint64_t)id) : NULL;
    if (!*job)
        return kr_fail(err, KR_NO_JOB, "there is no job %" PRId64 " here, or no longer", id);
    return 0;
}

/* The same, and the caller may have it. */
static int get_own_job(const struct call *call, struct job **job, struct kr_err *err)
{
    if (get_job(call, job, err) < 0)
        return -1;
    if (job_is_own(*job, call->conn))
        return 0;
    return kr_fail(err, KR_FORBIDDEN,
                   "job %" PRIu64 " is another user's; only he and root may cancel, fetch or watch "
                   "it",
                   (*job)->id);
}

/* ---------------------------------------------------------------------------- the daemon ----- */

static int hello(struct call *call, struct kr_err *err)
{
    const char *text;
    size_t length;
    if (kr_value_nil(kr_value_get(call->params, "version")))
        return kr_fail(err, KR_BAD_REQUEST, "version is missing: this daemon speaks version %d",
                       KR_PROTOCOL_VERSION);
    if (!kr_value_nil(kr_value_get(call->params, "client"))) {
        if (get_text(call, "client", &text, &length, err) < 0)
            return -1;
        if (length > 80)
            return kr_fail(err, KR_BAD_REQUEST, "client has %zu bytes, at most 80 are taken",
                           length);
        char *name = strndup(text, length);
        if (!name)
            return kr_fail(err, KR_NO_MEMORY, "out of memory");
        free(call->conn->name);
        call->conn->name = name;
    }
    kr_out_map(call->out, 3);
    kr_out_pair_int(call->out, "version", KR_PROTOCOL_VERSION);
    kr_out_pair_text(call->out, "name", "kread");
    kr_out_pair_text(call->out, "release", KR_VERSION);
    return 0;
}

/* What the engine says about itself, JSON turned into MessagePack. */
static int put_engine(struct call *call, enum engine_topic topic, struct kr_err *err)
{
    char *json = engine_describe(call->server->options.engine, topic);
    if (!json)
        return kr_fail(err, KR_NO_MEMORY, "out of memory");
    int rc = kr_out_json(call->out, json, err);
    free(json);
    return rc;
}

static int inspect(struct call *call, struct kr_err *err)
{
    return put_engine(call, ENGINE_INSPECT, err);
}

static int profile(struct call *call, struct kr_err *err)
{
    return put_engine(call, ENGINE_PROFILE, err);
}

static int status(struct call *call, struct kr_err *err)
{
    kr_out_map(call->out, STATUS_PAIRS + 1);
    status_put(call->out, call->server);
    kr_out_key(call->out, "engine");
    return put_engine(call, ENGINE_STATUS, err);
}

static int stop(struct call *call, struct kr_err *err)
{
    uid_t uid = call->conn->uid, owner = call->server->options.listener->owner;
    if (uid != 0 && uid != owner)
        return kr_fail(err, KR_FORBIDDEN,
                       "only the owner of the socket (uid %u) or root may stop the daemon",
                       (unsigned)owner);
    kr_out_map(call->out, 2);
    status_put_running(call->out, call->server);
    call->stop = true;
    return 0;
}

static int tokens(struct call *call, struct kr_err *err)
{
    const char *text;
    size_t length, count, limit;
    int32_t *ids;
    if (get_text(call, "text", &text, &length, err) < 0)
        return -1;
    if (length > KR_MAX_TEXT)
        return kr_fail(err, KR_BAD_REQUEST, "text has %zu bytes, at most %d are taken", length,
                       KR_MAX_TEXT);
    if (engine_tokens(call->server->options.engine, text, length, &ids, &count, &limit, err) < 0)
        return -1;
    kr_out_map(call->out, 4);
    kr_out_key(call->out, "ids");
    kr_out_array(call->out, (uint32_t)count);
    for (size_t i = 0; i < count; i++)
        kr_out_int(call->out, ids[i]);
    kr_out_pair_int(call->out, "count", (int64_t)count);
    kr_out_pair_int(call->out, "limit", (int64_t)limit);
    kr_out_pair_int(call->out, "cut", count > limit ? (int64_t)(count - limit) : 0);
    free(ids);
    return 0;
}

/* ---------------------------------------------------------------------------- jobs ----------- */

static void put_accepted(struct kr_out *out, const struct job *job, const char *warning)
{
    const uint32_t unsaid = kr_bit(KR_F_PROMPT) | kr_bit(KR_F_NEGATIVE) | kr_bit(KR_F_DETACH);
    kr_out_map(out, 6 + kr_params_pairs(&job->params, unsaid));
    kr_out_pair_int(out, "job", (int64_t)job->id);
    kr_out_pair_bool(out, "own", true);
    kr_out_pair_int(out, "position", job->position);
    notice_wait(out, job);
    kr_out_pair_text(out, "warning", *warning ? warning : NULL);
    kr_out_pair_bool(out, "detach", job->detach);
    kr_out_fields(out, &job->params, unsaid);
}

/* The record of a new job is written, or not. */
static void done_accept(struct task *task)
{
    struct job *job = task->job;
    struct kr_out out;
    job->server->jobs.accepting--;
    job->owner = task->conn;
    if (task->rc == 0 && job_accept(job, &task->err) < 0) {
        task->rc = -1;
        keep_remove(job);
    }
    kr_out_init(&out);
    if (task->rc == 0) {
        kr_out_result(&out, task->request_id);
        put_accepted(&out, job, task->warning);
    } else {
        kr_out_error(&out, task->request_id, &task->err);
        job_free(job);
    }
    if (task->conn)
        conn_send(task->conn, &out);
    else
        kr_out_fini(&out);
}

static int detach(struct call *call, struct job *job, const char *warning, struct kr_err *err)
{
    struct task *task = keep_accept(job, done_accept, err);
    if (!task)
        return -1;
    task->conn = call->conn;
    task->request_id = call->id;
    strcpy(task->warning, warning);
    call->server->jobs.accepting++;
    call->later = true;
    return 0;
}

static int attach(struct call *call, struct job *job, const char *warning, struct kr_err *err)
{
    job->owner = call->conn;
    if (job_accept(job, err) < 0)
        return -1;
    put_accepted(call->out, job, warning);
    return 0;
}

static int generate(struct call *call, struct kr_err *err)
{
    struct kr_params params;
    char warning[sizeof((struct task *)0)->warning] = "";
    if (kr_value_params(call->params, &params, err) < 0)
        return -1;
    bool detached = kr_has(&params, KR_F_DETACH) && params.detach;
    struct job *job = NULL;
    if (server_admit(call->server, call->conn, err) == 0 &&
        (!detached || keep_admits(call->server, err) == 0) &&
        engine_resolve(call->server->options.engine, &params, warning, sizeof warning, err) == 0)
        job = job_new(call->server, call->conn, &params, err);
    kr_params_fini(&params);
    if (!job)
        return -1;
    if ((detached ? detach : attach)(call, job, warning, err) == 0)
        return 0;
    job_free(job);
    return -1;
}

static void put_jobs(struct call *call, const struct job *only, bool preview)
{
    uint32_t count = 0;
    const struct job *first = only ? only : call->server->jobs.first;
    for (const struct job *job = first; job; job = only ? NULL : job->next)
        count++;
    kr_out_map(call->out, 1);
    kr_out_key(call->out, "jobs");
    kr_out_array(call->out, count);
    for (const struct job *job = first; job; job = only ? NULL : job->next)
        notice_job(call->out, job,
                   (struct notice_view){.own = job_is_own(job, call->conn), .preview = preview});
}

static int jobs(struct call *call, struct kr_err *err)
{
    struct job *only = NULL;
    bool preview;
    if (get_flag(call, "preview", &preview, err) < 0)
        return -1;
    if (!kr_value_nil(kr_value_get(call->params, "job")) && get_job(call, &only, err) < 0)
        return -1;
    put_jobs(call, only, preview);
    return 0;
}

static int watch_all(struct call *call, bool images, struct kr_err *err)
{
    for (struct job *job = call->server->jobs.first; job; job = job->next)
        if (!job_ended(job) && job_is_own(job, call->conn) &&
            job_watch(job, call->conn, images, err) < 0)
            return -1;
    call->conn->watch_all = true;
    call->conn->watch_all_images |= images;
    put_jobs(call, NULL, false);
    return 0;
}

static int watch(struct call *call, struct kr_err *err)
{
    struct job *job;
    bool images;
    if (get_flag(call, "images", &images, err) < 0)
        return -1;
    if (kr_value_nil(kr_value_get(call->params, "job")))
        return watch_all(call, images, err);
    if (get_own_job(call, &job, err) < 0)
        return -1;
    if (job_ended(job))
        call->ended = job;
    else if (job_watch(job, call->conn, images, err) < 0)
        return -1;
    kr_out_map(call->out, 3);
    kr_out_pair_int(call->out, "job", (int64_t)job->id);
    kr_out_pair_text(call->out, "state", job_state_name(job));
    kr_out_pair_int(call->out, "position", job->position);
    return 0;
}

/* Says why a picture cannot be had. */
static int no_image(const struct job *job, int64_t index, struct kr_err *err)
{
    if (index < 0 || index >= job->params.count)
        return kr_fail(err, KR_BAD_REQUEST,
                       "index is %" PRId64 ", job %" PRIu64 " has pictures 0 to %" PRId64, index,
                       job->id, job->params.count - 1);
    if (!job->detach)
        return kr_fail(err, KR_NO_JOB,
                       "job %" PRIu64 " keeps no pictures, it was submitted without detach",
                       job->id);
    if (!job->pictures[index].made)
        return kr_fail(err, KR_BAD_REQUEST,
                       "picture %" PRId64 " of job %" PRIu64 " is not made, the job is %s", index,
                       job->id, job_state_name(job));
    return kr_fail(err, KR_NO_JOB,
                   "picture %" PRId64 " of job %" PRIu64 " was dropped (keep_images, "
                   "keep_megabytes, keep_days)",
                   index, job->id);
}

static void put_picture(struct kr_out *out, const struct task *task)
{
    const struct job *job = task->job;
    kr_out_map(out, 8);
    kr_out_pair_int(out, "job", (int64_t)job->id);
    kr_out_pair_text(out, "state", job_state_name(job));
    kr_out_pair_int(out, "count", job->params.count);
    kr_out_pair_int(out, "index", task->index);
    kr_out_pair_int(out, "seed", job->params.seed + task->index);
    kr_out_pair_int(out, "width", job->params.width);
    kr_out_pair_int(out, "height", job->params.height);
    kr_out_key(out, "png");
    kr_out_bytes(out, task->data, task->size);
}

/* The picture was read, or not. */
static void done_fetch(struct task *task)
{
    struct kr_out out;
    if (!task->conn)
        return;
    kr_out_init(&out);
    if (task->rc == 0) {
        kr_out_result(&out, task->request_id);
        put_picture(&out, task);
        keep_fetched(task->job, task->index);
    } else {
        kr_out_error(&out, task->request_id, &task->err);
    }
    conn_send(task->conn, &out);
}

static int fetch(struct call *call, struct kr_err *err)
{
    struct job *job;
    int64_t index;
    if (get_own_job(call, &job, err) < 0 || get_int(call, "index", 0, &index, err) < 0)
        return -1;
    if (!job->pictures || index < 0 || index >= job->params.count || !job->pictures[index].there)
        return no_image(job, index, err);
    struct task *task = keep_fetch(job, index, done_fetch, err);
    if (!task)
        return -1;
    task->conn = call->conn;
    task->request_id = call->id;
    call->later = true;
    return 0;
}

static void put_cancelled(struct kr_out *out, const struct job *job)
{
    kr_out_map(out, 2);
    kr_out_pair_int(out, "job", (int64_t)job->id);
    kr_out_pair_text(out, "state", job->ending ? "running" : job_state_name(job));
}

void methods_answer_cancel(struct conn *conn, uint32_t id, const struct job *job)
{
    struct kr_out out;
    kr_out_init(&out);
    kr_out_result(&out, id);
    put_cancelled(&out, job);
    conn_send(conn, &out);
}

static int cancel(struct call *call, struct kr_err *err)
{
    struct job *job;
    if (get_own_job(call, &job, err) < 0)
        return -1;
    call->later = job_cancel(job, call->conn, call->id);
    if (!call->later)
        put_cancelled(call->out, job);
    return 0;
}

/* ---------------------------------------------------------------------------- the table ------ */

static const struct method {
    int (*run)(struct call *call, struct kr_err *err);
    const char *params[4]; /* names, NULL-terminated; `version` goes everywhere */
} methods[KR_METHODS] = {
    [KR_M_HELLO] = {hello, {"client"}},
    [KR_M_GENERATE] = {generate, {NULL}}, /* the field table says what it takes */
    [KR_M_STATUS] = {status, {NULL}},
    [KR_M_JOBS] = {jobs, {"job", "preview"}},
    [KR_M_WATCH] = {watch, {"job", "images"}},
    [KR_M_FETCH] = {fetch, {"job", "index"}},
    [KR_M_CANCEL] = {cancel, {"job"}},
    [KR_M_TOKENS] = {tokens, {"text"}},
    [KR_M_INSPECT] = {inspect, {NULL}},
    [KR_M_PROFILE] = {profile, {NULL}},
    [KR_M_STOP] = {stop, {NULL}},
};

/* -1: the answer is an error. */
static int run(struct call *call, const struct kr_in *request, struct kr_err *err)
{
    enum kr_method id = kr_in_method(request);
    if (id == KR_METHODS) {
        if (kr_value_version(request->params, err) < 0)
            return -1;
        return kr_fail(err, KR_BAD_METHOD, "there is no method \"%.*s\"",
                       (int)(request->method_length < 60 ? request->method_length : 60),
                       request->method);
    }
    if (!call->conn->allowed && id != KR_M_HELLO)
        return kr_fail(err, KR_FORBIDDEN,
                       "user %u may not use this daemon: its owner lists who may (allow_users, "
                       "allow_groups)",
                       (unsigned)call->conn->uid);
    if (id != KR_M_GENERATE && kr_value_keys(request->params, methods[id].params, err) < 0)
        return -1;
    return methods[id].run(call, err);
}

void methods_handle(struct conn *conn, const struct kr_in *request)
{
    struct kr_out out;
    struct kr_err err;
    struct call call = {.server = conn->server,
                        .conn = conn,
                        .params = request->params,
                        .out = &out,
                        .id = request->id};
    kr_out_init(&out);
    kr_out_result(&out, request->id);
    if (run(&call, request, &err) < 0) {
        kr_out_fini(&out);
        kr_out_init(&out);
        kr_out_error(&out, request->id, &err);
    }
    if (call.later)
        kr_out_fini(&out);
    else
        conn_send(conn, &out);
    if (call.ended) {
        kr_out_init(&out);
        notice_end(&out, call.ended);
        conn_send(conn, &out);
    }
    if (call.stop)
        server_stop(conn->server, "a client asked for it");
}
