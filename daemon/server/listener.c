/* SPDX-License-Identifier: Apache-2.0
 *
 * The socket file. Its mode is set before it gets its name (fchmod on the unbound socket, which
 * Linux carries over to the file), so there is no moment in which it is wider open than it should
 * be. PATH.lock is locked while the daemon lives: whoever holds it may judge a socket file at PATH
 * as a leftover and replace it. The lock file is removed under the lock, and whoever gets a lock
 * checks that the file still has the name.
 */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/server/server.h"

static char *lock_name(const char *path)
{
    char *name = malloc(strlen(path) + sizeof ".lock");
    if (name)
        strcat(strcpy(name, path), ".lock");
    return name;
}

static int drop_lock(struct listener *l, int rc)
{
    close(l->lock_fd);
    l->lock_fd = -1;
    return rc;
}

/* 1: locked; 0: the file lost its name meanwhile, try again; -1. */
static int try_lock(struct listener *l, const char *name, struct kr_err *err)
{
    struct stat held, named;
    l->lock_fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (l->lock_fd < 0)
        return kr_fail(err, KR_IO,
                       "cannot create %s: %s; make its folder, or choose another with --socket",
                       name, strerror(errno));
    if (flock(l->lock_fd, LOCK_EX | LOCK_NB) < 0) {
        if (errno == EWOULDBLOCK)
            kr_fail(err, KR_BAD_CONFIG,
                    "another kread serves %s; stop it (kreactl stop) or give --socket", l->path);
        else
            kr_fail(err, KR_IO, "cannot lock %s: %s", name, strerror(errno));
        return drop_lock(l, -1);
    }
    if (fstat(l->lock_fd, &held) == 0 && lstat(name, &named) == 0 && held.st_ino == named.st_ino &&
        held.st_dev == named.st_dev)
        return 1;
    return drop_lock(l, 0);
}

static int lock(struct listener *l, struct kr_err *err)
{
    char *name = lock_name(l->path);
    if (!name)
        return kr_fail(err, KR_NO_MEMORY, "out of memory");
    int rc;
    do
        rc = try_lock(l, name, err);
    while (rc == 0);
    free(name);
    return rc < 0 ? -1 : 0;
}

int listener_check(const char *path, struct kr_err *err)
{
    size_t room = sizeof((struct sockaddr_un *)0)->sun_path;
    if (strlen(path) >= room)
        return kr_fail(err, KR_BAD_CONFIG,
                       "the socket's path %.60s... has %zu bytes, at most %zu fit; give a shorter "
                       "one with --socket",
                       path, strlen(path), room - 1);
    return 0;
}

/* Makes way for a new socket file: removes one that nobody listens on, refuses anything else. */
static int clear_path(const struct sockaddr_un *address, struct kr_err *err)
{
    const char *path = address->sun_path;
    struct stat st;
    if (lstat(path, &st) < 0)
        return errno == ENOENT ? 0 : kr_fail(err, KR_IO, "%s: %s", path, strerror(errno));
    if (!S_ISSOCK(st.st_mode))
        return kr_fail(err, KR_BAD_CONFIG,
                       "%s exists and is no socket; remove it or give another path with --socket",
                       path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return kr_fail(err, KR_IO, "cannot create a socket: %s", strerror(errno));
    int rc = connect(fd, (const struct sockaddr *)address, sizeof *address);
    int why = rc < 0 ? errno : 0;
    close(fd);
    if (why == 0 || why == EAGAIN || why == EINPROGRESS)
        return kr_fail(err, KR_BAD_CONFIG,
                       "another program listens on %s; stop it or give another path with --socket",
                       path);
    if (why != ECONNREFUSED)
        return kr_fail(err, KR_IO, "cannot tell who uses %s: %s", path, strerror(why));
    if (unlink(path) < 0)
        return kr_fail(err, KR_IO, "cannot replace the old %s: %s", path, strerror(errno));
    return 0;
}

static int bind_file(struct listener *l, const struct sockaddr_un *address, mode_t mode,
                     struct kr_err *err)
{
    struct stat st;
    l->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (l->fd < 0 || fchmod(l->fd, 0600) < 0)
        return kr_fail(err, KR_IO, "cannot create a socket: %s", strerror(errno));
    if (bind(l->fd, (const struct sockaddr *)address, sizeof *address) < 0)
        return kr_fail(err, KR_IO, "cannot create %s: %s; give another path with --socket", l->path,
                       strerror(errno));
    if (lstat(l->path, &st) < 0)
        return kr_fail(err, KR_IO, "%s: %s", l->path, strerror(errno));
    l->ours = true;
    l->device = st.st_dev;
    l->inode = st.st_ino;
    l->owner = st.st_uid;
    if (chmod(l->path, mode) < 0 || listen(l->fd, SOMAXCONN) < 0)
        return kr_fail(err, KR_IO, "%s: %s", l->path, strerror(errno));
    return 0;
}

int listener_open(struct listener *l, const char *path, mode_t mode, struct kr_err *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    *l = (struct listener){.fd = -1, .lock_fd = -1};
    if (listener_check(path, err) < 0)
        return -1;
    strcpy(address.sun_path, path);
    l->path = strdup(path);
    if (!l->path)
        return kr_fail(err, KR_NO_MEMORY, "out of memory");
    if (lock(l, err) == 0 && clear_path(&address, err) == 0 &&
        bind_file(l, &address, mode, err) == 0)
        return 0;
    listener_close(l);
    return -1;
}

int listener_adopt(struct listener *l, int fd, struct kr_err *err)
{
    struct sockaddr_un address;
    socklen_t length = sizeof address;
    struct stat st;
    *l = (struct listener){.fd = fd, .lock_fd = -1};
    if (getsockname(fd, (struct sockaddr *)&address, &length) < 0)
        return kr_fail(err, KR_IO, "the socket passed by systemd: %s", strerror(errno));
    size_t named = length - offsetof(struct sockaddr_un, sun_path);
    if (named == 0 || !address.sun_path[0])
        return 0; /* abstract or unnamed: root's */
    l->path = strndup(address.sun_path, named);
    if (!l->path)
        return kr_fail(err, KR_NO_MEMORY, "out of memory");
    if (stat(l->path, &st) == 0)
        l->owner = st.st_uid;
    return 0;
}

void listener_close(struct listener *l)
{
    struct stat st;
    if (l->ours && lstat(l->path, &st) == 0 && st.st_ino == l->inode && st.st_dev == l->device)
        unlink(l->path);
    if (l->fd >= 0)
        close(l->fd);
    if (l->lock_fd >= 0) {
        char *name = lock_name(l->path);
        if (name)
            unlink(name);
        free(name);
        close(l->lock_fd);
    }
    free(l->path);
    *l = (struct listener){.fd = -1, .lock_fd = -1};
}
