/* SPDX-License-Identifier: Apache-2.0 */
#include "client/http/token.h"

#include <stdlib.h>
#include <string.h>

#include "client/http/guard.h"
#include "proto/settings/small_file.h"

static int check(const char *path, const char *token, size_t length, struct kr_err *err)
{
    for (size_t i = 0; i < length; i++) {
        if (token[i] <= ' ' || token[i] >= 0x7f) {
            return kr_fail(
                err, KR_BAD_CONFIG,
                "token_file %s: the first line must be letters, digits and signs without blanks",
                path);
        }
    }
    if (length < 16 || length > GUARD_MAX_TOKEN) {
        return kr_fail(err, KR_BAD_CONFIG,
                       "token_file %s: the first line has %zu characters, want 16 to %d, such as "
                       "`openssl rand -hex 24` writes",
                       path, length, (int)GUARD_MAX_TOKEN);
    }
    return 0;
}

int token_read(const char *path, char **token, struct kr_err *err)
{
    struct kr_err why;
    size_t size;
    *token = NULL;
    if (small_file_read(path, token, &size, &why) != 0) {
        return kr_fail(err, why.code, "token_file %s", why.text);
    }
    size_t length = 0;
    while (length < size && (*token)[length] != '\r' && (*token)[length] != '\n') {
        length++;
    }
    if (check(path, *token, length, err) != 0) {
        free(*token);
        *token = NULL;
        return -1;
    }
    (*token)[length] = 0;
    return 0;
}
