/* SPDX-License-Identifier: Apache-2.0
 *
 * The log: one line on standard error per call, in one write. Any thread may call.
 */
#ifndef KR_LOG_H
#define KR_LOG_H

#include "daemon/options.h"

/* Lines above `level` are dropped. Where standard error is the journal, lines carry its priority
 * prefix and no time, else a time and the level's name. */
void log_init(enum log_level level);

void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
