/* SPDX-License-Identifier: Apache-2.0
 *
 * Encoding works through a table of two characters for each twelve bits: pictures of some megabytes
 * pass through here while other requests wait their turn.
 */
#include "client/http/base64.h"

#include <string.h>

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

size_t base64_length(size_t size)
{
    return (size + 2) / 3 * 4;
}

static const char *pairs(void)
{
    static char table[4096 * 2];
    if (table[0] == 0) {
        for (int i = 0; i < 4096; i++) {
            table[2 * i] = alphabet[i >> 6];
            table[2 * i + 1] = alphabet[i & 63];
        }
    }
    return table;
}

size_t base64_encode(const char *data, size_t size, char *out)
{
    const unsigned char *in = (const unsigned char *)data;
    const char *table = pairs();
    char *start = out;
    for (; size >= 3; size -= 3, in += 3, out += 4) {
        memcpy(out, table + 2 * (in[0] << 4 | in[1] >> 4), 2);
        memcpy(out + 2, table + 2 * ((in[1] & 15) << 8 | in[2]), 2);
    }
    if (size > 0) {
        unsigned last = (unsigned)in[0] << 16 | (size > 1 ? (unsigned)in[1] << 8 : 0);
        out[0] = alphabet[last >> 18];
        out[1] = alphabet[last >> 12 & 63];
        out[2] = size > 1 ? alphabet[last >> 6 & 63] : '=';
        out[3] = '=';
        out += 4;
    }
    return (size_t)(out - start);
}

static int value_of(char c)
{
    return c >= 'A' && c <= 'Z'   ? c - 'A'
           : c >= 'a' && c <= 'z' ? c - 'a' + 26
           : c >= '0' && c <= '9' ? c - '0' + 52
           : c == '+'             ? 62
           : c == '/'             ? 63
                                  : -1;
}

bool base64_decode(const char *text, size_t length, char *out, size_t *size)
{
    unsigned bits = 0;
    int have = 0;
    *size = 0;
    while (length > 0 && text[length - 1] == '=') {
        length--;
    }
    for (size_t i = 0; i < length; i++) {
        int value = value_of(text[i]);
        if (value < 0) {
            return false;
        }
        bits = bits << 6 | (unsigned)value;
        have += 6;
        if (have >= 8) {
            have -= 8;
            out[(*size)++] = (char)(bits >> have);
        }
    }
    return length % 4 != 1;
}
