/* SPDX-License-Identifier: Apache-2.0
 *
 * What past jobs took: percentiles of the stages for `status`, and the rate from which the waiting
 * time of queued jobs is estimated. Kept are the last FIGURES_WINDOW jobs that ended well.
 */
#ifndef KR_FIGURES_H
#define KR_FIGURES_H

#include <stddef.h>
#include <stdint.h>

#include "proto/fields.h"

enum { FIGURES_WINDOW = 256, FIGURES_RATES = 31 };

enum figure {
    FIGURE_QUEUED, /* from the submission to the start */
    FIGURE_ENCODE,
    FIGURE_DENOISE,
    FIGURE_DECODE,
    FIGURE_PNG,
    FIGURE_TOTAL, /* from the submission to the end */
    FIGURES
};
extern const char *const figure_names[FIGURES];

struct figures {
    double seconds[FIGURES][FIGURES_WINDOW];
    double rate[FIGURES_RATES]; /* seconds of the whole job for a unit of work */
    uint64_t jobs;              /* ever added */
};

/* `running` is what the job took from its start to its end. */
void figures_add(struct figures *f, const struct kr_params *p, const double seconds[FIGURES],
                 double running);

size_t figures_count(const struct figures *f); /* of the jobs in the window */

/* The smallest value that at least `share` of the window's jobs kept to; 0 where there are none. */
double figures_percentile(const struct figures *f, enum figure figure, double share);

/* How long a job like that will probably run: its work (pixels x steps x pictures, twice with
 * guidance) at the median rate of the last jobs. Below 0: nothing was measured yet. */
double figures_estimate(const struct figures *f, const struct kr_params *p);

#endif
