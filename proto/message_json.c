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

#include "proto/utf8.h"

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

static bool json_escape(struct json *j)
{
    char text[4];
    size_t n, size = kr_utf8_unescape(j->at, text, &n);
    j->at += size;
    return size > 0 && kr_out_raw(j->out, text, n);
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
        if (*j->at != '\\' || !json_escape(j)) { /* a bare control character, or the text's end */
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
