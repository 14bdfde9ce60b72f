/* SPDX-License-Identifier: Apache-2.0
 *
 * What systemd and the daemon tell each other: a socket handed over at start, and the state.
 * Without systemd all of it is quiet.
 */
#ifndef KR_SERVICE_H
#define KR_SERVICE_H

#include "proto/err.h"

enum { SERVICE_NO_SOCKET = -1, SERVICE_WRONG_SOCKET = -2 };

/* The listening Unix stream socket that systemd passed; SERVICE_NO_SOCKET where there is none, and
 * SERVICE_WRONG_SOCKET with a sentence where something else or more than one was passed. */
int service_socket(struct kr_err *err);

void service_ready(const char *status);
void service_status(const char *status);
void service_stopping(void);

#endif
