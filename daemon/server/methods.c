/* SPDX-License-Identifier: Apache-2.0
 *
 * One function a method: it reads its parameters and writes its result, or fails with an error that
 * becomes the answer. What must happen after the answer (the first notification of a job, stopping)
 * is left in the struct call and done by methods_handle().
 */
#include "daemon/server/methods.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/server/conn.h"
#include "daemon/server/notice.h"
#include "daemon/server/state.h"

struct call {
    struct server *server;
    struct conn *conn;
    const struct kr_value *params;
    struct kr_out *out; /* the result goes here */
    struct job *start;  /* after the answer: put it into the queue */
    struct job *ended;  /* after the answer: tell how it ended */
    bool stop;          /* after the answer: stop the daemon */
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

static void put_running(struct call *call)
{
    const struct job *running = jobs_running(call->server);
    kr_out_key(call->out, "running");
    if (running)
        kr_out_int(call->out, (int64_t)running->id);
    else
        kr_out_nil(call->out);
    kr_out_pair_int(call->out, "queued", call->server->jobs.active - (running ? 1 : 0));
}

static int status(struct call *call, struct kr_err *err)
{
    const struct server *server = call->server;
    struct kr_out *out = call->out;
    kr_out_map(out, 13);
    kr_out_pair_int(out, "version", KR_PROTOCOL_VERSION);
    kr_out_pair_text(out, "name", "kread");
    kr_out_pair_text(out, "release", KR_VERSION);
    kr_out_pair_int(out, "pid", getpid());
    kr_out_pair_real(out, "uptime", (double)(uv_hrtime() - server->started_ns) / 1e9);
    kr_out_pair_text(out, "state", server->phase == PHASE_READY ? "ready" : "stopping");
    put_running(call);
    kr_out_pair_int(out, "queue_limit", server->options.queue_limit);
    kr_out_key(out, "jobs");
    kr_out_map(out, 3);
    kr_out_pair_int(out, "done", server->jobs.done);
    kr_out_pair_int(out, "failed", server->jobs.failed);
    kr_out_pair_int(out, "cancelled", server->jobs.cancelled);
    kr_out_pair_int(out, "clients", server->conn_count);
    kr_out_key(out, "kept");
    kr_out_map(out, 2);
    kr_out_pair_int(out, "images", server->jobs.kept_images);
    kr_out_pair_int(out, "bytes", server->jobs.kept_bytes);
    kr_out_key(out, "engine");
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
    put_running(call);
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

static int generate(struct call *call, struct kr_err *err)
{
    const uint32_t unsaid = kr_bit(KR_F_PROMPT) | kr_bit(KR_F_NEGATIVE) | kr_bit(KR_F_DETACH);
    struct kr_params params;
    char warning[480] = "";
    if (kr_value_params(call->params, &params, err) < 0)
        return -1;
    struct job *job = NULL;
    if (server_admit(call->server, err) == 0 &&
        engine_resolve(call->server->options.engine, &params, warning, sizeof warning, err) == 0)
        job = job_new(call->server, call->conn, &params, err);
    kr_params_fini(&params);
    if (!job)
        return -1;
    kr_out_map(call->out, 4 + kr_params_pairs(&job->params, unsaid));
    kr_out_pair_int(call->out, "job", (int64_t)job->id);
    kr_out_pair_int(call->out, "position", job->position);
    kr_out_pair_text(call->out, "warning", *warning ? warning : NULL);
    kr_out_pair_bool(call->out, "detach", job->detach);
    kr_out_fields(call->out, &job->params, unsaid);
    call->start = job;
    return 0;
}

static void put_jobs(struct call *call)
{
    uint32_t count = 0;
    for (const struct job *job = call->server->jobs.first; job; job = job->next)
        count++;
    kr_out_map(call->out, 1);
    kr_out_key(call->out, "jobs");
    kr_out_array(call->out, count);
    for (const struct job *job = call->server->jobs.first; job; job = job->next)
        notice_job(call->out, job);
}

static int jobs(struct call *call, struct kr_err *err)
{
    (void)err;
    put_jobs(call);
    return 0;
}

static int watch_all(struct call *call, bool images, struct kr_err *err)
{
    for (struct job *job = call->server->jobs.first; job; job = job->next)
        if (!job_ended(job) && job_watch(job, call->conn, images, err) < 0)
            return -1;
    call->conn->watch_all = true;
    call->conn->watch_all_images |= images;
    put_jobs(call);
    return 0;
}

static int watch(struct call *call, struct kr_err *err)
{
    const struct kr_value *flag = kr_value_get(call->params, "images");
    struct job *job;
    bool images = false;
    if (!kr_value_nil(flag) && !kr_value_bool(flag, &images))
        return kr_fail(err, KR_BAD_REQUEST, "images must be true or false");
    if (kr_value_nil(kr_value_get(call->params, "job")))
        return watch_all(call, images, err);
    if (get_job(call, &job, err) < 0)
        return -1;
    if (job_ended(job))
        call->ended = job;
    else if (job_watch(job, call->conn, images, err) < 0)
        return -1;
    kr_out_map(call->out, 3);
    kr_out_pair_int(call->out, "job", (int64_t)job->id);
    kr_out_pair_text(call->out, "state", job_state_name(job));
    kr_out_pair_int(call->out, "position", job_position(job));
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
    if (job->images[index].size == 0)
        return kr_fail(err, KR_BAD_REQUEST,
                       "picture %" PRId64 " of job %" PRIu64 " is not made, the job is %s", index,
                       job->id, job_state_name(job));
    return kr_fail(err, KR_NO_JOB,
                   "picture %" PRId64 " of job %" PRIu64 " was dropped to make room for newer ones "
                   "(keep_images, keep_megabytes)",
                   index, job->id);
}

static int fetch(struct call *call, struct kr_err *err)
{
    struct job *job;
    int64_t index;
    if (get_job(call, &job, err) < 0 || get_int(call, "index", 0, &index, err) < 0)
        return -1;
    struct image *image = job_image(job, index);
    if (!image)
        return no_image(job, index, err);
    struct kr_out *out = call->out;
    kr_out_map(out, 8);
    kr_out_pair_int(out, "job", (int64_t)job->id);
    kr_out_pair_text(out, "state", job_state_name(job));
    kr_out_pair_int(out, "count", job->params.count);
    kr_out_pair_int(out, "index", image->index);
    kr_out_pair_int(out, "seed", image->seed);
    kr_out_pair_int(out, "width", image->width);
    kr_out_pair_int(out, "height", image->height);
    kr_out_key(out, "png");
    kr_out_bytes(out, image->png, image->size);
    image->fetched = true;
    return 0;
}

static int cancel(struct call *call, struct kr_err *err)
{
    struct job *job;
    if (get_job(call, &job, err) < 0)
        return -1;
    job_cancel(job);
    kr_out_map(call->out, 2);
    kr_out_pair_int(call->out, "job", (int64_t)job->id);
    kr_out_pair_text(call->out, "state", job_state_name(job));
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
    [KR_M_JOBS] = {jobs, {NULL}},
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
    if (id != KR_M_GENERATE && kr_value_keys(request->params, methods[id].params, err) < 0)
        return -1;
    return methods[id].run(call, err);
}

void methods_handle(struct conn *conn, const struct kr_in *request)
{
    struct kr_out out;
    struct kr_err err;
    struct call call = {
        .server = conn->server, .conn = conn, .params = request->params, .out = &out};
    kr_out_init(&out);
    kr_out_result(&out, request->id);
    if (run(&call, request, &err) < 0) {
        kr_out_fini(&out);
        kr_out_init(&out);
        kr_out_error(&out, request->id, &err);
    }
    conn_send(conn, &out);
    if (call.start)
        job_start(call.start);
    if (call.ended) {
        kr_out_init(&out);
        notice_end(&out, call.ended);
        conn_send(conn, &out);
    }
    if (call.stop)
        server_stop(conn->server, "a client asked for it");
}
