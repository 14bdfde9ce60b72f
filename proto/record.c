/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/record.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char magic[] = "kread job";

uint32_t kr_crc32(const void *data, size_t size)
{
    static const uint32_t nibble[16] = {0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac,
                                        0x76dc4190, 0x6b6b51f4, 0x4db26158, 0x5005713c,
                                        0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c,
                                        0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c};
    const unsigned char *p = data;
    uint32_t crc = 0xffffffffu;
    for (; size > 0; size--, p++) {
        crc = crc >> 4 ^ nibble[(crc ^ *p) & 15];
        crc = crc >> 4 ^ nibble[(crc ^ *p >> 4) & 15];
    }
    return ~crc;
}

void kr_record_fini(struct kr_record *r)
{
    free(r->client);
    free(r->profile);
    kr_params_fini(&r->params);
    memset(r, 0, sizeof *r);
}

/* --------------------------------------------------------------------------------- writing --- */

static void put_body(struct kr_out *out, const struct kr_record *r)
{
    kr_out_map(out, 18);
    kr_out_pair_int(out, "job", r->job);
    kr_out_pair_int(out, "uid", r->uid);
    kr_out_pair_int(out, "state", r->state);
    kr_out_pair_int(out, "attempts", r->attempts);
    kr_out_pair_int(out, "made", r->made);
    kr_out_pair_int(out, "fetched", (int64_t)r->fetched);
    kr_out_pair_text(out, "client", r->client);
    kr_out_pair_text(out, "profile", r->profile);
    kr_out_pair_real(out, "submitted_at", r->submitted_at);
    kr_out_pair_real(out, "started_at", r->started_at);
    kr_out_pair_real(out, "finished_at", r->finished_at);
    kr_out_pair_real(out, "encode", r->encode);
    kr_out_pair_real(out, "denoise", r->denoise);
    kr_out_pair_real(out, "decode", r->decode);
    kr_out_pair_real(out, "png", r->png);
    kr_out_pair_int(out, "peak", r->peak);
    kr_out_key(out, "error");
    if (r->state == KR_RECORD_FAILED) {
        kr_out_error_map(out, &r->error);
    } else {
        kr_out_nil(out);
    }
    kr_out_key(out, "params");
    kr_out_params(out, &r->params);
}

void kr_record_write(struct kr_out *out, const struct kr_record *r)
{
    struct kr_out body;
    kr_out_init(&body);
    put_body(&body, r);
    out->failed |= body.failed;
    if (!out->failed) {
        kr_out_array(out, 4);
        kr_out_text(out, magic);
        kr_out_int(out, KR_RECORD_VERSION);
        kr_out_int(out, (int64_t)kr_crc32(body.data, body.size));
        kr_out_bytes(out, body.data, body.size);
    }
    kr_out_fini(&body);
}

/* --------------------------------------------------------------------------------- reading --- */

static int damaged(const char *what, struct kr_err *err)
{
    return kr_fail(err, KR_BAD_FILE, "it is damaged: %s", what);
}

static bool read_int(const struct kr_value *map, const char *key, int64_t min, int64_t max,
                     int64_t *value)
{
    return kr_value_int(kr_value_get(map, key), value) && *value >= min && *value <= max;
}

static bool read_real(const struct kr_value *map, const char *key, double *value)
{
    return kr_value_real(kr_value_get(map, key), value) && *value >= 0;
}

/* false: it is neither a text nor nil, or there is no memory for it (err has that). */
static bool read_text(const struct kr_value *map, const char *key, char **text, struct kr_err *err)
{
    const struct kr_value *v = kr_value_get(map, key);
    const char *from;
    size_t length;
    if (kr_value_nil(v)) {
        return true;
    }
    if (!kr_value_text(v, &from, &length)) {
        return false;
    }
    *text = strndup(from, length);
    return *text || kr_fail(err, KR_NO_MEMORY, "no memory for a job's record") == 0;
}

static int read_numbers(struct kr_record *r, const struct kr_value *map, struct kr_err *err)
{
    int64_t state = 0, fetched = 0;
    bool good = read_int(map, "job", 1, INT64_MAX, &r->job) &&
                read_int(map, "uid", 0, UINT32_MAX, &r->uid) &&
                read_int(map, "state", KR_RECORD_QUEUED, KR_RECORD_CANCELLED, &state) &&
                read_int(map, "attempts", 0, INT64_MAX, &r->attempts) &&
                read_int(map, "made", 0, INT64_MAX, &r->made) &&
                read_int(map, "fetched", INT64_MIN, INT64_MAX, &fetched) &&
                read_real(map, "submitted_at", &r->submitted_at) &&
                read_real(map, "started_at", &r->started_at) &&
                read_real(map, "finished_at", &r->finished_at) &&
                read_real(map, "encode", &r->encode) && read_real(map, "denoise", &r->denoise) &&
                read_real(map, "decode", &r->decode) && read_real(map, "png", &r->png) &&
                read_int(map, "peak", 0, INT64_MAX, &r->peak);
    r->state = (enum kr_record_state)state;
    r->fetched = (uint64_t)fetched;
    return good ? 0 : damaged("a number is missing or out of range", err);
}

static int read_body(struct kr_record *r, const struct kr_value *map, struct kr_err *err)
{
    struct kr_err why = {.code = KR_BAD_FILE};
    if (read_numbers(r, map, err) != 0) {
        return -1;
    }
    if (!read_text(map, "client", &r->client, &why) ||
        !read_text(map, "profile", &r->profile, &why)) {
        return why.code == KR_NO_MEMORY ? kr_fail(err, KR_NO_MEMORY, "%s", why.text)
                                        : damaged("a name is no text", err);
    }
    if (r->state == KR_RECORD_FAILED &&
        kr_value_error(kr_value_get(map, "error"), &r->error) != 0) {
        return damaged("it failed, and there is no reason", err);
    }
    if (kr_value_params(kr_value_get(map, "params"), &r->params, &why) != 0) {
        return why.code == KR_NO_MEMORY ? kr_fail(err, KR_NO_MEMORY, "%s", why.text)
                                        : damaged(why.text, err);
    }
    const uint32_t needed = kr_bit(KR_F_WIDTH) | kr_bit(KR_F_HEIGHT) | kr_bit(KR_F_STEPS) |
                            kr_bit(KR_F_SEED) | kr_bit(KR_F_COUNT);
    if ((r->params.set & needed) != needed || r->params.seed < 0 ||
        r->params.seed > INT64_MAX - (r->params.count - 1)) {
        return damaged("a generation value is missing", err);
    }
    return 0;
}

/* The body in the array, after its version and its checksum were looked at. */
static int open_envelope(const struct kr_value *array, const void **body, size_t *size,
                         struct kr_err *err)
{
    const char *text;
    size_t length;
    int64_t version, crc;
    if (kr_value_kind(array) != KR_V_ARRAY || kr_value_count(array) < 2 ||
        !kr_value_text(kr_value_item(array, 0), &text, &length) || length != strlen(magic) ||
        memcmp(text, magic, length) != 0 || !kr_value_int(kr_value_item(array, 1), &version)) {
        return damaged("it does not begin as a job's record", err);
    }
    if (version != KR_RECORD_VERSION) {
        return kr_fail(err, KR_BAD_FILE,
                       "it has version %" PRId64 ", and this kread knows version %d", version,
                       KR_RECORD_VERSION);
    }
    if (kr_value_count(array) != 4 || !kr_value_int(kr_value_item(array, 2), &crc) ||
        !kr_value_bytes(kr_value_item(array, 3), body, size)) {
        return damaged("its parts are not those of a job's record", err);
    }
    return crc == (int64_t)kr_crc32(*body, *size) ? 0 : damaged("its checksum is wrong", err);
}

/* What the decoder says of bytes is a damaged file here; want of memory stays what it is. */
static int decode(struct kr_in *in, const void *data, size_t size, struct kr_err *err)
{
    struct kr_err why;
    if (kr_in_value(in, data, size, &why) == 0) {
        return 0;
    }
    return why.code == KR_NO_MEMORY ? kr_fail(err, KR_NO_MEMORY, "%s", why.text)
                                    : damaged("it is no MessagePack, or cut off", err);
}

int kr_record_read(struct kr_record *r, const void *data, size_t size, struct kr_err *err)
{
    struct kr_in outer, inner;
    const void *body;
    size_t length;
    memset(r, 0, sizeof *r);
    if (size > KR_MAX_RECORD) {
        return damaged("it is too large", err);
    }
    if (decode(&outer, data, size, err) != 0) {
        return -1;
    }
    int rc = open_envelope(outer.result, &body, &length, err);
    rc = rc == 0 ? decode(&inner, body, length, err) : -1;
    if (rc == 0) {
        rc = read_body(r, inner.result, err);
        kr_in_fini(&inner);
    }
    kr_in_fini(&outer);
    if (rc != 0) {
        kr_record_fini(r);
    }
    return rc;
}
