/* SPDX-License-Identifier: Apache-2.0
 *
 * One line on a terminal that is drawn again and again: queue position, stage, steps, time left.
 */
#ifndef KR_CLIENT_PROGRESS_H
#define KR_CLIENT_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "proto/message.h"

enum { PROGRESS_TICK = 500 }; /* milliseconds between two drawings while nothing happens */

struct progress {
    FILE *out;     /* NULL: nothing is shown */
    int shown;     /* columns of the line on the screen */
    int64_t heard; /* when the last report came, monotonic milliseconds */
    char state[16], stage[24];
    int64_t job, position, step, steps, image, count;
    double remaining, wait; /* seconds when it came; negative: not known */
};

/* Shows on `out` if that is a terminal and `wanted`. */
void progress_init(struct progress *p, FILE *out, bool wanted);
void progress_report(struct progress *p, const struct kr_value *map); /* a progress notification */
void progress_draw(struct progress *p);
void progress_clear(struct progress *p);     /* before anything else is printed */
int progress_tick(const struct progress *p); /* how long a wait may last: PROGRESS_TICK or -1 */

#endif
