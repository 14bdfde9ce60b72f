/* SPDX-License-Identifier: Apache-2.0
 *
 * What clients may ask about the engine, as JSON. Runs on the loop's thread while the worker works:
 * it reads what engine_open() fixed, and counters.
 */
#include "daemon/engine/internal.h"

#include <stdlib.h>

#include "daemon/engine/parts.h"
#include "daemon/engine/report.h"

static void memory(const struct engine *e, struct jsonout *j)
{
    struct plan plan = plan_default(e);

    jsonout_open(j, "memory", '{');
    jsonout_int(j, "free", (int64_t)plan_free_memory(e));
    for (int i = 0; i < PARTS; i++)
        jsonout_int(j, part_keys[i], (int64_t)weights_bytes(e->parts.file[i]));
    jsonout_int(j, "default_job", (int64_t)(plan.arena + plan.host + plan.prepared));
    jsonout_int(j, "default_job_rows", plan.rows);
    if (e->cuda) {
        jsonout_int(j, "weights_resident", (int64_t)plan.weights[ENGINE_RESIDENT]);
        jsonout_int(j, "weights_cached", (int64_t)plan.weights[ENGINE_CACHED]);
        jsonout_int(j, "weights_streamed", (int64_t)plan.weights[ENGINE_STREAM]);
    }
    jsonout_int(j, "job", (int64_t)atomic_load(&e->in_use));
    jsonout_int(j, "last_planned", (int64_t)atomic_load(&e->last_arena));
    jsonout_int(j, "last_peak", (int64_t)atomic_load(&e->last_peak));
    jsonout_close(j, '}');
}

static void status(const struct engine *e, struct jsonout *j)
{
    jsonout_open(j, NULL, '{');
    jsonout_text(j, "profile", e->profile);
    jsonout_text(j, "architecture", e->family->architecture);
    jsonout_text(j, "variant", e->variant);
    jsonout_text(j, "device", e->device_name);
    jsonout_text(j, "device_why", e->device_why);
    jsonout_text(j, "residency", residency_name(e->residency));
    jsonout_text(j, "residency_why", e->residency_why);
    memory(e, j);
    jsonout_open(j, "prompt_cache", '{');
    jsonout_int(j, "entries", (int64_t)atomic_load(&e->cache->entries));
    jsonout_int(j, "bytes", (int64_t)atomic_load(&e->cache->bytes));
    jsonout_int(j, "hits", (int64_t)atomic_load(&e->cache->hits));
    jsonout_int(j, "misses", (int64_t)atomic_load(&e->cache->misses));
    jsonout_close(j, '}');
    jsonout_text(j, "trace", e->trace);
    jsonout_real(j, "opened_in", e->opened_in);
    jsonout_close(j, '}');
}

static int profile(const struct engine *e, struct jsonout *j)
{
    struct origin from = engine_origin(e);
    uint32_t not_settings = kr_bit(KR_F_PROMPT);
    struct kr_params p = {0};
    struct kr_err err;

    if (resolve_defaults(e, &p, &err) < 0)
        return -1;
    jsonout_open(j, NULL, '{');
    jsonout_text(j, "profile", from.profile);
    jsonout_text(j, "architecture", from.architecture);
    jsonout_text(j, "variant", from.variant);
    jsonout_text(j, "diffusion_model", from.diffusion_model);
    jsonout_text(j, "text_encoder", from.text_encoder);
    jsonout_text(j, "vae", from.vae);
    jsonout_text(j, "tokenizer", from.tokenizer);
    jsonout_open(j, "defaults", '{');
    infotext_fields(j, &p, not_settings);
    jsonout_close(j, '}');
    jsonout_open(j, "limits", '{');
    jsonout_int(j, "prompt_tokens", e->family->prompt_limit((enum kr_dialect)p.dialect));
    jsonout_int(j, "grid", e->dims.grid);
    jsonout_int(j, "max_pixels", e->max_pixels);
    jsonout_int(j, "max_steps", e->max_steps);
    jsonout_int(j, "max_count", e->max_count);
    jsonout_close(j, '}');
    jsonout_close(j, '}');
    kr_params_fini(&p);
    return 0;
}

static int write_description(const struct engine *e, enum engine_topic topic, struct jsonout *j)
{
    const struct report report = {.family = e->family,
                                  .profile = e->profile,
                                  .variant = e->variant,
                                  .parts = &e->parts,
                                  .model = e->model};

    switch (topic) {
    case ENGINE_STATUS:
        status(e, j);
        break;
    case ENGINE_INSPECT:
        report_json(&report, j);
        break;
    case ENGINE_PROFILE:
        return profile(e, j);
    }
    return 0;
}

char *engine_describe(const struct engine *e, enum engine_topic topic)
{
    char *text = NULL;
    size_t size;
    struct jsonout j;
    FILE *out = open_memstream(&text, &size);
    int rc;

    if (!out)
        return NULL;
    jsonout_begin(&j, out);
    rc = write_description(e, topic, &j);
    if (fclose(out) != 0 || rc < 0) {
        free(text);
        return NULL;
    }
    return text;
}
