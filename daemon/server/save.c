/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/save.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int write_all(int fd, const char *data, size_t size)
{
    while (size > 0) {
        ssize_t n = write(fd, data, size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return -1;
        data += n;
        size -= (size_t)n;
    }
    return 0;
}

/* Writes under the temporary name, then gives the file its own. */
static int write_file(const char *temporary, const char *name, const void *data, size_t size)
{
    int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return -1;
    int rc = write_all(fd, data, size), why = errno;
    if (close(fd) < 0 && rc == 0) {
        rc = -1;
        why = errno;
    }
    if (rc == 0 && rename(temporary, name) < 0) {
        rc = -1;
        why = errno;
    }
    if (rc < 0)
        unlink(temporary);
    errno = why;
    return rc;
}

int save_png(const char *dir, uint64_t job, int index, const void *png, size_t size,
             struct kr_err *err)
{
    char when[32], *name = NULL, *temporary = NULL;
    struct tm tm;
    time_t now = time(NULL);
    localtime_r(&now, &tm);
    strftime(when, sizeof when, "%Y%m%d-%H%M%S", &tm);
    if (asprintf(&name, "%s/kread-%s-%" PRIu64 "-%d.png", dir, when, job, index) < 0)
        name = NULL;
    if (name && asprintf(&temporary, "%s.part", name) < 0)
        temporary = NULL;
    int rc = -1;
    if (!temporary)
        kr_fail(err, KR_NO_MEMORY, "out of memory");
    else if ((rc = write_file(temporary, name, png, size)) < 0)
        kr_fail(err, KR_IO, "cannot write %s: %s; see output_dir in kread.ini", name,
                strerror(errno));
    free(name);
    free(temporary);
    return rc;
}
