/* SPDX-License-Identifier: Apache-2.0
 *
 * jansson builds a tree before anyone can look at it, and its parser recurses. So the text is
 * scanned first, flatly: nesting and the number of values have limits that no real header comes
 * near, and only what passes is parsed. The scan also remembers the last key of the outermost
 * object, so that a complaint about a spot in a header of 100 KB can name the tensor.
 */
#include "daemon/weights/strict_json.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/json_load.h"

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

json_t *strict_json_load(const char *text, size_t size, int depth, char *why, size_t why_size)
{
    struct scan all = scan_text(text, size);
    json_error_t error;
    json_t *root;
    bool starved;

    errno = 0;
    if (all.deepest > depth) {
        snprintf(why, why_size, "it is nested %d deep, at most %d is allowed", all.deepest, depth);
        return NULL;
    }
    if (all.values > MAX_VALUES) {
        snprintf(why, why_size, "it has over %d values", MAX_VALUES);
        return NULL;
    }
    root = kr_json_load(text, size, JSON_REJECT_DUPLICATES, &error, &starved);
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
