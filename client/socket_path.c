/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the daemon listens. Clients look in the daemon's own order, and that includes the line
 * `socket = PATH` of [kread] in its config file: otherwise whoever moves the socket there would
 * have to tell every client again. Only that line is looked for, in the first config file that the
 * daemon would take too; whether the file is right is the daemon's business. A file that may not be
 * read says nothing.
 */
#include "client/client.h"

#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char *no_memory(struct kr_err *err)
{
    kr_fail(err, KR_NO_MEMORY, "no memory for the socket's path");
    return NULL;
}

__attribute__((format(printf, 2, 3))) static char *format(struct kr_err *err, const char *text, ...)
{
    char *result;
    va_list args;
    va_start(args, text);
    int n = vasprintf(&result, text, args);
    va_end(args);
    return n < 0 ? no_memory(err) : result;
}

static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && value[0] ? value : NULL;
}

static char *user_config(struct kr_err *err)
{
    const char *xdg = variable("XDG_CONFIG_HOME"), *home = variable("HOME");
    if (xdg != NULL && xdg[0] == '/') {
        return format(err, "%s/kread/kread.ini", xdg);
    }
    if (home == NULL) {
        const struct passwd *pw = getpwuid(geteuid());
        home = pw ? pw->pw_dir : "/";
    }
    return format(err, "%s/.config/kread/kread.ini", home);
}

/* The line without blanks around it and without a comment behind it, in place. */
static char *trim(char *line)
{
    line += strspn(line, " \t\r\n");
    for (char *p = line; *p; p++) {
        if (*p == ';' && (p == line || strchr(" \t", p[-1]))) {
            *p = 0;
            break;
        }
    }
    for (size_t n = strlen(line); n > 0 && strchr(" \t\r\n", line[n - 1]); n--) {
        line[n - 1] = 0;
    }
    return line;
}

/* The value of "socket = VALUE" or "socket: VALUE", NULL for another line. */
static const char *socket_value(char *line)
{
    size_t name = strcspn(line, "=:");
    if (line[name] == 0 || line[0] == '#') {
        return NULL;
    }
    line[name] = 0;
    return strcmp(trim(line), "socket") == 0 ? trim(line + name + 1) : NULL;
}

/* Whether a line that begins with '[' begins [kread]; the daemon too takes blanks inside. */
static bool is_kread(const char *line)
{
    line += 1 + strspn(line + 1, " \t");
    if (strncmp(line, "kread", 5) != 0) {
        return false;
    }
    line += 5 + strspn(line + 5, " \t");
    return *line == ']';
}

/* The path in the text of a config file, relative to its folder; *path stays NULL if it names none.
 */
static int scan(char *text, const char *config, char **path, struct kr_err *err)
{
    bool inside = false;
    int rc = 0;
    text += strncmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    for (char *next = text; *path == NULL && rc == 0 && next != NULL;) {
        char *line = trim(strsep(&next, "\n"));
        if (line[0] == '[') {
            inside = is_kread(line);
            continue;
        }
        const char *value = inside ? socket_value(line) : NULL;
        if (value == NULL || value[0] == 0) {
            continue;
        }
        int folder = value[0] == '/' ? 0 : (int)(strrchr(config, '/') + 1 - config);
        *path = format(err, "%.*s%s", folder, config, value);
        rc = *path == NULL ? -1 : 0;
    }
    return rc;
}

static int from_config(char **path, struct kr_err *err)
{
    char *files[2] = {user_config(err), format(err, "/etc/kread/kread.ini")};
    int rc = files[0] && files[1] ? 0 : -1;
    for (int i = 0; i < 2 && rc == 0; i++) {
        struct kr_err unreadable;
        size_t size;
        char *text;
        if (access(files[i], F_OK) != 0 && (errno == ENOENT || errno == ENOTDIR)) {
            continue;
        }
        /* Where it is closed to us, nothing after it would be the daemon's either. */
        if (client_read_file(files[i], &text, &size, &unreadable) == 0) {
            rc = scan(text, files[i], path, err);
            free(text);
        }
        break;
    }
    free(files[0]);
    free(files[1]);
    return rc;
}

int client_socket_path(const char *option, char **path, struct kr_err *err)
{
    const char *named = option ? option : variable("KREAD_SOCKET");
    const char *runtime = variable("XDG_RUNTIME_DIR");
    *path = NULL;
    if (named != NULL) {
        *path = format(err, "%s", named);
        return *path ? 0 : -1;
    }
    if (from_config(path, err) != 0 || *path != NULL) {
        return *path ? 0 : -1;
    }
    if (runtime != NULL && runtime[0] == '/') {
        *path = format(err, "%s/kread.sock", runtime);
        if (*path == NULL || access(*path, F_OK) == 0) {
            return *path ? 0 : -1;
        }
        free(*path);
    }
    *path = format(err, "/run/kread/kread.sock");
    return *path ? 0 : -1;
}
