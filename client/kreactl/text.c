/* SPDX-License-Identifier: Apache-2.0
 *
 * A prompt may hold anything, and a daemon is another program: whatever of theirs reaches a
 * terminal passes text_put(). JSON is written here rather than with a library, because a value of
 * the protocol is already a tree and only the writing is missing; kreactl then links libc and proto
 * alone.
 */
#include "client/kreactl/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "proto/utf8.h"

/* Control characters (C0, DEL, C1) and the marks that turn a line's direction around. */
static bool harmful(const char *text, size_t n)
{
    const unsigned char *s = (const unsigned char *)text;
    return (n == 1 && (s[0] < 0x20 || s[0] == 0x7f)) || (n == 2 && s[0] == 0xc2 && s[1] < 0xa0) ||
           (n == 3 && s[0] == 0xe2 &&
            ((s[1] == 0x80 && (s[2] >= 0xa8 && s[2] <= 0xae)) ||
             (s[1] == 0x81 && s[2] >= 0xa6 && s[2] <= 0xa9)));
}

/* The next character at *at as it may be printed; buf gets it and *at moves on. */
static void next_harmless(const char *text, size_t length, size_t *at, char buf[16])
{
    size_t n = kr_utf8_decode(text + *at, length - *at, NULL), used = 0;
    if (n > 0 && !harmful(text + *at, n)) {
        memcpy(buf, text + *at, n);
        buf[n] = 0;
        *at += n;
        return;
    }
    for (size_t i = 0; i < (n ? n : 1); i++) {
        used += (size_t)snprintf(buf + used, 16 - used, "\\x%02x",
                                 (unsigned)(unsigned char)text[(*at)++]);
    }
}

void text_put(FILE *out, const char *text, size_t length)
{
    char shown[16];
    for (size_t at = 0; at < length;) {
        next_harmless(text, length, &at, shown);
        fputs(shown, out);
    }
}

void text_puts(FILE *out, const char *text)
{
    text_put(out, text, strlen(text));
}

void text_cut(char *buf, size_t size, const char *text, size_t length, int columns)
{
    size_t used = 0, at = 0, mark = 0;
    int shown = 0;
    buf[0] = 0;
    while (at < length) {
        char next[16];
        next_harmless(text, length, &at, next);
        int wide = next[0] == '\\' && strlen(next) >= 4 ? (int)strlen(next) : 1;
        if (shown + wide > columns || used + strlen(next) + 4 > size) {
            snprintf(buf + mark, size - mark, "...");
            return;
        }
        strcpy(buf + used, next);
        used += strlen(next);
        shown += wide;
        mark = shown <= columns - 3 ? used : mark;
    }
}

void text_duration(char *buf, size_t size, double seconds)
{
    int64_t s = seconds > 0 && seconds < 1e15 ? (int64_t)(seconds + 0.5) : 0;
    if (s < 60) {
        snprintf(buf, size, "%" PRId64 " s", s);
    } else if (s < 3600) {
        snprintf(buf, size, "%" PRId64 " min %" PRId64 " s", s / 60, s % 60);
    } else {
        snprintf(buf, size, "%" PRId64 " h %" PRId64 " min", s / 3600, s / 60 % 60);
    }
}

/* ------------------------------------------------------------------------------ for people --- */

void text_bytes(char *buf, size_t size, double bytes)
{
    static const char *const units[] = {"bytes", "kB", "MB", "GB", "TB"};
    int unit = 0;
    while (bytes >= 1000 && unit < 4) { /* as the daemon's own sentences count them */
        bytes /= 1000;
        unit++;
    }
    snprintf(buf, size, unit ? "%.1f %s" : "%.0f %s", bytes, units[unit]);
}

static bool ends_with(const char *key, const char *end)
{
    size_t n = strlen(key), m = strlen(end);
    return n >= m && strcmp(key + n - m, end) == 0;
}

/* A number under a key whose name, or whose map's, says what it counts. */
static bool put_measure(FILE *out, const char *parent, const char *key, double value)
{
    char text[64];
    if (ends_with(key, "_at")) {
        time_t seconds = (time_t)value;
        struct tm tm;
        if (localtime_r(&seconds, &tm) == NULL) {
            return false;
        }
        strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &tm);
        fputs(text, out);
    } else if (ends_with(key, "bytes") ||
               (strcmp(parent, "memory") == 0 && !ends_with(key, "_rows"))) {
        text_bytes(text, sizeof text, value);
        fputs(text, out);
    } else if (strcmp(key, "uptime") == 0 || ends_with(key, "seconds")) {
        text_duration(text, sizeof text, value);
        fputs(text, out);
    } else {
        return false;
    }
    return true;
}

static void put_scalar(FILE *out, const char *parent, const char *key, const struct kr_value *v)
{
    const char *text;
    size_t length;
    const void *data;
    int64_t whole;
    double real;
    bool truth;
    if (kr_value_real(v, &real) && put_measure(out, parent, key, real)) {
        return;
    }
    if (kr_value_int(v, &whole)) {
        fprintf(out, "%" PRId64, whole);
    } else if (kr_value_real(v, &real)) {
        fprintf(out, "%.6g", real);
    } else if (kr_value_bool(v, &truth)) {
        fputs(truth ? "yes" : "no", out);
    } else if (kr_value_text(v, &text, &length)) {
        text_put(out, text, length);
    } else if (kr_value_bytes(v, &data, &length)) {
        fprintf(out, "%zu bytes", length);
    } else {
        fputc('-', out);
    }
}

static bool is_tree(const struct kr_value *v)
{
    return kr_value_kind(v) == KR_V_MAP || kr_value_kind(v) == KR_V_ARRAY;
}

static void put_map(FILE *out, const char *parent, const struct kr_value *map, int indent);

/* A list of plain values on one line, a list of maps as a block each. */
static void put_list(FILE *out, const char *key, const struct kr_value *list, int indent)
{
    bool block = kr_value_count(list) > 0 && is_tree(kr_value_item(list, 0));
    fputs(block ? "\n" : "", out);
    for (size_t i = 0; i < kr_value_count(list); i++) {
        const struct kr_value *item = kr_value_item(list, i);
        if (kr_value_kind(item) == KR_V_MAP) {
            put_map(out, key, item, indent + 2);
            fputs(block && i + 1 < kr_value_count(list) ? "\n" : "", out);
        } else {
            fputs(i ? " " : "", out);
            put_scalar(out, "", key, item);
        }
    }
    fputs(block ? "" : "\n", out);
}

/* Width of the longest key among those with a plain value. */
static int key_width(const struct kr_value *map)
{
    size_t width = 0;
    for (size_t i = 0; i < kr_value_count(map); i++) {
        const struct kr_value *value, *key = kr_value_key(map, i, &value);
        const char *text;
        size_t length;
        if (kr_value_text(key, &text, &length) && length > width && length <= 28) {
            width = length;
        }
    }
    return (int)width;
}

static void put_map(FILE *out, const char *parent, const struct kr_value *map, int indent)
{
    int width = key_width(map);
    for (size_t i = 0; i < kr_value_count(map); i++) {
        const struct kr_value *value, *name = kr_value_key(map, i, &value);
        char key[64];
        const char *text;
        size_t length;
        if (!kr_value_text(name, &text, &length)) {
            continue;
        }
        text_cut(key, sizeof key, text, length, 40);
        fprintf(out, "%*s%-*s", indent, "", kr_value_kind(value) == KR_V_MAP ? 0 : width, key);
        if (kr_value_kind(value) == KR_V_MAP) {
            fputs("\n", out);
            put_map(out, key, value, indent + 2);
        } else if (kr_value_kind(value) == KR_V_ARRAY) {
            fputs("  ", out);
            put_list(out, key, value, indent);
        } else {
            fputs("  ", out);
            put_scalar(out, parent, key, value);
            fputs("\n", out);
        }
    }
}

void text_map(FILE *out, const struct kr_value *map)
{
    put_map(out, "", map, 0);
}

/* ------------------------------------------------------------------------------------ JSON --- */

void json_string(FILE *out, const char *text, size_t length)
{
    fputc('"', out);
    for (size_t i = 0; i < length;) {
        unsigned char c = (unsigned char)text[i];
        size_t n = kr_utf8_decode(text + i, length - i, NULL);
        if (c == '"' || c == '\\') {
            fprintf(out, "\\%c", c);
        } else if (c < 0x20 || c == 0x7f) {
            fprintf(out, "\\u%04x", c);
        } else if (n == 0) {
            fputs("\\ufffd", out);
        } else {
            fwrite(text + i, 1, n, out);
        }
        i += n ? n : 1;
    }
    fputc('"', out);
}

static void json_real(FILE *out, double real)
{
    char text[40];
    kr_format_real(real, text, sizeof text);
    fputs(text, out);
}

/* The pairs of a map, each after `link` or a comma. */
static void json_pairs(FILE *out, const struct kr_value *map, const char *link)
{
    for (size_t i = 0; i < kr_value_count(map); i++) {
        const struct kr_value *value, *key = kr_value_key(map, i, &value);
        const char *text;
        size_t length;
        if (!kr_value_text(key, &text, &length) || kr_value_kind(value) == KR_V_BYTES) {
            continue;
        }
        fputs(link, out);
        json_string(out, text, length);
        fputs(": ", out);
        json_value(out, value);
        link = ", ";
    }
}

static void json_list(FILE *out, const struct kr_value *list)
{
    fputc('[', out);
    for (size_t i = 0; i < kr_value_count(list); i++) {
        fputs(i ? ", " : "", out);
        json_value(out, kr_value_item(list, i));
    }
    fputc(']', out);
}

/* Recurses once a level of nesting, which the frame scan has bounded. */
void json_value(FILE *out, const struct kr_value *v)
{
    const char *text;
    size_t length;
    int64_t whole;
    double real;
    bool truth;
    if (kr_value_kind(v) == KR_V_MAP) {
        fputc('{', out);
        json_pairs(out, v, "");
        fputc('}', out);
    } else if (kr_value_kind(v) == KR_V_ARRAY) {
        json_list(out, v);
    } else if (kr_value_kind(v) == KR_V_INT && kr_value_int(v, &whole)) {
        fprintf(out, "%" PRId64, whole);
    } else if (kr_value_real(v, &real)) {
        json_real(out, real);
    } else if (kr_value_bool(v, &truth)) {
        fputs(truth ? "true" : "false", out);
    } else if (kr_value_text(v, &text, &length)) {
        json_string(out, text, length);
    } else {
        fputs("null", out);
    }
}

void json_event(FILE *out, const char *event, const struct kr_value *map)
{
    fputs("{\"event\": ", out);
    json_string(out, event, strlen(event));
    json_pairs(out, map, ", ");
    fputs("}\n", out);
    fflush(out);
}

/* ------------------------------------------------------------------------------------ maps --- */

int64_t map_int(const struct kr_value *map, const char *key, int64_t otherwise)
{
    int64_t value;
    return kr_value_int(kr_value_get(map, key), &value) ? value : otherwise;
}

double map_real(const struct kr_value *map, const char *key, double otherwise)
{
    double value;
    return kr_value_real(kr_value_get(map, key), &value) ? value : otherwise;
}

bool map_bool(const struct kr_value *map, const char *key)
{
    bool value;
    return kr_value_bool(kr_value_get(map, key), &value) && value;
}

const char *map_text(const struct kr_value *map, const char *key, char *buf, size_t size)
{
    const char *text;
    size_t length;
    buf[0] = 0;
    if (kr_value_text(kr_value_get(map, key), &text, &length)) {
        length = length < size ? length : size - 1;
        memcpy(buf, text, length);
        buf[length] = 0;
    }
    return buf;
}
