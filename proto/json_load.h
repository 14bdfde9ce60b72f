/* SPDX-License-Identifier: Apache-2.0
 *
 * jansson's parser, which may run out of memory. Any thread.
 */
#ifndef KR_JSON_LOAD_H
#define KR_JSON_LOAD_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* json_loadb(), but *no_memory says when that was why it gave NULL (then *error says nothing). */
json_t *kr_json_load(const char *text, size_t size, size_t flags, json_error_t *error,
                     bool *no_memory);

#endif
