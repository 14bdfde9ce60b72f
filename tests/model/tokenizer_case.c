/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/model/tokenizer_case.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

json_t *case_load(const char *path)
{
    return json_load_file(path, JSON_ALLOW_NUL, NULL);
}

static void show(const char *what, const int32_t *ids, const json_t *array, size_t count)
{
    print_error("%s", what);
    for (size_t i = 0; i < count && i < 100; i++)
        print_error(" %d", ids ? (int)ids[i] : (int)json_integer_value(json_array_get(array, i)));
    print_error("\n");
}

int case_check(const struct tokenizer *tokenizer, const json_t *one)
{
    const json_t *text = json_array_get(one, 0), *want = json_array_get(one, 1);
    struct kr_err err;
    int32_t *ids;
    size_t count, same = 0;
    char *dumped;

    if (tokenizer_encode(tokenizer, json_string_value(text), json_string_length(text), &ids, &count,
                         &err) < 0) {
        print_error("%s\n", err.text);
        return 1;
    }
    while (same < count && ids[same] == json_integer_value(json_array_get(want, same)))
        same++;
    if (same == count && count == json_array_size(want)) {
        free(ids);
        return 0;
    }
    dumped = json_dumps(text, JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
    print_error("%s\n", dumped);
    show("  got ", ids, NULL, count);
    show("  want", NULL, want, json_array_size(want));
    free(dumped);
    free(ids);
    return 1;
}

char *case_read(const char *folder, const char *name, size_t *length)
{
    char path[256], *text;
    FILE *f;
    long size;

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    size = ftell(f);
    rewind(f);
    text = malloc((size_t)size + 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, (size_t)size, f), size);
    text[size] = '\0';
    *length = (size_t)size;
    fclose(f);
    return text;
}
