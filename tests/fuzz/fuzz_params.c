/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the validation of generate requests. The input is a parameter map as MessagePack, or,
 * after a first byte of 0xc1 (which is none), lines "field=text" as a config file or command line
 * gives them, or, after 0xc2, a JSON report. What is accepted must lie in the table's ranges and
 * survive encoding and decoding.
 */
#include <assert.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/message.h"
#include "proto/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct kr_params *p)
{
    static const struct {
        enum kr_field_id id;
        int64_t min, max;
    } whole[] = {{KR_F_WIDTH, 16, 8192},     {KR_F_HEIGHT, 16, 8192}, {KR_F_STEPS, 1, 1000},
                 {KR_F_SEED, -1, INT64_MAX}, {KR_F_COUNT, 1, 64},     {KR_F_PREVIEW, 0, 1000},
                 {KR_F_RNG, 0, 1},           {KR_F_DIALECT, 0, 1},    {KR_F_DETACH, 0, 1}};
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++) {
        int64_t v = kr_params_int(p, whole[i].id);
        assert(!kr_has(p, whole[i].id) || (v >= whole[i].min && v <= whole[i].max));
    }
    assert(!kr_has(p, KR_F_CFG) || (p->cfg >= 0 && p->cfg <= 100));
    assert(!kr_has(p, KR_F_MU) || fabs(p->mu) <= 10);
    assert(!kr_has(p, KR_F_SHIFT_Y1) || fabs(p->shift_y1) <= 10);
    assert(!kr_has(p, KR_F_SHIFT_Y2) || fabs(p->shift_y2) <= 10);
    assert(!kr_has(p, KR_F_PROMPT) == !p->prompt && !kr_has(p, KR_F_NEGATIVE) == !p->negative);
    assert(!p->prompt || strlen(p->prompt) <= KR_MAX_TEXT);
    assert(!p->negative || kr_utf8_valid(p->negative, strlen(p->negative)));
}

/* Each value as text and back. */
static void through_text(const struct kr_params *p)
{
    for (int i = 0; i < KR_FIELDS; i++) {
        struct kr_params q = {0};
        struct kr_err err;
        char text[KR_MAX_TEXT + 1], again[KR_MAX_TEXT + 1];
        if (kr_has(p, i)) {
            kr_params_format(p, i, text, sizeof text);
            assert(kr_params_parse(&q, i, text, &err) == 0);
            kr_params_format(&q, i, again, sizeof again);
            assert(strcmp(text, again) == 0);
            kr_params_fini(&q);
        }
    }
}

static int decode(struct kr_out *out, struct kr_params *p)
{
    struct kr_in in;
    struct kr_err err = {0};
    memset(p, 0, sizeof *p);
    if (kr_in_init(&in, out->data, out->size, &err) != 0) {
        return -1;
    }
    int rc = kr_value_params(in.params, p, &err);
    assert(rc == 0 || ((err.code == KR_BAD_REQUEST || err.code == KR_BAD_VERSION) && err.text[0] &&
                       kr_utf8_valid(err.text, strlen(err.text))));
    kr_in_fini(&in);
    return rc;
}

static void fuzz_map(const uint8_t *data, size_t size)
{
    struct kr_out out;
    struct kr_params p, q;
    kr_out_init(&out);
    kr_out_request(&out, 1, KR_M_GENERATE);
    kr_out_raw(&out, data, size);
    if (decode(&out, &p) == 0) {
        check(&p);
        through_text(&p);
        struct kr_out again, third;
        kr_out_init(&again);
        kr_out_request(&again, 1, KR_M_GENERATE);
        kr_out_params(&again, &p);
        assert(decode(&again, &q) == 0);
        kr_out_init(&third);
        kr_out_request(&third, 1, KR_M_GENERATE);
        kr_out_params(&third, &q);
        assert(third.size == again.size && memcmp(third.data, again.data, third.size) == 0);
        kr_out_fini(&third);
        kr_out_fini(&again);
        kr_params_fini(&q);
    }
    kr_params_fini(&p);
    kr_out_fini(&out);
}

static void fuzz_lines(char *line)
{
    struct kr_params p = {0};
    struct kr_err err;
    for (char *next; line != NULL; line = next) {
        next = strchr(line, '\n');
        if (next != NULL) {
            *next++ = 0;
        }
        char *value = strchr(line, '=');
        const struct kr_field *f = value ? kr_field_find(line, (size_t)(value - line)) : NULL;
        if (f != NULL && kr_params_parse(&p, f - kr_fields, value + 1, &err) != 0) {
            assert(err.code == KR_BAD_REQUEST && kr_utf8_valid(err.text, strlen(err.text)));
        }
    }
    check(&p);
    through_text(&p);
    kr_params_fini(&p);
}

static void fuzz_json(const char *text)
{
    struct kr_out out;
    kr_out_init(&out);
    kr_out_result(&out, 1);
    size_t before = out.size;
    if (kr_out_json(&out, text, NULL) == 0) {
        struct kr_in in;
        struct kr_err err;
        assert(kr_in_init(&in, out.data, out.size, &err) == 0 || strstr(err.text, "values"));
        kr_in_fini(&in);
    } else {
        assert(out.size == before);
    }
    kr_out_fini(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 0 && (data[0] == 0xc1 || data[0] == 0xc2)) {
        char *text = strndup((const char *)data + 1, size - 1);
        assert(text != NULL);
        if (data[0] == 0xc1) {
            fuzz_lines(text);
        } else {
            fuzz_json(text);
        }
        free(text);
    } else {
        fuzz_map(data, size);
    }
    return 0;
}
