/* SPDX-License-Identifier: Apache-2.0
 *
 * The page, and the routes that no other program has.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "client/http/handlers.h"
#include "client/http/page.h"
#include "client/http/render.h"

static const char content_policy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

static int64_t smaller(int64_t own, int64_t daemon)
{
    return daemon > 0 && daemon < own ? daemon : own;
}

struct policy shim_policy(const struct shim *shim)
{
    const struct http_settings *s = &shim->settings;
    const struct facts *f = &shim->up.facts;
    const struct kr_params *p = &f->defaults;
    return (struct policy){.keep_sampling = s->honour_client_sampling || !f->turbo,
                           .max_count = smaller(s->max_count, f->max_count),
                           .max_steps = smaller(s->max_steps, f->max_steps),
                           .max_pixels = smaller(s->max_pixels, f->max_pixels),
                           .width = kr_has(p, KR_F_WIDTH) ? p->width : 16,
                           .height = kr_has(p, KR_F_HEIGHT) ? p->height : 16};
}

/* --------------------------------------------------------------------------------- the page --- */

/* FNV-1a: changes with the file, and that is all it has to. */
static void write_etag(const struct page_file *file, char etag[24])
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (const char *p = file->start; p < file->end; p++) {
        hash = (hash ^ (unsigned char)*p) * UINT64_C(0x100000001b3);
    }
    snprintf(etag, 24, "\"%016" PRIx64 "\"", hash);
}

static void answer_file(struct request *r, const struct page_file *file)
{
    char etag[24];
    const char *known = request_header(r, MHD_HTTP_HEADER_IF_NONE_MATCH);
    write_etag(file, etag);
    bool same = known != NULL && strstr(known, etag) != NULL;
    struct answer *a = answer_new(same ? MHD_HTTP_NOT_MODIFIED : MHD_HTTP_OK, file->type);
    if (!same) {
        answer_bytes(a, file->start, (size_t)(file->end - file->start));
    }
    answer_header(a, MHD_HTTP_HEADER_ETAG, etag);
    answer_header(a, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
    answer_header(a, "Content-Security-Policy", content_policy);
    answer_header(a, "Referrer-Policy", "no-referrer");
    request_answer(r, a);
}

void handle_page(struct request *r)
{
    for (size_t i = 0; i < page_file_count; i++) {
        if (strcmp(page_files[i].path + 1, r->id) == 0) {
            answer_file(r, &page_files[i]);
            return;
        }
    }
    request_fail(r, MHD_HTTP_NOT_FOUND, "Not Found", "Not Found");
}

/* ----------------------------------------------------------------------------- how it is here ---
 */

static const char *const states[] = {"away", "loading", "ready", "stopping"};

void handle_health(struct request *r)
{
    bool ready = r->shim->up.state == UPSTREAM_READY;
    struct answer *a =
        answer_value(ready ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE,
                     json_pack("{s:s}", "status", ready ? "ok" : states[r->shim->up.state]));
    if (!ready) {
        answer_header(a, MHD_HTTP_HEADER_RETRY_AFTER, "2");
    }
    answer_header(a, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    request_answer(r, a);
}

static json_t *defaults_of(const struct kr_params *p)
{
    json_t *json = json_object();
    for (int id = 0; id < KR_FIELDS; id++) {
        if (kr_has(p, id) && id != KR_F_DETACH && id != KR_F_PROMPT) {
            json_object_set_new(json, kr_fields[id].name, render_value(p, id));
        }
    }
    json_object_set_new(json, "seed", json_integer(-1));
    json_object_set_new(json, "count", json_integer(1));
    /* Guidance is what a negative prompt acts through; a turbo profile has none unless asked. */
    json_object_set_new(json, "negative_used", json_boolean(kr_has(p, KR_F_CFG) && p->cfg > 0));
    return json;
}

/* What the page shows, from what the daemon says of itself. Its other keys may hold local paths. */
static void add_engine(json_t *to, const json_t *status)
{
    static const char *const top[] = {"release", "queued",      "running",
                                      "uptime",  "queue_limit", NULL};
    static const char *const engine[] = {"profile",       "architecture", "variant",
                                         "device",        "device_why",   "residency",
                                         "residency_why", "memory",       NULL};
    const json_t *map = json_object_get(status, "engine");
    for (int i = 0; top[i] != NULL; i++) {
        json_object_set(to, top[i], json_object_get(status, top[i]));
    }
    for (int i = 0; engine[i] != NULL; i++) {
        json_object_set(to, engine[i], json_object_get(map, engine[i]));
    }
}

static struct answer *status_answer(const struct shim *shim, const json_t *status)
{
    static const char *const messages[] = {"kread is away; it does not run or starts again",
                                           "kread is starting", "",
                                           "kread is stopping and takes no more jobs"};
    const char *said = json_string_value(json_object_get(status, "state"));
    enum upstream_state state = status == NULL && shim->up.state == UPSTREAM_READY ? UPSTREAM_AWAY
                                : said && strcmp(said, "stopping") == 0 ? UPSTREAM_STOPPING
                                                                        : shim->up.state;
    struct policy policy = shim_policy(shim);
    const json_t *limits = json_object_get(shim->up.facts.all, "limits");
    json_t *json = json_pack("{s:s, s:s}", "state", states[state], "message", messages[state]);
    if (shim->up.facts.known) {
        json_object_set_new(json, "profile", json_string(shim->up.facts.profile));
        json_object_set(json, "variant", json_object_get(shim->up.facts.all, "variant"));
        json_object_set(json, "architecture", json_object_get(shim->up.facts.all, "architecture"));
        json_object_set_new(json, "defaults", defaults_of(&shim->up.facts.defaults));
    }
    json_t *grid = json_object_get(limits, "grid");
    json_object_set_new(json, "limits",
                        json_pack("{s:I, s:I, s:I, s:I, s:O*}", "max_pixels",
                                  (json_int_t)policy.max_pixels, "max_steps",
                                  (json_int_t)policy.max_steps, "max_count",
                                  (json_int_t)policy.max_count, "grid",
                                  grid ? json_integer_value(grid) : (json_int_t)16, "prompt_tokens",
                                  json_object_get(limits, "prompt_tokens")));
    add_engine(json, status);
    return answer_value(MHD_HTTP_OK, json);
}

static void on_status(void *user, const struct kr_value *result, const struct kr_err *err)
{
    struct request *r = user;
    json_t *status = result ? upstream_json(result) : NULL;
    (void)err;
    struct answer *a = status_answer(r->shim, status);
    json_decref(status);
    request_answer(r, a);
}

static void on_left(void *op)
{
    struct request *r = op;
    upstream_forget(&r->shim->up, r);
}

int ask_status(struct request *r, link_answer *answer)
{
    struct kr_out out;
    uint32_t id;
    if (upstream_begin(&r->shim->up, KR_M_STATUS, &out, &id, NULL) < 0)
        return -1;
    kr_out_map(&out, 0);
    if (upstream_send(&r->shim->up, &out, id, answer, r, NULL) < 0)
        return -1;
    request_wait(r, on_left, r);
    return 0;
}

void handle_status(struct request *r)
{
    if (ask_status(r, on_status) < 0)
        request_answer(r, status_answer(r->shim, NULL));
}
