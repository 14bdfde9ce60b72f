/* SPDX-License-Identifier: Apache-2.0
 *
 * What clients ask before they ask for a picture. All of it is answered from what is known, at
 * once, also while the daemon renders, restarts or is away; only before the daemon has ever said
 * which profile it serves is there nothing to say.
 *
 * The model has one name everywhere, the profile's.
 */
#include <stdlib.h>
#include <string.h>

#include "client/http/base64.h"
#include "client/http/handlers.h"
#include "client/http/pngtext.h"
#include "client/http/render.h"
#include "client/http/routes.h"

void handle_text(struct request *r)
{
    struct answer *a = answer_new(MHD_HTTP_OK, "application/json");
    answer_text(a, r->route->text);
    request_answer(r, a);
}

void handle_unsupported(struct request *r)
{
    request_fail(r, MHD_HTTP_NOT_IMPLEMENTED, "not supported", r->route->text);
}

void handle_vid_gen(struct request *r)
{
    request_fail(r, MHD_HTTP_BAD_REQUEST, "loaded model does not support vid_gen",
                 "kread makes pictures, no videos");
}

/* The model's name, or NULL: it was answered that there is none yet. */
static const char *model(struct request *r)
{
    if (r->shim->up.facts.known) {
        return r->shim->up.facts.profile;
    }
    request_fail(r, MHD_HTTP_SERVICE_UNAVAILABLE, "kread is away",
                 "kread has not said yet which model it serves; it does not run or starts");
    return NULL;
}

void handle_models(struct request *r)
{
    const char *name = model(r);
    if (name != NULL) {
        json_t *one =
            json_pack("{s:s, s:s, s:I, s:s, s:s}", "id", name, "object", "model", "created",
                      (json_int_t)r->shim->up.facts.since, "owned_by", "local", "name", name);
        request_answer(
            r, answer_value(MHD_HTTP_OK, json_pack("{s:s, s:[o]}", "object", "list", "data", one)));
    }
}

void handle_options(struct request *r)
{
    const char *name = model(r);
    if (name != NULL) {
        request_answer(r, answer_value(MHD_HTTP_OK, json_pack("{s:s, s:s, s:s}", "samples_format",
                                                              "png", "sd_model_checkpoint", name,
                                                              "sd_checkpoint_hash", "8888888888")));
    }
}

/* There is one model and nothing to set: whatever is asked for is as it is. */
void handle_set_options(struct request *r)
{
    request_answer(r, answer_value(MHD_HTTP_OK, json_null()));
}

void handle_sd_models(struct request *r)
{
    static const char sha[] = "8888888888888888888888888888888888888888888888888888888888888888";
    const char *name = model(r);
    if (name != NULL) {
        request_answer(
            r, answer_value(MHD_HTTP_OK, json_pack("[{s:s, s:s, s:s, s:s, s:s, s:n}]", "title",
                                                   name, "model_name", name, "filename", name,
                                                   "hash", "8888888888", "sha256", sha, "config")));
    }
}

/* ------------------------------------------------------------------------------ capabilities ---
 */

static json_t *features(void)
{
    return json_pack("{s:b, s:b, s:b, s:b, s:b, s:b, s:b, s:b, s:b, s:b, s:b}", "init_image", 0,
                     "mask_image", 0, "control_image", 0, "ip_adapter_image", 0, "ref_images", 0,
                     "lora", 0, "vae_tiling", 0, "hires", 0, "cache", 0, "cancel_queued", 1,
                     "cancel_generating", 1);
}

static int64_t own_or(const struct kr_params *p, enum kr_field_id id, int64_t fallback)
{
    return kr_has(p, id) ? kr_params_int(p, id) : fallback;
}

static json_t *guidance(double cfg)
{
    json_t *slg = json_pack("{s:[], s:f, s:f, s:f}", "layers", "layer_start", 0.01, "layer_end",
                            0.2, "scale", 0.0);
    return json_pack("{s:f, s:n, s:f, s:o}", "txt_cfg", 1 + cfg, "img_cfg", "distilled_guidance",
                     0.0, "slg", slg);
}

static json_t *defaults(const struct kr_params *p)
{
    json_t *sample = json_pack(
        "{s:s, s:s, s:I, s:n, s:i, s:n, s:o}", "scheduler", "simple", "sample_method", "euler",
        "sample_steps", (json_int_t)own_or(p, KR_F_STEPS, 8), "eta", "shifted_timestep", 0,
        "flow_shift", "guidance", guidance(kr_has(p, KR_F_CFG) ? p->cfg : 0));
    return json_pack(
        "{s:s, s:s, s:i, s:I, s:I, s:f, s:i, s:i, s:o, s:{s:b}, s:{s:b}, s:s, s:s, s:s, s:b, s:s, "
        "s:i}",
        "prompt", "", "negative_prompt", kr_has(p, KR_F_NEGATIVE) ? p->negative : "", "clip_skip",
        -1, "width", (json_int_t)own_or(p, KR_F_WIDTH, 1024), "height",
        (json_int_t)own_or(p, KR_F_HEIGHT, 1024), "strength", 0.75, "seed", -1, "batch_count", 1,
        "sample_params", sample, "hires", "enabled", 0, "vae_tiling_params", "enabled", 0,
        "cache_mode", "disabled", "cache_option", "", "scm_mask", "", "scm_policy_dynamic", 1,
        "output_format", "png", "output_compression", 100);
}

/* The side of the largest square. */
static int largest(int64_t max_pixels)
{
    int side = 16;
    while ((int64_t)(side + 16) * (side + 16) <= max_pixels) {
        side += 16;
    }
    return side;
}

void handle_capabilities(struct request *r)
{
    const char *name = model(r);
    if (name == NULL) {
        return;
    }
    const struct kr_params *p = &r->shim->up.facts.defaults;
    struct policy policy = shim_policy(r->shim);
    int side = largest(policy.max_pixels);
    json_t *limits = json_pack("{s:i, s:i, s:i, s:i, s:I, s:i}", "min_width", 16, "max_width", side,
                               "min_height", 16, "max_height", side, "max_batch_count",
                               (json_int_t)policy.max_count, "max_queue_size", 64);
    request_answer(
        r, answer_value(
               MHD_HTTP_OK,
               json_pack("{s:{s:s, s:s, s:s}, s:s, s:[s], s:o, s:{s:o}, s:[s], s:{s:[s]}, s:o, "
                         "s:{s:o}, s:o, s:[s], s:[s], s:[], s:[{s:s}]}",
                         "model", "name", name, "stem", name, "path", name, "current_mode",
                         "img_gen", "supported_modes", "img_gen", "defaults", defaults(p),
                         "defaults_by_mode", "img_gen", defaults(p), "output_formats", "png",
                         "output_formats_by_mode", "img_gen", "png", "features", features(),
                         "features_by_mode", "img_gen", features(), "limits", limits, "samplers",
                         "euler", "schedulers", "simple", "loras", "upscalers", "name", "None")));
}

/* ------------------------------------------------------------------------------------- the rest
 * --- */

/* Of the machine that runs the daemon, as far as the daemon would say; clients only display it. */
void handle_memory(struct request *r)
{
    request_answer(r,
                   answer_value(MHD_HTTP_OK, json_pack("{s:{s:I, s:I, s:I}, s:{s:n}}", "ram",
                                                       "free", (json_int_t)0, "used", (json_int_t)0,
                                                       "total", (json_int_t)0, "cuda", "system")));
}

void handle_cmd_flags(struct request *r)
{
    request_answer(r, answer_value(MHD_HTTP_OK, json_pack("{s:b, s:b}", "api", 1, "nowebui", 0)));
}

/* {"image": base64, perhaps as a data URL}: the infotext in a PNG of anybody's. */
void handle_png_info(struct request *r)
{
    struct kr_err err;
    const char *what, *image = NULL;
    json_t *body = body_read(r->body, r->size, &what, &err);
    if (body == NULL || body_text(body, "image", &image) != BODY_FOUND) {
        request_fail(r, MHD_HTTP_BAD_REQUEST, body ? "image required" : what,
                     body ? "image must be a PNG in base64" : err.text);
        json_decref(body);
        return;
    }
    const char *comma = strncmp(image, "data:", 5) == 0 ? strchr(image, ',') : NULL;
    image = comma ? comma + 1 : image;
    size_t size = 0, length = strlen(image);
    char *png = malloc(length + 1);
    char *text = png && base64_decode(image, length, png, &size)
                     ? pngtext_get(png, size, "parameters")
                     : NULL;
    json_t *items = text ? json_pack("{s:s}", "parameters", text) : json_object();
    request_answer(r,
                   answer_value(MHD_HTTP_OK, json_pack("{s:s, s:o, s:{}}", "info", text ? text : "",
                                                       "items", items, "parameters")));
    free(text);
    free(png);
    json_decref(body);
}
