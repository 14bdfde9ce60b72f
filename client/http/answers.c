/* SPDX-License-Identifier: Apache-2.0
 *
 * What clients get for their pictures. `info` and its infotexts repeat what stands in the PNG, so
 * that whoever reads the one or the other reads the same; cfg there is kread's own scale, 0 is off.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "client/http/pngtext.h"
#include "client/http/render.h"

/* The line that tools of AUTOMATIC1111 read: the PNG's own, or the same from the values. */
static json_t *infotext(const struct render *render, size_t index)
{
    const struct picture *picture = &render->pictures[index];
    const struct kr_params *v = &render->values, *asked = &render->ask.params;
    char *text = pngtext_get(picture->data, picture->size, "parameters"), cfg[40] = "0";
    const char *negative = kr_has(asked, KR_F_NEGATIVE) ? asked->negative : "";
    kr_params_format(v, KR_F_CFG, cfg, sizeof cfg);
    if (text == NULL &&
        asprintf(&text,
                 "%s\n%s%s%sSteps: %" PRId64 ", Sampler: Euler, Schedule type: Simple, CFG scale: "
                 "%s, Seed: %" PRId64 ", Size: %" PRId64 "x%" PRId64
                 ", Model: %s, Version: kread %s",
                 asked->prompt, *negative ? "Negative prompt: " : "", negative,
                 *negative ? "\n" : "", v->steps, cfg, v->seed + (int64_t)index, v->width,
                 v->height, render->shim->up.facts.profile, KR_VERSION) < 0) {
        return NULL;
    }
    json_t *json = json_string(text);
    free(text);
    return json;
}

/* What was not done as it was said, for people. */
static json_t *extras(const struct render *render)
{
    const struct ask *ask = &render->ask;
    const struct kr_params *v = &render->values;
    json_t *extra = json_pack("{s:s}", "Schedule type", "Simple");
    if (ask->said_steps) {
        json_object_set_new(extra, "Requested steps", json_integer(ask->steps));
    }
    if (ask->said_cfg) {
        json_object_set_new(extra, "Requested CFG scale", json_real(ask->cfg_scale));
    }
    if (ask->said_steps || ask->said_cfg) {
        json_object_set_new(
            extra, "Sampling",
            json_string(
                "steps and CFG scale are the turbo profile's own (honour_client_sampling)"));
    }
    if (kr_has(&ask->params, KR_F_NEGATIVE) && ask->params.negative[0] && v->cfg == 0) {
        json_object_set_new(extra, "Negative prompt",
                            json_string("without effect while guidance is off"));
    }
    return extra;
}

/* n times the same text, or the seeds. */
static json_t *repeat(const char *text, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) {
        json_array_append_new(list, json_string(text));
    }
    return list;
}

static json_t *info(const struct render *render)
{
    const struct kr_params *v = &render->values, *asked = &render->ask.params;
    const char *negative = kr_has(asked, KR_F_NEGATIVE) ? asked->negative : "";
    json_t *seeds = json_array(), *texts = json_array();
    char stamp[24];
    struct tm tm;
    for (size_t i = 0; i < render->count; i++) {
        json_array_append_new(seeds, json_integer(v->seed + (json_int_t)i));
        json_array_append_new(texts, infotext(render, i));
    }
    strftime(stamp, sizeof stamp, "%Y%m%d%H%M%S", localtime_r(&render->began, &tm));
    return json_pack("{s:s, s:o, s:s, s:o, s:I, s:o, s:I, s:I, s:s, s:o?, s:o?, s:I, s:s, s:s, "
                     "s:o, s:o, s:I, s:s}",
                     "prompt", asked->prompt, "all_prompts", repeat(asked->prompt, render->count),
                     "negative_prompt", negative, "all_negative_prompts",
                     repeat(negative, render->count), "seed", (json_int_t)v->seed, "all_seeds",
                     seeds, "width", (json_int_t)v->width, "height", (json_int_t)v->height,
                     "sampler_name", "Euler", "cfg_scale", render_value(v, KR_F_CFG), "steps",
                     render_value(v, KR_F_STEPS), "batch_size", (json_int_t)render->count,
                     "sd_model_name", render->shim->up.facts.profile, "version",
                     "kread " KR_VERSION, "infotexts", texts, "extra_generation_params",
                     extras(render), "index_of_first_image", (json_int_t)0, "job_timestamp", stamp);
}

static struct answer *sdapi_answer(struct render *render)
{
    struct answer *a = answer_new(MHD_HTTP_OK, "application/json");
    json_t *object = info(render);
    char *text = object ? json_dumps(object, JSON_COMPACT) : NULL;
    answer_text(a, "{\"images\":[");
    for (size_t i = 0; i < render->count; i++) {
        answer_text(a, i == 0 ? "\"" : ",\"");
        answer_base64(a, &render->pictures[i]);
        answer_text(a, "\"");
    }
    answer_text(a, "],\"parameters\":");
    answer_json(a, json_incref(render->ask.echo));
    answer_text(a, ",\"info\":");
    answer_json(a, json_string(text));
    answer_text(a, "}");
    json_decref(object);
    free(text);
    return a;
}

/* Never a url beside b64_json: clients prefer it and may not fetch from this machine. */
static struct answer *openai_answer(struct render *render)
{
    const struct kr_params *v = &render->values;
    struct answer *a = answer_new(MHD_HTTP_OK, "application/json");
    char *text;
    json_t *own = json_pack("{s:I, s:o?, s:o?, s:o}", "seed", (json_int_t)v->seed, "steps",
                            render_value(v, KR_F_STEPS), "cfg", render_value(v, KR_F_CFG), "info",
                            extras(render));
    int n = asprintf(&text,
                     "{\"created\":%lld,\"background\":\"opaque\",\"output_format\":\"png\","
                     "\"size\":\"%" PRId64 "x%" PRId64 "\",\"data\":[",
                     (long long)time(NULL), v->width, v->height);
    answer_take(a, n < 0 ? NULL : text);
    for (size_t i = 0; i < render->count; i++) {
        answer_text(a, i == 0 ? "{\"b64_json\":\"" : ",{\"b64_json\":\"");
        answer_base64(a, &render->pictures[i]);
        answer_text(a, "\"}");
    }
    answer_text(a, "],\"kread\":");
    answer_json(a, own);
    answer_text(a, "}");
    return a;
}

struct answer *render_answer(struct render *render)
{
    return render->r->family == FAMILY_OPENAI ? openai_answer(render) : sdapi_answer(render);
}
