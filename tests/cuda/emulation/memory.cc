/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory. Device memory has its own range of addresses, which are not used twice before the range
 * ends, so that freed memory is recognised. An allocation begins at a page, what is left of its
 * last page (and one guard page before the next) holds a pattern that is looked at when it is
 * freed; its own bytes are NaN in every type until written. Host code may not touch any of it:
 * where the processor has protection keys this thread gives the range up whenever no operation
 * runs, else the pages' protection is changed.
 */
#include "internal.h"

#include <assert.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef EMU_NO_KEYS /* as on a processor without protection keys */
static const int keys_wanted = 0;
#else
static const int keys_wanted = 1;
#endif

enum { MAX_RANGES = 1024, PATTERN = 0xa5, FRESH = 0xff };

char *device_base;

static struct {
    struct allocation *all; /* grows; freed ones stay */
    size_t count, room;
    uint32_t *page; /* per page: 1 + index into all */
    size_t next;    /* offset where the next allocation begins */
    size_t total, used, peak;
    int key; /* protection key; -1: none */
    struct host_range ranges[MAX_RANGES];
    int range_count;
} memory;

/* ------------------------------------------------------------------------------- access ------ */

void memory_access(int allowed)
{
    if (memory.key >= 0)
        pkey_set(memory.key, allowed ? 0 : PKEY_DISABLE_ACCESS);
    else if (memory.next)
        for (size_t i = 0; i < memory.count; i++)
            if (!memory.all[i].freed)
                mprotect(memory.all[i].at, memory.all[i].bytes,
                         allowed ? PROT_READ | PROT_WRITE : PROT_NONE);
}

static int protect(char *at, size_t bytes, int access)
{
    return memory.key >= 0 ? pkey_mprotect(at, bytes, access, memory.key)
                           : mprotect(at, bytes, access);
}

static void map_range(void)
{
    void *at =
        mmap(NULL, DEVICE_SPAN, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    void *pages = mmap(NULL, DEVICE_SPAN / DEVICE_PAGE * sizeof memory.page[0],
                       PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert(at != MAP_FAILED && pages != MAP_FAILED);
    device_base = (char *)at;
    memory.page = (uint32_t *)pages;
    memory.key = keys_wanted ? pkey_alloc(0, PKEY_DISABLE_ACCESS) : -1;
}

static size_t mapped_bytes(size_t bytes) /* with at least 256 bytes of pattern behind */
{
    return (bytes + 256 + DEVICE_PAGE - 1) / DEVICE_PAGE * DEVICE_PAGE;
}

static void release(struct allocation *a)
{
    a->freed = 1;
    madvise(a->at, mapped_bytes(a->bytes), MADV_DONTNEED);
    protect(a->at, mapped_bytes(a->bytes), PROT_NONE);
    shadow_freed(a->at, a->bytes);
}

void memory_open(size_t total)
{
    if (!device_base)
        map_range();
    for (size_t i = 0; i < memory.count; i++)
        if (!memory.all[i].freed)
            release(&memory.all[i]);
    memory.range_count = 0;
    memory.total = total;
    memory.used = memory.peak = 0;
}

size_t memory_used(void)
{
    return memory.used;
}

size_t memory_peak(void)
{
    return memory.peak;
}

/* ------------------------------------------------------------------------ device memory ------ */

const struct allocation *allocation_of(const void *at)
{
    uint32_t index =
        is_device(at) ? memory.page[((const char *)at - device_base) / DEVICE_PAGE] : 0;
    return index ? &memory.all[index - 1] : NULL;
}

static struct allocation *allocation_new(size_t bytes)
{
    size_t span = mapped_bytes(bytes), first = memory.next / DEVICE_PAGE;
    if (memory.next + span + DEVICE_PAGE > DEVICE_SPAN)
        return NULL;
    if (memory.count == memory.room) {
        memory.room = memory.room ? 2 * memory.room : 256;
        memory.all = (struct allocation *)realloc(memory.all, memory.room * sizeof memory.all[0]);
        assert(memory.all);
    }
    struct allocation *a = &memory.all[memory.count++];
    *a = {device_base + memory.next, bytes, 0, memory.count};
    if (protect(a->at, span, PROT_READ | PROT_WRITE))
        return NULL;
    for (size_t p = 0; p <= span / DEVICE_PAGE; p++) /* the guard page behind belongs to it */
        memory.page[first + p] = (uint32_t)memory.count;
    memory.next += span + DEVICE_PAGE;
    return a;
}

cudaError_t cudaMalloc(void **at, size_t bytes)
{
    entry call;
    if (call.error)
        return result(call.error);
    if (!at)
        return result(cudaErrorInvalidValue);
    if (capture_forbids("cudaMalloc"))
        return result(cudaErrorStreamCaptureUnsupported);
    *at = NULL;
    if (bytes == 0)
        return result(cudaSuccess);
    size_t counted = (bytes + 511) / 512 * 512;
    if (fails_allocation() || bytes > memory.total || counted > memory.total - memory.used)
        return result(cudaErrorMemoryAllocation);
    struct allocation *a = allocation_new(bytes);
    if (!a)
        return result(cudaErrorMemoryAllocation);
    memory.used += counted;
    memory.peak = memory.used > memory.peak ? memory.used : memory.peak;
    figures.allocations++;
    memory_access(1);
    if (!checking) /* else a read of it is reported, and filling would touch every page */
        memset(a->at, FRESH, bytes);
    memset(a->at + bytes, PATTERN, mapped_bytes(bytes) - bytes);
    memory_access(0);
    *at = a->at;
    return result(cudaSuccess);
}

static void check_pattern(const struct allocation *a)
{
    size_t end = mapped_bytes(a->bytes);
    for (size_t i = a->bytes; i < end; i++)
        if ((unsigned char)a->at[i] != PATTERN) {
            report(EMU_BOUNDS, NULL,
                   "byte %zu behind device allocation %llu of %zu bytes was "
                   "overwritten",
                   i - a->bytes, (unsigned long long)a->serial, a->bytes);
            return;
        }
}

cudaError_t cudaFree(void *at)
{
    entry call;
    if (!at)
        return result(call.error);
    struct allocation *a = (struct allocation *)allocation_of(at);
    if (!a || a->at != at || a->freed) {
        report(a && a->at == at ? EMU_FREED : EMU_MISUSE, __builtin_return_address(0),
               "cudaFree of %p, %s", at,
               a && a->at == at ? "which is free" : "which is no allocation");
        return result(cudaErrorInvalidValue);
    }
    if (capture_forbids("cudaFree"))
        return result(cudaErrorStreamCaptureUnsupported);
    cudaError_t error = call.error ? call.error : stream_finish_all();
    memory_access(1);
    check_pattern(a);
    memory_access(0);
    memory.used -= (a->bytes + 511) / 512 * 512;
    release(a);
    return result(error);
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
    entry call;
    if (call.error)
        return result(call.error);
    *available = memory.total - memory.used;
    *total = memory.total;
    return result(cudaSuccess);
}

/* -------------------------------------------------------------------------- host memory ------ */

const struct host_range *host_range_of(const void *at, size_t bytes)
{
    for (int i = 0; i < memory.range_count; i++) {
        const struct host_range *r = &memory.ranges[i];
        size_t offset = (size_t)((const char *)at - r->at);
        if (offset < r->bytes && bytes <= r->bytes - offset)
            return r;
    }
    return NULL;
}

static cudaError_t range_add(void *at, size_t bytes, int registered, int read_only)
{
    if (memory.range_count == MAX_RANGES)
        return cudaErrorMemoryAllocation;
    memory.ranges[memory.range_count++] = {(char *)at, bytes, registered, read_only};
    return cudaSuccess;
}

static int range_find(const void *at, int registered)
{
    for (int i = 0; i < memory.range_count; i++)
        if (memory.ranges[i].at == at && memory.ranges[i].registered == registered)
            return i;
    return -1;
}

static void range_remove(int i)
{
    memory.ranges[i] = memory.ranges[--memory.range_count];
}

cudaError_t cudaMallocHost(void **at, size_t bytes)
{
    entry call;
    if (call.error)
        return result(call.error);
    *at = NULL;
    if (capture_forbids("cudaMallocHost"))
        return result(cudaErrorStreamCaptureUnsupported);
    if (bytes == 0)
        return result(cudaSuccess);
    if (fails_allocation())
        return result(cudaErrorMemoryAllocation);
    size_t span = (bytes + DEVICE_PAGE - 1) / DEVICE_PAGE * DEVICE_PAGE;
    void *map = mmap(NULL, span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED || range_add(map, bytes, 0, 0))
        return result(cudaErrorMemoryAllocation);
    memset(map, FRESH, bytes);
    *at = map;
    return result(cudaSuccess);
}

cudaError_t cudaHostAlloc(void **at, size_t bytes, unsigned)
{
    return cudaMallocHost(at, bytes);
}

cudaError_t cudaFreeHost(void *at)
{
    entry call;
    if (!at)
        return result(call.error);
    int i = range_find(at, 0);
    if (i < 0) {
        report(EMU_MISUSE, __builtin_return_address(0), "cudaFreeHost of %p, which is none", at);
        return result(cudaErrorInvalidValue);
    }
    cudaError_t error = call.error ? call.error : stream_finish_all();
    munmap(at, (memory.ranges[i].bytes + DEVICE_PAGE - 1) / DEVICE_PAGE * DEVICE_PAGE);
    range_remove(i);
    return result(error);
}

cudaError_t cudaHostRegister(void *at, size_t bytes, unsigned flags)
{
    entry call;
    if (call.error)
        return result(call.error);
    if (!at || !bytes || (flags & ~0xfu))
        return result(cudaErrorInvalidValue);
    for (int i = 0; i < memory.range_count; i++)
        if (memory.ranges[i].at < (char *)at + bytes &&
            (char *)at < memory.ranges[i].at + memory.ranges[i].bytes)
            return result(cudaErrorHostMemoryAlreadyRegistered);
    return result(range_add(at, bytes, 1, !!(flags & cudaHostRegisterReadOnly)));
}

cudaError_t cudaHostUnregister(void *at)
{
    entry call;
    int i = range_find(at, 1);
    if (i < 0)
        return result(call.error ? call.error : cudaErrorHostMemoryNotRegistered);
    cudaError_t error = call.error ? call.error : stream_finish_all();
    range_remove(i);
    return result(error);
}

int memory_leaks(int reporting)
{
    int leaks = 0;
    for (size_t i = 0; i < memory.count; i++) {
        const struct allocation *a = &memory.all[i];
        if (a->freed)
            continue;
        leaks++;
        if (reporting)
            report(EMU_LEAK, NULL, "device allocation %llu of %zu bytes",
                   (unsigned long long)a->serial, a->bytes);
    }
    for (int i = 0; i < memory.range_count; i++, leaks++)
        if (reporting)
            report(EMU_LEAK, NULL, "%s host memory of %zu bytes",
                   memory.ranges[i].registered ? "registered" : "pinned", memory.ranges[i].bytes);
    return leaks;
}
