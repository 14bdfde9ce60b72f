/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/engine/files.h"

#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>
#include <jansson.h>

static void write_file(const char *path, const char *data, size_t size)
{
    FILE *file = fopen(path, "wb");

    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

void files_copy(const char *set, char folder[64])
{
    static const char *const names[] = {"dit.safetensors",      "te.safetensors",
                                        "vae.safetensors",      "tokenizer/vocab.json",
                                        "tokenizer/merges.txt", "tokenizer/tokenizer_config.json"};
    char path[600];

    strcpy(folder, "/tmp/kread-files-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/tokenizer", folder);
    assert_int_equal(mkdir(path, 0700), 0);
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        size_t size;
        char *data;

        snprintf(path, sizeof(path), "%s/%s", set, names[i]);
        data = read_file(path, &size);
        assert_non_null(data);
        snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
        write_file(path, data, size);
        free(data);
    }
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

void files_remove(const char *folder)
{
    nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* Where a tensor's data ends in the file, and its type. */
static size_t find_tensor(const char *data, const char *tensor, char dtype[16])
{
    uint64_t length;
    json_t *root, *entry;
    size_t end;

    memcpy(&length, data, 8);
    root = json_loadb(data + 8, length, 0, NULL);
    entry = json_object_get(root, tensor);
    if (!entry)
        fail_msg("no tensor %s", tensor);
    snprintf(dtype, 16, "%s", json_string_value(json_object_get(entry, "dtype")));
    end = (size_t)json_integer_value(json_array_get(json_object_get(entry, "data_offsets"), 1));
    json_decref(root);
    return 8 + (size_t)length + end;
}

void files_plant_nan(const char *folder, const char *file, const char *tensor)
{
    static const struct {
        const char *dtype, *bytes;
        size_t size;
    } nans[] = {{"F8_E4M3", "\x7f", 1},
                {"F8_E5M2", "\x7f", 1},
                {"BF16", "\xc0\x7f", 2},
                {"F16", "\x00\x7e", 2},
                {"F32", "\x00\x00\xc0\x7f", 4}};
    char path[600], dtype[16];
    size_t size, at, i;
    char *data;

    snprintf(path, sizeof(path), "%s/%s", folder, file);
    data = read_file(path, &size);
    at = find_tensor(data, tensor, dtype);
    for (i = 0; i < 5 && strcmp(nans[i].dtype, dtype) != 0; i++)
        ;
    assert_in_range(i, 0, 4);
    memcpy(data + at - nans[i].size, nans[i].bytes, nans[i].size);
    write_file(path, data, size);
    free(data);
}

void files_replace(const char *folder, const char *file, const char *from, const char *to)
{
    char path[600], *data, *at, *changed;
    size_t size, before, after;

    snprintf(path, sizeof(path), "%s/%s", folder, file);
    data = read_file(path, &size);
    at = memmem(data, size, from, strlen(from));
    assert_non_null(at);
    before = (size_t)(at - data);
    after = size - before - strlen(from);
    changed = malloc(size + strlen(to));
    memcpy(changed, data, before);
    memcpy(changed + before, to, strlen(to));
    memcpy(changed + before + strlen(to), at + strlen(from), after);
    write_file(path, changed, before + strlen(to) + after);
    free(changed);
    free(data);
}
