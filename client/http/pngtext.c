/* SPDX-License-Identifier: Apache-2.0
 *
 * A PNG is a signature and chunks: length, type, data, checksum. A picture to look at may come from
 * anybody (png-info), so nothing here trusts a length.
 */
#include "client/http/pngtext.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "proto/utf8.h"

static uint32_t be32(const unsigned char *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static char *from_latin1(const unsigned char *text, size_t size)
{
    char *out = malloc(2 * size + 1), *at = out;
    for (size_t i = 0; out != NULL && i < size && text[i] != 0; i++) {
        at += kr_utf8_encode(text[i], at);
    }
    if (out != NULL) {
        *at = 0;
    }
    return out;
}

/* After the keyword of an iTXt: two bytes about compression, a language and a translated keyword,
 * each with a NUL behind it, then the text. */
static char *from_itxt(const unsigned char *data, size_t size)
{
    if (size < 2 || data[0] != 0) {
        return NULL;
    }
    data += 2;
    size -= 2;
    for (int i = 0; i < 2; i++) {
        const unsigned char *end = memchr(data, 0, size);
        if (end == NULL) {
            return NULL;
        }
        size -= (size_t)(end + 1 - data);
        data = end + 1;
    }
    size_t length = strnlen((const char *)data, size);
    return kr_utf8_valid((const char *)data, length) ? strndup((const char *)data, length) : NULL;
}

static char *chunk_text(const unsigned char *chunk, size_t size, const char *keyword)
{
    size_t named = strlen(keyword) + 1;
    if (size < named || memcmp(chunk + 4, keyword, named) != 0) {
        return NULL;
    }
    const unsigned char *data = chunk + 4 + named;
    return memcmp(chunk, "tEXt", 4) == 0   ? from_latin1(data, size - named)
           : memcmp(chunk, "iTXt", 4) == 0 ? from_itxt(data, size - named)
                                           : NULL;
}

char *pngtext_get(const void *png, size_t size, const char *keyword)
{
    const unsigned char *p = png, *end = p + size;
    if (size < 8 || memcmp(p, "\x89PNG\r\n\x1a\n", 8) != 0) {
        return NULL;
    }
    for (p += 8; end - p >= 12;) {
        size_t length = be32(p);
        if (length > (size_t)(end - p) - 12) {
            return NULL;
        }
        char *text = chunk_text(p + 4, length, keyword);
        if (text != NULL) {
            return text;
        }
        p += length + 12;
    }
    return NULL;
}
