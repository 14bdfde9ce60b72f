/* SPDX-License-Identifier: Apache-2.0
 *
 * The record of a detached job: what is written is read back, and nothing else is.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "proto/record.h"

static struct kr_record sample(void)
{
    struct kr_record r = {.job = 7,
                          .uid = 1000,
                          .state = KR_RECORD_FAILED,
                          .attempts = 2,
                          .made = 1,
                          .fetched = UINT64_C(0x8000000000000001),
                          .client = strdup("a client"),
                          .profile = strdup("krea2-turbo"),
                          .submitted_at = 1.5,
                          .started_at = 2.5,
                          .finished_at = 1e9,
                          .encode = 0.125,
                          .denoise = 3,
                          .decode = 4,
                          .png = 5,
                          .peak = INT64_MAX,
                          .error = {KR_IO, "the disk is full"}};
    struct kr_params *p = &r.params;
    assert_int_equal(kr_params_set_text(p, KR_F_PROMPT, "h\xc3\xa4user", 7, NULL), 0);
    assert_int_equal(kr_params_set_text(p, KR_F_NEGATIVE, "", 0, NULL), 0);
    static const struct {
        enum kr_field_id id;
        int64_t value;
    } numbers[] = {{KR_F_WIDTH, 1024}, {KR_F_HEIGHT, 512}, {KR_F_STEPS, 8},
                   {KR_F_SEED, 42},    {KR_F_COUNT, 64},   {KR_F_PREVIEW, 2}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        assert_int_equal(kr_params_set_int(p, numbers[i].id, numbers[i].value, NULL), 0);
    assert_int_equal(kr_params_set_real(p, KR_F_CFG, 3.5, NULL), 0);
    assert_int_equal(kr_params_set_text(p, KR_F_RNG, "cpu", 3, NULL), 0);
    assert_int_equal(kr_params_set_bool(p, KR_F_DETACH, true, NULL), 0);
    return r;
}

static char *written(const struct kr_record *r, size_t *size)
{
    struct kr_out out;
    kr_out_init(&out);
    kr_record_write(&out, r);
    char *data = kr_out_take(&out, size);
    assert_non_null(data);
    return data;
}

static void comes_back_as_it_was(void **state)
{
    struct kr_record r = sample(), back;
    struct kr_err err;
    size_t size;
    (void)state;
    char *data = written(&r, &size);
    assert_int_equal(kr_record_read(&back, data, size, &err), 0);
    assert_int_equal(back.job, 7);
    assert_int_equal(back.uid, 1000);
    assert_int_equal(back.state, KR_RECORD_FAILED);
    assert_int_equal(back.attempts, 2);
    assert_int_equal(back.made, 1);
    assert_true(back.fetched == r.fetched);
    assert_string_equal(back.client, "a client");
    assert_string_equal(back.profile, "krea2-turbo");
    assert_true(back.submitted_at == 1.5 && back.started_at == 2.5 && back.finished_at == 1e9);
    assert_true(back.encode == 0.125 && back.denoise == 3 && back.decode == 4 && back.png == 5);
    assert_true(back.peak == INT64_MAX);
    assert_int_equal(back.error.code, KR_IO);
    assert_string_equal(back.error.text, "the disk is full");
    assert_int_equal(back.params.set, r.params.set);
    assert_string_equal(back.params.prompt, "h\xc3\xa4user");
    assert_string_equal(back.params.negative, "");
    assert_int_equal(back.params.width, 1024);
    assert_int_equal(back.params.seed, 42);
    assert_int_equal(back.params.count, 64);
    assert_true(back.params.cfg == 3.5);
    assert_int_equal(back.params.rng, KR_RNG_CPU);
    assert_int_equal(back.params.detach, 1);
    kr_record_fini(&back);
    kr_record_fini(&r);
    free(data);
}

/* The largest seed is one: images of a job never pass 2^63 - 1. */
static void takes_the_largest_seed(void **state)
{
    struct kr_record r = sample(), back;
    struct kr_err err;
    size_t size;
    (void)state;
    r.params.seed = INT64_MAX;
    for (int count = 1; count <= 2; count++) {
        r.params.count = count;
        char *data = written(&r, &size);
        assert_int_equal(kr_record_read(&back, data, size, &err), count == 1 ? 0 : -1);
        if (count == 1)
            kr_record_fini(&back);
        free(data);
    }
    kr_record_fini(&r);
}

/* Cut anywhere, longer by a byte, any bit flipped: refused as damaged. */
static void refuses_every_damage(void **state)
{
    struct kr_record r = sample(), back;
    struct kr_err err;
    size_t size;
    (void)state;
    char *data = written(&r, &size), *copy = malloc(size + 1);
    assert_non_null(copy);
    for (size_t n = 0; n < size; n++) {
        assert_int_equal(kr_record_read(&back, data, n, &err), -1);
        assert_int_equal(err.code, KR_BAD_FILE);
    }
    memcpy(copy, data, size);
    copy[size] = 0;
    assert_int_equal(kr_record_read(&back, copy, size + 1, &err), -1);
    for (size_t bit = 0; bit < size * 8; bit++) {
        memcpy(copy, data, size);
        copy[bit / 8] ^= (char)(1 << bit % 8);
        assert_int_equal(kr_record_read(&back, copy, size, &err), -1);
        assert_int_equal(err.code, KR_BAD_FILE);
        assert_null(back.client);
        assert_null(back.params.prompt);
    }
    free(copy);
    free(data);
    kr_record_fini(&r);
}

/* An envelope around a body that is no record of a job. */
static int read_body(const char *json, struct kr_err *err)
{
    struct kr_record back;
    struct kr_out body, out;
    size_t size;
    kr_out_init(&body);
    assert_int_equal(kr_out_json(&body, json, err), 0);
    kr_out_init(&out);
    kr_out_array(&out, 4);
    kr_out_text(&out, "kread job");
    kr_out_int(&out, KR_RECORD_VERSION);
    kr_out_int(&out, kr_crc32(body.data, body.size));
    kr_out_bytes(&out, body.data, body.size);
    char *data = kr_out_take(&out, &size);
    int rc = kr_record_read(&back, data, size, err);
    if (rc == 0)
        kr_record_fini(&back);
    free(data);
    kr_out_fini(&body);
    return rc;
}

#define NUMBERS                                                                                    \
    "\"job\": 1, \"uid\": 0, \"attempts\": 0, \"made\": 0, \"fetched\": 0, \"submitted_at\": 1, "  \
    "\"started_at\": 0, \"finished_at\": 0, \"encode\": 0, \"denoise\": 0, \"decode\": 0, "        \
    "\"png\": 0, \"peak\": 0"
#define PARAMS                                                                                     \
    "\"params\": {\"prompt\": \"x\", \"width\": 32, \"height\": 32, \"steps\": 1, \"seed\": 1, "   \
    "\"count\": 1}"

static void refuses_what_makes_no_sense(void **state)
{
    static const char *const bad[] = {
        "{}",
        "[]",
        "{" NUMBERS ", \"state\": 0}",
        "{" NUMBERS ", " PARAMS "}",
        "{" NUMBERS ", \"state\": 4, " PARAMS "}",
        "{" NUMBERS ", \"state\": -1, " PARAMS "}",
        "{" NUMBERS ", \"state\": 2, " PARAMS "}",
        "{" NUMBERS ", \"state\": 0, \"client\": 5, " PARAMS "}",
        "{" NUMBERS ", \"state\": 0, \"params\": {\"prompt\": \"x\"}}",
        "{" NUMBERS
        ", \"state\": 0, \"params\": {\"prompt\": \"x\", \"width\": 32, \"height\": 32, "
        "\"steps\": 0, \"seed\": 1, \"count\": 1}}",
        "{" NUMBERS
        ", \"state\": 0, \"params\": {\"prompt\": \"x\", \"width\": 32, \"height\": 32, "
        "\"steps\": 1, \"seed\": -1, \"count\": 1}}",
        "{" NUMBERS ", \"state\": 0, \"params\": {\"prompt\": \"x\", \"colour\": 32}}",
    };
    struct kr_err err;
    (void)state;
    assert_int_equal(read_body("{" NUMBERS ", \"state\": 0, " PARAMS "}", &err), 0);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(read_body(bad[i], &err), -1);
        assert_int_equal(err.code, KR_BAD_FILE);
    }
}

static void tells_a_later_version_from_damage(void **state)
{
    static const unsigned char later[] = "\x93\xa9kread job\x02\xc0";
    struct kr_record back;
    struct kr_err err;
    (void)state;
    assert_int_equal(kr_record_read(&back, later, sizeof later - 1, &err), -1);
    assert_int_equal(err.code, KR_BAD_FILE);
    assert_string_equal(err.text, "it has version 2, and this kread knows version 1");
}

/* Published check values of CRC-32. */
static void sums_as_png_does(void **state)
{
    (void)state;
    assert_int_equal(kr_crc32("123456789", 9), 0xcbf43926u);
    assert_int_equal(kr_crc32("IEND", 4), 0xae426082u);
    assert_int_equal(kr_crc32("", 0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(comes_back_as_it_was),
        cmocka_unit_test(takes_the_largest_seed),
        cmocka_unit_test(refuses_every_damage),
        cmocka_unit_test(refuses_what_makes_no_sense),
        cmocka_unit_test(tells_a_later_version_from_damage),
        cmocka_unit_test(sums_as_png_does),
    };
    return cmocka_run_group_tests_name("record", tests, NULL, NULL);
}
