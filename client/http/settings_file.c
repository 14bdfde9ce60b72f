/* SPDX-License-Identifier: Apache-2.0
 *
 * kread.ini is the daemon's file too. Here only [http] is checked, and one line of [kread] is read,
 * where the daemon's socket is; what stands in the other sections is for the daemon to judge. inih
 * cuts long lines, joins indented ones and knows no line numbers, so lines pass through our own
 * reader first. Nothing is applied before the whole file was read.
 */
#include <errno.h>
#include <ini.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "client/client.h"
#include "client/http/settings.h"
#include "proto/utf8.h"

struct file {
    const char *path, *folder;
    const char *at, *end; /* what is left of the text */
    int number;           /* of the line */
    bool failed;
    struct settings *into;
    struct kr_err *err;
};

__attribute__((format(printf, 2, 3))) static int refuse(struct file *f, const char *format, ...)
{
    char text[400];
    va_list args;
    if (f->failed) {
        return 0;
    }
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    f->failed = true;
    kr_fail(f->err, KR_BAD_CONFIG, "%s:%d: %s", f->path, f->number, text);
    return 0;
}

/* inih's reader: the next line without indentation into buf[size], NULL at the end. */
static char *read_line(char *buf, int size, void *user)
{
    struct file *f = user;
    if (f->failed || f->at >= f->end) {
        return NULL;
    }
    const char *line = f->at, *stop = memchr(line, '\n', (size_t)(f->end - line));
    stop = stop ? stop : f->end;
    f->at = stop + 1;
    f->number++;
    line += f->number == 1 && strncmp(line, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    while (line < stop && strchr(" \t\r", *line) && *line) {
        line++;
    }
    size_t length = (size_t)(stop - line);
    if (*line == ';' || *line == '#') {
        length = 0;
    } else if (length + 2 > (size_t)size) {
        refuse(f, "this line has %zu bytes, at most %d are read; shorten it", length, size - 2);
        return NULL;
    } else if (!kr_utf8_valid(line, length) || memchr(line, 0, length)) {
        refuse(f, "this line is not UTF-8 text");
        return NULL;
    }
    memcpy(buf, line, length);
    memcpy(buf + length, "\n", 2);
    return buf;
}

static int read_http(struct file *f, const char *name, const char *value)
{
    struct kr_err why;
    for (int id = 0; id < SETTINGS; id++) {
        if (!(http_settings[id].places & SETTING_FILE) || strcmp(http_settings[id].name, name)) {
            continue;
        }
        if (settings_has(f->into, (enum setting_id)id)) {
            return refuse(f, "%s is set twice in [http]", name);
        }
        return settings_set(f->into, (enum setting_id)id, value, f->folder, &why) == 0
                   ? 1
                   : refuse(f, "%s", why.text);
    }
    return refuse(f, "unknown name %.60s in [http]", name);
}

/* inih's callback; 0: refused. */
static int read_value(void *user, const char *section, const char *name, const char *value)
{
    struct file *f = user;
    struct kr_err why;
    if (name == NULL || value == NULL || f->failed) {
        return !f->failed;
    }
    if (strcmp(section, "http") == 0) {
        return read_http(f, name, value);
    }
    if (strcmp(section, "kread") == 0 && strcmp(name, "socket") == 0 && *value &&
        getenv("KREAD_SOCKET") == NULL &&
        settings_set(f->into, H_SOCKET, value, f->folder, &why) != 0) {
        return refuse(f, "%s", why.text);
    }
    return 1;
}

static void merge(struct settings *to, struct settings *from)
{
    for (int id = 0; id < SETTINGS; id++) {
        const struct setting *row = &http_settings[id];
        char *into = (char *)to + row->offset, *out = (char *)from + row->offset;
        if (settings_has(to, (enum setting_id)id) || !settings_has(from, (enum setting_id)id)) {
            continue;
        }
        if (row->type <= SETTING_LIST) {
            *(char **)into = *(char **)out;
            *(char **)out = NULL;
        } else {
            *(int64_t *)into = *(int64_t *)out;
        }
        to->set |= UINT64_C(1) << id;
    }
}

static int parse(struct file *f)
{
    int rc = ini_parse_stream(read_line, f, read_value, f);
    if (rc > 0) {
        f->number = rc;
        refuse(f, "this is no \"name = value\", no [section] and no comment");
    } else if (rc < 0) {
        refuse(f, "out of memory");
    }
    return f->failed ? -1 : 0;
}

int settings_load(const char *path, struct settings *s, struct kr_err *err)
{
    struct settings fresh = {0};
    char *text, *folder = NULL;
    size_t size;
    int rc = client_read_file(path, &text, &size, err);
    if (rc == 0 && (folder = realpath(path, NULL)) == NULL) {
        rc = kr_fail(err, KR_BAD_CONFIG, "%s: %s", path, strerror(errno));
    }
    if (rc == 0) {
        *strrchr(folder, '/') = 0;
        struct file f = {.path = path,
                         .folder = folder,
                         .at = text,
                         .end = text + size,
                         .into = &fresh,
                         .err = err};
        rc = parse(&f);
    }
    if (rc == 0) {
        merge(s, &fresh);
    }
    free(text);
    free(folder);
    settings_fini(&fresh);
    return rc;
}
