/* SPDX-License-Identifier: Apache-2.0
 *
 * jansson builds a tree before anyone can look at it, and its parser recurses. So the text is
 * scanned first, flatly: nesting and the number of values have limits that no real header comes
 * near, and only what passes is parsed. The scan also remembers the last key of the outermost
 * object, so that a complaint about a spot in a header of 100 KB can name the tensor.
 */
#include "daemon/weights/strict_json.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_VALUES = 1 << 20 };

struct scan {
    int depth, deepest;
    size_t values;
    bool in_string;
    const char *string;   /* where the current or last string begins */
    size_t string_length; /* of the last one */
    const char *key;      /* the last key of the outermost object */
    size_t key_length;
};

/* Steps over one byte outside of strings. */
static void scan_structure(struct scan *s, const char *at)
{
    switch (*at) {
    case '"':
        s->in_string = true;
        s->string = at + 1;
        break;
    case ':':
        if (s->depth == 1) {
            s->key = s->string;
            s->key_length = s->string_length;
        }
        break;
    case '{':
    case '[':
        if (++s->depth > s->deepest)
            s->deepest = s->depth;
        s->values++;
        break;
    case '}':
    case ']':
        s->depth--;
        break;
    case ',':
        s->values++;
        break;
    default:
        break;
    }
}

static struct scan scan_text(const char *text, size_t size)
{
    struct scan s = {0};
    size_t i;

    for (i = 0; i < size; i++) {
        if (!s.in_string) {
            scan_structure(&s, text + i);
        } else if (text[i] == '\\') {
            i++;
        } else if (text[i] == '"') {
            s.in_string = false;
            s.string_length = (size_t)(text + i - s.string);
        }
    }
    return s;
}

void strict_json_printable(char *out, size_t size, const char *text, size_t length)
{
    size_t i, n = length < size ? length : size - 1;

    for (i = 0; i < n; i++)
        out[i] = (unsigned char)text[i] >= 0x20 && (unsigned char)text[i] < 0x7f ? text[i] : '?';
    out[n] = '\0';
    if (n < length && n > 3)
        memcpy(out + n - 3, "...", 3);
}

static void explain(const char *text, size_t size, const json_error_t *error, char *why,
                    size_t why_size)
{
    char reason[JSON_ERROR_TEXT_LENGTH], key[80];
    size_t at = error->position > 0 ? (size_t)error->position : 0;
    struct scan before = scan_text(text, at < size ? at : size);

    strict_json_printable(reason, sizeof reason, error->text, strlen(error->text));
    if (json_error_code(error) == json_error_duplicate_key && before.string) {
        /* jansson itself names short keys only */
        strict_json_printable(key, sizeof key, before.string, before.string_length);
        snprintf(reason, sizeof reason, "duplicate object key %s", key);
    }
    if (before.key && before.depth > 1) {
        strict_json_printable(key, sizeof key, before.key, before.key_length);
        snprintf(why, why_size, "%s, in the entry of %s", reason, key);
    } else {
        snprintf(why, why_size, "%s", reason);
    }
}

/* ---------------------------------------------------------------------- jansson's memory ------ */

/* Where an allocation fails, jansson goes on with a string that lacks its end, reads beyond it and
 * writes what it finds. So a failure never returns to it: all that it took is given back from here,
 * and its call is left by longjmp. */
struct block {
    struct block *older, *newer; /* of the call that is under way */
    max_align_t memory[];
};

struct call {
    struct block *newest;
    jmp_buf no_memory;
};

static _Thread_local struct call *call; /* that is under way; NULL: a tree is used or freed */

static void *json_malloc(size_t size)
{
    struct block *b = size <= SIZE_MAX - sizeof(*b) ? malloc(sizeof(*b) + size) : NULL;

    if (!b && call)
        longjmp(call->no_memory, 1);
    if (!b)
        return NULL;
    b->newer = NULL;
    b->older = call ? call->newest : NULL;
    if (b->older)
        b->older->newer = b;
    if (call)
        call->newest = b;
    return b->memory;
}

static void json_free(void *at)
{
    struct block *b =
        at ? (struct block *)(void *)((char *)at - offsetof(struct block, memory)) : NULL;

    if (!b)
        return;
    if (b->older)
        b->older->newer = b->newer;
    if (b->newer)
        b->newer->older = b->older;
    if (call && call->newest == b)
        call->newest = b->older;
    free(b);
}

static void take_over_memory(void)
{
    json_set_alloc_funcs(json_malloc, json_free);
}

/* Of a call that was left, frees its blocks; else they become their tree's. */
static void end_call(struct call *ended, bool left)
{
    struct block *older;

    call = NULL;
    for (struct block *b = ended->newest; b; b = older) {
        older = b->older;
        b->older = b->newer = NULL;
        if (left)
            free(b);
    }
}

/* NULL with *starved: there was no memory. */
static json_t *load(const char *text, size_t size, json_error_t *error, bool *starved)
{
    struct call this = {0};
    json_t *root;

    call = &this;
    *starved = setjmp(this.no_memory) != 0;
    if (*starved) {
        end_call(&this, true);
        return NULL;
    }
    root = json_loadb(text, size, JSON_REJECT_DUPLICATES, error);
    end_call(&this, false);
    return root;
}

/* ------------------------------------------------------------------------------- loading ------ */

json_t *strict_json_load(const char *text, size_t size, int depth, char *why, size_t why_size)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct scan all = scan_text(text, size);
    json_error_t error;
    json_t *root;
    bool starved;

    pthread_once(&once, take_over_memory);
    errno = 0;
    if (all.deepest > depth) {
        snprintf(why, why_size, "it is nested %d deep, at most %d is allowed", all.deepest, depth);
        return NULL;
    }
    if (all.values > MAX_VALUES) {
        snprintf(why, why_size, "it has over %d values", MAX_VALUES);
        return NULL;
    }
    root = load(text, size, &error, &starved);
    errno = starved ? ENOMEM : 0;
    if (starved) {
        snprintf(why, why_size, "no memory");
    } else if (!root) {
        explain(text, size, &error, why, why_size);
    } else if (!json_is_object(root)) {
        snprintf(why, why_size, "it is no JSON object");
        json_decref(root);
        root = NULL;
    }
    return root;
}
