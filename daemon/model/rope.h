/* SPDX-License-Identifier: Apache-2.0
 *
 * Tables of rotary positions. A head's rotation pairs are divided among up to three axes; pair k of
 * an axis with d elements turns by position * theta^(-2k / d). Private to this room.
 */
#ifndef KR_MODEL_ROPE_H
#define KR_MODEL_ROPE_H

#include <stdint.h>

#include "kernels/kernels.h"

enum { ROPE_AXES = 3, ROPE_MAX_HEAD = 1024 };

struct rope_plan {
    int64_t axes[ROPE_AXES]; /* elements of the head for each axis; their sum is the head */
    double theta;
    enum kr_rope_pairs pairs;
    /* Where token i lies. */
    void (*place)(const void *of, int64_t i, int64_t at[ROPE_AXES]);
    const void *of;
};

/* Tables for tokens 0..n-1 in the job's arena. Angles are computed in F64 and kept as F32. */
struct kr_rope rope_tables(struct kr_device *dev, const struct rope_plan *plan, int64_t n);

#endif
