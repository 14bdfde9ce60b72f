/* SPDX-License-Identifier: Apache-2.0
 *
 * Weights on the device. They are copied from their files' mappings in the type that the file has:
 * at first use and for good (resident), at first use until the stage ends (cached), or through a
 * ring (stream: ring.cu).
 *
 * All copies go over the copy stream and run ahead of their use, so that the device computes with
 * one weight while the next ones come. Of kept weights each has memory of its own, so one wait is
 * enough: the compute stream's for the copy of what it is about to read. Copies end in the order
 * that they were queued in; hence what it has waited for covers all older ones. No more than a few
 * are under way, because a cancelled job has to wait for them.
 *
 * What runs ahead has to know what comes. Planning runs the same forward, and tells of each weight
 * in its order; beyond that, each weight remembers which one came after it the last time. So a
 * prompt that is recalled instead of encoded, a second pass for guidance or another picture cost a
 * wait at the place where they differ from the plan, once, and nothing else.
 *
 * A weight is known by its address. So whoever takes files away from under a device, for others to
 * come to lie there, calls kr_device_residency(), which gives all copies back. What it leaves is
 * the plan: the residency is chosen by it.
 */
#include "kernels/cuda/weights.h"

#include <stdlib.h>
#include <string.h>

int cuda_weights_open(struct cuda_device *cuda)
{
    struct cuda_weights *w = (struct cuda_weights *)calloc(1, sizeof *w);
    if (!w) {
        kr_fault_set(&cuda->base, KR_FAULT_NO_MEMORY, "out of memory");
        return -1;
    }
    w->last = w->stage_first = -1;
    cuda->weights = w;
    for (int i = 0; i <= WEIGHTS_AHEAD; i++)
        if (!cuda_ok(cuda, cudaEventCreateWithFlags(&w->copied[i], cudaEventDisableTiming),
                     "cudaEventCreate"))
            return -1;
    return ring_open(cuda) || mappings_open(cuda) ? -1 : 0;
}

/* --------------------------------------------------------------------------- table ------ */

/* All of its parts: where one file was, another may be now. */
static int is_weight(const struct weight *known, const struct weight *w)
{
    return known->made == w->made && known->bytes == w->bytes &&
           !memcmp(known->part, w->part, sizeof w->part);
}

/* The one that is expected comes first. -1: not known yet. */
static int find(const struct cuda_weights *all, const struct weight *w)
{
    int next = all->last >= 0 ? all->list[all->last].next : -1;
    if (next >= 0 && is_weight(&all->list[next], w))
        return next;
    for (int i = 0; i < all->count; i++)
        if (is_weight(&all->list[i], w))
            return i;
    return -1;
}

/* -1: a fault is set. */
static int add(struct cuda_device *cuda, const struct weight *w)
{
    struct cuda_weights *all = cuda->weights;
    if (all->count == all->room) {
        int room = all->room ? 2 * all->room : 256;
        struct weight *list = (struct weight *)realloc(all->list, (size_t)room * sizeof *all->list);
        if (!list) {
            kr_fault_set(&cuda->base, KR_FAULT_NO_MEMORY, "out of memory: no table of weights");
            return -1;
        }
        all->list = list;
        all->room = room;
    }
    all->list[all->count] = *w;
    all->list[all->count].next = -1;
    all->list[all->count].stage = all->stage;
    return all->count++;
}

/* -------------------------------------------------------------------------- planning ------ */

static void count_in(struct tally *t, size_t bytes)
{
    if (cuda_in_slab(bytes))
        t->pieces += cuda_taken(bytes);
    else
        t->blocks += cuda_taken(bytes);
}

size_t weights_total(const struct tally *t)
{
    return t->blocks + cuda_slabs_for(t->pieces);
}

/* A ring has to have room for one weight while the next one comes. */
static void plan_ring(struct cuda_weights *all, size_t bytes)
{
    size_t room = cuda_round_up(bytes, CUDA_ALIGNMENT);
    if (all->pair < all->before + room)
        all->pair = all->before + room;
    all->before = room;
}

static void plan_weight(struct cuda_device *cuda, int number)
{
    struct cuda_weights *all = cuda->weights;
    struct weight *w = &all->list[number];
    if (w->plan != all->plan) {
        w->plan = all->plan;
        w->stage = all->stage;
        count_in(&all->all, w->bytes);
        cuda->base.plan_prepared += w->made ? cuda_taken(w->bytes) : 0;
    }
    if (!w->made && all->stage_first < 0)
        all->stage_first = number;
    if (!w->made)
        plan_ring(all, w->bytes);
    if (w->plan_stage == all->plan_stage)
        return;
    w->plan_stage = all->plan_stage;
    count_in(&all->in_stage, w->bytes);
    if (w->made)
        count_in(&all->made_in_stage, w->bytes);
}

static void plan_stage_end(struct cuda_weights *all)
{
    size_t stage = weights_total(&all->in_stage), made = weights_total(&all->made_in_stage);
    static const struct tally none = {0, 0};
    if (all->most_in_stage < stage)
        all->most_in_stage = stage;
    if (all->most_made < made)
        all->most_made = made;
    if (all->last >= 0 && all->list[all->last].next < 0)
        all->list[all->last].next = all->stage_first; /* steps: a stage mostly comes again */
    all->in_stage = all->made_in_stage = none;
    all->before = 0;
    all->stage_first = all->last = -1;
    all->stage++;
    all->plan_stage++;
}

void cuda_plan_begin(struct kr_device *dev)
{
    struct cuda_weights *all = cuda_of(dev)->weights;
    static const struct tally none = {0, 0};
    cuda_enter(cuda_of(dev));
    all->all = all->in_stage = all->made_in_stage = none;
    all->most_in_stage = all->most_made = all->pair = all->before = 0;
    all->stage_first = all->last = -1;
    all->stage = 0;
    all->plan++;
    all->plan_stage++;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

size_t cuda_plan_weights(const struct kr_device *dev, enum kr_residency residency)
{
    const struct cuda_weights *all = cuda_of(dev)->weights;
    if (residency == KR_RESIDENT)
        return weights_total(&all->all);
    if (residency == KR_CACHED)
        return larger(all->most_in_stage, weights_total(&all->in_stage));
    return all->pair + larger(all->most_made, weights_total(&all->made_in_stage));
}

/* ------------------------------------------------------------------------------ using ------ */

/* Within a stage only: what comes first in the next one is no matter of this one's order. */
static void learn(struct cuda_weights *all, int number)
{
    struct weight *w = &all->list[number];
    if (all->last >= 0 && all->list[all->last].stage == w->stage)
        all->list[all->last].next = number;
    all->last = number;
}

static void *take(struct cuda_device *cuda, struct weight *w)
{
    w->at = cuda_slab_take(cuda, CUDA_WEIGHTS, w->bytes);
    if (!w->at)
        kr_fault_set(&cuda->base, KR_FAULT_NO_MEMORY,
                     "out of memory: the GPU has no %zu bytes left for a weight, beside %zu MiB of "
                     "weights",
                     w->bytes, cuda_weights_held(&cuda->base) >> 20);
    else if (!cuda_in_slab(w->bytes))
        cuda->weights->held += cuda_taken(w->bytes);
    if (w->at && w->made)
        atomic_fetch_add(&cuda->base.prepared, cuda_taken(w->bytes));
    return w->at;
}

static void give(struct cuda_device *cuda, struct weight *w)
{
    if (!w->at)
        return;
    if (!cuda_in_slab(w->bytes))
        cuda->weights->held -= cuda_taken(w->bytes);
    if (w->made)
        atomic_fetch_sub(&cuda->base.prepared, cuda_taken(w->bytes));
    cuda_slab_give(cuda, CUDA_WEIGHTS, w->at);
    w->at = NULL;
}

/* Files that stay are copied once, for which registering them would cost as much as it saves. */
int weights_by_host(struct cuda_device *cuda, const struct weight *w)
{
    int by_host = cuda->weights->residency == KR_RESIDENT;
    for (int i = 0; i < w->parts && !by_host; i++)
        by_host = !mappings_have(cuda, &w->part[i]);
    return by_host;
}

int weights_copy(struct cuda_device *cuda, char *to, const struct weight *w, int by_host)
{
    for (int i = 0; i < w->parts; to += w->part[i++].bytes) {
        const struct weight_part *part = &w->part[i];
        int queued = by_host ? cuda_bring_on(cuda, cuda->copy, to, part->data, part->bytes)
                             : cuda_ok(cuda,
                                       cudaMemcpyAsync(to, part->data, part->bytes,
                                                       cudaMemcpyHostToDevice, cuda->copy),
                                       "a weight's copy to the GPU");
        if (!queued)
            return 0;
    }
    return 1;
}

static cudaEvent_t copied(const struct cuda_weights *all, int64_t copy)
{
    return all->copied[copy % (WEIGHTS_AHEAD + 1)];
}

/* Into memory of its own. 0: a fault, or the job is cancelled. */
static int bring(struct cuda_device *cuda, struct weight *w)
{
    struct cuda_weights *all = cuda->weights;
    char *to = (char *)take(cuda, w);
    if (!to)
        return 0;
    if (!weights_copy(cuda, to, w, weights_by_host(cuda, w)) ||
        !cuda_ok(cuda, cudaEventRecord(copied(all, all->copies + 1), cuda->copy),
                 "cudaEventRecord")) {
        give(cuda, w);
        return 0;
    }
    w->copy = ++all->copies;
    return 1;
}

/* What is queued from here on may read the weight. An event that has gone to a newer copy since is
 * as good. */
static int wait_for(struct cuda_device *cuda, const struct weight *w)
{
    struct cuda_weights *all = cuda->weights;
    if (w->copy <= all->came)
        return 1;
    if (!cuda_ok(cuda, cudaStreamWaitEvent(cuda->stream[0], copied(all, w->copy), 0), "a wait"))
        return 0;
    all->came = w->copy;
    return 1;
}

/* -1: not known. What no job of this plan uses may have gone with its file. */
int weights_next(const struct cuda_weights *all, int number)
{
    int next = all->list[number].next;
    return next >= 0 && all->list[next].plan == all->plan ? next : -1;
}

/* At most two for each that is used: the host may have to copy them itself before it queues what
 * reads that one. */
static void run_ahead(struct cuda_device *cuda, int number)
{
    struct cuda_weights *all = cuda->weights;
    int next = weights_next(all, number);
    for (int ahead = 0, brought = 0; ahead < WEIGHTS_AHEAD && brought < 2 && next >= 0; ahead++) {
        if (!all->list[next].at) {
            if (!bring(cuda, &all->list[next]))
                return;
            brought++;
        }
        next = weights_next(all, next);
    }
}

static const void *kept_weight(struct cuda_device *cuda, int number)
{
    struct weight *w = &cuda->weights->list[number];
    if ((!w->at && !bring(cuda, w)) || !wait_for(cuda, w))
        return NULL;
    run_ahead(cuda, number);
    return w->at;
}

const void *cuda_weight(struct cuda_device *cuda, const struct kr_weight *const *parts, int count)
{
    struct cuda_weights *all = cuda->weights;
    struct weight w = {};
    assert(count > 0 && count <= WEIGHT_PARTS);
    w.parts = count;
    for (int i = 0; i < count; i++) {
        assert(parts[i]->dtype == parts[0]->dtype && parts[i]->in == parts[0]->in);
        w.part[i].data = parts[i]->data;
        w.part[i].bytes = (size_t)(parts[i]->out * parts[i]->in) * kr_dtype_size(parts[i]->dtype);
        w.bytes += w.part[i].bytes;
    }
    int number = find(all, &w);
    if (number < 0)
        number = add(cuda, &w);
    if (number < 0)
        return NULL;
    learn(all, number);
    if (cuda->base.planning)
        plan_weight(cuda, number);
    if (!kr_live(&cuda->base))
        return NULL;
    return all->residency == KR_STREAM ? ring_weight(cuda, number) : kept_weight(cuda, number);
}

void *cuda_made(struct cuda_device *cuda, const void *key, size_t bytes, int *fresh)
{
    struct cuda_weights *all = cuda->weights;
    struct weight w = {};
    w.part[0].data = key;
    w.bytes = bytes;
    w.made = 1;
    int number = find(all, &w);
    *fresh = 1;
    if (number < 0)
        number = add(cuda, &w);
    if (number < 0)
        return NULL;
    if (cuda->base.planning)
        plan_weight(cuda, number);
    if (!kr_live(&cuda->base))
        return NULL;
    *fresh = !all->list[number].at;
    if (!*fresh)
        return all->list[number].at;
    if (cuda->streams > 1)
        cuda_record_failed(cuda); /* a graph would fill it each time */
    return take(cuda, &all->list[number]);
}

void cuda_made_free(struct cuda_device *cuda, const void *key)
{
    struct cuda_weights *all = cuda->weights;
    cuda_enter(cuda);
    for (int i = 0; i < all->count; i++)
        if (all->list[i].made && all->list[i].part[0].data == key)
            give(cuda, &all->list[i]);
}

/* ------------------------------------------------------------------------------ ending ------ */

static void wait_for_all(struct cuda_device *cuda)
{
    cuda_enter(cuda);
    cuda_ok(cuda, cudaStreamSynchronize(cuda->copy), "the GPU's work");
    cuda_ok(cuda, cudaStreamSynchronize(cuda->stream[0]), "the GPU's work");
}

/* What happens to weights when nobody needs them for a while. */
static void let_go(struct cuda_device *cuda, int of_ring_too)
{
    struct cuda_weights *all = cuda->weights;
    wait_for_all(cuda);
    all->came = all->copies;
    cuda_repeats_forget(cuda);
    ring_drop(cuda);
    for (int i = 0; i < all->count; i++)
        give(cuda, &all->list[i]);
    if (of_ring_too)
        ring_close(cuda);
}

void cuda_stage_end(struct kr_device *dev)
{
    struct cuda_device *cuda = cuda_of(dev);
    if (dev->planning)
        plan_stage_end(cuda->weights);
    else if (cuda->weights->residency != KR_RESIDENT)
        let_go(cuda, 0);
    cuda->weights->last = -1;
}

void cuda_residency(struct kr_device *dev, enum kr_residency residency, size_t ring)
{
    struct cuda_device *cuda = cuda_of(dev);
    struct cuda_weights *all = cuda->weights;
    let_go(cuda, 1);
    mappings_close(cuda);
    all->last = -1;
    all->residency = residency;
    all->ring_asked = ring;
    if (ring_open(cuda) == 0)
        mappings_open(cuda);
}

void cuda_weights_close(struct cuda_device *cuda)
{
    if (!cuda->weights)
        return;
    let_go(cuda, 1);
    mappings_close(cuda);
    for (int i = 0; i <= WEIGHTS_AHEAD; i++)
        if (cuda->weights->copied[i])
            (void)cudaEventDestroy(cuda->weights->copied[i]);
    free(cuda->weights->list);
    free(cuda->weights);
    cuda->weights = NULL;
}

size_t cuda_weights_held(const struct kr_device *dev)
{
    const struct cuda_device *cuda = cuda_of(dev);
    return cuda->weights->held + cuda_slabs_held(cuda, CUDA_WEIGHTS) + ring_held(cuda);
}

int cuda_weights_stay(const struct cuda_device *cuda)
{
    return cuda->weights->residency != KR_STREAM;
}
