/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the tokenizer with texts, on the small golden tokenizer. What is UTF-8 must become ids of
 * the vocabulary whose bytes, put together, are canonically equivalent to the text; anything else
 * must be refused.
 */
#include <assert.h>
#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "daemon/model/tokenizer.h"

#define GOLDEN "tests/golden/tokenizer"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct tokenizer *tokenizer;
static char **bytes_of; /* by id */
static size_t *length_of;

/* The bytes of a name in the vocabulary, whose letters up to U+0143 stand for one byte each. */
static size_t unspell(const char *name, char *out)
{
    static const char gaps[] =
        "\x7f\x80\x81\x82\x83\x84\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x8f"
        "\x90\x91\x92\x93\x94\x95\x96\x97\x98\x99\x9a\x9b\x9c\x9d\x9e\x9f\xa0"
        "\xad";
    const utf8proc_uint8_t *at = (const utf8proc_uint8_t *)name;
    size_t n = 0;

    while (*at) {
        utf8proc_int32_t c;

        at += utf8proc_iterate(at, -1, &c);
        out[n++] = c < 0x100 ? (char)c : c <= 0x120 ? (char)(c - 0x100) : gaps[c - 0x121];
    }
    return n;
}

static void keep(size_t id, const char *bytes, size_t length)
{
    assert(id < tokenizer_vocabulary(tokenizer));
    bytes_of[id] = malloc(length + 1);
    assert(bytes_of[id]);
    memcpy(bytes_of[id], bytes, length);
    length_of[id] = length;
}

static void load(void)
{
    json_t *vocab = json_load_file(GOLDEN "/vocab.json", 0, NULL), *value;
    json_t *config = json_load_file(GOLDEN "/tokenizer_config.json", 0, NULL);
    const char *name;
    struct kr_err err;

    assert(tokenizer_open(GOLDEN, &tokenizer, &err) == 0);
    bytes_of = calloc(tokenizer_vocabulary(tokenizer), sizeof(*bytes_of));
    length_of = calloc(tokenizer_vocabulary(tokenizer), sizeof(*length_of));
    assert(bytes_of && length_of);
    json_object_foreach(vocab, name, value)
    {
        char bytes[256];

        assert(strlen(name) <= sizeof(bytes));
        keep((size_t)json_integer_value(value), bytes, unspell(name, bytes));
    }
    json_object_foreach(json_object_get(config, "added_tokens_decoder"), name, value)
    {
        const char *content = json_string_value(json_object_get(value, "content"));

        assert(tokenizer_added(tokenizer, content) == atoi(name));
        keep((size_t)atoi(name), content, strlen(content));
    }
    json_decref(vocab);
    json_decref(config);
}

static char *join(const int32_t *ids, size_t count, size_t *length)
{
    size_t room = 1;
    char *joined;

    for (size_t i = 0; i < count; i++) {
        assert(ids[i] >= 0 && (size_t)ids[i] < tokenizer_vocabulary(tokenizer));
        assert(bytes_of[ids[i]]);
        room += length_of[ids[i]];
    }
    joined = malloc(room);
    assert(joined);
    *length = 0;
    for (size_t i = 0; i < count; i++) {
        memcpy(joined + *length, bytes_of[ids[i]], length_of[ids[i]]);
        *length += length_of[ids[i]];
    }
    return joined;
}

/* Canonical decomposition; -1 if it is no UTF-8. */
static utf8proc_ssize_t decompose(const char *text, size_t length, utf8proc_uint8_t **out)
{
    return utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)length, out,
                        UTF8PROC_STABLE | UTF8PROC_DECOMPOSE);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kr_err err = {0};
    utf8proc_uint8_t *want = NULL, *got = NULL;
    utf8proc_ssize_t want_length;
    size_t count, length;
    int32_t *ids;
    char *joined;

    if (tokenizer == NULL)
        load();
    want_length = decompose((const char *)data, size, &want);
    if (tokenizer_encode(tokenizer, (const char *)data, size, &ids, &count, &err) < 0) {
        assert(want_length < 0 && err.code == KR_BAD_REQUEST && err.text[0] && ids == NULL);
        return 0;
    }
    assert(want_length >= 0);
    joined = join(ids, count, &length);
    assert(decompose(joined, length, &got) == want_length);
    assert(memcmp(got, want, (size_t)want_length) == 0);
    free(joined);
    free(got);
    free(want);
    free(ids);
    return 0;
}
