/* SPDX-License-Identifier: Apache-2.0
 *
 * The walk that finds a message's end, held against msgpack-c's own packer and unpacker, and
 * against hand-made bytes that lie about their counts.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <msgpack.h>

#include "proto/message.h"

static uint64_t state = 88172645463325252u;

static uint32_t draw(uint32_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 32) % below;
}

/* One random value at `depth` of every wire type, lengths around the borders of their encodings. */
static void pack_random(msgpack_packer *pk, int depth)
{
    static const uint32_t sizes[] = {0, 1, 15, 16, 31, 32, 255, 256, 300, 65535, 65536};
    static const char zeros[65536];
    uint32_t kind = draw(depth < KR_MAX_DEPTH ? 10 : 8), n = sizes[draw(depth == 0 ? 11 : 8)];
    switch (kind) {
    case 0:
        msgpack_pack_nil(pk);
        break;
    case 1:
        msgpack_pack_true(pk);
        break;
    case 2:
        msgpack_pack_int64(pk, (int64_t)((uint64_t)draw(UINT32_MAX) << draw(33)));
        break;
    case 3:
        msgpack_pack_int64(pk, -(int64_t)((uint64_t)draw(UINT32_MAX) << draw(32)));
        break;
    case 4:
        msgpack_pack_float(pk, 1.5f);
        break;
    case 5:
        msgpack_pack_double(pk, -2.5);
        break;
    case 6:
        msgpack_pack_str(pk, n);
        msgpack_pack_str_body(pk, zeros, n);
        break;
    case 7:
        if (draw(2)) {
            msgpack_pack_bin(pk, n);
            msgpack_pack_bin_body(pk, zeros, n);
        } else {
            uint32_t size = draw(2) ? 1u << draw(5) : n;
            msgpack_pack_ext(pk, size, 7);
            msgpack_pack_ext_body(pk, zeros, size);
        }
        break;
    default:
        n = draw(40);
        if (kind == 8) {
            msgpack_pack_array(pk, n > 20 ? 2 : n);
        } else {
            msgpack_pack_map(pk, n > 20 ? 1 : n / 2);
            n = n > 20 ? 2 : n / 2 * 2;
        }
        for (uint32_t i = 0; i < (n > 20 ? 2 : n); i++) {
            pack_random(pk, depth + 1 + (draw(3) == 0) * 8);
        }
    }
}

static void finds_the_end_of_what_msgpack_packs(void **s)
{
    (void)s;
    for (int round = 0; round < 3000; round++) {
        msgpack_sbuffer buf;
        msgpack_packer pk;
        msgpack_sbuffer_init(&buf);
        msgpack_packer_init(&pk, &buf, msgpack_sbuffer_write);
        pack_random(&pk, 0);
        size_t size = buf.size;
        pack_random(&pk, 0); /* what follows does not matter */
        assert_int_equal(kr_frame_size(buf.data, buf.size, buf.size, NULL), size);
        assert_int_equal(kr_frame_size(buf.data, size, size, NULL), size);
        assert_int_equal(kr_frame_size(buf.data, size, size - 1, NULL), -1);
        size_t stride = size > 4000 ? size / 200 : 1;
        struct kr_scan scan;
        kr_scan_init(&scan, size);
        for (size_t cut = 0; cut < size; cut += stride) {
            char *exact = malloc(cut + !cut); /* a sanitizer sees a read beyond it */
            memcpy(exact, buf.data, cut);
            assert_int_equal(kr_frame_size(exact, cut, size, NULL), 0);
            assert_int_equal(kr_scan_feed(&scan, exact, cut, NULL), 0);
            assert_true(kr_scan_need(&scan) > cut);
            assert_true(kr_scan_need(&scan) <= size);
            free(exact);
        }
        assert_int_equal(kr_scan_feed(&scan, buf.data, buf.size, NULL), size);
        assert_int_equal(kr_scan_need(&scan), size);
        msgpack_sbuffer_destroy(&buf);
    }
}

/* On random bytes both must agree, except where this side is stricter: depth and counts. */
static void agrees_with_msgpack_on_random_bytes(void **s)
{
    (void)s;
    int whole = 0, broken = 0;
    for (int round = 0; round < 300000; round++) {
        unsigned char bytes[48];
        size_t n = draw(sizeof bytes + 1);
        for (size_t i = 0; i < n; i++) {
            bytes[i] = (unsigned char)(draw(4) ? 0x80 + draw(128) : draw(256));
        }
        struct kr_err err = {0};
        int64_t size = kr_frame_size(bytes, n, 1000, &err);
        if (size < 0 && !strstr(err.text, "0xc1")) {
            continue; /* msgpack-c alone would allocate for such a count */
        }
        msgpack_unpacked un;
        msgpack_unpacked_init(&un);
        size_t offset = 0;
        msgpack_unpack_return got = msgpack_unpack_next(&un, (char *)bytes, n, &offset);
        if (size > 0) {
            assert_int_equal(got, MSGPACK_UNPACK_SUCCESS);
            assert_int_equal(offset, size);
            whole++;
        } else if (size == 0) {
            assert_int_equal(got, MSGPACK_UNPACK_CONTINUE);
        } else {
            assert_int_not_equal(got, MSGPACK_UNPACK_SUCCESS);
            broken++;
        }
        msgpack_unpacked_destroy(&un);
    }
    assert_true(whole > 1000 && broken > 1000);
}

static int64_t size_of(const char *bytes, size_t length, size_t limit, const char *why)
{
    struct kr_err err = {0};
    int64_t size = kr_frame_size(bytes, length, limit, &err);
    if (why != NULL) {
        assert_int_equal(size, -1);
        assert_int_equal(err.code, KR_BAD_FRAME);
        assert_non_null(strstr(err.text, why));
    }
    return size;
}

static void refuses_counts_that_cannot_be(void **s)
{
    (void)s;
    /* Headers alone: nothing of what they announce has come, and nothing of it is waited for. */
    size_of("\xdd\xff\xff\xff\xff", 5, KR_MAX_REPLY, "longer than");
    size_of("\xdf\xff\xff\xff\xff", 5, KR_MAX_REPLY, "longer than");
    size_of("\xc6\xff\xff\xff\xff", 5, KR_MAX_REPLY, "longer than");
    size_of("\xdb\x00\x10\x00\x00", 5, KR_MAX_REQUEST, "longer than");
    size_of("\xc9\xff\xff\xff\xff\x01", 6, KR_MAX_REPLY, "longer than");
    size_of("\xdd\x00\x04\x00\x00", 5, KR_MAX_REPLY, "more than 262144 values");
    size_of("\xdf\x00\x02\x00\x00", 5, KR_MAX_REPLY, "more than 262144 values");
    /* A count that only what is already owed outside makes too large. */
    size_of("\xdc\x00\x40\xdc\x00\x40", 6, 132, "longer than");
    assert_int_equal(size_of("\xdc\x00\x40\xdc\x00\x40", 6, 133, NULL), 0);
    /* The largest that fit. */
    assert_int_equal(size_of("\xdb\x00\x0f\xff\xfb", 5, KR_MAX_REQUEST, NULL), 0);
    assert_int_equal(size_of("\xdd\x00\x03\xff\xff", 5, KR_MAX_REPLY, NULL), 0);
}

static void refuses_depth(void **s)
{
    (void)s;
    char nest[32];
    memset(nest, 0x91, sizeof nest);
    nest[8] = 0x00;
    assert_int_equal(size_of(nest, 9, 100, NULL), 9);
    nest[8] = (char)0x90; /* the ninth, though empty */
    size_of(nest, 9, 100, "deeper than 8");
    static char bomb[1 << 20];
    memset(bomb, 0x91, sizeof bomb);
    size_of(bomb, sizeof bomb, sizeof bomb, "deeper than 8");
    memset(bomb, 0x81, sizeof bomb); /* maps whose keys are maps */
    size_of(bomb, sizeof bomb, sizeof bomb, "deeper than 8");
    /* Breadth at the last level is no depth: 8 levels, closed again and again. */
    const char wide[] = "\x92\x91\x91\x91\x91\x91\x91\x91\x01\x91\x91\x91\x91\x91\x91\x91\x01";
    assert_int_equal(size_of(wide, 17, 100, NULL), 17);
}

static void refuses_the_undefined_byte(void **s)
{
    (void)s;
    size_of("\xc1", 1, 100, "byte 0 (0xc1)");
    size_of("\x93\x01\x02\xc1", 4, 100, "byte 3 (0xc1)");
    assert_int_equal(size_of("\xa1\xc1", 2, 100, NULL), 2); /* inside a text it is a byte */
}

static void every_first_byte(void **s)
{
    (void)s;
    for (int c = 0; c < 256; c++) {
        char bytes[32] = {(char)c};
        int64_t size = kr_frame_size(bytes, sizeof bytes, sizeof bytes, NULL);
        if (c == 0xc1) {
            assert_int_equal(size, -1);
            continue;
        }
        assert_in_range(size, 1, 32);
        assert_int_equal(kr_frame_size(bytes, (size_t)size - 1, sizeof bytes, NULL), 0);
    }
    assert_int_equal(kr_frame_size("", 0, 100, NULL), 0);
    assert_int_equal(kr_frame_size("\xc0", 1, 0, NULL), -1); /* nothing fits into nothing */
}

/* A reply of 250 MB in pieces of 64 kB, and one of many small values byte by byte: the scan may
 * look at each header once, so its place only ever moves on. */
static void pieces_cost_no_second_look(void **s)
{
    (void)s;
    size_t size = 250 << 20;
    char *picture = calloc(size + 6, 1);
    assert_non_null(picture);
    memcpy(picture, "\x91\xc6\x0f\xa0\x00\x00", 6);
    struct kr_scan scan;
    kr_scan_init(&scan, KR_MAX_REPLY);
    for (size_t have = 65536; have < size + 6; have += 65536) {
        assert_int_equal(kr_scan_feed(&scan, picture, have, NULL), 0);
        assert_int_equal(kr_scan_need(&scan), size + 6);
        assert_int_equal(scan.at, size + 6);
    }
    assert_int_equal(kr_scan_feed(&scan, picture, size + 6, NULL), size + 6);
    free(picture);

    static char many[200005];
    memcpy(many, "\xdd\x00\x03\x0d\x40", 5);
    kr_scan_init(&scan, KR_MAX_REPLY);
    for (size_t have = 0; have < sizeof many; have++) {
        assert_int_equal(kr_scan_feed(&scan, many, have, NULL), 0);
        assert_int_equal(scan.at, have < 5 ? 0 : have);
    }
    assert_int_equal(kr_scan_feed(&scan, many, sizeof many, NULL), sizeof many);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_the_end_of_what_msgpack_packs),
        cmocka_unit_test(agrees_with_msgpack_on_random_bytes),
        cmocka_unit_test(refuses_counts_that_cannot_be),
        cmocka_unit_test(refuses_depth),
        cmocka_unit_test(refuses_the_undefined_byte),
        cmocka_unit_test(every_first_byte),
        cmocka_unit_test(pieces_cost_no_second_look),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
