/* SPDX-License-Identifier: Apache-2.0 */
#include "client/http/log.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static enum log_level most = LOG_LEVEL_INFO;
static bool journal;

/* $JOURNAL_STREAM is "device:inode" of the journal's stream; it may be inherited by a process whose
 * standard error goes elsewhere. */
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
    most = level;
    journal = is_journal();
}

void log_line(enum log_level level, const char *format, ...)
{
    static const int priority[] = {3, 4, 6, 7};
    static const char *const name[] = {"error", "warn", "info", "debug"};
    char line[1024], stamp[32];
    va_list args;
    time_t now = time(NULL);
    struct tm tm;
    if (level > most) {
        return;
    }
    strftime(stamp, sizeof stamp, "%Y-%m-%d %H:%M:%S", localtime_r(&now, &tm));
    int n = journal ? snprintf(line, sizeof line, "<%d>", priority[level])
                    : snprintf(line, sizeof line, "%s %-5s ", stamp, name[level]);
    size_t start = (size_t)n, room = sizeof line - start - 1;
    va_start(args, format);
    int length = vsnprintf(line + start, room, format, args);
    va_end(args);
    size_t end = start + (length < 0 ? 0 : (size_t)length < room ? (size_t)length : room - 1);
    for (size_t i = start; i < end; i++) {
        if ((unsigned char)line[i] < ' ' || line[i] == 0x7f) {
            line[i] = '?';
        }
    }
    line[end] = '\n';
    ssize_t written = write(STDERR_FILENO, line, end + 1);
    (void)written; /* a log that nobody reads stops nothing */
}
