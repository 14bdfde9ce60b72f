/* SPDX-License-Identifier: Apache-2.0
 *
 * The safetensors reader against good files and against files that lie. A refusal is right when its
 * code is and when its sentence names the file and the tensor.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/weights/draft.h"

#define PROBE "\"probe\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}"
#define BAD   KR_BAD_FILE

/* One tensor "x" of this description behind the probe, with this many bytes of data in all. */
static void one(const char *description, size_t data)
{
    char json[1024];

    snprintf(json, sizeof json, "{" PROBE ",\"x\":%s}", description);
    draft_header("f", json, data);
}

static void good_file(void **state)
{
    struct draft d = {0};
    struct weights *w;
    int64_t dim[8];

    (void)state;
    draft_set(&d, "odd", "U8", "[3]", NULL, 3); /* what follows is unaligned */
    draft_scale(&d, "probe", 1);
    draft_set(&d, "blocks.1.x", "BF16", "[2,3]", NULL, 12);
    draft_set(&d, "blocks.10.x", "F16", "[1,2,1]", NULL, 4);
    draft_set(&d, "blocks.1.y", "F64", "[1]", NULL, 8);
    draft_set(&d, "empty", "F8_E4M3", "[0]", NULL, 0);
    draft_metadata(&d, "{\"format\":\"pt\",\"note\":\"a \\u00e9 \\n text\"}");
    draft_write(&d, "good.safetensors");
    w = draft_open("good.safetensors");
    assert_string_equal(weights_name(w), "good.safetensors");
    assert_true(weights_bytes(w) > 3 + 4 + 12 + 4 + 8);
    assert_int_equal(weights_shape(w, "blocks.1.x", dim), 2);
    assert_int_equal(dim[0], 2);
    assert_int_equal(dim[1], 3);
    assert_int_equal(weights_shape(w, "probe", dim), 0);
    assert_int_equal(weights_shape(w, "empty", dim), 1);
    assert_int_equal(dim[0], 0);
    assert_int_equal(weights_shape(w, "blocks.1", dim), -1);
    assert_int_equal(weights_shape(w, "", dim), -1);
    assert_int_equal(weights_count(w, "blocks.1."), 2);
    assert_int_equal(weights_count(w, "blocks.1"), 3);
    assert_int_equal(weights_count(w, "blocks.2."), 0);
    assert_int_equal(weights_count(w, ""), 6);
    weights_close(w);
    weights_close(NULL);
}

/* Every length that a broken download can have. */
static void truncated_everywhere(void **state)
{
    struct draft d = {0};
    unsigned char bytes[4096];
    size_t size, header, n;
    FILE *f;

    (void)state;
    draft_set(&d, "first", "BF16", "[8]", NULL, 16);
    draft_scale(&d, "probe", 1);
    draft_set(&d, "last", "F8_E4M3", "[4,4]", NULL, 16);
    draft_metadata(&d, "{\"format\":\"pt\"}");
    draft_write(&d, "whole");
    f = fopen(draft_path("whole"), "rb");
    size = fread(bytes, 1, sizeof bytes, f);
    fclose(f);
    header = 8 + (size_t)(bytes[0] | bytes[1] << 8);
    assert_int_equal(size, header + 36);
    for (n = 0; n < size; n++) {
        char there[32];

        draft_bytes("cut.safetensors", bytes, n);
        snprintf(there, sizeof there, "%zu", n);
        if (n == 0)
            refused("cut.safetensors", BAD, "empty", there, NULL);
        else if (n < header)
            refused("cut.safetensors", BAD, "truncated", there, NULL);
        else
            refused("cut.safetensors", BAD, "truncated", there, "not finished",
                    n < header + 16   ? "first"
                    : n < header + 20 ? "probe"
                                      : "last",
                    NULL);
    }
    weights_close(draft_open("whole"));
}

static void header_lengths(void **state)
{
    (void)state;
    draft_header_length("f", "{}", 0);
    refused("f", BAD, "0 bytes", NULL);
    draft_header_length("f", "{}", 1);
    refused("f", BAD, "1 bytes", NULL);
    draft_header_length("f", "{}", 3);
    refused("f", BAD, "truncated", NULL);
    draft_header_length("f", "{}", 16 << 20);
    refused("f", BAD, "truncated", NULL);
    draft_header_length("f", "{}", (16 << 20) + 1);
    refused("f", BAD, "16777217", NULL);
    draft_header_length("f", "{}", 8ull << 30);
    refused("f", BAD, "8589934592", NULL);
    draft_header_length("f", "{}", UINT64_MAX);
    refused("f", BAD, "18446744073709551615", NULL);
    draft_header_length("f", "{}", UINT64_MAX - 7); /* 8 + length is 0 */
    refused("f", BAD, "no safetensors", NULL);
    draft_header_length("f", "{}", 1ull << 63);
    refused("f", BAD, "no safetensors", NULL);
}

static void bad_json(void **state)
{
    (void)state;
    draft_header("f", "[]", 0);
    refused("f", BAD, "no safetensors", NULL);
    draft_header("f", "{}", 0);
    refused("f", BAD, "no tensor", NULL);
    draft_header("f", "{\"__metadata__\":{}}", 0);
    refused("f", BAD, "no tensor", NULL);
    draft_header("f", "{" PROBE, 4);
    refused("f", BAD, "JSON", NULL);
    draft_header("f", "{" PROBE "}x", 4);
    refused("f", BAD, "JSON", NULL);
    draft_header("f", "{" PROBE "}{}", 4);
    refused("f", BAD, "JSON", NULL);
    draft_header("f", "{" PROBE ",}", 4);
    refused("f", BAD, "JSON", NULL);
    draft_header("f", "{" PROBE ",3:{}}", 4);
    refused("f", BAD, "JSON", NULL);
    draft_header("f", "{" PROBE ",\"x\":{\"dtype\":\"F32\",\"shape\":[1}}", 4);
    refused("f", BAD, "JSON", "x", NULL);
    draft_header("f", "{" PROBE ",\"x\":{\"dtype\":\"F3\xff\"}}", 4);
    refused("f", BAD, "JSON", "x", NULL);
    draft_header("f", "{" PROBE ",\"x\\u0000y\":{}}", 4);
    refused("f", BAD, "JSON", NULL);
    draft_header("f", "{" PROBE ",\"x\xff\":{}}", 4);
    refused("f", BAD, "JSON", NULL);
    draft_header("f", "{" PROBE ",\"x\xed\xa0\x80\":{}}", 4); /* a surrogate in UTF-8 */
    refused("f", BAD, "JSON", NULL);
    draft_header("f", "{" PROBE "}   \n", 4); /* padding, as the format allows */
    weights_close(draft_open("f"));
}

static void duplicate_keys(void **state)
{
    (void)state;
    draft_header("f", "{" PROBE "," PROBE "}", 4);
    refused("f", BAD, "duplicate", "probe", NULL);
    one("{\"dtype\":\"F32\",\"shape\":[],\"shape\":[],\"data_offsets\":[4,8]}", 8);
    refused("f", BAD, "duplicate", "x", NULL);
    draft_header("f", "{\"__metadata__\":{\"a\":\"1\",\"a\":\"1\"}," PROBE "}", 4);
    refused("f", BAD, "duplicate", "a", NULL);
    draft_header("f", "{" PROBE ",\"pr\\u006fbe\":{}}", 4); /* the same name, escaped */
    refused("f", BAD, "duplicate", "pr\\u006fbe", NULL);
    draft_header("f",
                 "{" PROBE ",\"model.layers.0.mlp.up.weight\":{}"
                 ",\"model.layers.0.mlp.up.weight\":{}}",
                 4); /* too long for jansson */
    refused("f", BAD, "duplicate", "model.layers.0.mlp.up.weight", NULL);
}

static void deep(const char *open, const char *close, size_t depth, const char *why)
{
    size_t n = strlen(open), m = strlen(close), i;
    char *json = malloc(depth * (n + m) + 200), *at = json;

    at += sprintf(at, "{" PROBE ",\"x\":");
    for (i = 0; i < depth; i++, at += n)
        memcpy(at, open, n);
    *at++ = '1';
    for (i = 0; i < depth; i++, at += m)
        memcpy(at, close, m);
    strcpy(at, "}");
    draft_header("f", json, 4);
    free(json);
    refused("f", BAD, why, NULL);
}

static void deep_json(void **state)
{
    (void)state;
    deep("[", "]", 100000, "nested 100001 deep");
    deep("[", "", 1000000, "nested");
    deep("{\"a\":", "}", 100000, "nested 100001 deep");
    deep("[", "]", 8, "nested 9 deep");
    deep("[", "]", 7, "x"); /* passes the limit, and is no tensor */
}

static void many_values(void **state)
{
    size_t n = (2 << 20) + 10;
    char *json = malloc(2 * n + 200), *at = json;
    size_t i;

    (void)state;
    at += sprintf(at, "{" PROBE ",\"x\":[");
    for (i = 0; i < n; i++) {
        *at++ = i ? ',' : '1';
        if (i)
            *at++ = '1';
    }
    strcpy(at, "]}");
    draft_header("f", json, 4);
    free(json);
    refused("f", BAD, "values", NULL);
}

static void many_tensors(void **state)
{
    size_t i, n = 70000;
    char *json = malloc(n * 80 + 200), *at = json;

    (void)state;
    at += sprintf(at, "{" PROBE);
    for (i = 0; i < n; i++)
        at += sprintf(at, ",\"t%zu\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[4,4]}", i);
    strcpy(at, "}");
    draft_header("f", json, 4);
    free(json);
    refused("f", BAD, "70001", NULL);
}

static void bad_entries(void **state)
{
    static const char *const entries[] = {
        "null",
        "1",
        "\"F32\"",
        "[]",
        "{}",
        "{\"dtype\":\"F32\"}",
        "{\"dtype\":\"F32\",\"shape\":[]}",
        "{\"shape\":[],\"data_offsets\":[4,8]}",
        "{\"dtype\":\"F32\",\"data_offsets\":[4,8]}",
        "{\"dtype\":4,\"shape\":[],\"data_offsets\":[4,8]}",
        "{\"dtype\":\"\",\"shape\":[],\"data_offsets\":[4,8]}",
        "{\"dtype\":\"f32\",\"shape\":[],\"data_offsets\":[4,8]}",
        "{\"dtype\":\"A_TYPE_WITH_A_NAME_THAT_DOES_NOT_END\",\"shape\":[],\"data_offsets\":[4,8]}",
        "{\"dtype\":\"F32\",\"shape\":1,\"data_offsets\":[4,8]}",
        "{\"dtype\":\"F32\",\"shape\":{},\"data_offsets\":[4,8]}",
        "{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[4,8]}",
        "{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[4,8]}",
        "{\"dtype\":\"F32\",\"shape\":[-1,-1],\"data_offsets\":[4,8]}",
        "{\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[4,8]}",
        "{\"dtype\":\"F32\",\"shape\":[1e0],\"data_offsets\":[4,8]}",
        "{\"dtype\":\"F32\",\"shape\":[\"1\"],\"data_offsets\":[4,8]}",
        "{\"dtype\":\"F32\",\"shape\":[true],\"data_offsets\":[4,8]}",
        "{\"dtype\":\"F32\",\"shape\":[null],\"data_offsets\":[4,8]}",
        "{\"dtype\":\"F32\",\"shape\":[[1]],\"data_offsets\":[4,8]}",
        "{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":8}",
        "{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[8]}",
        "{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[4,8,8]}",
        "{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[4.0,8]}",
        "{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[-4,0]}",
        "{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[-8,-4]}",
        "{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[8,4]}",
        "{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[4,-9223372036854775808]}",
    };
    size_t i;

    (void)state;
    for (i = 0; i < sizeof entries / sizeof *entries; i++) {
        one(entries[i], 8);
        refused("f", BAD, "x", "damaged", NULL);
    }
}

static void sizes(void **state)
{
    (void)state;
    one("{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,8]}", 8);
    refused("f", BAD, "x is [2] F32", "takes 8 bytes", "span 4", NULL);
    one("{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[4,8]}", 8);
    refused("f", BAD, "x is [0] F32", NULL);
    one("{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[4,6]}", 6);
    refused("f", BAD, "x is [3] F4", "no whole number of bytes", NULL);
    one("{\"dtype\":\"F4\",\"shape\":[4],\"data_offsets\":[4,6]}", 6);
    weights_close(draft_open("f"));
    one("{\"dtype\":\"F8_E8M0\",\"shape\":[2],\"data_offsets\":[4,6]}", 6);
    weights_close(draft_open("f"));
    one("{\"dtype\":\"F9_NEW\",\"shape\":[2],\"data_offsets\":[4,6]}", 6);
    weights_close(draft_open("f"));
    one("{\"dtype\":\"F9_NEW\",\"shape\":[2],\"data_offsets\":[4,7]}", 6);
    refused("f", BAD, "x", "truncated", NULL);
}

static void huge_numbers(void **state)
{
    (void)state;
    one("{\"dtype\":\"F32\",\"shape\":[9223372036854775808],\"data_offsets\":[4,8]}", 8);
    refused("f", BAD, "too big integer", "entry of x", NULL);
    one("{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[4,18446744073709551616]}", 8);
    refused("f", BAD, "too big integer", "entry of x", NULL);
    one("{\"dtype\":\"F32\",\"shape\":[1e999],\"data_offsets\":[4,8]}", 8);
    refused("f", BAD, "entry of x", NULL);
    one("{\"dtype\":\"F32\",\"shape\":[9223372036854775807],\"data_offsets\":[4,8]}", 8);
    refused("f", BAD, "x", NULL);
    one("{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[4,4]}", 4);
    refused("f", BAD, "x", NULL); /* times 4 bytes is 0 in 64 bits */
    one("{\"dtype\":\"U8\",\"shape\":[4294967296,4294967296],\"data_offsets\":[4,4]}", 4);
    refused("f", BAD, "x", "more elements than can exist", NULL);
    one("{\"dtype\":\"U8\",\"shape\":[3037000500,3037000500],\"data_offsets\":[4,8]}", 8);
    refused("f", BAD, "x", "more elements than can exist", NULL);
    one("{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[9223372036854775803,9223372036854775807]"
        "}",
        8);
    refused("f", BAD, "x", "belong to no tensor", NULL);
    one("{\"dtype\":\"U8\",\"shape\":[9223372036854775803],"
        "\"data_offsets\":[4,9223372036854775807]}",
        8);
    refused("f", BAD, "x", NULL);
    one("{\"dtype\":\"F9_NEW\",\"shape\":[2],\"data_offsets\":[4,9223372036854775807]}", 8);
    refused("f", BAD, "x", "truncated", NULL);
}

static void layout(void **state)
{
    (void)state;
    one("{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}", 4);
    refused("f", BAD, "overlap", "x", "probe", NULL);
    one("{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[3,7]}", 7);
    refused("f", BAD, "overlap", "x", "probe", NULL);
    one("{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}", 4);
    refused("f", BAD, "overlap", "x", "probe", NULL);
    one("{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[2,2]}", 4);
    refused("f", BAD, "overlap", "x", "probe", NULL);
    one("{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[5,9]}", 9);
    refused("f", BAD, "1 bytes before x", "no tensor", NULL);
    one("{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[4,8]}", 9);
    refused("f", BAD, "1 bytes after", "x", "no tensor", NULL);
    draft_header("f", "{\"probe\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[1,5]}}", 5);
    refused("f", BAD, "1 bytes before probe", NULL);
    one("{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[4,4]}", 4);
    weights_close(draft_open("f"));
    one("{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}", 4);
    weights_close(draft_open("f"));
    one("{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[4,8],\"new\":true}",
        8); /* as upstream */
    weights_close(draft_open("f"));
}

static void metadata(void **state)
{
    static const char *const wrong[] = {"[]",        "1",          "\"x\"",       "null",
                                        "{\"a\":1}", "{\"a\":{}}", "{\"a\":null}"};
    char json[300];
    size_t i;

    (void)state;
    for (i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        snprintf(json, sizeof json, "{\"__metadata__\":%s," PROBE "}", wrong[i]);
        draft_header("f", json, 4);
        refused("f", BAD, "__metadata__", NULL);
    }
    draft_header("f", "{" PROBE ",\"__metadata__\":{}}", 4);
    weights_close(draft_open("f"));
}

static void names(void **state)
{
    char json[1024], name[300];

    (void)state;
    draft_header("f", "{" PROBE ",\"\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[4,4]}}",
                 4);
    refused("f", BAD, "empty name", NULL);
    draft_header(
        "f", "{" PROBE ",\"a\\nb\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[4,4]}}", 4);
    refused("f", BAD, "a?b", "control", NULL);
    draft_header(
        "f", "{" PROBE ",\"\\u001b[31m\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[4,4]}}",
        4);
    refused("f", BAD, "?[31m", "control", NULL);
    draft_header(
        "f", "{" PROBE ",\"a\\u009bm\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[4,4]}}",
        4);
    refused("f", BAD, "control", NULL);
    draft_header(
        "f", "{" PROBE ",\"a\xc3\xa9\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[4,4]}}",
        4);
    weights_close(draft_open("f"));
    memset(name, 'n', sizeof name);
    name[201] = '\0';
    snprintf(json, sizeof json,
             "{" PROBE ",\"%s\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[4,4]}}", name);
    draft_header("f", json, 4);
    refused("f", BAD, "nnnn", "201 bytes", NULL);
    name[200] = '\0';
    snprintf(json, sizeof json,
             "{" PROBE ",\"%s\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[4,4]}}", name);
    draft_header("f", json, 4);
    weights_close(draft_open("f"));
}

static void file_names(void **state)
{
    static const struct {
        const char *file, *shown;
    } names[] = {
        {"mod\xc3\xa8le.safetensors", "mod\xc3\xa8le.safetensors"},
        {"a\nb\033[31m.safetensors", "a?b?[31m.safetensors"},
        {"a\xff.safetensors", "a?.safetensors"},
        {"a\xc2\x9bm.safetensors", "a??m.safetensors"},
        /* 83 bytes are shown; the 83rd is in the middle of a character */
        {"1234567890123456789012345678901234567890123456789012345678901234567890123456789012\xc3"
         "\xa8"
         ".safetensors",
         "123456789012: a tensor"},
    };
    struct kr_err err;
    size_t i;

    (void)state;
    for (i = 0; i < sizeof names / sizeof *names; i++) {
        struct weights *w;

        draft_header(names[i].file, "{" PROBE "}", 4);
        w = draft_open(names[i].file);
        if (i < 4)
            assert_string_equal(weights_name(w), names[i].shown);
        else
            assert_string_equal(weights_name(w), names[i].file);
        weights_close(w);
        draft_header(names[i].file, "{\"\":{}}", 4);
        open_refused(names[i].file, &err);
        sentence(names[i].shown, &err, BAD, "empty name", NULL);
    }
}

static void other_kinds_of_file(void **state)
{
    static const struct {
        const char *bytes;
        size_t size;
        const char *word;
    } files[] = {
        {"GGUF\3\0\0\0\0\0\0\0\0\0\0\0", 16, "GGUF"},
        {"PK\3\4\0\0\10\10\0\0\0\0\0\0", 14, "pickle"},
        {"\x80\2\x8a\nl\xfc\x9c\x46\xf9 j\xa8P", 13, "pickle"},
        {"<!DOCTYPE html><html>", 21, "web page"},
        {"version https://git-lfs.github.com/spec/v1\n", 43, "LFS"},
        {"{\"metadata\":{},\"weight_map\":{}}", 31, "JSON"},
        {"GGUF", 4, "GGUF"},
        {"\0\0\0\0\0\0\0\0\0\0\0\0", 12, "no safetensors"},
        {"some words that are no model", 28, "no safetensors"},
    };
    size_t i;

    (void)state;
    for (i = 0; i < sizeof files / sizeof *files; i++) {
        draft_bytes("other.file", files[i].bytes, files[i].size);
        refused("other.file", BAD, files[i].word, NULL);
    }
}

/* A header of 640 bytes starts like a pickle, one of 123 like JSON. */
static void telling_lengths(void **state)
{
    static const int lengths[] = {0x280, 0x380, 0x480, 0x580, 0x7b, 0x8b1f};
    char *json = malloc(0x8b20);
    size_t i;

    (void)state;
    for (i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        memset(json, ' ', (size_t)lengths[i]);
        memcpy(json, "{" PROBE "}", sizeof "{" PROBE "}" - 1);
        json[lengths[i]] = '\0';
        draft_header("f", json, 4);
        weights_close(draft_open("f"));
    }
    free(json);
}

static void not_a_file(void **state)
{
    (void)state;
    refused("absent.safetensors", KR_BAD_CONFIG, "does not exist", "diffusion model", NULL);
    refused(".", BAD, "folder", NULL);
    assert_int_equal(mkfifo(draft_path("fifo"), 0600), 0);
    refused("fifo", BAD, "no regular file", NULL);
    assert_int_equal(symlink("loop", draft_path("loop")), 0);
    refused("loop", KR_IO, "symbolic links", NULL);
    draft_bytes("plain", "x", 1);
    refused("plain/x.safetensors", KR_BAD_CONFIG, "does not exist", NULL);
    if (geteuid() != 0) {
        chmod(draft_path("plain"), 0);
        refused("plain", KR_IO, "Permission denied", NULL);
    }
}

static void changed_later(void **state)
{
    struct weights *w;
    struct kr_err err;

    (void)state;
    draft_header("f", "{" PROBE "}", 4);
    w = draft_open("f");
    assert_int_equal(weights_unchanged(w, &err), 0);
    assert_int_equal(truncate(draft_path("f"), 20), 0);
    assert_int_equal(weights_unchanged(w, &err), -1);
    sentence("f", &err, BAD, "changed", "restart", NULL);
    weights_close(w);
    draft_header("f", "{" PROBE "}", 4);
    draft_header("g", "{" PROBE "}", 4);
    w = draft_open("f");
    assert_int_equal(rename(draft_path("g"), draft_path("f")), 0);
    assert_int_equal(weights_unchanged(w, &err), 0);
    weights_close(w);
}

static void advice(void **state)
{
    struct draft d = {0};
    struct weights *w;
    int i;

    (void)state;
    draft_scale(&d, "probe", 1);
    draft_set(&d, "x", "U8", "[1000,1000]", NULL, 1000000);
    draft_write(&d, "f");
    w = draft_open("f");
    for (i = 0; i < 20; i++) {
        weights_want(w);
        weights_want(w);
        if (i % 2)
            weights_release(w);
    }
    weights_close(w);
    w = draft_open("f"); /* closed while the thread may run */
    weights_want(w);
    weights_close(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_file),       cmocka_unit_test(truncated_everywhere),
        cmocka_unit_test(header_lengths),  cmocka_unit_test(bad_json),
        cmocka_unit_test(duplicate_keys),  cmocka_unit_test(deep_json),
        cmocka_unit_test(many_values),     cmocka_unit_test(many_tensors),
        cmocka_unit_test(bad_entries),     cmocka_unit_test(sizes),
        cmocka_unit_test(huge_numbers),    cmocka_unit_test(layout),
        cmocka_unit_test(metadata),        cmocka_unit_test(names),
        cmocka_unit_test(file_names),      cmocka_unit_test(other_kinds_of_file),
        cmocka_unit_test(telling_lengths), cmocka_unit_test(not_a_file),
        cmocka_unit_test(changed_later),   cmocka_unit_test(advice),
    };

    return cmocka_run_group_tests(tests, draft_setup, draft_teardown);
}
