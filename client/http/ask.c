/* SPDX-License-Identifier: Apache-2.0
 *
 * sd.cpp and AUTOMATIC1111 compute u + s (c - u), where 1 is off; kread's cfg is c + g (c - u),
 * where 0 is off: g = s - 1. /sdapi and /sdcpp clamp what is out of range, because that is what
 * their clients are used to; /v1 refuses, because its clients start a refused request again if it
 * is not told to be wrong. Values under "kread" are kread's own and are checked as the protocol
 * does.
 */
#include "client/http/ask.h"

#include <inttypes.h>
#include <string.h>
#include <sys/random.h>

#include "proto/message.h"

enum { OPENAI_MAX_COUNT = 10, GRID = 16 };

static const char unsupported[] = "kread makes pictures from text only";

/* Everything one body passes through. */
struct reading {
    struct ask *a;
    struct kr_params *p;
    const struct policy *policy;
    struct refusal *refusal;
    enum family family;
};

static int refuse(struct reading *r, const char *what, const char *param)
{
    r->refusal->what = what;
    r->refusal->param = param;
    return -1;
}

/* Of a number that may be anything. */
static int64_t clamp(int64_t value, int64_t min, int64_t max)
{
    return value < min ? min : value > max ? max : value;
}

double ask_cfg(double cfg_scale)
{
    double max = kr_fields[KR_F_CFG].max;
    return cfg_scale <= 1 ? 0 : cfg_scale - 1 > max ? max : cfg_scale - 1;
}

/* 1: *value is it; 0: it is absent, or strange in /sdcpp, which passes that over. */
static int get_int(struct reading *r, const json_t *object, const char *key, int64_t *value)
{
    enum body_found f = body_int(object, key, value);
    if (f == BODY_STRANGE && r->family != FAMILY_SDCPP) {
        kr_fail(&r->refusal->err, KR_BAD_REQUEST, "%s must be a whole number", key);
        return refuse(r, "invalid params", key);
    }
    return f == BODY_FOUND;
}

static int get_real(struct reading *r, const json_t *object, const char *key, double *value)
{
    enum body_found f = body_real(object, key, value);
    if (f == BODY_STRANGE && r->family != FAMILY_SDCPP) {
        kr_fail(&r->refusal->err, KR_BAD_REQUEST, "%s must be a number", key);
        return refuse(r, "invalid params", key);
    }
    return f == BODY_FOUND;
}

static int get_text(struct reading *r, const json_t *object, const char *key, const char **value)
{
    enum body_found f = body_text(object, key, value);
    if (f == BODY_STRANGE && r->family != FAMILY_SDCPP) {
        kr_fail(&r->refusal->err, KR_BAD_REQUEST, "%s must be a text", key);
        return refuse(r, "invalid params", key);
    }
    return f == BODY_FOUND;
}

/* Sets a field, and says what the dialect calls it when that fails. */
static int set_int(struct reading *r, enum kr_field_id id, int64_t value, const char *key)
{
    return kr_params_set_int(r->p, id, value, &r->refusal->err) == 0
               ? 0
               : refuse(r, "invalid params", key);
}

static int set_text(struct reading *r, enum kr_field_id id, const char *text, const char *key)
{
    return kr_params_set_text(r->p, id, text, strlen(text), &r->refusal->err) == 0
               ? 0
               : refuse(r, "invalid params", key);
}

/* ------------------------------------------------------------------------ fields of several --- */

/* Steps and cfg as clients say them by habit: they count, or are kept for the report. */
static int habitual(struct reading *r, const json_t *object, const char *steps_key,
                    const char *cfg_key)
{
    int64_t steps = 0;
    double cfg = 0;
    int has_steps = get_int(r, object, steps_key, &steps);
    int has_cfg = has_steps < 0 ? -1 : get_real(r, object, cfg_key, &cfg);
    if (has_cfg < 0) {
        return -1;
    }
    steps = clamp(steps, 1, r->policy->max_steps);
    if (!r->policy->keep_sampling) {
        r->a->said_steps |= has_steps;
        r->a->said_cfg |= has_cfg;
        r->a->steps = has_steps ? steps : r->a->steps;
        r->a->cfg_scale = has_cfg ? cfg : r->a->cfg_scale;
        return 0;
    }
    if (has_steps && set_int(r, KR_F_STEPS, steps, steps_key) != 0) {
        return -1;
    }
    return has_cfg && kr_params_set_real(r->p, KR_F_CFG, ask_cfg(cfg), &r->refusal->err) != 0
               ? refuse(r, "invalid params", cfg_key)
               : 0;
}

/* width and height, each clamped to what any kread can do. */
static int read_size(struct reading *r, const json_t *object)
{
    static const struct {
        const char *key;
        enum kr_field_id id;
    } sides[] = {{"width", KR_F_WIDTH}, {"height", KR_F_HEIGHT}};
    for (int i = 0; i < 2; i++) {
        int64_t value;
        int has = get_int(r, object, sides[i].key, &value);
        if (has < 0) {
            return -1;
        }
        if (has && value <= 0 && r->family == FAMILY_SDAPI) {
            kr_fail(&r->refusal->err, KR_BAD_REQUEST, "%s is %" PRId64 "; it must be positive",
                    sides[i].key, value);
            return refuse(r, "width and height must be positive", sides[i].key);
        }
        if (has && value > 0 &&
            set_int(r, sides[i].id, clamp(value, GRID, (int64_t)kr_fields[sides[i].id].max),
                    sides[i].key) != 0) {
            return -1;
        }
    }
    return 0;
}

static int read_seed(struct reading *r, const json_t *object)
{
    int64_t seed;
    int has = get_int(r, object, "seed", &seed);
    return has < 0 ? -1 : has && seed >= 0 ? set_int(r, KR_F_SEED, seed, "seed") : 0;
}

static int read_negative(struct reading *r, const json_t *object)
{
    const char *text;
    int has = get_text(r, object, "negative_prompt", &text);
    return has <= 0 ? has : set_text(r, KR_F_NEGATIVE, text, "negative_prompt");
}

/* --------------------------------------------------------------------------- /sdcpp's fields ---
 */

/* Pictures to start from are no habit; to leave them out would be another picture. */
static int refuse_images(struct reading *r, const json_t *object)
{
    static const char *const keys[] = {"init_image",    "end_image",  "mask_image",
                                       "control_image", "ref_images", NULL};
    for (int i = 0; keys[i] != NULL; i++) {
        const json_t *v = json_object_get(object, keys[i]);
        if (json_string_length(v) > 0 || json_array_size(v) > 0) {
            kr_fail(&r->refusal->err, KR_BAD_REQUEST, "%s: %s", keys[i], unsupported);
            return refuse(r, "invalid generation parameters", keys[i]);
        }
    }
    return 0;
}

static int set_own(struct reading *r, const char *key, const json_t *v)
{
    const struct kr_field *f = kr_field_find(key, strlen(key));
    struct kr_err *err = &r->refusal->err;
    if (f == NULL || f == &kr_fields[KR_F_DETACH] || f == &kr_fields[KR_F_PROMPT]) {
        char quoted[80];
        kr_quote(quoted, sizeof quoted, key, strlen(key));
        return kr_fail(err, KR_BAD_REQUEST, "\"kread\" takes no %s", quoted);
    }
    enum kr_field_id id = (enum kr_field_id)(f - kr_fields);
    switch (json_typeof(v)) {
    case JSON_NULL:
        return 0;
    case JSON_STRING:
        return f->type == KR_T_TEXT || f->type == KR_T_CHOICE
                   ? kr_params_set_text(r->p, id, json_string_value(v), json_string_length(v), err)
                   : kr_params_parse(r->p, id, json_string_value(v), err);
    case JSON_INTEGER:
        return kr_params_set_int(r->p, id, json_integer_value(v), err);
    case JSON_REAL:
        return kr_params_set_real(r->p, id, json_real_value(v), err);
    case JSON_TRUE:
    case JSON_FALSE:
        return kr_params_set_bool(r->p, id, json_is_true(v), err);
    default:
        return kr_params_refuse(id, json_is_array(v) ? "a list" : "an object", err);
    }
}

/* "kread": {...}: the protocol's own names and scales. */
static int read_own(struct reading *r, json_t *own)
{
    const char *key;
    json_t *v;
    json_object_foreach(own, key, v)
    {
        if (set_own(r, key, v) != 0) {
            return refuse(r, "invalid generation parameters", "kread");
        }
    }
    return 0;
}

/* All of /sdcpp but the prompt; also what stands in <sd_cpp_extra_args>. Always counts. */
static int read_native(struct reading *r, const json_t *object)
{
    const struct policy *policy = r->policy;
    struct policy all = *policy;
    enum family family = r->family;
    const json_t *sample = json_object_get(object, "sample_params");
    int64_t count, preview;
    all.keep_sampling = true;
    r->policy = &all;
    r->family = FAMILY_SDCPP;
    int rc = refuse_images(r, object);
    rc = rc == 0 ? read_size(r, object) : rc;
    rc = rc == 0 ? read_seed(r, object) : rc;
    rc = rc == 0 ? read_negative(r, object) : rc;
    rc = rc == 0 ? habitual(r, sample, "sample_steps", NULL) : rc;
    rc = rc == 0 ? habitual(r, json_object_get(sample, "guidance"), NULL, "txt_cfg") : rc;
    if (rc == 0 && get_int(r, object, "batch_count", &count) > 0) {
        rc = set_int(r, KR_F_COUNT, clamp(count, 1, policy->max_count), "batch_count");
    }
    if (rc == 0 && get_int(r, object, "preview", &preview) > 0) {
        rc = set_int(r, KR_F_PREVIEW, clamp(preview, 0, policy->max_steps), "preview");
    }
    rc = rc == 0 ? read_own(r, json_object_get(object, "kread")) : rc;
    r->policy = policy;
    r->family = family;
    return rc;
}

/* ------------------------------------------------------------------------------- the prompt --- */

static int apply_extra(struct reading *r, const char *text, size_t size)
{
    const char *what;
    json_t *extra = body_read(text, size, &what, &r->refusal->err);
    if (extra == NULL) {
        return refuse(r, "invalid sd_cpp_extra_args", "prompt");
    }
    int rc = read_native(r, extra);
    json_decref(extra);
    return rc;
}

/* Applies and cuts out every <sd_cpp_extra_args>...</sd_cpp_extra_args> of text, in place. */
static int cut_extra(struct reading *r, char *text)
{
    static const char open[] = "<sd_cpp_extra_args>", shut[] = "</sd_cpp_extra_args>";
    char *start;
    while ((start = strstr(text, open)) != NULL) {
        char *inside = start + sizeof open - 1, *stop = strstr(inside, shut);
        if (stop == NULL) {
            kr_fail(&r->refusal->err, KR_BAD_REQUEST, "%s in the prompt has no end", open);
            return refuse(r, "invalid sd_cpp_extra_args", "prompt");
        }
        if (apply_extra(r, inside, (size_t)(stop - inside)) != 0) {
            return -1;
        }
        char *rest = stop + sizeof shut - 1;
        memmove(start, rest, strlen(rest) + 1);
    }
    return 0;
}

/* The prompt, which /sdcpp alone may leave out. */
static int read_prompt(struct reading *r, const json_t *object)
{
    const char *text = "";
    int has = get_text(r, object, "prompt", &text);
    if (has < 0 || set_text(r, KR_F_PROMPT, text, "prompt") != 0) {
        return -1;
    }
    if (r->family == FAMILY_SDCPP) {
        return 0;
    }
    size_t before = strlen(r->p->prompt);
    if (cut_extra(r, r->p->prompt) != 0) {
        return -1;
    }
    size_t length = strlen(r->p->prompt);
    while (length < before && length > 0 && strchr(" \t\r\n", r->p->prompt[length - 1])) {
        r->p->prompt[--length] = 0; /* what stood between the prompt and the tag */
    }
    if (r->p->prompt[strspn(r->p->prompt, " \t\r\n")] == 0) {
        kr_fail(&r->refusal->err, KR_BAD_REQUEST, "the prompt is empty; say what to draw");
        return refuse(r, "prompt required", "prompt");
    }
    return 0;
}

/* ------------------------------------------------------------------------------ the dialects ---
 */

/* What may be repeated in the answer's "parameters": scalars of these names, nothing else. */
static json_t *echo_of(const json_t *object)
{
    static const char *const keys[] = {"prompt",
                                       "negative_prompt",
                                       "width",
                                       "height",
                                       "steps",
                                       "cfg_scale",
                                       "seed",
                                       "n_iter",
                                       "batch_size",
                                       "sampler_name",
                                       "scheduler",
                                       "sampler_index",
                                       "clip_skip",
                                       "enable_hr",
                                       "hr_scale",
                                       "hr_upscaler",
                                       "denoising_strength",
                                       "tiling",
                                       "subseed",
                                       "restore_faces",
                                       "save_images",
                                       "send_images",
                                       NULL};
    json_t *echo = json_object();
    for (int i = 0; keys[i] != NULL; i++) {
        json_t *v = json_object_get(object, keys[i]);
        if (v != NULL && !json_is_object(v) && !json_is_array(v)) {
            json_object_set(echo, keys[i], v);
        }
    }
    return echo;
}

static int read_sdapi(struct reading *r, const json_t *object)
{
    int64_t batch = 1, rounds = 1, max = r->policy->max_count;
    if (read_size(r, object) != 0 || read_seed(r, object) != 0 || read_negative(r, object) != 0 ||
        habitual(r, object, "steps", "cfg_scale") != 0 ||
        get_int(r, object, "batch_size", &batch) < 0 || get_int(r, object, "n_iter", &rounds) < 0) {
        return -1;
    }
    int64_t count = clamp(clamp(batch, 1, max) * clamp(rounds, 1, max), 1, max);
    r->a->echo = echo_of(object);
    return set_int(r, KR_F_COUNT, count, "batch_size") != 0 ? -1 : read_prompt(r, object);
}

static int read_sdcpp(struct reading *r, const json_t *object)
{
    const char *format;
    if (get_text(r, object, "output_format", &format) > 0 && strcmp(format, "png") != 0) {
        kr_fail(&r->refusal->err, KR_BAD_REQUEST, "output_format must be png");
        return refuse(r, "invalid output_format, must be one of [png]", "output_format");
    }
    if (read_prompt(r, object) != 0 || read_native(r, object) != 0) {
        return -1;
    }
    return kr_params_set_bool(r->p, KR_F_DETACH, true, &r->refusal->err);
}

/* "1024x768"; "auto", "" and nothing are the profile's own. */
static int openai_size(struct reading *r, const json_t *object)
{
    const char *text;
    int64_t width, height;
    int end = 0, has = get_text(r, object, "size", &text);
    if (has <= 0 || text[0] == 0 || strcmp(text, "auto") == 0) {
        return has < 0 ? -1 : 0;
    }
    if (strlen(text) > 11 || strspn(text, "0123456789") == 0 ||
        sscanf(text, "%" SCNd64 "x%" SCNd64 "%n", &width, &height, &end) != 2 || text[end] != 0 ||
        width < 1 || height < 1) {
        kr_fail(&r->refusal->err, KR_BAD_REQUEST,
                "size must be WIDTHxHEIGHT, such as 1024x1024, or auto");
        return refuse(r, "invalid size", "size");
    }
    width = width < GRID ? GRID : width;
    height = height < GRID ? GRID : height;
    return set_int(r, KR_F_WIDTH, width, "size") != 0 ||
                   set_int(r, KR_F_HEIGHT, height, "size") != 0
               ? -1
               : 0;
}

static int openai_count(struct reading *r, const json_t *object)
{
    int64_t n = 1, max = clamp(r->policy->max_count, 1, OPENAI_MAX_COUNT);
    if (get_int(r, object, "n", &n) < 0) {
        return -1;
    }
    if (n < 1 || n > max) {
        kr_fail(&r->refusal->err, KR_BAD_REQUEST, "n is %" PRId64 "; it must be from 1 to %" PRId64,
                n, max);
        return refuse(r, "invalid n", "n");
    }
    return set_int(r, KR_F_COUNT, n, "n");
}

static int read_openai(struct reading *r, const json_t *object)
{
    const char *format;
    int has = get_text(r, object, "output_format", &format);
    if (has < 0 || (has > 0 && strcmp(format, "png") != 0 && format[0] != 0)) {
        kr_fail(&r->refusal->err, KR_BAD_REQUEST, "output_format must be png");
        return refuse(r, "invalid output_format, must be one of [png]", "output_format");
    }
    if (body_true(object, "stream")) {
        kr_fail(&r->refusal->err, KR_BAD_REQUEST, "stream is not supported; leave it out");
        return refuse(r, "stream is not supported", "stream");
    }
    return openai_size(r, object) != 0 || openai_count(r, object) != 0 ||
                   read_seed(r, object) != 0 || read_negative(r, object) != 0 ||
                   habitual(r, object, "steps", "cfg_scale") != 0
               ? -1
               : read_prompt(r, object);
}

/* ------------------------------------------------------------------------------- all of them ---
 */

/* 32 bits, so that JavaScript and AUTOMATIC1111's tools keep it exactly. */
static int draw_seed(struct reading *r)
{
    uint32_t seed;
    if (kr_has(r->p, KR_F_SEED) && r->p->seed >= 0) {
        return 0;
    }
    if (getrandom(&seed, sizeof seed, 0) != sizeof seed) {
        kr_fail(&r->refusal->err, KR_IO, "the system has no random numbers");
        return refuse(r, "server_error", NULL);
    }
    return set_int(r, KR_F_SEED, seed, "seed");
}

static int64_t up(int64_t side)
{
    return (side + GRID - 1) / GRID * GRID;
}

/* The owner's limits, for whatever was not clamped on the way. */
static int check_limits(struct reading *r)
{
    const struct kr_params *p = r->p;
    const struct policy *policy = r->policy;
    int64_t width = up(kr_has(p, KR_F_WIDTH) ? p->width : policy->width);
    int64_t height = up(kr_has(p, KR_F_HEIGHT) ? p->height : policy->height);
    if (width * height > policy->max_pixels) {
        kr_fail(&r->refusal->err, KR_BAD_REQUEST,
                "%" PRId64 "x%" PRId64 " has too many pixels, at most %" PRId64 " are allowed",
                width, height, policy->max_pixels);
        return refuse(r, "invalid size", r->family == FAMILY_OPENAI ? "size" : "width");
    }
    if (kr_has(p, KR_F_STEPS) && p->steps > policy->max_steps) {
        kr_fail(&r->refusal->err, KR_BAD_REQUEST,
                "steps is %" PRId64 ", at most %" PRId64 " are allowed", p->steps,
                policy->max_steps);
        return refuse(r, "invalid params", "steps");
    }
    if (kr_has(p, KR_F_COUNT) && p->count > policy->max_count) {
        kr_fail(&r->refusal->err, KR_BAD_REQUEST,
                "count is %" PRId64 ", at most %" PRId64 " are allowed", p->count,
                policy->max_count);
        return refuse(r, "invalid params", "count");
    }
    return 0;
}

int ask_read(struct ask *a, enum family family, const char *body, size_t size,
             const struct policy *policy, struct refusal *refusal)
{
    static int (*const dialects[FAMILIES])(struct reading *, const json_t *) = {
        [FAMILY_SDAPI] = read_sdapi, [FAMILY_SDCPP] = read_sdcpp, [FAMILY_OPENAI] = read_openai};
    struct reading r = {
        .a = a, .p = &a->params, .policy = policy, .refusal = refusal, .family = family};
    *a = (struct ask){.echo = NULL};
    *refusal = (struct refusal){.what = "invalid params"};
    json_t *object = body_read(body, size, &refusal->what, &refusal->err);
    if (object == NULL) {
        return -1;
    }
    int rc = dialects[family](&r, object);
    rc = rc == 0 ? draw_seed(&r) : rc;
    rc = rc == 0 ? check_limits(&r) : rc;
    json_decref(object);
    if (rc != 0) {
        ask_fini(a);
    }
    return rc;
}

void ask_fini(struct ask *a)
{
    kr_params_fini(&a->params);
    json_decref(a->echo);
    a->echo = NULL;
}
