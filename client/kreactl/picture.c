/* SPDX-License-Identifier: Apache-2.0
 *
 * A picture appears under its name whole or not at all: it is written to a temporary name in the
 * same folder, synced and renamed. The temporary file is made before the job is even asked for, so
 * that a missing folder or a read-only disk costs no minutes of work. Its mode is the umask's,
 * since open() applies it.
 *
 * Names: -o FILE, with the index in place of %d, or, where there are several pictures and no %d, as
 * -0, -1 before the suffix; a folder, or nothing (the current folder), for kread-SEED.png, which
 * never replaces a file but takes the next free kread-SEED-1.png. FILE is no format string: only %d
 * is replaced, and only in the file's own name.
 */
#include "client/kreactl/picture.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int failed(const char *what, const char *path, struct kr_err *err)
{
    return kr_fail(err, KR_IO, "cannot %s %s: %s", what, path, strerror(errno));
}

static char *join(const char *folder, const char *name)
{
    char *path;
    const char *slash = folder[0] && folder[strlen(folder) - 1] != '/' ? "/" : "";
    return asprintf(&path, "%s%s%s", folder, slash, name) < 0 ? NULL : path;
}

static int no_memory(struct kr_err *err)
{
    return kr_fail(err, KR_NO_MEMORY, "no memory for a file's name");
}

/* --------------------------------------------------------------------------------- opening --- */

static int make_temp(struct picture_output *o, struct kr_err *err)
{
    for (int i = 0; i < 1000; i++) {
        char name[64];
        snprintf(name, sizeof name, ".kread-%ld-%d.part", (long)getpid(), i);
        char *path = join(o->folder, name);
        if (path == NULL) {
            return no_memory(err);
        }
        o->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (o->fd >= 0) {
            o->temp = path;
            return 0;
        }
        free(path);
        if (errno != EEXIST) {
            break;
        }
    }
    struct stat st;
    int why = errno;
    if (o->folder[0] && (stat(o->folder, &st) != 0 || !S_ISDIR(st.st_mode))) {
        return kr_fail(err, KR_BAD_REQUEST, "there is no folder \"%s\"; make it first", o->folder);
    }
    errno = why;
    return failed("write into the folder", o->folder[0] ? o->folder : ".", err);
}

/* Splits FILE into folder and name, and finds out whether it is a folder or a device itself. */
static int take_name(struct picture_output *o, struct kr_err *err)
{
    struct stat st;
    const char *slash = strrchr(o->named, '/');
    bool there = stat(o->named, &st) == 0;
    if (there && S_ISDIR(st.st_mode)) {
        o->folder = strdup(o->named);
        o->invented = true;
        return o->folder ? 0 : no_memory(err);
    }
    if (o->named[0] == 0 || (slash != NULL && slash[1] == 0)) {
        return kr_fail(err, KR_BAD_REQUEST, "there is no folder \"%s\"; make it first", o->named);
    }
    o->to_device = there && !S_ISREG(st.st_mode);
    o->folder = slash ? strndup(o->named, (size_t)(slash + 1 - o->named)) : strdup("");
    o->base = strdup(slash ? slash + 1 : o->named);
    return o->folder && o->base ? 0 : no_memory(err);
}

int picture_open(struct picture_output *o, const char *named, bool many, int wake,
                 struct kr_err *err)
{
    *o = (struct picture_output){.named = named, .many = many, .wake = wake, .fd = -1};
    if (named != NULL && strcmp(named, "-") == 0) {
        o->to_stdout = true;
        return 0;
    }
    o->invented = named == NULL;
    o->folder = named == NULL ? strdup("") : NULL;
    if (named != NULL ? take_name(o, err) != 0 : o->folder == NULL && no_memory(err)) {
        picture_close(o);
        return -1;
    }
    if (o->to_device) {
        o->fd = open(named, O_WRONLY | O_CLOEXEC | O_NOCTTY);
        if (o->fd < 0 && errno == EINTR) { /* a FIFO that nobody reads */
            kr_fail(err, KR_CANCELLED, "cancelled");
        } else if (o->fd < 0) {
            failed("write", named, err);
        }
    } else {
        make_temp(o, err);
    }
    if (o->fd < 0) {
        picture_close(o);
        return -1;
    }
    return 0;
}

void picture_close(struct picture_output *o)
{
    if (o->fd >= 0) {
        close(o->fd);
    }
    if (o->temp != NULL) {
        unlink(o->temp);
    }
    free(o->temp);
    free(o->folder);
    free(o->base);
    free(o->path);
    *o = (struct picture_output){.fd = -1};
}

/* --------------------------------------------------------------------------------- writing --- */

/* Into a pipe: never more than it has room for, so that a signal is not waited out by a write. */
static int wait_writable(int fd, int wake, struct kr_err *err)
{
    struct pollfd fds[2] = {{.fd = fd, .events = POLLOUT}, {.fd = wake, .events = POLLIN}};
    while (poll(fds, 2, -1) < 0) {
        if (errno != EINTR) {
            return kr_fail(err, KR_IO, "cannot wait for an output: %s", strerror(errno));
        }
    }
    return fds[1].revents ? kr_fail(err, KR_CANCELLED, "interrupted") : 0;
}

static int write_all(int fd, const char *data, size_t size, bool pipe, int wake, const char *name,
                     struct kr_err *err)
{
    while (size > 0) {
        if (pipe && wait_writable(fd, wake, err) != 0) {
            return -1;
        }
        ssize_t n = write(fd, data, pipe && size > PIPE_BUF ? PIPE_BUF : size);
        if (n < 0 && errno == EPIPE) {
            return kr_fail(err, KR_IO, "whoever read %s has closed it", name);
        }
        if (n < 0 && errno != EINTR && errno != EAGAIN) {
            return failed("write", name, err);
        }
        if (n > 0) {
            data += n;
            size -= (size_t)n;
        }
    }
    return 0;
}

/* NAME with the index in place of each %d. */
static char *with_index(const char *name, int64_t index)
{
    char digits[24], *result = malloc(strlen(name) * 12 + 1), *to = result;
    int n = snprintf(digits, sizeof digits, "%" PRId64, index);
    while (result != NULL && *name) {
        if (name[0] == '%' && name[1] == 'd') {
            memcpy(to, digits, (size_t)n);
            to += n;
            name += 2;
        } else {
            *to++ = *name++;
        }
    }
    if (result != NULL) {
        *to = 0;
    }
    return result;
}

/* The file's own name; attempt > 0 where the ones before are taken. */
static char *file_name(const struct picture_output *o, int64_t index, int64_t seed, int attempt)
{
    char *name;
    int n;
    if (o->invented) {
        n = attempt == 0 ? asprintf(&name, "kread-%" PRId64 ".png", seed)
                         : asprintf(&name, "kread-%" PRId64 "-%d.png", seed, attempt);
    } else if (strstr(o->base, "%d")) {
        return with_index(o->base, index);
    } else if (o->many) {
        const char *dot = strrchr(o->base, '.');
        int stem = dot != NULL && dot != o->base ? (int)(dot - o->base) : (int)strlen(o->base);
        n = asprintf(&name, "%.*s-%" PRId64 "%s", stem, o->base, index, o->base + stem);
    } else {
        return strdup(o->base);
    }
    return n < 0 ? NULL : name;
}

/* Gives the temporary file its name. An invented name must be free: 1 means it is taken. */
static int give_name(struct picture_output *o, struct kr_err *err)
{
    if (!o->invented) {
        return rename(o->temp, o->path) == 0 ? 0 : failed("make", o->path, err);
    }
    if (renameat2(AT_FDCWD, o->temp, AT_FDCWD, o->path, RENAME_NOREPLACE) == 0) {
        return 0;
    }
    if ((errno == EINVAL || errno == ENOSYS) && link(o->temp, o->path) == 0) {
        unlink(o->temp); /* a file system that knows links instead */
        return 0;
    }
    if ((errno == EPERM || errno == ENOTSUP) && access(o->path, F_OK) != 0) {
        return rename(o->temp, o->path) == 0 ? 0 : failed("make", o->path, err);
    }
    return errno == EEXIST ? 1 : failed("make", o->path, err);
}

static int name_it(struct picture_output *o, int64_t index, int64_t seed, struct kr_err *err)
{
    for (int attempt = 0; attempt < 10000; attempt++) {
        char *name = file_name(o, index, seed, attempt);
        free(o->path);
        o->path = name ? join(o->folder, name) : NULL;
        free(name);
        int rc = o->path ? give_name(o, err) : no_memory(err);
        if (rc == 0) {
            free(o->temp);
            o->temp = NULL;
        }
        if (rc <= 0) {
            return rc;
        }
    }
    return kr_fail(err, KR_IO, "there are 10000 pictures of seed %" PRId64 " already: give -o FILE",
                   seed);
}

static int write_file(struct picture_output *o, const void *png, size_t size, int64_t index,
                      int64_t seed, struct kr_err *err)
{
    const char *shown = o->named ? o->named : "the picture";
    if (o->temp == NULL && make_temp(o, err) != 0) {
        return -1;
    }
    if (write_all(o->fd, png, size, false, -1, shown, err) != 0) {
        return -1;
    }
    int bad = fsync(o->fd) != 0 && errno != EINVAL && errno != ENOTSUP;
    int error = errno;
    if (close(o->fd) != 0 && !bad) {
        bad = 1;
        error = errno;
    }
    o->fd = -1;
    errno = error;
    return bad ? failed("write", shown, err) : name_it(o, index, seed, err);
}

int picture_write(struct picture_output *o, const void *png, size_t size, int64_t index,
                  int64_t seed, struct kr_err *err)
{
    if (o->to_stdout) {
        return write_all(STDOUT_FILENO, png, size, true, o->wake, "standard output", err);
    }
    if (!o->to_device) {
        return write_file(o, png, size, index, seed, err);
    }
    free(o->path);
    o->path = strdup(o->named);
    return o->path == NULL ? no_memory(err)
                           : write_all(o->fd, png, size, true, o->wake, o->named, err);
}

/* --------------------------------------------------------------------------------- preview --- */

int preview_open(struct preview_output *o, const char *named, struct kr_err *err)
{
    struct stat st;
    *o = (struct preview_output){0};
    bool there = named != NULL && stat(named, &st) == 0;
    if (named == NULL || strcmp(named, "-") == 0 || (there && !S_ISREG(st.st_mode))) {
        return kr_fail(err, KR_BAD_REQUEST,
                       "--preview needs -o with a file's name: previews are written beside it");
    }
    const char *slash = strrchr(named, '/'), *base = slash ? slash + 1 : named;
    const char *dot = strrchr(base, '.');
    int stem = dot != NULL && dot != base ? (int)(dot - named) : (int)strlen(named);
    if (asprintf(&o->path, "%.*s.preview.png", stem, named) < 0) {
        o->path = NULL;
    }
    if (o->path == NULL || asprintf(&o->temp, "%s.%ld.part", o->path, (long)getpid()) < 0) {
        o->temp = NULL;
        preview_close(o);
        return no_memory(err);
    }
    return 0;
}

int preview_write(struct preview_output *o, const void *png, size_t size, struct kr_err *err)
{
    int fd = open(o->temp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) {
        return failed("write", o->path, err);
    }
    int rc = write_all(fd, png, size, false, -1, o->path, err);
    if (close(fd) != 0 && rc == 0) {
        rc = failed("write", o->path, err);
    }
    if (rc == 0 && rename(o->temp, o->path) != 0) {
        rc = failed("make", o->path, err);
    }
    if (rc != 0) {
        unlink(o->temp);
    }
    o->written = o->written || rc == 0;
    return rc;
}

void preview_close(struct preview_output *o)
{
    if (o->written) {
        unlink(o->path);
    }
    free(o->path);
    free(o->temp);
    *o = (struct preview_output){0};
}
