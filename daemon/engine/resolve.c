/* SPDX-License-Identifier: Apache-2.0
 *
 * From what a request says to what will be done. The layers are: request, profile, [generation],
 * variant, architecture; a higher one wins, value by value. One pair of values is coupled: mu, and
 * the ends of the line that mu otherwise follows. Whoever sets an end of the line means the line,
 * so a mu from a lower layer no longer counts; where one layer sets both, mu counts.
 *
 * Called by the loop thread while the worker may be running a job: reads what engine_open() fixed,
 * and plans under the planner's lock.
 */
#include "daemon/engine/internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

/* ------------------------------------------------------------------------ layers ------ */

static int add_layer(struct kr_params *p, const struct kr_params *layer, struct kr_err *err)
{
    struct kr_params rest = *layer; /* borrows the texts */

    if (kr_has(p, KR_F_SHIFT_Y1) || kr_has(p, KR_F_SHIFT_Y2))
        rest.set &= ~kr_bit(KR_F_MU);
    if (kr_has(p, KR_F_MU))
        rest.set &= ~(kr_bit(KR_F_SHIFT_Y1) | kr_bit(KR_F_SHIFT_Y2));
    return kr_params_default(p, &rest, err);
}

/* All layers below the request. */
int resolve_defaults(const struct engine *e, struct kr_params *p, struct kr_err *err)
{
    if (add_layer(p, &e->profile_defaults, err) < 0 ||
        add_layer(p, &e->generation_defaults, err) < 0)
        return -1;
    if (!kr_has(p, KR_F_NEGATIVE) && kr_params_set_text(p, KR_F_NEGATIVE, "", 0, err) < 0)
        return -1;
    if (!kr_has(p, KR_F_PROMPT) && kr_params_set_text(p, KR_F_PROMPT, "", 0, err) < 0)
        return -1;
    if (!kr_has(p, KR_F_DIALECT)) {
        p->dialect = KR_DIALECT_KREA;
        p->set |= kr_bit(KR_F_DIALECT);
    }
    e->family->defaults(e->variant, p);
    return 0;
}

/* ---------------------------------------------------------------------- warnings ------ */

struct warning {
    char *text;
    size_t size, used;
};

__attribute__((format(printf, 2, 3))) static void warn(struct warning *w, const char *format, ...)
{
    va_list args;
    int n;

    if (w->used + 3 >= w->size)
        return;
    if (w->used)
        w->used += (size_t)snprintf(w->text + w->used, w->size - w->used, "; ");
    va_start(args, format);
    n = vsnprintf(w->text + w->used, w->size - w->used, format, args);
    va_end(args);
    w->used = w->used + (size_t)n < w->size ? w->used + (size_t)n : w->size - 1;
}

/* ------------------------------------------------------------------------ values ------ */

static void round_up(int64_t *value, const char *name, int64_t grid, struct warning *warning)
{
    int64_t rounded = (*value + grid - 1) / grid * grid;

    if (rounded == *value)
        return;
    warn(warning, "%s %" PRId64 " was rounded up to %" PRId64 ", a multiple of %" PRId64, name,
         *value, rounded, grid);
    *value = rounded;
}

static int check_limit(const char *name, int64_t value, int64_t limit, struct kr_err *err)
{
    if (limit == 0 || value <= limit)
        return 0;
    return kr_fail(err, KR_BAD_REQUEST,
                   "%s is %" PRId64 "; the owner of this daemon allows at most %" PRId64, name,
                   value, limit);
}

static int check_limits(const struct engine *e, const struct kr_params *p, struct kr_err *err)
{
    if (check_limit("steps", p->steps, e->max_steps, err) < 0 ||
        check_limit("count", p->count, e->max_count, err) < 0)
        return -1;
    if (e->max_pixels && p->width * p->height > e->max_pixels)
        return kr_fail(err, KR_BAD_REQUEST,
                       "%" PRId64 "x%" PRId64 " are %" PRId64 " pixels; the owner of this daemon "
                       "allows at most %" PRId64,
                       p->width, p->height, p->width * p->height, e->max_pixels);
    return 0;
}

/* Random seeds have 32 bits: people copy them, and programs on the way keep them in a double. */
static int choose_seed(struct kr_params *p, struct kr_err *err)
{
    uint32_t random;

    if (kr_has(p, KR_F_SEED) && p->seed >= 0) {
        if (p->seed > INT64_MAX - (p->count - 1))
            return kr_fail(err, KR_BAD_REQUEST,
                           "picture %" PRId64 " of %" PRId64 " would need a seed beyond 2^63 - 1; "
                           "lower seed or count",
                           INT64_MAX - p->seed + 2, p->count);
        return 0;
    }
    if (getrandom(&random, sizeof(random), 0) != (ssize_t)sizeof(random))
        return kr_fail(err, KR_IO, "no random seed could be had from the kernel: %s; give one",
                       strerror(errno));
    p->seed = random;
    p->set |= kr_bit(KR_F_SEED);
    return 0;
}

static void settle_mu(const struct engine *e, struct kr_params *p, struct warning *warning)
{
    bool line = kr_has(p, KR_F_SHIFT_Y1) && kr_has(p, KR_F_SHIFT_Y2);
    double mu = line ? e->family->mu(p, p->width * p->height / (e->dims.grid * e->dims.grid)) : 0;

    if (!kr_has(p, KR_F_MU)) {
        p->mu = mu;
        p->set |= kr_bit(KR_F_MU);
    } else if (kr_has(p, KR_F_SHIFT_Y1) || kr_has(p, KR_F_SHIFT_Y2)) {
        if (!line || mu != p->mu)
            warn(warning, "mu is given, so shift_y1 and shift_y2 have no effect");
    }
}

/* Called while the request is planned, when its ids are known. */
static void warn_of_cuts(const struct work *w, void *user)
{
    static const char *const names[SIDES] = {"prompt", "negative prompt"};
    long long limit = (long long)w->family->prompt_limit((enum kr_dialect)w->p->dialect);

    for (int side = 0; side < w->sides; side++)
        if (w->prompt[side].cut)
            warn(user, "the last %zu tokens of the %s were cut off, %lld is the limit",
                 w->prompt[side].cut, names[side], limit);
}

int resolve_request(const struct engine *e, struct kr_params *p, char *warning, size_t size,
                    struct plan *plan, struct kr_err *err)
{
    struct warning w = {warning, size, 0};
    bool negative = p->negative && p->negative[0]; /* of the request itself */

    if (size)
        warning[0] = '\0';
    if (!kr_has(p, KR_F_PROMPT))
        return kr_fail(err, KR_BAD_REQUEST, "prompt is missing; it may be empty, not left out");
    if (resolve_defaults(e, p, err) < 0)
        return -1;
    round_up(&p->width, "width", e->dims.grid, &w);
    round_up(&p->height, "height", e->dims.grid, &w);
    if (negative && p->cfg == 0)
        warn(&w, "negative has no effect while cfg is 0");
    settle_mu(e, p, &w);
    if (check_limits(e, p, err) < 0 || choose_seed(p, err) < 0)
        return -1;
    return plan_request(e, p, plan, warn_of_cuts, &w, err);
}

int engine_resolve(const struct engine *e, struct kr_params *p, char *warning, size_t size,
                   struct kr_err *err)
{
    struct plan plan;

    return resolve_request(e, p, warning, size, &plan, err);
}
