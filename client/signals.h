/* SPDX-License-Identifier: Apache-2.0
 *
 * Ctrl-C and SIGTERM as a descriptor to poll. Broken pipes and file size limits become errors of
 * the writes that meet them.
 */
#ifndef KR_CLIENT_SIGNALS_H
#define KR_CLIENT_SIGNALS_H

#include <stdbool.h>

#include "proto/err.h"

int signals_open(int *wake,
                 struct kr_err *err); /* once, at start; *wake is readable after a signal */
void signals_clear(void);             /* the next wait lasts until the next signal */

#endif
