/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/weights/json_node.h"

#include <errno.h>
#include <jansson.h>

#include "daemon/weights/strict_json.h"

enum { MAX_DEPTH = 32 };

/* A struct json_node is a json_t under a name that does not need jansson's header. */
static json_t *inner(const struct json_node *node)
{
    return (json_t *)node;
}

int json_node_parse(const char *file, const char *text, size_t length, struct json_node **root,
                    struct kr_err *err)
{
    char why[256];

    *root = (struct json_node *)strict_json_load(text, length, MAX_DEPTH, why, sizeof(why));
    if (!*root && errno == ENOMEM)
        return kr_fail(err, KR_NO_MEMORY, "%s: no memory to read it", file);
    return *root ? 0 : kr_fail(err, KR_BAD_FILE, "%s: %s", file, why);
}

void json_node_free(struct json_node *root)
{
    json_decref(inner(root));
}

enum json_kind json_node_kind(const struct json_node *node)
{
    if (node == NULL)
        return JSON_NONE;
    switch (json_typeof(inner(node))) {
    case JSON_NULL:
        return JSON_KIND_NULL;
    case JSON_TRUE:
    case JSON_FALSE:
        return JSON_KIND_BOOL;
    case JSON_STRING:
        return JSON_KIND_STRING;
    case JSON_ARRAY:
        return JSON_KIND_ARRAY;
    case JSON_OBJECT:
        return JSON_KIND_OBJECT;
    default:
        return JSON_KIND_NUMBER;
    }
}

const struct json_node *json_node_member(const struct json_node *object, const char *name)
{
    return (const struct json_node *)json_object_get(inner(object), name);
}

const char *json_node_string(const struct json_node *node)
{
    return json_string_value(inner(node));
}

bool json_node_bool(const struct json_node *node, bool otherwise)
{
    return json_node_kind(node) == JSON_KIND_BOOL ? json_is_true(inner(node)) : otherwise;
}

bool json_node_each(const struct json_node *object, void **place, const char **name,
                    const struct json_node **value)
{
    *place =
        *place ? json_object_iter_next(inner(object), *place) : json_object_iter(inner(object));
    if (*place == NULL)
        return false;
    *name = json_object_iter_key(*place);
    *value = (const struct json_node *)json_object_iter_value(*place);
    return true;
}
