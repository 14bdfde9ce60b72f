/* SPDX-License-Identifier: Apache-2.0
 *
 * The tokenizer with Qwen2.5's own vocabulary, which is not part of the project: 1,500 hard strings
 * with the ids that transformers gives. Runs where $KREAD_SHARED (default ../shared) has the files.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/model/tokenizer_case.h"

static void strings_equal_the_reference(void **state)
{
    const char *shared = getenv("KREAD_SHARED") ? getenv("KREAD_SHARED") : "../shared";
    struct tokenizer *tokenizer;
    struct kr_err err;
    char path[4096];
    json_t *cases;
    int bad = 0;

    (void)state;
    snprintf(path, sizeof(path), "%s/data/tokens.json", shared);
    cases = case_load(path);
    if (cases == NULL)
        skip();
    snprintf(path, sizeof(path), "%s/data/qwen25_tokenizer", shared);
    if (tokenizer_open(path, &tokenizer, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(tokenizer_vocabulary(tokenizer), 151669);
    assert_int_equal(tokenizer_added(tokenizer, "<|im_start|>"), 151644);
    assert_true(json_array_size(cases) >= 1500);
    for (size_t i = 0; i < json_array_size(cases); i++)
        bad += case_check(tokenizer, json_array_get(cases, i));
    assert_int_equal(bad, 0);
    tokenizer_close(tokenizer);
    json_decref(cases);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(strings_equal_the_reference)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
