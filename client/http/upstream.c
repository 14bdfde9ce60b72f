/* SPDX-License-Identifier: Apache-2.0
 *
 * Each connection asks for the profile first, because a daemon that comes back may serve another
 * one. Until that is answered the daemon counts as loading.
 */
#include "client/http/upstream.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/http/log.h"

enum { RETRY = 500, MOST_WAITING = 256 }; /* milliseconds; answers */

static void try_connect(struct upstream *up);

/* `message` may name the socket's path: it is for the log only. */
static void set_state(struct upstream *up, enum upstream_state state, const char *message)
{
    bool changed = up->state != state;
    up->state = state;
    if (changed && state == UPSTREAM_AWAY) {
        log_line(LOG_LEVEL_WARN, "kread is away: %s", message);
    } else if (changed && state == UPSTREAM_READY) {
        log_line(LOG_LEVEL_INFO, "kread is ready with profile %s", up->facts.profile);
    }
    if (changed && up->changed != NULL) {
        up->changed(up->user);
    }
}

/* --------------------------------------------------------------------------------- the facts ---
 */

json_t *upstream_json(const struct kr_value *value)
{
    const char *text;
    size_t length;
    int64_t whole = 0;
    double real = 0;
    bool truth = false;
    json_t *json;
    switch (kr_value_kind(value)) {
    case KR_V_BOOL:
        kr_value_bool(value, &truth);
        return json_boolean(truth);
    case KR_V_INT:
        kr_value_int(value, &whole);
        return json_integer(whole);
    case KR_V_REAL:
        kr_value_real(value, &real);
        return json_real(real);
    case KR_V_TEXT:
        return kr_value_text(value, &text, &length) ? json_stringn(text, length) : json_null();
    case KR_V_ARRAY:
        json = json_array();
        for (size_t i = 0; i < kr_value_count(value); i++) {
            json_array_append_new(json, upstream_json(kr_value_item(value, i)));
        }
        return json;
    case KR_V_MAP:
        json = json_object();
        for (size_t i = 0; i < kr_value_count(value); i++) {
            const struct kr_value *v, *key = kr_value_key(value, i, &v);
            char name[80];
            if (kr_value_text(key, &text, &length) && length < sizeof name) {
                memcpy(name, text, length);
                name[length] = 0;
                json_object_set_new(json, name, upstream_json(v));
            }
        }
        return json;
    default:
        return json_null();
    }
}

static int64_t integer_in(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

/* The defaults that a request would get, as parameters: what the daemon says is in its own range.
 */
static void read_defaults(struct kr_params *p, const json_t *defaults)
{
    for (int id = 0; id < KR_FIELDS; id++) {
        const json_t *v = json_object_get(defaults, kr_fields[id].name);
        if (json_is_string(v)) {
            kr_params_set_text(p, id, json_string_value(v), json_string_length(v), NULL);
        } else if (json_is_integer(v)) {
            kr_params_set_int(p, id, json_integer_value(v), NULL);
        } else if (json_is_real(v)) {
            kr_params_set_real(p, id, json_real_value(v), NULL);
        } else if (json_is_boolean(v)) {
            kr_params_set_bool(p, id, json_is_true(v), NULL);
        }
    }
}

static void drop_facts(struct facts *facts)
{
    json_decref(facts->all);
    kr_params_fini(&facts->defaults);
    memset(facts, 0, sizeof *facts);
}

static void learn(struct facts *facts, json_t *all)
{
    const json_t *limits = json_object_get(all, "limits");
    const char *profile = json_string_value(json_object_get(all, "profile"));
    const char *variant = json_string_value(json_object_get(all, "variant"));
    int64_t since = facts->since ? facts->since : (int64_t)time(NULL);
    drop_facts(facts);
    facts->known = true;
    facts->since = since;
    facts->all = all;
    facts->turbo = variant == NULL || strcmp(variant, "raw") != 0;
    snprintf(facts->profile, sizeof facts->profile, "%s", profile ? profile : "krea-2");
    read_defaults(&facts->defaults, json_object_get(all, "defaults"));
    facts->max_pixels = integer_in(limits, "max_pixels");
    facts->max_steps = integer_in(limits, "max_steps");
    facts->max_count = integer_in(limits, "max_count");
}

static void on_profile(void *user, const struct kr_value *result, const struct kr_err *err)
{
    struct upstream *up = user;
    if (result != NULL) {
        learn(&up->facts, upstream_json(result));
        set_state(up, UPSTREAM_READY, "");
    } else {
        set_state(up, err->code == KR_SHUTDOWN ? UPSTREAM_STOPPING : UPSTREAM_AWAY, err->text);
    }
}

/* ---------------------------------------------------------------------------------- the link ---
 */

static void on_retry(void *user)
{
    try_connect(user);
}

static void on_lost(void *user, const struct kr_err *reason)
{
    struct upstream *up = user;
    up->link = NULL;
    set_state(up, UPSTREAM_AWAY, reason->text);
    loop_timer(up->loop, &up->retry, RETRY);
}

static int ask_profile(struct upstream *up, struct kr_err *err)
{
    struct kr_out out;
    uint32_t id = link_begin(up->link, KR_M_PROFILE, &out);
    kr_out_map(&out, 0);
    return link_send(up->link, &out, id, on_profile, up, err);
}

static void try_connect(struct upstream *up)
{
    const struct link_owner owner = {.lost = on_lost, .user = up};
    struct kr_err err;
    if (up->link != NULL) {
        return;
    }
    if (link_open(up->loop, up->path, &owner, &up->link, &err) != 0) {
        set_state(up, UPSTREAM_AWAY, err.text);
        loop_timer(up->loop, &up->retry, RETRY);
    } else if (ask_profile(up, &err) != 0) {
        link_close(up->link);
        on_lost(up, &err);
    } else {
        loop_untimer(up->loop, &up->retry);
        set_state(up, UPSTREAM_LOADING, "kread is starting");
    }
}

void upstream_init(struct upstream *up, struct loop *loop, char *path)
{
    *up = (struct upstream){.loop = loop, .path = path, .state = UPSTREAM_LOADING};
    up->retry = (struct loop_timer){.due = on_retry, .user = up};
    try_connect(up);
}

void upstream_fini(struct upstream *up)
{
    loop_untimer(up->loop, &up->retry);
    link_close(up->link);
    drop_facts(&up->facts);
    free(up->path);
}

/* -------------------------------------------------------------------------------- questions --- */

int upstream_begin(struct upstream *up, enum kr_method method, struct kr_out *out, uint32_t *id,
                   struct kr_err *err)
{
    try_connect(up);
    if (up->link == NULL) {
        return kr_fail(err, KR_NO_DAEMON, "kread is away; it does not run or starts again");
    }
    if (link_waiting(up->link) >= MOST_WAITING) {
        return kr_fail(err, KR_NO_DAEMON, "kread does not answer");
    }
    *id = link_begin(up->link, method, out);
    return 0;
}

int upstream_send(struct upstream *up, struct kr_out *out, uint32_t id, link_answer *answer,
                  void *user, struct kr_err *err)
{
    return link_send(up->link, out, id, answer, user, err);
}

void upstream_forget(struct upstream *up, const void *user)
{
    link_forget(up->link, user);
}
