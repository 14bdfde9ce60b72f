/* SPDX-License-Identifier: Apache-2.0
 *
 * JSON to MessagePack, one way. The engine describes itself in JSON (its facts also go into files
 * and to people), but a client of the socket should need no second decoder, so the server sends
 * such texts as MessagePack maps. A strict RFC 8259 reader: what the grammar does not allow is an
 * error, and then nothing has been written. MessagePack wants a count or a length before what is
 * counted, so those are written in their 4-byte forms and filled in afterwards.
 */
#include "proto/message.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH = KR_MAX_DEPTH - 2 }; /* it will lie inside the response and its result */

struct json {
    const char *at;
    struct kr_out *out;
    int depth;
};

static bool json_value(struct json *j);

static void skip_blank(struct json *j)
{
    j->at += strspn(j->at, " \t\r\n");
}

static bool accept(struct json *j, char c)
{
    if (*j->at != c) {
        return false;
    }
    j->at++;
    return true;
}

/* A header whose 4-byte count is filled in later: its place, or SIZE_MAX without memory. */
static size_t header_open(struct json *j, unsigned char kind)
{
    const char raw[5] = {(char)kind};
    return kr_out_raw(j->out, raw, sizeof raw) ? j->out->size - 4 : SIZE_MAX;
}

static bool header_close(struct json *j, size_t place, uint64_t count)
{
    if (count > UINT32_MAX) {
        return false;
    }
    for (int i = 0; i < 4; i++) {
        j->out->data[place + (size_t)i] = (char)(count >> (24 - 8 * i));
    }
    return true;
}

/* --------------------------------------------------------------------------------- strings --- */

static bool hex4(struct json *j, uint32_t *code)
{
    *code = 0;
    for (int i = 0; i < 4; i++) {
        static const char digits[] = "0123456789abcdef";
        char c = *j->at;
        const char *found = c ? strchr(digits, c >= 'A' && c <= 'F' ? c + 32 : c) : NULL;
        if (found == NULL) {
            return false;
        }
        *code = *code << 4 | (uint32_t)(found - digits);
        j->at++;
    }
    return true;
}

static bool put_code(struct json *j, uint32_t c)
{
    char s[4];
    size_t n = 0;
    if (c < 0x80) {
        s[n++] = (char)c;
    } else if (c < 0x800) {
        s[n++] = (char)(0xc0 | c >> 6);
    } else if (c < 0x10000) {
        s[n++] = (char)(0xe0 | c >> 12);
        s[n++] = (char)(0x80 | (c >> 6 & 0x3f));
    } else {
        s[n++] = (char)(0xf0 | c >> 18);
        s[n++] = (char)(0x80 | (c >> 12 & 0x3f));
        s[n++] = (char)(0x80 | (c >> 6 & 0x3f));
    }
    if (c >= 0x80) {
        s[n++] = (char)(0x80 | (c & 0x3f));
    }
    return kr_out_raw(j->out, s, n);
}

/* After "\u": one code, or the two halves of a pair. Zero and half pairs are refused. */
static bool json_unicode(struct json *j)
{
    uint32_t code, low;
    if (!hex4(j, &code) || code == 0 || (code >= 0xdc00 && code < 0xe000)) {
        return false;
    }
    if (code >= 0xd800 && code < 0xdc00) {
        if (!accept(j, '\\') || !accept(j, 'u') || !hex4(j, &low) || low < 0xdc00 || low > 0xdfff) {
            return false;
        }
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    return put_code(j, code);
}

static bool json_escape(struct json *j)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    char c = *j->at;
    if (c == 0) {
        return false;
    }
    j->at++;
    if (c == 'u') {
        return json_unicode(j);
    }
    const char *found = strchr(names, c);
    return found != NULL && kr_out_raw(j->out, &values[found - names], 1);
}

static bool json_string(struct json *j)
{
    size_t place = header_open(j, 0xdb);
    if (place == SIZE_MAX || !accept(j, '"')) {
        return false;
    }
    while (!accept(j, '"')) {
        const char *start = j->at;
        while ((unsigned char)*j->at >= 0x20 && *j->at != '"' && *j->at != '\\') {
            j->at++;
        }
        size_t plain = (size_t)(j->at - start);
        if (plain > 0 && (!kr_utf8_valid(start, plain) || !kr_out_raw(j->out, start, plain))) {
            return false;
        }
        if (*j->at == '"') {
            continue;
        }
        if (!accept(j, '\\') || !json_escape(j)) { /* a bare control character, or the text's end */
            return false;
        }
    }
    return header_close(j, place, j->out->size - place - 4);
}

/* -------------------------------------------------------------------------------- the rest --- */

static size_t digit_run(const char *s)
{
    return strspn(s, "0123456789");
}

static bool json_number(struct json *j)
{
    const char *start = j->at, *p = start + (*start == '-');
    size_t n = digit_run(p);
    bool integral = true;
    if (n == 0 || (n > 1 && *p == '0')) {
        return false;
    }
    p += n;
    if (*p == '.') {
        integral = false;
        n = digit_run(++p);
        if (n == 0) {
            return false;
        }
        p += n;
    }
    if (*p == 'e' || *p == 'E') {
        integral = false;
        p++;
        p += *p == '-' || *p == '+';
        n = digit_run(p);
        if (n == 0) {
            return false;
        }
        p += n;
    }
    j->at = p;
    errno = 0;
    long long whole = integral ? strtoll(start, NULL, 10) : 0;
    if (integral && errno == 0) {
        kr_out_int(j->out, whole);
    } else {
        double real = strtod(start, NULL);
        if (!isfinite(real)) {
            return false;
        }
        kr_out_real(j->out, real);
    }
    return true;
}

static bool json_list(struct json *j, bool map)
{
    char end = map ? '}' : ']';
    uint64_t count = 0;
    size_t place = header_open(j, map ? 0xdf : 0xdd);
    if (place == SIZE_MAX || ++j->depth > DEPTH) {
        return false;
    }
    j->at++;
    skip_blank(j);
    while (!accept(j, end)) {
        if (count > 0 && !accept(j, ',')) {
            return false;
        }
        skip_blank(j);
        if (map) {
            if (!json_string(j)) {
                return false;
            }
            skip_blank(j);
            if (!accept(j, ':')) {
                return false;
            }
        }
        if (!json_value(j)) {
            return false;
        }
        skip_blank(j);
        count++;
    }
    j->depth--;
    return header_close(j, place, count);
}

static bool json_word(struct json *j)
{
    static const char *const words[] = {"null", "false", "true"};
    for (int i = 0; i < 3; i++) {
        if (strncmp(j->at, words[i], strlen(words[i])) == 0) {
            j->at += strlen(words[i]);
            if (i == 0) {
                kr_out_nil(j->out);
            } else {
                kr_out_bool(j->out, i == 2);
            }
            return true;
        }
    }
    return false;
}

/* Recurses once a level, DEPTH times at most. */
static bool json_value(struct json *j)
{
    skip_blank(j);
    switch (*j->at) {
    case '{':
        return json_list(j, true);
    case '[':
        return json_list(j, false);
    case '"':
        return json_string(j);
    case 'n':
    case 'f':
    case 't':
        return json_word(j);
    default:
        return json_number(j);
    }
}

int kr_out_json(struct kr_out *out, const char *json, struct kr_err *err)
{
    struct json j = {.at = json, .out = out};
    size_t before = out->size;
    bool good = json_value(&j);
    skip_blank(&j);
    if (out->failed) {
        return kr_fail(err, KR_NO_MEMORY, "no memory for a message");
    }
    if (!good || *j.at != 0) {
        out->size = before;
        return kr_fail(err, KR_IO, "the report is no JSON of at most %d levels, from byte %td on",
                       (int)DEPTH, j.at - json);
    }
    return 0;
}
