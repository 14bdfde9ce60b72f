/* SPDX-License-Identifier: Apache-2.0
 *
 * One JSON object of names and whole numbers, {"name": 12, ...}, read in one pass: the form of a
 * tokenizer's vocabulary. Nothing is allocated and nothing is built.
 */
#ifndef KR_JSON_FLAT_H
#define KR_JSON_FLAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/err.h"

struct json_flat {
    const char *file; /* its name in messages; borrowed */
    char *start, *at, *end;
    bool inside; /* past the opening brace */
    bool done;
};

/* text[length] must be followed by a NUL and outlive the iteration; escapes in it are resolved in
 * place, so that the names that json_flat_next gives out point into it. */
void json_flat_init(struct json_flat *flat, const char *file, char *text, size_t length);

/* 1: the next pair is in *name (valid UTF-8 without NULs, not terminated), *length and *value.
 * 0: the object has ended, and the text with it. -1: it is anything else than such an object.
 * Duplicate names are given out like any others. */
int json_flat_next(struct json_flat *flat, const char **name, size_t *length, int64_t *value,
                   struct kr_err *err);

#endif
