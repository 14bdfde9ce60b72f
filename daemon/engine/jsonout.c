/* SPDX-License-Identifier: Apache-2.0
 *
 * See jsonout.h. Texts should be UTF-8; a byte that belongs to no valid character (file names may
 * have them) becomes U+FFFD.
 */
#include "daemon/engine/jsonout.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "proto/fields.h"
#include "proto/utf8.h"

void jsonout_begin(struct jsonout *j, FILE *out)
{
    *j = (struct jsonout){.out = out};
}

static void put_unit(FILE *out, uint32_t unit)
{
    fprintf(out, "\\u%04" PRIx32, unit);
}

static void put_code_point(FILE *out, uint32_t c)
{
    if (c == '"' || c == '\\')
        fprintf(out, "\\%c", (int)c);
    else if (c == '\n')
        fputs("\\n", out);
    else if (c == '\t')
        fputs("\\t", out);
    else if (c >= 0x20 && c < 0x7f)
        fputc((int)c, out);
    else if (c < 0x10000)
        put_unit(out, c);
    else {
        put_unit(out, 0xd800 + ((c - 0x10000) >> 10));
        put_unit(out, 0xdc00 + ((c - 0x10000) & 0x3ff));
    }
}

static void put_string(FILE *out, const char *s)
{
    fputc('"', out);
    while (*s)
        put_code_point(out, kr_utf8_next(&s));
    fputc('"', out);
}

static void start(struct jsonout *j, const char *key)
{
    if (j->comma)
        fputc(',', j->out);
    if (key) {
        put_string(j->out, key);
        fputc(':', j->out);
    }
    j->comma = true;
}

void jsonout_open(struct jsonout *j, const char *key, char bracket)
{
    start(j, key);
    fputc(bracket, j->out);
    j->comma = false;
}

void jsonout_close(struct jsonout *j, char bracket)
{
    fputc(bracket, j->out);
    j->comma = true;
}

void jsonout_text(struct jsonout *j, const char *key, const char *value)
{
    start(j, key);
    if (value)
        put_string(j->out, value);
    else
        fputs("null", j->out);
}

void jsonout_int(struct jsonout *j, const char *key, int64_t value)
{
    start(j, key);
    fprintf(j->out, "%" PRId64, value);
}

void jsonout_real(struct jsonout *j, const char *key, double value)
{
    char text[40];

    start(j, key);
    if (!isfinite(value)) {
        fputs("null", j->out);
        return;
    }
    kr_format_real(value, text, sizeof(text));
    fputs(text, j->out);
}

void jsonout_bool(struct jsonout *j, const char *key, bool value)
{
    start(j, key);
    fputs(value ? "true" : "false", j->out);
}
