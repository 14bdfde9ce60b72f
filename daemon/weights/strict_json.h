/* SPDX-License-Identifier: Apache-2.0
 *
 * JSON from files that may lie: bounded before it is parsed. Private to this room.
 */
#ifndef KR_STRICT_JSON_H
#define KR_STRICT_JSON_H

#include <jansson.h>
#include <stddef.h>

/* Parses text[size] into an object. Duplicate keys, nesting deeper than `depth` and more values
 * than a real file has are refused. NULL: why[why_size] says what is wrong, printable, without the
 * name of the file. The caller owns the result (json_decref). Where it was
 * memory that failed, errno is ENOMEM. */
json_t *strict_json_load(const char *text, size_t size, int depth, char *why, size_t why_size);

/* Copies text for a message: what is not printable ASCII becomes '?', what is too long is cut. */
void strict_json_printable(char *out, size_t size, const char *text, size_t length);

#endif
