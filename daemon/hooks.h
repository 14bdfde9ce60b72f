/* SPDX-License-Identifier: Apache-2.0
 *
 * What the server calls: its lines go to the log, a job's end also with fields, its state to the
 * service manager, and SIGHUP reads the settings again.
 */
#ifndef KR_HOOKS_H
#define KR_HOOKS_H

#include "daemon/server/server.h"
#include "daemon/setup.h"

/* The command line, to be read again with the file, and what is in force; a reload changes it. Both
 * must live as long as the server does. */
void hooks_init(int argc, char **argv, struct setup *running);

/* The server's options as the settings have them, hooks included. */
struct server_options hooks_options(const struct setup *setup);

#endif
