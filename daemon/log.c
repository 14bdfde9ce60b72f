/* SPDX-License-Identifier: Apache-2.0
 *
 * The journal gets its own datagrams rather than lines on standard error: a line with fields cannot
 * be said there, and lines of one thread would be mixed up in order with those of the other way. If
 * the journal does not take a datagram, the line goes to standard error with the priority in front,
 * which the journal reads too.
 */
#include "daemon/log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#define SD_JOURNAL_SUPPRESS_LOCATION
#include <systemd/sd-journal.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { LINE_SIZE = 2048, MAX_FIELDS = 24 };

static struct {
    _Atomic(enum log_level) level; /* a reload changes it while the worker logs */
    bool journal; /* standard error is the journal's: it wants a priority in front of a line */
    bool fields;  /* and its socket can be reached, which takes fields */
} state = {.level = LOG_LEVEL_INFO};

/* As syslog(3) has them. */
static int priority(enum log_level level)
{
    static const int priorities[] = {3, 4, 6, 7};
    return priorities[level];
}

/* $JOURNAL_STREAM is "device:inode" of the journal's stream. It may be inherited by a process whose
 * standard error goes elsewhere, so the numbers are compared. The stream is a socket; the other
 * socket, for fields, is missing where somebody else reads the stream, or in a changed root. */
static void look_for_journal(void)
{
    const char *stream = getenv("JOURNAL_STREAM");
    uintmax_t device, inode;
    struct stat st;
    state.journal = stream && sscanf(stream, "%" SCNuMAX ":%" SCNuMAX, &device, &inode) == 2 &&
                    fstat(STDERR_FILENO, &st) == 0 && st.st_dev == device && st.st_ino == inode;
    state.fields =
        state.journal && S_ISSOCK(st.st_mode) && access("/run/systemd/journal/socket", W_OK) == 0;
}

void log_init(enum log_level level)
{
    state.level = level;
    look_for_journal();
}

/* Nobody forges a line or moves a terminal's cursor. */
static void blank_controls(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || *text == 0x7f)
            *text = '?';
}

static size_t prefix(enum log_level level, char *buf, size_t size)
{
    static const char *const name[] = {"error", "warn", "info", "debug"};
    struct tm tm;
    time_t now = time(NULL);
    if (state.journal)
        return (size_t)snprintf(buf, size, "<%d>", priority(level));
    localtime_r(&now, &tm);
    size_t n = strftime(buf, size, "%Y-%m-%d %H:%M:%S ", &tm);
    return n + (size_t)snprintf(buf + n, size - n, "%-5s ", name[level]);
}

static void to_stderr(enum log_level level, const char *text)
{
    char line[LINE_SIZE + 40];
    size_t n = prefix(level, line, sizeof line);
    n += (size_t)snprintf(line + n, sizeof line - n - 1, "%s", text);
    n = n < sizeof line - 1 ? n : sizeof line - 2;
    line[n++] = '\n';
    ssize_t done;
    do
        done = write(STDERR_FILENO, line, n);
    while (done < 0 && errno == EINTR);
}

/* 0: the journal has it. */
static int to_journal(enum log_level level, const struct log_field *fields, size_t count,
                      const char *prompt, const char *text)
{
    char message[LINE_SIZE + 16], words[MAX_FIELDS][80], number[24];
    struct iovec io[MAX_FIELDS + 4];
    char *quoted = NULL;
    int n = 0;
    snprintf(message, sizeof message, "MESSAGE=%s", text);
    snprintf(number, sizeof number, "PRIORITY=%d", priority(level));
    io[n++] = (struct iovec){message, strlen(message)};
    io[n++] = (struct iovec){number, strlen(number)};
    for (size_t i = 0; i < count && i < MAX_FIELDS; i++) {
        snprintf(words[i], sizeof words[i], "%s=%s", fields[i].name, fields[i].text);
        io[n++] = (struct iovec){words[i], strlen(words[i])};
    }
    if (prompt && asprintf(&quoted, "KREAD_PROMPT=%s", prompt) >= 0)
        io[n++] = (struct iovec){quoted, strlen(quoted)};
    else
        quoted = NULL;
    int rc = sd_journal_sendv(io, n);
    free(quoted);
    return rc;
}

void log_fields(enum log_level level, const struct log_field *fields, size_t count,
                const char *prompt, const char *line)
{
    char text[LINE_SIZE];
    if (level > state.level)
        return;
    snprintf(text, sizeof text, "%s", line);
    blank_controls(text);
    if (!state.fields || to_journal(level, fields, count, prompt, text) != 0)
        to_stderr(level, text);
}

void log_line(enum log_level level, const char *format, ...)
{
    char text[LINE_SIZE];
    va_list args;
    if (level > state.level)
        return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    log_fields(level, NULL, 0, NULL, text);
}
