/* SPDX-License-Identifier: Apache-2.0
 *
 * What systemd and the daemon tell each other: a socket handed over at start, the state, signs of
 * life. Without systemd all of it is quiet. The loop's thread calls.
 */
#ifndef KR_SERVICE_H
#define KR_SERVICE_H

#include <stdint.h>

#include "proto/err.h"

enum { SERVICE_NO_SOCKET = -1, SERVICE_WRONG_SOCKET = -2 };

/* The listening Unix stream socket that systemd passed; SERVICE_NO_SOCKET where there is none, and
 * SERVICE_WRONG_SOCKET with a sentence where something else or more than one was passed. */
int service_socket(struct kr_err *err);

void service_ready(const char *status);
void service_status(const char *status);

/* From here to the next service_ready() a reload is under way. */
void service_reloading(void);

void service_stopping(void);

/* Milliseconds within which systemd wants a sign of life, or it kills the process; 0: none wanted.
 * Half of that is a good period. */
int64_t service_watchdog_limit(void);
void service_alive(void);

#endif
