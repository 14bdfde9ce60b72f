/* SPDX-License-Identifier: Apache-2.0
 *
 * What a preview costs beside the step that it follows: the colours of a latent and their PNG, at
 * several sizes of picture, and as a share of the demo's own step at 256x256 (the shortest step
 * that anybody waits for; one of the full-size model is hundreds of times as long).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/engine/engine.h"
#include "daemon/engine/pngfile.h"
#include "daemon/engine/preview.h"
#include "tests/bench/bench.h"

enum { ROUNDS = 101, STEPS = 8, SIDE = 256, LARGEST = 2048 / 8 };

/* ---------------------------------------------------------------------------- a preview ---- */

/* As little alike as the latents of a real picture's first steps. */
static void fill(float *values, size_t count)
{
    srand(1);
    for (size_t i = 0; i < count; i++)
        values[i] = 4 * ((float)rand() / (float)RAND_MAX - 0.5f);
}

static double one(const float *latent, int64_t side, uint8_t *rgb, double *colours)
{
    const struct pngfile file = {.rgb = rgb, .width = side, .height = side, .quick = true};
    double begin = now();
    struct kr_err err;
    size_t size;
    void *png;

    preview_pixels(&preview_wan21, latent, latent + PREVIEW_CHANNELS * side * side, 0.5f,
                   side * side, rgb);
    *colours = now() - begin;
    if (pngfile_encode(&file, &png, &size, &err) < 0)
        die(err.text);
    free(png);
    return now() - begin;
}

/* Seconds of a preview of `side` pixels each way. */
static double measure(const float *latent, int64_t side, uint8_t *rgb)
{
    double total[ROUNDS], colours[ROUNDS];

    for (int i = 0; i < ROUNDS; i++)
        total[i] = one(latent, side, rgb, &colours[i]);
    printf("a preview of a picture of %4dx%-4d: %7.3f ms, the colours %.3f ms of it\n",
           (int)side * 8, (int)side * 8, median(total, ROUNDS) * 1e3,
           median(colours, ROUNDS) * 1e3);
    return median(total, ROUNDS);
}

/* ------------------------------------------------------------------------------- a step ---- */

struct steps {
    double begin, seconds[STEPS];
};

static void on_progress(void *user, const struct engine_progress *p)
{
    struct steps *s = user;

    if (strcmp(p->stage, "denoise") != 0)
        return;
    if (p->step > 0)
        s->seconds[p->step - 1] = now() - s->begin;
    s->begin = now();
}

static int on_image(void *user, const struct engine_image *image, struct kr_err *err)
{
    (void)user;
    (void)image;
    (void)err;
    return 0;
}

static void generate(struct engine *engine, struct steps *s)
{
    struct kr_params p = {0};
    atomic_int cancel = 0;
    struct engine_job job = {
        .params = &p, .cancel = &cancel, .user = s, .progress = on_progress, .image = on_image};
    struct engine_times times;
    char warning[256];
    struct kr_err err;

    if (kr_params_set_text(&p, KR_F_PROMPT, "a red circle", 12, &err) < 0 ||
        kr_params_set_int(&p, KR_F_WIDTH, SIDE, &err) < 0 ||
        kr_params_set_int(&p, KR_F_HEIGHT, SIDE, &err) < 0 ||
        kr_params_set_int(&p, KR_F_STEPS, STEPS, &err) < 0 ||
        engine_resolve(engine, &p, warning, sizeof(warning), &err) < 0 ||
        engine_generate(engine, &job, &times, &err) < 0)
        die(err.text);
    kr_params_fini(&p);
}

/* Seconds of a step of the demo. */
static double step(void)
{
    const struct engine_config config = {.profile = "bench",
                                         .architecture = "krea2",
                                         .variant = "turbo",
                                         .diffusion_model =
                                             "demo/krea2_demo_fp8_scaled.safetensors",
                                         .text_encoder = "demo/qwen3vl_demo_fp8_scaled.safetensors",
                                         .vae = "demo/qwen_image_vae_demo.safetensors",
                                         .tokenizer = "demo/tokenizer",
                                         .device = ENGINE_DEVICE_CPU};
    struct engine *engine;
    struct steps s;
    struct kr_err err;

    if (engine_open(&config, &engine, &err) < 0)
        die(err.text);
    generate(engine, &s);
    generate(engine, &s);
    engine_close(engine);
    return median(s.seconds, STEPS);
}

int main(void)
{
    size_t count = 2 * PREVIEW_CHANNELS * (size_t)LARGEST * LARGEST;
    float *latent = malloc(count * sizeof(*latent));
    uint8_t *rgb = malloc(3 * (size_t)LARGEST * LARGEST);
    double mine, its;

    if (!latent || !rgb)
        die("no memory");
    fill(latent, count);
    mine = measure(latent, SIDE / 8, rgb);
    measure(latent, 1024 / 8, rgb);
    measure(latent, LARGEST, rgb);
    its = step();
    printf("a step of the demo at %dx%d: %.3f ms; a preview after each: %.2f %% more\n", SIDE, SIDE,
           its * 1e3, 100 * mine / its);
    free(latent);
    free(rgb);
    return 0;
}
