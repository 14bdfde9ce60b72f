/* SPDX-License-Identifier: Apache-2.0
 *
 * proto/err.h: wire names both ways, and texts that stay whole UTF-8 when they are cut.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

#include "proto/err.h"

static void names(void **state)
{
    int code;

    (void)state;
    for (code = 0; code < KR_CODES; code++)
        assert_int_equal(kr_code_from_name(kr_code_name((enum kr_code)code)), code);
    assert_string_equal(kr_code_name(KR_BUSY), "busy");
    assert_string_equal(kr_code_name(KR_CODES), "unknown");
    assert_int_equal(kr_code_from_name("unknown"), KR_CODES);
    assert_int_equal(kr_code_from_name(""), KR_CODES);
}

static void filling(void **state)
{
    struct kr_err err;

    (void)state;
    assert_int_equal(kr_fail(&err, KR_IO, "can't read %s", "x"), -1);
    assert_int_equal(err.code, KR_IO);
    assert_string_equal(err.text, "can't read x");
    assert_int_equal(kr_fail(NULL, KR_IO, "nobody looks"), -1);
}

/* A text of characters of n bytes after `lead` ASCII ones, cut anywhere. */
static void cutting(void **state)
{
    static const char *const characters[] = {"a", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x8e\xa8"};
    struct kr_err err;
    char text[600];
    size_t n, lead, at;

    (void)state;
    for (n = 1; n <= 4; n++) {
        for (lead = 0; lead < 5; lead++) {
            memset(text, 'x', lead);
            for (at = lead; at < 520; at += n)
                memcpy(text + at, characters[n - 1], n + 1);
            kr_fail(&err, KR_IO, "%s", text);
            assert_true(strlen(err.text) < sizeof err.text);
            assert_true(strlen(err.text) + n >= sizeof err.text);
            assert_int_equal((strlen(err.text) - lead) % n, 0);
            assert_memory_equal(err.text, text, strlen(err.text));
        }
    }
    memset(text, 0x80, sizeof text); /* no UTF-8 at all: cut, not crashed */
    text[599] = '\0';
    kr_fail(&err, KR_IO, "%s", text);
    assert_true(strlen(err.text) < sizeof err.text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(names), cmocka_unit_test(filling),
                                       cmocka_unit_test(cutting)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
