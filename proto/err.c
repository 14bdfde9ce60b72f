/* SPDX-License-Identifier: Apache-2.0
 *
 * Error codes and their wire names. The table is the only place where both stand side by side. A
 * code added at the end without a name does not compile; tests/proto asks each for its name.
 */
#include "proto/err.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "proto/utf8.h"

static const char *const names[] = {
    [KR_OK] = "ok",
    [KR_BAD_REQUEST] = "bad_request",
    [KR_BAD_FRAME] = "bad_frame",
    [KR_BAD_METHOD] = "bad_method",
    [KR_BAD_VERSION] = "bad_version",
    [KR_BAD_FILE] = "bad_file",
    [KR_BAD_CONFIG] = "bad_config",
    [KR_NO_JOB] = "no_job",
    [KR_FORBIDDEN] = "forbidden",
    [KR_BUSY] = "busy",
    [KR_SHUTDOWN] = "shutdown",
    [KR_CANCELLED] = "cancelled",
    [KR_NO_MEMORY] = "no_memory",
    [KR_NOT_FINITE] = "not_finite",
    [KR_DEVICE] = "device",
    [KR_IO] = "io",
    [KR_NO_DAEMON] = "no_daemon",
};
_Static_assert(sizeof names / sizeof *names == KR_CODES, "every code has a wire name");

/* A text that was cut must not end in half a UTF-8 character: it goes out as a msgpack string. */
static void trim_partial_char(char *text, size_t length)
{
    size_t start = length, need;
    unsigned char lead;

    while (start > 0 && length - start < 3 && ((unsigned char)text[start - 1] & 0xc0) == 0x80)
        start--;
    if (start == 0)
        return;
    lead = (unsigned char)text[--start];
    need = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;
    if (length - start < need)
        text[start] = '\0';
}

/* The sentence quotes names from files and requests, and may cut one anywhere. Whatever they hold,
 * it stays one line of UTF-8 and moves no terminal's cursor: C0, DEL, C1 and bytes that are no
 * character become '?'. */
static void blank_unprintable(char *text)
{
    size_t length;
    uint32_t code;

    for (; *text; text += length) {
        length = kr_utf8_decode(text, 4, &code); /* stops at the NUL, which continues nothing */
        if (length == 0 || code < 0x20 || (code >= 0x7f && code < 0xa0)) {
            length += length == 0;
            memset(text, '?', length);
        }
    }
}

int kr_fail(struct kr_err *err, enum kr_code code, const char *format, ...)
{
    va_list args;
    int length;

    assert(code > KR_OK && code < KR_CODES);
    if (!err)
        return -1;
    err->code = code;
    va_start(args, format);
    length = vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    if (length < 0)
        err->text[0] = '\0';
    else if ((size_t)length >= sizeof err->text)
        trim_partial_char(err->text, sizeof err->text - 1);
    blank_unprintable(err->text);
    return -1;
}

const char *kr_code_name(enum kr_code code)
{
    return (unsigned)code < KR_CODES ? names[code] : "unknown";
}

enum kr_code kr_code_from_name(const char *name)
{
    int code;

    for (code = 0; code < KR_CODES; code++)
        if (strcmp(names[code], name) == 0)
            break;
    return (enum kr_code)code;
}
