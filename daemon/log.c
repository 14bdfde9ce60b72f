/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static struct {
    enum log_level level;
    bool journal;
} state = {.level = LOG_LEVEL_INFO};

/* $JOURNAL_STREAM is "device:inode" of the journal's stream. It may be inherited by a process whose
 * standard error goes elsewhere, so the numbers are compared. */
static bool is_journal(void)
{
    const char *stream = getenv("JOURNAL_STREAM");
    uintmax_t device, inode;
    struct stat st;
    return stream && sscanf(stream, "%" SCNuMAX ":%" SCNuMAX, &device, &inode) == 2 &&
           fstat(STDERR_FILENO, &st) == 0 && st.st_dev == device && st.st_ino == inode;
}

void log_init(enum log_level level)
{
    state.level = level;
    state.journal = is_journal();
}

static size_t prefix(enum log_level level, char *buf, size_t size)
{
    static const int priority[] = {3, 4, 6, 7};
    static const char *const name[] = {"error", "warn", "info", "debug"};
    struct tm tm;
    time_t now = time(NULL);
    if (state.journal)
        return (size_t)snprintf(buf, size, "<%d>", priority[level]);
    localtime_r(&now, &tm);
    size_t n = strftime(buf, size, "%Y-%m-%d %H:%M:%S ", &tm);
    return n + (size_t)snprintf(buf + n, size - n, "%-5s ", name[level]);
}

void log_line(enum log_level level, const char *format, ...)
{
    char line[2048];
    va_list args;
    if (level > state.level)
        return;
    size_t n = prefix(level, line, sizeof line), room = sizeof line - n - 1;
    va_start(args, format);
    int length = vsnprintf(line + n, room, format, args);
    va_end(args);
    size_t end = n + (length < 0 ? 0 : (size_t)length < room ? (size_t)length : room - 1);
    for (; n < end; n++)
        if ((unsigned char)line[n] < ' ' || line[n] == 0x7f)
            line[n] = '?'; /* nobody forges a line or moves a terminal's cursor */
    line[end] = '\n';
    ssize_t done;
    do
        done = write(STDERR_FILENO, line, end + 1);
    while (done < 0 && errno == EINTR);
}
