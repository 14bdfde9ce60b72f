/* SPDX-License-Identifier: Apache-2.0
 *
 * The field table and its values: every bound from both sides, what is and is not a number, and
 * what the refusals say. Expected texts and values are written out here, not computed by the table.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "proto/message.h"
#include "proto/utf8.h"

static int parse(struct kr_params *p, enum kr_field_id id, const char *text, const char *says)
{
    struct kr_err err = {0};
    uint32_t before = p->set;
    int rc = kr_params_parse(p, id, text, &err);
    if (says != NULL) {
        assert_int_equal(rc, -1);
        assert_int_equal(err.code, KR_BAD_REQUEST);
        assert_int_equal(p->set, before);
        assert_string_equal(err.text, says);
    } else {
        assert_int_equal(rc, 0);
        assert_true(kr_has(p, id));
    }
    return rc;
}

static void the_table_is_whole(void **s)
{
    (void)s;
    static const char *const names[] = {"prompt",   "negative", "width",   "height",  "steps",
                                        "cfg",      "seed",     "count",   "mu",      "shift_y1",
                                        "shift_y2", "rng",      "dialect", "preview", "detach"};
    assert_int_equal(KR_FIELDS, 15);
    for (int i = 0; i < KR_FIELDS; i++) {
        const struct kr_field *f = &kr_fields[i];
        assert_string_equal(f->name, names[i]);
        assert_ptr_equal(kr_field_find(names[i], strlen(names[i])), f);
        assert_null(kr_field_find(names[i], strlen(names[i]) - 1));
        assert_true(f->help[0] && f->fallback[0] && f->min <= f->max);
        assert_null(strpbrk(f->help, "\n\t"));
        assert_int_equal(f->choices != NULL, f->type == KR_T_CHOICE);
    }
    assert_null(kr_field_find("", 0));
    assert_null(kr_field_find("Width", 5));
    assert_string_equal(kr_fields[KR_F_RNG].choices[KR_RNG_CUDA], "cuda");
    assert_string_equal(kr_fields[KR_F_RNG].choices[KR_RNG_CPU], "cpu");
    assert_string_equal(kr_fields[KR_F_DIALECT].choices[KR_DIALECT_KREA], "krea");
    assert_string_equal(kr_fields[KR_F_DIALECT].choices[KR_DIALECT_COMFYUI], "comfyui");
}

static void bounds_of_integers(void **s)
{
    (void)s;
    static const struct {
        enum kr_field_id id;
        const char *below, *min, *max, *above;
    } rows[] = {
        {KR_F_WIDTH, "15", "16", "8192", "8193"},
        {KR_F_HEIGHT, "15", "16", "8192", "8193"},
        {KR_F_STEPS, "0", "1", "1000", "1001"},
        {KR_F_SEED, "-2", "-1", "9223372036854775807", "9223372036854775808"},
        {KR_F_COUNT, "0", "1", "64", "65"},
        {KR_F_PREVIEW, "-1", "0", "1000", "1001"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kr_params p = {0};
        struct kr_err err;
        char text[64];
        assert_int_equal(kr_params_parse(&p, rows[i].id, rows[i].below, &err), -1);
        assert_int_equal(kr_params_parse(&p, rows[i].id, rows[i].above, &err), -1);
        assert_int_equal(p.set, 0);
        parse(&p, rows[i].id, rows[i].min, NULL);
        kr_params_format(&p, rows[i].id, text, sizeof text);
        assert_string_equal(text, rows[i].min);
        parse(&p, rows[i].id, rows[i].max, NULL);
        kr_params_format(&p, rows[i].id, text, sizeof text);
        assert_string_equal(text, rows[i].max);
        assert_int_equal(p.set, 1u << rows[i].id);
    }
}

static void bounds_of_reals(void **s)
{
    (void)s;
    static const struct {
        enum kr_field_id id;
        double min, max;
    } rows[] = {
        {KR_F_CFG, 0, 100}, {KR_F_MU, -10, 10}, {KR_F_SHIFT_Y1, -10, 10}, {KR_F_SHIFT_Y2, -10, 10}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kr_params p = {0};
        struct kr_err err;
        assert_int_equal(kr_params_set_real(&p, rows[i].id, nextafter(rows[i].min, -1e9), &err),
                         -1);
        assert_int_equal(kr_params_set_real(&p, rows[i].id, nextafter(rows[i].max, 1e9), &err), -1);
        assert_int_equal(kr_params_set_real(&p, rows[i].id, NAN, &err), -1);
        assert_int_equal(kr_params_set_real(&p, rows[i].id, INFINITY, &err), -1);
        assert_int_equal(kr_params_set_real(&p, rows[i].id, -INFINITY, &err), -1);
        assert_int_equal(p.set, 0);
        assert_int_equal(kr_params_set_real(&p, rows[i].id, rows[i].min, &err), 0);
        assert_int_equal(kr_params_set_real(&p, rows[i].id, rows[i].max, &err), 0);
        assert_int_equal(kr_params_set_int(&p, rows[i].id, 1, &err), 0);
    }
}

static void what_is_no_number(void **s)
{
    (void)s;
    static const char *const both[] = {
        "",    " ",   " 8",  "8 ",  "8x",    "x8",     "+8",       "--8",   "-",   "0x10",
        "1e",  "1e+", "nan", "inf", "NaN",   "-inf",   "infinity", "1_000", "1,5", "८",
        "8\n", ".",   "-.",  "e5",  "1.2.3", "nan(1)", "0x1p3",    "1d5",   "1f",  "1L"};
    static const char *const whole_only[] = {"1.0", "1e3", "8.", ".5"};
    static const char *const real[] = {"0",     "0.5",   ".5", "5.",     "1e1", "1E+1",
                                       "10e-1", "00.50", "-0", "1e-999", "100"};
    struct kr_params p = {0};
    struct kr_err err;
    for (size_t i = 0; i < sizeof both / sizeof *both; i++) {
        assert_int_equal(kr_params_parse(&p, KR_F_STEPS, both[i], &err), -1);
        assert_int_equal(kr_params_parse(&p, KR_F_CFG, both[i], &err), -1);
    }
    for (size_t i = 0; i < sizeof whole_only / sizeof *whole_only; i++) {
        assert_int_equal(kr_params_parse(&p, KR_F_STEPS, whole_only[i], &err), -1);
    }
    assert_int_equal(kr_params_parse(&p, KR_F_CFG, "1e999", &err), -1);
    assert_int_equal(kr_params_parse(&p, KR_F_STEPS, "18446744073709551624", &err), -1);
    assert_int_equal(kr_params_parse(&p, KR_F_SEED, "-9223372036854775809", &err), -1);
    assert_int_equal(p.set, 0);
    for (size_t i = 0; i < sizeof real / sizeof *real; i++) {
        parse(&p, KR_F_CFG, real[i], NULL);
    }
    parse(&p, KR_F_STEPS, "0008", NULL);
    assert_int_equal(p.steps, 8);
}

static void refusals_name_field_given_and_allowed(void **s)
{
    (void)s;
    struct kr_params p = {0};
    parse(&p, KR_F_STEPS, "8x", "steps is \"8x\"; it must be an integer from 1 to 1000");
    parse(&p, KR_F_WIDTH, "9000", "width is 9000; it must be an integer from 16 to 8192 pixels");
    parse(&p, KR_F_CFG, "-0.5", "cfg is -0.5; it must be a number from 0 to 100");
    parse(&p, KR_F_SEED, "9223372036854775808",
          "seed is \"9223372036854775808\"; it must be an integer from -1 to 9223372036854775807");
    parse(&p, KR_F_RNG, "CPU", "rng is \"CPU\"; it must be cuda or cpu");
    parse(&p, KR_F_DIALECT, "", "dialect is \"\"; it must be krea or comfyui");
    parse(&p, KR_F_DETACH, "maybe", "detach is \"maybe\"; it must be true or false");
    parse(&p, KR_F_STEPS, "\x1b[2J\x7f\xff\xc2\x9b",
          "steps is \"\\x1b[2J\\x7f\\xff\\xc2\\x9b\"; it must be an integer from 1 to 1000");
    parse(&p, KR_F_STEPS, "0123456789012345678901234567890123456789012345678901234567890",
          "steps is \"012345678901234567890123456789012345678901234567...\"; it must be an integer "
          "from 1 to 1000");
    parse(&p, KR_F_PROMPT, "a\xff", "prompt is not valid UTF-8; convert it first");
    struct kr_err err;
    assert_int_equal(kr_params_set_text(&p, KR_F_PROMPT, "a\0b", 3, &err), -1);
    assert_string_equal(err.text, "prompt contains a NUL character; leave it out");
    assert_int_equal(kr_params_set_bool(&p, KR_F_STEPS, true, &err), -1);
    assert_string_equal(err.text, "steps is true; it must be an integer from 1 to 1000");
    assert_int_equal(kr_params_set_int(&p, KR_F_DETACH, 1, &err), -1);
    assert_int_equal(kr_params_set_int(&p, KR_F_RNG, 1, &err), -1);
    assert_int_equal(kr_params_set_int(&p, KR_F_PROMPT, 1, &err), -1);
    assert_int_equal(kr_params_set_real(&p, KR_F_STEPS, 8.5, &err), -1);
    assert_string_equal(err.text, "steps is 8.5; it must be an integer from 1 to 1000");
    assert_int_equal(kr_params_set_real(&p, KR_F_SEED, 9223372036854775808.0, &err), -1);
    assert_int_equal(kr_params_set_real(&p, KR_F_SEED, NAN, &err), -1);
    assert_int_equal(kr_params_set_text(&p, KR_F_STEPS, "8", 1, &err), -1);
    assert_int_equal(p.set, 0);
    assert_null(p.prompt);
}

static void texts(void **s)
{
    (void)s;
    struct kr_params p = {0};
    struct kr_err err;
    static char big[KR_MAX_TEXT + 2];
    memset(big, 'x', sizeof big - 1);
    assert_int_equal(kr_params_parse(&p, KR_F_PROMPT, big, &err), -1);
    assert_string_equal(err.text, "prompt has 65537 bytes, at most 65536 are allowed");
    big[KR_MAX_TEXT] = 0;
    parse(&p, KR_F_PROMPT, big, NULL);
    assert_int_equal(strlen(p.prompt), 65536);
    parse(&p, KR_F_PROMPT, "", NULL);
    assert_string_equal(p.prompt, "");
    /* A refused value leaves the old one. */
    parse(&p, KR_F_PROMPT, "kept", NULL);
    assert_int_equal(kr_params_parse(&p, KR_F_PROMPT, "\xff", &err), -1);
    assert_string_equal(p.prompt, "kept");
    kr_params_fini(&p);
    assert_null(p.prompt);
    assert_int_equal(p.set, 0);
}

static void reals_survive_text(void **s)
{
    (void)s;
    static const double values[] = {0,      3.5,    1.15,    0.1,     1.0 / 3,          100,
                                    1e-300, 5e-324, 0.90625, 2.20625, 99.99999999999999};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        struct kr_params p = {0}, q = {0};
        struct kr_err err;
        char text[64];
        assert_int_equal(kr_params_set_real(&p, KR_F_CFG, values[i], &err), 0);
        kr_params_format(&p, KR_F_CFG, text, sizeof text);
        assert_int_equal(kr_params_parse(&q, KR_F_CFG, text, &err), 0);
        assert_memory_equal(&q.cfg, &values[i], sizeof(double));
    }
    struct kr_params p = {0};
    char text[64], small[3];
    parse(&p, KR_F_CFG, "3.7", NULL);
    assert_int_equal(kr_params_format(&p, KR_F_CFG, text, sizeof text), 3);
    assert_string_equal(text, "3.7");
    parse(&p, KR_F_STEPS, "1000", NULL);
    assert_int_equal(kr_params_format(&p, KR_F_STEPS, small, sizeof small), 4); /* as snprintf */
    assert_string_equal(small, "10");
    assert_int_equal(kr_params_format(&p, KR_F_MU, text, sizeof text), 0);
    assert_string_equal(text, "");
    static const char *const yes[] = {"true", "yes", "on", "1"}, *const no[] = {"false", "no",
                                                                                "off", "0"};
    for (int i = 0; i < 4; i++) {
        parse(&p, KR_F_DETACH, yes[i], NULL);
        assert_int_equal(p.detach, 1);
        parse(&p, KR_F_DETACH, no[i], NULL);
        assert_int_equal(p.detach, 0);
    }
    kr_params_format(&p, KR_F_DETACH, text, sizeof text);
    assert_string_equal(text, "false");
    parse(&p, KR_F_RNG, "cpu", NULL);
    kr_params_format(&p, KR_F_RNG, text, sizeof text);
    assert_string_equal(text, "cpu");
}

static void layers(void **s)
{
    (void)s;
    struct kr_params request = {0}, profile = {0}, copy;
    struct kr_err err;
    parse(&request, KR_F_PROMPT, "a", NULL);
    parse(&request, KR_F_STEPS, "4", NULL);
    parse(&profile, KR_F_STEPS, "8", NULL);
    parse(&profile, KR_F_CFG, "2.5", NULL);
    parse(&profile, KR_F_NEGATIVE, "blur", NULL);
    assert_int_equal(kr_params_default(&request, &profile, &err), 0);
    assert_int_equal(request.steps, 4);
    assert_true(request.cfg == 2.5);
    assert_string_equal(request.negative, "blur");
    assert_ptr_not_equal(request.negative, profile.negative);
    assert_int_equal(kr_params_copy(&copy, &request, &err), 0);
    kr_params_fini(&request);
    kr_params_fini(&profile);
    assert_string_equal(copy.prompt, "a");
    assert_string_equal(copy.negative, "blur");
    assert_int_equal(copy.set,
                     1 << KR_F_PROMPT | 1 << KR_F_NEGATIVE | 1 << KR_F_STEPS | 1 << KR_F_CFG);
    kr_params_fini(&copy);
}

static void utf8(void **s)
{
    (void)s;
    static const char *const good[] = {"",
                                       "a",
                                       "\x7f",
                                       "\xc2\x80",
                                       "\xdf\xbf",
                                       "\xe0\xa0\x80",
                                       "\xed\x9f\xbf",
                                       "\xee\x80\x80",
                                       "\xef\xbf\xbf",
                                       "\xf0\x90\x80\x80",
                                       "\xf4\x8f\xbf\xbf",
                                       "a\xe2\x82\xac"
                                       "b"};
    static const char *const bad[] = {"\x80",
                                      "\xbf",
                                      "\xc0\x80",
                                      "\xc1\xbf",
                                      "\xc2",
                                      "\xc2\x41",
                                      "\xdf\xc0",
                                      "\xe0\x9f\xbf",
                                      "\xe0\xa0",
                                      "\xed\xa0\x80",
                                      "\xed\xbf\xbf",
                                      "\xe2\x82\x41",
                                      "\xf0\x8f\xbf\xbf",
                                      "\xf4\x90\x80\x80",
                                      "\xf5\x80\x80\x80",
                                      "\xf0\x90\x80",
                                      "\xfe",
                                      "\xff",
                                      "a\xe2\x82"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_true(kr_utf8_valid(good[i], strlen(good[i])));
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        size_t length = strlen(bad[i]);
        char *exact = malloc(length);
        memcpy(exact, bad[i], length);
        assert_false(kr_utf8_valid(exact, length));
        free(exact);
    }
    assert_true(kr_utf8_valid("a\0b", 3));
    /* Every code point in its own encoding, counted: 1112064 scalar values and no surrogate. */
    int count = 0;
    for (uint32_t c = 0x800; c < 0x10000; c++) {
        char b[3] = {(char)(0xe0 | c >> 12), (char)(0x80 | (c >> 6 & 63)), (char)(0x80 | (c & 63))};
        count += kr_utf8_valid(b, 3);
    }
    assert_int_equal(count, 0x10000 - 0x800 - 2048);
}

static void quoting(void **s)
{
    (void)s;
    char buf[128];
    kr_quote(buf, sizeof buf, "plain", 5);
    assert_string_equal(buf, "\"plain\"");
    kr_quote(buf, sizeof buf, "a\0b\n\x1b", 5);
    assert_string_equal(buf, "\"a\\x00b\\x0a\\x1b\"");
    kr_quote(buf, sizeof buf, "\xe2\x82\xac\xc3", 4); /* a good character and half of one */
    assert_string_equal(buf, "\"\xe2\x82\xac\\xc3\"");
    kr_quote(buf, 16, "0123456789abcdef", 16);
    assert_string_equal(buf, "\"012...\"");
    char euros[151];
    for (int i = 0; i < 50; i++) {
        memcpy(euros + 3 * i, "\xe2\x82\xac", 3);
    }
    kr_quote(buf, sizeof buf, euros, 150);
    assert_true(kr_utf8_valid(buf, strlen(buf)));
    assert_non_null(strstr(buf, "...\""));
    for (size_t size = 16; size < 80; size++) { /* never beyond its buffer */
        char *exact = malloc(size);
        kr_quote(exact, size, "\x01\x02\x03\x04\x05\x06\x07\x08\x01\x02\x03\x04\x05\x06\x07\x08",
                 16);
        assert_true(strlen(exact) < size && exact[strlen(exact) - 1] == '"');
        free(exact);
    }
}

static void codes(void **s)
{
    (void)s;
    for (int i = 0; i < KR_CODES; i++) {
        assert_int_equal(kr_code_from_name(kr_code_name(i)), i);
    }
    assert_string_equal(kr_code_name(KR_BAD_REQUEST), "bad_request");
    assert_string_equal(kr_code_name(KR_BUSY), "busy");
    assert_string_equal(kr_code_name(KR_NO_JOB), "no_job");
    assert_int_equal(kr_code_from_name("nonsense"), KR_CODES);
    assert_non_null(kr_code_name(KR_CODES));
    struct kr_err err;
    static char word[600];
    memset(word, 'x', sizeof word - 1);
    word[477] = '\xe2', word[478] = '\x82', word[479] = '\xac'; /* straddles the end */
    assert_int_equal(kr_fail(&err, KR_IO, "%s", word), -1);
    assert_int_equal(strlen(err.text), 477);
    assert_true(kr_utf8_valid(err.text, strlen(err.text)));
    assert_int_equal(kr_fail(NULL, KR_IO, "nobody listens"), -1);
    kr_fail(&err, KR_IO, "%s",
            "a\x1b[31m\nb\x7f\xc2\x9b"
            "c\xc2\xa0\xc3\x9f");
    assert_string_equal(err.text, "a?[31m?b???c\xc2\xa0\xc3\x9f");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_table_is_whole),
        cmocka_unit_test(bounds_of_integers),
        cmocka_unit_test(bounds_of_reals),
        cmocka_unit_test(what_is_no_number),
        cmocka_unit_test(refusals_name_field_given_and_allowed),
        cmocka_unit_test(texts),
        cmocka_unit_test(reals_survive_text),
        cmocka_unit_test(layers),
        cmocka_unit_test(utf8),
        cmocka_unit_test(quoting),
        cmocka_unit_test(codes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
