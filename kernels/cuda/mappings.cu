/* SPDX-License-Identifier: Apache-2.0
 *
 * Files that the GPU may copy from where they are mapped. Registering pins pages, so it is done
 * once for a whole run of weights that lie together, and for no more than half of the machine's
 * memory. Whatever CUDA says no to (old drivers, odd file systems) goes through pinned buffers
 * instead; no is asked for once.
 */
#include "kernels/cuda/weights.h"

#include <stdlib.h>
#include <unistd.h>

enum { RANGES = 64 };

static const uintptr_t gap = (uintptr_t)1 << 20; /* between weights that lie together */

struct range {
    uintptr_t begin, end; /* whole pages */
    int registered;
};

struct mappings {
    struct range range[RANGES];
    int count;
    size_t bytes; /* registered */
};

int mappings_open(struct cuda_device *cuda)
{
    cuda->weights->mappings = (struct mappings *)calloc(1, sizeof(struct mappings));
    if (cuda->weights->mappings)
        return 0;
    kr_fault_set(&cuda->base, KR_FAULT_NO_MEMORY, "out of memory");
    return -1;
}

void mappings_close(struct cuda_device *cuda)
{
    struct mappings *m = cuda->weights->mappings;
    for (int i = 0; m && i < m->count; i++)
        if (m->range[i].registered)
            (void)cudaHostUnregister((void *)m->range[i].begin);
    free(m);
    cuda->weights->mappings = NULL;
}

static struct range pages_of(const struct weight_part *part)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)part->data;
    struct range r = {at / page * page, (at + part->bytes + page - 1) / page * page, 0};
    return r;
}

/* Grows by what touches it or nearly does. */
static int join(struct range *r, const struct range *by)
{
    if (by->begin > r->end + gap || by->end + gap < r->begin ||
        (by->begin >= r->begin && by->end <= r->end))
        return 0;
    r->begin = by->begin < r->begin ? by->begin : r->begin;
    r->end = by->end > r->end ? by->end : r->end;
    return 1;
}

/* All planned weights that lie together with this part. */
static struct range together(const struct cuda_weights *all, const struct weight_part *part)
{
    struct range r = pages_of(part);
    for (int grown = 1; grown;) {
        grown = 0;
        for (int i = 0; i < all->count; i++)
            for (int k = 0; all->list[i].plan == all->plan && k < all->list[i].parts; k++) {
                struct range by = pages_of(&all->list[i].part[k]);
                grown |= join(&r, &by);
            }
    }
    return r;
}

static int try_to_register(struct cuda_device *cuda, const struct range *r)
{
    struct mappings *m = cuda->weights->mappings;
    size_t bytes = r->end - r->begin;
    size_t machine = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    if (!cuda->reads_mappings || bytes > machine / 2 || m->bytes > machine / 2 - bytes)
        return 0;
    if (cudaHostRegister((void *)r->begin, bytes, cudaHostRegisterReadOnly) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    m->bytes += bytes;
    return 1;
}

int mappings_have(struct cuda_device *cuda, const struct weight_part *part)
{
    struct mappings *m = cuda->weights->mappings;
    uintptr_t at = (uintptr_t)part->data;
    for (int i = 0; i < m->count; i++)
        if (at >= m->range[i].begin && at + part->bytes <= m->range[i].end)
            return m->range[i].registered;
    if (m->count == RANGES)
        return 0;
    struct range r = together(cuda->weights, part);
    r.registered = try_to_register(cuda, &r);
    m->range[m->count++] = r;
    return r.registered;
}
