/* SPDX-License-Identifier: Apache-2.0
 *
 * How long a cancelled job lives on: from the moment that another thread sets the flag until
 * engine_generate() returns, at random moments over a whole job (seeded, drawn evenly from each of
 * its stages). Prints the distribution for each stage; the slowest moments say where they were.
 *
 *   bench_cancel                                      the demo at 256x256, 20 moments a stage
 *   bench_cancel DIT TEXT VAE TOKENIZER [SIDE [MOMENTS [STEPS]]]
 *   bench_cancel --isa base|avx2|avx512 ...           no newer instructions than those
 *
 * With files of the real size (make_fullsize.py --sparse, --blocks 1 or 2 to get to the later
 * stages sooner) this is the latency of the real model: it depends on the width, not on how often
 * the blocks are repeated.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/engine/internal.h"
#include "kernels/kernels.h"
#include "tests/bench/bench.h"

enum { STAGES = 5, MAX_MOMENTS = 1000, PROMPT = 300 };
static const char *const stage_names[STAGES] = {"plan", "encode", "denoise", "decode", "png"};

static const char *const isa_names[] = {
    [KR_ISA_BASE] = "base", [KR_ISA_AVX2] = "avx2", [KR_ISA_AVX512] = "avx512"};

/* One job and the thread that cancels it `delay` seconds after stage `stage` began. */
struct run {
    struct engine *engine;
    int64_t side, steps;
    double begin[STAGES + 1]; /* of each stage, and of the end */
    int stage;                /* to cancel in; STAGES: never */
    double delay;
    pthread_t thread;
    int started;
    atomic_int cancel;
    double set; /* when */
};

static void *cancel_later(void *arg)
{
    struct run *r = arg;
    double wait = r->delay;
    struct timespec t = {(time_t)wait, (long)((wait - (double)(time_t)wait) * 1e9)};

    nanosleep(&t, NULL);
    r->set = now();
    atomic_store(&r->cancel, 1);
    return NULL;
}

static void enter(struct run *r, int stage)
{
    r->begin[stage] = now();
    if (stage != r->stage)
        return;
    r->started = 1;
    if (pthread_create(&r->thread, NULL, cancel_later, r) != 0)
        die("no thread");
}

static void on_progress(void *user, const struct engine_progress *p)
{
    struct run *r = user;

    if (p->step == 0)
        enter(r, p->stage[0] == 'e' ? 1 : p->stage[2] == 'n' ? 2 : 3);
    else if (p->stage[2] == 'c' && p->stage[0] == 'd' && p->step == p->steps)
        enter(r, 4);
}

static int on_image(void *user, const struct engine_image *image, struct kr_err *err)
{
    (void)user;
    (void)image;
    (void)err;
    return 0;
}

/* A prompt that no job had before, so that there is something to encode. */
static void make_params(const struct run *r, struct kr_params *p)
{
    static int number;
    char text[PROMPT * 2 + 32], warning[256];
    struct kr_err err;
    int n = snprintf(text, sizeof(text), "%d", number++);

    for (int i = 0; i < PROMPT; i++)
        n += snprintf(text + n, sizeof(text) - (size_t)n, " x");
    if (kr_params_set_text(p, KR_F_PROMPT, text, (size_t)n, &err) < 0 ||
        kr_params_set_int(p, KR_F_WIDTH, r->side, &err) < 0 ||
        kr_params_set_int(p, KR_F_HEIGHT, r->side, &err) < 0 ||
        kr_params_set_int(p, KR_F_STEPS, r->steps, &err) < 0 ||
        engine_resolve(r->engine, p, warning, sizeof(warning), &err) < 0)
        die(err.text);
}

/* Seconds from the flag to the return; < 0: the job was done before. */
static double run_job(struct run *r, int stage, double delay)
{
    struct kr_params p = {0};
    struct engine_job job = {.id = 1,
                             .params = &p,
                             .cancel = &r->cancel,
                             .user = r,
                             .progress = on_progress,
                             .image = on_image};
    struct engine_times times;
    struct kr_err err;
    int rc;

    make_params(r, &p);
    atomic_store(&r->cancel, 0);
    r->stage = stage;
    r->delay = delay;
    r->started = 0;
    enter(r, 0);
    rc = engine_generate(r->engine, &job, &times, &err);
    r->begin[STAGES] = now();
    if (r->started)
        pthread_join(r->thread, NULL);
    kr_params_fini(&p);
    if (rc < 0 && err.code != KR_CANCELLED)
        die(err.text);
    return rc < 0 ? r->begin[STAGES] - r->set : -1;
}

static void measure(struct run *r, int stage, double length, int moments)
{
    double seconds[MAX_MOMENTS], middle, worst = 0, worst_at = 0;
    int n = 0;

    for (int i = 0; i < moments; i++) {
        double delay = length * (double)rand() / (double)RAND_MAX;
        double took = run_job(r, stage, delay);

        if (took < 0)
            continue;
        if (took > worst) {
            worst = took;
            worst_at = delay;
        }
        seconds[n++] = took;
    }
    if (!n) {
        printf("%-8s %8.3f s long, never caught\n", stage_names[stage], length);
        return;
    }
    middle = median(seconds, n);
    printf("%-8s %8.3f s long, %3d moments: median %6.1f ms, 95 %% %6.1f ms, most %6.1f ms"
           " (at %.3f s)\n",
           stage_names[stage], length, n, middle * 1e3, seconds[n * 95 / 100] * 1e3, worst * 1e3,
           worst_at);
    fflush(stdout);
}

static void open_limited(struct kr_device **dev, enum kr_isa isa)
{
    const struct kr_device_options options = {.isa = isa};
    char why[200];

    kr_device_close(*dev);
    *dev = kr_device_open_cpu(&options, why, sizeof(why));
    if (!*dev)
        die(why);
}

/* Nothing was computed or planned yet, and vectors are the same on every CPU device. */
static void limit(struct engine *engine, const char *name)
{
    for (int isa = KR_ISA_BASE; isa <= KR_ISA_AVX512; isa++)
        if (strcmp(isa_names[isa], name) == 0) {
            open_limited(&engine->dev, (enum kr_isa)isa);
            open_limited(&engine->planner->dev, (enum kr_isa)isa);
            printf("%s\n", kr_device_name(engine->dev));
            return;
        }
    die("--isa takes base, avx2 or avx512");
}

static struct engine *open_engine(const char *const *files)
{
    const struct engine_config config = {.profile = "bench",
                                         .architecture = "krea2",
                                         .variant = "turbo",
                                         .diffusion_model = files[0],
                                         .text_encoder = files[1],
                                         .vae = files[2],
                                         .tokenizer = files[3],
                                         .device = ENGINE_DEVICE_CPU};
    struct engine *engine;
    struct kr_err err;

    if (engine_open(&config, &engine, &err) < 0)
        die(err.text);
    return engine;
}

int main(int argc, char **argv)
{
    static const char *const demo[] = {"demo/krea2_demo_fp8_scaled.safetensors",
                                       "demo/qwen3vl_demo_fp8_scaled.safetensors",
                                       "demo/qwen_image_vae_demo.safetensors", "demo/tokenizer"};
    const char *isa = argc > 2 && strcmp(argv[1], "--isa") == 0 ? argv[2] : NULL;

    argv += isa ? 2 : 0;
    argc -= isa ? 2 : 0;
    struct run r = {.engine = open_engine(argc > 4 ? (const char *const *)argv + 1 : demo),
                    .side = argc > 5 ? atoi(argv[5]) : 256,
                    .steps = argc > 7 ? atoi(argv[7]) : 2};
    int moments = argc > 6 ? atoi(argv[6]) : 20;
    double begin[STAGES + 1];

    if (isa)
        limit(r.engine, isa);
    run_job(&r, STAGES, 0); /* warm, and to learn how long the stages are */
    run_job(&r, STAGES, 0);
    memcpy(begin, r.begin, sizeof(begin));
    srand(1);
    for (int stage = 0; stage < STAGES; stage++)
        measure(&r, stage, begin[stage + 1] - begin[stage],
                moments < MAX_MOMENTS ? moments : MAX_MOMENTS);
    engine_close(r.engine);
    return 0;
}
