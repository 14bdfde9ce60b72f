/* SPDX-License-Identifier: Apache-2.0
 *
 * The one sampler loop: Euler steps along the flow from noise (t = 1) to picture (t = 0), in
 * float32. The network is given the time that its dialect says; the step's length is always the
 * difference of the unrounded times.
 */
#include "daemon/engine/run.h"

#include <stdlib.h>

#include "daemon/engine/pngfile.h"

static const int64_t *latent_shape(const struct run *r, int64_t dim[4])
{
    dim[0] = r->work.dims.channels;
    dim[1] = r->work.h;
    dim[2] = r->work.w;
    dim[3] = 0;
    return dim;
}

static int start(struct run *r)
{
    const struct kr_params *p = r->job->params;
    size_t count = (size_t)kr_count(&r->work.latent);
    int64_t dim[4], grid[2] = {p->steps + 1, 0};

    r->work.family->noise(p, (uint64_t)p->seed + (uint64_t)r->image, r->host, count);
    kr_upload(r->work.dev, r->work.latent, r->host);
    if (trace_floats(&r->trace, "noise", r->host, latent_shape(r, dim), r->err) < 0)
        return -1;
    return trace_floats(&r->trace, "sigmas", r->sigmas, grid, r->err);
}

static int trace_tensor(struct run *r, const char *name, int64_t step, struct kr_tensor t)
{
    int64_t dim[4];

    if (!r->trace.dir)
        return 0;
    if (kr_download(r->work.dev, t, r->host) < 0)
        return run_boundary(r, "denoise", step + 1, r->job->params->steps);
    return trace_step(&r->trace, name, step, r->host, latent_shape(r, dim), r->err);
}

/* Shows where step i leads, if the client wants to see it. */
static int preview(struct run *r, int64_t i)
{
    const struct kr_params *p = r->job->params;
    const struct work *w = &r->work;
    int64_t cells = w->h * w->w;
    float *velocity = r->host + w->dims.channels * cells; /* there is room for a picture */
    struct engine_image image = {
        .index = r->image, .seed = p->seed + r->image, .width = w->w, .height = w->h};
    const struct pngfile file = {
        .rgb = r->rgb, .width = w->w, .height = w->h, .quick = true, .cancel = r->job->cancel};
    void *png;

    if (!r->job->preview || p->preview <= 0 || (i + 1) % p->preview != 0 || i + 1 == p->steps)
        return 0;
    if (kr_download(w->dev, w->latent, r->host) < 0 ||
        kr_download(w->dev, w->velocity, velocity) < 0)
        return run_boundary(r, "denoise", i + 1, p->steps);
    preview_pixels(w->family->preview(w->model), r->host, velocity, r->sigmas[i + 1], cells,
                   r->rgb);
    if (pngfile_encode(&file, &png, &image.png_size, r->err) < 0)
        return -1;
    image.png = png;
    r->job->preview(r->job->user, &image);
    free(png);
    return 0;
}

static int step(struct run *r, int64_t i)
{
    const struct kr_params *p = r->job->params;
    double before = seconds_now();
    float t = r->work.family->time(p, r->sigmas[i]);
    float dt = (float)((double)r->sigmas[i + 1] - (double)r->sigmas[i]);

    work_step(&r->work, t, dt);
    if (run_boundary(r, "denoise", i + 1, p->steps) < 0)
        return -1;
    r->passes += r->work.sides;
    r->pass_seconds += seconds_now() - before;
    plan_step_end(r->e);
    if (trace_tensor(r, "velocity", i, r->work.velocity) < 0 ||
        trace_tensor(r, "latent", i, r->work.latent) < 0 || preview(r, i) < 0)
        return -1;
    return run_tick(r, "denoise", i + 1, p->steps);
}

int sampler_run(struct run *r)
{
    int64_t steps = r->job->params->steps;

    if (start(r) < 0 || run_tick(r, "denoise", 0, steps) < 0)
        return -1;
    for (int64_t i = 0; i < steps; i++)
        if (step(r, i) < 0)
            return -1;
    return 0;
}
