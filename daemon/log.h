/* SPDX-License-Identifier: Apache-2.0
 *
 * The log: one line per call, to the journal where standard error is the journal's, else to
 * standard error in one write. Any thread may call.
 */
#ifndef KR_LOG_H
#define KR_LOG_H

#include "daemon/options.h"

/* Lines above `level` are dropped. In the journal a line carries its priority, elsewhere a time and
 * the level's name. */
void log_init(enum log_level level);

void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* What the journal keeps beside a line, to search by: `journalctl KREAD_JOB=7`. */
struct log_field {
    char name[24]; /* "KREAD_JOB" */
    char text[40];
};

/* A line with fields; outside the journal the line alone. `prompt`, where the owner wants it in the
 * log, is a field KREAD_PROMPT; NULL: none. */
void log_fields(enum log_level level, const struct log_field *fields, size_t count,
                const char *prompt, const char *line);

#endif
