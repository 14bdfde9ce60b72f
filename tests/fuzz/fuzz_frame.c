/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the way bytes take from a socket: the scan, at once and in pieces, and the decoder behind
 * it, whose values are all visited. The first input byte says how large the pieces are.
 */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "proto/message.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static size_t visit(const struct kr_value *v, int depth)
{
    const char *text;
    const void *bytes;
    size_t length, seen = 1;
    int64_t whole;
    double real;
    bool truth;
    assert(depth <= KR_MAX_DEPTH + (kr_value_count(v) == 0)); /* a leaf lies in the last level */
    unsigned sum = 0;
    if (kr_value_text(v, &text, &length)) {
        for (size_t i = 0; i < length; i++) {
            sum += (unsigned char)text[i];
        }
    }
    if (kr_value_bytes(v, &bytes, &length)) {
        for (size_t i = 0; i < length; i++) {
            sum += ((const unsigned char *)bytes)[i];
        }
    }
    sum += kr_value_int(v, &whole) && whole > 0;
    sum += kr_value_real(v, &real) && real > 0;
    sum += kr_value_bool(v, &truth) && truth;
    volatile unsigned keep = sum;
    (void)keep;
    (void)kr_value_get(v, "job");
    for (size_t i = 0; i < kr_value_count(v); i++) {
        const struct kr_value *value = kr_value_item(v, i), *key = kr_value_key(v, i, &value);
        seen += (key ? visit(key, depth + 1) : 0) + visit(value, depth + 1);
    }
    return seen;
}

static void decode(const uint8_t *frame, size_t size)
{
    struct kr_in in;
    struct kr_err err = {0};
    if (kr_in_init(&in, frame, size, &err) != 0) {
        assert(err.code == KR_BAD_FRAME && err.text[0]);
        return;
    }
    if (in.kind != KR_IN_RESPONSE) {
        static const char *const names[] = {"job", "index", NULL};
        (void)kr_in_method(&in);
        (void)kr_value_keys(in.params, names, &err);
    }
    assert(visit(in.params, 3) + visit(in.result, 2) <= KR_MAX_ITEMS);
    kr_in_fini(&in);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) {
        return 0;
    }
    size_t piece = 1 + data[0] % 32u, limit = data[0] & 0x80 ? 64 : KR_MAX_REQUEST;
    uint8_t *exact = malloc(size);
    assert(exact != NULL);
    memcpy(exact, data + 1, size - 1);
    size--;
    struct kr_err whole_err = {0}, err = {0};
    int64_t whole = kr_frame_size(exact, size, limit, &whole_err), pieces = 0;
    struct kr_scan scan;
    kr_scan_init(&scan, limit);
    size_t have = 0;
    while (pieces == 0 && have < size) {
        have = have + piece < size ? have + piece : size;
        pieces = kr_scan_feed(&scan, exact, have, &err);
        assert(pieces != 0 || (kr_scan_need(&scan) > have && kr_scan_need(&scan) <= limit));
    }
    assert(pieces == whole);
    assert(whole >= 0 || strcmp(err.text, whole_err.text) == 0);
    assert(whole <= (int64_t)size && whole <= (int64_t)limit);
    if (whole > 0) {
        decode(exact, (size_t)whole);
    }
    decode(exact, size); /* as a caller would that forgot to scan */
    free(exact);
    return 0;
}
