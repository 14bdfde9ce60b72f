/* SPDX-License-Identifier: Apache-2.0
 *
 * The tokenizer against transformers, with the small tokenizer of tests/golden/tokenizer: hard
 * strings, then every assigned code point in places that show how it is classed and normalized.
 * And what no reference says: bad UTF-8, hostile lengths, many threads.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#include "tests/model/tokenizer_case.h"

#define GOLDEN "tests/golden/tokenizer"

static struct tokenizer *tokenizer;
static json_t *cases;

static int setup(void **state)
{
    struct kr_err err;

    (void)state;
    cases = case_load(GOLDEN "/cases.json");
    assert_non_null(cases);
    if (tokenizer_open(GOLDEN, &tokenizer, &err) < 0)
        fail_msg("%s", err.text);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tokenizer_close(tokenizer);
    json_decref(cases);
    return 0;
}

static int check_texts(void)
{
    const json_t *texts = json_object_get(cases, "texts");
    int bad = 0;

    for (size_t i = 0; i < json_array_size(texts); i++)
        bad += case_check(tokenizer, json_array_get(texts, i));
    return bad;
}

static void texts_equal_the_reference(void **state)
{
    (void)state;
    assert_true(json_array_size(json_object_get(cases, "texts")) > 250);
    assert_int_equal(check_texts(), 0);
}

/* -------------------------------------------------------------------------- all code points --- */

static char *put(char *out, const char *string)
{
    size_t n = strlen(string);

    memcpy(out, string, n);
    return out + n;
}

static char *put_code_point(char *out, int c)
{
    if (c >= 0x10000) {
        *out++ = (char)(0xF0 | c >> 18);
        *out++ = (char)(0x80 | (c >> 12 & 0x3F));
        *out++ = (char)(0x80 | (c >> 6 & 0x3F));
    } else if (c >= 0x800) {
        *out++ = (char)(0xE0 | c >> 12);
        *out++ = (char)(0x80 | (c >> 6 & 0x3F));
    } else if (c >= 0x80) {
        *out++ = (char)(0xC0 | c >> 6);
    }
    *out++ = (char)(c < 0x80 ? c : 0x80 | (c & 0x3F));
    return out;
}

/* The text of probe() in tests/reference/make_tokenizer_golden.py for one code point. */
static char *put_probe(char *out, int c)
{
    out = put_code_point(put(out, "a"), c);
    out = put_code_point(put(out, "!!"), c);
    out = put_code_point(put(out, "\n"), c);
    out = put_code_point(put(out, "\u0334"), c);
    out = put_code_point(put(out, "\u0316\u0301"), c);
    return put(out, " ");
}

static uint64_t hash_ids(const int32_t *ids, size_t count)
{
    uint64_t hash = 0xCBF29CE484222325;

    for (size_t i = 0; i < count; i++)
        for (int shift = 0; shift < 32; shift += 8)
            hash = (hash ^ (ids[i] >> shift & 0xFF)) * 0x100000001B3;
    return hash;
}

static void code_points_equal_the_reference(void **state)
{
    const json_t *blocks = json_object_get(cases, "blocks");
    size_t tried = 0, bad = 0;

    (void)state;
    for (size_t i = 0; i < json_array_size(blocks); i++) {
        const json_t *block = json_array_get(blocks, i);
        int c = (int)json_integer_value(json_array_get(block, 0));
        size_t n = (size_t)json_integer_value(json_array_get(block, 1)), count;
        char *text = malloc(n * 64), *end = text, hash[17];
        struct kr_err err;
        int32_t *ids;

        assert_non_null(text);
        for (size_t k = 0; k < n; k++)
            end = put_probe(end, c + (int)k);
        assert_int_equal(
            tokenizer_encode(tokenizer, text, (size_t)(end - text), &ids, &count, &err), 0);
        snprintf(hash, sizeof(hash), "%016llx", (unsigned long long)hash_ids(ids, count));
        if (count != (size_t)json_integer_value(json_array_get(block, 2)) ||
            strcmp(hash, json_string_value(json_array_get(block, 3))) != 0) {
            print_error("U+%04X to U+%04X: %zu ids, hash %s\n", c, c + (int)n - 1, count, hash);
            bad++;
        }
        tried += n;
        free(ids);
        free(text);
    }
    assert_true(tried > 0x34000);
    assert_int_equal(bad, 0);
}

/* ----------------------------------------------------------------------------- added tokens --- */

static void added_tokens_are_known_by_name(void **state)
{
    int32_t first = tokenizer_added(tokenizer, "<|endoftext|>");

    (void)state;
    assert_true(first > 255);
    assert_int_equal(tokenizer_added(tokenizer, "<|im_start|>"), first + 1);
    assert_int_equal(tokenizer_added(tokenizer, "<|im_end|>"), first + 2);
    assert_int_equal(tokenizer_added(tokenizer, "<|im_end|>x"), -1);
    assert_int_equal(tokenizer_added(tokenizer, "<|im_end"), -1);
    assert_int_equal(tokenizer_added(tokenizer, "a"), -1);
    assert_int_equal(tokenizer_added(tokenizer, ""), -1);
    assert_int_equal(tokenizer_vocabulary(tokenizer), first + 9);
}

/* --------------------------------------------------------------------------------- refusals --- */

static void refused(const char *text, size_t length, const char *says)
{
    struct kr_err err = {0};
    int32_t *ids = (int32_t *)&err;
    size_t count = 1;

    assert_int_equal(tokenizer_encode(tokenizer, text, length, &ids, &count, &err), -1);
    assert_int_equal(err.code, KR_BAD_REQUEST);
    assert_non_null(strstr(err.text, says));
    assert_null(ids);
    assert_int_equal(count, 0);
}

static void bad_utf8_is_refused(void **state)
{
    static const char *const bad[] = {
        "\x80",     "\xBF",         "\xC0\x80",         "\xC1\xBF",         "\xC2",
        "\xC2 ",    "\xE0\x80\x80", "\xE0\x9F\xBF",     "\xED\xA0\x80",     "\xED\xBF\xBF",
        "\xE2\x82", "\xF0\x9F\x98", "\xF0\x80\x80\x80", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80",
        "\xFE",     "\xFF",         "\xE9t\xE9"};

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        char text[32];
        int n = snprintf(text, sizeof(text), "ab<|im_end|>%s", bad[i]);

        refused(text, (size_t)n, "no UTF-8 at its byte 12");
        refused(bad[i], strlen(bad[i]), "no UTF-8 at its byte 0");
    }
}

static void too_long_is_refused(void **state)
{
    char *text = malloc(TOKENIZER_MAX_TEXT + 1);

    (void)state;
    assert_non_null(text);
    memset(text, 'a', TOKENIZER_MAX_TEXT + 1);
    refused(text, TOKENIZER_MAX_TEXT + 1, "4194305 bytes long");
    free(text);
}

/* --------------------------------------------------------------------------- hostile length --- */

/* Encodes `unit` repeated to a megabyte. What takes n^2 steps would take hours. */
static size_t encode_megabyte(const char *unit)
{
    size_t size = 1 << 20, n = strlen(unit), length = size - size % n, count;
    char *text = malloc(size);
    clock_t start = clock();
    struct kr_err err;
    int32_t *ids;

    assert_non_null(text);
    for (size_t at = 0; at < length; at += n)
        memcpy(text + at, unit, n);
    if (tokenizer_encode(tokenizer, text, length, &ids, &count, &err) < 0)
        fail_msg("%s", err.text);
    assert_true((double)(clock() - start) / CLOCKS_PER_SEC < 60);
    for (size_t i = 0; i < count; i++)
        assert_in_range(ids[i], 0, tokenizer_vocabulary(tokenizer) - 1);
    free(ids);
    free(text);
    return count;
}

static void long_texts_take_time_in_proportion(void **state)
{
    static const char *const units[] = {"a",
                                        "a ",
                                        "ab",
                                        " ",
                                        "!",
                                        "\n",
                                        " \n",
                                        " \n!",
                                        "'s",
                                        "1",
                                        "\u4e00",
                                        "\u3000",
                                        "\u3000a",
                                        "\u0301",
                                        "\u0301\u0316",
                                        "e\u0301",
                                        "\u1161\u11a8",
                                        "\u1e69",
                                        "\U00011930\u0301",
                                        "\u0301\u0316\u08d3",
                                        "<",
                                        "<|im_start|",
                                        "<tool><|i",
                                        "<|im_end|>",
                                        "in the "};

    (void)state;
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++)
        assert_in_range(encode_megabyte(units[i]), 1 << 15, 3 << 20);
    assert_int_equal(encode_megabyte("a"), 1 << 20); /* no merge of two */
}

/* ---------------------------------------------------------------------------------- threads --- */

static void *thread_main(void *arg)
{
    (void)arg;
    return (void *)(intptr_t)check_texts();
}

static void threads_share_a_tokenizer(void **state)
{
    pthread_t threads[4];

    (void)state;
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, thread_main, NULL), 0);
    for (int i = 0; i < 4; i++) {
        void *bad;

        assert_int_equal(pthread_join(threads[i], &bad), 0);
        assert_null(bad);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_equal_the_reference),
        cmocka_unit_test(code_points_equal_the_reference),
        cmocka_unit_test(added_tokens_are_known_by_name),
        cmocka_unit_test(bad_utf8_is_refused),
        cmocka_unit_test(too_long_is_refused),
        cmocka_unit_test(long_texts_take_time_in_proportion),
        cmocka_unit_test(threads_share_a_tokenizer),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
