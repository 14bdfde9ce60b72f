/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes JSON to a stream, piece by piece: commas and escapes are its business, the order of calls
 * is the caller's. What it writes is pure ASCII (everything else as \u escapes), so that the same
 * text may stand in a PNG's Latin-1 chunk, on a terminal and in a log.
 */
#ifndef KR_ENGINE_JSONOUT_H
#define KR_ENGINE_JSONOUT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct jsonout {
    FILE *out;
    bool comma; /* the next value or key needs one before it */
};

void jsonout_begin(struct jsonout *j, FILE *out);

/* key NULL: within an array, or the outermost value. */
void jsonout_open(struct jsonout *j, const char *key, char bracket);      /* '{' or '[' */
void jsonout_close(struct jsonout *j, char bracket);                      /* '}' or ']' */
void jsonout_text(struct jsonout *j, const char *key, const char *value); /* NULL: null */
void jsonout_int(struct jsonout *j, const char *key, int64_t value);
void jsonout_real(struct jsonout *j, const char *key, double value); /* not finite: null */
void jsonout_bool(struct jsonout *j, const char *key, bool value);

#endif
