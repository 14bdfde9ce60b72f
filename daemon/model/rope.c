/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/model/rope.h"

#include <assert.h>
#include <math.h>

enum { HALF = ROPE_MAX_HEAD / 2, CHUNK = 8 * HALF };

/* What turns each pair of a head. */
struct turn {
    int64_t half;
    int axis[HALF];
    double frequency[HALF];
};

static void turns(struct turn *turn, const struct rope_plan *plan)
{
    turn->half = 0;
    for (int a = 0; a < ROPE_AXES; a++) {
        int64_t d = plan->axes[a];

        assert(d % 2 == 0 && turn->half + d / 2 <= HALF);
        for (int64_t k = 0; k < d / 2; k++) {
            turn->axis[turn->half] = a;
            turn->frequency[turn->half++] = pow(plan->theta, -2.0 * (double)k / (double)d);
        }
    }
}

static void turn_token(const struct turn *turn, const int64_t at[ROPE_AXES], float *cos_row,
                       float *sin_row)
{
    for (int64_t k = 0; k < turn->half; k++) {
        double angle = (double)at[turn->axis[k]] * turn->frequency[k];

        cos_row[k] = (float)cos(angle);
        sin_row[k] = (float)sin(angle);
    }
}

struct kr_rope rope_tables(struct kr_device *dev, const struct rope_plan *plan, int64_t n)
{
    struct turn turn;
    float cos_rows[CHUNK],
        sin_rows[CHUNK]; /* some tokens at a time, so that nothing is allocated */
    int64_t at[ROPE_AXES], step;
    struct kr_rope rope = {.pairs = plan->pairs};

    turns(&turn, plan);
    step = CHUNK / turn.half;
    rope.cos = kr_new(dev, KR_F32, n, turn.half, 0, 0);
    rope.sin = kr_new(dev, KR_F32, n, turn.half, 0, 0);
    for (int64_t first = 0; first < n; first += step) {
        int64_t count = n - first < step ? n - first : step;

        for (int64_t i = 0; i < count; i++) {
            plan->place(plan->of, first + i, at);
            turn_token(&turn, at, cos_rows + i * turn.half, sin_rows + i * turn.half);
        }
        kr_upload(dev, kr_slice(rope.cos, first, count), cos_rows);
        kr_upload(dev, kr_slice(rope.sin, first, count), sin_rows);
    }
    return rope;
}
