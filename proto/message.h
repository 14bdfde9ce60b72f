/* SPDX-License-Identifier: Apache-2.0
 *
 * The protocol (docs/protocol.md): MessagePack-RPC over a stream socket.
 *
 *   request       [0, id, method, [params]]     params: a map
 *   response      [1, id, error, result]        error: nil or {"code": name, "message": sentence}
 *   notification  [2, method, [params]]
 *
 * Methods of the daemon: hello, generate, status, jobs, watch, fetch, cancel, tokens, inspect,
 * profile, stop. Notifications to a client that submitted or watches a job: progress, image, and
 * one of done, failed, cancelled last.
 *
 * This room turns bytes into structs and back; it does no I/O and starts no thread. Whatever comes
 * from the other side is bounded before anything is allocated for it: size of a frame, depth of
 * nesting, and element counts that the frame's own size could not hold.
 */
#ifndef KR_PROTO_MESSAGE_H
#define KR_PROTO_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/err.h"
#include "proto/fields.h"

enum {
    KR_PROTOCOL_VERSION = 1,
    KR_MAX_DEPTH = 8,         /* nesting of arrays and maps */
    KR_MAX_ITEMS = 1 << 18,   /* values in one frame, keys included */
    KR_MAX_REQUEST = 1 << 20, /* bytes of one frame to the daemon */
    KR_MAX_REPLY = 256 << 20, /* bytes of one frame from the daemon (a picture) */
    KR_MAX_TEXT = 64 << 10    /* bytes of a prompt */
};

enum kr_method {
    KR_M_HELLO,
    KR_M_GENERATE,
    KR_M_STATUS,
    KR_M_JOBS,
    KR_M_WATCH,
    KR_M_FETCH,
    KR_M_CANCEL,
    KR_M_TOKENS,
    KR_M_INSPECT,
    KR_M_PROFILE,
    KR_M_STOP,
    KR_METHODS
};
const char *kr_method_name(enum kr_method method);

/* --------------------------------------------------------------------------------- framing --- */

/* How much of buf[length] the first message takes: > 0 its size, 0 more bytes are needed, -1 the
 * bytes are no MessagePack, too deep, or longer than `limit` (err says which). Looks at structure
 * only and allocates nothing. */
int64_t kr_frame_size(const void *buf, size_t length, size_t limit, struct kr_err *err);

/* The same for bytes that arrive in pieces: the scan keeps its place, so that a large message costs
 * no more than a walk over its headers however small the pieces are. buf is always the message from
 * its first byte; it may have grown and moved since the last call. After a whole message or an
 * error: kr_scan_init() again. */
struct kr_scan {
    uint64_t limit, at, owed, need; /* at: of the next header; owed: values still to come */
    uint64_t items;
    uint64_t left[KR_MAX_DEPTH + 1]; /* values to come at each level */
    int depth;
};
void kr_scan_init(struct kr_scan *scan, size_t limit);
int64_t kr_scan_feed(struct kr_scan *scan, const void *buf, size_t length, struct kr_err *err);
size_t kr_scan_need(const struct kr_scan *scan); /* the message has at least so many bytes */

/* -------------------------------------------------------------------------------- building --- */

/* A growing message. Failure to allocate is remembered: kr_out_take() then returns NULL. */
struct kr_out {
    char *data;
    size_t size, capacity;
    bool failed;
};

void kr_out_init(struct kr_out *out);
void kr_out_fini(struct kr_out *out);
/* The bytes, which the caller frees, and an empty out; NULL: no memory. */
char *kr_out_take(struct kr_out *out, size_t *size);

/* The beginning of a message: after a request or a notice comes one map, after a result one value;
 * an error is complete. kr_out_error_map() is {code, message} as a value, for use inside. */
void kr_out_request(struct kr_out *out, uint32_t id, enum kr_method method);
void kr_out_result(struct kr_out *out, uint32_t id);
void kr_out_error(struct kr_out *out, uint32_t id, const struct kr_err *err);
void kr_out_notice(struct kr_out *out, const char *method);
void kr_out_error_map(struct kr_out *out, const struct kr_err *err);

void kr_out_map(struct kr_out *out, uint32_t pairs);
void kr_out_array(struct kr_out *out, uint32_t items);
void kr_out_key(struct kr_out *out, const char *key);
void kr_out_text(struct kr_out *out, const char *text); /* NULL: nil */
void kr_out_int(struct kr_out *out, int64_t value);
void kr_out_real(struct kr_out *out, double value);
void kr_out_bool(struct kr_out *out, bool value);
void kr_out_nil(struct kr_out *out);
void kr_out_bytes(struct kr_out *out, const void *data, size_t size);

/* One pair of a map. */
void kr_out_pair_text(struct kr_out *out, const char *key, const char *value); /* NULL: nil */
void kr_out_pair_int(struct kr_out *out, const char *key, int64_t value);
void kr_out_pair_real(struct kr_out *out, const char *key, double value);
void kr_out_pair_bool(struct kr_out *out, const char *key, bool value);

bool kr_out_raw(struct kr_out *out, const void *data, size_t size); /* bytes as they are */

/* A whole map of the set fields. */
void kr_out_params(struct kr_out *out, const struct kr_params *p);

/* The pairs of a map without its header: the set fields except those whose bit is in `skip`.
 * kr_params_pairs() says how many they are. */
void kr_out_fields(struct kr_out *out, const struct kr_params *p, uint32_t skip);
uint32_t kr_params_pairs(const struct kr_params *p, uint32_t skip);

/* One JSON text as one value. -1 and nothing written: no JSON, or it nests deeper than 6. */
int kr_out_json(struct kr_out *out, const char *json, struct kr_err *err);

/* --------------------------------------------------------------------------------- reading --- */

/* A received value. Views into the frame's bytes: valid while the kr_in lives. */
struct kr_value;

enum kr_kind { KR_IN_REQUEST = 0, KR_IN_RESPONSE = 1, KR_IN_NOTICE = 2 };

struct kr_in {
    enum kr_kind kind;
    uint32_t id;        /* request, response */
    const char *method; /* request, notice: not NUL-terminated */
    size_t method_length;
    const struct kr_value *params; /* request, notice: a map; NULL where the list was empty */
    const struct kr_value *result; /* response without error; NULL with one */
    struct kr_err error;           /* response with an error */
    void *zone;                    /* private */
};

/* Decodes one complete frame. -1: not a message of this protocol. */
int kr_in_init(struct kr_in *in, const void *frame, size_t size, struct kr_err *err);
void kr_in_fini(struct kr_in *in);

/* Decodes one value that is no message (a file of ours): in->result is it. */
int kr_in_value(struct kr_in *in, const void *data, size_t size, struct kr_err *err);

enum kr_method kr_in_method(const struct kr_in *in); /* KR_METHODS: unknown */

/* NULL: it is not there, or map is no map. */
const struct kr_value *kr_value_get(const struct kr_value *map, const char *key);

/* All of these take NULL, which is no value of any kind. A text must be valid UTF-8, a real finite;
 * an integer may come as a real with an integral value, and a real as an integer. */
bool kr_value_text(const struct kr_value *v, const char **text, size_t *length);
bool kr_value_int(const struct kr_value *v, int64_t *value);
bool kr_value_real(const struct kr_value *v, double *value);
bool kr_value_bool(const struct kr_value *v, bool *value);
bool kr_value_bytes(const struct kr_value *v, const void **data, size_t *size);
bool kr_value_nil(const struct kr_value *v);

size_t kr_value_count(const struct kr_value *v); /* of an array or a map, else 0 */
const struct kr_value *kr_value_item(const struct kr_value *array, size_t i);
const struct kr_value *kr_value_key(const struct kr_value *map, size_t i,
                                    const struct kr_value **value);

enum kr_value_kind {
    KR_V_NIL,
    KR_V_BOOL,
    KR_V_INT,
    KR_V_REAL,
    KR_V_TEXT,
    KR_V_BYTES,
    KR_V_ARRAY,
    KR_V_MAP,
    KR_V_OTHER
};
enum kr_value_kind kr_value_kind(const struct kr_value *v); /* NULL: KR_V_NIL */

/* A map {code, message} as an error. A code that this version does not know becomes KR_CODES. -1:
 * it is no such map. */
int kr_value_error(const struct kr_value *v, struct kr_err *error);

int kr_value_version(const struct kr_value *map, struct kr_err *err); /* the version alone */

/* What every method checks of its parameters (NULL: none were given). The parameter `version` may
 * stand in any request; one that is not KR_PROTOCOL_VERSION is KR_BAD_VERSION before anything else
 * is looked at. Then every key must be one of allowed[] (NULL-terminated) and stand there once. A
 * value of nil counts as absent throughout the protocol. */
int kr_value_keys(const struct kr_value *map, const char *const *allowed, struct kr_err *err);

/* A generate request's map to parameters: unknown fields are refused by name, each value is checked
 * against the table, duplicates and a missing prompt are refused. On failure p holds nothing. */
int kr_value_params(const struct kr_value *map, struct kr_params *p, struct kr_err *err);

#endif
