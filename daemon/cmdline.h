/* SPDX-License-Identifier: Apache-2.0
 *
 * The command line, read against the table in options.h.
 */
#ifndef KR_CMDLINE_H
#define KR_CMDLINE_H

#include "daemon/options.h"

/* Fills `s` (all zero before) with what argv says. -1: wrong usage (KR_BAD_CONFIG), or what is not
 * the caller's fault, with a sentence. */
int cmdline_parse(int argc, char **argv, struct settings *s, struct kr_err *err);

void cmdline_help(FILE *out);

#endif
