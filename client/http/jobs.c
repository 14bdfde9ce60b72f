/* SPDX-License-Identifier: Apache-2.0
 *
 * Jobs of /sdcpp/v1 outlive their request: the daemon keeps them (detach), and their id says which
 * of its jobs they are, so this program remembers nothing of them. An id is the time of submission
 * and the daemon's number of the job, job_HEX_HEX as in stable-diffusion.cpp; the time guards
 * against a daemon that lost its memory and numbers from the beginning again.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/http/handlers.h"
#include "client/http/pngtext.h"
#include "client/http/render.h"
#include "proto/json_load.h"

enum { CLOCK_SLACK = 120, REMEMBERED = 86400 }; /* seconds */

/* One request on its way to the daemon and back. */
struct errand {
    struct request *r;
    struct shim *shim;
    struct link *link;           /* of a submission; else NULL and the kept link is used */
    int64_t job, submitted;      /* what the id says */
    int64_t index;               /* of the picture */
    json_t *object;              /* the job object, when it is known */
    struct picture pictures[64]; /* kr_fields[KR_F_COUNT].max */
    size_t count, came;
    bool waits; /* the request does, for this errand's answers */
};

static void free_errand(struct errand *e)
{
    upstream_forget(&e->shim->up, e);
    link_close(e->link);
    json_decref(e->object);
    for (size_t i = 0; i < e->count; i++) {
        free(e->pictures[i].data);
    }
    free(e);
}

static void on_left(void *op)
{
    free_errand(op);
}

static void finish(struct errand *e, struct answer *answer)
{
    struct request *r = e->r;
    free_errand(e);
    request_answer(r, answer);
}

/* There was such a job not long ago, or there never was one. */
static void not_there(struct errand *e)
{
    int64_t age = (int64_t)time(NULL) - e->submitted;
    bool was = age > -CLOCK_SLACK && age < REMEMBERED;
    finish(e, was ? error_answer(e->r->family, MHD_HTTP_GONE, "job expired", NULL,
                                 "that job and its pictures are not kept any more")
                  : error_answer(e->r->family, MHD_HTTP_NOT_FOUND, "job not found", NULL,
                                 "there is no job of that id"));
}

static void fail(struct errand *e, const struct kr_err *err)
{
    struct request *r = e->r;
    if (err->code == KR_NO_JOB || err->code == KR_FORBIDDEN) {
        not_there(e);
        return;
    }
    free_errand(e);
    request_fail_err(r, err, false);
}

/* NULL: no memory, and it was answered. */
static struct errand *new_errand(struct request *r)
{
    struct errand *e = calloc(1, sizeof *e);
    if (e == NULL) {
        request_fail(r, MHD_HTTP_INTERNAL_SERVER_ERROR, "server_error", "out of memory");
        return NULL;
    }
    e->r = r;
    e->shim = r->shim;
    return e;
}

static void write_id(char id[40], int64_t submitted, int64_t job)
{
    snprintf(id, 40, "job_%08" PRIx64 "_%08" PRIx64, (uint64_t)submitted, (uint64_t)job);
}

/* The errand of a request whose path names a job; NULL: it was answered. */
static struct errand *errand_for(struct request *r)
{
    struct errand *e = new_errand(r);
    char again[40];
    if (e == NULL) {
        return NULL;
    }
    if (sscanf(r->id, "job_%" SCNx64 "_%" SCNx64, (uint64_t *)&e->submitted, (uint64_t *)&e->job) ==
            2 &&
        e->job > 0 && e->submitted > 0) {
        write_id(again, e->submitted, e->job);
        if (strcmp(again, r->id) == 0) {
            return e;
        }
    }
    e->submitted = 0;
    not_there(e);
    return NULL;
}

/* Asks the daemon about the errand's job; at most two parameters. */
static void ask(struct errand *e, enum kr_method method, const char *more, int64_t value,
                link_answer *answer)
{
    struct kr_out out;
    struct kr_err err;
    uint32_t id;
    if (upstream_begin(&e->shim->up, method, &out, &id, &err) != 0) {
        fail(e, &err);
        return;
    }
    kr_out_map(&out, more ? 2 : 1);
    kr_out_pair_int(&out, "job", e->job);
    if (more != NULL && method == KR_M_JOBS) {
        kr_out_pair_bool(&out, more, value != 0);
    } else if (more != NULL) {
        kr_out_pair_int(&out, more, value);
    }
    if (upstream_send(&e->shim->up, &out, id, answer, e, &err) != 0) {
        fail(e, &err);
    } else if (!e->waits) {
        e->waits = true;
        request_wait(e->r, on_left, e);
    }
}

/* --------------------------------------------------------------------------- the job object --- */

static const char *text_in(const struct kr_value *map, const char *key, char *buf, size_t size)
{
    const char *text = "";
    size_t length = 0;
    kr_value_text(kr_value_get(map, key), &text, &length);
    snprintf(buf, size, "%.*s", (int)(length < size ? length : size - 1), text);
    return buf;
}

static json_t *seconds_in(const struct kr_value *map, const char *key)
{
    double at;
    return kr_value_real(kr_value_get(map, key), &at) ? json_integer((json_int_t)at) : json_null();
}

static json_t *progress_of(const struct errand *e, const struct kr_value *job,
                           const struct kr_value *progress)
{
    static const char *const copied[] = {"stage",   "step",      "steps", "image",
                                         "elapsed", "remaining", NULL};
    const struct kr_value *from = kr_value_nil(progress) ? job : progress;
    const void *preview;
    size_t size;
    int64_t step = 0;
    json_t *json = json_object();
    for (int i = 0; copied[i] != NULL; i++) {
        const struct kr_value *v = progress ? kr_value_get(progress, copied[i]) : NULL;
        json_object_set_new(json, copied[i], upstream_json(v));
    }
    json_object_set_new(json, "count", upstream_json(kr_value_get(job, "count")));
    json_object_set_new(json, "wait", upstream_json(kr_value_get(from, "wait")));
    json_object_set_new(json, "position", upstream_json(kr_value_get(from, "position")));
    kr_value_int(kr_value_get(progress, "step"), &step);
    json_object_set_new(
        json, "preview_url",
        kr_value_bytes(kr_value_get(progress, "preview"), &preview, &size)
            ? json_sprintf("/kread/v1/jobs/%s/preview.png?n=%" PRId64, e->r->id, step)
            : json_null());
    return json;
}

static json_t *values_of(const struct kr_params *p)
{
    json_t *values = json_object();
    for (int id = 0; id < KR_FIELDS; id++) {
        if (kr_has(p, id) && id != KR_F_DETACH && id != KR_F_PREVIEW && id != KR_F_PROMPT) {
            json_object_set_new(values, kr_fields[id].name, render_value(p, id));
        }
    }
    return values;
}

static json_t *error_of(const char *state, const struct kr_value *error)
{
    struct kr_err err;
    if (strcmp(state, "cancelled") == 0) {
        return json_pack("{s:s, s:s}", "code", "cancelled", "message", "the job was cancelled");
    }
    if (strcmp(state, "failed") != 0) {
        return json_null();
    }
    kr_fail(&err, KR_DEVICE, "the job failed");
    kr_value_error(error, &err);
    return json_pack("{s:s, s:s}", "code", "generation_failed", "message",
                     err.code == KR_IO ? "kread could not use a file; its log says which"
                                       : err.text);
}

static const char *status_of(const char *state)
{
    return strcmp(state, "running") == 0 ? "generating"
           : strcmp(state, "done") == 0  ? "completed"
                                         : state;
}

static json_t *object_of(const struct errand *e, const struct kr_value *job)
{
    char state[16];
    int64_t position = 0;
    struct kr_params p = {0};
    text_in(job, "state", state, sizeof state);
    kr_value_int(kr_value_get(job, "position"), &position);
    position = strcmp(state, "queued") != 0 ? 0 : position > 0 ? position : 1;
    render_values(&p, job);
    json_t *object =
        json_pack("{s:s, s:s, s:s, s:I, s:o, s:o, s:I, s:n, s:o, s:o, s:o?, s:o?, s:o?, s:o}", "id",
                  e->r->id, "kind", "img_gen", "status", status_of(state), "created",
                  (json_int_t)e->submitted, "started", seconds_in(job, "started_at"), "completed",
                  seconds_in(job, "finished_at"), "queue_position", (json_int_t)position, "result",
                  "error", error_of(state, kr_value_get(job, "error")), "progress",
                  progress_of(e, job, kr_value_get(job, "progress")), "seed",
                  render_value(&p, KR_F_SEED), "width", render_value(&p, KR_F_WIDTH), "height",
                  render_value(&p, KR_F_HEIGHT), "values", values_of(&p));
    kr_params_fini(&p);
    return object;
}

/* The errand's job in an answer to `jobs`, or NULL. */
static const struct kr_value *find_job(const struct errand *e, const struct kr_value *result)
{
    const struct kr_value *list = kr_value_get(result, "jobs");
    for (size_t i = 0; i < kr_value_count(list); i++) {
        const struct kr_value *job = kr_value_item(list, i);
        int64_t number = 0;
        double submitted = 0;
        bool detach = false;
        kr_value_int(kr_value_get(job, "job"), &number);
        kr_value_real(kr_value_get(job, "submitted_at"), &submitted);
        kr_value_bool(kr_value_get(job, "detach"), &detach);
        if (number == e->job && detach && submitted > (double)(e->submitted - CLOCK_SLACK) &&
            submitted < (double)(e->submitted + CLOCK_SLACK)) {
            return job;
        }
    }
    return NULL;
}

/* ------------------------------------------------------------------------------ the pictures ---
 */

/* Every value, from the text that the daemon wrote into the picture. */
static void complete_values(json_t *object, const struct picture *picture)
{
    char *text = pngtext_get(picture->data, picture->size, "kread");
    json_error_t none;
    bool no_memory;
    json_t *all = text ? kr_json_load(text, strlen(text), 0, &none, &no_memory) : NULL;
    json_t *values = json_object_get(object, "values");
    for (int id = 0; id < KR_FIELDS && all != NULL; id++) {
        json_t *v = json_object_get(all, kr_fields[id].name);
        if (v != NULL && id != KR_F_COUNT) {
            json_object_set(values, kr_fields[id].name, v);
        }
    }
    json_decref(all);
    free(text);
}

/* The object with "result":null replaced; base64 is made while it is sent. */
static void answer_completed(struct errand *e)
{
    static const char gap[] = "\"result\":null";
    complete_values(e->object, &e->pictures[0]);
    struct answer *a = answer_new(MHD_HTTP_OK, "application/json");
    char *text = json_dumps(e->object, JSON_COMPACT), *at = text ? strstr(text, gap) : NULL;
    char *rest = at ? strdup(at + sizeof gap - 1) : NULL, index[64];
    if (at != NULL) {
        strcpy(at, "\"result\":"); /* what comes before it is made here and has no such text */
    }
    answer_take(a, text);
    answer_text(a, "{\"output_format\":\"png\",\"images\":[");
    for (size_t i = 0; i < e->count; i++) {
        snprintf(index, sizeof index, "%s{\"index\":%zu,\"b64_json\":\"", i ? "," : "", i);
        answer_take(a, strdup(index));
        answer_base64(a, &e->pictures[i]);
        answer_text(a, "\"}");
    }
    answer_text(a, "]}");
    answer_take(a, rest);
    finish(e, a);
}

static int take_picture(struct errand *e, const struct kr_value *result, size_t place)
{
    const void *png;
    size_t size;
    void *copy = kr_value_bytes(kr_value_get(result, "png"), &png, &size) ? malloc(size + 1) : NULL;
    if (copy == NULL) {
        return -1;
    }
    memcpy(copy, png, size);
    e->pictures[place] = (struct picture){.data = copy, .size = size};
    e->came++;
    return 0;
}

static void on_result(void *user, const struct kr_value *result, const struct kr_err *err)
{
    struct errand *e = user;
    struct kr_err none;
    kr_fail(&none, KR_NO_MEMORY, "no memory for a picture");
    if (result == NULL || take_picture(e, result, e->came) != 0) {
        fail(e, err ? err : &none);
    } else if (e->came == e->count) {
        answer_completed(e);
    } else {
        ask(e, KR_M_FETCH, "index", (int64_t)e->came, on_result);
    }
}

static void on_job(void *user, const struct kr_value *result, const struct kr_err *err)
{
    struct errand *e = user;
    const struct kr_value *job = find_job(e, result);
    struct kr_err none;
    char state[16];
    int64_t count = 0;
    if (result == NULL) {
        fail(e, err);
        return;
    }
    if (job == NULL) {
        not_there(e);
        return;
    }
    e->object = object_of(e, job);
    if (e->object == NULL) {
        kr_fail(&none, KR_NO_MEMORY, "no memory for the answer");
        fail(e, &none);
        return;
    }
    kr_value_int(kr_value_get(job, "count"), &count);
    if (strcmp(text_in(job, "state", state, sizeof state), "done") == 0 && count >= 1 &&
        count <= (int64_t)kr_fields[KR_F_COUNT].max) {
        e->count = (size_t)count;
        ask(e, KR_M_FETCH, "index", 0, on_result);
        return;
    }
    finish(e, answer_value(MHD_HTTP_OK, json_incref(e->object)));
}

void handle_job(struct request *r)
{
    struct errand *e = errand_for(r);
    if (e != NULL) {
        ask(e, KR_M_JOBS, "preview", true, on_job);
    }
}

static struct answer *png_answer(struct picture *picture)
{
    struct answer *a = answer_new(MHD_HTTP_OK, "image/png");
    answer_raw(a, picture);
    return a;
}

static void on_image(void *user, const struct kr_value *result, const struct kr_err *err)
{
    struct errand *e = user;
    struct kr_err none;
    char disposition[80];
    int64_t seed = 0;
    kr_fail(&none, KR_NO_MEMORY, "no memory for a picture");
    if (err != NULL && err->code == KR_BAD_REQUEST) { /* no such picture, or not yet */
        finish(e, error_answer(e->r->family, MHD_HTTP_NOT_FOUND, "picture not found", NULL,
                               err->text));
        return;
    }
    e->count = 1;
    if (result == NULL || take_picture(e, result, 0) != 0) {
        fail(e, err ? err : &none);
        return;
    }
    kr_value_int(kr_value_get(result, "seed"), &seed);
    snprintf(disposition, sizeof disposition, "inline; filename=\"kread-%" PRId64 ".png\"", seed);
    struct answer *a = png_answer(&e->pictures[0]);
    answer_header(a, MHD_HTTP_HEADER_CONTENT_DISPOSITION, disposition);
    finish(e, a);
}

/* The job is looked up first, because fetch would not tell one of another time from this one. */
static void on_image_job(void *user, const struct kr_value *result, const struct kr_err *err)
{
    struct errand *e = user;
    if (result == NULL) {
        fail(e, err);
    } else if (find_job(e, result) == NULL) {
        not_there(e);
    } else {
        ask(e, KR_M_FETCH, "index", e->index, on_image);
    }
}

void handle_job_image(struct request *r)
{
    char *end;
    long index = strtol(r->last, &end, 10);
    if (end == r->last || strcmp(end, ".png") != 0 || index < 0 || index > 63) {
        request_fail(r, MHD_HTTP_NOT_FOUND, "Not Found", "Not Found");
        return;
    }
    struct errand *e = errand_for(r);
    if (e != NULL) {
        e->index = index;
        ask(e, KR_M_JOBS, "preview", false, on_image_job);
    }
}

static void on_preview(void *user, const struct kr_value *result, const struct kr_err *err)
{
    struct errand *e = user;
    const struct kr_value *job = find_job(e, result);
    const struct kr_value *progress = kr_value_get(job, "progress");
    const void *png;
    size_t size;
    if (result == NULL) {
        fail(e, err);
    } else if (job == NULL) {
        not_there(e);
    } else if (!kr_value_bytes(kr_value_get(progress, "preview"), &png, &size)) {
        finish(e, error_answer(e->r->family, MHD_HTTP_NOT_FOUND, "no preview", NULL,
                               "there is no preview of that job now"));
    } else {
        struct picture copy = {.data = malloc(size + 1), .size = size};
        if (copy.data != NULL) {
            memcpy(copy.data, png, size);
        }
        finish(e, png_answer(&copy));
    }
}

void handle_job_preview(struct request *r)
{
    struct errand *e = errand_for(r);
    if (e != NULL) {
        ask(e, KR_M_JOBS, "preview", true, on_preview);
    }
}

/* ---------------------------------------------------------------------------------- cancelling ---
 */

static void on_cancelled(void *user, const struct kr_value *result, const struct kr_err *err)
{
    struct errand *e = user;
    if (result == NULL) {
        fail(e, err);
    } else {
        ask(e, KR_M_JOBS, "preview", false, on_job);
    }
}

static void on_cancel_job(void *user, const struct kr_value *result, const struct kr_err *err)
{
    struct errand *e = user;
    if (result == NULL) {
        fail(e, err);
    } else if (find_job(e, result) == NULL) {
        not_there(e);
    } else {
        ask(e, KR_M_CANCEL, NULL, 0, on_cancelled);
    }
}

void handle_job_cancel(struct request *r)
{
    struct errand *e = errand_for(r);
    if (e != NULL) {
        ask(e, KR_M_JOBS, "preview", false, on_cancel_job);
    }
}

/* ---------------------------------------------------------------------------------- submitting ---
 */

static void on_submitted(void *user, const struct kr_value *result, const struct kr_err *err)
{
    struct errand *e = user;
    char id[40];
    int64_t now = (int64_t)time(NULL);
    if (result == NULL) {
        fail(e, err);
        return;
    }
    kr_value_int(kr_value_get(result, "job"), &e->job);
    write_id(id, now, e->job);
    json_t *poll = json_sprintf("/sdcpp/v1/jobs/%s", id);
    finish(e,
           answer_value(MHD_HTTP_ACCEPTED, json_pack("{s:s, s:s, s:s, s:I, s:o}", "id", id, "kind",
                                                     "img_gen", "status", "queued", "created",
                                                     (json_int_t)now, "poll_url", poll)));
}

static void on_lost(void *user, const struct kr_err *reason)
{
    (void)user; /* on_submitted() hears it too */
    (void)reason;
}

static int submit(struct errand *e, const struct kr_params *params, struct kr_err *err)
{
    const struct link_owner owner = {.lost = on_lost, .user = e};
    struct kr_out out;
    if (link_open(e->shim->loop, e->shim->up.path, &owner, &e->link, err) != 0) {
        return kr_fail(err, KR_NO_DAEMON, "kread is away; it does not run or starts again");
    }
    uint32_t id = link_begin(e->link, KR_M_GENERATE, &out);
    kr_out_params(&out, params);
    return link_send(e->link, &out, id, on_submitted, e, err);
}

void handle_img_gen(struct request *r)
{
    struct policy policy = shim_policy(r->shim);
    struct refusal refusal;
    struct kr_err err;
    struct ask a;
    if (ask_read(&a, FAMILY_SDCPP, r->body, r->size, &policy, &refusal) != 0) {
        request_refuse(r, &refusal);
        return;
    }
    struct errand *e = new_errand(r);
    if (e != NULL && submit(e, &a.params, &err) != 0) {
        fail(e, &err);
    } else if (e != NULL) {
        request_wait(r, on_left, e);
    }
    ask_fini(&a);
}
