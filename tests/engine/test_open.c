/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening and reporting: profiles whose parts do not fit are refused in one sentence that names
 * file and tensor, and what fits is described exactly.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "tests/engine/files.h"
#include "tests/engine/rig.h"

#define SCALED   "tests/golden/scaled"   /* text width 32 */
#define PREFIXED "tests/golden/prefixed" /* text width 48 */

static void assert_sentence(const struct kr_err *err, enum kr_code code, const char *want)
{
    if (err->code != code || !strstr(err->text, want))
        fail_msg("want %s and \"%s\" in %s: %s", kr_code_name(code), want, kr_code_name(err->code),
                 err->text);
    assert_null(strchr(err->text, '\n'));
}

/* Neither opens nor can be inspected, for the same reason. */
static void refuse(const struct rig *rig, enum kr_code code, const char *want)
{
    struct engine *engine = (struct engine *)1;
    struct kr_err err;
    FILE *out = fopen("/dev/null", "w");

    assert_int_equal(engine_open(&rig->config, &engine, &err), -1);
    assert_null(engine);
    assert_sentence(&err, code, want);
    assert_int_equal(engine_inspect(&rig->config, out, true, &err), -1);
    assert_sentence(&err, code, want);
    fclose(out);
}

static void test_settings(void **state)
{
    struct rig rig;
    struct engine *engine;
    struct kr_err err;

    (void)state;
    rig_init(&rig, SCALED);
    rig.config.architecture = "z-image";
    refuse(&rig, KR_BAD_CONFIG, "z-image is not supported yet");
    rig.config.architecture = "flux";
    refuse(&rig, KR_BAD_CONFIG, "there is no architecture flux");
    rig_init(&rig, SCALED);
    rig.config.variant = "medium";
    refuse(&rig, KR_BAD_CONFIG, "there is no variant medium of krea2; it is turbo or raw");
    rig_init(&rig, SCALED);
    rig.config.vae = NULL;
    refuse(&rig, KR_BAD_CONFIG, "profile test names no VAE; set vae");
    rig_init(&rig, SCALED);
    rig.config.tokenizer = "";
    refuse(&rig, KR_BAD_CONFIG, "profile test names no tokenizer");
    rig_init(&rig, SCALED);
    rig.config.device = ENGINE_DEVICE_CUDA;
    assert_int_equal(engine_open(&rig.config, &engine, &err), -1);
    assert_sentence(&err, KR_BAD_CONFIG,
                    "device cuda: this installation has no CUDA module (kread-cuda.so)");
}

static void test_missing_files(void **state)
{
    struct rig rig;

    (void)state;
    rig_init(&rig, SCALED);
    rig.config.diffusion_model = "/nowhere/krea2.safetensors";
    refuse(&rig, KR_BAD_CONFIG, "/nowhere/krea2.safetensors does not exist");
    rig_init(&rig, SCALED);
    rig.config.text_encoder = SCALED "/vae.safetensors";
    refuse(&rig, KR_BAD_FILE, "vae.safetensors");
    rig_init(&rig, SCALED);
    rig.config.tokenizer = "tests/golden";
    refuse(&rig, KR_BAD_FILE, "tests/golden");
}

static void test_parts_that_do_not_fit(void **state)
{
    struct rig rig;

    (void)state;
    rig_init(&rig, SCALED);
    rig.config.text_encoder = PREFIXED "/te.safetensors";
    refuse(&rig, KR_BAD_FILE,
           "te.safetensors: embed_tokens.weight is 48 wide, but dit.safetensors was made for 32");
    rig_init(&rig, SCALED);
    rig.config.vae = SCALED "/dit.safetensors";
    refuse(&rig, KR_BAD_FILE, "dit.safetensors");
}

static void test_tokenizer_that_does_not_fit(void **state)
{
    char folder[64];
    struct rig rig;

    (void)state;
    files_copy(SCALED, folder);
    files_replace(folder, "tokenizer/tokenizer_config.json", "<|im_start|>", "<|im_begin|>");
    rig_init(&rig, folder);
    refuse(&rig, KR_BAD_FILE, "<|im_start|> is not among the added tokens");
    files_remove(folder);
    files_copy(SCALED, folder);
    files_replace(folder, "tokenizer/tokenizer_config.json", " \"added_tokens_decoder\": {\n",
                  " \"added_tokens_decoder\": {\"443\": {\"content\": \"<|x|>\", "
                  "\"normalized\": false, \"special\": true},\n");
    rig_init(&rig, folder);
    refuse(&rig, KR_BAD_FILE,
           "go up to id 443, but embed_tokens.weight of te.safetensors has 443 rows");
    files_remove(folder);
}

static void test_damaged_vector(void **state)
{
    char folder[64];
    struct rig rig;
    struct engine *engine;
    struct kr_err err;

    (void)state;
    files_copy(SCALED, folder);
    files_plant_nan(folder, "dit.safetensors", "blocks.1.prenorm.scale");
    rig_init(&rig, folder);
    assert_int_equal(engine_open(&rig.config, &engine, &err), -1);
    assert_sentence(&err, KR_BAD_FILE, "blocks.1.prenorm.scale is NaN");
    files_remove(folder);
}

/* ------------------------------------------------------------------------------- reports ------ */

static int depth(const json_t *value)
{
    int most = 0;
    const char *key;
    json_t *child;
    size_t i;

    json_object_foreach((json_t *)(uintptr_t)value, key, child)
    {
        int d = depth(child);

        most = d > most ? d : most;
    }
    json_array_foreach(value, i, child)
    {
        int d = depth(child);

        most = d > most ? d : most;
    }
    return json_is_object(value) || json_is_array(value) ? most + 1 : 0;
}

static json_t *described(const struct engine *engine, enum engine_topic topic)
{
    char *text = engine_describe(engine, topic);
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, NULL);

    assert_non_null(root);
    assert_in_range(depth(root), 1, 4);
    free(text);
    return root;
}

static json_t *at(json_t *root, const char *a, const char *b, const char *c)
{
    json_t *value = json_object_get(root, a);

    value = b ? json_object_get(value, b) : value;
    value = c ? json_object_get(value, c) : value;
    if (!value)
        fail_msg("no %s.%s.%s", a, b ? b : "", c ? c : "");
    return value;
}

static void check_files(json_t *root)
{
    assert_string_equal(json_string_value(at(root, "diffusion_model", "file", NULL)),
                        "dit.safetensors");
    assert_string_equal(json_string_value(at(root, "text_encoder", "formats", NULL)),
                        "252 F8_E4M3 scaled, 146 BF16");
    assert_int_equal(json_integer_value(at(root, "text_encoder", "dims", "layers")), 36);
    assert_int_equal(json_integer_value(at(root, "diffusion_model", "dims", "width")), 128);
    assert_int_equal(json_integer_value(at(root, "diffusion_model", "dims", "kv_heads")), 2);
    assert_int_equal(json_integer_value(at(root, "vae", "dims", "channels")), 16);
    assert_int_equal(json_integer_value(at(root, "tokenizer", "vocabulary", NULL)), 443);
    assert_true(json_integer_value(at(root, "weights", "resident", NULL)) >
                json_integer_value(at(root, "weights", "cached", NULL)));
}

static char *inspected(const struct rig *rig, bool json)
{
    char *text;
    size_t size;
    struct kr_err err;
    FILE *out = open_memstream(&text, &size);

    if (engine_inspect(&rig->config, out, json, &err) < 0)
        fail_msg("%s", err.text);
    fclose(out);
    return text;
}

static void test_inspect(void **state)
{
    struct rig rig;
    json_t *root;
    char *text;

    (void)state;
    rig_init(&rig, SCALED);
    text = inspected(&rig, true);
    root = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    check_files(root);
    assert_string_equal(json_string_value(at(root, "vae", "path", NULL)),
                        SCALED "/vae.safetensors");
    json_decref(root);
    free(text);
    text = inspected(&rig, false);
    assert_non_null(strstr(text, "test (krea2, turbo)"));
    assert_non_null(strstr(text, SCALED "/dit.safetensors"));
    assert_non_null(strstr(text, "48 F8_E4M3 scaled (12 full precision)"));
    assert_non_null(strstr(text, "channels 16, base 4"));
    free(text);
}

static void test_describe(void **state)
{
    struct rig rig;
    json_t *root;

    (void)state;
    rig_init(&rig, SCALED);
    rig.config.device = ENGINE_DEVICE_AUTO;
    rig.config.residency = ENGINE_CACHED;
    rig.config.max_steps = 60;
    kr_params_set_int(&rig.config.profile_defaults, KR_F_WIDTH, 48, NULL);
    kr_params_set_int(&rig.config.profile_defaults, KR_F_HEIGHT, 32, NULL);
    rig_open(&rig);

    root = described(rig.engine, ENGINE_INSPECT);
    check_files(root);
    assert_null(json_object_get(json_object_get(root, "vae"), "path"));
    json_decref(root);

    root = described(rig.engine, ENGINE_PROFILE);
    assert_int_equal(json_integer_value(at(root, "defaults", "width", NULL)), 48);
    assert_int_equal(json_integer_value(at(root, "defaults", "steps", NULL)), 8);
    assert_string_equal(json_string_value(at(root, "defaults", "rng", NULL)), "cuda");
    assert_null(json_object_get(json_object_get(root, "defaults"), "prompt"));
    assert_int_equal(json_integer_value(at(root, "limits", "max_steps", NULL)), 60);
    assert_int_equal(json_integer_value(at(root, "limits", "prompt_tokens", NULL)), 507);
    json_decref(root);

    root = described(rig.engine, ENGINE_STATUS);
    assert_string_equal(json_string_value(at(root, "residency", NULL, NULL)), "cached");
    assert_non_null(strstr(json_string_value(at(root, "residency_why", NULL, NULL)),
                           "set by the configuration: the files take"));
    assert_non_null(strstr(json_string_value(at(root, "device", NULL, NULL)), "cpu"));
    assert_string_equal(json_string_value(at(root, "device_why", NULL, NULL)),
                        "chosen because the CUDA device can't be opened: this installation has no "
                        "CUDA module (kread-cuda.so); install the package kread-cuda, or build "
                        "kread where nvcc is");
    assert_true(json_integer_value(at(root, "memory", "default_job", NULL)) > 0);
    assert_int_equal(json_integer_value(at(root, "prompt_cache", "hits", NULL)), 0);
    json_decref(root);
    rig_fini(&rig);
}

static void test_status_after_a_job(void **state)
{
    struct rig rig;
    struct client client = {0};
    struct kr_params p = params_of("a cat", 32, 32, 1);
    json_t *root;

    (void)state;
    rig_init(&rig, SCALED);
    rig_open(&rig);
    assert_int_equal(client_run(&client, rig.engine, &p), 0);
    root = described(rig.engine, ENGINE_STATUS);
    assert_int_equal(json_integer_value(at(root, "memory", "job", NULL)), 0);
    assert_int_equal(json_integer_value(at(root, "memory", "last_peak", NULL)), client.times.peak);
    assert_int_equal(json_integer_value(at(root, "memory", "last_planned", NULL)),
                     client.times.peak); /* the plan was exact */
    assert_int_equal(json_integer_value(at(root, "prompt_cache", "entries", NULL)), 1);
    json_decref(root);
    kr_params_fini(&p);
    client_fini(&client);
    rig_fini(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_settings),
        cmocka_unit_test(test_missing_files),
        cmocka_unit_test(test_parts_that_do_not_fit),
        cmocka_unit_test(test_tokenizer_that_does_not_fit),
        cmocka_unit_test(test_damaged_vector),
        cmocka_unit_test(test_inspect),
        cmocka_unit_test(test_describe),
        cmocka_unit_test(test_status_after_a_job),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
