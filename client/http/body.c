/* SPDX-License-Identifier: Apache-2.0
 *
 * jansson parses by recursion and allocates as it goes, so the depth is bounded before it sees the
 * text. The scan knows only strings and brackets; whether the text is JSON is jansson's to say.
 */
#include "client/http/body.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/fields.h"
#include "proto/json_load.h"

static bool too_deep(const char *s, size_t size)
{
    bool inside = false; /* a string */
    int depth = 0;
    for (size_t i = 0; i < size; i++) {
        if (inside && s[i] == '\\') {
            i++; /* whatever it escapes */
        } else if (inside) {
            inside = s[i] != '"';
        } else if (s[i] == '"') {
            inside = true;
        } else if (s[i] == '[' || s[i] == '{') {
            if (++depth > BODY_DEPTH) {
                return true;
            }
        } else if (s[i] == ']' || s[i] == '}') {
            depth--;
        }
    }
    return false;
}

/* jansson's words may quote the text; only the place is told. */
static json_t *invalid(const json_error_t *why, const char **what, struct kr_err *err)
{
    *what = "invalid json";
    switch (json_error_code(why)) {
    case json_error_numeric_overflow:
        kr_fail(err, KR_BAD_REQUEST, "the number at byte %d of the body is too large",
                why->position);
        break;
    case json_error_invalid_utf8:
        kr_fail(err, KR_BAD_REQUEST, "the body is not valid UTF-8");
        break;
    case json_error_null_character:
    case json_error_null_byte_in_key:
        kr_fail(err, KR_BAD_REQUEST, "a text in the body contains a NUL character; leave it out");
        break;
    default:
        kr_fail(err, KR_BAD_REQUEST, "the body is no JSON from byte %d on (line %d)", why->position,
                why->line);
    }
    return NULL;
}

json_t *body_read(const char *body, size_t size, const char **what, struct kr_err *err)
{
    json_error_t why;
    if (size >= 3 && memcmp(body, "\xef\xbb\xbf", 3) == 0) {
        body += 3;
        size -= 3;
    }
    while (size > 0 && strchr(" \t\r\n", *body) != NULL && *body) {
        body++;
        size--;
    }
    if (size == 0) {
        *what = "empty body";
        kr_fail(err, KR_BAD_REQUEST, "the request has no body; send a JSON object");
        return NULL;
    }
    if (too_deep(body, size)) {
        *what = "invalid json";
        kr_fail(err, KR_BAD_REQUEST, "the body nests deeper than %d levels", BODY_DEPTH);
        return NULL;
    }
    bool no_memory;
    json_t *json = kr_json_load(body, size, JSON_DECODE_ANY, &why, &no_memory);
    if (no_memory) {
        kr_fail(err, KR_NO_MEMORY, "no memory for the body");
        return NULL;
    }
    if (json == NULL) {
        return invalid(&why, what, err);
    }
    if (!json_is_object(json)) {
        json_decref(json);
        *what = "invalid json";
        kr_fail(err, KR_BAD_REQUEST, "the body is no JSON object");
        return NULL;
    }
    return json;
}

/* ------------------------------------------------------------------------------------ values ---
 */

static bool blank(const char *text)
{
    return text[strspn(text, " \t\r\n")] == 0;
}

static bool whole(double value)
{
    return kr_integral(value) || value >= 9223372036854775807.0 || value < -9223372036854775808.0;
}

static int64_t nearest(double value)
{
    return value >= 9223372036854775807.0    ? INT64_MAX
           : value <= -9223372036854775808.0 ? INT64_MIN
                                             : (int64_t)value;
}

/* A decimal number and nothing else; strtod() alone would take "nan", "inf" and hexadecimal. */
static bool text_real(const char *text, double *value)
{
    char *end;
    if (text[strspn(text, " \t+-.0123456789eE")] != 0) {
        return false;
    }
    *value = strtod(text, &end);
    return end != text && blank(end) && __builtin_isfinite(*value);
}

static bool text_int(const char *text, int64_t *value)
{
    char *end;
    double real;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (end != text && blank(end)) {
        *value = number; /* the nearest end on overflow */
        return true;
    }
    if (!text_real(text, &real) || !whole(real)) {
        return false;
    }
    *value = nearest(real);
    return true;
}

static enum body_found found(bool good)
{
    return good ? BODY_FOUND : BODY_STRANGE;
}

enum body_found body_int(const json_t *object, const char *key, int64_t *value)
{
    const json_t *v = json_object_get(object, key);
    if (v == NULL || json_is_null(v) || (json_is_string(v) && blank(json_string_value(v)))) {
        return BODY_ABSENT;
    }
    if (json_is_integer(v)) {
        *value = json_integer_value(v);
        return BODY_FOUND;
    }
    if (json_is_real(v)) {
        double real = json_real_value(v);
        *value = nearest(real);
        return found(whole(real));
    }
    return found(json_is_string(v) && text_int(json_string_value(v), value));
}

enum body_found body_real(const json_t *object, const char *key, double *value)
{
    const json_t *v = json_object_get(object, key);
    if (v == NULL || json_is_null(v) || (json_is_string(v) && blank(json_string_value(v)))) {
        return BODY_ABSENT;
    }
    if (json_is_number(v)) {
        *value = json_number_value(v);
        return BODY_FOUND;
    }
    return found(json_is_string(v) && text_real(json_string_value(v), value));
}

enum body_found body_text(const json_t *object, const char *key, const char **value)
{
    const json_t *v = json_object_get(object, key);
    if (v == NULL || json_is_null(v)) {
        return BODY_ABSENT;
    }
    if (!json_is_string(v)) {
        return BODY_STRANGE;
    }
    *value = json_string_value(v);
    return BODY_FOUND;
}

bool body_true(const json_t *object, const char *key)
{
    const json_t *v = json_object_get(object, key);
    const char *text = json_string_value(v);
    return json_is_true(v) || (json_is_integer(v) && json_integer_value(v) != 0) ||
           (text != NULL && strcmp(text, "true") == 0);
}
