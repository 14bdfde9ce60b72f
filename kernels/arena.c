/* SPDX-License-Identifier: Apache-2.0
 *
 * The job's memory: one mapping of the size that planning found, handed out upwards and released
 * back to a mark. A mapping, not malloc, so that ending a job gives every page back at once.
 *
 * While planning the same calls count without memory; the addresses that they give are aligned
 * numbers, distinct as the real ones would be, so that checks for overlap see the same picture.
 *
 * Under the address sanitizer what is not handed out is poisoned, with a gap behind each piece.
 */
#include "kernels/backend.h"

#include <assert.h>

#if defined(__SANITIZE_ADDRESS__)
#define ARENA_POISONS 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ARENA_POISONS 1
#endif
#endif

#ifdef ARENA_POISONS
#include <sanitizer/asan_interface.h>
enum { GAP = KR_ALIGNMENT };
#define POISON(at, bytes)   __asan_poison_memory_region(at, bytes)
#define UNPOISON(at, bytes) __asan_unpoison_memory_region(at, bytes)
#else
enum { GAP = 0 };
#define POISON(at, bytes)   ((void)(at), (void)(bytes))
#define UNPOISON(at, bytes) ((void)(at), (void)(bytes))
#endif

int kr_arena_open(struct kr_device *dev, size_t bytes)
{
    struct kr_arena *a = &dev->arena;
    assert(!a->base);
    *a = (struct kr_arena){0};
    if (bytes == 0)
        return 0;
    a->base = dev->backend->map(dev, bytes);
    if (!a->base)
        return -1;
    a->size = bytes;
    POISON(a->base, a->size);
    return 0;
}

void kr_arena_close(struct kr_device *dev)
{
    struct kr_arena *a = &dev->arena;
    if (a->base) {
        UNPOISON(a->base, a->size);
        dev->backend->unmap(dev, a->base, a->size);
    }
    a->base = NULL;
    a->size = a->used = 0; /* the peak stays readable */
}

/* Planned tensors live at this address upwards. */
enum { NOWHERE = 1 << 16 };

void *kr_arena_take(struct kr_device *dev, size_t bytes)
{
    struct kr_arena *a = &dev->arena;
    if (dev->fault != KR_FINE)
        return NULL;
    size_t at = a->used;
    size_t room = (dev->planning ? SIZE_MAX / 2 : a->size) - at;
    size_t padded = bytes > SIZE_MAX / 4
                        ? SIZE_MAX
                        : (bytes + KR_ALIGNMENT - 1) / KR_ALIGNMENT * KR_ALIGNMENT + GAP;
    if (padded > room) {
        kr_fault_set(dev, KR_FAULT_NO_MEMORY,
                     "out of memory: %zu bytes are wanted beside %zu in use, and the job was given "
                     "%zu",
                     bytes, at, dev->planning ? (size_t)SIZE_MAX / 2 : a->size);
        return NULL;
    }
    a->used = at + padded;
    if (a->used > a->peak)
        a->peak = a->used;
    if (dev->planning)
        return (void *)(uintptr_t)(NOWHERE + at);
    UNPOISON(a->base + at, bytes);
    return a->base + at;
}

struct kr_mark kr_arena_mark(const struct kr_device *dev)
{
    return (struct kr_mark){dev->arena.used};
}

void kr_arena_release(struct kr_device *dev, struct kr_mark mark)
{
    struct kr_arena *a = &dev->arena;
    assert(mark.at <= a->used || dev->fault != KR_FINE);
    if (mark.at >= a->used)
        return;
    if (!dev->planning)
        POISON(a->base + mark.at, a->used - mark.at);
    a->used = mark.at;
}

struct kr_tensor kr_new(struct kr_device *dev, enum kr_dtype dtype, int64_t d0, int64_t d1,
                        int64_t d2, int64_t d3)
{
    const int64_t dim[KR_MAX_RANK] = {d0, d1, d2, d3};
    struct kr_tensor t = {.dtype = dtype};
    size_t bytes = kr_dtype_size(dtype);
    int overflow = 0;
    while (t.rank < KR_MAX_RANK && dim[t.rank] != 0) {
        overflow |= dim[t.rank] < 0 || __builtin_mul_overflow(bytes, (size_t)dim[t.rank], &bytes);
        t.dim[t.rank] = dim[t.rank];
        t.rank++;
    }
    if (dtype == KR_F8_E4M3 && dev->backend->input_dtype) /* the rows' factors */
        overflow |= __builtin_add_overflow(bytes, 16 + (size_t)kr_rows(&t) * sizeof(float), &bytes);
    else if (dtype != KR_F32 && dtype != KR_BF16)
        kr_fault_set(dev, KR_FAULT_MISUSE, "kr_new: a tensor can't be %s", kr_dtype_name(dtype));
    t.data = kr_arena_take(dev, overflow ? SIZE_MAX : bytes);
    return t;
}

void *kr_scratch(struct kr_device *dev, size_t bytes)
{
    void *at = kr_arena_take(dev, bytes);
    return dev->planning ? NULL : at;
}
