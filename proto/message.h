/* SPDX-License-Identifier: Apache-2.0
 *
 * The protocol (kread-protocol(7), docs/protocol.md): MessagePack-RPC over a stream socket.
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
    KR_MAX_DEPTH = 8,                  /* nesting of arrays and maps */
    KR_MAX_REQUEST = 1 << 20,          /* bytes of one frame to the daemon */
    KR_MAX_REPLY = 256 << 20,          /* bytes of one frame from the daemon (a picture) */
    KR_MAX_TEXT = 64 << 10             /* bytes of a prompt */
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

/* -------------------------------------------------------------------------------- framing ------ */

/* How much of buf[length] the first message takes: > 0 its size, 0 more bytes are needed, -1 the
 * bytes are no MessagePack, too deep, or longer than `limit` (err says which). Looks at structure
 * only and allocates nothing. */
int64_t kr_frame_size(const void *buf, size_t length, size_t limit, struct kr_err *err);

/* -------------------------------------------------------------------------------- building ----- */

/* A growing message. Failure to allocate is remembered: kr_out_take() then returns NULL. */
struct kr_out {
    char *data;
    size_t size, capacity;
    bool failed;
};

void kr_out_init(struct kr_out *out);
void kr_out_fini(struct kr_out *out);
char *kr_out_take(struct kr_out *out, size_t *size); /* heap bytes, the caller frees; NULL: no memory */

void kr_out_request(struct kr_out *out, uint32_t id, enum kr_method method); /* then one map */
void kr_out_result(struct kr_out *out, uint32_t id);                        /* then one value */
void kr_out_error(struct kr_out *out, uint32_t id, const struct kr_err *err); /* complete */
void kr_out_notice(struct kr_out *out, const char *method);                 /* then one map */

void kr_out_map(struct kr_out *out, uint32_t pairs);
void kr_out_array(struct kr_out *out, uint32_t items);
void kr_out_key(struct kr_out *out, const char *key);
void kr_out_text(struct kr_out *out, const char *text); /* NULL: nil */
void kr_out_int(struct kr_out *out, int64_t value);
void kr_out_real(struct kr_out *out, double value);
void kr_out_bool(struct kr_out *out, bool value);
void kr_out_nil(struct kr_out *out);
void kr_out_bytes(struct kr_out *out, const void *data, size_t size);

void kr_out_params(struct kr_out *out, const struct kr_params *p); /* a whole map of the set fields */

/* -------------------------------------------------------------------------------- reading ------ */

/* A received value. Views into the frame's bytes: valid while the kr_in lives. */
struct kr_value;

enum kr_kind { KR_IN_REQUEST = 0, KR_IN_RESPONSE = 1, KR_IN_NOTICE = 2 };

struct kr_in {
    enum kr_kind kind;
    uint32_t id;                   /* request, response */
    const char *method;            /* request, notice: not NUL-terminated */
    size_t method_length;
    const struct kr_value *params; /* request, notice: a map; NULL where the list was empty */
    const struct kr_value *result; /* response without error; NULL with one */
    struct kr_err error;           /* response with an error */
    void *zone;                    /* private */
};

/* Decodes one complete frame. -1: not a message of this protocol. */
int kr_in_init(struct kr_in *in, const void *frame, size_t size, struct kr_err *err);
void kr_in_fini(struct kr_in *in);

enum kr_method kr_in_method(const struct kr_in *in); /* KR_METHODS: unknown */

const struct kr_value *kr_value_get(const struct kr_value *map, const char *key); /* NULL: not there, no map */
bool kr_value_text(const struct kr_value *v, const char **text, size_t *length);  /* valid UTF-8 only */
bool kr_value_int(const struct kr_value *v, int64_t *value); /* also a real with an integral value */
bool kr_value_real(const struct kr_value *v, double *value); /* also an integer; finite only */
bool kr_value_bool(const struct kr_value *v, bool *value);
bool kr_value_bytes(const struct kr_value *v, const void **data, size_t *size);
bool kr_value_nil(const struct kr_value *v);

size_t kr_value_count(const struct kr_value *v); /* of an array or a map, else 0 */
const struct kr_value *kr_value_item(const struct kr_value *array, size_t i);
const struct kr_value *kr_value_key(const struct kr_value *map, size_t i, const struct kr_value **value);

/* A generate request's map to parameters: unknown fields are refused by name, each value is checked
 * against the table, duplicates are refused. On failure p holds nothing. */
int kr_value_params(const struct kr_value *map, struct kr_params *p, struct kr_err *err);

#endif
