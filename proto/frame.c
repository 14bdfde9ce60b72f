/* SPDX-License-Identifier: Apache-2.0
 *
 * Where a message ends. Both sides collect bytes until a whole message is there and only then hand
 * it to msgpack-c, so everything that could make an unpacker allocate or recurse without bound is
 * stopped here, by a walk over the headers that holds nothing but one counter a level:
 *
 *   - nesting beyond KR_MAX_DEPTH;
 *   - more values than KR_MAX_ITEMS (an unpacked value is much larger than the byte it came from);
 *   - a count or a length that the limit could not hold, refused as soon as its header is read:
 *     every value still owed takes a byte at least;
 *   - the byte 0xc1, the only one that MessagePack does not define.
 *
 * The walk keeps its place. A picture arrives in thousands of pieces, and the one length in its
 * header says how much to wait for, so each byte is looked at once at most.
 */
#include "proto/message.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

/* What one header says: its own size, the bytes of payload after it, the values inside it. */
struct header {
    uint32_t size;
    uint64_t payload;
    uint64_t items;
    bool nests;
};

static uint64_t big_endian(const unsigned char *p, int bytes)
{
    uint64_t v = 0;
    for (int i = 0; i < bytes; i++) {
        v = v << 8 | p[i];
    }
    return v;
}

/* Headers whose first byte holds everything. */
static bool header_short(unsigned char byte, struct header *h)
{
    *h = (struct header){.size = 1};
    if (byte <= 0x7f || byte >= 0xe0 || byte == 0xc0 || byte == 0xc2 || byte == 0xc3) {
        return true; /* small integers, nil, false, true */
    }
    if (byte >= 0xa0 && byte <= 0xbf) {
        h->payload = byte & 0x1f;
        return true;
    }
    if (byte >= 0x80 && byte <= 0x9f) {
        h->items = (uint64_t)(byte & 0x0f) * (byte < 0x90 ? 2 : 1);
        h->nests = true;
        return true;
    }
    return false;
}

/* The rest: 0xc4 to 0xdf, without nil, 0xc1 and the booleans. */
static const struct {
    unsigned char count;  /* bytes of the count that follows the first byte */
    unsigned char fixed;  /* payload bytes whatever the count is */
    unsigned char factor; /* values per counted thing; 0: the count is of bytes */
} wide[0x20] = {
    [0x04] = {1, 0, 0}, [0x05] = {2, 0, 0},  [0x06] = {4, 0, 0}, /* bin */
    [0x07] = {1, 1, 0}, [0x08] = {2, 1, 0},  [0x09] = {4, 1, 0}, /* ext: and a type */
    [0x0a] = {0, 4, 0}, [0x0b] = {0, 8, 0},                      /* float */
    [0x0c] = {0, 1, 0}, [0x0d] = {0, 2, 0},  [0x0e] = {0, 4, 0}, /* uint */
    [0x0f] = {0, 8, 0}, [0x10] = {0, 1, 0},  [0x11] = {0, 2, 0}, /* uint 64, int */
    [0x12] = {0, 4, 0}, [0x13] = {0, 8, 0},                      /* int */
    [0x14] = {0, 2, 0}, [0x15] = {0, 3, 0},  [0x16] = {0, 5, 0}, /* fixext */
    [0x17] = {0, 9, 0}, [0x18] = {0, 17, 0},                     /* fixext */
    [0x19] = {1, 0, 0}, [0x1a] = {2, 0, 0},  [0x1b] = {4, 0, 0}, /* str */
    [0x1c] = {2, 0, 1}, [0x1d] = {4, 0, 1},                      /* array */
    [0x1e] = {2, 0, 2}, [0x1f] = {4, 0, 2},                      /* map */
};

/* Reads the header at p. 1: read, 0: it goes on beyond `length`, and h->size says how far; -1:
 * 0xc1. */
static int header_read(const unsigned char *p, uint64_t length, struct header *h)
{
    if (header_short(p[0], h)) {
        return 1;
    }
    if (p[0] == 0xc1) {
        return -1;
    }
    unsigned kind = p[0] - 0xc0u;
    h->size = 1u + wide[kind].count;
    if (length < h->size) {
        return 0;
    }
    uint64_t count = big_endian(p + 1, wide[kind].count);
    h->payload = wide[kind].fixed + (wide[kind].factor ? 0 : count);
    h->items = count * wide[kind].factor;
    h->nests = wide[kind].factor != 0;
    return 1;
}

void kr_scan_init(struct kr_scan *scan, size_t limit)
{
    memset(scan, 0, sizeof *scan);
    scan->limit = limit;
    scan->left[0] = 1;
    scan->owed = 1;
    scan->need = 1;
}

static int too_long(const struct kr_scan *scan, struct kr_err *err)
{
    return kr_fail(err, KR_BAD_FRAME, "the message is longer than the %" PRIu64 " bytes allowed",
                   scan->limit);
}

/* Steps over one header that is complete; the checks are the point of this file. */
static int scan_step(struct kr_scan *scan, const struct header *h, struct kr_err *err)
{
    scan->left[scan->depth]--;
    scan->owed += h->items - 1;
    scan->items++;
    scan->at += h->size + h->payload;
    if (scan->at + scan->owed > scan->limit) {
        return too_long(scan, err);
    }
    if (scan->items + scan->owed > KR_MAX_ITEMS) {
        return kr_fail(err, KR_BAD_FRAME, "the message holds more than %d values", KR_MAX_ITEMS);
    }
    if (h->nests) {
        if (scan->depth == KR_MAX_DEPTH) {
            return kr_fail(err, KR_BAD_FRAME, "the message nests deeper than %d levels",
                           KR_MAX_DEPTH);
        }
        scan->left[++scan->depth] = h->items;
    }
    while (scan->depth > 0 && scan->left[scan->depth] == 0) {
        scan->depth--;
    }
    return 0;
}

int64_t kr_scan_feed(struct kr_scan *scan, const void *buf, size_t length, struct kr_err *err)
{
    assert(length <= INT64_MAX);
    const unsigned char *bytes = buf;
    while (scan->owed > 0) {
        struct header h;
        int got = scan->at < length ? header_read(bytes + scan->at, length - scan->at, &h) : 0;
        if (got < 0) {
            return kr_fail(err, KR_BAD_FRAME, "byte %" PRIu64 " (0xc1) is no MessagePack",
                           scan->at);
        }
        if (got == 0) {
            scan->need = scan->at + (scan->at < length ? h.size - 1 : 0) + scan->owed;
            return scan->need <= scan->limit ? 0 : too_long(scan, err);
        }
        if (scan_step(scan, &h, err) != 0) {
            return -1;
        }
    }
    scan->need = scan->at;
    return scan->at <= length ? (int64_t)scan->at : 0;
}

size_t kr_scan_need(const struct kr_scan *scan)
{
    return scan->need;
}

int64_t kr_frame_size(const void *buf, size_t length, size_t limit, struct kr_err *err)
{
    struct kr_scan scan;
    kr_scan_init(&scan, limit);
    return kr_scan_feed(&scan, buf, length, err);
}
