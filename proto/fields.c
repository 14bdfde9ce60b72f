/* SPDX-License-Identifier: Apache-2.0
 *
 * The field table and the values that it describes. Requests, the config file and command lines
 * differ in what they are given (MessagePack values, texts) but not in what they allow: all of them
 * end in kr_params_set_*() here, and every refusal is worded here, with the field's name, what was
 * given and what is allowed.
 *
 * A new generation value is one row of the table, one id and one member of struct kr_params, and
 * where a request may leave it out, a default in the model's family (daemon/engine).
 */
#include "proto/fields.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/message.h"
#include "proto/utf8.h"

static const char *const rng_choices[] = {"cuda", "cpu", NULL};
static const char *const dialect_choices[] = {"krea", "comfyui", NULL};

#define AT(member) offsetof(struct kr_params, member)

const struct kr_field kr_fields[KR_FIELDS] = {
    [KR_F_PROMPT] = {"prompt", KR_T_TEXT, "bytes", 0, KR_MAX_TEXT, NULL, "required",
                     "what the picture shows, in UTF-8", false, AT(prompt)},
    [KR_F_NEGATIVE] = {"negative", KR_T_TEXT, "bytes", 0, KR_MAX_TEXT, NULL, "empty",
                       "what it shall not show; acts only while cfg is above 0", true,
                       AT(negative)},
    [KR_F_WIDTH] = {"width", KR_T_INT, "pixels", 16, 8192, NULL, "1024 (demo: its own size)",
                    "width of the picture, rounded up to a multiple of 16", true, AT(width)},
    [KR_F_HEIGHT] = {"height", KR_T_INT, "pixels", 16, 8192, NULL, "1024 (demo: its own size)",
                     "height of the picture, rounded up to a multiple of 16", true, AT(height)},
    [KR_F_STEPS] = {"steps", KR_T_INT, "", 1, 1000, NULL, "8 (turbo), 52 (raw)",
                    "steps from noise to picture; the time goes with them", true, AT(steps)},
    [KR_F_CFG] = {"cfg", KR_T_REAL, "", 0, 100, NULL, "0 (turbo), 3.5 (raw)",
                  "guidance: how hard to push towards the prompt and away from negative; 0 is off "
                  "and halves the time of a step",
                  true, AT(cfg)},
    [KR_F_SEED] = {"seed", KR_T_INT, "", -1, 9223372036854775807.0, NULL, "-1",
                   "start of the noise; -1 draws one at random, and the one used is reported",
                   false, AT(seed)},
    [KR_F_COUNT] = {"count", KR_T_INT, "", 1, 64, NULL, "1",
                    "how many pictures; picture i uses seed + i", false, AT(count)},
    [KR_F_MU] = {"mu", KR_T_REAL, "", -10, 10, NULL,
                 "1.15 (turbo, and dialect comfyui), from the picture's size (raw)",
                 "shift of the schedule: higher spends more of the steps on the composition", true,
                 AT(mu)},
    [KR_F_SHIFT_Y1] = {"shift_y1", KR_T_REAL, "", -10, 10, NULL, "0.5",
                       "where mu comes from the size: mu at 256 image tokens (256 x 256 pixels)",
                       true, AT(shift_y1)},
    [KR_F_SHIFT_Y2] = {"shift_y2", KR_T_REAL, "", -10, 10, NULL, "1.15",
                       "where mu comes from the size: mu at 6400 image tokens (1280 x 1280 pixels)",
                       true, AT(shift_y2)},
    [KR_F_RNG] = {"rng", KR_T_CHOICE, "", 0, 1, rng_choices, "cuda (krea), cpu (comfyui)",
                  "which of torch's generators the noise reproduces", true, AT(rng)},
    [KR_F_DIALECT] = {"dialect", KR_T_CHOICE, "", 0, 1, dialect_choices, "krea",
                      "whose rounding and defaults to follow where programs differ", true,
                      AT(dialect)},
    [KR_F_PREVIEW] = {"preview", KR_T_INT, "steps", 0, 1000, NULL, "0",
                      "a small preview every so many steps; 0: none", true, AT(preview)},
    [KR_F_DETACH] = {"detach", KR_T_BOOL, "", 0, 1, NULL, "false",
                     "the job goes on when its client leaves, and its pictures wait to be fetched",
                     false, AT(detach)},
};

const struct kr_field *kr_field_find(const char *name, size_t length)
{
    for (int i = 0; i < KR_FIELDS; i++) {
        if (strlen(kr_fields[i].name) == length && memcmp(kr_fields[i].name, name, length) == 0) {
            return &kr_fields[i];
        }
    }
    return NULL;
}

/* ------------------------------------------------------------------------------ the values --- */

static void *at(const struct kr_params *p, enum kr_field_id id)
{
    return (void *)((uintptr_t)p + kr_fields[id].offset);
}

static int64_t *at_int(const struct kr_params *p, enum kr_field_id id)
{
    return at(p, id);
}

static double *at_real(const struct kr_params *p, enum kr_field_id id)
{
    return at(p, id);
}

static char **at_text(const struct kr_params *p, enum kr_field_id id)
{
    return at(p, id);
}

int64_t kr_params_int(const struct kr_params *p, enum kr_field_id id)
{
    return *at_int(p, id);
}

double kr_params_real(const struct kr_params *p, enum kr_field_id id)
{
    return *at_real(p, id);
}

const char *kr_params_text(const struct kr_params *p, enum kr_field_id id)
{
    const char *const *choices = kr_fields[id].choices;
    return choices != NULL ? choices[*at_int(p, id)] : *at_text(p, id);
}

static void mark(struct kr_params *p, enum kr_field_id id)
{
    p->set |= kr_bit(id);
}

void kr_params_fini(struct kr_params *p)
{
    for (int i = 0; i < KR_FIELDS; i++) {
        if (kr_fields[i].type == KR_T_TEXT) {
            free(*at_text(p, i));
        }
    }
    memset(p, 0, sizeof *p);
}

int kr_params_default(struct kr_params *p, const struct kr_params *defaults, struct kr_err *err)
{
    for (int i = 0; i < KR_FIELDS; i++) {
        if (kr_has(p, i) || !kr_has(defaults, i)) {
            continue;
        }
        if (kr_fields[i].type == KR_T_TEXT) {
            char *text = strdup(kr_params_text(defaults, i));
            if (text == NULL) {
                return kr_fail(err, KR_NO_MEMORY, "no memory for %s", kr_fields[i].name);
            }
            *at_text(p, i) = text;
        } else if (kr_fields[i].type == KR_T_REAL) {
            *at_real(p, i) = kr_params_real(defaults, i);
        } else {
            *at_int(p, i) = kr_params_int(defaults, i);
        }
        mark(p, i);
    }
    return 0;
}

int kr_params_copy(struct kr_params *to, const struct kr_params *from, struct kr_err *err)
{
    memset(to, 0, sizeof *to);
    if (kr_params_default(to, from, err) != 0) {
        kr_params_fini(to);
        return -1;
    }
    return 0;
}

/* ---------------------------------------------------------------------------- the refusals --- */

/* An integral range as exact integers: the double above 2^63 - 1 stands for 2^63 - 1. */
static int64_t whole(double bound)
{
    return bound >= 9223372036854775807.0 ? INT64_MAX : (int64_t)bound;
}

/* What a field allows, as the end of a sentence. */
static void allowed(const struct kr_field *f, char *buf, size_t size)
{
    const char *blank = f->unit[0] ? " " : "";
    if (f->type == KR_T_TEXT) {
        snprintf(buf, size, "text of at most %" PRId64 " bytes", whole(f->max));
    } else if (f->type == KR_T_INT) {
        snprintf(buf, size, "an integer from %" PRId64 " to %" PRId64 "%s%s", whole(f->min),
                 whole(f->max), blank, f->unit);
    } else if (f->type == KR_T_REAL) {
        snprintf(buf, size, "a number from %g to %g%s%s", f->min, f->max, blank, f->unit);
    } else if (f->type == KR_T_BOOL) {
        snprintf(buf, size, "true or false");
    } else {
        size_t used = 0;
        for (int i = 0; f->choices[i] != NULL && used < size; i++) {
            const char *link = i == 0 ? "" : f->choices[i + 1] == NULL ? " or " : ", ";
            used += (size_t)snprintf(buf + used, size - used, "%s%s", link, f->choices[i]);
        }
    }
}

static int refuse(const struct kr_field *f, const char *given, struct kr_err *err)
{
    char want[160];
    allowed(f, want, sizeof want);
    return kr_fail(err, KR_BAD_REQUEST, "%s is %s; it must be %s", f->name, given, want);
}

int kr_params_refuse(enum kr_field_id id, const char *given, struct kr_err *err)
{
    return refuse(&kr_fields[id], given, err);
}

static int refuse_text(const struct kr_field *f, const char *text, size_t length,
                       struct kr_err *err)
{
    char quoted[128];
    kr_quote(quoted, sizeof quoted, text, length);
    return refuse(f, quoted, err);
}

/* --------------------------------------------------------------------------------- setting --- */

static int set_choice(struct kr_params *p, enum kr_field_id id, const char *text, size_t length,
                      struct kr_err *err)
{
    const char *const *choices = kr_fields[id].choices;
    for (int i = 0; choices[i] != NULL; i++) {
        if (strlen(choices[i]) == length && memcmp(choices[i], text, length) == 0) {
            *at_int(p, id) = i;
            mark(p, id);
            return 0;
        }
    }
    return refuse_text(&kr_fields[id], text, length, err);
}

int kr_params_set_text(struct kr_params *p, enum kr_field_id id, const char *text, size_t length,
                       struct kr_err *err)
{
    const struct kr_field *f = &kr_fields[id];
    if (f->type == KR_T_CHOICE) {
        return set_choice(p, id, text, length, err);
    }
    if (f->type != KR_T_TEXT) {
        return refuse_text(f, text, length, err);
    }
    if ((double)length > f->max) {
        return kr_fail(err, KR_BAD_REQUEST, "%s has %zu bytes, at most %" PRId64 " are allowed",
                       f->name, length, whole(f->max));
    }
    if (memchr(text, 0, length) != NULL) {
        return kr_fail(err, KR_BAD_REQUEST, "%s contains a NUL character; leave it out", f->name);
    }
    if (!kr_utf8_valid(text, length)) {
        return kr_fail(err, KR_BAD_REQUEST, "%s is not valid UTF-8; convert it first", f->name);
    }
    char *copy = strndup(text, length);
    if (copy == NULL) {
        return kr_fail(err, KR_NO_MEMORY, "no memory for %s", f->name);
    }
    free(*at_text(p, id));
    *at_text(p, id) = copy;
    mark(p, id);
    return 0;
}

int kr_params_set_int(struct kr_params *p, enum kr_field_id id, int64_t value, struct kr_err *err)
{
    const struct kr_field *f = &kr_fields[id];
    if (f->type == KR_T_REAL) {
        return kr_params_set_real(p, id, (double)value, err);
    }
    if (f->type != KR_T_INT || value < whole(f->min) || value > whole(f->max)) {
        char given[32];
        snprintf(given, sizeof given, "%" PRId64, value);
        return refuse(f, given, err);
    }
    *at_int(p, id) = value;
    mark(p, id);
    return 0;
}

/* Without libm, which the client has no other need of. */
bool kr_integral(double value)
{
    return value >= -9223372036854775808.0 && value < 9223372036854775808.0 &&
           value == (double)(int64_t)value;
}

int kr_params_set_real(struct kr_params *p, enum kr_field_id id, double value, struct kr_err *err)
{
    const struct kr_field *f = &kr_fields[id];
    bool integral = kr_integral(value);
    if (f->type == KR_T_INT && integral) {
        return kr_params_set_int(p, id, (int64_t)value, err);
    }
    if (f->type != KR_T_REAL || !(value >= f->min && value <= f->max)) { /* NaN is refused too */
        char given[32];
        snprintf(given, sizeof given, "%.9g", value);
        return refuse(f, given, err);
    }
    *at_real(p, id) = value;
    mark(p, id);
    return 0;
}

int kr_params_set_bool(struct kr_params *p, enum kr_field_id id, bool value, struct kr_err *err)
{
    if (kr_fields[id].type != KR_T_BOOL) {
        return refuse(&kr_fields[id], value ? "true" : "false", err);
    }
    *at_int(p, id) = value;
    mark(p, id);
    return 0;
}

/* --------------------------------------------------------------------------- text to value --- */

static const char *digits(const char *s)
{
    while (*s >= '0' && *s <= '9') {
        s++;
    }
    return s;
}

/* strtoll() and strtod() alone would take blanks, a plus, hexadecimal, "nan" and "inf". */
static bool is_integer(const char *s)
{
    s += *s == '-';
    const char *end = digits(s);
    return end > s && *end == 0;
}

static bool is_decimal(const char *s)
{
    s += *s == '-';
    const char *end = digits(s);
    ptrdiff_t mantissa = end - s;
    if (*end == '.') {
        s = end + 1;
        end = digits(s);
        mantissa += end - s;
    }
    if (mantissa == 0) {
        return false;
    }
    if (*end == 'e' || *end == 'E') {
        s = end + 1;
        s += *s == '-' || *s == '+';
        end = digits(s);
        if (end == s) {
            return false;
        }
    }
    return *end == 0;
}

static int parse_bool(struct kr_params *p, enum kr_field_id id, const char *text,
                      struct kr_err *err)
{
    static const char *const words[] = {"false", "no", "off", "0", "true", "yes", "on", "1"};
    for (int i = 0; i < 8; i++) {
        if (strcmp(text, words[i]) == 0) {
            return kr_params_set_bool(p, id, i >= 4, err);
        }
    }
    return refuse_text(&kr_fields[id], text, strlen(text), err);
}

int kr_params_parse(struct kr_params *p, enum kr_field_id id, const char *text, struct kr_err *err)
{
    const struct kr_field *f = &kr_fields[id];
    size_t length = strlen(text);
    if (f->type == KR_T_TEXT || f->type == KR_T_CHOICE) {
        return kr_params_set_text(p, id, text, length, err);
    }
    if (f->type == KR_T_BOOL) {
        return parse_bool(p, id, text, err);
    }
    if (f->type == KR_T_INT && is_integer(text)) {
        errno = 0;
        long long value = strtoll(text, NULL, 10);
        return errno == 0 ? kr_params_set_int(p, id, value, err)
                          : refuse_text(f, text, length, err);
    }
    if (f->type == KR_T_REAL && is_decimal(text)) {
        double value = strtod(text, NULL); /* the program never leaves the C locale */
        return isfinite(value) ? kr_params_set_real(p, id, value, err)
                               : refuse_text(f, text, length, err);
    }
    return refuse_text(f, text, length, err);
}

int kr_format_real(double value, char *buf, size_t size)
{
    char text[40];
    for (int precision = 15; precision <= 17; precision++) {
        snprintf(text, sizeof text, "%.*g", precision, value);
        if (strtod(text, NULL) == value) {
            break;
        }
    }
    return snprintf(buf, size, "%s", text);
}

int kr_params_format(const struct kr_params *p, enum kr_field_id id, char *buf, size_t size)
{
    const struct kr_field *f = &kr_fields[id];
    if (!kr_has(p, id)) {
        return snprintf(buf, size, "%s", "");
    }
    switch (f->type) {
    case KR_T_TEXT:
    case KR_T_CHOICE:
        return snprintf(buf, size, "%s", kr_params_text(p, id));
    case KR_T_REAL:
        return kr_format_real(kr_params_real(p, id), buf, size);
    case KR_T_BOOL:
        return snprintf(buf, size, "%s", kr_params_int(p, id) ? "true" : "false");
    case KR_T_INT:
        break;
    }
    return snprintf(buf, size, "%" PRId64, kr_params_int(p, id));
}

/* --------------------------------------------------------------------------------- quoting --- */

/* U+0000 to U+001F, U+007F and U+0080 to U+009F: what a terminal may act upon. */
static bool is_control(const unsigned char *s)
{
    return s[0] < 0x20 || s[0] == 0x7f || (s[0] == 0xc2 && s[1] < 0xa0);
}

void kr_quote(char *buf, size_t size, const char *text, size_t length)
{
    enum { SHOWN = 48 }; /* bytes; a mistyped value is shorter, and of a pasted one it is enough */
    assert(size >= 16);
    size_t used = 0, i = 0;
    buf[used++] = '"';
    while (i < length && i < SHOWN && used + 12 < size) {
        const unsigned char *s = (const unsigned char *)text + i;
        size_t n = kr_utf8_decode(text + i, length - i, NULL);
        if (n == 0 || is_control(s)) {
            used += (size_t)snprintf(buf + used, size - used, "\\x%02x", *s);
            i += 1;
        } else {
            memcpy(buf + used, s, n);
            used += n;
            i += n;
        }
    }
    snprintf(buf + used, size - used, "%s\"", i < length ? "..." : "");
}
