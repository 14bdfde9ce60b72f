/* SPDX-License-Identifier: Apache-2.0
 *
 * A small JSON document as a tree to ask, for rooms that may not see the parser. Every question may
 * be put to NULL and to a value of another type, and then has the answer of an absent value: so a
 * reader asks along a path and checks once.
 */
#ifndef KR_JSON_NODE_H
#define KR_JSON_NODE_H

#include <stdbool.h>
#include <stddef.h>

#include "proto/err.h"

struct json_node; /* a value within a document; lives as long as its root */

enum json_kind {
    JSON_NONE, /* not there */
    JSON_KIND_NULL,
    JSON_KIND_BOOL,
    JSON_KIND_NUMBER,
    JSON_KIND_STRING,
    JSON_KIND_ARRAY,
    JSON_KIND_OBJECT
};

/* Parses text[length] into *root, an object without duplicate names. `file` names it in messages.
 */
int json_node_parse(const char *file, const char *text, size_t length, struct json_node **root,
                    struct kr_err *err);
void json_node_free(struct json_node *root);

enum json_kind json_node_kind(const struct json_node *node);
const struct json_node *json_node_member(const struct json_node *object, const char *name);
const char *json_node_string(const struct json_node *node); /* UTF-8 without NULs; else NULL */
bool json_node_bool(const struct json_node *node, bool otherwise);

/* The members of an object in the file's order: start with *place NULL, stop at false. */
bool json_node_each(const struct json_node *object, void **place, const char **name,
                    const struct json_node **value);

#endif
