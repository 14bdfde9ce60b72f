/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tokenizer's tests share: cases of the form [text, [id, ...]] and whole files as strings.
 */
#ifndef KR_TESTS_TOKENIZER_CASE_H
#define KR_TESTS_TOKENIZER_CASE_H

#include <jansson.h>
#include <stddef.h>

#include "daemon/model/tokenizer.h"

/* A JSON file with NULs in its strings; NULL if it is not there. */
json_t *case_load(const char *path);

/* Encodes the text of one case and holds it against its ids: 0 if they are equal. Prints both and
 * returns 1 if not. */
int case_check(const struct tokenizer *tokenizer, const json_t *one);

/* A file with a NUL behind it, which the caller frees; fails the test if there is none. */
char *case_read(const char *folder, const char *name, size_t *length);

#endif
