/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/utf8.h"

#include <string.h>

/* The range of the second byte is what excludes overlong forms, surrogates and too high codes. */
size_t kr_utf8_decode(const char *text, size_t length, uint32_t *code)
{
    const unsigned char *s = (const unsigned char *)text;
    unsigned char c = s[0], low = 0x80, high = 0xbf;
    size_t size = c < 0x80 ? 1 : c < 0xc2 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 0;
    uint32_t value = size > 1 ? c & (0x7fu >> size) : c;
    if (size == 0 || size > length) {
        return 0;
    }
    low = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : low;
    high = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : high;
    for (size_t i = 1; i < size; i++, low = 0x80, high = 0xbf) {
        if (s[i] < low || s[i] > high) {
            return 0;
        }
        value = value << 6 | (s[i] & 0x3f);
    }
    if (code != NULL) {
        *code = value;
    }
    return size;
}

uint32_t kr_utf8_next(const char **s)
{
    uint32_t code = 0xfffd;
    size_t n = kr_utf8_decode(*s, 4, &code); /* stops at the NUL, which continues nothing */
    *s += n > 0 ? n : 1;
    return code;
}

size_t kr_utf8_prefix(const char *s, size_t length)
{
    size_t at = 0;
    while (at < length) {
        size_t n = kr_utf8_decode(s + at, length - at, NULL);
        if (n == 0) {
            break;
        }
        at += n;
    }
    return at;
}

bool kr_utf8_valid(const char *s, size_t length)
{
    return kr_utf8_prefix(s, length) == length;
}

size_t kr_utf8_encode(uint32_t code, char out[4])
{
    size_t size = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    static const unsigned char lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = size - 1; i > 0; i--) {
        out[i] = (char)(0x80 | (code & 0x3f));
        code >>= 6;
    }
    out[0] = (char)(lead[size] | code);
    return size;
}

/* -------------------------------------------------------------------------- escapes of JSON --- */

/* The number that four hexadecimal digits spell, or -1. */
static int32_t hex4(const char *s)
{
    int32_t value = 0;
    for (int i = 0; i < 4; i++) {
        static const char digits[] = "0123456789abcdef";
        const char *found =
            s[i] ? strchr(digits, s[i] >= 'A' && s[i] <= 'F' ? s[i] + 32 : s[i]) : NULL;
        if (found == NULL) {
            return -1;
        }
        value = value << 4 | (int32_t)(found - digits);
    }
    return value;
}

/* At a backslash and a u. */
static size_t unescape_unicode(const char *s, char *out, size_t *n)
{
    int32_t code = hex4(s + 2);
    size_t size = 6;
    if (code <= 0 || (code >= 0xdc00 && code < 0xe000)) {
        return 0;
    }
    if (code >= 0xd800 && code < 0xdc00) {
        int32_t low = s[6] == '\\' && s[7] == 'u' ? hex4(s + 8) : -1;
        if (low < 0xdc00 || low > 0xdfff) {
            return 0;
        }
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
        size = 12;
    }
    *n = kr_utf8_encode((uint32_t)code, out);
    return size;
}

size_t kr_utf8_unescape(const char *s, char *out, size_t *n)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    if (s[1] == 'u') {
        return unescape_unicode(s, out, n);
    }
    const char *found = s[1] ? strchr(names, s[1]) : NULL;
    if (found == NULL) {
        return 0;
    }
    out[0] = values[found - names];
    *n = 1;
    return 2;
}
