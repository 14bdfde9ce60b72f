/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes what reads a client's headers and pictures: the texts in a PNG, base64, Authorization,
 * Host and Origin. The first byte says which, the rest is the input.
 */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "client/http/base64.h"
#include "client/http/guard.h"
#include "client/http/pngtext.h"
#include "proto/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void fuzz_png(const uint8_t *data, size_t size)
{
    static const char *const keywords[] = {"parameters", "kread", ""};
    for (int i = 0; i < 3; i++) {
        char *text = pngtext_get(data, size, keywords[i]);
        assert(text == NULL || kr_utf8_valid(text, strlen(text)));
        free(text);
    }
}

static void fuzz_base64(const uint8_t *data, size_t size)
{
    char *coded = malloc(base64_length(size) + 1), *back = malloc(base64_length(size) + 1);
    size_t length = base64_encode((const char *)data, size, coded), decoded;
    assert(length == base64_length(size));
    assert(base64_decode(coded, length, back, &decoded) && decoded == size);
    assert(memcmp(back, data, size) == 0);
    char *any = malloc(size + 1);
    if (base64_decode((const char *)data, size, any, &decoded)) {
        assert(decoded <= size * 3 / 4);
    }
    free(any);
    free(coded);
    free(back);
}

static void fuzz_headers(const char *text)
{
    static const char token[] = "0123456789abcdef";
    assert(!guard_token(text, token) || strstr(text, token) || strncasecmp(text, "basic ", 6) == 0);
    guard_host(text, "kread.example other.example");
    enum guard_origin kind = guard_origin(text, "kread.example", "https://ui.example");
    assert(kind != GUARD_ANY);
    assert(kind == GUARD_FOREIGN || strncasecmp(text, "http", 4) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 0 && data[0] % 3 == 0) {
        fuzz_png(data + 1, size - 1);
    } else if (size > 0 && data[0] % 3 == 1) {
        fuzz_base64(data + 1, size - 1);
    } else if (size > 0) {
        char *text = strndup((const char *)data + 1, size - 1);
        assert(text != NULL);
        fuzz_headers(text);
        free(text);
    }
    return 0;
}
