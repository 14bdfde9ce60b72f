/* SPDX-License-Identifier: Apache-2.0
 *
 * Why not jansson, which parses everything else: a vocabulary has 151,643 pairs, and as a tree of
 * values they take 160 ms and 24 MB, of which nothing is kept. This pass takes a twentieth of that.
 * It accepts what RFC 8259 does within the one form that it is for.
 *
 * The NUL behind the text is a sentinel: no step looks further than one byte ahead of a byte that
 * it has accepted, and a NUL is never accepted.
 */
#include "daemon/weights/json_flat.h"

#include <string.h>

#include "proto/utf8.h"

void json_flat_init(struct json_flat *flat, const char *file, char *text, size_t length)
{
    *flat = (struct json_flat){.file = file, .start = text, .at = text, .end = text + length};
}

static int fail(const struct json_flat *flat, const char *why, struct kr_err *err)
{
    return kr_fail(err, KR_BAD_FILE, "%s: byte %zu: %s", flat->file,
                   (size_t)(flat->at - flat->start), why);
}

static void skip_space(struct json_flat *flat)
{
    while (*flat->at == ' ' || *flat->at == '\n' || *flat->at == '\r' || *flat->at == '\t')
        flat->at++;
}

/* Steps over one structural character with the space around it. */
static bool accept(struct json_flat *flat, char c)
{
    skip_space(flat);
    if (*flat->at != c)
        return false;
    flat->at++;
    skip_space(flat);
    return true;
}

static int read_string(struct json_flat *flat, const char **string, size_t *length,
                       struct kr_err *err)
{
    char *out;

    if (*flat->at != '"')
        return fail(flat, "want a name in double quotes", err);
    out = ++flat->at;
    *string = out;
    while (*flat->at != '"') {
        unsigned char c = (unsigned char)*flat->at;
        size_t n = kr_utf8_decode(flat->at, (size_t)(flat->end - flat->at) + 1, NULL);

        if (c < 0x20)
            return fail(flat,
                        flat->at == flat->end ? "the file ends within a name"
                                              : "a control character within a name",
                        err);
        if (n == 0)
            return fail(flat, "a name is not UTF-8", err);
        if (c == '\\') {
            size_t escape = kr_utf8_unescape(flat->at, out, &n);

            if (escape == 0)
                return fail(flat, "no such escape in JSON, or a NUL", err);
            flat->at += escape;
            out += n;
            continue;
        }
        while (n-- > 0)
            *out++ = *flat->at++;
    }
    *length = (size_t)(out - *string);
    flat->at++;
    return 0;
}

static int read_integer(struct json_flat *flat, int64_t *value, struct kr_err *err)
{
    bool negative = *flat->at == '-';
    const char *digits = flat->at += negative;
    int64_t v = 0;

    while (*flat->at >= '0' && *flat->at <= '9' && flat->at - digits < 18)
        v = v * 10 + (*flat->at++ - '0');
    if (flat->at == digits || (*digits == '0' && flat->at - digits > 1) ||
        (*flat->at && strchr("0123456789.eE", *flat->at)))
        return fail(flat, "want a whole number of at most 18 digits", err);
    *value = negative ? -v : v;
    return 0;
}

int json_flat_next(struct json_flat *flat, const char **name, size_t *length, int64_t *value,
                   struct kr_err *err)
{
    bool first = !flat->inside;

    if (flat->done)
        return 0;
    if (first && !accept(flat, '{'))
        return fail(flat, "want an object of names and numbers", err);
    flat->inside = true;
    if (accept(flat, '}')) {
        flat->done = true;
        return flat->at == flat->end ? 0 : fail(flat, "text after the end of the object", err);
    }
    if (!first && !accept(flat, ','))
        return fail(flat,
                    flat->at == flat->end ? "the file ends within its object"
                                          : "want a comma or the end of the object",
                    err);
    if (read_string(flat, name, length, err) < 0)
        return -1;
    if (!accept(flat, ':'))
        return fail(flat, "want a colon", err);
    return read_integer(flat, value, err) < 0 ? -1 : 1;
}
