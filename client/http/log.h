/* SPDX-License-Identifier: Apache-2.0
 *
 * The log: one line on standard error per call. Nothing that a client sent stands in it.
 */
#ifndef KR_HTTP_LOG_H
#define KR_HTTP_LOG_H

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

/* Lines above `level` are dropped. Under systemd lines carry the journal's priority and no time. */
void log_init(enum log_level level);

void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
