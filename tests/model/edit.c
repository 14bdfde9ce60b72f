/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/model/edit.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "tests/model/set.h"

/* `data` NULL: zeros, which become a hole in the file. */
struct item {
    char name[160], type[16], shape[64];
    unsigned char *data;
    size_t bytes;
};

struct edit {
    struct item *items;
    size_t count, room;
    json_t *metadata;
};

static char folder[64], path[160];

static void remove_folder(void)
{
    struct dirent **entries;
    int n = scandir(folder, &entries, NULL, NULL);

    for (int i = 0; i < n; i++) {
        snprintf(path, sizeof(path), "%s/%.80s", folder, entries[i]->d_name);
        unlink(path); /* but for . and .. */
        free(entries[i]);
    }
    if (n >= 0)
        free(entries);
    rmdir(folder);
}

/* ------------------------------------------------------------------------------------- list --- */

struct edit *edit_new(void)
{
    return calloc(1, sizeof(struct edit));
}

void edit_free(struct edit *e)
{
    for (size_t i = 0; i < e->count; i++)
        free(e->items[i].data);
    json_decref(e->metadata);
    free(e->items);
    free(e);
}

static struct item *append(struct edit *e)
{
    if (e->count == e->room) {
        e->room = 2 * e->room + 64;
        e->items = realloc(e->items, e->room * sizeof(*e->items));
        assert_non_null(e->items);
    }
    memset(&e->items[e->count], 0, sizeof(*e->items));
    return &e->items[e->count++];
}

static struct item *find(struct edit *e, const char *name)
{
    for (size_t i = 0; i < e->count; i++)
        if (strcmp(e->items[i].name, name) == 0)
            return &e->items[i];
    fail_msg("the file to edit has no %s", name);
    return NULL;
}

static size_t elements(const char *shape)
{
    size_t n = 1;

    for (const char *at = shape + 1; *at != ']' && *at != '\0';) {
        char *end;

        n *= strtoull(at, &end, 10);
        at = end + (*end == ',');
    }
    return n;
}

/* ------------------------------------------------------------------------------------- read --- */

static void read_item(struct edit *e, const char *name, json_t *entry, const char *data)
{
    json_t *offsets = json_object_get(entry, "data_offsets");
    size_t begin = (size_t)json_integer_value(json_array_get(offsets, 0));
    size_t end = (size_t)json_integer_value(json_array_get(offsets, 1));
    char *shape = json_dumps(json_object_get(entry, "shape"), JSON_COMPACT);
    struct item *item = append(e);

    snprintf(item->name, sizeof(item->name), "%s", name);
    snprintf(item->type, sizeof(item->type), "%s",
             json_string_value(json_object_get(entry, "dtype")));
    snprintf(item->shape, sizeof(item->shape), "%s", shape);
    item->bytes = end - begin;
    item->data = malloc(item->bytes + 1);
    memcpy(item->data, data + begin, item->bytes);
    free(shape);
}

struct edit *edit_load(const char *from)
{
    struct edit *e = edit_new();
    FILE *file = fopen(from, "rb");
    uint64_t header;
    char *bytes;
    long size;
    json_t *root, *entry;
    const char *name;

    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    size = ftell(file);
    rewind(file);
    bytes = malloc((size_t)size);
    assert_int_equal(fread(bytes, 1, (size_t)size, file), size);
    fclose(file);
    memcpy(&header, bytes, sizeof(header));
    root = json_loadb(bytes + 8, (size_t)header, 0, NULL);
    assert_non_null(root);
    json_object_foreach(root, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0)
            e->metadata = json_incref(entry);
        else
            read_item(e, name, entry, bytes + 8 + header);
    }
    json_decref(root);
    free(bytes);
    return e;
}

/* ------------------------------------------------------------------------------------ edits --- */

void edit_drop(struct edit *e, const char *name)
{
    struct item *item = find(e, name);

    free(item->data);
    *item = e->items[--e->count];
}

void edit_drop_all(struct edit *e, const char *start)
{
    for (size_t i = 0; i < e->count;)
        if (strncmp(e->items[i].name, start, strlen(start)) == 0)
            edit_drop(e, e->items[i].name);
        else
            i++;
}

void edit_rename(struct edit *e, const char *name, const char *to)
{
    struct item *item = find(e, name);

    snprintf(item->name, sizeof(item->name), "%s", to);
}

void edit_prefix_all(struct edit *e, const char *from, const char *to)
{
    for (size_t i = 0; i < e->count; i++) {
        char old[160];

        if (strncmp(e->items[i].name, from, strlen(from)) != 0)
            continue;
        snprintf(old, sizeof(old), "%s", e->items[i].name + strlen(from));
        snprintf(e->items[i].name, sizeof(e->items[i].name), "%.40s%.110s", to, old);
    }
}

void edit_reshape(struct edit *e, const char *name, const char *shape)
{
    struct item *item = find(e, name);

    assert_int_equal(elements(shape), elements(item->shape));
    snprintf(item->shape, sizeof(item->shape), "%s", shape);
}

void edit_resize(struct edit *e, const char *name, const char *shape)
{
    struct item *item = find(e, name);

    item->bytes = item->bytes / elements(item->shape) * elements(shape);
    free(item->data);
    item->data = NULL;
    snprintf(item->shape, sizeof(item->shape), "%s", shape);
}

void edit_zero(struct edit *e, const char *name)
{
    struct item *item = find(e, name);

    free(item->data);
    item->data = NULL;
}

static struct item *add(struct edit *e, const char *name, const char *shape)
{
    struct item *item = append(e);

    snprintf(item->name, sizeof(item->name), "%s", name);
    snprintf(item->shape, sizeof(item->shape), "%s", shape);
    strcpy(item->type, "BF16");
    item->bytes = 2 * elements(shape);
    return item;
}

static void fill(struct item *item, float mean, float factor)
{
    size_t n = item->bytes / 2;
    float *noise = malloc(n * sizeof(*noise));
    uint32_t seed = 0;

    for (const char *c = item->name; *c != '\0'; c++)
        seed = seed * 31 + (unsigned char)*c;
    set_noise(noise, n, seed);
    item->data = malloc(item->bytes);
    for (size_t i = 0; i < n; i++) {
        float value = mean + factor * noise[i];

        memcpy(item->data + 2 * i, (const char *)&value + 2, 2);
    }
    free(noise);
}

void edit_add(struct edit *e, const char *name, const char *shape, float divisor)
{
    struct item *item = add(e, name, shape);

    if (divisor != 0)
        fill(item, 0, 1 / divisor);
}

void edit_add_norm(struct edit *e, const char *name, const char *shape)
{
    fill(add(e, name, shape), 1, 0.1f);
}

/* ------------------------------------------------------------------------------------ write --- */

static char *header_of(struct edit *e)
{
    json_t *root = json_object();
    size_t at = 0;
    char *text;

    if (e->metadata != NULL)
        json_object_set(root, "__metadata__", e->metadata);
    for (size_t i = 0; i < e->count; i++) {
        struct item *item = &e->items[i];

        json_object_set_new(root, item->name,
                            json_pack("{s:s, s:o, s:[I,I]}", "dtype", item->type, "shape",
                                      json_loads(item->shape, 0, NULL), "data_offsets",
                                      (json_int_t)at, (json_int_t)(at + item->bytes)));
        at += item->bytes;
    }
    text = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    return text;
}

const char *edit_write(struct edit *e, const char *file)
{
    char *header = header_of(e);
    uint64_t length = strlen(header);
    FILE *out;

    if (folder[0] == '\0') {
        strcpy(folder, "/tmp/kread-test-XXXXXX");
        assert_non_null(mkdtemp(folder));
        atexit(remove_folder);
    }
    snprintf(path, sizeof(path), "%s/%s", folder, file);
    out = fopen(path, "wb");
    assert_non_null(out);
    fwrite(&length, sizeof(length), 1, out);
    fwrite(header, 1, length, out);
    for (size_t i = 0; i < e->count; i++) {
        if (e->items[i].data != NULL)
            fwrite(e->items[i].data, 1, e->items[i].bytes, out);
        else
            fseek(out, (long)e->items[i].bytes, SEEK_CUR);
    }
    fflush(out);
    assert_int_equal(ftruncate(fileno(out), ftell(out)), 0);
    assert_int_equal(fclose(out), 0);
    free(header);
    return path;
}
