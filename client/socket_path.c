/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the daemon listens. Clients look in the daemon's own order, and that includes the line
 * `socket = PATH` of [kread] in its config file: otherwise whoever moves the socket there would
 * have to tell every client again. Only that line is looked for; whether the file is right is the
 * daemon's business. A file that may not be read says nothing.
 */
#include "client/client.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/settings/ini.h"

static int no_memory(struct kr_err *err)
{
    return kr_fail(err, KR_NO_MEMORY, "no memory for the socket's path");
}

static int join(const char *folder, const char *name, char **path, struct kr_err *err)
{
    if (asprintf(path, "%s%s%s", folder, folder[0] ? "/" : "", name) >= 0) {
        return 0;
    }
    *path = NULL;
    return no_memory(err);
}

static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && value[0] ? value : NULL;
}

struct search {
    char **path;
    struct kr_err *err;
    int rc;
};

static void read_value(struct ini *ini, const char *name, const char *value)
{
    struct search *search = ini->reader->user;
    if (strcmp(ini->title, "kread") == 0 && strcmp(name, "socket") == 0 && value[0] &&
        *search->path == NULL) {
        search->rc = join(value[0] == '/' ? "" : ini->folder, value, search->path, search->err);
    }
}

/* *path stays NULL where no file names one. */
static int from_config(const char *named, char **path, struct kr_err *err)
{
    struct search search = {.path = path, .err = err};
    const struct ini_reader reader = {.lenient = true, .value = read_value, .user = &search};
    struct kr_err unreadable;
    char *file;
    int rc = ini_find(named, &file, &unreadable);
    if (rc == 0 && file != NULL) {
        rc = ini_read(file, &reader, &unreadable);
    }
    free(file);
    if (rc != 0 && unreadable.code == KR_NO_MEMORY) {
        return no_memory(err);
    }
    return search.rc;
}

int client_socket_path(const char *option, const char *config, char **path, struct kr_err *err)
{
    const char *named = option ? option : variable("KREAD_SOCKET");
    const char *runtime = variable("XDG_RUNTIME_DIR");
    *path = NULL;
    if (named != NULL) {
        return join("", named, path, err);
    }
    if (from_config(config, path, err) != 0 || *path != NULL) {
        return *path ? 0 : -1;
    }
    if (runtime != NULL && runtime[0] == '/') {
        if (join(runtime, "kread.sock", path, err) != 0 || access(*path, F_OK) == 0) {
            return *path ? 0 : -1;
        }
        free(*path);
    }
    return join("", "/run/kread/kread.sock", path, err);
}
