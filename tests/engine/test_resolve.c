/* SPDX-License-Identifier: Apache-2.0
 *
 * Which value counts: the layers of defaults, the dialects' own, mu and its line, rounding, seeds,
 * limits, and what is said about it.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/engine/internal.h"
#include "tests/engine/rig.h"

#define SET "tests/golden/scaled"

/* A rig with small pictures as the profile's default, so that each plan is quick. */
static void prepare(struct rig *rig, const char *variant)
{
    rig_init(rig, SET);
    rig->config.variant = variant;
    kr_params_set_int(&rig->config.profile_defaults, KR_F_WIDTH, 64, NULL);
    kr_params_set_int(&rig->config.profile_defaults, KR_F_HEIGHT, 32, NULL);
}

static struct kr_params request(void)
{
    struct kr_params p = {0};

    kr_params_set_text(&p, KR_F_PROMPT, "a cat", 5, NULL);
    return p;
}

/* Resolves, failing the test if that fails; returns the warning. */
static const char *resolve(const struct rig *rig, struct kr_params *p)
{
    static char warning[512];
    struct kr_err err;

    if (engine_resolve(rig->engine, p, warning, sizeof(warning), &err) < 0)
        fail_msg("%s", err.text);
    return warning;
}

static struct kr_err refused(const struct rig *rig, struct kr_params *p)
{
    char warning[512];
    struct kr_err err;

    assert_int_equal(engine_resolve(rig->engine, p, warning, sizeof(warning), &err), -1);
    return err;
}

static void test_variants(void **state)
{
    struct rig rig;
    struct kr_params p = request();

    (void)state;
    prepare(&rig, "turbo");
    rig_open(&rig);
    assert_string_equal(resolve(&rig, &p), "");
    assert_int_equal(p.steps, 8);
    assert_true(p.cfg == 0 && p.mu == 1.15);
    assert_false(kr_has(&p, KR_F_SHIFT_Y1));
    assert_int_equal(p.rng, KR_RNG_CUDA);
    assert_int_equal(p.dialect, KR_DIALECT_KREA);
    assert_int_equal(p.count, 1);
    assert_string_equal(p.negative, "");
    kr_params_fini(&p);
    rig_fini(&rig);

    p = request();
    prepare(&rig, "raw");
    rig_open(&rig);
    resolve(&rig, &p);
    assert_int_equal(p.steps, 52);
    assert_true(p.cfg == 3.5);
    assert_true(fabs(p.mu - (0.5 + (8 - 256) * 0.65 / 6144)) < 1e-12); /* 4 x 2 tokens */
    kr_params_fini(&p);
    rig_fini(&rig);
}

/* One value from each layer, the higher one winning. */
static void test_layers(void **state)
{
    struct rig rig;
    struct kr_params p = request();

    (void)state;
    prepare(&rig, "turbo");
    kr_params_set_int(&rig.config.profile_defaults, KR_F_STEPS, 5, NULL);
    kr_params_set_int(&rig.config.generation_defaults, KR_F_STEPS, 6, NULL);
    kr_params_set_real(&rig.config.profile_defaults, KR_F_CFG, 1, NULL);
    kr_params_set_text(&rig.config.generation_defaults, KR_F_NEGATIVE, "fog", 3, NULL);
    kr_params_set_int(&p, KR_F_HEIGHT, 48, NULL);
    rig_open(&rig);
    kr_params_fini(&rig.config.generation_defaults); /* the engine has its own copy */
    resolve(&rig, &p);
    assert_int_equal(p.height, 48); /* request */
    assert_int_equal(p.width, 64);  /* profile */
    assert_int_equal(p.steps, 5);   /* profile before [generation] */
    assert_true(p.cfg == 1);
    assert_string_equal(p.negative, "fog"); /* [generation] */
    assert_true(p.mu == 1.15);              /* variant */
    kr_params_fini(&p);
    rig_fini(&rig);
}

static void test_comfyui(void **state)
{
    struct rig rig;
    struct kr_params p = request(), q = request();

    (void)state;
    prepare(&rig, "raw");
    rig_open(&rig);
    kr_params_set_text(&p, KR_F_DIALECT, "comfyui", 7, NULL);
    resolve(&rig, &p);
    assert_true(p.mu == 1.15);
    assert_int_equal(p.rng, KR_RNG_CPU);
    kr_params_set_text(&q, KR_F_DIALECT, "comfyui", 7, NULL);
    kr_params_set_text(&q, KR_F_RNG, "cuda", 4, NULL);
    kr_params_set_real(&q, KR_F_MU, 0.7, NULL);
    resolve(&rig, &q);
    assert_true(q.mu == 0.7);
    assert_int_equal(q.rng, KR_RNG_CUDA);
    kr_params_fini(&p);
    kr_params_fini(&q);
    rig_fini(&rig);
}

/* Whoever sets an end of mu's line means the line, over any mu from below. */
static void test_mu_and_its_line(void **state)
{
    struct rig rig;
    struct kr_params p = request(), q = request(), r = request();

    (void)state;
    prepare(&rig, "turbo");
    kr_params_set_real(&rig.config.profile_defaults, KR_F_SHIFT_Y2, 2, NULL);
    kr_params_set_real(&rig.config.generation_defaults, KR_F_MU, 3, NULL);
    rig_open(&rig);
    assert_string_equal(resolve(&rig, &p), "");
    assert_true(fabs(p.mu - (0.5 + (8 - 256) * 1.5 / 6144)) < 1e-12);
    kr_params_set_real(&q, KR_F_MU, 0.9, NULL);
    assert_string_equal(resolve(&rig, &q), "");
    assert_true(q.mu == 0.9);
    assert_false(kr_has(&q, KR_F_SHIFT_Y2));
    kr_params_set_real(&r, KR_F_MU, 0.9, NULL);
    kr_params_set_real(&r, KR_F_SHIFT_Y1, 0.1, NULL);
    assert_string_equal(resolve(&rig, &r), "mu is given, so shift_y1 and shift_y2 have no effect");
    assert_true(r.mu == 0.9);
    kr_params_fini(&p);
    kr_params_fini(&q);
    kr_params_fini(&r);
    rig_fini(&rig);
}

static void test_rounding(void **state)
{
    struct rig rig;
    struct kr_params p = request();

    (void)state;
    prepare(&rig, "turbo");
    rig_open(&rig);
    kr_params_set_int(&p, KR_F_WIDTH, 65, NULL);
    kr_params_set_int(&p, KR_F_HEIGHT, 47, NULL);
    assert_string_equal(resolve(&rig, &p),
                        "width 65 was rounded up to 80, a multiple of 16; height "
                        "47 was rounded up to 48, a multiple of 16");
    assert_int_equal(p.width, 80);
    assert_int_equal(p.height, 48);
    kr_params_fini(&p);
    rig_fini(&rig);
}

static void test_seeds(void **state)
{
    struct rig rig;
    struct kr_params p = request(), q = request(), r = request();
    struct kr_err err;

    (void)state;
    prepare(&rig, "turbo");
    rig_open(&rig);
    resolve(&rig, &p);
    kr_params_set_int(&q, KR_F_SEED, -1, NULL);
    resolve(&rig, &q);
    assert_in_range(p.seed, 0, UINT32_MAX);
    assert_in_range(q.seed, 0, UINT32_MAX);
    assert_true(p.seed != q.seed);
    kr_params_set_int(&r, KR_F_SEED, INT64_MAX, NULL);
    resolve(&rig, &r);
    assert_true(r.seed == INT64_MAX);
    kr_params_set_int(&r, KR_F_COUNT, 2, NULL);
    err = refused(&rig, &r);
    assert_int_equal(err.code, KR_BAD_REQUEST);
    assert_non_null(strstr(err.text, "picture 2 of 2"));
    kr_params_fini(&p);
    kr_params_fini(&q);
    kr_params_fini(&r);
    rig_fini(&rig);
}

static void check_limit(const struct rig *rig, enum kr_field_id id, int64_t value, const char *want)
{
    struct kr_params p = request();
    struct kr_err err;

    kr_params_set_int(&p, id, value, NULL);
    err = refused(rig, &p);
    assert_int_equal(err.code, KR_BAD_REQUEST);
    if (!strstr(err.text, want))
        fail_msg("want \"%s\" in: %s", want, err.text);
    kr_params_fini(&p);
}

static void test_limits(void **state)
{
    struct rig rig;
    struct kr_params p = request(), none = {0};
    struct kr_err err;

    (void)state;
    prepare(&rig, "turbo");
    rig.config.max_steps = 20;
    rig.config.max_count = 2;
    rig.config.max_pixels = 64 * 64;
    rig_open(&rig);
    check_limit(&rig, KR_F_STEPS, 21, "steps is 21; the owner");
    check_limit(&rig, KR_F_COUNT, 3, "count is 3; the owner");
    check_limit(&rig, KR_F_HEIGHT, 65, "64x80 are 5120 pixels"); /* after rounding up */
    kr_params_set_int(&p, KR_F_STEPS, 20, NULL);
    kr_params_set_int(&p, KR_F_COUNT, 2, NULL);
    kr_params_set_int(&p, KR_F_HEIGHT, 64, NULL);
    resolve(&rig, &p);
    err = refused(&rig, &none);
    assert_int_equal(err.code, KR_BAD_REQUEST);
    assert_non_null(strstr(err.text, "prompt is missing"));
    kr_params_fini(&p);
    kr_params_fini(&none);
    rig_fini(&rig);
}

static void test_warnings(void **state)
{
    enum { LENGTH = 3000 };
    char text[LENGTH + 1];
    struct rig rig;
    struct kr_params p = request(), q = request();
    struct kr_err err;
    char tiny[8];

    (void)state;
    prepare(&rig, "turbo");
    rig_open(&rig);
    for (int i = 0; i < LENGTH; i++)
        text[i] = i % 2 ? ' ' : '7';
    text[LENGTH] = '\0';
    kr_params_set_text(&p, KR_F_NEGATIVE, text, LENGTH, NULL);
    assert_string_equal(resolve(&rig, &p), "negative has no effect while cfg is 0");
    kr_params_set_real(&q, KR_F_CFG, 2, NULL);
    kr_params_set_int(&q, KR_F_WIDTH, 70, NULL);
    kr_params_set_text(&q, KR_F_NEGATIVE, text, LENGTH, NULL);
    assert_non_null(
        strstr(resolve(&rig, &q), "width 70 was rounded up to 80, a multiple of 16; the last "));
    assert_non_null(strstr(resolve(&rig, &q), "of the negative prompt were cut off, 507 is"));
    assert_int_equal(engine_resolve(rig.engine, &q, tiny, sizeof(tiny), &err), 0);
    assert_int_equal(strlen(tiny), sizeof(tiny) - 1);
    kr_params_fini(&p);
    kr_params_fini(&q);
    rig_fini(&rig);
}

/* What a request comes to does not change when it is resolved again. */
static void test_settled(void **state)
{
    struct rig rig;
    struct kr_params p = request(), q;

    (void)state;
    prepare(&rig, "raw");
    rig_open(&rig);
    resolve(&rig, &p);
    assert_int_equal(kr_params_copy(&q, &p, NULL), 0);
    assert_string_equal(resolve(&rig, &q), "");
    assert_int_equal(p.set, q.set);
    assert_true(p.mu == q.mu && p.seed == q.seed && p.cfg == q.cfg);
    kr_params_fini(&p);
    kr_params_fini(&q);
    rig_fini(&rig);
}

static void test_tokens(void **state)
{
    struct rig rig;
    struct kr_err err;
    int32_t *ids;
    size_t count, limit;

    (void)state;
    prepare(&rig, "turbo");
    rig_open(&rig);
    assert_int_equal(engine_tokens(rig.engine, "1 2", 3, &ids, &count, &limit, &err), 0);
    assert_true(count >= 2);
    assert_int_equal(limit, 507);
    free(ids);
    assert_int_equal(engine_tokens(rig.engine, "\xff", 1, &ids, &count, &limit, &err), -1);
    rig_fini(&rig);
    prepare(&rig, "turbo");
    kr_params_set_text(&rig.config.profile_defaults, KR_F_DIALECT, "comfyui", 7, NULL);
    rig_open(&rig);
    assert_int_equal(engine_tokens(rig.engine, "", 0, &ids, &count, &limit, &err), 0);
    assert_int_equal(count, 0);
    assert_int_equal(limit, 4096);
    free(ids);
    rig_fini(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_variants), cmocka_unit_test(test_layers),
        cmocka_unit_test(test_comfyui),  cmocka_unit_test(test_mu_and_its_line),
        cmocka_unit_test(test_rounding), cmocka_unit_test(test_seeds),
        cmocka_unit_test(test_limits),   cmocka_unit_test(test_warnings),
        cmocka_unit_test(test_settled),  cmocka_unit_test(test_tokens),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
