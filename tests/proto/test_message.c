/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages: the exact bytes of what is built (the specification's encodings, written out), reading
 * of hand-made bytes, every truncation and every single changed byte of a request, and a request's
 * validation.
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

#define BYTES(literal) literal, sizeof(literal) - 1

static void holds(struct kr_out *out, const char *bytes, size_t size)
{
    assert_false(out->failed);
    assert_int_equal(out->size, size);
    assert_memory_equal(out->data, bytes, size);
    kr_out_fini(out);
}

static void builds_the_envelopes(void **s)
{
    (void)s;
    struct kr_out out;
    struct kr_err err = {.code = KR_BUSY, .text = "full"};
    kr_out_init(&out);
    kr_out_request(&out, 7, KR_M_STATUS);
    kr_out_map(&out, 0);
    holds(&out, BYTES("\x94\x00\x07\xa6status\x91\x80"));
    kr_out_result(&out, UINT32_MAX);
    kr_out_nil(&out);
    holds(&out, BYTES("\x94\x01\xce\xff\xff\xff\xff\xc0\xc0"));
    kr_out_error(&out, 1, &err);
    holds(&out, BYTES("\x94\x01\x01\x82\xa4"
                      "code\xa4"
                      "busy\xa7message\xa4"
                      "full\xc0"));
    kr_out_notice(&out, "done");
    kr_out_map(&out, 0);
    holds(&out, BYTES("\x93\x02\xa4"
                      "done\x91\x80"));
}

static void builds_values(void **s)
{
    (void)s;
    struct kr_out out;
    kr_out_init(&out);
    kr_out_array(&out, 9);
    kr_out_text(&out, NULL);
    kr_out_bool(&out, true);
    kr_out_bool(&out, false);
    kr_out_int(&out, INT64_MIN);
    kr_out_int(&out, INT64_MAX);
    kr_out_int(&out, -1);
    kr_out_real(&out, 1.5);
    kr_out_bytes(&out, "\0\1", 2);
    kr_out_key(&out, "k");
    holds(&out,
          BYTES("\x99\xc0\xc3\xc2\xd3\x80\x00\x00\x00\x00\x00\x00\x00\xcf\x7f\xff\xff\xff\xff\xff"
                "\xff\xff\xff\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00\xc4\x02\x00\x01\xa1k"));
    /* What is no UTF-8 leaves as UTF-8 of the same length. */
    kr_out_text(&out, "a\xff\xe2\x82\xac\xe2\x82z\xc3");
    holds(&out, BYTES("\xa9"
                      "a?\xe2\x82\xac??z?"));
    kr_out_raw(&out, "\xc0", 1);
    holds(&out, BYTES("\xc0"));
    /* Take hands over and leaves nothing. */
    size_t size;
    kr_out_nil(&out);
    char *data = kr_out_take(&out, &size);
    assert_int_equal(size, 1);
    assert_null(out.data);
    free(data);
    out.failed = true;
    assert_null(kr_out_take(&out, &size));
    assert_int_equal(size, 0);
}

static void builds_parameters(void **s)
{
    (void)s;
    struct kr_params p = {0};
    struct kr_err err;
    struct kr_out out;
    kr_params_parse(&p, KR_F_PROMPT, "hi", &err);
    kr_params_parse(&p, KR_F_STEPS, "8", &err);
    kr_params_parse(&p, KR_F_CFG, "0.5", &err);
    kr_params_parse(&p, KR_F_RNG, "cpu", &err);
    kr_params_parse(&p, KR_F_DETACH, "yes", &err);
    kr_out_init(&out);
    kr_out_params(&out, &p);
    holds(&out, BYTES("\x85\xa6prompt\xa2hi\xa5steps\x08\xa3"
                      "cfg\xcb\x3f\xe0\x00\x00\x00\x00\x00\x00"
                      "\xa3rng\xa3"
                      "cpu\xa6"
                      "detach\xc3"));
    assert_int_equal(kr_params_pairs(&p, 1 << KR_F_PROMPT | 1 << KR_F_NEGATIVE), 4);
    kr_out_fields(&out, &p, ~(UINT32_C(1) << KR_F_STEPS));
    holds(&out, BYTES("\xa5steps\x08"));
    kr_params_fini(&p);
}

/* ---------------------------------------------------------------------------- reading --- */

static int read_bytes(struct kr_in *in, const char *bytes, size_t size)
{
    struct kr_err err = {0};
    int rc = kr_in_init(in, bytes, size, &err);
    if (rc != 0) {
        assert_int_equal(err.code, KR_BAD_FRAME);
        assert_true(err.text[0]);
        assert_null(in->zone);
    }
    return rc;
}

static void reads_the_envelopes(void **s)
{
    (void)s;
    struct kr_in in;
    assert_int_equal(read_bytes(&in, BYTES("\x94\x00\x07\xa6"
                                           "cancel\x91\x81\xa3job\x05")),
                     0);
    assert_int_equal(in.kind, KR_IN_REQUEST);
    assert_int_equal(in.id, 7);
    assert_int_equal(kr_in_method(&in), KR_M_CANCEL);
    int64_t job;
    assert_true(kr_value_int(kr_value_get(in.params, "job"), &job));
    assert_int_equal(job, 5);
    kr_in_fini(&in);
    assert_int_equal(read_bytes(&in, BYTES("\x94\x00\x07\xa4xxxx\x90")), 0);
    assert_null(in.params);
    assert_int_equal(kr_in_method(&in), KR_METHODS);
    kr_in_fini(&in);
    assert_int_equal(read_bytes(&in, BYTES("\x94\x01\x07\xc0\x93\x01\x02\x03")), 0);
    assert_int_equal(in.kind, KR_IN_RESPONSE);
    assert_int_equal(kr_value_count(in.result), 3);
    assert_true(kr_value_int(kr_value_item(in.result, 2), &job));
    assert_int_equal(job, 3);
    assert_null(kr_value_item(in.result, 3));
    kr_in_fini(&in);
    assert_int_equal(read_bytes(&in, BYTES("\x94\x01\x00\x82\xa4"
                                           "code\xa4"
                                           "busy\xa7message\xa2no\xc0")),
                     0);
    assert_null(in.result);
    assert_int_equal(in.error.code, KR_BUSY);
    assert_string_equal(in.error.text, "no");
    kr_in_fini(&in);
    /* A code of a later version, and one that is too long for any. */
    assert_int_equal(read_bytes(&in, BYTES("\x94\x01\x00\x82\xa4"
                                           "code\xa3new\xa7message\xa2no\xc0")),
                     0);
    assert_int_equal(in.error.code, KR_CODES);
    kr_in_fini(&in);
    assert_int_equal(read_bytes(&in, BYTES("\x94\x01\x00\x82\xa4"
                                           "code\xa2ok\xa7message\xa2no\xc0")),
                     0);
    assert_int_equal(in.error.code, KR_CODES);
    kr_in_fini(&in);
    assert_int_equal(read_bytes(&in, BYTES("\x93\x02\xa4"
                                           "done\x91\x80")),
                     0);
    assert_int_equal(in.kind, KR_IN_NOTICE);
    assert_memory_equal(in.method, "done", in.method_length);
    kr_in_fini(&in);
}

static void refuses_other_shapes(void **s)
{
    (void)s;
    static const struct {
        const char *bytes;
        size_t size;
    } rows[] = {
        {BYTES("")},
        {BYTES("\xc0")},
        {BYTES("G")},
        {BYTES("\x80")},
        {BYTES("\x90")},
        {BYTES("\x91\x00")},
        {BYTES("\x93\x00\x01\xa1x")},                     /* a request of three */
        {BYTES("\x94\x02\xa1x\x90\xc0")},                 /* a notice of four */
        {BYTES("\x95\x00\x01\xa1x\x90\xc0")},             /* of five */
        {BYTES("\x94\x03\x01\xa1x\x90")},                 /* kind 3 */
        {BYTES("\x94\xff\x01\xa1x\x90")},                 /* kind -1 */
        {BYTES("\x94\xca\0\0\0\0\x01\xa1x\x90")},         /* kind 0.0 */
        {BYTES("\x94\x00\xff\xa1x\x90")},                 /* id -1 */
        {BYTES("\x94\x00\xcf\0\0\0\1\0\0\0\0\xa1x\x90")}, /* id 2^32 */
        {BYTES("\x94\x00\xa1"
               "1\xa1x\x90")},                    /* id a text */
        {BYTES("\x94\x00\x01\x01\x90")},          /* method a number */
        {BYTES("\x94\x00\x01\xc4\x01x\x90")},     /* method bytes */
        {BYTES("\x94\x00\x01\xa1x\xc0")},         /* no list */
        {BYTES("\x94\x00\x01\xa1x\x80")},         /* a map without list */
        {BYTES("\x94\x00\x01\xa1x\x91\x01")},     /* list of a number */
        {BYTES("\x94\x00\x01\xa1x\x92\x80\x80")}, /* list of two maps */
        {BYTES("\x94\x01\x01\xa1x\xc0")},         /* error a text */
        {BYTES("\x94\x01\x01\x80\xc0")},          /* error an empty map */
        {BYTES("\x94\x01\x01\x82\xa4"
               "code\xa4"
               "busy\xa7message\xa1\xff\xc0")}, /* no UTF-8 */
        {BYTES("\x93\x02\xa4"
               "done\x91\x80\xc0")}, /* a byte too many */
        {BYTES("\x93\x02\xa4"
               "done\x91")}, /* a byte short */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kr_in in;
        char *exact = malloc(rows[i].size + 1);
        memcpy(exact, rows[i].bytes, rows[i].size);
        assert_int_equal(read_bytes(&in, exact, rows[i].size), -1);
        free(exact);
    }
}

static void values_are_what_they_are(void **s)
{
    (void)s;
    static const char bytes[] =
        "\x94\x01\x01\xc0\xdc\x00\x11"
        "\xc0\xc3\x2a\xd3\x80\0\0\0\0\0\0\0\xcf\xff\xff\xff\xff\xff\xff\xff\xff"
        "\xcf\x7f\xff\xff\xff\xff\xff\xff\xff\xcb\x40\x45\0\0\0\0\0\0" /* 42.0 */
        "\xcb\x3f\xe0\0\0\0\0\0\0\xcb\x7f\xf8\0\0\0\0\0\0"             /* 0.5 NaN */
        "\xcb\x7f\xf0\0\0\0\0\0\0\xcb\x43\xe0\0\0\0\0\0\0"             /* inf 2^63 */
        "\xcb\xc3\xe0\0\0\0\0\0\0\xa2\xc3\xa9\xa1\xff\xc4\x01x"        /* -2^63 */
        "\x81\xa1k\x01\xd4\x01\x02";
    struct kr_in in;
    assert_int_equal(read_bytes(&in, bytes, sizeof bytes - 1), 0);
    static const enum kr_value_kind kinds[] = {
        KR_V_NIL,  KR_V_BOOL, KR_V_INT,   KR_V_INT,  KR_V_INT,  KR_V_INT,
        KR_V_REAL, KR_V_REAL, KR_V_REAL,  KR_V_REAL, KR_V_REAL, KR_V_REAL,
        KR_V_TEXT, KR_V_TEXT, KR_V_BYTES, KR_V_MAP,  KR_V_OTHER};
    /* Which of them read as an integer, as a real: by hand. */
    static const int64_t whole[] = {
        [2] = 42, [3] = INT64_MIN, [5] = INT64_MAX, [6] = 42, [11] = INT64_MIN};
    static const char as_int[] = "00110110000100000", as_real[] = "00111111001100000";
    assert_int_equal(kr_value_count(in.result), 17);
    for (size_t i = 0; i < 17; i++) {
        const struct kr_value *v = kr_value_item(in.result, i);
        int64_t n = 0;
        double real;
        bool truth;
        const char *text;
        const void *data;
        size_t size;
        assert_int_equal(kr_value_kind(v), kinds[i]);
        assert_int_equal(kr_value_nil(v), i == 0);
        assert_int_equal(kr_value_bool(v, &truth), i == 1);
        assert_int_equal(kr_value_int(v, &n), as_int[i] == '1');
        if (as_int[i] == '1') {
            assert_int_equal(n, whole[i]);
        }
        assert_int_equal(kr_value_real(v, &real), as_real[i] == '1');
        assert_int_equal(kr_value_text(v, &text, &size), i == 12);
        assert_int_equal(kr_value_bytes(v, &data, &size), i == 14);
        assert_int_equal(kr_value_count(v), i == 15);
        assert_int_equal(kr_value_get(v, "k") != NULL, i == 15);
    }
    double real;
    assert_true(kr_value_real(kr_value_item(in.result, 4), &real) &&
                real == 18446744073709551615.0);
    const struct kr_value *value, *key = kr_value_key(kr_value_item(in.result, 15), 0, &value);
    assert_int_equal(kr_value_kind(key), KR_V_TEXT);
    assert_int_equal(kr_value_kind(value), KR_V_INT);
    assert_null(kr_value_key(kr_value_item(in.result, 15), 1, &value));
    assert_null(kr_value_get(NULL, "k"));
    assert_true(kr_value_nil(NULL));
    kr_in_fini(&in);
}

/* ------------------------------------------------------------------------- parameters --- */

/* The parameters of a generate request whose map is given in bytes; says: the refusal, or NULL. */
static void check_params(struct kr_params *p, const char *map, size_t size, enum kr_code code,
                         const char *says)
{
    static char frame[1 << 20];
    static const char head[] = "\x94\x00\x01\xa8generate\x91";
    memcpy(frame, head, sizeof head - 1);
    memcpy(frame + sizeof head - 1, map, size);
    struct kr_in in;
    struct kr_err err = {0};
    assert_int_equal(kr_in_init(&in, frame, sizeof head - 1 + size, &err), 0);
    memset(p, 0xa5, sizeof *p);
    int rc = kr_value_params(in.params, p, &err);
    kr_in_fini(&in);
    memset(frame, 0xee, sizeof frame); /* nothing of p may point into the message */
    assert_int_equal(rc, says == NULL ? 0 : -1);
    if (says != NULL) {
        assert_int_equal(err.code, code);
        assert_string_equal(err.text, says);
        static const struct kr_params nothing;
        assert_memory_equal(p, &nothing, sizeof nothing);
    }
}

static void accepts_requests(void **s)
{
    (void)s;
    struct kr_params p;
    check_params(&p,
                 BYTES("\x8a\xa6prompt\xa4"
                       "a\xe2\x82\xac\xa5width\xcb\x40\x80\0\0\0\0\0\0\xa3"
                       "cfg\x03"
                       "\xa4seed\xcf\x7f\xff\xff\xff\xff\xff\xff\xff\xa3rng\xa3"
                       "cpu\xa7"
                       "dialect\xa7"
                       "comfyui\xa6"
                       "detach\xc3\xa2mu\xd0\xfe\xa7version\x01\xa8negative\xc0"),
                 KR_OK, NULL);
    assert_string_equal(p.prompt, "a\xe2\x82\xac");
    assert_int_equal(p.width, 512);
    assert_true(p.cfg == 3 && p.mu == -2);
    assert_int_equal(p.seed, INT64_MAX);
    assert_int_equal(p.rng, KR_RNG_CPU);
    assert_int_equal(p.dialect, KR_DIALECT_COMFYUI);
    assert_int_equal(p.detach, 1);
    assert_false(kr_has(&p, KR_F_NEGATIVE));
    kr_params_fini(&p);
    check_params(&p, BYTES("\x82\xa6prompt\xa0\xa4seed\xff"), KR_OK, NULL);
    assert_string_equal(p.prompt, "");
    assert_int_equal(p.seed, -1);
    kr_params_fini(&p);
}

/* A second pair beside a good prompt, and what is said about it. */
static const char prompt_pair[] = "\xa6prompt\xa1x";
static const struct {
    const char *pair;
    size_t size;
    const char *says;
} refused[] = {
    {BYTES("\xa5stepz\x08"), "unknown field \"stepz\"; the fields are prompt, negative, width, "
                             "height, steps, cfg, seed, "
                             "count, mu, shift_y1, shift_y2, rng, dialect, preview and detach"},
    {BYTES("\xa5step\0\x08"),
     "unknown field \"step\\x00\"; the fields are prompt, negative, width, height, steps, cfg, "
     "seed, count, mu, shift_y1, shift_y2, rng, dialect, preview and detach"},
    {BYTES("\x01\x08"), "a field has a name that is not a text"},
    {BYTES("\xc4\x05steps\x08"), "a field has a name that is not a text"},
    {BYTES("\xa6prompt\xa1y"), "field \"prompt\" stands there twice"},
    {BYTES("\xa5steps\xc3"), "steps is true; it must be an integer from 1 to 1000"},
    {BYTES("\xa5steps\xa1"
           "8"),
     "steps is \"8\"; it must be an integer from 1 to 1000"},
    {BYTES("\xa5steps\xc4\x01"
           "8"),
     "steps is bytes; it must be an integer from 1 to 1000"},
    {BYTES("\xa5steps\x91\x08"), "steps is a list; it must be an integer from 1 to 1000"},
    {BYTES("\xa5steps\x81\xa1x\x08"), "steps is a map; it must be an integer from 1 to 1000"},
    {BYTES("\xa5steps\xd4\x01\x08"),
     "steps is an extension type; it must be an integer from 1 to 1000"},
    {BYTES("\xa5steps\x00"), "steps is 0; it must be an integer from 1 to 1000"},
    {BYTES("\xa5steps\xd3\x80\0\0\0\0\0\0\0"),
     "steps is -9223372036854775808; it must be an integer from 1 to 1000"},
    {BYTES("\xa4seed\xcf\x80\0\0\0\0\0\0\0"),
     "seed is an integer above 2^63 - 1; it must be an integer from -1 to 9223372036854775807"},
    {BYTES("\xa4seed\xcb\x43\xe0\0\0\0\0\0\0"),
     "seed is 9.22337204e+18; it must be an integer from -1 to 9223372036854775807"},
    {BYTES("\xa3"
           "cfg\xcb\x7f\xf8\0\0\0\0\0\0"),
     "cfg is nan; it must be a number from 0 to 100"},
    {BYTES("\xa3"
           "cfg\xcb\x7f\xf0\0\0\0\0\0\0"),
     "cfg is inf; it must be a number from 0 to 100"},
    {BYTES("\xa3"
           "cfg\xa3"
           "3.5"),
     "cfg is \"3.5\"; it must be a number from 0 to 100"},
    {BYTES("\xa6"
           "detach\x01"),
     "detach is 1; it must be true or false"},
    {BYTES("\xa3rng\x00"), "rng is 0; it must be cuda or cpu"},
    {BYTES("\xa3rng\xa4"
           "cpu\0"),
     "rng is \"cpu\\x00\"; it must be cuda or cpu"},
    {BYTES("\xa8negative\x05"), "negative is 5; it must be text of at most 65536 bytes"},
    {BYTES("\xa8negative\xa1\xc0"), "negative is not valid UTF-8; convert it first"},
    {BYTES("\xa8negative\xa2"
           "a\0"),
     "negative contains a NUL character; leave it out"},
};

static void refuses_requests(void **s)
{
    (void)s;
    struct kr_params p;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        char map[128] = "\x82";
        memcpy(map + 1, prompt_pair, sizeof prompt_pair - 1);
        memcpy(map + sizeof prompt_pair, refused[i].pair, refused[i].size);
        check_params(&p, map, sizeof prompt_pair + refused[i].size, KR_BAD_REQUEST,
                     refused[i].says);
        /* The other way round, so that what was already taken is freed or never taken. */
        memcpy(map + 1, refused[i].pair, refused[i].size);
        memcpy(map + 1 + refused[i].size, prompt_pair, sizeof prompt_pair - 1);
        check_params(&p, map, sizeof prompt_pair + refused[i].size, KR_BAD_REQUEST,
                     refused[i].says);
    }
    check_params(&p, BYTES("\x80"), KR_BAD_REQUEST, "prompt is missing; a request needs one");
    check_params(&p, BYTES("\x81\xa6prompt\xc0"), KR_BAD_REQUEST,
                 "prompt is missing; a request needs one");
    /* The version comes before everything else, wherever it stands. */
    check_params(&p, BYTES("\x82\xa5stepz\x08\xa7version\x02"), KR_BAD_VERSION,
                 "version 2 of the protocol was asked for, this side speaks version 1: update the "
                 "older of the two");
    check_params(&p,
                 BYTES("\x82\xa6prompt\xa1x\xa7version\xa1"
                       "1"),
                 KR_BAD_VERSION, "version is not an integer; this side speaks version 1");
    check_params(&p, BYTES("\x83\xa6prompt\xa1x\xa7version\x01\xa7version\x01"), KR_BAD_REQUEST,
                 "field \"version\" stands there twice");
    struct kr_err err;
    assert_int_equal(kr_value_params(NULL, &p, &err), -1);
}

static void refuses_a_long_prompt(void **s)
{
    (void)s;
    struct kr_params p;
    size_t n = KR_MAX_TEXT + 1;
    char *map = malloc(n + 32);
    memcpy(map, "\x81\xa6prompt\xdb\x00\x01\x00\x01", 13);
    memset(map + 13, 'x', n);
    check_params(&p, map, 13 + n, KR_BAD_REQUEST,
                 "prompt has 65537 bytes, at most 65536 are allowed");
    map[12] = 0;
    check_params(&p, map, 12 + n, KR_OK, NULL);
    assert_int_equal(strlen(p.prompt), 65536);
    kr_params_fini(&p);
    free(map);
}

static void checks_the_keys_of_methods(void **s)
{
    (void)s;
    static const char *const names[] = {"job", "index", NULL}, *const none[] = {NULL};
    struct kr_in in;
    struct kr_err err;
    assert_int_equal(kr_value_keys(NULL, none, &err), 0);
    assert_int_equal(read_bytes(&in, BYTES("\x94\x00\x01\xa5"
                                           "fetch\x91\x82\xa3job\x01\xa7version\x01")),
                     0);
    assert_int_equal(kr_value_keys(in.params, names, &err), 0);
    assert_int_equal(kr_value_keys(in.params, none, &err), -1);
    assert_string_equal(err.text, "unknown parameter \"job\"; this method has none");
    kr_in_fini(&in);
    assert_int_equal(read_bytes(&in, BYTES("\x94\x00\x01\xa5"
                                           "fetch\x91\x82\xa3job\x01\xa3job\x01")),
                     0);
    assert_int_equal(kr_value_keys(in.params, names, &err), -1);
    assert_string_equal(err.text, "parameter \"job\" stands there twice");
    kr_in_fini(&in);
    assert_int_equal(read_bytes(&in, BYTES("\x94\x00\x01\xa5"
                                           "fetch\x91\x81\xa4jobs\x01")),
                     0);
    assert_int_equal(kr_value_keys(in.params, names, &err), -1);
    assert_string_equal(err.text, "unknown parameter \"jobs\"; the parameters are job and index");
    kr_in_fini(&in);
    assert_int_equal(read_bytes(&in, BYTES("\x94\x00\x01\xa5"
                                           "fetch\x91\x81\xa7version\x00")),
                     0);
    assert_int_equal(kr_value_keys(in.params, names, &err), -1);
    assert_int_equal(err.code, KR_BAD_VERSION);
    kr_in_fini(&in);
}

/* Each byte of a valid request in turn takes every value, and each prefix is tried: whatever is
 * still a message and a request must hold what the table allows. */
static void every_changed_byte(void **s)
{
    (void)s;
    static const char whole[] = "\x94\x00\x01\xa8generate\x91\x84\xa6prompt\xa2hi\xa5steps\x08\xa3"
                                "cfg"
                                "\xcb\x3f\xe0\0\0\0\0\0\0\xa6"
                                "detach\xc2";
    size_t size = sizeof whole - 1;
    int valid = 0, rejected = 0;
    for (size_t i = 0; i < size; i++) {
        for (int c = 0; c < 256; c++) {
            char *frame = malloc(size);
            memcpy(frame, whole, size);
            frame[i] = (char)c;
            struct kr_in in;
            struct kr_params p;
            if (kr_in_init(&in, frame, size, NULL) == 0) {
                if (kr_value_params(in.params, &p, NULL) == 0) {
                    assert_true(p.prompt != NULL && kr_utf8_valid(p.prompt, strlen(p.prompt)));
                    assert_true(!kr_has(&p, KR_F_STEPS) || (p.steps >= 1 && p.steps <= 1000));
                    assert_true(!kr_has(&p, KR_F_CFG) || (p.cfg >= 0 && p.cfg <= 100));
                    kr_params_fini(&p);
                    valid++;
                } else {
                    rejected++;
                }
                kr_in_fini(&in);
            }
            free(frame);
        }
        struct kr_in in;
        char *cut = malloc(i + !i);
        memcpy(cut, whole, i);
        assert_int_equal(kr_in_init(&in, cut, i, NULL), -1);
        free(cut);
    }
    assert_true(valid > 500 && rejected > 500);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(builds_the_envelopes),  cmocka_unit_test(builds_values),
        cmocka_unit_test(builds_parameters),     cmocka_unit_test(reads_the_envelopes),
        cmocka_unit_test(refuses_other_shapes),  cmocka_unit_test(values_are_what_they_are),
        cmocka_unit_test(accepts_requests),      cmocka_unit_test(refuses_requests),
        cmocka_unit_test(refuses_a_long_prompt), cmocka_unit_test(checks_the_keys_of_methods),
        cmocka_unit_test(every_changed_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
