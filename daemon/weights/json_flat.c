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

/* Bytes of the UTF-8 sequence at s (well-formed by Unicode's table 3-7), 0 if there is none. */
static size_t sequence(const unsigned char *s)
{
    unsigned char low = 0x80, high = 0xBF;
    size_t n = s[0] >= 0xF0 ? 4 : s[0] >= 0xE0 ? 3 : 2;

    if (s[0] < 0xC2 || s[0] > 0xF4)
        return 0;
    if (s[0] == 0xE0)
        low = 0xA0;
    else if (s[0] == 0xED)
        high = 0x9F;
    else if (s[0] == 0xF0)
        low = 0x90;
    else if (s[0] == 0xF4)
        high = 0x8F;
    if (s[1] < low || s[1] > high)
        return 0;
    for (size_t i = 2; i < n; i++)
        if ((s[i] & 0xC0) != 0x80)
            return 0;
    return n;
}

/* The number that four hexadecimal digits spell, -1 if they are not. */
static int32_t hex4(const char *s)
{
    int32_t value = 0;

    for (int i = 0; i < 4; i++) {
        char c = s[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;

        if (digit < 0)
            return -1;
        value = value << 4 | digit;
    }
    return value;
}

static char *put_code_point(char *out, int32_t c)
{
    if (c < 0x80) {
        *out++ = (char)c;
        return out;
    }
    if (c < 0x800) {
        *out++ = (char)(0xC0 | c >> 6);
    } else {
        if (c < 0x10000) {
            *out++ = (char)(0xE0 | c >> 12);
        } else {
            *out++ = (char)(0xF0 | c >> 18);
            *out++ = (char)(0x80 | (c >> 12 & 0x3F));
        }
        *out++ = (char)(0x80 | (c >> 6 & 0x3F));
    }
    *out++ = (char)(0x80 | (c & 0x3F));
    return out;
}

/* \uXXXX, or two of them for a surrogate pair, at flat->at. NULL if it is neither, or a NUL. */
static char *unescape_unicode(struct json_flat *flat, char *out)
{
    int32_t c = hex4(flat->at + 2), low;

    if (c <= 0 || (c >= 0xDC00 && c <= 0xDFFF))
        return NULL;
    if (c >= 0xD800 && c <= 0xDBFF) {
        if (flat->at[6] != '\\' || flat->at[7] != 'u')
            return NULL;
        low = hex4(flat->at + 8);
        if (low < 0xDC00 || low > 0xDFFF)
            return NULL;
        c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
        flat->at += 6;
    }
    flat->at += 6;
    return put_code_point(out, c);
}

/* The escape at flat->at, never longer unescaped than escaped. NULL if there is no such escape. */
static char *unescape(struct json_flat *flat, char *out)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *found;

    if (flat->at[1] == 'u')
        return unescape_unicode(flat, out);
    found = flat->at[1] ? strchr(from, flat->at[1]) : NULL;
    if (found == NULL)
        return NULL;
    *out++ = to[found - from];
    flat->at += 2;
    return out;
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
        size_t n = c < 0x80 ? 1 : sequence((unsigned char *)flat->at);

        if (c < 0x20)
            return fail(flat,
                        flat->at == flat->end ? "the file ends within a name"
                                              : "a control character within a name",
                        err);
        if (n == 0)
            return fail(flat, "a name is not UTF-8", err);
        if (c == '\\') {
            out = unescape(flat, out);
            if (out == NULL)
                return fail(flat, "no such escape in JSON, or a NUL", err);
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
