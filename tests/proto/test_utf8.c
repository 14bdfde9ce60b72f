/* SPDX-License-Identifier: Apache-2.0
 *
 * UTF-8 and the escapes of JSON strings. Byte sequences are those of RFC 3629 and of Unicode's
 * table 3-7, written out.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "proto/utf8.h"

static const struct {
    uint32_t code;
    const char *bytes;
    size_t size;
} characters[] = {
    {0, "\0", 1},
    {0x7f, "\x7f", 1},
    {0x80, "\xc2\x80", 2},
    {0xe9, "\xc3\xa9", 2},
    {0x7ff, "\xdf\xbf", 2},
    {0x800, "\xe0\xa0\x80", 3},
    {0x20ac, "\xe2\x82\xac", 3},
    {0xd7ff, "\xed\x9f\xbf", 3},
    {0xe000, "\xee\x80\x80", 3},
    {0xffff, "\xef\xbf\xbf", 3},
    {0x10000, "\xf0\x90\x80\x80", 4},
    {0x1f431, "\xf0\x9f\x90\xb1", 4},
    {0x10ffff, "\xf4\x8f\xbf\xbf", 4},
};

static void test_characters(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof characters / sizeof *characters; i++) {
        uint32_t code = 1;
        char out[4];
        size_t size = characters[i].size;
        assert_int_equal(kr_utf8_decode(characters[i].bytes, size + 1, &code), size);
        assert_int_equal(code, characters[i].code);
        assert_int_equal(kr_utf8_encode(code, out), size);
        assert_memory_equal(out, characters[i].bytes, size);
        for (size_t cut = 1; cut < size; cut++) {
            assert_int_equal(kr_utf8_decode(characters[i].bytes, cut, &code), 0);
        }
    }
}

static void test_refused(void **state)
{
    static const char *const bad[] = {
        "\x80",         "\xbf",         "\xc0\x80",         "\xc1\xbf",         "\xc3(",
        "\xe0\x9f\xbf", "\xed\xa0\x80", "\xed\xbf\xbf",     "\xe2\x82(",        "\xf0\x8f\xbf\xbf",
        "\xf0\x9f\x90", "\xf0\x9f(",    "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff"};
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const char *s = bad[i];
        char text[16] = "ab";
        assert_int_equal(kr_utf8_decode(s, strlen(s), NULL), 0);
        assert_int_equal(kr_utf8_next(&s), 0xfffd);
        assert_ptr_equal(s, bad[i] + 1);
        strcat(text, bad[i]);
        assert_int_equal(kr_utf8_prefix(text, strlen(text)), 2);
    }
    assert_int_equal(kr_utf8_prefix("\xe2\x82\xac!", 4), 4);
    assert_int_equal(kr_utf8_prefix("", 0), 0);
}

static void test_escapes(void **state)
{
    static const struct {
        const char *text, *bytes;
        size_t taken;
    } good[] = {{"\\n!", "\n", 2},
                {"\\/", "/", 2},
                {"\\\\n", "\\", 2},
                {"\\u0041BC", "A", 6},
                {"\\u00e9", "\xc3\xa9", 6},
                {"\\u20AC", "\xe2\x82\xac", 6},
                {"\\uD83d\\uDc31x", "\xf0\x9f\x90\xb1", 12}};
    static const char *const bad[] = {
        "\\",      "\\x41",   "\\u",      "\\u12",      "\\u12g4",        "\\u0000",
        "\\udc31", "\\ud83d", "\\ud83dn", "\\ud83d\\n", "\\ud83d\\u0041", "\\ud83d\\ud83d"};
    char out[4];
    size_t n;
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(kr_utf8_unescape(good[i].text, out, &n), good[i].taken);
        assert_int_equal(n, strlen(good[i].bytes));
        assert_memory_equal(out, good[i].bytes, n);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(kr_utf8_unescape(bad[i], out, &n), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_characters),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_escapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
