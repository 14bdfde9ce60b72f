/* SPDX-License-Identifier: Apache-2.0
 *
 * How a job behaves, beyond its numbers: the same request gives the same bytes by every way that
 * leads to it, cancelling works at every stage and leaves the engine well, and what goes wrong is
 * said with step and stage.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/engine/internal.h"
#include "tests/engine/files.h"
#include "tests/engine/png_read.h"
#include "tests/engine/rig.h"

#define SET "tests/golden/scaled"

static void run(struct client *client, struct engine *engine, struct kr_params *p)
{
    if (client_run(client, engine, p) < 0)
        fail_msg("%s", client->err.text);
}

static void open_set(struct rig *rig)
{
    rig_init(rig, SET);
    rig_open(rig);
}

/* A guided request on an engine of its own. */
static struct kr_params guided(void)
{
    struct kr_params p = params_of("a small red boat", 64, 48, 3);

    kr_params_set_real(&p, KR_F_CFG, 2, NULL);
    kr_params_set_text(&p, KR_F_NEGATIVE, "fog", 3, NULL);
    return p;
}

/* ------------------------------------------------------------------------ the same bytes ------ */

static void test_twice(void **state)
{
    struct rig rig;
    struct client a = {0}, b = {0}, c = {0};
    struct kr_params p = guided(), q = guided(), r = guided();

    (void)state;
    open_set(&rig);
    run(&a, rig.engine, &p);
    run(&b, rig.engine, &q); /* the prompts come from the cache */
    assert_int_equal(atomic_load(&rig.engine->cache->misses), 2);
    assert_int_equal(atomic_load(&rig.engine->cache->hits), 2);
    assert_same_image(&a, 0, &b, 0);
    rig_fini(&rig);
    open_set(&rig);
    run(&c, rig.engine, &r);
    assert_same_image(&a, 0, &c, 0);
    rig_fini(&rig);
    kr_params_fini(&p);
    kr_params_fini(&q);
    kr_params_fini(&r);
    client_fini(&a);
    client_fini(&b);
    client_fini(&c);
}

/* Image i of a series is the single image with seed + i, and the request of its own text. */
static void test_series_and_text(void **state)
{
    struct rig rig;
    struct client series = {0};
    struct kr_params p = guided();

    (void)state;
    open_set(&rig);
    kr_params_set_int(&p, KR_F_COUNT, 3, NULL);
    kr_params_set_int(&p, KR_F_PREVIEW, 2, NULL);
    run(&series, rig.engine, &p);
    assert_int_equal(series.images, 3);
    assert_int_equal(atomic_load(&rig.engine->cache->misses), 2); /* encoded once */
    for (int i = 0; i < 3; i++) {
        struct kr_params single = params_from_json(series.image[i].kread);
        struct client client = {0};

        assert_int_equal(series.image[i].seed, 7 + i);
        assert_int_equal(single.seed, 7 + i);
        run(&client, rig.engine, &single);
        assert_same_image(&series, i, &client, 0);
        kr_params_fini(&single);
        client_fini(&client);
    }
    assert_memory_not_equal(series.image[0].png, series.image[1].png, 200);
    kr_params_fini(&p);
    client_fini(&series);
    rig_fini(&rig);
}

/* The chunk in the file is the text that the client was given, for a request that says little. */
static void test_chunk_of_defaults(void **state)
{
    struct rig rig;
    struct client a = {0}, b = {0};
    struct kr_params p = {0}, q;
    struct png_read png;

    (void)state;
    rig_init(&rig, SET);
    rig.config.variant = "raw";
    kr_params_set_int(&rig.config.profile_defaults, KR_F_WIDTH, 70, NULL);
    kr_params_set_int(&rig.config.profile_defaults, KR_F_HEIGHT, 33, NULL);
    kr_params_set_int(&rig.config.generation_defaults, KR_F_STEPS, 2, NULL);
    rig_open(&rig);
    kr_params_set_text(&p, KR_F_PROMPT, "\xe6\x97\xa5\xe6\x9c\xac", 6, NULL);
    run(&a, rig.engine, &p);
    png_read_init(&png, a.image[0].png, a.image[0].size);
    assert_string_equal(png_read_chunk(&png, "kread"), "tEXt");
    assert_string_equal(png_read_chunk(&png, "parameters"), "iTXt");
    assert_int_equal(png.width, 80);
    assert_int_equal(png.height, 48);
    png_read_fini(&png);
    q = params_from_json(a.image[0].kread);
    run(&b, rig.engine, &q);
    assert_same_image(&a, 0, &b, 0);
    kr_params_fini(&p);
    kr_params_fini(&q);
    client_fini(&a);
    client_fini(&b);
    rig_fini(&rig);
}

/* With less memory the picture is decoded in bands, with too little it is refused with numbers,
 * before and after it was let in. */
static void test_bands(void **state)
{
    struct rig rig;
    struct client whole = {0}, bands = {0}, none = {0};
    struct kr_params p = params_of("tulips", 256, 512, 1), q = params_of("tulips", 256, 512, 1);
    struct plan plan, banded = {0};

    (void)state;
    rig_init(&rig, "tests/golden/halves"); /* its decoder is what needs most */
    rig_open(&rig);
    run(&whole, rig.engine, &p);
    assert_int_equal(plan_request(rig.engine, &p, &plan, NULL, NULL, &none.err), 0);
    assert_int_equal(plan.rows, 0);
    assert_true(whole.times.peak <= plan.arena);
    rig.engine->planner->pretend_free = (plan.arena + plan.host) * 8 / 10;
    if (plan_request(rig.engine, &p, &banded, NULL, NULL, &none.err) < 0)
        fail_msg("%zu: %s", plan.arena + plan.host, none.err.text);
    assert_true(banded.rows > 0 && banded.arena < plan.arena);
    run(&bands, rig.engine, &q);
    assert_true(bands.times.peak <= banded.arena);
    assert_same_image(&whole, 0, &bands, 0);
    rig.engine->planner->pretend_free = 100000;
    assert_int_equal(client_run(&none, rig.engine, &q), -1);
    assert_int_equal(none.err.code, KR_NO_MEMORY);
    assert_non_null(strstr(none.err.text, "256x512"));
    assert_non_null(strstr(none.err.text, "100.0 kB are free"));
    kr_params_fini(&p);
    kr_params_fini(&q);
    client_fini(&whole);
    client_fini(&bands);
    rig_fini(&rig);
}

static void test_residencies_and_threads(void **state)
{
    static const struct {
        enum engine_residency residency;
        int threads;
    } ways[] = {{ENGINE_RESIDENT, 2}, {ENGINE_CACHED, 2}, {ENGINE_STREAM, 1}, {ENGINE_AUTO, 3}};
    struct client clients[4] = {0};

    (void)state;
    for (int i = 0; i < 4; i++) {
        struct rig rig;
        struct kr_params p = guided();

        rig_init(&rig, SET);
        rig.config.residency = ways[i].residency;
        rig.config.threads = ways[i].threads;
        rig_open(&rig);
        run(&clients[i], rig.engine, &p);
        assert_same_image(&clients[0], 0, &clients[i], 0);
        kr_params_fini(&p);
        rig_fini(&rig);
    }
    for (int i = 0; i < 4; i++)
        client_fini(&clients[i]);
}

/* What is cut off a prompt does not act, and is said. */
static void test_long_prompts(void **state)
{
    enum { WORDS = 600 };
    char text[WORDS * 7 + 1], cut[128] = "";
    struct rig rig;
    struct client a = {0}, b = {0};
    struct kr_params p, q;
    struct png_read x, y;

    (void)state;
    open_set(&rig);
    for (int i = 0; i < WORDS; i++)
        memcpy(text + i * 7, " yellow", 8);
    p = params_of(text, 32, 32, 1);
    text[WORDS * 7 - 1] = 'x';
    q = params_of(text, 32, 32, 1);
    run(&a, rig.engine, &p);
    run(&b, rig.engine, &q);
    assert_int_equal(atomic_load(&rig.engine->cache->misses), 1);
    assert_int_equal(sscanf(a.warning, "the last %*d tokens of the prompt were %100[^\n]", cut), 1);
    assert_string_equal(cut, "cut off, 507 is the limit");
    png_read_init(&x, a.image[0].png, a.image[0].size);
    png_read_init(&y, b.image[0].png, b.image[0].size);
    assert_memory_equal(x.rgb, y.rgb, 32 * 32 * 3);
    png_read_fini(&x);
    png_read_fini(&y);
    kr_params_fini(&p);
    kr_params_fini(&q);
    client_fini(&a);
    client_fini(&b);
    rig_fini(&rig);
}

/* ------------------------------------------------------------------------------- cancel ------- */

static void test_cancel_everywhere(void **state)
{
    static const struct {
        const char *stage;
        int step;
    } moments[] = {{"encode", 0},  {"encode", 1}, {"denoise", 0}, {"denoise", 2},
                   {"denoise", 3}, {"decode", 0}, {"decode", 1}};
    struct rig rig;
    struct client before = {0}, after = {0};
    struct kr_params p = guided();

    (void)state;
    open_set(&rig);
    run(&before, rig.engine, &p);
    for (size_t i = 0; i < sizeof(moments) / sizeof(*moments); i++) {
        struct client client = {.cancel_stage = moments[i].stage, .cancel_step = moments[i].step};

        cache_fini(rig.engine->cache); /* so that there is something to encode */
        assert_int_equal(client_run(&client, rig.engine, &p), -1);
        assert_int_equal(client.err.code, KR_CANCELLED);
        assert_int_equal(client.images, 0);
        assert_string_equal(client.tick[client.ticks - 1].stage, moments[i].stage);
        assert_int_equal(client.tick[client.ticks - 1].step, moments[i].step);
        client_fini(&client);
    }
    run(&after, rig.engine, &p);
    assert_same_image(&before, 0, &after, 0);
    kr_params_fini(&p);
    client_fini(&before);
    client_fini(&after);
    rig_fini(&rig);
}

static void test_cancel_before_start(void **state)
{
    struct rig rig;
    struct client client = {0};
    struct kr_params p = guided();

    (void)state;
    open_set(&rig);
    atomic_store(&client.cancel, 1);
    assert_int_equal(client_run(&client, rig.engine, &p), -1);
    assert_int_equal(client.err.code, KR_CANCELLED);
    kr_params_fini(&p);
    client_fini(&client);
    rig_fini(&rig);
}

static void *cancel_soon(void *arg)
{
    const struct timespec pause = {0, 100 * 1000 * 1000};

    nanosleep(&pause, NULL);
    atomic_store((atomic_int *)arg, 1);
    return NULL;
}

/* From another thread, in the middle of work. */
static void test_cancel_within_a_step(void **state)
{
    struct rig rig;
    struct client client = {0};
    struct kr_params p = params_of("tulips", 256, 256, 200);
    pthread_t thread;

    (void)state;
    open_set(&rig);
    assert_int_equal(pthread_create(&thread, NULL, cancel_soon, &client.cancel), 0);
    assert_int_equal(client_run(&client, rig.engine, &p), -1);
    pthread_join(thread, NULL);
    assert_int_equal(client.err.code, KR_CANCELLED);
    kr_params_fini(&p);
    client_fini(&client);
    rig_fini(&rig);
}

/* ------------------------------------------------------------------------------- threads ------ */

struct asker {
    const struct engine *engine;
    atomic_int stop;
    int rounds;
};

/* What the loop's thread does while the worker computes. */
static void *keep_asking(void *arg)
{
    struct asker *asker = arg;

    while (!atomic_load(&asker->stop)) {
        struct kr_params p = params_of("a cat", 16 + asker->rounds % 3 * 16, 48, 2);
        size_t count, limit;
        char warning[256];
        struct kr_err err;
        int32_t *ids;

        assert_int_equal(engine_resolve(asker->engine, &p, warning, sizeof(warning), &err), 0);
        assert_int_equal(engine_tokens(asker->engine, "a cat", 5, &ids, &count, &limit, &err), 0);
        free(ids);
        free(engine_describe(asker->engine, (enum engine_topic)(asker->rounds++ % 3)));
        kr_params_fini(&p);
    }
    return NULL;
}

static void test_questions_during_a_job(void **state)
{
    struct rig rig;
    struct client alone = {0}, asked = {0};
    struct kr_params p = params_of("tulips", 64, 64, 20), q = params_of("tulips", 64, 64, 20);
    struct asker asker = {0};
    pthread_t thread;

    (void)state;
    open_set(&rig);
    run(&alone, rig.engine, &p);
    asker.engine = rig.engine;
    assert_int_equal(pthread_create(&thread, NULL, keep_asking, &asker), 0);
    run(&asked, rig.engine, &q);
    atomic_store(&asker.stop, 1);
    pthread_join(thread, NULL);
    assert_same_image(&alone, 0, &asked, 0);
    kr_params_fini(&p);
    kr_params_fini(&q);
    client_fini(&alone);
    client_fini(&asked);
    rig_fini(&rig);
}

/* ------------------------------------------------------------------------------- progress ----- */

static void test_progress(void **state)
{
    struct rig rig;
    struct client client = {0};
    struct kr_params p = guided();
    int at = 0;

    (void)state;
    open_set(&rig);
    kr_params_set_int(&p, KR_F_COUNT, 2, NULL);
    run(&client, rig.engine, &p);
    assert_int_equal(client.ticks, 2 + 2 * (1 + 3 + 2));
    for (; at < 2; at++)
        assert_string_equal(client.tick[at].stage, "encode");
    for (int image = 0; image < 2; image++) {
        for (int step = 0; step <= 3; step++, at++) {
            assert_string_equal(client.tick[at].stage, "denoise");
            assert_int_equal(client.tick[at].image, image);
            assert_int_equal(client.tick[at].step, step);
            assert_int_equal(client.tick[at].steps, 3);
            assert_int_equal(client.tick[at].count, 2);
        }
        for (int step = 0; step < 2; step++, at++)
            assert_string_equal(client.tick[at].stage, "decode");
    }
    assert_true(client.tick[0].remaining < 0); /* nothing is known yet */
    for (int i = 4; i < client.ticks; i++) {
        assert_true(client.tick[i].remaining >= 0);
        assert_true(client.tick[i].elapsed >= client.tick[i - 1].elapsed);
    }
    assert_true(client.tick[client.ticks - 1].remaining == 0);
    assert_true(client.times.encode > 0 && client.times.denoise > 0 && client.times.decode > 0);
    kr_params_fini(&p);
    client_fini(&client);
    rig_fini(&rig);
}

/* -------------------------------------------------------------------------------- faults ------ */

static void check_nan(const char *file, const char *tensor, const char *want)
{
    char folder[64];
    struct rig rig;
    struct client client = {0};
    struct kr_params p = guided();

    files_copy(SET, folder);
    files_plant_nan(folder, file, tensor);
    rig_init(&rig, folder);
    rig_open(&rig);
    if (client_run(&client, rig.engine, &p) == 0)
        fail_msg("NaN in %s went unnoticed", tensor);
    assert_int_equal(client.err.code, KR_NOT_FINITE);
    if (!strstr(client.err.text, want))
        fail_msg("want \"%s\" in: %s", want, client.err.text);
    assert_int_equal(client.images, 0);
    kr_params_fini(&p);
    client_fini(&client);
    rig_fini(&rig);
    files_remove(folder);
}

static void test_nan(void **state)
{
    (void)state;
    check_nan("te.safetensors", "model.layers.3.mlp.up_proj.weight", "encode: the text encoder");
    check_nan("dit.safetensors", "txtmlp.3.weight", "encode: the refined text");
    check_nan("dit.safetensors", "blocks.1.mlp.up.weight", "denoise, step 1 of 3: the velocity");
    check_nan("vae.safetensors", "decoder.head.2.weight", "decode: the decoded picture");
}

static void test_client_refuses(void **state)
{
    struct rig rig;
    struct client client = {.refuse_image = 1};
    struct kr_params p = guided();

    (void)state;
    open_set(&rig);
    assert_int_equal(client_run(&client, rig.engine, &p), -1);
    assert_int_equal(client.err.code, KR_IO);
    assert_string_equal(client.err.text, "the client is full");
    kr_params_fini(&p);
    client_fini(&client);
    rig_fini(&rig);
}

/* Someone writes to a model file while the daemon runs. */
static void test_changed_file(void **state)
{
    char folder[64], path[128];
    struct rig rig;
    struct client client = {0};
    struct kr_params p = guided();

    (void)state;
    files_copy(SET, folder);
    rig_init(&rig, folder);
    rig_open(&rig);
    snprintf(path, sizeof(path), "%s/dit.safetensors", folder);
    assert_int_equal(truncate(path, 100000), 0);
    assert_int_equal(client_run(&client, rig.engine, &p), -1);
    assert_int_equal(client.err.code, KR_BAD_FILE);
    assert_non_null(strstr(client.err.text, "dit.safetensors"));
    kr_params_fini(&p);
    client_fini(&client);
    rig_fini(&rig);
    files_remove(folder);
}

/* --------------------------------------------------------------------------------- trace ------ */

static bool exists(const struct rig *rig, const char *name)
{
    char path[700];
    struct stat st;

    snprintf(path, sizeof(path), "%s/%s", rig->trace, name);
    return stat(path, &st) == 0;
}

static void test_trace_of_a_series(void **state)
{
    struct rig rig;
    struct client first = {.id = 12}, second = {.id = 12}, third = {.id = 13};
    struct kr_params p = guided(), q = guided(), r = guided();

    (void)state;
    rig_init(&rig, SET);
    rig_trace(&rig);
    rig_open(&rig);
    run(&first, rig.engine, &p);
    assert_true(exists(&rig, "12/velocity_02.npy"));
    assert_true(exists(&rig, "12/conditioning_negative.npy"));
    kr_params_set_int(&q, KR_F_STEPS, 1, NULL); /* the same number again: nothing stale is left */
    kr_params_set_real(&q, KR_F_CFG, 0, NULL);
    run(&second, rig.engine, &q);
    assert_true(exists(&rig, "12/velocity_00.npy"));
    assert_false(exists(&rig, "12/velocity_01.npy"));
    assert_false(exists(&rig, "12/latent_02.npy"));
    assert_false(exists(&rig, "12/conditioning_negative.npy"));
    kr_params_set_int(&r, KR_F_COUNT, 2, NULL);
    run(&third, rig.engine, &r); /* the prompts come from the cache, their taps with them */
    assert_true(exists(&rig, "13/0/conditioning.npy"));
    assert_true(exists(&rig, "13/1/decoded.npy"));
    kr_params_fini(&p);
    kr_params_fini(&q);
    kr_params_fini(&r);
    client_fini(&first);
    client_fini(&second);
    client_fini(&third);
    rig_fini(&rig);
}

static void test_trace_that_fails(void **state)
{
    struct rig rig;
    struct client client = {0};
    struct kr_params p = guided();
    char path[700];

    (void)state;
    rig_init(&rig, SET);
    rig_trace(&rig);
    rig_open(&rig);
    snprintf(path, sizeof(path), "%s/1", rig.trace);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof(path), "%s/1/sigmas.npy", rig.trace);
    assert_int_equal(mkdir(path, 0700), 0); /* in the way of a file, for root as well */
    assert_int_equal(client_run(&client, rig.engine, &p), -1);
    assert_int_equal(client.err.code, KR_IO);
    assert_non_null(strstr(client.err.text, "sigmas.npy"));
    kr_params_fini(&p);
    client_fini(&client);
    rig_fini(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_twice),
        cmocka_unit_test(test_series_and_text),
        cmocka_unit_test(test_chunk_of_defaults),
        cmocka_unit_test(test_bands),
        cmocka_unit_test(test_residencies_and_threads),
        cmocka_unit_test(test_long_prompts),
        cmocka_unit_test(test_cancel_everywhere),
        cmocka_unit_test(test_cancel_before_start),
        cmocka_unit_test(test_cancel_within_a_step),
        cmocka_unit_test(test_questions_during_a_job),
        cmocka_unit_test(test_progress),
        cmocka_unit_test(test_nan),
        cmocka_unit_test(test_client_refuses),
        cmocka_unit_test(test_changed_file),
        cmocka_unit_test(test_trace_of_a_series),
        cmocka_unit_test(test_trace_that_fails),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
