/* SPDX-License-Identifier: Apache-2.0
 *
 * inih does the splitting of lines into names and values. It has habits that this file guards
 * against: it cuts lines that do not fit its buffer (about 200 bytes) and goes on with the rest as
 * if it were a line of its own; it cuts section names at 49 bytes; it takes an indented line as
 * another value of the name before; its callback does not know the line number. So the lines pass
 * through our own reader, which counts them, refuses what would be cut, drops indentation and keeps
 * track of the section.
 */
#include "proto/settings/ini.h"

#include <errno.h>
#include <ini.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/settings/small_file.h"
#include "proto/utf8.h"

/* ---------------------------------------------------------------------------- finding it ----- */

static int exists(const char *path, struct kr_err *err)
{
    struct stat st;
    if (stat(path, &st) == 0)
        return 1;
    if (errno == ENOENT || errno == ENOTDIR)
        return 0;
    return kr_fail(err, KR_IO, "%s: %s", path, strerror(errno));
}

static int no_memory(struct kr_err *err)
{
    return kr_fail(err, KR_NO_MEMORY, "no memory for the settings");
}

/* The user's own file, NULL where there is no home. */
static int user_file(char **path, struct kr_err *err)
{
    const char *xdg = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    int n = 0;
    *path = NULL;
    if (!home || !*home) {
        struct passwd *pw = getpwuid(geteuid());
        home = pw ? pw->pw_dir : NULL;
    }
    if (xdg && *xdg == '/')
        n = asprintf(path, "%s/kread/kread.ini", xdg);
    else if (home)
        n = asprintf(path, "%s/.config/kread/kread.ini", home);
    return n < 0 ? no_memory(err) : 0;
}

static int copy(const char *text, char **result, struct kr_err *err)
{
    *result = strdup(text);
    return *result ? 0 : no_memory(err);
}

int ini_find(const char *named, char **path, struct kr_err *err)
{
    static const char machine_file[] = "/etc/kread/kread.ini";
    *path = NULL;
    if (named)
        return copy(named, path, err);
    char *own;
    if (user_file(&own, err) < 0)
        return -1;
    int found = own ? exists(own, err) : 0;
    if (found > 0) {
        *path = own;
        return 0;
    }
    free(own);
    found = found == 0 ? exists(machine_file, err) : found;
    return found > 0 ? copy(machine_file, path, err) : found;
}

/* ---------------------------------------------------------------------------- sections ------- */

void ini_refuse(struct ini *ini, const char *format, ...)
{
    char text[400];
    va_list args;
    if (ini->failed || ini->reader->lenient)
        return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    ini->failed = true;
    kr_fail(ini->err, KR_BAD_CONFIG, "%s:%d: %s", ini->path, ini->line, text);
}

/* A line that starts with '['. The title is the text between the brackets, without blanks around
 * it. */
static void read_section(struct ini *ini, const char *line, size_t length)
{
    const char *stop = memchr(line, ']', length);
    *ini->title = '\0';
    if (!stop) {
        ini_refuse(ini, "the section's name has no closing ]");
        return;
    }
    for (const char *after = stop + 1; after < line + length && !strchr(";#", *after); after++)
        if (!strchr(" \t", *after)) {
            ini_refuse(ini, "there is something behind the section's ]");
            return;
        }
    line++;
    while (line < stop && strchr(" \t", *line))
        line++;
    while (stop > line && strchr(" \t", stop[-1]))
        stop--;
    if (stop == line) {
        ini_refuse(ini, "the section has no name");
    } else if (stop - line > INI_MAX_TITLE) {
        ini_refuse(ini, "the section's name has %d bytes, at most %d are read", (int)(stop - line),
                   INI_MAX_TITLE);
    } else {
        snprintf(ini->title, sizeof ini->title, "%.*s", (int)(stop - line), line);
        if (ini->reader->section)
            ini->reader->section(ini, ini->title);
    }
}

/* ---------------------------------------------------------------------------- lines ---------- */

/* How many bytes of the line say which setting it is. */
static int name_length(const char *line, size_t length)
{
    size_t n = 0;
    while (n < length && n < 60 && !strchr("=: \t", line[n]))
        n++;
    return (int)n;
}

static const char not_a_line[] = "this is no \"name = value\", no [section] and no comment";

/* The file's next line without blanks around it and without its end; its length. */
static size_t next_line(struct ini *ini, const char **line)
{
    const char *start = ini->at, *stop = memchr(start, '\n', (size_t)(ini->end - start));
    ini->at = stop ? stop + 1 : ini->end;
    stop = stop ? stop : ini->end;
    ini->line++;
    while (start < stop && *start && strchr(" \t\r", *start))
        start++;
    while (stop > start && stop[-1] && strchr(" \t\r", stop[-1]))
        stop--;
    *line = start;
    return (size_t)(stop - start);
}

/* inih's reader: the next line into buf[size], NULL at the end or at the first thing refused. */
static char *read_line(char *buf, int size, void *user)
{
    struct ini *ini = user;
    const char *line;
    if (ini->pending) /* inih goes on behind a line that it can't read, and tells at the end */
        ini_refuse(ini, "%s", not_a_line);
    if (ini->failed || ini->at >= ini->end)
        return NULL;
    size_t length = next_line(ini, &line), used = 0;
    if (!kr_utf8_valid(line, length) || memchr(line, '\0', length))
        ini_refuse(ini, "this line is not UTF-8 text");
    else if (length > 0 && strchr(";#", *line))
        used = 0; /* a comment may be as long as it likes */
    else if (length + 2 > (size_t)size)
        ini_refuse(ini, "%.*s: this line has %d bytes, at most %d are read; shorten it",
                   name_length(line, length), line, (int)length, size - 2);
    else if (length > 0 && *line == '[')
        read_section(ini, line, length);
    else
        used = length;
    if (ini->failed)
        return NULL;
    ini->pending = used > 0;
    memcpy(buf, line, used);
    memcpy(buf + used, "\n", 2);
    return buf;
}

/* inih's callback. It returns 0 for a line that was refused. */
static int read_value(void *user, const char *section, const char *name, const char *value)
{
    struct ini *ini = user;
    ini->pending = false;
    (void)section; /* read_section() took them out */
    if (!name || !value || ini->failed)
        return !ini->failed;
    if (!*name)
        ini_refuse(ini, "there is no name before the '='");
    else if (!*ini->title)
        ini_refuse(ini, "%.60s stands before the first [section]", name);
    else
        ini->reader->value(ini, name, value);
    return !ini->failed;
}

void ini_set(struct ini *ini, const struct option_table *table, const struct option *option,
             void *values, const char *value)
{
    struct kr_err why;
    if (option_given(values, (unsigned)(option - table->rows)))
        ini_refuse(ini, "%s is set twice in [%s]", option->name, ini->title);
    else if (option_set(table, option, values, value, ini->folder, &why) < 0)
        ini_refuse(ini, "%s", why.text);
}

/* The folder that relative paths of the file start from, absolute. */
static char *folder_of(const char *path, struct kr_err *err)
{
    const char *slash = strrchr(path, '/');
    size_t length = !slash ? 1 : slash == path ? 1 : (size_t)(slash - path);
    char *folder = strndup(slash ? path : ".", length);
    char *real = folder ? realpath(folder, NULL) : NULL;
    if (!real)
        kr_fail(err, KR_IO, "%s: %s", path, strerror(errno));
    free(folder);
    return real;
}

int ini_read(const char *path, const struct ini_reader *reader, struct kr_err *err)
{
    size_t size;
    char *text;
    if (small_file_read(path, &text, &size, err) < 0)
        return -1;
    char *folder = folder_of(path, err);
    bool mark = size >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0; /* some editors' first bytes */
    struct ini ini = {.reader = reader,
                      .path = path,
                      .folder = folder,
                      .at = text + (mark ? 3 : 0),
                      .end = text + size,
                      .err = err};
    int rc = folder ? ini_parse_stream(read_line, &ini, read_value, &ini) : -1;
    if (folder && rc > 0)
        ini_refuse(&ini, "%s", not_a_line);
    else if (folder && rc < 0)
        rc = no_memory(err);
    free(text);
    free(folder);
    return rc < 0 || ini.failed ? -1 : 0;
}
