/* SPDX-License-Identifier: Apache-2.0
 *
 * Weights that stream: a ring of device memory, filled by the copy stream as far ahead of the
 * compute stream as there is room, in the order that weights.cu knows.
 *
 * Two waits keep the streams apart, both queued on the device: the compute stream waits for the
 * event behind a weight's copy before it reads it, and the copy stream, before it writes where an
 * older weight was, for the event behind the last operation that read that. The host waits for
 * neither where files can be copied from where they are. Where they can't, it copies them into
 * pinned buffers itself, and then only runs ahead into room that is free already.
 *
 * Slots are taken at the end and given up at the beginning. A slot's weight is coming or has come,
 * then is in use until the next one is asked for, then is done with. If another weight is asked for
 * than the one that is next, it may still be among those that come: those before it are dropped. If
 * not, all are, and it is fetched at once.
 */
#include "kernels/cuda/weights.h"

#include <stdlib.h>

enum {
    SLOTS = 64,
    PUMPED_BY_HOST = 2 /* weights that the host copies ahead before the device gets new work */
};

enum slot_state { COMING, IN_USE, DONE };

struct slot {
    int number; /* of the weight */
    size_t at, size;
    enum slot_state state;
    int was_read; /* `read` was recorded */
    cudaEvent_t came, read;
};

struct ring {
    char *base; /* NULL until the first weight streams */
    size_t size;
    struct slot slot[SLOTS];
    int first, count; /* in order from slot[first] on */
    int ahead;        /* the weight that was copied last; -1 */
};

int ring_open(struct cuda_device *cuda)
{
    struct ring *ring = (struct ring *)calloc(1, sizeof *ring);
    if (!ring) {
        kr_fault_set(&cuda->base, KR_FAULT_NO_MEMORY, "out of memory");
        return -1;
    }
    ring->ahead = -1;
    cuda->weights->ring = ring;
    for (int i = 0; i < SLOTS; i++)
        if (!cuda_ok(cuda, cudaEventCreateWithFlags(&ring->slot[i].came, cudaEventDisableTiming),
                     "cudaEventCreate") ||
            !cuda_ok(cuda, cudaEventCreateWithFlags(&ring->slot[i].read, cudaEventDisableTiming),
                     "cudaEventCreate"))
            return -1;
    return 0;
}

void ring_close(struct cuda_device *cuda)
{
    struct ring *ring = cuda->weights->ring;
    if (!ring)
        return;
    for (int i = 0; i < SLOTS; i++) {
        if (ring->slot[i].came)
            (void)cudaEventDestroy(ring->slot[i].came);
        if (ring->slot[i].read)
            (void)cudaEventDestroy(ring->slot[i].read);
    }
    cuda_give(cuda, ring->base);
    free(ring);
    cuda->weights->ring = NULL;
}

void ring_drop(struct cuda_device *cuda)
{
    struct ring *ring = cuda->weights->ring;
    if (!ring)
        return;
    ring->first = ring->count = 0;
    ring->ahead = -1;
}

size_t ring_held(const struct cuda_device *cuda)
{
    const struct ring *ring = cuda->weights->ring;
    return ring && ring->base ? ring->size : 0;
}

/* What the owner gave, less what stays beside the ring while a stage runs. */
static int have_memory(struct cuda_device *cuda)
{
    struct cuda_weights *all = cuda->weights;
    struct ring *ring = all->ring;
    if (ring->base)
        return 1;
    size_t made = weights_total(&all->made_in_stage);
    made = made > all->most_made ? made : all->most_made;
    ring->size = all->ring_asked > made ? all->ring_asked - made : 0;
    ring->size -= ring->size % CUDA_ALIGNMENT;
    ring->base = ring->size ? (char *)cuda_take(cuda, ring->size) : NULL;
    if (!ring->base)
        kr_fault_set(&cuda->base, KR_FAULT_NO_MEMORY,
                     "out of memory: the GPU has no %zu MiB left for the ring that weights stream "
                     "through",
                     ring->size >> 20);
    return ring->base != NULL;
}

static struct slot *slot_at(struct ring *ring, int i)
{
    return &ring->slot[(ring->first + i) % SLOTS];
}

/* Room behind the newest slot, or from the ring's beginning. */
static int place(struct ring *ring, size_t size, size_t *at)
{
    if (ring->count == SLOTS)
        return 0;
    *at = 0;
    if (ring->count == 0)
        return size <= ring->size;
    size_t oldest = slot_at(ring, 0)->at;
    const struct slot *newest = slot_at(ring, ring->count - 1);
    *at = newest->at + newest->size;
    if (newest->at < oldest)
        return *at + size <= oldest;
    if (*at + size <= ring->size)
        return 1;
    *at = 0;
    return size <= oldest;
}

/* Gives up the oldest slot; what is copied from here on comes after the reading of it. by_host: the
 * host is about to fill it and must not be kept waiting, unless the weight is needed now. */
static int retire(struct cuda_device *cuda, int by_host, int needed)
{
    struct ring *ring = cuda->weights->ring;
    struct slot *oldest = slot_at(ring, 0);
    if (ring->count == 0 || oldest->state != DONE)
        return 0;
    if (oldest->was_read) {
        if (by_host && !needed && cudaEventQuery(oldest->read) != cudaSuccess) {
            (void)cudaGetLastError(); /* not yet */
            return 0;
        }
        if (!cuda_ok(cuda, cudaStreamWaitEvent(cuda->copy, oldest->read, 0), "a wait"))
            return 0;
    }
    ring->first = (ring->first + 1) % SLOTS;
    ring->count--;
    return 1;
}

/* Copies a weight into a new slot, the newest. NULL: no room, or a fault. */
static struct slot *bring(struct cuda_device *cuda, int number, int by_host, int needed)
{
    struct ring *ring = cuda->weights->ring;
    const struct weight *w = &cuda->weights->list[number];
    size_t at, size = cuda_round_up(w->bytes, CUDA_ALIGNMENT);
    while (!place(ring, size, &at))
        if (!retire(cuda, by_host, needed))
            return NULL;
    struct slot *slot = slot_at(ring, ring->count);
    if (!weights_copy(cuda, ring->base + at, w, by_host) ||
        !cuda_ok(cuda, cudaEventRecord(slot->came, cuda->copy), "cudaEventRecord"))
        return NULL;
    slot->number = number;
    slot->at = at;
    slot->size = size;
    slot->state = COMING;
    slot->was_read = 0;
    ring->count++;
    ring->ahead = number;
    return slot;
}

/* The weight in use was read by what has been queued since. */
static void end_use(struct cuda_device *cuda)
{
    struct ring *ring = cuda->weights->ring;
    for (int i = 0; i < ring->count; i++) {
        struct slot *slot = slot_at(ring, i);
        if (slot->state != IN_USE)
            continue;
        slot->state = DONE;
        slot->was_read = cuda_ok(cuda, cudaEventRecord(slot->read, cuda->stream[0]), "a mark");
    }
}

static const struct slot *in_use(struct ring *ring)
{
    for (int i = 0; i < ring->count; i++)
        if (slot_at(ring, i)->state == IN_USE)
            return slot_at(ring, i);
    return NULL;
}

/* Drops what comes before `number`, or all that comes. NULL: it does not. */
static struct slot *skip_to(struct ring *ring, int number)
{
    for (int i = 0; i < ring->count; i++) {
        struct slot *slot = slot_at(ring, i);
        if (slot->state == COMING && slot->number == number)
            return slot;
        slot->state = DONE;
    }
    return NULL;
}

static int is_there(struct ring *ring, int number)
{
    for (int i = 0; i < ring->count; i++)
        if (slot_at(ring, i)->number == number && slot_at(ring, i)->state != DONE)
            return 1;
    return 0;
}

/* As many of the next weights as there is room for. */
static void run_ahead(struct cuda_device *cuda)
{
    const struct cuda_weights *all = cuda->weights;
    for (int by_the_host = 0; by_the_host < PUMPED_BY_HOST;) {
        int next = all->ring->ahead >= 0 ? weights_next(all, all->ring->ahead) : -1;
        if (next < 0 || is_there(all->ring, next))
            return;
        int by_host = weights_by_host(cuda, &all->list[next]);
        if (!bring(cuda, next, by_host, 0))
            return;
        by_the_host += by_host;
    }
}

static void does_not_fit(struct cuda_device *cuda, const struct weight *w)
{
    kr_fault_set(&cuda->base, KR_FAULT_NO_MEMORY,
                 "out of memory: a weight of %zu bytes does not fit the ring of %zu that weights "
                 "stream through",
                 w->bytes, cuda->weights->ring->size);
}

const void *ring_weight(struct cuda_device *cuda, int number)
{
    struct cuda_weights *all = cuda->weights;
    struct ring *ring = all->ring;
    const struct weight *w = &all->list[number];
    if (!have_memory(cuda))
        return NULL;
    const struct slot *current = in_use(ring);
    if (current && current->number == number)
        return ring->base + current->at;
    end_use(cuda);
    struct slot *slot = skip_to(ring, number);
    if (!slot)
        slot = bring(cuda, number, weights_by_host(cuda, w), 1);
    if (!slot) {
        does_not_fit(cuda, w); /* unless that went wrong otherwise */
        return NULL;
    }
    slot->state = IN_USE;
    if (!cuda_ok(cuda, cudaStreamWaitEvent(cuda->stream[0], slot->came, 0), "a wait"))
        return NULL;
    run_ahead(cuda);
    return ring->base + slot->at;
}
