/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/weights/draft.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static char folder[64];

/* ------------------------------------------------------------------------------ drafts ------- */

static void clear(struct draft_tensor *t)
{
    free(t->name);
    free(t->dtype);
    free(t->shape);
    free(t->data);
    memset(t, 0, sizeof *t);
}

static struct draft_tensor *find(struct draft *d, const char *name)
{
    int i;

    for (i = 0; i < d->count; i++)
        if (!strcmp(d->tensors[i].name, name))
            return &d->tensors[i];
    return NULL;
}

void draft_set(struct draft *d, const char *name, const char *dtype, const char *shape,
               const void *data, size_t bytes)
{
    struct draft_tensor *t = find(d, name);

    if (t) {
        clear(t);
    } else {
        assert_true(d->count < DRAFT_MAX);
        t = &d->tensors[d->count++];
    }
    t->name = strdup(name);
    t->dtype = strdup(dtype);
    t->shape = strdup(shape);
    t->data = calloc(1, bytes + 1);
    t->bytes = bytes;
    if (data)
        memcpy(t->data, data, bytes);
}

void draft_drop(struct draft *d, const char *name)
{
    struct draft_tensor *t = find(d, name);

    assert_non_null(t);
    clear(t);
    d->count--;
    memmove(t, t + 1, (size_t)(d->tensors + d->count - t) * sizeof *t);
}

void draft_prefix(struct draft *d, const char *prefix)
{
    int i;

    for (i = 0; i < d->count; i++) {
        char name[300];

        snprintf(name, sizeof name, "%s%s", prefix, d->tensors[i].name);
        free(d->tensors[i].name);
        d->tensors[i].name = strdup(name);
    }
}

void draft_metadata(struct draft *d, const char *json)
{
    free(d->metadata);
    d->metadata = strdup(json);
}

void draft_scale(struct draft *d, const char *name, float value)
{
    draft_set(d, name, "F32", "[]", &value, sizeof value);
}

void draft_quant(struct draft *d, const char *name, const char *json)
{
    char shape[32];

    snprintf(shape, sizeof shape, "[%zu]", strlen(json));
    draft_set(d, name, "U8", shape, json, strlen(json));
}

/* ------------------------------------------------------------------------------ files -------- */

const char *draft_path(const char *file)
{
    static char paths[4][400];
    static int next;
    char *path = paths[next++ % 4];

    snprintf(path, sizeof paths[0], "%s/%s", folder, file);
    return path;
}

static void put(FILE *f, const void *bytes, size_t size)
{
    assert_int_equal(fwrite(bytes, 1, size, f), size);
}

static void put_length(FILE *f, uint64_t length)
{
    unsigned char bytes[8];
    int i;

    for (i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(length >> 8 * i);
    put(f, bytes, sizeof bytes);
}

static FILE *create(const char *file)
{
    FILE *f = fopen(draft_path(file), "wb");

    assert_non_null(f);
    return f;
}

void draft_bytes(const char *file, const void *bytes, size_t size)
{
    FILE *f = create(file);

    put(f, bytes, size);
    fclose(f);
}

void draft_header(const char *file, const char *json, size_t data)
{
    FILE *f = create(file);

    put_length(f, strlen(json));
    put(f, json, strlen(json));
    while (data--)
        fputc(0, f);
    fclose(f);
}

void draft_header_length(const char *file, const char *json, uint64_t length)
{
    FILE *f = create(file);

    put_length(f, length);
    put(f, json, strlen(json));
    fclose(f);
}

void draft_write(struct draft *d, const char *file)
{
    char *header = NULL;
    size_t size = 0, at = 0;
    FILE *text = open_memstream(&header, &size), *f;
    int i;

    fprintf(text, "{");
    if (d->metadata)
        fprintf(text, "\"__metadata__\":%s%s", d->metadata, d->count ? "," : "");
    for (i = 0; i < d->count; i++) {
        struct draft_tensor *t = &d->tensors[i];

        fprintf(text, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}",
                i ? "," : "", t->name, t->dtype, t->shape, at, at + t->bytes);
        at += t->bytes;
    }
    fprintf(text, "}");
    fclose(text);
    f = create(file);
    put_length(f, size);
    put(f, header, size);
    for (i = 0; i < d->count; i++) {
        put(f, d->tensors[i].data, d->tensors[i].bytes);
        clear(&d->tensors[i]);
    }
    fclose(f);
    free(header);
    free(d->metadata);
    memset(d, 0, sizeof *d);
}

int draft_setup(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/kread-weights-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

int draft_teardown(void **state)
{
    DIR *dir = opendir(folder);
    struct dirent *e;

    (void)state;
    while (dir && (e = readdir(dir)))
        if (e->d_name[0] != '.')
            unlink(draft_path(e->d_name));
    if (dir)
        closedir(dir);
    return rmdir(folder);
}

/* ------------------------------------------------------------------------------ opening ------ */

static int open_file(const char *file, struct weights **w, struct kr_err *err)
{
    static const char *const prefixes[] = {
        "model.diffusion_model.", "diffusion_model.", "model.language_model.", "model.", "", NULL};

    return weights_open(draft_path(file), "diffusion model", prefixes, "probe", w, err);
}

struct weights *draft_open(const char *file)
{
    struct weights *w;
    struct kr_err err;

    if (open_file(file, &w, &err) < 0)
        fail_msg("%s", err.text);
    return w;
}

static void check(const char *file, const struct kr_err *err, enum kr_code code, va_list words)
{
    const char *word;

    if (err->code != code)
        fail_msg("code %s, want %s: %s", kr_code_name(err->code), kr_code_name(code), err->text);
    if (!strstr(err->text, file))
        fail_msg("no \"%s\" in: %s", file, err->text);
    while ((word = va_arg(words, const char *)))
        if (!strstr(err->text, word))
            fail_msg("no \"%s\" in: %s", word, err->text);
    assert_null(strpbrk(err->text, "\n\r\t\033"));
    assert_true(strlen(err->text) < sizeof err->text - 1); /* not cut */
}

void sentence(const char *file, const struct kr_err *err, enum kr_code code, ...)
{
    va_list words;

    va_start(words, code);
    check(file, err, code, words);
    va_end(words);
}

void open_refused(const char *file, struct kr_err *err)
{
    struct weights *w = (struct weights *)&w;

    memset(err, 0, sizeof *err);
    if (open_file(file, &w, err) == 0) {
        weights_close(w);
        fail_msg("%s was accepted", file);
    }
    assert_null(w);
}

void refused(const char *file, enum kr_code code, ...)
{
    struct kr_err err;
    va_list words;

    open_refused(file, &err);
    va_start(words, code);
    check(file, &err, code, words);
    va_end(words);
}
