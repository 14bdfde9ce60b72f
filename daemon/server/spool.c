/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/spool.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static const char part[] = ".part";

/* ---------------------------------------------------------------------------- names ---------- */

static const char *const suffixes[] = {"job", "failed", "cancelled"}; /* of SPOOL_RECORD and on */

void spool_name(char name[SPOOL_NAME], uint64_t job, int64_t what)
{
    if (what >= 0)
        snprintf(name, SPOOL_NAME, "%" PRIu64 "-%" PRId64 ".png", job, what);
    else
        snprintf(name, SPOOL_NAME, "%" PRIu64 ".%s", job, suffixes[SPOOL_RECORD - what]);
}

bool spool_parse_name(const char *name, uint64_t *job, int64_t *what)
{
    char again[SPOOL_NAME], suffix[16];
    if (sscanf(name, "%" SCNu64 "-%" SCNd64 ".png", job, what) == 2 && *what >= 0) {
        spool_name(again, *job, *what);
    } else if (sscanf(name, "%" SCNu64 ".%15s", job, suffix) == 2) {
        *what = strcmp(suffix, suffixes[1]) == 0   ? SPOOL_FAILED
                : strcmp(suffix, suffixes[2]) == 0 ? SPOOL_CANCELLED
                                                   : SPOOL_RECORD;
        spool_name(again, *job, *what);
    } else {
        return false;
    }
    return strcmp(name, again) == 0 && *job > 0 && *job <= INT64_MAX;
}

/* ---------------------------------------------------------------------------- plain files ---- */

/* Network file systems let any call be interrupted. */
static int open_file(int folder, const char *name, int flags)
{
    return TEMP_FAILURE_RETRY(
        openat(folder, name, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
}

static int open_folder(int folder, const char *name)
{
    return TEMP_FAILURE_RETRY(openat(folder, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

static int move(int from, const char *name, int to, const char *new_name)
{
    return TEMP_FAILURE_RETRY(renameat(from, name, to, new_name));
}

static int drop(int folder, const char *name)
{
    return TEMP_FAILURE_RETRY(unlinkat(folder, name, 0));
}

static int write_all(int fd, const char *data, size_t size)
{
    while (size > 0) {
        ssize_t n = write(fd, data, size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            errno = n == 0 ? EIO : errno;
            return -1;
        }
        data += n;
        size -= (size_t)n;
    }
    return 0;
}

static int sync_file(int fd)
{
    int rc = TEMP_FAILURE_RETRY(fsync(fd));
    return rc < 0 && errno == EINVAL ? 0 : rc; /* a file system that has nothing to sync */
}

/* Writes NAME.part and syncs it. A failed close may be the first to tell of a failed write. */
static int write_part(int folder, const char *temporary, const void *data, size_t size)
{
    int fd = open_file(folder, temporary, O_WRONLY | O_CREAT | O_TRUNC);
    if (fd < 0)
        return -1;
    int rc = write_all(fd, data, size);
    rc = rc == 0 ? sync_file(fd) : rc;
    int why = errno;
    if (close(fd) < 0 && rc == 0 && errno != EINTR) {
        rc = -1;
        why = errno;
    }
    errno = why;
    return rc;
}

static int replace(int folder, const char *name, const void *data, size_t size)
{
    char temporary[SPOOL_NAME + sizeof part];
    snprintf(temporary, sizeof temporary, "%s%s", name, part);
    if (write_part(folder, temporary, data, size) < 0 ||
        move(folder, temporary, folder, name) < 0) {
        int why = errno;
        drop(folder, temporary);
        errno = why;
        return -1;
    }
    return sync_file(folder);
}

static int failed(const struct spool *s, const char *what, const char *name, struct kr_err *err)
{
    return kr_fail(err, KR_IO, "cannot %s %s in the state directory %s: %s", what, name, s->dir,
                   strerror(errno));
}

int spool_write(const struct spool *s, const char *name, const void *data, size_t size,
                struct kr_err *err)
{
    return replace(s->jobs_fd, name, data, size) == 0 ? 0 : failed(s, "write", name, err);
}

static int read_all(int fd, char *data, size_t size)
{
    while (size > 0) {
        ssize_t n = read(fd, data, size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            errno = n == 0 ? EIO : errno; /* it became shorter under us */
            return -1;
        }
        data += n;
        size -= (size_t)n;
    }
    return 0;
}

/* The whole of an open file; its descriptor stays open. */
static int read_file(const struct spool *s, const char *name, int fd, size_t most, void **data,
                     size_t *size, struct kr_err *err)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return failed(s, "look at", name, err);
    if (!S_ISREG(st.st_mode) || st.st_size < 0 || (uintmax_t)st.st_size > most)
        return kr_fail(err, KR_BAD_FILE, "it is no plain file of at most %zu bytes", most);
    *size = (size_t)st.st_size;
    *data = malloc(*size + 1);
    if (!*data)
        return kr_fail(err, KR_NO_MEMORY, "no memory for %s (%zu bytes)", name, *size);
    if (read_all(fd, *data, *size) == 0)
        return 0;
    failed(s, "read", name, err);
    free(*data);
    *data = NULL;
    return -1;
}

static int read_from(const struct spool *s, int folder, const char *name, size_t most, void **data,
                     size_t *size, struct kr_err *err)
{
    int fd = open_file(folder, name, O_RDONLY);
    *data = NULL;
    if (fd < 0 && errno == ELOOP)
        return kr_fail(err, KR_BAD_FILE, "it is a link");
    if (fd < 0)
        return failed(s, "read", name, err);
    int rc = read_file(s, name, fd, most, data, size, err);
    close(fd);
    return rc;
}

int spool_read(const struct spool *s, const char *name, size_t most, void **data, size_t *size,
               struct kr_err *err)
{
    return read_from(s, s->jobs_fd, name, most, data, size, err);
}

int spool_remove(const struct spool *s, const char *name, struct kr_err *err)
{
    return drop(s->jobs_fd, name) == 0 || errno == ENOENT ? 0 : failed(s, "remove", name, err);
}

int spool_rename(const struct spool *s, const char *name, const char *to, struct kr_err *err)
{
    if (move(s->jobs_fd, name, s->jobs_fd, to) < 0)
        return failed(s, "rename", name, err);
    sync_file(s->jobs_fd);
    return 0;
}

/* ---------------------------------------------------------------------------- damaged/ ------- */

int spool_set_aside(const struct spool *s, const char *name, struct kr_err *err)
{
    char to[SPOOL_NAME + 16];
    if (TEMP_FAILURE_RETRY(mkdirat(s->dir_fd, "damaged", 0700)) < 0 && errno != EEXIST)
        return failed(s, "make", "damaged/", err);
    int folder = open_folder(s->dir_fd, "damaged");
    if (folder < 0)
        return failed(s, "open", "damaged/", err);
    int rc = -1;
    for (int i = 0; rc < 0 && i < 1000; i++) {
        snprintf(to, sizeof to, i ? "%s.%d" : "%s", name, i);
        if (faccessat(folder, to, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
            continue;
        rc = move(s->jobs_fd, name, folder, to);
        if (rc < 0)
            break;
    }
    if (rc < 0)
        failed(s, "set aside", name, err);
    close(folder);
    return rc;
}

int64_t spool_damaged(const struct spool *s)
{
    int64_t n = 0;
    int fd = open_folder(s->dir_fd, "damaged");
    DIR *folder = fd >= 0 ? fdopendir(fd) : NULL;
    if (!folder) {
        if (fd >= 0)
            close(fd);
        return 0;
    }
    for (const struct dirent *e; (e = readdir(folder));)
        n += e->d_name[0] != '.';
    closedir(folder);
    return n;
}

/* ---------------------------------------------------------------------------- listing -------- */

static bool is_part(const char *name)
{
    size_t n = strlen(name), m = sizeof part - 1;
    return n > m && strcmp(name + n - m, part) == 0;
}

int spool_list(const struct spool *s,
               void (*each)(void *user, const char *name, uint64_t job, int64_t what, size_t size),
               void *user, struct kr_err *err)
{
    int fd = open_folder(s->jobs_fd, ".");
    DIR *folder = fd >= 0 ? fdopendir(fd) : NULL;
    if (!folder) {
        failed(s, "list", "jobs/", err);
        if (fd >= 0)
            close(fd);
        return -1;
    }
    const struct dirent *e;
    while ((errno = 0, e = readdir(folder))) {
        struct stat st;
        uint64_t job;
        int64_t what;
        if (is_part(e->d_name))
            drop(s->jobs_fd, e->d_name);
        else if (spool_parse_name(e->d_name, &job, &what) &&
                 fstatat(s->jobs_fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0)
            each(user, e->d_name, job, what, (size_t)st.st_size);
    }
    int rc = errno ? failed(s, "list", "jobs/", err) : 0;
    closedir(folder);
    return rc;
}

/* ---------------------------------------------------------------------------- number --------- */

int spool_number(const struct spool *s, uint64_t *number, struct kr_err *err)
{
    void *data;
    size_t size;
    char again[32];
    *number = 0;
    if (faccessat(s->dir_fd, "number", F_OK, AT_SYMLINK_NOFOLLOW) < 0 && errno == ENOENT)
        return 0;
    if (read_from(s, s->dir_fd, "number", 40, &data, &size, err) < 0)
        return -1;
    ((char *)data)[size] = '\0';
    if (sscanf(data, "%" SCNu64, number) != 1)
        *number = 0;
    snprintf(again, sizeof again, "%" PRIu64 "\n", *number);
    bool good = strcmp(again, data) == 0 && *number <= INT64_MAX / 2;
    free(data);
    if (good)
        return 0;
    *number = 0;
    return kr_fail(err, KR_BAD_FILE, "%s/number is damaged: it is no number", s->dir);
}

int spool_set_number(const struct spool *s, uint64_t number, struct kr_err *err)
{
    char text[32];
    int n = snprintf(text, sizeof text, "%" PRIu64 "\n", number);
    return replace(s->dir_fd, "number", text, (size_t)n) == 0 ? 0
                                                              : failed(s, "write", "number", err);
}

/* ---------------------------------------------------------------------------- opening -------- */

/* mkdir -p, for the owner alone. */
static int make_folder(const char *dir)
{
    char *path = strdup(dir);
    if (!path)
        return -1;
    int rc = 0;
    for (char *slash = strchr(path + 1, '/'); rc == 0; slash = strchr(slash + 1, '/')) {
        if (slash)
            *slash = '\0';
        rc = TEMP_FAILURE_RETRY(mkdir(path, 0700)) == 0 || errno == EEXIST || errno == EISDIR ||
                     errno == EROFS
                 ? 0
                 : -1;
        if (!slash)
            break;
        *slash = '/';
    }
    int why = errno;
    free(path);
    errno = why;
    return rc;
}

static int open_jobs(struct spool *s)
{
    static const char probe[] = "probe.part"; /* whether files can be made; spool_list() removes */
    if (TEMP_FAILURE_RETRY(mkdirat(s->dir_fd, "jobs", 0700)) < 0 && errno != EEXIST)
        return -1;
    s->jobs_fd = open_folder(s->dir_fd, "jobs");
    if (s->jobs_fd < 0)
        return -1;
    int fd = open_file(s->jobs_fd, probe, O_WRONLY | O_CREAT | O_TRUNC);
    if (fd < 0)
        return -1;
    close(fd);
    return drop(s->jobs_fd, probe);
}

static int lock(struct spool *s, struct kr_err *err)
{
    s->lock_fd = open_file(s->dir_fd, "lock", O_RDWR | O_CREAT);
    if (s->lock_fd < 0)
        return failed(s, "write", "lock", err);
    if (TEMP_FAILURE_RETRY(flock(s->lock_fd, LOCK_EX | LOCK_NB)) == 0)
        return 0;
    if (errno != EWOULDBLOCK)
        return failed(s, "lock", "lock", err);
    return kr_fail(err, KR_BUSY,
                   "another kread uses the state directory %s; stop it, or give each its own with "
                   "state_dir",
                   s->dir);
}

int spool_open(struct spool *s, const char *dir, struct kr_err *err)
{
    *s = (struct spool){.dir = strdup(dir), .lock_fd = -1, .dir_fd = -1, .jobs_fd = -1};
    if (!s->dir)
        return kr_fail(err, KR_NO_MEMORY, "out of memory");
    int rc = make_folder(dir);
    if (rc == 0)
        s->dir_fd = open_folder(AT_FDCWD, dir);
    if (s->dir_fd < 0)
        rc = kr_fail(err, KR_IO, "the state directory %s cannot be used: %s", dir, strerror(errno));
    rc = rc == 0 ? lock(s, err) : -1;
    if (rc == 0 && open_jobs(s) < 0)
        rc = failed(s, "write", "jobs/", err);
    if (rc < 0)
        spool_close(s);
    return rc;
}

bool spool_is_open(const struct spool *s)
{
    return s->jobs_fd >= 0;
}

void spool_close(struct spool *s)
{
    if (s->jobs_fd >= 0)
        close(s->jobs_fd);
    if (s->dir_fd >= 0)
        close(s->dir_fd);
    if (s->lock_fd >= 0)
        close(s->lock_fd);
    free(s->dir);
    *s = (struct spool){.lock_fd = -1, .dir_fd = -1, .jobs_fd = -1};
}
