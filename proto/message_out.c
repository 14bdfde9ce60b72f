/* SPDX-License-Identifier: Apache-2.0
 *
 * Building messages. msgpack-c does the encoding and writes through out_write(), so that running
 * out of memory is remembered in one place. Texts leave as valid UTF-8 whatever they hold: an error
 * sentence may quote a file name in any bytes, and a receiver may refuse a whole message for it.
 */
#include "proto/message.h"

#include <stdlib.h>
#include <string.h>

#include <msgpack.h>

#include "proto/utf8.h"

void kr_out_init(struct kr_out *out)
{
    memset(out, 0, sizeof *out);
}

void kr_out_fini(struct kr_out *out)
{
    free(out->data);
    kr_out_init(out);
}

char *kr_out_take(struct kr_out *out, size_t *size)
{
    if (out->failed) {
        kr_out_fini(out);
    }
    char *data = out->data;
    *size = out->size;
    kr_out_init(out);
    return data;
}

/* Makes room for `more` bytes: doubling for the many small values, exact for a picture. */
static bool reserve(struct kr_out *out, size_t more)
{
    if (out->failed || more > SIZE_MAX / 4 - out->size) {
        out->failed = true;
        return false;
    }
    size_t need = out->size + more;
    if (need <= out->capacity) {
        return true;
    }
    size_t capacity = out->capacity * 2 > need ? out->capacity * 2 : need < 256 ? 256 : need;
    char *data = realloc(out->data, capacity);
    if (data == NULL) {
        out->failed = true;
        return false;
    }
    out->data = data;
    out->capacity = capacity;
    return true;
}

static int out_write(void *user, const char *buf, size_t length)
{
    struct kr_out *out = user;
    if (length == 0) {
        return 0;
    }
    if (!reserve(out, length)) {
        return -1;
    }
    memcpy(out->data + out->size, buf, length);
    out->size += length;
    return 0;
}

bool kr_out_raw(struct kr_out *out, const void *data, size_t size)
{
    return out_write(out, data, size) == 0;
}

static msgpack_packer packer(struct kr_out *out)
{
    msgpack_packer pk;
    msgpack_packer_init(&pk, out, out_write);
    return pk;
}

/* ---------------------------------------------------------------------------------- values --- */

void kr_out_map(struct kr_out *out, uint32_t pairs)
{
    msgpack_packer pk = packer(out);
    msgpack_pack_map(&pk, pairs);
}

void kr_out_array(struct kr_out *out, uint32_t items)
{
    msgpack_packer pk = packer(out);
    msgpack_pack_array(&pk, items);
}

void kr_out_key(struct kr_out *out, const char *key)
{
    kr_out_text(out, key);
}

/* Every byte of text[length] that belongs to no valid character becomes a question mark. */
static void mend(char *text, size_t length)
{
    for (size_t i = 0; i < length;) {
        size_t n = kr_utf8_decode(text + i, length - i, NULL);
        if (n == 0) {
            text[i++] = '?';
        }
        i += n;
    }
}

void kr_out_text(struct kr_out *out, const char *text)
{
    if (text == NULL) {
        kr_out_nil(out);
        return;
    }
    size_t length = strlen(text);
    if (length > UINT32_MAX) {
        out->failed = true;
        return;
    }
    msgpack_packer pk = packer(out);
    msgpack_pack_str(&pk, length);
    msgpack_pack_str_body(&pk, text, length);
    if (!out->failed && !kr_utf8_valid(text, length)) {
        mend(out->data + out->size - length, length);
    }
}

void kr_out_int(struct kr_out *out, int64_t value)
{
    msgpack_packer pk = packer(out);
    msgpack_pack_int64(&pk, value);
}

void kr_out_real(struct kr_out *out, double value)
{
    msgpack_packer pk = packer(out);
    msgpack_pack_double(&pk, value);
}

void kr_out_bool(struct kr_out *out, bool value)
{
    msgpack_packer pk = packer(out);
    if (value) {
        msgpack_pack_true(&pk);
    } else {
        msgpack_pack_false(&pk);
    }
}

void kr_out_nil(struct kr_out *out)
{
    msgpack_packer pk = packer(out);
    msgpack_pack_nil(&pk);
}

void kr_out_bytes(struct kr_out *out, const void *data, size_t size)
{
    if (size > UINT32_MAX) {
        out->failed = true;
        return;
    }
    if (!reserve(out, size + 5)) {
        return;
    }
    msgpack_packer pk = packer(out);
    msgpack_pack_bin(&pk, size);
    msgpack_pack_bin_body(&pk, data, size);
}

void kr_out_pair_text(struct kr_out *out, const char *key, const char *value)
{
    kr_out_key(out, key);
    kr_out_text(out, value);
}

void kr_out_pair_int(struct kr_out *out, const char *key, int64_t value)
{
    kr_out_key(out, key);
    kr_out_int(out, value);
}

void kr_out_pair_real(struct kr_out *out, const char *key, double value)
{
    kr_out_key(out, key);
    kr_out_real(out, value);
}

void kr_out_pair_bool(struct kr_out *out, const char *key, bool value)
{
    kr_out_key(out, key);
    kr_out_bool(out, value);
}

/* ------------------------------------------------------------------------------- envelopes --- */

void kr_out_request(struct kr_out *out, uint32_t id, enum kr_method method)
{
    kr_out_array(out, 4);
    kr_out_int(out, KR_IN_REQUEST);
    kr_out_int(out, id);
    kr_out_text(out, kr_method_name(method));
    kr_out_array(out, 1);
}

void kr_out_result(struct kr_out *out, uint32_t id)
{
    kr_out_array(out, 4);
    kr_out_int(out, KR_IN_RESPONSE);
    kr_out_int(out, id);
    kr_out_nil(out);
}

void kr_out_error_map(struct kr_out *out, const struct kr_err *err)
{
    kr_out_map(out, 2);
    kr_out_pair_text(out, "code", kr_code_name(err->code));
    kr_out_pair_text(out, "message", err->text);
}

void kr_out_error(struct kr_out *out, uint32_t id, const struct kr_err *err)
{
    kr_out_array(out, 4);
    kr_out_int(out, KR_IN_RESPONSE);
    kr_out_int(out, id);
    kr_out_error_map(out, err);
    kr_out_nil(out);
}

void kr_out_notice(struct kr_out *out, const char *method)
{
    kr_out_array(out, 3);
    kr_out_int(out, KR_IN_NOTICE);
    kr_out_text(out, method);
    kr_out_array(out, 1);
}

/* ------------------------------------------------------------------------------ parameters --- */

uint32_t kr_params_pairs(const struct kr_params *p, uint32_t skip)
{
    return (uint32_t)__builtin_popcount(p->set & ~skip & (kr_bit(KR_FIELDS) - 1));
}

void kr_out_fields(struct kr_out *out, const struct kr_params *p, uint32_t skip)
{
    for (int i = 0; i < KR_FIELDS; i++) {
        const struct kr_field *f = &kr_fields[i];
        if (!kr_has(p, i) || (skip & kr_bit(i))) {
            continue;
        }
        if (f->type == KR_T_TEXT || f->type == KR_T_CHOICE) {
            kr_out_pair_text(out, f->name, kr_params_text(p, i));
        } else if (f->type == KR_T_REAL) {
            kr_out_pair_real(out, f->name, kr_params_real(p, i));
        } else if (f->type == KR_T_BOOL) {
            kr_out_pair_bool(out, f->name, kr_params_int(p, i) != 0);
        } else {
            kr_out_pair_int(out, f->name, kr_params_int(p, i));
        }
    }
}

void kr_out_params(struct kr_out *out, const struct kr_params *p)
{
    kr_out_map(out, kr_params_pairs(p, 0));
    kr_out_fields(out, p, 0);
}
