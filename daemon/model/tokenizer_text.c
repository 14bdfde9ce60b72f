/* SPDX-License-Identifier: Apache-2.0
 *
 * The reference tokenizer normalizes by one version of Unicode (9), splits by another (16), and the
 * libraries here know a third and a fourth (utf8proc 2.8: 15; PCRE2 10.42: 14). What differs is
 * tabled in tokenizer_unicode.h, so that each code point acts as in the reference.
 *
 * Normalization is in three steps instead of one call of utf8proc_map, for two reasons. Characters
 * that are younger than Unicode 9 must not move or compose, so the text between them is normalized
 * part by part. And utf8proc sorts combining marks by swapping neighbours, which takes minutes for
 * a hostile megabyte of them; here they are sorted by merging.
 */
#include "daemon/model/tokenizer_text.h"

#define PCRE2_CODE_UNIT_WIDTH 8

#include <assert.h>
#include <pcre2.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "daemon/model/tokenizer_unicode.h"

/* ----------------------------------------------------------------------------------- NFC ---- */

static bool is_barrier(int32_t c)
{
    size_t low = 0, high = sizeof(normalization_barriers) / sizeof(normalization_barriers[0]);

    while (low < high) {
        size_t middle = (low + high) / 2;

        if (c < normalization_barriers[middle][0])
            high = middle;
        else if (c > normalization_barriers[middle][1])
            low = middle + 1;
        else
            return true;
    }
    return false;
}

static int combining_class(int32_t c)
{
    return c < 0x300 ? 0 : utf8proc_get_property(c)->combining_class;
}

/* Stable sort of c[n] by combining class, with room for n more at tmp. */
static void sort_marks(int32_t *c, size_t n, int32_t *tmp)
{
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t at = 0; at < n; at += 2 * width) {
            size_t a = at, middle = at + width < n ? at + width : n;
            size_t b = middle, end = middle + width < n ? middle + width : n;

            for (size_t i = at; i < end; i++) {
                bool left =
                    b == end || (a < middle && combining_class(c[a]) <= combining_class(c[b]));

                tmp[i] = left ? c[a++] : c[b++];
            }
        }
        memcpy(c, tmp, n * sizeof(*c));
    }
}

/* Normalizes c[n], decomposed and without barriers; returns how many are left. */
static size_t compose(int32_t *c, size_t n, int32_t *tmp)
{
    size_t start = 0;

    for (size_t i = 0; i <= n; i++) {
        if (i < n && combining_class(c[i]) != 0)
            continue;
        sort_marks(c + start, i - start, tmp);
        start = i + 1;
    }
    return (size_t)utf8proc_normalize_utf32(c, (utf8proc_ssize_t)n,
                                            UTF8PROC_COMPOSE | UTF8PROC_STABLE);
}

/* Canonical decomposition makes at most 3 code points of 2 bytes, 4 of 3 and 3 of 4. */
static size_t most_code_points(size_t length)
{
    return length + length / 2 + 4;
}

/* Decomposes and composes between barriers; returns how many code points are in c. */
static size_t normalize(const char *text, size_t length, int32_t *c, int32_t *tmp)
{
    const utf8proc_uint8_t *at = (const utf8proc_uint8_t *)text, *end = at + length;
    size_t room = most_code_points(length), n = 0, start = 0;

    while (at < end) {
        utf8proc_int32_t one;

        at += utf8proc_iterate(at, end - at, &one);
        if (is_barrier(one)) {
            n = start + compose(c + start, n - start, tmp);
            c[n++] = one;
            start = n;
        } else {
            n += (size_t)utf8proc_decompose_char(one, c + n, (utf8proc_ssize_t)(room - n),
                                                 UTF8PROC_DECOMPOSE, NULL);
        }
    }
    return start + compose(c + start, n - start, tmp);
}

static size_t encode_utf8(const int32_t *c, size_t n, char *out)
{
    size_t length = 0;

    for (size_t i = 0; i < n; i++)
        length += (size_t)utf8proc_encode_char(c[i], (utf8proc_uint8_t *)out + length);
    return length;
}

int text_normalize(const char *text, size_t length, char **out, size_t *out_length)
{
    size_t most = most_code_points(length), n, i = 0;
    int32_t *c;

    *out = NULL;
    while (i < length && (unsigned char)text[i] < 0xCC) /* up to U+02FF all is NFC already */
        i++;
    if (i == length)
        return 0;
    c = malloc(2 * most * sizeof(*c));
    if (c == NULL)
        return -1;
    n = normalize(text, length, c, c + most);
    *out = malloc(4 * n);
    if (*out)
        *out_length = encode_utf8(c, n, *out);
    free(c);
    return *out ? 0 : -1;
}

/* ------------------------------------------------------------------------------ the pattern --- */

/* The published pattern is
 *
 *   (?i:'s|'t|'re|'ve|'m|'ll|'d) | [^\r\n\p{L}\p{N}]?\p{L}+ | \p{N} | ?[^\s\p{L}\p{N}]+[\r\n]*
 *   | \s*[\r\n]+ | \s+(?!\S) | \s+
 *
 * Here its quantifiers are possessive wherever giving characters back could not lead to a match,
 * and \s*[\r\n]+ is spelled as lines that end, so that no text makes the matcher go back more than
 * one character. */
#define LETTERS "\\p{L}" LETTERS_SINCE_14
#define NUMBERS "\\p{N}" NUMBERS_SINCE_14
#define SPACES  "\\r\\n" BLANKS

static const char pattern[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
                              "|[^\\r\\n" LETTERS NUMBERS "]?+[" LETTERS "]++"
                              "|[" NUMBERS "]"
                              "|\\x20?+[^" SPACES LETTERS NUMBERS "]++[\\r\\n]*+"
                              "|(?:[" BLANKS "]*+[\\r\\n]++)++"
                              "|[" SPACES "]+(?![^" SPACES "])"
                              "|[" SPACES "]++";

enum { MATCH_LIMIT = 100000000, DEPTH_LIMIT = 1000, HEAP_LIMIT_KIB = 20000 };

struct splitter {
    pcre2_code *code;
    pcre2_match_context *limits;
};

struct splitter *splitter_new(void)
{
    struct splitter *splitter = calloc(1, sizeof(*splitter));
    int error;
    PCRE2_SIZE where;

    if (splitter == NULL)
        return NULL;
    splitter->code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                                   PCRE2_UTF | PCRE2_ANCHORED, &error, &where, NULL);
    assert(splitter->code || error == PCRE2_ERROR_HEAP_FAILED);
    splitter->limits = pcre2_match_context_create(NULL);
    if (splitter->code == NULL || splitter->limits == NULL) {
        splitter_free(splitter);
        return NULL;
    }
    /* Where code may not be made at run time, the interpreter gives the same matches. */
    pcre2_jit_compile(splitter->code, PCRE2_JIT_COMPLETE);
    pcre2_set_match_limit(splitter->limits, MATCH_LIMIT);
    pcre2_set_depth_limit(splitter->limits, DEPTH_LIMIT);
    pcre2_set_heap_limit(splitter->limits, HEAP_LIMIT_KIB);
    return splitter;
}

void splitter_free(struct splitter *splitter)
{
    if (splitter == NULL)
        return;
    pcre2_code_free(splitter->code);
    pcre2_match_context_free(splitter->limits);
    free(splitter);
}

struct pieces {
    const struct splitter *splitter;
    pcre2_match_data *match;
};

struct pieces *pieces_new(const struct splitter *splitter)
{
    struct pieces *pieces = calloc(1, sizeof(*pieces));

    if (pieces == NULL)
        return NULL;
    pieces->splitter = splitter;
    pieces->match = pcre2_match_data_create(1, NULL);
    if (pieces->match == NULL) {
        free(pieces);
        return NULL;
    }
    return pieces;
}

void pieces_free(struct pieces *pieces)
{
    if (pieces == NULL)
        return;
    pcre2_match_data_free(pieces->match);
    free(pieces);
}

size_t pieces_end(struct pieces *pieces, const char *text, size_t length, size_t start)
{
    const struct splitter *splitter = pieces->splitter;
    int rc = pcre2_match(splitter->code, (PCRE2_SPTR)text, length, start, PCRE2_NO_UTF_CHECK,
                         pieces->match, splitter->limits);

    return rc < 0 ? 0 : pcre2_get_ovector_pointer(pieces->match)[1];
}
