/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading messages. kr_in_init() is called with a whole message whose size kr_scan_feed() has
 * found, but walks it again before msgpack-c unpacks it: a caller who passed wrong bytes gets an
 * error, never an allocation of the sender's choosing. msgpack-c's objects are then handed out as
 * struct kr_value, so that no other room sees its header; texts and bytes point into the message.
 */
#include "proto/message.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <msgpack.h>

#include "proto/utf8.h"

static const char *const method_names[KR_METHODS] = {
    [KR_M_HELLO] = "hello",     [KR_M_GENERATE] = "generate", [KR_M_STATUS] = "status",
    [KR_M_JOBS] = "jobs",       [KR_M_WATCH] = "watch",       [KR_M_FETCH] = "fetch",
    [KR_M_CANCEL] = "cancel",   [KR_M_TOKENS] = "tokens",     [KR_M_INSPECT] = "inspect",
    [KR_M_PROFILE] = "profile", [KR_M_STOP] = "stop",
};

const char *kr_method_name(enum kr_method method)
{
    return method_names[method];
}

enum kr_method kr_in_method(const struct kr_in *in)
{
    for (int i = 0; i < KR_METHODS; i++) {
        if (strlen(method_names[i]) == in->method_length &&
            memcmp(method_names[i], in->method, in->method_length) == 0) {
            return i;
        }
    }
    return KR_METHODS;
}

/* ---------------------------------------------------------------------------------- values --- */

static const msgpack_object *object(const struct kr_value *v)
{
    return (const msgpack_object *)v;
}

static const struct kr_value *value(const msgpack_object *o)
{
    return (const struct kr_value *)o;
}

enum kr_value_kind kr_value_kind(const struct kr_value *v)
{
    switch (v == NULL ? MSGPACK_OBJECT_NIL : object(v)->type) {
    case MSGPACK_OBJECT_NIL:
        return KR_V_NIL;
    case MSGPACK_OBJECT_BOOLEAN:
        return KR_V_BOOL;
    case MSGPACK_OBJECT_POSITIVE_INTEGER:
    case MSGPACK_OBJECT_NEGATIVE_INTEGER:
        return KR_V_INT;
    case MSGPACK_OBJECT_FLOAT32:
    case MSGPACK_OBJECT_FLOAT64:
        return KR_V_REAL;
    case MSGPACK_OBJECT_STR:
        return KR_V_TEXT;
    case MSGPACK_OBJECT_BIN:
        return KR_V_BYTES;
    case MSGPACK_OBJECT_ARRAY:
        return KR_V_ARRAY;
    case MSGPACK_OBJECT_MAP:
        return KR_V_MAP;
    case MSGPACK_OBJECT_EXT:
        break;
    }
    return KR_V_OTHER;
}

static bool key_is(const msgpack_object *key, const char *name)
{
    return key->type == MSGPACK_OBJECT_STR && key->via.str.size == strlen(name) &&
           memcmp(key->via.str.ptr, name, key->via.str.size) == 0;
}

const struct kr_value *kr_value_get(const struct kr_value *map, const char *key)
{
    if (kr_value_kind(map) != KR_V_MAP) {
        return NULL;
    }
    const msgpack_object_map *m = &object(map)->via.map;
    for (uint32_t i = 0; i < m->size; i++) {
        if (key_is(&m->ptr[i].key, key)) {
            return value(&m->ptr[i].val);
        }
    }
    return NULL;
}

bool kr_value_text(const struct kr_value *v, const char **text, size_t *length)
{
    if (kr_value_kind(v) != KR_V_TEXT) {
        return false;
    }
    const msgpack_object_str *s = &object(v)->via.str;
    if (!kr_utf8_valid(s->ptr, s->size)) {
        return false;
    }
    *text = s->ptr;
    *length = s->size;
    return true;
}

bool kr_value_int(const struct kr_value *v, int64_t *result)
{
    if (kr_value_kind(v) == KR_V_REAL) {
        double real = object(v)->via.f64;
        if (!kr_integral(real)) {
            return false;
        }
        *result = (int64_t)real;
        return true;
    }
    if (kr_value_kind(v) != KR_V_INT) {
        return false;
    }
    if (object(v)->type == MSGPACK_OBJECT_POSITIVE_INTEGER && object(v)->via.u64 > INT64_MAX) {
        return false;
    }
    *result = object(v)->via.i64;
    return true;
}

bool kr_value_real(const struct kr_value *v, double *result)
{
    if (kr_value_kind(v) == KR_V_REAL && isfinite(object(v)->via.f64)) {
        *result = object(v)->via.f64;
        return true;
    }
    if (kr_value_kind(v) != KR_V_INT) {
        return false;
    }
    *result = object(v)->type == MSGPACK_OBJECT_POSITIVE_INTEGER ? (double)object(v)->via.u64
                                                                 : (double)object(v)->via.i64;
    return true;
}

bool kr_value_bool(const struct kr_value *v, bool *result)
{
    if (kr_value_kind(v) != KR_V_BOOL) {
        return false;
    }
    *result = object(v)->via.boolean;
    return true;
}

bool kr_value_bytes(const struct kr_value *v, const void **data, size_t *size)
{
    if (kr_value_kind(v) != KR_V_BYTES) {
        return false;
    }
    *data = object(v)->via.bin.ptr;
    *size = object(v)->via.bin.size;
    return true;
}

bool kr_value_nil(const struct kr_value *v)
{
    return kr_value_kind(v) == KR_V_NIL;
}

size_t kr_value_count(const struct kr_value *v)
{
    enum kr_value_kind kind = kr_value_kind(v);
    return kind == KR_V_ARRAY ? object(v)->via.array.size
           : kind == KR_V_MAP ? object(v)->via.map.size
                              : 0;
}

const struct kr_value *kr_value_item(const struct kr_value *array, size_t i)
{
    return kr_value_kind(array) == KR_V_ARRAY && i < object(array)->via.array.size
               ? value(&object(array)->via.array.ptr[i])
               : NULL;
}

const struct kr_value *kr_value_key(const struct kr_value *map, size_t i,
                                    const struct kr_value **val)
{
    if (kr_value_kind(map) != KR_V_MAP || i >= object(map)->via.map.size) {
        return NULL;
    }
    const msgpack_object_kv *pair = &object(map)->via.map.ptr[i];
    *val = value(&pair->val);
    return value(&pair->key);
}

/* ---------------------------------------------------------------------------- the envelope --- */

static int malformed(const char *what, struct kr_err *err)
{
    return kr_fail(err, KR_BAD_FRAME, "the message is no MessagePack-RPC: %s", what);
}

static int read_id(struct kr_in *in, const msgpack_object *o, struct kr_err *err)
{
    if (o->type != MSGPACK_OBJECT_POSITIVE_INTEGER || o->via.u64 > UINT32_MAX) {
        return malformed("its id is not an integer of 32 bits", err);
    }
    in->id = (uint32_t)o->via.u64;
    return in->kind == KR_IN_REQUEST && in->id == 0 ? malformed("id 0 is the daemon's own", err)
                                                    : 0;
}

static int read_call(struct kr_in *in, const msgpack_object *name, const msgpack_object *list,
                     struct kr_err *err)
{
    if (name->type != MSGPACK_OBJECT_STR) {
        return malformed("its method is not a text", err);
    }
    if (list->type != MSGPACK_OBJECT_ARRAY || list->via.array.size > 1) {
        return malformed("its parameters are not a list of one map", err);
    }
    in->method = name->via.str.ptr;
    in->method_length = name->via.str.size;
    if (list->via.array.size == 1) {
        if (list->via.array.ptr[0].type != MSGPACK_OBJECT_MAP) {
            return malformed("its parameters are not a list of one map", err);
        }
        in->params = value(&list->via.array.ptr[0]);
    }
    return 0;
}

/* The other side's error; a code that this version does not know stays KR_CODES. */
int kr_value_error(const struct kr_value *v, struct kr_err *error)
{
    const char *text;
    size_t length;
    if (!kr_value_text(kr_value_get(v, "code"), &text, &length)) {
        return -1;
    }
    char name[32];
    snprintf(name, sizeof name, "%.*s", (int)(length < 31 ? length : 31), text);
    enum kr_code code = kr_code_from_name(name);
    if (!kr_value_text(kr_value_get(v, "message"), &text, &length)) {
        return -1;
    }
    int shown = length < sizeof error->text ? (int)length : (int)sizeof error->text - 1;
    kr_fail(error, KR_IO, "%.*s", shown, text);
    error->code = code == KR_OK ? KR_CODES : code;
    return 0;
}

static int read_envelope(struct kr_in *in, const msgpack_object *o, struct kr_err *err)
{
    if (o->type != MSGPACK_OBJECT_ARRAY || o->via.array.size < 3 ||
        o->via.array.ptr[0].type != MSGPACK_OBJECT_POSITIVE_INTEGER) {
        return malformed("it is not an array that begins with 0, 1 or 2", err);
    }
    const msgpack_object *item = o->via.array.ptr;
    uint64_t kind = item[0].via.u64;
    if (kind > KR_IN_NOTICE || o->via.array.size != (kind == KR_IN_NOTICE ? 3 : 4)) {
        return malformed("its kind and its length do not fit together", err);
    }
    in->kind = (enum kr_kind)kind;
    if (in->kind == KR_IN_NOTICE) {
        return read_call(in, &item[1], &item[2], err);
    }
    if (read_id(in, &item[1], err) != 0) {
        return -1;
    }
    if (in->kind == KR_IN_REQUEST) {
        return read_call(in, &item[2], &item[3], err);
    }
    if (item[2].type == MSGPACK_OBJECT_NIL) {
        in->result = value(&item[3]);
        return 0;
    }
    return kr_value_error(value(&item[2]), &in->error) == 0
               ? 0
               : malformed("its error is not a map with code and message", err);
}

/* Unpacks the one value in frame[size] into in->zone. */
static int unpack(struct kr_in *in, const void *frame, size_t size, msgpack_object *root,
                  struct kr_err *err)
{
    memset(in, 0, sizeof *in);
    int64_t found = kr_frame_size(frame, size, KR_MAX_REPLY, err);
    if (found < 0) {
        return -1;
    }
    if ((size_t)found != size) {
        return malformed("it ends early or late", err);
    }
    msgpack_zone *zone = msgpack_zone_new(MSGPACK_ZONE_CHUNK_SIZE);
    if (zone == NULL) {
        return kr_fail(err, KR_NO_MEMORY, "no memory for a message");
    }
    size_t offset = 0;
    msgpack_unpack_return got = msgpack_unpack(frame, size, &offset, zone, root);
    in->zone = zone;
    if (got == MSGPACK_UNPACK_SUCCESS) {
        return 0;
    }
    kr_in_fini(in);
    return got == MSGPACK_UNPACK_NOMEM_ERROR ? kr_fail(err, KR_NO_MEMORY, "no memory for a message")
                                             : malformed("it cannot be unpacked", err);
}

int kr_in_init(struct kr_in *in, const void *frame, size_t size, struct kr_err *err)
{
    msgpack_object root;
    if (unpack(in, frame, size, &root, err) != 0) {
        return -1;
    }
    if (read_envelope(in, &root, err) != 0) {
        kr_in_fini(in);
        return -1;
    }
    return 0;
}

int kr_in_value(struct kr_in *in, const void *data, size_t size, struct kr_err *err)
{
    msgpack_object root, *kept;
    if (unpack(in, data, size, &root, err) != 0) {
        return -1;
    }
    kept = msgpack_zone_malloc(in->zone, sizeof *kept);
    if (kept == NULL) {
        kr_in_fini(in);
        return kr_fail(err, KR_NO_MEMORY, "no memory for a value");
    }
    *kept = root;
    in->result = value(kept);
    return 0;
}

void kr_in_fini(struct kr_in *in)
{
    if (in->zone != NULL) {
        msgpack_zone_free(in->zone);
    }
    memset(in, 0, sizeof *in);
}

/* ------------------------------------------------------------------------------ parameters --- */

static int check_version(const msgpack_object *o, struct kr_err *err)
{
    int64_t version;
    if (o->type == MSGPACK_OBJECT_NIL) {
        return 0;
    }
    if (!kr_value_int(value(o), &version)) {
        return kr_fail(err, KR_BAD_VERSION,
                       "version is not an integer; this side speaks version %d",
                       KR_PROTOCOL_VERSION);
    }
    if (version != KR_PROTOCOL_VERSION) {
        return kr_fail(err, KR_BAD_VERSION,
                       "version %" PRId64
                       " of the protocol was asked for, this side speaks version "
                       "%d: update the older of the two",
                       version, KR_PROTOCOL_VERSION);
    }
    return 0;
}

int kr_value_version(const struct kr_value *map, struct kr_err *err)
{
    if (kr_value_kind(map) != KR_V_MAP) {
        return 0;
    }
    const msgpack_object_map *m = &object(map)->via.map;
    for (uint32_t i = 0; i < m->size; i++) {
        if (key_is(&m->ptr[i].key, "version") && check_version(&m->ptr[i].val, err) != 0) {
            return -1;
        }
    }
    return 0;
}

/* "a, b and c" of a NULL-terminated list, cut where buf ends. */
static void join(const char *const *names, char *buf, size_t size)
{
    size_t used = 0;
    buf[0] = 0;
    for (int i = 0; names[i] != NULL && used < size; i++) {
        const char *link = i == 0 ? "" : names[i + 1] == NULL ? " and " : ", ";
        used += (size_t)snprintf(buf + used, size - used, "%s%s", link, names[i]);
    }
}

static int unknown(const msgpack_object *key, const char *noun, const char *const *names,
                   struct kr_err *err)
{
    char quoted[128], list[256];
    if (key->type != MSGPACK_OBJECT_STR) {
        return kr_fail(err, KR_BAD_REQUEST, "a %s has a name that is not a text", noun);
    }
    kr_quote(quoted, sizeof quoted, key->via.str.ptr, key->via.str.size);
    if (names[0] == NULL) {
        return kr_fail(err, KR_BAD_REQUEST, "unknown %s %s; this method has none", noun, quoted);
    }
    join(names, list, sizeof list);
    return kr_fail(err, KR_BAD_REQUEST, "unknown %s %s; the %ss are %s", noun, quoted, noun, list);
}

static int find(const msgpack_object *key, const char *const *names)
{
    for (int i = 0; names[i] != NULL; i++) {
        if (key_is(key, names[i])) {
            return i;
        }
    }
    return -1;
}

/* Every key is `version` or one of names[] (at most 31), and none stands there twice. */
static int check_keys(const msgpack_object_map *m, const char *noun, const char *const *names,
                      struct kr_err *err)
{
    uint32_t seen = 0;
    for (uint32_t i = 0; i < m->size; i++) {
        const msgpack_object *key = &m->ptr[i].key;
        int at = find(key, names);
        bool version = at < 0 && key_is(key, "version");
        if (at < 0 && !version) {
            return unknown(key, noun, names, err);
        }
        uint32_t bit = version ? UINT32_C(1) << 31 : UINT32_C(1) << at;
        if (seen & bit) {
            return kr_fail(err, KR_BAD_REQUEST, "%s \"%s\" stands there twice", noun,
                           version ? "version" : names[at]);
        }
        seen |= bit;
    }
    return 0;
}

int kr_value_keys(const struct kr_value *map, const char *const *allowed, struct kr_err *err)
{
    if (kr_value_version(map, err) != 0) {
        return -1;
    }
    if (kr_value_kind(map) == KR_V_NIL) {
        return 0;
    }
    if (kr_value_kind(map) != KR_V_MAP) {
        return kr_fail(err, KR_BAD_REQUEST, "the parameters are not a map");
    }
    return check_keys(&object(map)->via.map, "parameter", allowed, err);
}

static int set_value(struct kr_params *p, enum kr_field_id id, const msgpack_object *o,
                     struct kr_err *err)
{
    static const char *const kinds[] = {[KR_V_BYTES] = "bytes",
                                        [KR_V_ARRAY] = "a list",
                                        [KR_V_MAP] = "a map",
                                        [KR_V_OTHER] = "an extension type"};
    int64_t whole;
    enum kr_value_kind kind = kr_value_kind(value(o));
    switch (kind) {
    case KR_V_NIL:
        return 0;
    case KR_V_TEXT:
        return kr_params_set_text(p, id, o->via.str.ptr, o->via.str.size, err);
    case KR_V_BOOL:
        return kr_params_set_bool(p, id, o->via.boolean, err);
    case KR_V_REAL:
        return kr_params_set_real(p, id, o->via.f64, err);
    case KR_V_INT:
        return kr_value_int(value(o), &whole)
                   ? kr_params_set_int(p, id, whole, err)
                   : kr_params_refuse(id, "an integer above 2^63 - 1", err);
    default:
        return kr_params_refuse(id, kinds[kind], err);
    }
}

static int read_params(const msgpack_object_map *m, struct kr_params *p, struct kr_err *err)
{
    const char *names[KR_FIELDS + 1] = {NULL};
    for (int i = 0; i < KR_FIELDS; i++) {
        names[i] = kr_fields[i].name;
    }
    if (check_keys(m, "field", names, err) != 0) {
        return -1;
    }
    for (uint32_t i = 0; i < m->size; i++) {
        int id = find(&m->ptr[i].key, names);
        if (id >= 0 && set_value(p, id, &m->ptr[i].val, err) != 0) {
            return -1;
        }
    }
    return 0;
}

int kr_value_params(const struct kr_value *map, struct kr_params *p, struct kr_err *err)
{
    memset(p, 0, sizeof *p);
    if (kr_value_version(map, err) != 0) {
        return -1;
    }
    if (kr_value_kind(map) != KR_V_MAP && kr_value_kind(map) != KR_V_NIL) {
        return kr_fail(err, KR_BAD_REQUEST, "the parameters are not a map");
    }
    int rc = kr_value_kind(map) == KR_V_MAP ? read_params(&object(map)->via.map, p, err) : 0;
    if (rc == 0 && !kr_has(p, KR_F_PROMPT)) {
        rc = kr_fail(err, KR_BAD_REQUEST, "prompt is missing; a request needs one");
    }
    if (rc != 0) {
        kr_params_fini(p);
    }
    return rc;
}
