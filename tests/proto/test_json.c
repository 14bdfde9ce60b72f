/* SPDX-License-Identifier: Apache-2.0
 *
 * JSON to MessagePack: expected values by hand, for what RFC 8259 allows and what it does not.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "proto/message.h"

static void reads_a_report(void **s)
{
    (void)s;
    static const char json[] =
        " { \"name\" : \"a\\\"b\\\\c\\/\\b\\f\\n\\r\\t\\u20ac\\uD83D\\ude00\xc3\xa9\", \"n\":[0,-1,"
        "9223372036854775807,-9223372036854775808,9223372036854775808,0.5,1e2,-2.5E-1],\r\n"
        "\t\"w\":[true,false,null],\"m\":{},\"l\":[], \"\":\"\" } ";
    struct kr_out out;
    struct kr_err err;
    kr_out_init(&out);
    kr_out_result(&out, 1);
    assert_int_equal(kr_out_json(&out, json, &err), 0);
    struct kr_in in;
    assert_int_equal(kr_in_init(&in, out.data, out.size, &err), 0);
    assert_int_equal(kr_value_count(in.result), 6);
    const char *text;
    size_t length;
    assert_true(kr_value_text(kr_value_get(in.result, "name"), &text, &length));
    static const char name[] = "a\"b\\c/\b\f\n\r\t\xe2\x82\xac\xf0\x9f\x98\x80\xc3\xa9";
    assert_int_equal(length, sizeof name - 1);
    assert_memory_equal(text, name, length);
    const struct kr_value *n = kr_value_get(in.result, "n");
    static const double reals[] = {
        0,   -1,   9223372036854775807.0, -9223372036854775808.0, 9223372036854775808.0, 0.5,
        100, -0.25};
    assert_int_equal(kr_value_count(n), 8);
    for (size_t i = 0; i < 8; i++) {
        double real;
        assert_int_equal(kr_value_kind(kr_value_item(n, i)), i < 4 ? KR_V_INT : KR_V_REAL);
        assert_true(kr_value_real(kr_value_item(n, i), &real) && real == reals[i]);
    }
    int64_t whole;
    assert_true(kr_value_int(kr_value_item(n, 2), &whole) && whole == INT64_MAX);
    const struct kr_value *w = kr_value_get(in.result, "w");
    bool truth;
    assert_true(kr_value_bool(kr_value_item(w, 0), &truth) && truth);
    assert_true(kr_value_bool(kr_value_item(w, 1), &truth) && !truth);
    assert_true(kr_value_nil(kr_value_item(w, 2)) && kr_value_count(w) == 3);
    assert_int_equal(kr_value_kind(kr_value_get(in.result, "m")), KR_V_MAP);
    assert_int_equal(kr_value_kind(kr_value_get(in.result, "l")), KR_V_ARRAY);
    assert_true(kr_value_text(kr_value_get(in.result, ""), &text, &length) && length == 0);
    kr_in_fini(&in);
    kr_out_fini(&out);
}

static void refuses_what_is_no_json(void **s)
{
    (void)s;
    static const char *const bad[] = {
        "",
        " ",
        "{",
        "}",
        "[",
        "]",
        "[1",
        "[1,",
        "[1,]",
        "[,1]",
        "[1 2]",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":1,}",
        "{\"a\":1 \"b\":2}",
        "{a:1}",
        "{1:1}",
        "{'a':1}",
        "\"",
        "\"a",
        "\"\\",
        "\"\\x\"",
        "\"\\u12\"",
        "\"\\u12g4\"",
        "\"\\u0000\"",
        "\"\\ud800\"",
        "\"\\ud800x\"",
        "\"\\ud800\\n\"",
        "\"\\ud800\\ud800\"",
        "\"\\udc00\"",
        "\"a\nb\"",
        "\"\xff\"",
        "\"\xe2\x82\"",
        "01",
        "-",
        "+1",
        "1.",
        ".5",
        "1e",
        "1e+",
        "--1",
        "0x1",
        "1e999",
        "-1e999",
        "NaN",
        "Infinity",
        "nul",
        "True",
        "truex",
        "1 1",
        "{} {}",
        "[[[[[[[1]]]]]]]",
        "// x",
        "[1]//",
    };
    struct kr_out out;
    kr_out_init(&out);
    kr_out_int(&out, 1);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct kr_err err;
        assert_int_equal(kr_out_json(&out, bad[i], &err), -1);
        assert_int_equal(err.code, KR_IO);
        assert_int_equal(out.size, 1);
        assert_false(out.failed);
    }
    assert_int_equal(kr_out_json(&out, "[[[[[[1]]]]]]", NULL), 0);
    kr_out_fini(&out);
}

/* What comes out is one message and within the depth that the other side allows. */
static void survives_every_truncation(void **s)
{
    (void)s;
    static const char json[] =
        "{\"a\":[{\"b\":\"\\u20ac\\ud83d\\ude00\",\"c\":-1.5e-3}],\"d\":[[[[true]]]]}";
    for (size_t n = 0; n < sizeof json; n++) {
        struct kr_out out;
        char *cut = calloc(n + 1, 1);
        memcpy(cut, json, n);
        kr_out_init(&out);
        int rc = kr_out_json(&out, cut, NULL);
        assert_int_equal(rc, n == sizeof json - 1 ? 0 : -1);
        assert_int_equal(kr_frame_size(out.data, out.size, 1000, NULL), out.size);
        kr_out_fini(&out);
        free(cut);
        if (rc == 0) {
            break;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_a_report),
        cmocka_unit_test(refuses_what_is_no_json),
        cmocka_unit_test(survives_every_truncation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
