/* SPDX-License-Identifier: Apache-2.0
 *
 * inih does the splitting of lines into names and values. It has habits that this file guards
 * against: it cuts lines that do not fit its buffer (about 200 bytes) and goes on with the rest as
 * if it were a line of its own; it cuts section names at 49 bytes; it takes an indented line as
 * another value of the name before; it says nothing about sections that repeat or are empty; its
 * callback does not know the line number. So the lines pass through our own reader, which counts
 * them, refuses what would be cut, drops indentation and keeps track of the section. Everything
 * goes into a fresh struct config that the caller sees only if no line was refused.
 */
#include "daemon/config.h"

#include <errno.h>
#include <fcntl.h>
#include <ini.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/utf8.h"

enum { MAX_FILE = 1 << 20, MAX_SECTION = 49 };

enum section { SECTION_NONE, SECTION_KREAD, SECTION_GENERATION, SECTION_PROFILE, SECTION_HTTP };

struct parse {
    const char *path, *folder;
    const char *at, *end; /* what is left of the file */
    int line;             /* the one that the parser has now */
    bool pending;         /* it is to be a setting, and read_value() has not got it yet */
    unsigned seen;        /* 1 << enum section, to find sections that repeat */
    enum section section;
    char title[MAX_SECTION + 1]; /* of the section */
    struct config *config;
    struct profile *profile; /* in SECTION_PROFILE */
    bool failed;
    struct kr_err *err;
};

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

int config_find(const char *named, char **path, struct kr_err *err)
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

/* ---------------------------------------------------------------------------- reading it ----- */

/* A descriptor that never blocks: whoever put a pipe there would stop the start, or a running
 * daemon that reads its settings again. */
static int open_plain(const char *path, struct kr_err *err)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return kr_fail(err, KR_IO, "%s: %s", path, strerror(errno));
    if (fstat(fd, &st) == 0 && S_ISFIFO(st.st_mode)) {
        close(fd);
        return kr_fail(err, KR_BAD_CONFIG, "%s is a pipe; put the settings into a plain file",
                       path);
    }
    return fd;
}

/* The file's bytes with a NUL behind them; the caller frees. */
static char *slurp(const char *path, size_t *size, struct kr_err *err)
{
    int fd = open_plain(path, err);
    char *text = fd < 0 ? NULL : malloc(MAX_FILE + 2);
    if (fd >= 0 && !text) {
        no_memory(err);
        close(fd);
    }
    if (!text)
        return NULL;
    ssize_t n = 1;
    *size = 0;
    while (n > 0 && *size <= MAX_FILE) {
        n = read(fd, text + *size, MAX_FILE + 1 - *size);
        if (n < 0 && errno == EINTR)
            n = 1;
        else if (n > 0)
            *size += (size_t)n;
    }
    if (n < 0)
        kr_fail(err, KR_IO, "%s: %s", path, strerror(errno));
    else if (*size > MAX_FILE)
        kr_fail(err, KR_BAD_CONFIG, "%s: larger than a megabyte, that is no settings file", path);
    close(fd);
    if (n < 0 || *size > MAX_FILE) {
        free(text);
        return NULL;
    }
    text[*size] = '\0';
    return text;
}

__attribute__((format(printf, 2, 3))) static void refuse(struct parse *p, const char *format, ...)
{
    char text[400];
    va_list args;
    if (p->failed)
        return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    p->failed = true;
    kr_fail(p->err, KR_BAD_CONFIG, "%s:%d: %s", p->path, p->line, text);
}

/* ---------------------------------------------------------------------------- sections ------- */

static bool good_name(const char *name)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                  "._-";
    return *name && name[strspn(name, letters)] == '\0';
}

static void begin_profile(struct parse *p, const char *name)
{
    struct config *config = p->config;
    if (!*name) {
        refuse(p, "the profile has no name, write [profile NAME]");
        return;
    }
    if (!good_name(name)) {
        refuse(p, "profile name \"%s\": use letters, digits, '.', '_' and '-'", name);
        return;
    }
    if (config_profile(config, name)) {
        refuse(p, "[profile %s] stands in line %d already", name,
               config_profile(config, name)->line);
        return;
    }
    struct profile *grown =
        realloc(config->profiles, (config->profile_count + 1) * sizeof *config->profiles);
    if (!grown) {
        refuse(p, "out of memory");
        return;
    }
    config->profiles = grown;
    p->profile = &grown[config->profile_count];
    *p->profile = (struct profile){.name = strdup(name), .line = p->line};
    if (p->profile->name)
        config->profile_count++;
    else
        refuse(p, "out of memory");
}

/* The text between the brackets, blanks around it dropped. */
static void begin_section(struct parse *p, const char *title)
{
    static const struct {
        const char *name;
        enum section section;
    } table[] = {
        {"kread", SECTION_KREAD}, {"generation", SECTION_GENERATION}, {"http", SECTION_HTTP}};
    p->section = SECTION_NONE;
    p->profile = NULL;
    snprintf(p->title, sizeof p->title, "%s", title);
    if (strncmp(title, "profile", 7) == 0 && (!title[7] || strchr(" \t", title[7]))) {
        p->section = SECTION_PROFILE;
        begin_profile(p, title + 7 + strspn(title + 7, " \t"));
        return;
    }
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strcmp(title, table[i].name) == 0)
            p->section = table[i].section;
    if (p->section == SECTION_NONE)
        refuse(p, "unknown section [%s], want [kread], [generation], [http] or [profile NAME]",
               title);
    else if (p->seen >> p->section & 1)
        refuse(p, "section [%s] stands in this file already", title);
    p->seen |= 1u << p->section;
}

/* A line that starts with '['. */
static void read_section(struct parse *p, const char *line, size_t length)
{
    char title[MAX_SECTION + 1];
    const char *stop = memchr(line, ']', length);
    if (!stop) {
        refuse(p, "the section's name has no closing ]");
        return;
    }
    for (const char *after = stop + 1; after < line + length && !strchr(";#", *after); after++)
        if (!strchr(" \t", *after)) {
            refuse(p, "there is something behind the section's ]");
            return;
        }
    line++;
    while (line < stop && strchr(" \t", *line))
        line++;
    while (stop > line && strchr(" \t", stop[-1]))
        stop--;
    if (stop == line)
        refuse(p, "the section has no name");
    else if (stop - line > MAX_SECTION)
        refuse(p, "the section's name has %d bytes, at most %d are read", (int)(stop - line),
               MAX_SECTION);
    else {
        memcpy(title, line, (size_t)(stop - line));
        title[stop - line] = '\0';
        begin_section(p, title);
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

/* inih's reader: the next line into buf[size], NULL at the end or at the first thing refused. */
static char *read_line(char *buf, int size, void *user)
{
    struct parse *p = user;
    if (p->pending) /* inih goes on behind a line that it can't read, and tells at the end */
        refuse(p, "%s", not_a_line);
    if (p->failed || p->at >= p->end)
        return NULL;
    p->line++;
    const char *line = p->at, *stop = memchr(line, '\n', (size_t)(p->end - line));
    p->at = stop ? stop + 1 : p->end;
    stop = stop ? stop : p->end;
    size_t whole = (size_t)(stop - line);
    bool text = kr_utf8_valid(line, whole) && !memchr(line, '\0', whole);
    while (line < stop && strchr(" \t\r", *line))
        line++;
    while (stop > line && strchr(" \t\r", stop[-1]))
        stop--;
    size_t length = (size_t)(stop - line);
    if (!text)
        refuse(p, "this line is not UTF-8 text");
    else if (length > 0 && strchr(";#", *line))
        length = 0; /* a comment may be as long as it likes */
    else if (length + 2 > (size_t)size)
        refuse(p, "%.*s: this line has %d bytes, at most %d are read; shorten it",
               name_length(line, length), line, (int)length, size - 2);
    else if (length > 0 && *line == '[')
        read_section(p, line, length);
    if (p->failed)
        return NULL;
    p->pending = length > 0 && *line != '[';
    memcpy(buf, line, length);
    memcpy(buf + length, "\n", 2);
    return buf;
}

/* A generation value in [generation] or in a profile. */
static void set_default(struct parse *p, struct kr_params *params, const struct kr_field *field,
                        const char *value)
{
    enum kr_field_id id = (enum kr_field_id)(field - kr_fields);
    struct kr_err why;
    if (!field->in_config)
        refuse(p, "%s belongs to a request, it has no default in [%s]", field->name, p->title);
    else if (kr_has(params, id))
        refuse(p, "%s is set twice in [%s]", field->name, p->title);
    else if (kr_params_parse(params, id, value, &why) < 0)
        refuse(p, "%s", why.text);
}

static void set_option(struct parse *p, const struct option *table, const struct option *option,
                       void *base, uint64_t *set, const char *value)
{
    uint64_t bit = UINT64_C(1) << (option - table);
    struct kr_err why;
    if (*set & bit)
        refuse(p, "%s is set twice in [%s]", option->name, p->title);
    else if (option_set(option, base, value, p->folder, &why) < 0)
        refuse(p, "%s", why.text);
    *set |= bit;
}

/* inih's callback. It returns 0 for a line that was refused. */
static int read_value(void *user, const char *section, const char *name, const char *value)
{
    struct parse *p = user;
    struct config *config = p->config;
    p->pending = false;
    (void)section;                    /* read_section() knows better */
    if (!name || !value || p->failed) /* builds of inih that also announce sections */
        return !p->failed;
    const struct kr_field *field = kr_field_find(name, strlen(name));
    const struct option *option;
    if (!*name) {
        refuse(p, "there is no name before the '='");
    } else if (p->section == SECTION_NONE) {
        refuse(p, "%.60s stands before the first [section]", name);
    } else if (p->section == SECTION_KREAD) {
        option = option_find(daemon_options, SETTINGS, name, strlen(name));
        if (option && option->places & OPTION_FILE)
            set_option(p, daemon_options, option, &config->settings, &config->settings.set, value);
        else
            refuse(p, "unknown name %.60s in [kread]", name);
    } else if (p->section == SECTION_PROFILE) {
        option = option_find(profile_options, PROFILE_KEYS, name, strlen(name));
        if (option)
            set_option(p, profile_options, option, p->profile, &p->profile->set, value);
        else if (field)
            set_default(p, &p->profile->defaults, field, value);
        else
            refuse(p, "unknown name %.60s in [%s]", name, p->title);
    } else if (p->section == SECTION_GENERATION) {
        if (field)
            set_default(p, &config->generation, field, value);
        else
            refuse(p, "unknown name %.60s in [generation]", name);
    } /* [http] is kread-http's to read */
    return !p->failed;
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

int config_load(const char *path, struct config *config, struct kr_err *err)
{
    size_t size;
    char *text = slurp(path, &size, err), *folder = text ? folder_of(path, err) : NULL;
    struct config fresh = {.file = folder ? strdup(path) : NULL};
    struct parse p = {.path = path, .folder = folder, .config = &fresh, .err = err};
    int rc = -1;
    if (!folder)
        goto out;
    bool mark = size >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0; /* some editors' first bytes */
    p.at = text + (mark ? 3 : 0);
    p.end = text + size;
    rc = ini_parse_stream(read_line, &p, read_value, &p);
    if (rc != 0 || !fresh.file)
        refuse(&p, "%s", rc > 0 ? not_a_line : "out of memory");
    rc = p.failed ? -1 : 0;
out:
    free(text);
    free(folder);
    if (rc == 0)
        *config = fresh;
    else
        config_fini(&fresh);
    return rc;
}

void config_fini(struct config *config)
{
    for (size_t i = 0; i < config->profile_count; i++)
        profile_fini(&config->profiles[i]);
    free(config->profiles);
    free(config->file);
    settings_fini(&config->settings);
    kr_params_fini(&config->generation);
    *config = (struct config){0};
}

struct profile *config_profile(const struct config *config, const char *name)
{
    for (size_t i = 0; i < config->profile_count; i++)
        if (strcmp(config->profiles[i].name, name) == 0)
            return &config->profiles[i];
    return NULL;
}
