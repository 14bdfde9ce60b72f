/* SPDX-License-Identifier: Apache-2.0
 *
 * /sdapi and /v1 answer when the pictures are there. What can end such a request: the pictures, a
 * failure, the client's leaving, /interrupt, its time limit, the daemon's end, the shim's end. Each
 * of them frees the render and answers at most once.
 */
#include "client/http/render.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "client/http/handlers.h"

enum {
    STOP_GRACE = 200,  /* milliseconds that an interrupt waits for the leaving of its client */
    STOP_MEMORY = 2000 /* and for how long after the leaving an interrupt means just that */
};

static void free_render(struct render *render)
{
    *render->place = render->next;
    if (render->next != NULL) {
        render->next->place = render->place;
    }
    loop_untimer(render->shim->loop, &render->limit);
    link_close(render->link);
    for (size_t i = 0; i < render->count; i++) {
        free(render->pictures[i].data);
    }
    free(render->pictures);
    kr_params_fini(&render->values);
    ask_fini(&render->ask);
    free(render);
}

static void fail(struct render *render, const struct kr_err *err)
{
    struct request *r = render->r;
    bool accepted = render->job != 0;
    free_render(render);
    request_fail_err(r, err, accepted);
}

static void on_left(void *op)
{
    struct render *render = op;
    if (render->r->family == FAMILY_SDAPI) {
        render->shim->left_at = client_now();
        render->shim->left_from = request_from(render->r);
    }
    free_render(render);
}

static void on_limit(void *user)
{
    struct render *render = user;
    struct request *r = render->r;
    free_render(render);
    request_fail(r, MHD_HTTP_GATEWAY_TIMEOUT, "timeout",
                 "the pictures took longer than this server lets a client wait (render_timeout)");
}

/* ----------------------------------------------------------------------- what the daemon says ---
 */

void render_values(struct kr_params *values, const struct kr_value *map)
{
    for (int id = 0; id < KR_FIELDS; id++) {
        const struct kr_value *v = kr_value_get(map, kr_fields[id].name);
        const char *text;
        size_t length;
        double real;
        int64_t whole;
        bool truth;
        if (kr_value_text(v, &text, &length)) {
            kr_params_set_text(values, id, text, length, NULL);
        } else if (kr_fields[id].type == KR_T_REAL && kr_value_real(v, &real)) {
            kr_params_set_real(values, id, real, NULL);
        } else if (kr_value_int(v, &whole)) {
            kr_params_set_int(values, id, whole, NULL);
        } else if (kr_value_bool(v, &truth)) {
            kr_params_set_bool(values, id, truth, NULL);
        }
    }
}

json_t *render_value(const struct kr_params *values, enum kr_field_id id)
{
    if (!kr_has(values, id)) {
        return NULL;
    }
    switch (kr_fields[id].type) {
    case KR_T_INT:
        return json_integer(kr_params_int(values, id));
    case KR_T_REAL:
        return kr_integral(kr_params_real(values, id))
                   ? json_integer((json_int_t)kr_params_real(values, id))
                   : json_real(kr_params_real(values, id));
    case KR_T_BOOL:
        return json_boolean(kr_params_int(values, id));
    default:
        return json_string(kr_params_text(values, id));
    }
}

static void on_accepted(void *user, const struct kr_value *result, const struct kr_err *err)
{
    struct render *render = user;
    if (result == NULL) {
        fail(render, err);
        return;
    }
    kr_value_int(kr_value_get(result, "job"), &render->job);
    render_values(&render->values, result);
}

static void read_progress(struct render *render, const struct kr_value *map)
{
    const char *text = "";
    size_t length = 0;
    kr_value_text(kr_value_get(map, "state"), &text, &length);
    render->running = length == 7 && memcmp(text, "running", 7) == 0;
    length = 0;
    kr_value_text(kr_value_get(map, "stage"), &text, &length);
    snprintf(render->stage, sizeof render->stage, "%.*s", (int)(length < 15 ? length : 15), text);
    kr_value_int(kr_value_get(map, "step"), &render->step);
    kr_value_int(kr_value_get(map, "steps"), &render->steps);
    kr_value_int(kr_value_get(map, "image"), &render->image);
    render->remaining = -1;
    kr_value_real(kr_value_get(map, "remaining"), &render->remaining);
}

/* false: it could not be kept. */
static bool keep_picture(struct render *render, const struct kr_value *map)
{
    const void *png;
    size_t size;
    int64_t index = -1;
    bool preview = false;
    kr_value_bool(kr_value_get(map, "preview"), &preview);
    if (preview) {
        return true;
    }
    kr_value_int(kr_value_get(map, "index"), &index);
    if (index < 0 || index >= (int64_t)render->count || render->pictures[index].data != NULL ||
        !kr_value_bytes(kr_value_get(map, "png"), &png, &size) || size == 0) {
        return false;
    }
    struct picture *picture = &render->pictures[index];
    picture->data = malloc(size);
    if (picture->data == NULL) {
        return false;
    }
    memcpy(picture->data, png, size);
    picture->size = size;
    render->made++;
    return true;
}

static void on_done(struct render *render)
{
    struct request *r = render->r;
    struct kr_err err;
    if (render->made != render->count) {
        kr_fail(&err, KR_BAD_FRAME, "kread sent %zu of %zu pictures", render->made, render->count);
        fail(render, &err);
        return;
    }
    struct answer *answer = render_answer(render);
    free_render(render);
    request_answer(r, answer);
}

static bool is(const struct kr_in *in, const char *method)
{
    return in->method_length == strlen(method) &&
           memcmp(in->method, method, in->method_length) == 0;
}

static void on_notice(void *user, const struct kr_in *in)
{
    struct render *render = user;
    struct kr_err err;
    if (is(in, "progress")) {
        read_progress(render, in->params);
    } else if (is(in, "done")) {
        on_done(render);
    } else if (is(in, "image") && !keep_picture(render, in->params)) {
        kr_fail(&err, KR_NO_MEMORY, "no memory for a picture, or a strange one");
        fail(render, &err);
    } else if (is(in, "failed")) {
        kr_fail(&err, KR_DEVICE, "the job failed");
        kr_value_error(kr_value_get(in->params, "error"), &err);
        fail(render, &err);
    } else if (is(in, "cancelled")) {
        kr_fail(&err, KR_CANCELLED, "the job was cancelled");
        fail(render, &err);
    }
}

static void on_lost(void *user, const struct kr_err *reason)
{
    struct render *render = user;
    struct kr_err err = *reason;
    if (err.code == KR_NO_DAEMON && render->job == 0) {
        kr_fail(&err, KR_NO_DAEMON, "kread is away; it does not run or starts again");
    }
    fail(render, &err);
}

/* --------------------------------------------------------------------------------- beginning ---
 */

static int submit(struct render *render, struct kr_err *err)
{
    const struct link_owner owner = {.notice = on_notice, .lost = on_lost, .user = render};
    struct kr_out out;
    if (link_open(render->shim->loop, render->shim->up.path, &owner, &render->link, err) != 0) {
        return kr_fail(err, KR_NO_DAEMON, "kread is away; it does not run or starts again");
    }
    uint32_t id = link_begin(render->link, KR_M_GENERATE, &out);
    kr_out_params(&out, &render->ask.params);
    return link_send(render->link, &out, id, on_accepted, render, err);
}

static struct render *new_render(struct request *r, struct ask *ask)
{
    struct render *render = calloc(1, sizeof *render);
    size_t count = (size_t)ask->params.count;
    if (render == NULL) {
        ask_fini(ask);
        return NULL;
    }
    *render = (struct render){.shim = r->shim,
                              .r = r,
                              .ask = *ask,
                              .pictures = calloc(count, sizeof(struct picture)),
                              .count = count,
                              .remaining = -1,
                              .began = time(NULL),
                              .limit = {.due = on_limit, .user = render}};
    render->place = &r->shim->renders;
    while (*render->place != NULL) {
        render->place = &(*render->place)->next;
    }
    *render->place = render;
    if (render->pictures == NULL) {
        render->count = 0;
        free_render(render);
        return NULL;
    }
    return render;
}

static void begin(struct request *r)
{
    struct shim *shim = r->shim;
    struct policy policy = shim_policy(shim);
    struct refusal refusal;
    struct ask ask;
    struct kr_err err;
    if (!shim->up.facts.known) {
        kr_fail(&err, KR_NO_DAEMON, "kread is away; it does not run or starts");
        request_fail_err(r, &err, false);
        return;
    }
    if (ask_read(&ask, r->family, r->body, r->size, &policy, &refusal) != 0) {
        request_refuse(r, &refusal);
        return;
    }
    struct render *render = new_render(r, &ask);
    if (render == NULL) {
        request_fail(r, MHD_HTTP_INTERNAL_SERVER_ERROR, "server_error", "out of memory");
    } else if (submit(render, &err) != 0) {
        fail(render, &err);
    } else {
        loop_timer(shim->loop, &render->limit, shim->settings.render_timeout * 1000);
        request_wait(r, on_left, render);
    }
}

void handle_txt2img(struct request *r)
{
    begin(r);
}

void handle_generations(struct request *r)
{
    begin(r);
}

/* --------------------------------------------------------------------- progress and interrupt ---
 */

/* The /sdapi request whose job runs, else the first that waits, else NULL. */
static struct render *current(const struct shim *shim, bool running_only)
{
    struct render *first = NULL;
    for (struct render *render = shim->renders; render != NULL; render = render->next) {
        if (render->r->family != FAMILY_SDAPI) {
            continue;
        }
        if (render->running) {
            return render;
        }
        first = first ? first : render;
    }
    return running_only ? NULL : first;
}

/* The share that is done: encode and decode count as little as they take. */
static double share(const struct render *render)
{
    bool denoise = strcmp(render->stage, "denoise") == 0;
    bool decode = strcmp(render->stage, "decode") == 0;
    double one = denoise && render->steps > 0 ? (double)render->step / (double)render->steps
                 : decode                     ? 1
                                              : 0;
    return render->running ? ((double)render->image + one) / (double)render->count : 0;
}

void handle_progress(struct request *r)
{
    const struct render *render = current(r->shim, false);
    char stamp[24] = "0";
    struct tm tm;
    bool denoise = render != NULL && strcmp(render->stage, "denoise") == 0;
    if (render != NULL) {
        strftime(stamp, sizeof stamp, "%Y%m%d%H%M%S", localtime_r(&render->began, &tm));
    }
    json_t *state = json_pack(
        "{s:b, s:b, s:b, s:s, s:I, s:s, s:I, s:I, s:I}", "skipped", 0, "interrupted", 0,
        "stopping_generation", 0, "job", render ? "txt2img" : "", "job_count",
        (json_int_t)(render ? render->count : 0), "job_timestamp", stamp, "job_no",
        (json_int_t)(render ? render->image : 0), "sampling_step",
        (json_int_t)(denoise ? render->step : 0), "sampling_steps",
        (json_int_t)(render && kr_has(&render->values, KR_F_STEPS) ? render->values.steps : 0));
    json_t *progress = render ? json_real(share(render)) : json_integer(0);
    json_t *eta = render && render->remaining >= 0 ? json_real(render->remaining) : json_integer(0);
    request_answer(r, answer_value(MHD_HTTP_OK, json_pack("{s:o, s:o, s:o, s:n, s:n}", "progress",
                                                          progress, "eta_relative", eta, "state",
                                                          state, "current_image", "textinfo")));
}

/* An interrupt says neither whose job it means nor which. SillyTavern sends it and drops its
 * request at about the same time, on two connections: whichever comes first, only that job may end,
 * never the next one in the queue. */
static struct {
    struct loop_timer timer;
    struct shim *shim;
    int64_t job, at;
    struct in6_addr from;
} pending;

static bool has_left(const struct shim *shim, const struct in6_addr *from, int64_t since)
{
    return shim->left_at != 0 && shim->left_at >= since &&
           memcmp(&shim->left_from, from, sizeof *from) == 0;
}

static void ignore_answer(void *user, const struct kr_value *result, const struct kr_err *err)
{
    (void)user; /* the job's own notification tells the rest */
    (void)result;
    (void)err;
}

static void on_interrupt(void *user)
{
    struct render *render = current(pending.shim, true);
    struct kr_out out;
    (void)user;
    if (has_left(pending.shim, &pending.from, pending.at)) {
        pending.shim->left_at = 0;
        return;
    }
    if (render == NULL || render->job != pending.job) {
        return; /* it has ended */
    }
    uint32_t id = link_begin(render->link, KR_M_CANCEL, &out);
    kr_out_map(&out, 1);
    kr_out_pair_int(&out, "job", render->job);
    link_send(render->link, &out, id, ignore_answer, NULL, NULL);
}

void handle_interrupt(struct request *r)
{
    struct shim *shim = r->shim;
    struct in6_addr from = request_from(r);
    const struct render *render = current(shim, true);
    if (has_left(shim, &from, client_now() - STOP_MEMORY)) {
        shim->left_at = 0;
    } else if (render != NULL) {
        pending.shim = shim;
        pending.job = render->job;
        pending.at = client_now();
        pending.from = from;
        pending.timer.due = on_interrupt;
        loop_timer(shim->loop, &pending.timer, STOP_GRACE);
    }
    request_answer(r, answer_value(MHD_HTTP_OK, json_object()));
}
