/* SPDX-License-Identifier: Apache-2.0
 *
 * The JSON body of a request, and its values as clients write them: a number may come as a string,
 * a whole number as 20.0, and null is the same as leaving the field out. Of a field that stands
 * twice the last counts, as in JavaScript and Python.
 */
#ifndef KR_HTTP_BODY_H
#define KR_HTTP_BODY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "proto/err.h"

enum { BODY_DEPTH = 32 }; /* nesting of lists and objects */

/* The object in body[size], which the caller owns. NULL: *what is the short name of what is wrong
 * ("empty body", "invalid json"), err a sentence. */
json_t *body_read(const char *body, size_t size, const char **what, struct kr_err *err);

enum body_found {
    BODY_ABSENT, /* or null, or an empty string where a number is wanted */
    BODY_FOUND,
    BODY_STRANGE /* of another type, or no number */
};

/* *value is set only where it is found. A number beyond the range of int64_t becomes its nearest
 * end. */
enum body_found body_int(const json_t *object, const char *key, int64_t *value);
enum body_found body_real(const json_t *object, const char *key, double *value);
enum body_found body_text(const json_t *object, const char *key, const char **value);
bool body_true(const json_t *object, const char *key); /* true, 1, "true" */

#endif
