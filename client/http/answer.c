/* SPDX-License-Identifier: Apache-2.0
 *
 * The reader that libmicrohttpd calls goes strictly forward, piece by piece; the size of the whole
 * is known before, so an answer has a Content-Length and its connection is kept.
 */
#include "client/http/answer.h"

#include <stdlib.h>
#include <string.h>

#include "client/http/base64.h"

enum { MAX_HEADERS = 16, BLOCK = 64 << 10, SMALL = 64 << 10 };

struct piece {
    const char *data;
    char *owned; /* NULL: it is the program's */
    size_t size; /* of data */
    bool base64;
};

struct answer {
    unsigned status;
    bool failed;
    struct piece *pieces;
    size_t count, capacity;
    struct {
        const char *name;
        char *value;
    } headers[MAX_HEADERS];
    size_t headers_count;
    size_t piece, at; /* the reader's place: in a piece's data */
    uint64_t *given;
};

struct answer *answer_new(unsigned status, const char *type)
{
    struct answer *a = calloc(1, sizeof *a);
    if (a != NULL) {
        a->status = status;
        answer_header(a, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    }
    return a;
}

void answer_free(struct answer *a)
{
    if (a == NULL) {
        return;
    }
    for (size_t i = 0; i < a->count; i++) {
        free(a->pieces[i].owned);
    }
    for (size_t i = 0; i < a->headers_count; i++) {
        free(a->headers[i].value);
    }
    free(a->pieces);
    free(a);
}

static void add(struct answer *a, const char *data, char *owned, size_t size, bool base64)
{
    if (a == NULL || data == NULL) {
        free(owned);
        if (a != NULL) {
            a->failed = true;
        }
        return;
    }
    if (size == 0) {
        free(owned);
        return;
    }
    if (a->count == a->capacity) {
        size_t capacity = a->capacity ? 2 * a->capacity : 4;
        struct piece *grown = realloc(a->pieces, capacity * sizeof *grown);
        if (grown == NULL) {
            a->failed = true;
            free(owned);
            return;
        }
        a->pieces = grown;
        a->capacity = capacity;
    }
    a->pieces[a->count++] =
        (struct piece){.data = data, .owned = owned, .size = size, .base64 = base64};
}

void answer_text(struct answer *a, const char *text)
{
    add(a, text, NULL, strlen(text), false);
}

void answer_bytes(struct answer *a, const char *data, size_t size)
{
    add(a, data, NULL, size, false);
}

void answer_take(struct answer *a, char *text)
{
    add(a, text, text, text ? strlen(text) : 0, false);
}

void answer_json(struct answer *a, json_t *json)
{
    answer_take(a, json ? json_dumps(json, JSON_COMPACT | JSON_ENCODE_ANY) : NULL);
    json_decref(json);
}

static void take_picture(struct answer *a, struct picture *picture, bool base64)
{
    add(a, picture->data, picture->data, picture->size, base64);
    *picture = (struct picture){0};
}

void answer_raw(struct answer *a, struct picture *picture)
{
    take_picture(a, picture, false);
}

void answer_base64(struct answer *a, struct picture *picture)
{
    take_picture(a, picture, true);
}

void answer_header(struct answer *a, const char *name, const char *value)
{
    char *copy = a ? strdup(value) : NULL;
    if (a == NULL) {
        return;
    }
    if (copy == NULL || a->headers_count == MAX_HEADERS) {
        a->failed = true;
        free(copy);
        return;
    }
    a->headers[a->headers_count].name = name;
    a->headers[a->headers_count++].value = copy;
}

unsigned answer_status(const struct answer *a)
{
    return a->status;
}

static size_t piece_length(const struct piece *p)
{
    return p->base64 ? base64_length(p->size) : p->size;
}

size_t answer_size(const struct answer *a)
{
    size_t total = 0;
    for (size_t i = 0; i < a->count; i++) {
        total += piece_length(&a->pieces[i]);
    }
    return total;
}

struct answer *answer_value(unsigned status, json_t *json)
{
    struct answer *a = answer_new(status, "application/json");
    answer_json(a, json);
    return a;
}

/* ----------------------------------------------------------------------------------- sending ---
 */

/* What fits into buf[room] of the piece at the reader's place. */
static size_t read_piece(struct answer *a, char *buf, size_t room)
{
    const struct piece *p = &a->pieces[a->piece];
    size_t left = p->size - a->at, taken;
    size_t written = 0;
    if (p->base64) {
        taken = room / 4 * 3 < left ? room / 4 * 3 : left; /* whole groups, until the last */
        written = base64_encode(p->data + a->at, taken, buf);
    } else {
        taken = written = room < left ? room : left;
        memcpy(buf, p->data + a->at, taken);
    }
    a->at += taken;
    if (a->at == p->size) {
        a->piece++;
        a->at = 0;
    }
    return written;
}

static ssize_t read_body(void *user, uint64_t position, char *buf, size_t room)
{
    struct answer *a = user;
    size_t filled = 0;
    (void)position;
    while (a->piece < a->count) {
        size_t n = read_piece(a, buf + filled, room - filled);
        if (n == 0) {
            break; /* no room for a group of four */
        }
        filled += n;
    }
    if (a->given != NULL) {
        *a->given += filled;
    }
    return filled > 0 ? (ssize_t)filled : MHD_CONTENT_READER_END_OF_STREAM;
}

static void free_body(void *user)
{
    answer_free(user);
}

/* A small body is copied, so that libmicrohttpd sends it together with the headers. */
static struct MHD_Response *small_response(struct answer *a, size_t size)
{
    char *body = malloc(size + 4);
    if (body == NULL) {
        return NULL;
    }
    for (size_t filled = 0; a->piece < a->count;) {
        filled += read_piece(a, body + filled, size + 4 - filled);
    }
    struct MHD_Response *response =
        MHD_create_response_from_buffer(size, body, MHD_RESPMEM_MUST_FREE);
    if (response == NULL) {
        free(body);
    }
    return response;
}

struct MHD_Response *answer_response(struct answer *a, uint64_t *given)
{
    size_t size = answer_size(a);
    a->given = given;
    struct MHD_Response *response =
        a->failed       ? NULL
        : size <= SMALL ? small_response(a, size)
                        : MHD_create_response_from_callback(size, BLOCK, read_body, a, free_body);
    for (size_t i = 0; response != NULL && i < a->headers_count; i++) {
        if (MHD_add_response_header(response, a->headers[i].name, a->headers[i].value) == MHD_NO) {
            MHD_destroy_response(response); /* which frees a where it is the reader's */
            a = size <= SMALL ? a : NULL;
            response = NULL;
        }
    }
    if (a != NULL && (response == NULL || size <= SMALL)) {
        answer_free(a);
    }
    return response;
}
