/* SPDX-License-Identifier: Apache-2.0
 *
 * Device memory, and the way of bytes between host and device.
 *
 * There are three kinds of memory. The arena is one block, kept between jobs because the next one
 * mostly wants as much; whoever else needs memory between jobs gets it back first. Pieces of less
 * than half a MiB, of which a model has hundreds, share slabs. The rest is the driver's business.
 *
 * Copies go through two pinned buffers by turns: while one is on its way the host fills the other.
 * They are queued on the compute stream, so that they are in order with everything else; only those
 * of weights are not (weights.cu).
 */
#include "kernels/cuda/cuda.h"

#include <stdlib.h>
#include <string.h>

static const size_t mib = (size_t)1 << 20;
static const size_t slab_size = 4 * mib, slab_most = mib / 2; /* of a piece in a slab */
static const size_t staging_size = 4 * mib;                   /* each of two */
static const size_t granule = 2 * mib;                        /* what the driver hands out */
static const size_t arena_slack = 64 * mib; /* a kept arena may be larger than asked by so much */

struct slab {
    char *base;
    size_t used;
    int live; /* pieces */
    struct slab *next;
};

struct cuda_memory {
    char *arena; /* kept */
    size_t arena_size;
    int arena_lent;
    struct slab *slabs[CUDA_SLABS];
    size_t slab_bytes[CUDA_SLABS];
    char *staging; /* pinned */
    cudaEvent_t staged[2];
    int turn;
};

int cuda_memory_open(struct cuda_device *cuda)
{
    struct cuda_memory *m = (struct cuda_memory *)calloc(1, sizeof *m);
    if (!m) {
        kr_fault_set(&cuda->base, KR_FAULT_NO_MEMORY, "out of memory");
        return -1;
    }
    cuda->memory = m;
    for (int i = 0; i < 2; i++)
        if (!cuda_ok(cuda, cudaEventCreateWithFlags(&m->staged[i], cudaEventDisableTiming),
                     "cudaEventCreate"))
            return -1;
    return 0;
}

static void free_arena(struct cuda_memory *m)
{
    assert(!m->arena_lent);
    if (m->arena)
        (void)cudaFree(m->arena);
    m->arena = NULL;
    m->arena_size = 0;
}

static void free_slabs(struct cuda_memory *m, int kind)
{
    while (m->slabs[kind]) {
        struct slab *slab = m->slabs[kind];
        m->slabs[kind] = slab->next;
        (void)cudaFree(slab->base);
        free(slab);
    }
    m->slab_bytes[kind] = 0;
}

void cuda_memory_close(struct cuda_device *cuda)
{
    struct cuda_memory *m = cuda->memory;
    if (!m)
        return;
    m->arena_lent = 0;
    free_arena(m);
    for (int kind = 0; kind < CUDA_SLABS; kind++)
        free_slabs(m, kind);
    if (m->staging)
        (void)cudaFreeHost(m->staging);
    for (int i = 0; i < 2; i++)
        if (m->staged[i])
            (void)cudaEventDestroy(m->staged[i]);
    free(m);
    cuda->memory = NULL;
}

/* -------------------------------------------------------------------------- blocks ------ */

/* NULL: none left. Another error than that is a fault. */
static void *try_malloc(struct cuda_device *cuda, size_t bytes)
{
    void *at = NULL;
    cudaError_t error = cudaMalloc(&at, bytes);
    if (error == cudaSuccess)
        return at;
    (void)cudaGetLastError(); /* said here; a later launch would say it again */
    if (error != cudaErrorMemoryAllocation)
        cuda_ok(cuda, error, "cudaMalloc");
    return NULL;
}

void *cuda_take(struct cuda_device *cuda, size_t bytes)
{
    struct cuda_memory *m = cuda->memory;
    void *at = try_malloc(cuda, bytes);
    if (at || !m->arena || m->arena_lent)
        return at;
    free_arena(m);
    return try_malloc(cuda, bytes);
}

void cuda_give(struct cuda_device *cuda, void *at)
{
    (void)cuda;
    if (at)
        (void)cudaFree(at); /* waits for what uses it */
}

size_t cuda_taken(size_t bytes)
{
    return bytes <= slab_most ? cuda_round_up(bytes, CUDA_ALIGNMENT)
                              : cuda_round_up(bytes, granule);
}

int cuda_in_slab(size_t bytes)
{
    return bytes <= slab_most;
}

size_t cuda_slabs_for(size_t bytes)
{
    return bytes ? cuda_round_up(bytes + bytes / 7, slab_size) : 0;
}

static struct slab *new_slab(struct cuda_device *cuda, enum cuda_slabs kind)
{
    struct cuda_memory *m = cuda->memory;
    struct slab *slab = (struct slab *)calloc(1, sizeof *slab);
    char *base = slab ? (char *)cuda_take(cuda, slab_size) : NULL;
    if (!base) {
        free(slab);
        return NULL;
    }
    slab->base = base;
    slab->next = m->slabs[kind];
    m->slabs[kind] = slab;
    m->slab_bytes[kind] += slab_size;
    return slab;
}

void *cuda_slab_take(struct cuda_device *cuda, enum cuda_slabs kind, size_t bytes)
{
    size_t padded = cuda_round_up(bytes, CUDA_ALIGNMENT);
    struct slab *slab = cuda->memory->slabs[kind];
    if (!cuda_in_slab(bytes))
        return cuda_take(cuda, bytes);
    while (slab && slab->used + padded > slab_size)
        slab = slab->next;
    if (!slab)
        slab = new_slab(cuda, kind);
    if (!slab)
        return NULL;
    slab->used += padded;
    slab->live++;
    return slab->base + slab->used - padded;
}

/* A slab starts anew with its last piece gone, and goes itself. What is queued and still reads a
 * piece is in order with what writes the next one there. */
void cuda_slab_give(struct cuda_device *cuda, enum cuda_slabs kind, void *at)
{
    struct cuda_memory *m = cuda->memory;
    struct slab **link = &m->slabs[kind], *slab;
    char *piece = (char *)at;
    while (*link && (piece < (*link)->base || piece >= (*link)->base + slab_size))
        link = &(*link)->next;
    slab = *link;
    if (!slab) {
        cuda_give(cuda, at);
        return;
    }
    if (--slab->live > 0)
        return;
    *link = slab->next;
    (void)cudaFree(slab->base);
    free(slab);
    m->slab_bytes[kind] -= slab_size;
}

size_t cuda_slabs_held(const struct cuda_device *cuda, enum cuda_slabs kind)
{
    return cuda->memory->slab_bytes[kind];
}

static int open_staging(struct cuda_device *cuda)
{
    struct cuda_memory *m = cuda->memory;
    void *at = NULL;
    if (m->staging)
        return 1;
    cudaError_t error = cudaMallocHost(&at, 2 * staging_size);
    m->staging = error == cudaSuccess ? (char *)at : NULL;
    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        kr_fault_set(&cuda->base, KR_FAULT_NO_MEMORY,
                     "out of memory: no %zu MiB of pinned memory for copies to the GPU",
                     2 * staging_size / mib);
        return 0;
    }
    return cuda_ok(cuda, error, "cudaMallocHost");
}

/* A vector that could not be filled would be of no use. While planning nothing is filled nor read,
 * and addresses that nothing else has are enough. */
void *cuda_alloc(struct kr_device *dev, size_t bytes)
{
    struct cuda_device *cuda = cuda_of(dev);
    if (dev->planning)
        return malloc(bytes);
    cuda_enter(cuda);
    if (!open_staging(cuda))
        return NULL;
    return cuda_slab_take(cuda, CUDA_VECTORS, bytes);
}

void cuda_free(struct kr_device *dev, void *at)
{
    if (dev->planning) {
        free(at);
        return;
    }
    cuda_enter(cuda_of(dev));
    cuda_slab_give(cuda_of(dev), CUDA_VECTORS, at);
}

/* --------------------------------------------------------------------------- arena ------ */

void *cuda_map(struct kr_device *dev, size_t bytes)
{
    struct cuda_device *cuda = cuda_of(dev);
    struct cuda_memory *m = cuda->memory;
    cuda_enter(cuda);
    assert(!m->arena_lent);
    if (!m->arena || m->arena_size < bytes || m->arena_size - bytes > arena_slack) {
        free_arena(m);
        m->arena = (char *)try_malloc(cuda, cuda_round_up(bytes, granule));
        m->arena_size = m->arena ? cuda_round_up(bytes, granule) : 0;
    }
    m->arena_lent = m->arena != NULL;
    return m->arena;
}

void cuda_unmap(struct kr_device *dev, void *at, size_t bytes)
{
    struct cuda_memory *m = cuda_of(dev)->memory;
    assert(at == m->arena && bytes <= m->arena_size);
    (void)at, (void)bytes;
    m->arena_lent = 0;
}

/* What the driver has left, and what would be given back; less what will be taken yet beside the
 * arena and the weights: cuBLASLt's workspace, the driver's own for kernels that run for the first
 * time, and the slack of a kept arena. */
size_t cuda_free_memory(const struct kr_device *dev)
{
    const struct cuda_device *cuda = cuda_of(dev);
    const struct cuda_memory *m = cuda->memory;
    size_t left = 0, total = 0, aside = arena_slack;
    cuda_enter(cuda);
    if (cudaMemGetInfo(&left, &total) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    if (!m->arena_lent)
        left += m->arena_size;
    if (!cuda->workspace)
        aside += cuda->workspace_size;
    return left > aside ? left - aside : 0;
}

/* ------------------------------------------------------------------------- copying ------ */

/* Whether copies may go on: not after the device is lost, nor when the job is cancelled. An older
 * fault is no reason: vectors are uploaded between jobs. */
static int copies_go_on(struct cuda_device *cuda)
{
    if (kr_cancelled(&cuda->base))
        kr_live(&cuda->base);
    return !kr_cancelled(&cuda->base) && cuda->base.fault != KR_FAULT_LOST;
}

static int bring_on(struct cuda_device *cuda, cudaStream_t stream, void *to,
                    const struct cuda_source *source, size_t bytes)
{
    struct cuda_memory *m = cuda->memory;
    cuda_enter(cuda);
    if (!open_staging(cuda))
        return 0;
    for (size_t at = 0; at < bytes; at += staging_size) {
        size_t part = bytes - at < staging_size ? bytes - at : staging_size;
        char *piece = m->staging + (size_t)m->turn * staging_size;
        if (!copies_go_on(cuda) ||
            !cuda_ok(cuda, cudaEventSynchronize(m->staged[m->turn]), "a copy to the GPU"))
            return 0;
        source->fill(piece, source, at, part);
        if (!cuda_ok(cuda,
                     cudaMemcpyAsync((char *)to + at, piece, part, cudaMemcpyHostToDevice, stream),
                     "a copy to the GPU") ||
            !cuda_ok(cuda, cudaEventRecord(m->staged[m->turn], stream), "a copy to the GPU"))
            return 0;
        m->turn ^= 1;
    }
    return 1;
}

int cuda_bring_made(struct cuda_device *cuda, void *to, const struct cuda_source *source,
                    size_t bytes)
{
    if (cuda->streams > 1)
        cuda_record_failed(cuda); /* a graph would not see the host's next values */
    return bring_on(cuda, cuda->stream[0], to, source, bytes);
}

static void fill_same(void *to, const struct cuda_source *source, size_t at, size_t bytes)
{
    memcpy(to, (const char *)source->from + at, bytes);
}

static void fill_rounded(void *to, const struct cuda_source *source, size_t at, size_t bytes)
{
    cuda_to_bf16((uint16_t *)to, (const float *)source->from + at / 2, (int64_t)(bytes / 2));
}

int cuda_bring_on(struct cuda_device *cuda, cudaStream_t stream, void *to, const void *from,
                  size_t bytes)
{
    struct cuda_source source = {fill_same, from};
    return bring_on(cuda, stream, to, &source, bytes);
}

int cuda_bring(struct cuda_device *cuda, void *to, const void *from, size_t bytes)
{
    return cuda_bring_on(cuda, cuda->stream[0], to, from, bytes);
}

void cuda_upload(struct kr_device *dev, struct kr_tensor t, const float *host)
{
    struct cuda_source source = {t.dtype == KR_F32 ? fill_same : fill_rounded, host};
    if (!dev->planning)
        cuda_bring_made(cuda_of(dev), t.data, &source,
                        (size_t)kr_count(&t) * kr_dtype_size(t.dtype));
}

/* Queues the way back of one piece, when what the buffer held has left on whatever stream. */
static int fetch(struct cuda_device *cuda, int turn, const char *from, size_t bytes)
{
    struct cuda_memory *m = cuda->memory;
    return cuda_ok(cuda, cudaEventSynchronize(m->staged[turn]), "a copy to the GPU") &&
           cuda_ok(cuda,
                   cudaMemcpyAsync(m->staging + (size_t)turn * staging_size, from, bytes,
                                   cudaMemcpyDeviceToHost, cuda->stream[0]),
                   "a copy from the GPU") &&
           cuda_ok(cuda, cudaEventRecord(m->staged[turn], cuda->stream[0]), "a copy from the GPU");
}

/* While a piece is converted the next one is on its way. */
void cuda_download(struct kr_device *dev, struct kr_tensor t, float *host)
{
    struct cuda_device *cuda = cuda_of(dev);
    struct cuda_memory *m = cuda->memory;
    size_t element = kr_dtype_size(t.dtype), bytes = (size_t)kr_count(&t) * element;
    size_t pieces = (bytes + staging_size - 1) / staging_size;
    cuda_enter(cuda);
    if (!open_staging(cuda))
        return;
    for (size_t i = 0; i <= pieces; i++) {
        size_t at = i * staging_size, before = at - staging_size;
        if (i < pieces && !fetch(cuda, (int)(i % 2), (const char *)t.data + at,
                                 bytes - at < staging_size ? bytes - at : staging_size))
            return;
        if (i == 0)
            continue;
        if (!cuda_ok(cuda, cudaEventSynchronize(m->staged[(i - 1) % 2]), "a copy from the GPU"))
            return;
        size_t part = bytes - before < staging_size ? bytes - before : staging_size;
        cuda_to_f32(host + before / element, m->staging + (i - 1) % 2 * staging_size, t.dtype,
                    (int64_t)(part / element));
    }
    m->turn = 0;
}
