/* SPDX-License-Identifier: Apache-2.0
 *
 * Pictures: eight bits as each program rounds them, and the PNG read back with libpng, its pixels,
 * its texts and the kind of chunk that holds each.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "daemon/engine/infotext.h"
#include "daemon/engine/pixels.h"
#include "daemon/engine/pngfile.h"
#include "tests/engine/png_read.h"

static void encode(const uint8_t *rgb, int width, int height, const struct pngfile_text *texts,
                   size_t count, void **data, size_t *size)
{
    struct kr_err err;

    const struct pngfile picture = {
        .rgb = rgb, .width = width, .height = height, .texts = texts, .text_count = count};

    if (pngfile_encode(&picture, data, size, &err) < 0)
        fail_msg("%s", err.text);
}

static void test_pixels_survive(void **state)
{
    enum { W = 37, H = 21 };
    uint8_t rgb[W * H * 3];
    struct png_read read;
    void *data;
    size_t size;

    (void)state;
    for (size_t i = 0; i < sizeof(rgb); i++)
        rgb[i] = (uint8_t)(i * 2654435761u >> 13);
    encode(rgb, W, H, NULL, 0, &data, &size);
    png_read_init(&read, data, size);
    assert_int_equal(read.width, W);
    assert_int_equal(read.height, H);
    assert_memory_equal(read.rgb, rgb, sizeof(rgb));
    png_read_fini(&read);
    free(data);
}

static void test_texts(void **state)
{
    static const struct pngfile_text texts[] = {
        {"ascii", "a fox\nSteps: 8"},
        {"latin", "\xc3\xbc\xc3\xa9 \xc2\xa9"},                /* what Latin-1 has */
        {"wide", "\xe6\x97\xa5\xe6\x9c\xac \xf0\x9f\xa6\x8a"}, /* what it has not */
        {"control", "a\x01\tb"},
        {"empty", ""},
    };
    static const char *const chunks[] = {"tEXt", "tEXt", "iTXt", "iTXt", "tEXt"};
    const uint8_t rgb[3] = {1, 2, 3};
    struct png_read read;
    void *data;
    size_t size;

    (void)state;
    encode(rgb, 1, 1, texts, 5, &data, &size);
    png_read_init(&read, data, size);
    for (int i = 0; i < 5; i++) {
        assert_string_equal(png_read_text(&read, texts[i].keyword), texts[i].text);
        assert_string_equal(png_read_chunk(&read, texts[i].keyword), chunks[i]);
    }
    png_read_fini(&read);
    free(data);
}

static void test_same_bytes(void **state)
{
    static const struct pngfile_text text = {"k", "v"};
    uint8_t rgb[64 * 64 * 3] = {0};
    void *a, *b;
    size_t a_size, b_size;

    (void)state;
    encode(rgb, 64, 64, &text, 1, &a, &a_size);
    encode(rgb, 64, 64, &text, 1, &b, &b_size);
    assert_int_equal(a_size, b_size);
    assert_memory_equal(a, b, a_size);
    free(a);
    free(b);
}

/* decoder output -> level */
static void test_rounding(void **state)
{
    static const float x[] = {-1, -2, 1, 2, 0, 0.99f, -0.5f, 0.5f};
    static const uint8_t krea[] = {0, 0, 255, 255, 127, 253, 63, 191};
    static const uint8_t comfyui[] = {0, 0, 255, 255, 127, 253, 63, 191};

    (void)state;
    for (int i = 0; i < 8; i++) {
        float planes[3] = {x[i], x[i], x[i]};
        uint8_t rgb[3];

        pixels_from_planes(KR_DIALECT_KREA, planes, 1, 0, 1, rgb);
        assert_int_equal(rgb[0], krea[i]);
        pixels_from_planes(KR_DIALECT_COMFYUI, planes, 1, 0, 1, rgb);
        assert_int_equal(rgb[2], comfyui[i]);
    }
}

/* What bfloat16 does on the way: 0.305 is 0.65234375 of the range, 166.348 levels, and bfloat16
 * has no number between 166 and 167. And 0.701 goes up where float32 is cut off. */
static void test_bf16_on_the_way(void **state)
{
    const float planes[6] = {0.305f, 0.701f, 0.305f, 0.701f, 0.305f, 0.701f};
    uint8_t rgb[6];

    (void)state;
    pixels_from_planes(KR_DIALECT_KREA, planes, 2, 0, 2, rgb);
    assert_int_equal(rgb[0], 166);
    assert_int_equal(rgb[3], 217);
    pixels_from_planes(KR_DIALECT_COMFYUI, planes, 2, 0, 2, rgb);
    assert_int_equal(rgb[0], 166);
    assert_int_equal(rgb[3], 216);
}

static struct kr_params example(void)
{
    return (struct kr_params){.set = (1u << KR_FIELDS) - 1,
                              .prompt = (char *)(uintptr_t) "a \"fox\"\n\xf0\x9f\xa6\x8a",
                              .negative = (char *)(uintptr_t) "blur",
                              .width = 512,
                              .height = 768,
                              .steps = 8,
                              .seed = 40,
                              .count = 3,
                              .preview = 2,
                              .cfg = 3.5,
                              .mu = 0.1 + 0.2,
                              .shift_y1 = 0.5,
                              .shift_y2 = 1.15,
                              .rng = KR_RNG_CPU,
                              .dialect = KR_DIALECT_COMFYUI,
                              .detach = 1};
}

static const struct origin origin = {.profile = "mine",
                                     .architecture = "krea2",
                                     .variant = "raw",
                                     .diffusion_model = "krea2:raw,v1.safetensors",
                                     .text_encoder = "te.safetensors",
                                     .vae = "vae.safetensors",
                                     .tokenizer = "tok"};

static void test_kread_text(void **state)
{
    struct kr_params p = example();
    char *text = infotext_kread(&origin, &p, 42);
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, NULL);

    (void)state;
    assert_non_null(root);
    assert_string_equal(json_string_value(json_object_get(root, "prompt")), p.prompt);
    assert_string_equal(json_string_value(json_object_get(root, "negative")), "blur");
    assert_int_equal(json_integer_value(json_object_get(root, "seed")), 42);
    assert_int_equal(json_integer_value(json_object_get(root, "count")), 1);
    assert_true(json_real_value(json_object_get(root, "mu")) == 0.1 + 0.2);
    assert_string_equal(json_string_value(json_object_get(root, "rng")), "cpu");
    assert_string_equal(json_string_value(json_object_get(root, "dialect")), "comfyui");
    assert_null(json_object_get(root, "preview"));
    assert_null(json_object_get(root, "detach"));
    assert_string_equal(json_string_value(json_object_get(root, "vae")), "vae.safetensors");
    assert_string_equal(json_string_value(json_object_get(root, "version")), KR_VERSION);
    for (const char *c = text; *c; c++)
        assert_in_range((unsigned char)*c, 0x20, 0x7e);
    json_decref(root);
    free(text);
}

static void test_parameters_text(void **state)
{
    struct kr_params p = example();
    char *text;

    (void)state;
    text = infotext_parameters(&origin, &p, 42);
    assert_string_equal(text,
                        "a \"fox\"\n\xf0\x9f\xa6\x8a\nNegative prompt: blur\n"
                        "Steps: 8, Sampler: Euler, Schedule type: Simple, CFG scale: 3.5, "
                        "Seed: 42, Size: 512x768, Model: krea2rawv1, Version: kread " KR_VERSION);
    free(text);
    p.negative = (char *)(uintptr_t) "";
    text = infotext_parameters(&origin, &p, 42);
    assert_null(strstr(text, "Negative"));
    free(text);
}

/* A mu that no request may say is left to the line's ends to give again. */
static void test_mu_out_of_range(void **state)
{
    struct kr_params p = example();
    char *text;

    (void)state;
    p.mu = 28.2;
    text = infotext_kread(&origin, &p, 1);
    assert_null(strstr(text, "\"mu\""));
    assert_non_null(strstr(text, "\"shift_y2\":1.15"));
    free(text);
}

static char *written(void (*write)(struct jsonout *))
{
    char *text;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    struct jsonout j;

    jsonout_begin(&j, out);
    write(&j);
    fclose(out);
    return text;
}

static void write_everything(struct jsonout *j)
{
    jsonout_open(j, NULL, '{');
    jsonout_text(j, "t", "\"\\\n\t\x01/\x7f\xc3\xbc\xf0\x9f\xa6\x8a");
    jsonout_text(j, "bad", "\xff\xc3|\xed\xa0\x80|\xc0\x80|\xf8");
    jsonout_text(j, "null", NULL);
    jsonout_int(j, "i", INT64_MIN);
    jsonout_real(j, "r", 0.1);
    jsonout_real(j, "nan", 0.0 / 0.0);
    jsonout_open(j, "a", '[');
    jsonout_bool(j, NULL, true);
    jsonout_bool(j, NULL, false);
    jsonout_close(j, ']');
    jsonout_open(j, "o", '{');
    jsonout_close(j, '}');
    jsonout_close(j, '}');
}

static void test_json(void **state)
{
    char *text = written(write_everything);

    (void)state;
    assert_string_equal(text,
                        "{\"t\":\"\\\"\\\\\\n\\t\\u0001/\\u007f\\u00fc\\ud83e\\udd8a\","
                        "\"bad\":\"\\ufffd\\ufffd|\\ufffd\\ufffd\\ufffd|\\ufffd\\ufffd|\\ufffd\","
                        "\"null\":null,\"i\":-9223372036854775808,\"r\":0.1,\"nan\":null,"
                        "\"a\":[true,false],\"o\":{}}");
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pixels_survive),
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_same_bytes),
        cmocka_unit_test(test_rounding),
        cmocka_unit_test(test_bf16_on_the_way),
        cmocka_unit_test(test_kread_text),
        cmocka_unit_test(test_parameters_text),
        cmocka_unit_test(test_mu_out_of_range),
        cmocka_unit_test(test_json),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
