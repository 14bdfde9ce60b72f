/* SPDX-License-Identifier: Apache-2.0
 *
 * What kreactl prints: texts of strangers made harmless for a terminal, values of the protocol as
 * lines for people or as JSON.
 */
#ifndef KR_CLIENT_TEXT_H
#define KR_CLIENT_TEXT_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "proto/message.h"

/* Control characters, marks that reorder text, and bytes that are no UTF-8 are written as \xNN. */
void text_put(FILE *out, const char *text, size_t length);
void text_puts(FILE *out, const char *text);

/* The same into a buffer, cut to `columns` code points with "..." where it is longer. */
void text_cut(char *buf, size_t size, const char *text, size_t length, int columns);

/* "48 s", "3 min 20 s", "2 h 5 min" */
void text_duration(char *buf, size_t size, double seconds);

/* "512 bytes", "12.1 GB": in powers of a thousand, as the daemon counts. */
void text_bytes(char *buf, size_t size, double bytes);

/* A map as "key  value" lines, maps and lists inside indented below their key. What a number counts
 * is told from its key: bytes, seconds, points in time. */
void text_map(FILE *out, const struct kr_value *map);

/* One value as JSON, on one line and without its newline. Bytes, which JSON has no word for, are
 * left out of maps. */
void json_value(FILE *out, const struct kr_value *v);
void json_string(FILE *out, const char *text, size_t length);

/* {"event": event, and the pairs of map} and a newline. map may be NULL. */
void json_event(FILE *out, const char *event, const struct kr_value *map);

/* Convenience on maps: the value or what stands for it when it is missing or of another type. */
int64_t map_int(const struct kr_value *map, const char *key, int64_t otherwise);
double map_real(const struct kr_value *map, const char *key, double otherwise);
bool map_bool(const struct kr_value *map, const char *key);
/* Into a buffer, cut where it ends, "" for none. Raw: for comparing, not for printing. */
const char *map_text(const struct kr_value *map, const char *key, char *buf, size_t size);

#endif
