/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening and closing. The order of opening is the order of cost: settings, headers, every tensor
 * of every file and how the files fit together (all of that allocates next to nothing), and only
 * then the device and the small vectors on it. The large matrices stay in the files.
 */
#include "daemon/engine/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/engine/parts.h"

/* Encoded prompts of Krea 2 take 1 to 13 MB each. */
enum { CACHE_BYTES = 256 << 20 };

struct origin engine_origin(const struct engine *e)
{
    return (struct origin){.profile = e->profile,
                           .architecture = e->family->architecture,
                           .variant = e->variant,
                           .diffusion_model = weights_name(e->parts.file[PART_DIFFUSION_MODEL]),
                           .text_encoder = weights_name(e->parts.file[PART_TEXT_ENCODER]),
                           .vae = weights_name(e->parts.file[PART_VAE]),
                           .tokenizer = e->parts.tokenizer_name};
}

int engine_check_device(enum engine_device device, struct kr_err *err)
{
    char why[300] = "";

    if (device != ENGINE_DEVICE_CUDA || kr_cuda_check(why, sizeof(why)) == 0)
        return 0;
    return kr_fail(err, KR_BAD_CONFIG, "device cuda: %s; set device to cpu or auto to do without",
                   why);
}

/* All that can be refused about the files is refused here, before anything is allocated. */
static int check_parts(const struct engine *e, const struct engine_config *config,
                       struct kr_err *err)
{
    void *model;

    if (e->family->bind(&e->parts, config, NULL, &model, err) < 0)
        return -1;
    e->family->unbind(model, NULL);
    return 0;
}

static struct kr_device *open_cpu(const struct engine_config *config, struct kr_err *err)
{
    const struct kr_device_options options = {.threads = config->threads};
    char why[200] = "";
    struct kr_device *dev = kr_device_open_cpu(&options, why, sizeof(why));

    if (!dev)
        kr_fail(err, KR_DEVICE, "the CPU device can't be opened: %s", why);
    return dev;
}

static struct kr_device *open_cuda(const struct engine_config *config, struct kr_err *err)
{
    const struct kr_cuda_options options = {.fp8 = config->no_fp8_products ? KR_FP8_EXPAND
                                                                           : KR_FP8_BEST};
    char why[300] = "";
    struct kr_device *dev = kr_device_open_cuda(&options, why, sizeof(why));

    if (!dev)
        kr_fail(err, KR_DEVICE, "the CUDA device can't be opened: %s%s", why,
                config->device == ENGINE_DEVICE_CUDA ? "; set device to cpu or auto to do without"
                                                     : "");
    return dev;
}

/* Sets e->cuda and device_why, too. */
static struct kr_device *open_best(struct engine *e, const struct engine_config *config,
                                   struct kr_err *err)
{
    struct kr_device *dev;

    snprintf(e->device_why, sizeof(e->device_why), "set by the configuration");
    if (config->device == ENGINE_DEVICE_CPU)
        return open_cpu(config, err);
    dev = open_cuda(config, err);
    e->cuda = dev != NULL;
    if (config->device == ENGINE_DEVICE_CUDA)
        return dev;
    if (dev)
        snprintf(e->device_why, sizeof(e->device_why), "chosen because it is there");
    else
        snprintf(e->device_why, sizeof(e->device_why), "chosen because %.360s", err->text);
    return dev ? dev : open_cpu(config, err);
}

static int open_device(struct engine *e, const struct engine_config *config, struct kr_err *err)
{
    e->dev = open_best(e, config, err);
    if (!e->dev)
        return -1;
    snprintf(e->device_name, sizeof(e->device_name), "%s", kr_device_name(e->dev));
    return e->family->bind(&e->parts, config, e->dev, &e->model, err);
}

/* The same kind of device with as many threads, because scratch memory depends on both. Its model
 * is bound while planning, so that the vectors take no memory of a GPU a second time. */
static int open_planner(struct engine *e, const struct engine_config *config, struct kr_err *err)
{
    struct planner *planner = calloc(1, sizeof(*planner));
    int rc;

    if (!planner)
        return kr_fail(err, KR_NO_MEMORY, "no memory for the planner");
    pthread_mutex_init(&planner->lock, NULL);
    e->planner = planner;
    planner->dev = e->cuda ? open_cuda(config, err) : open_cpu(config, err);
    if (!planner->dev)
        return -1;
    kr_plan_begin(planner->dev);
    rc = e->family->bind(&e->parts, config, planner->dev, &planner->model, err);
    kr_plan_end(planner->dev);
    return rc;
}

static int copy_settings(struct engine *e, const struct engine_config *config, struct kr_err *err)
{
    e->profile = strdup(config->profile);
    e->trace = config->trace ? strdup(config->trace) : NULL;
    e->cache = malloc(sizeof(*e->cache));
    if (!e->profile || (config->trace && !e->trace) || !e->cache)
        return kr_fail(err, KR_NO_MEMORY, "no memory for the settings");
    cache_init(e->cache, CACHE_BYTES);
    e->max_pixels = config->max_pixels;
    e->max_steps = config->max_steps;
    e->max_count = config->max_count;
    if (kr_params_copy(&e->profile_defaults, &config->profile_defaults, err) < 0)
        return -1;
    return kr_params_copy(&e->generation_defaults, &config->generation_defaults, err);
}

static int open_all(struct engine *e, const struct engine_config *config, struct kr_err *err)
{
    if (parts_check(config, &e->family, &e->variant, err) < 0 ||
        engine_check_device(config->device, err) < 0 ||
        parts_open(&e->parts, e->family, config, err) < 0 || check_parts(e, config, err) < 0)
        return -1;
    if (copy_settings(e, config, err) < 0 || open_device(e, config, err) < 0 ||
        open_planner(e, config, err) < 0)
        return -1;
    e->family->dims(e->model, &e->dims);
    plan_measure(e);
    return plan_residency(e, config->residency, err);
}

int engine_open(const struct engine_config *config, struct engine **engine, struct kr_err *err)
{
    struct engine *e = calloc(1, sizeof(*e));
    double before = seconds_now();

    *engine = NULL;
    if (!e)
        return kr_fail(err, KR_NO_MEMORY, "no memory for the engine");
    if (open_all(e, config, err) < 0) {
        engine_close(e);
        return -1;
    }
    e->opened_in = seconds_now() - before;
    *engine = e;
    return 0;
}

void engine_close(struct engine *e)
{
    if (!e)
        return;
    if (e->model)
        e->family->unbind(e->model, e->dev);
    planner_free(e->planner, e->family);
    kr_device_close(e->dev);
    parts_close(&e->parts);
    if (e->cache)
        cache_fini(e->cache);
    free(e->cache);
    kr_params_fini(&e->profile_defaults);
    kr_params_fini(&e->generation_defaults);
    free(e->profile);
    free(e->trace);
    free(e);
}

int engine_tokens(const struct engine *e, const char *text, size_t length, int32_t **ids,
                  size_t *count, size_t *limit, struct kr_err *err)
{
    struct kr_params p = {0};

    if (resolve_defaults(e, &p, err) < 0)
        return -1;
    *limit = (size_t)e->family->prompt_limit((enum kr_dialect)p.dialect);
    kr_params_fini(&p);
    return tokenizer_encode(e->parts.tokenizer, text, length, ids, count, err);
}
