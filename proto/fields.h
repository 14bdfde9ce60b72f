/* SPDX-License-Identifier: Apache-2.0
 *
 * The field table: every generation value there is, once, with its name, type, unit, range and
 * help. The decoder and the validator of requests, the config file's generation defaults, the
 * options of kreactl, the HTTP shim's mapping and the manual all follow from it.
 */
#ifndef KR_PROTO_FIELDS_H
#define KR_PROTO_FIELDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/err.h"

enum kr_field_id {
    KR_F_PROMPT,
    KR_F_NEGATIVE,
    KR_F_WIDTH,
    KR_F_HEIGHT,
    KR_F_STEPS,
    KR_F_CFG,
    KR_F_SEED,
    KR_F_COUNT,
    KR_F_MU,
    KR_F_SHIFT_Y1,
    KR_F_SHIFT_Y2,
    KR_F_RNG,
    KR_F_DIALECT,
    KR_F_PREVIEW,
    KR_F_DETACH,
    KR_FIELDS
};

enum kr_field_type { KR_T_TEXT, KR_T_INT, KR_T_REAL, KR_T_CHOICE, KR_T_BOOL };

enum kr_rng { KR_RNG_CUDA, KR_RNG_CPU }; /* order of the table's choices */
enum kr_dialect { KR_DIALECT_KREA, KR_DIALECT_COMFYUI };

struct kr_field {
    const char *name; /* as in a request and in the config: "shift_y1" */
    enum kr_field_type type;
    const char *unit;           /* "pixels", "" where there is none */
    double min, max;            /* inclusive; of a text: bytes */
    const char *const *choices; /* NULL-terminated, for KR_T_CHOICE */
    const char *fallback;       /* what happens without it, for the manual: "8 (turbo), 52 (raw)" */
    const char *help;           /* one line */
    bool in_config;             /* may stand in [generation] and in a profile */
    size_t offset;              /* of the value in struct kr_params */
};

/* The values of one request, or of one layer of defaults. Only values whose bit is in `set` count.
 * Texts are owned: kr_params_fini() frees them. */
struct kr_params {
    uint32_t set; /* of kr_bit() */
    char *prompt, *negative;
    int64_t width, height, steps, seed, count, preview;
    double cfg, mu, shift_y1, shift_y2;
    int64_t rng, dialect;
    int64_t detach; /* 0 or 1 */
};

extern const struct kr_field kr_fields[KR_FIELDS];

const struct kr_field *kr_field_find(const char *name, size_t length); /* NULL: no such field */

static inline uint32_t kr_bit(enum kr_field_id id)
{
    return UINT32_C(1) << id;
}

static inline bool kr_has(const struct kr_params *p, enum kr_field_id id)
{
    return p->set >> id & 1;
}

/* The value of a field, set or not, by what its type keeps: _int also for KR_T_BOOL and the number
 * of a KR_T_CHOICE, _text also for the word of a KR_T_CHOICE. A text is p's, NULL if never set. */
int64_t kr_params_int(const struct kr_params *p, enum kr_field_id id);
double kr_params_real(const struct kr_params *p, enum kr_field_id id);
const char *kr_params_text(const struct kr_params *p, enum kr_field_id id);

void kr_params_fini(struct kr_params *p);
int kr_params_copy(struct kr_params *to, const struct kr_params *from, struct kr_err *err);

/* Values of `defaults` for the fields that p does not set. */
int kr_params_default(struct kr_params *p, const struct kr_params *defaults, struct kr_err *err);

/* Sets one field from a text (command line, config file), checked against type and range. The error
 * names the field, what was given and what is allowed. */
int kr_params_parse(struct kr_params *p, enum kr_field_id id, const char *text, struct kr_err *err);

/* Sets one field from a typed value, checked the same way. _text is for KR_T_TEXT and KR_T_CHOICE
 * and wants valid UTF-8 without NUL; an integer does for a real and the other way round. */
int kr_params_set_text(struct kr_params *p, enum kr_field_id id, const char *text, size_t length,
                       struct kr_err *err);
int kr_params_set_int(struct kr_params *p, enum kr_field_id id, int64_t value, struct kr_err *err);
int kr_params_set_real(struct kr_params *p, enum kr_field_id id, double value, struct kr_err *err);
int kr_params_set_bool(struct kr_params *p, enum kr_field_id id, bool value, struct kr_err *err);

/* The refusal that the setters use: "steps is a list; it must be an integer from 1 to 1000". */
int kr_params_refuse(enum kr_field_id id, const char *given, struct kr_err *err);

/* The value as text (what kr_params_parse() reads back to the same value), snprintf-like. */
int kr_params_format(const struct kr_params *p, enum kr_field_id id, char *buf, size_t size);

bool kr_integral(double value); /* has the value of some int64_t */

/* The shortest of the usual precisions that reads back to the same number, snprintf-like. */
int kr_format_real(double value, char *buf, size_t size);

/* Somebody's text in double quotes, for the middle of a sentence: cut after some fifty bytes, with
 * control characters and invalid bytes written as \xNN. size >= 16. */
void kr_quote(char *buf, size_t size, const char *text, size_t length);

#endif
