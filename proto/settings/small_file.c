/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/settings/small_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_FILE = 1 << 20 };

/* Opens without waiting for whoever may stand at the other end, and refuses a pipe. */
static int open_plain(const char *path, struct kr_err *err)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) {
        return kr_fail(err, KR_BAD_CONFIG, "%s: %s", path, strerror(errno));
    }
    if (fstat(fd, &st) == 0 && S_ISFIFO(st.st_mode)) {
        close(fd);
        return kr_fail(err, KR_BAD_CONFIG, "%s is a pipe; it must be a plain file", path);
    }
    return fd;
}

static int read_all(int fd, char *text, size_t *size)
{
    ssize_t n = 1;
    for (*size = 0; n != 0 && *size <= MAX_FILE;) {
        n = read(fd, text + *size, MAX_FILE + 1 - *size);
        if (n < 0 && errno != EINTR) {
            return -1;
        }
        *size += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

int small_file_read(const char *path, char **text, size_t *size, struct kr_err *err)
{
    int fd = open_plain(path, err), rc = -1;
    *text = fd < 0 ? NULL : malloc(MAX_FILE + 2);
    if (fd < 0) {
        return -1;
    }
    if (*text == NULL) {
        kr_fail(err, KR_NO_MEMORY, "%s: no memory to read it", path);
    } else if (read_all(fd, *text, size) != 0) {
        kr_fail(err, KR_BAD_CONFIG, "%s: %s", path, strerror(errno));
    } else if (*size > MAX_FILE) {
        kr_fail(err, KR_BAD_CONFIG, "%s is larger than a megabyte, it must be a small file", path);
    } else {
        (*text)[*size] = 0;
        rc = 0;
    }
    close(fd);
    if (rc != 0) {
        free(*text);
        *text = NULL;
    }
    return rc;
}
