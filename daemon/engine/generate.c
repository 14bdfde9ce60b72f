/* SPDX-License-Identifier: Apache-2.0
 *
 * A job from its first plan to its last picture: plan, encode the prompts (or recall them), then
 * for each picture sample, decode, round to pixels, write the PNG and hand it over.
 *
 * All of it runs on the worker. The job's arena is opened at the start and closed at the end,
 * however the job went. The device is the only one that hears of cancelling: its operations stop
 * doing anything, and the next boundary here reads why.
 */
#include "daemon/engine/run.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/engine/pixels.h"
#include "daemon/engine/pngfile.h"

/* ------------------------------------------------------------- boundary and tick ------ */

int run_boundary(struct run *r, const char *stage, int64_t step, int64_t steps)
{
    enum kr_fault fault = kr_device_sync(r->work.dev);
    const char *text = kr_device_fault_text(r->work.dev);
    enum kr_code code = fault == KR_FAULT_NO_MEMORY    ? KR_NO_MEMORY
                        : fault == KR_FAULT_NOT_FINITE ? KR_NOT_FINITE
                        : fault == KR_FAULT_MISUSE     ? KR_BAD_FILE
                                                       : KR_DEVICE;
    char place[96];

    if (fault == KR_FINE)
        return 0;
    if (fault == KR_FAULT_CANCELLED)
        return kr_fail(r->err, KR_CANCELLED, "the job was cancelled");
    if (step > 0)
        snprintf(place, sizeof(place), "%s, step %" PRId64 " of %" PRId64, stage, step, steps);
    else
        snprintf(place, sizeof(place), "%s", stage);
    if (r->job->params->count > 1 && strcmp(stage, "encode") != 0)
        snprintf(place + strlen(place), sizeof(place) - strlen(place), ", picture %d of %" PRId64,
                 r->image + 1, r->job->params->count);
    return kr_fail(r->err, code, "%s: %s", place, text);
}

static int64_t pass_tokens(const struct run *r)
{
    const struct work *w = &r->work;
    int64_t image = w->p->width * w->p->height / (w->dims.grid * w->dims.grid);

    return image + (int64_t)work_tokens(w, 0);
}

static double pixels(const struct run *r)
{
    return (double)r->job->params->width * (double)r->job->params->height;
}

/* Seconds until the job ends, from this job's own passes or else the last job's; -1: not known. */
static double remaining(const struct run *r, const char *stage, int64_t step)
{
    const struct kr_params *p = r->job->params;
    int64_t left = p->count - r->image - 1;
    int64_t steps = left * p->steps;
    double pass =
        r->passes ? r->pass_seconds / (double)r->passes : r->e->pass_rate * (double)pass_tokens(r);

    if (pass <= 0)
        return -1;
    if (strcmp(stage, "decode") == 0)
        left += step == 0;
    else {
        left++;
        steps += strcmp(stage, "encode") == 0 ? p->steps : p->steps - step;
    }
    return pass * (double)(steps * r->work.sides) + r->e->decode_rate * pixels(r) * (double)left;
}

int run_tick(struct run *r, const char *stage, int64_t step, int64_t steps)
{
    struct engine_progress progress = {.stage = stage,
                                       .step = (int)step,
                                       .steps = (int)steps,
                                       .image = r->image,
                                       .count = (int)r->job->params->count,
                                       .elapsed = seconds_now() - r->started,
                                       .remaining = remaining(r, stage, step)};

    if (r->job->progress)
        r->job->progress(r->job->user, &progress);
    return run_boundary(r, stage, step, steps);
}

/* ------------------------------------------------------------------------ encode ------ */

static int no_memory(struct run *r, const char *what)
{
    return kr_fail(r->err, KR_NO_MEMORY, "no memory for %s", what);
}

static size_t taps_count(const struct run *r, int side)
{
    return work_tokens(&r->work, side) * (size_t)(r->work.dims.taps * r->work.dims.tap_width);
}

/* Takes a prompt's result out of the cache. */
static int recall(struct run *r, int side, const struct encoded *from)
{
    size_t bytes = taps_count(r, side) * sizeof(float);

    work_recall(&r->work, side, from->text);
    if (!r->e->trace)
        return 0;
    r->taps[side] = malloc(bytes);
    if (!r->taps[side])
        return no_memory(r, "the trace");
    memcpy(r->taps[side], from->taps, bytes);
    return 0;
}

/* Leaves a copy of a prompt's result in the cache. */
static int keep(struct run *r, int side)
{
    size_t text_count = (size_t)kr_count(&r->work.branch[side].text);
    size_t count = r->taps[side] ? taps_count(r, side) : 0;
    float *text = malloc(text_count * sizeof(*text));
    float *taps = count ? malloc(count * sizeof(*taps)) : NULL;

    if (!text || (count && !taps) ||
        kr_download(r->work.dev, r->work.branch[side].text, text) < 0) {
        free(text);
        free(taps);
        return run_boundary(r, "encode", 0, 0);
    }
    if (taps)
        memcpy(taps, r->taps[side], count * sizeof(*taps));
    cache_put(r->e->cache, &r->work.prompt[side], text, text_count, taps, count);
    return 0;
}

static int encode_side(struct run *r, int side)
{
    const struct encoded *found = cache_find(r->e->cache, &r->work.prompt[side]);

    if (found)
        return recall(r, side, found);
    if (r->e->trace) {
        r->taps[side] = malloc(taps_count(r, side) * sizeof(float));
        if (!r->taps[side])
            return no_memory(r, "the trace");
    }
    plan_stage_begin(r->e, PART_TEXT_ENCODER);
    work_encode(&r->work, side, r->taps[side]);
    if (run_boundary(r, "encode", 0, 0) < 0)
        return -1;
    return keep(r, side);
}

static int encode(struct run *r)
{
    double before = seconds_now();
    int rc = run_tick(r, "encode", 0, 1);

    work_begin(&r->work);
    for (int side = 0; side < r->work.sides && rc == 0; side++)
        rc = encode_side(r, side);
    plan_stage_end(r->e, PART_TEXT_ENCODER);
    r->times->encode = seconds_now() - before;
    return rc < 0 ? -1 : run_tick(r, "encode", 1, 1);
}

static int trace_prompts(struct run *r)
{
    const struct work *w = &r->work;
    int64_t ids[2] = {(int64_t)w->prompt[0].count, 0};
    static const char *const names[SIDES] = {"conditioning", "conditioning_negative"};

    if (!r->trace.dir)
        return 0;
    if (trace_ints(&r->trace, "tokens", w->prompt[0].ids, ids, r->err) < 0)
        return -1;
    for (int side = 0; side < w->sides; side++) {
        int64_t dim[4] = {(int64_t)work_tokens(w, side), w->dims.taps, w->dims.tap_width, 0};

        if (trace_floats(&r->trace, names[side], r->taps[side], dim, r->err) < 0)
            return -1;
    }
    return 0;
}

/* ------------------------------------------------------------------------ decode ------ */

static int decode(struct run *r)
{
    int64_t dim[4] = {3, r->job->params->height, r->job->params->width, 0};
    double before = seconds_now();
    struct kr_tensor picture;

    if (run_tick(r, "decode", 0, 1) < 0)
        return -1;
    plan_stage_begin(r->e, PART_VAE);
    picture = work_decode(&r->work, r->plan.rows);
    if (kr_download(r->work.dev, picture, r->host) < 0)
        return run_boundary(r, "decode", 0, 0);
    plan_stage_end(r->e, PART_VAE);
    r->times->decode += seconds_now() - before;
    r->e->decode_rate = (seconds_now() - before) / pixels(r);
    if (trace_floats(&r->trace, "decoded", r->host, dim, r->err) < 0)
        return -1;
    return run_tick(r, "decode", 1, 1);
}

/* A row at a time, as a large picture takes a while. */
static int to_pixels(struct run *r)
{
    const struct kr_params *p = r->job->params;

    for (int64_t y = 0; y < p->height; y++) {
        if (atomic_load(r->job->cancel))
            return kr_fail(r->err, KR_CANCELLED, "the job was cancelled");
        pixels_from_planes((enum kr_dialect)p->dialect, r->host, p->width * p->height, y * p->width,
                           p->width, r->rgb);
    }
    return 0;
}

static int hand_over(struct run *r, int64_t seed, const char *kread, const char *parameters)
{
    const struct kr_params *p = r->job->params;
    const struct pngfile_text texts[2] = {{"parameters", parameters}, {"kread", kread}};
    const struct pngfile file = {.rgb = r->rgb,
                                 .width = p->width,
                                 .height = p->height,
                                 .texts = texts,
                                 .text_count = 2,
                                 .cancel = r->job->cancel};
    struct engine_image image = {
        .index = r->image, .seed = seed, .width = p->width, .height = p->height};
    double before = seconds_now();
    void *png;
    int rc;

    if (to_pixels(r) < 0 || pngfile_encode(&file, &png, &image.png_size, r->err) < 0)
        return -1;
    r->times->png += seconds_now() - before;
    image.png = png;
    rc = r->job->image ? r->job->image(r->job->user, &image, r->err) : 0;
    free(png);
    return rc;
}

static int deliver(struct run *r)
{
    int64_t seed = r->job->params->seed + r->image;
    struct origin from = engine_origin(r->e);
    char *kread = infotext_kread(&from, r->job->params, seed);
    char *parameters = infotext_parameters(&from, r->job->params, seed);
    int rc = kread && parameters ? hand_over(r, seed, kread, parameters)
                                 : no_memory(r, "the picture's texts");

    free(kread);
    free(parameters);
    return rc;
}

/* --------------------------------------------------------------------------- job ------ */

static int begin_trace(struct run *r)
{
    const struct kr_params *p = r->job->params;
    int image = p->count > 1 ? r->image : -1;

    if (!r->e->trace)
        return 0;
    if (trace_open(&r->trace, r->e->trace, r->job->id, image, p->steps, r->err) < 0)
        return -1;
    return trace_prompts(r);
}

static int make_picture(struct run *r)
{
    struct kr_mark mark = kr_arena_mark(r->work.dev);
    double before;
    int rc;

    if (begin_trace(r) < 0)
        return -1;
    work_picture(&r->work);
    before = seconds_now();
    plan_stage_begin(r->e, PART_DIFFUSION_MODEL);
    rc = sampler_run(r);
    plan_stage_end(r->e, PART_DIFFUSION_MODEL);
    r->times->denoise += seconds_now() - before;
    if (rc == 0)
        rc = decode(r);
    if (rc == 0)
        rc = deliver(r);
    kr_arena_release(r->work.dev, mark);
    trace_close(&r->trace);
    return rc;
}

static int run_stages(struct run *r)
{
    int64_t count = r->job->params->count;

    r->work.family->schedule(r->job->params, r->sigmas);
    if (encode(r) < 0)
        return -1;
    for (r->image = 0; r->image < count; r->image++)
        if (make_picture(r) < 0)
            return -1;
    if (r->passes)
        r->e->pass_rate = r->pass_seconds / (double)r->passes / (double)pass_tokens(r);
    return 0;
}

static int run_in_arena(struct run *r)
{
    struct engine *e = r->e;
    char why[256];
    int rc;

    plan_apply(e, &r->plan);
    if (kr_job_begin(e->dev, r->job->cancel, r->plan.arena, why, sizeof(why)) < 0)
        return kr_fail(r->err, kr_device_sync(e->dev) == KR_FAULT_LOST ? KR_DEVICE : KR_NO_MEMORY,
                       "%s", why);
    atomic_store(&e->in_use, r->plan.arena);
    rc = run_stages(r);
    r->times->peak = kr_job_peak(e->dev);
    kr_job_end(e->dev);
    atomic_store(&e->in_use, 0);
    plan_measure(e);
    atomic_store(&e->last_arena, r->plan.arena);
    atomic_store(&e->last_peak, r->times->peak);
    return rc;
}

/* A mapped file that shrank would kill the daemon, one that was written to would be two models. */
static int check_files(struct run *r)
{
    for (int i = 0; i < PARTS; i++)
        if (weights_unchanged(r->e->parts.file[i], r->err) < 0)
            return -1;
    return 0;
}

/* What is free now, from a device that is there. */
static int check_device(struct run *r)
{
    plan_measure(r->e);
    if (kr_device_sync(r->e->dev) != KR_FAULT_LOST)
        return 0;
    return kr_fail(r->err, KR_DEVICE, "%s", kr_device_fault_text(r->e->dev));
}

static int run_init(struct run *r)
{
    const struct kr_params *p = r->job->params;
    size_t pixel_count = (size_t)(p->width * p->height), latent_count;

    if (check_device(r) < 0 || check_files(r) < 0 ||
        work_init(&r->work, r->e->family, r->e->model, r->e->dev, p, r->err) < 0 ||
        plan_job(r->e, &r->work, &r->plan, r->err) < 0)
        return -1;
    latent_count = (size_t)(r->work.dims.channels * r->work.h * r->work.w);
    r->sigmas = calloc((size_t)p->steps + 1, sizeof(*r->sigmas));
    r->host = malloc((3 * pixel_count > latent_count ? 3 * pixel_count : latent_count) *
                     sizeof(*r->host));
    r->rgb = malloc(3 * pixel_count);
    return r->sigmas && r->host && r->rgb ? 0 : no_memory(r, "the picture");
}

static void run_fini(struct run *r)
{
    work_fini(&r->work);
    free(r->sigmas);
    free(r->host);
    free(r->rgb);
    for (int side = 0; side < SIDES; side++)
        free(r->taps[side]);
}

int engine_generate(struct engine *e, const struct engine_job *job, struct engine_times *times,
                    struct kr_err *err)
{
    struct run r = {.e = e, .job = job, .times = times, .err = err, .started = seconds_now()};
    int rc;

    *times = (struct engine_times){0};
    rc = run_init(&r);
    if (rc == 0)
        rc = run_in_arena(&r);
    run_fini(&r);
    return rc;
}
