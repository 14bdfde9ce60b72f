/* SPDX-License-Identifier: Apache-2.0
 *
 * A detached job as it is kept in a file, so that it outlives the daemon. The file is one
 * MessagePack array
 *
 *   ["kread job", version, crc, body]
 *
 * where body is binary and holds one map, and crc is the CRC-32 (as in PNG) of body. The version
 * comes first, so that a file of a later one is told from a damaged one. What makes the map is up
 * to the version: a key is added only with a new one.
 */
#ifndef KR_PROTO_RECORD_H
#define KR_PROTO_RECORD_H

#include "proto/fields.h"
#include "proto/message.h"

enum {
    KR_RECORD_VERSION = 1,
    KR_MAX_RECORD = 1 << 20 /* bytes of a file; two texts and change */
};

enum kr_record_state { KR_RECORD_QUEUED, KR_RECORD_DONE, KR_RECORD_FAILED, KR_RECORD_CANCELLED };

struct kr_record {
    int64_t job, uid;
    enum kr_record_state state; /* a job that runs is queued: after a crash it runs again */
    int64_t attempts;           /* how often it was begun since a picture was last finished */
    int64_t made;               /* pictures finished when it was last begun */
    uint64_t fetched;           /* bit i: picture i was fetched */
    char *client, *profile;     /* or NULL; owned */
    double submitted_at, started_at, finished_at; /* Unix seconds, 0: not yet */
    double encode, denoise, decode, png;          /* seconds */
    int64_t peak;                                 /* bytes */
    struct kr_err error;                          /* KR_RECORD_FAILED */
    struct kr_params params;                      /* resolved */
};

/* Appends the file's bytes to out; out->failed says whether there was memory. */
void kr_record_write(struct kr_out *out, const struct kr_record *r);

/* -1: the bytes are no record (KR_BAD_FILE; a later version's is refused as such) or there is no
 * memory (KR_NO_MEMORY); r then holds nothing. */
int kr_record_read(struct kr_record *r, const void *data, size_t size, struct kr_err *err);

void kr_record_fini(struct kr_record *r);

uint32_t kr_crc32(const void *data, size_t size);

#endif
