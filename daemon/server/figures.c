/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/figures.h"

#include <stdlib.h>
#include <string.h>

const char *const figure_names[FIGURES] = {"queued", "encode", "denoise", "decode", "png", "total"};

static double work_of(const struct kr_params *p)
{
    return (double)p->width * (double)p->height * (double)p->steps * (double)p->count *
           (p->cfg > 0 ? 2 : 1);
}

void figures_add(struct figures *f, const struct kr_params *p, const double seconds[FIGURES],
                 double running)
{
    for (int i = 0; i < FIGURES; i++)
        f->seconds[i][f->jobs % FIGURES_WINDOW] = seconds[i];
    f->rate[f->jobs % FIGURES_RATES] = running / work_of(p);
    f->jobs++;
}

size_t figures_count(const struct figures *f)
{
    return f->jobs < FIGURES_WINDOW ? (size_t)f->jobs : FIGURES_WINDOW;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* By nearest rank. */
static double rank(const double *values, size_t count, double share)
{
    double sorted[FIGURES_WINDOW];
    if (count == 0)
        return 0;
    memcpy(sorted, values, count * sizeof *values);
    qsort(sorted, count, sizeof *sorted, ascending);
    size_t at = (size_t)(share * (double)count);
    at += (double)at < share * (double)count; /* rounded up */
    return sorted[at > 0 ? at - 1 : 0];
}

double figures_percentile(const struct figures *f, enum figure figure, double share)
{
    return rank(f->seconds[figure], figures_count(f), share);
}

double figures_estimate(const struct figures *f, const struct kr_params *p)
{
    size_t count = f->jobs < FIGURES_RATES ? (size_t)f->jobs : FIGURES_RATES;
    return count ? rank(f->rate, count, 0.5) * work_of(p) : -1;
}
