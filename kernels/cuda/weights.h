/* SPDX-License-Identifier: Apache-2.0
 *
 * Between weights.cu, ring.cu and mappings.cu: what is known of a weight, and who has its copy.
 */
#ifndef KR_CUDA_WEIGHTS_H
#define KR_CUDA_WEIGHTS_H

#include "kernels/cuda/cuda.h"

enum {
    WEIGHT_PARTS = 8,
    WEIGHTS_AHEAD = 4 /* of the one in use, where there is no ring */
};

struct weight_part {
    const void *data; /* in a file's mapping */
    size_t bytes;
};

/* Known by the address and the size of what it is made from. */
struct weight {
    struct weight_part part[WEIGHT_PARTS];
    int parts;
    size_t bytes;
    int made;                  /* cuda_made() */
    void *at;                  /* its piece of device memory, outside the ring */
    int64_t copy;              /* the number of the copy that filled it, from 1 on */
    int stage;                 /* of the plan; weights of one stage follow each other */
    int next;                  /* the one that was used after it the last time; -1: none yet */
    unsigned plan, plan_stage; /* the last plan, and stage, that counted it */
};

/* Bytes of blocks and of pieces of slabs. */
struct tally {
    size_t blocks, pieces;
};

struct cuda_weights {
    enum kr_residency residency;
    size_t ring_asked;
    struct weight *list;
    int count, room;
    int last; /* used last, or planned last; -1 */
    size_t held;

    int64_t copies, came; /* of kept weights: queued, and what the compute stream comes behind */
    cudaEvent_t copied[WEIGHTS_AHEAD + 1]; /* the nth copy; in turn */

    int stage, stage_first; /* of the plan that goes on; first weight, -1: none yet */
    unsigned plan, plan_stage;
    struct tally all, in_stage, made_in_stage;
    size_t most_in_stage, most_made, pair, before;

    struct ring *ring;
    struct mappings *mappings;
};

/* weights.cu. weights_copy() queues on the copy stream. by_host: through pinned buffers, because
 * the weight can't be copied, or isn't to be, from where it is. */
size_t weights_total(const struct tally *t);
int weights_next(const struct cuda_weights *all, int number); /* used after it, as far as known */
int weights_by_host(struct cuda_device *cuda, const struct weight *w);
int weights_copy(struct cuda_device *cuda, char *to, const struct weight *w, int by_host);

/* ring.cu. A weight's place there is good until the next call. */
int ring_open(struct cuda_device *cuda);
void ring_close(struct cuda_device *cuda);
void ring_drop(struct cuda_device *cuda); /* after both streams have been waited for */
const void *ring_weight(struct cuda_device *cuda, int number);
size_t ring_held(const struct cuda_device *cuda);

/* mappings.cu: whether these bytes can be copied where they are, which is found out, and seen to,
 * when it is asked first. */
int mappings_open(struct cuda_device *cuda);
void mappings_close(struct cuda_device *cuda);
int mappings_have(struct cuda_device *cuda, const struct weight_part *part);

#endif
