/* SPDX-License-Identifier: Apache-2.0
 *
 * What each byte of device and shared memory has seen: who wrote it last and who read it, each as a
 * stamp of (epoch, thread, warp phase). Epochs count up: each operation, each block and each
 * barrier begins one. Because blocks and operations run one after the other, comparing a stamp's
 * epoch with where the running operation, block and barrier interval began says what lies between:
 *
 *   0                        nothing has written it since it was allocated
 *   before the operation     another operation, which must be ordered before this one (stream.cc)
 *   before the block         another block of this launch: a race, whatever ran first
 *   before the epoch         this block, a barrier ago: fine
 *   in the epoch             fine for the same thread, or for its warp with __syncwarp between
 *
 * Shared memory knows only its own block: what was before it is unwritten.
 */
#include "internal.h"

#include <assert.h>
#include <link.h>
#include <sys/mman.h>

alignas(128) thread_local unsigned char dynamic_shared[MAX_SHARED];

int checking;
static int instrumented, switched_off;
static size_t dynamic_size;

/* ------------------------------------------------------------------------------- stamps ------ */

typedef uint64_t stamp;
enum {
    TID = 0x7ff,
    ATOMIC = 0x7fe,    /* only atomics, of any threads */
    HOST = 0x7fc,      /* a copy, a memset, a product */
    MANY = 0x7ff,      /* readers of several warps */
    MANY_WARP = 0x400, /* | warp: readers of one warp */
    OTHERS = 0x8000,   /* a reader's stamp: other blocks of the launch have read it too */
};
static const uint32_t pending_epoch = 0xffffffffu;

static stamp stamp_of(uint32_t epoch, uint32_t tid, uint32_t phase)
{
    return (stamp)epoch << 32 | tid << 16 | phase;
}
static uint32_t epoch_of(stamp s)
{
    return (uint32_t)(s >> 32);
}
static uint32_t tid_of(stamp s)
{
    return (uint32_t)(s >> 16) & TID;
}
static uint32_t phase_of(stamp s)
{
    return (uint32_t)s & 0xffff;
}
static int has_others(stamp s)
{
    return (int)(s >> 16 & OTHERS);
}

/* ------------------------------------------------------------------------------- memory ------ */

struct view {
    stamp *written, *read;
    int shared;
};

static stamp *device_written, *device_read;
static stamp *shared_written, *shared_read;
static char *tls_low; /* of the thread that runs operations now */
static size_t tls_bytes;

static stamp *map_stamps(size_t count)
{
    void *at = mmap(NULL, count * sizeof(stamp), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert(at != MAP_FAILED);
    return (stamp *)at;
}

/* The thread's block of __shared__ variables: the thread-local storage of this program. */
static int find_tls(struct dl_phdr_info *info, size_t, void *)
{
    for (int i = 0; i < info->dlpi_phnum; i++) {
        char *low = (char *)info->dlpi_tls_data;
        if (info->dlpi_phdr[i].p_type != PT_TLS || !low)
            continue;
        size_t bytes = info->dlpi_phdr[i].p_memsz;
        if ((size_t)((char *)dynamic_shared - low) >= bytes)
            continue;
        tls_low = low;
        tls_bytes = bytes;
        return 1;
    }
    return 0;
}

static void open_shadow(void)
{
    assert(tls_bytes);
    if (shared_written)
        return;
    device_written = map_stamps(DEVICE_SPAN);
    device_read = map_stamps(DEVICE_SPAN);
    shared_written = map_stamps(tls_bytes);
    shared_read = map_stamps(tls_bytes);
}

/* Looked for once in each thread: it is at a fixed distance from dynamic_shared. */
static void find_shared(void)
{
    static ptrdiff_t distance;
    if (!tls_bytes) {
        dl_iterate_phdr(find_tls, NULL);
        distance = (char *)dynamic_shared - tls_low;
    }
    tls_low = (char *)dynamic_shared - distance;
}

int shadow_is_shared(const void *at)
{
    return (size_t)((const char *)at - tls_low) < tls_bytes;
}

static struct view view_of(const void *at)
{
    size_t offset = (size_t)((const char *)at - tls_low);
    if (offset < tls_bytes)
        return {shared_written + offset, shared_read + offset, 1};
    offset = (size_t)((const char *)at - device_base);
    return {device_written + offset, device_read + offset, 0};
}

void shadow_freed(void *at, size_t bytes)
{
    if (!device_written)
        return;
    size_t offset = (size_t)((char *)at - device_base);
    uintptr_t mask = DEVICE_PAGE - 1;
    for (int i = 0; i < 2; i++) {
        stamp *first = (i ? device_read : device_written) + offset;
        madvise(first, (bytes * sizeof(stamp) + mask) & ~mask, MADV_DONTNEED);
    }
}

void emu_check_memory(int on)
{
    switched_off = !on;
    checking = instrumented && !switched_off;
}

/* "byte 12 of allocation 3 (4096 bytes)" */
static const char *place_of(const void *at)
{
    static char text[120];
    const struct allocation *a = allocation_of(at);
    const unsigned char *p = (const unsigned char *)at;
    if (p >= dynamic_shared && p < dynamic_shared + MAX_SHARED)
        snprintf(text, sizeof text, "dynamic shared memory + %zu", (size_t)(p - dynamic_shared));
    else if (shadow_is_shared(at))
        snprintf(text, sizeof text, "static shared memory + %zu",
                 (size_t)((const char *)at - tls_low));
    else if (a)
        snprintf(text, sizeof text, "allocation %llu (%zu bytes) + %zd",
                 (unsigned long long)a->serial, a->bytes, (const char *)at - a->at);
    else
        snprintf(text, sizeof text, "%p", at);
    return text;
}

/* -------------------------------------------------------------------- order of operations ---- */

struct known_operation {
    uint32_t epoch, seq;
    int slot;
};
struct known {
    struct known_operation *at;
    size_t count, room;
};
static struct known operations, by_slot[MAX_STREAMS];
static uint32_t floor_epoch; /* all up to here comes before the running operation */

static void remember(struct known *k, struct known_operation op)
{
    if (k->count == k->room) {
        k->room = k->room ? 2 * k->room : 1024;
        k->at = (struct known_operation *)realloc(k->at, k->room * sizeof k->at[0]);
        assert(k->at);
    }
    k->at[k->count++] = op;
}

/* The epoch of the stream's first operation that has run and is not in `order`; else `otherwise`.
 */
static uint32_t first_unordered(const struct known *stream, uint32_t seen, uint32_t otherwise)
{
    size_t low = 0, high = stream->count; /* the first with seq > seen is in [low, high] */
    if (!high || stream->at[high - 1].seq <= seen)
        return otherwise;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (stream->at[middle].seq <= seen)
            low = middle + 1;
        else
            high = middle;
    }
    return stream->at[low].epoch;
}

void shadow_begin_operation(const struct order *order, int slot)
{
    if (!now.epoch)
        now.epoch = 1;
    assert(now.epoch < pending_epoch - 2);
    floor_epoch = now.epoch;
    for (int s = 0; s < MAX_STREAMS; s++) {
        uint32_t epoch = first_unordered(&by_slot[s], order->seen[s], floor_epoch + 1);
        floor_epoch = epoch - 1 < floor_epoch ? epoch - 1 : floor_epoch;
    }
    now.launch_epoch = now.block_epoch = ++now.epoch;
    struct known_operation op = {now.epoch, order->seen[slot], slot};
    remember(&operations, op);
    remember(&by_slot[slot], op);
    find_shared();
    if (checking)
        open_shadow();
}

/* Whether the operation of that epoch comes before the running one. */
static int is_ordered(uint32_t epoch)
{
    size_t low = 0, high = operations.count;
    if (epoch <= floor_epoch)
        return 1;
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (operations.at[middle].epoch <= epoch)
            low = middle;
        else
            high = middle;
    }
    return running_order.seen[operations.at[low].slot] >= operations.at[low].seq;
}

/* ---------------------------------------------------------------------------- accesses ------- */

struct access {
    uint32_t tid, phase, warp;
    const char *verb;
    const void *at, *site;
    size_t bytes;
    int writes, atomic;
};

static void race(const struct access *a, const struct view *v, size_t i, stamp other,
                 const char *did)
{
    uint32_t tid = tid_of(other);
    char who[48];
    if (tid < MAX_THREADS)
        snprintf(who, sizeof who, "thread %u", tid);
    else
        snprintf(who, sizeof who, tid == ATOMIC ? "an atomic" : "other threads");
    report(v->shared ? EMU_RACE_SHARED : EMU_RACE_GLOBAL, a->site,
           "%s %zu bytes at %s, which %s %s since the last barrier", a->verb, a->bytes,
           place_of((const char *)a->at + i), who, did);
}

/* A stamp of the running epoch: whether it is another thread's with nothing between. */
static int is_unordered(const struct access *a, stamp s)
{
    uint32_t tid = tid_of(s);
    if (tid == a->tid || (tid == ATOMIC && a->atomic))
        return 0;
    if (tid < MAX_THREADS ? tid / WARP == a->warp : tid == (MANY_WARP | a->warp))
        return phase_of(s) >= a->phase;
    return 1;
}

static void check_block_order(const struct access *a, size_t i, stamp s, const char *did)
{
    uint32_t epoch = epoch_of(s);
    if (epoch >= now.launch_epoch) {
        if ((a->atomic && tid_of(s) == ATOMIC) || (now.fenced && !a->writes))
            return;
        report(EMU_RACE_GLOBAL, a->site, "%s %zu bytes at %s, which another block of the launch %s",
               a->verb, a->bytes, place_of((const char *)a->at + i), did);
    } else if (!is_ordered(epoch)) {
        report(EMU_RACE_STREAM, a->site,
               "%s %zu bytes at %s, which an operation of another stream %s that nothing orders "
               "before",
               a->verb, a->bytes, place_of((const char *)a->at + i), did);
    }
}

/* The last write of byte i against this access. */
static void check_written(const struct access *a, const struct view *v, size_t i, stamp w)
{
    uint32_t epoch = epoch_of(w);
    if (epoch == pending_epoch) {
        report(EMU_ASYNC_COPY, a->site,
               "%s %zu bytes at %s, which an asynchronous copy of thread %u fills that was not "
               "waited for",
               a->verb, a->bytes, place_of((const char *)a->at + i), tid_of(w));
    } else if (epoch >= now.epoch) {
        if (is_unordered(a, w))
            race(a, v, i, w, "wrote");
    } else if (epoch >= now.block_epoch) {
        return;
    } else if (v->shared || epoch == 0) {
        if (!a->writes || a->atomic)
            report(EMU_UNWRITTEN, a->site, "%s %zu bytes at %s, which nothing has written", a->verb,
                   a->bytes, place_of((const char *)a->at + i));
    } else {
        check_block_order(a, i, w, "wrote");
    }
}

/* The last read of byte i against a write. */
static void check_read(const struct access *a, const struct view *v, size_t i, stamp r)
{
    uint32_t epoch = epoch_of(r);
    if (epoch >= now.epoch && is_unordered(a, r))
        race(a, v, i, r, "read");
    if (v->shared || epoch == 0)
        return;
    if (epoch < now.block_epoch)
        check_block_order(a, i, r, "read");
    else if (has_others(r))
        check_block_order(a, i, stamp_of(now.launch_epoch, 0, 0), "read");
}

/* The readers of a byte when this access reads it too. */
static stamp join_readers(const struct access *a, const struct view *v, stamp r, stamp mine)
{
    uint32_t epoch = epoch_of(r), tid = tid_of(r);
    stamp others = 0;
    if (!v->shared && epoch >= now.launch_epoch && (epoch < now.block_epoch || has_others(r)))
        others = (stamp)OTHERS << 16;
    if (epoch < now.epoch || tid == a->tid)
        return mine | others;
    if (tid == MANY)
        return r;
    if (tid < MAX_THREADS ? tid / WARP == a->warp : tid == (MANY_WARP | a->warp))
        return phase_of(r) < a->phase ? mine | others
                                      : stamp_of(now.epoch, MANY_WARP | a->warp, a->phase) | others;
    return stamp_of(now.epoch, MANY, 0) | others;
}

/* Whether nothing can be wrong with a byte that was last touched at `s`: by an operation that is
 * known to come before, or by this block before the last barrier. */
static inline int is_settled(const struct view *v, stamp s)
{
    uint32_t epoch = epoch_of(s);
    if (epoch >= now.block_epoch)
        return epoch < now.epoch;
    return !v->shared && epoch != 0 && epoch <= floor_epoch;
}

static void read_bytes(const struct access *a, const struct view *v, stamp mine)
{
    stamp fine = 0, last = 0, joined = 0; /* the stamps that were looked at last */
    for (size_t i = 0; i < a->bytes; i++) {
        stamp w = v->written[i], r = v->read[i];
        if ((w != fine || i == 0) && !is_settled(v, w))
            check_written(a, v, i, w);
        if (r != last || i == 0)
            joined = epoch_of(r) < now.launch_epoch ? mine : join_readers(a, v, r, mine);
        v->read[i] = joined;
        fine = w;
        last = r;
    }
}

static void write_bytes(const struct access *a, const struct view *v, stamp mine)
{
    stamp fine = 0, last = 0;
    for (size_t i = 0; i < a->bytes; i++) {
        stamp w = v->written[i], r = v->read[i];
        if ((w != fine || i == 0) && !is_settled(v, w))
            check_written(a, v, i, w);
        if ((r != last || i == 0) && r != 0 && (has_others(r) || !is_settled(v, r)))
            check_read(a, v, i, r);
        v->written[i] = mine;
        fine = w;
        last = r;
    }
}

static void do_access(const struct access *a)
{
    struct view v = view_of(a->at);
    stamp mine = stamp_of(now.epoch, a->atomic ? (uint32_t)ATOMIC : a->tid, a->phase);
    if (a->writes)
        write_bytes(a, &v, mine);
    else
        read_bytes(a, &v, mine);
}

/* -------------------------------------------------------------------- whose memory it is ----- */

static int in_device_allocation(const void *at, size_t bytes, const void *site, const char *verb)
{
    static const char *low; /* the last one found */
    static size_t size;
    size_t offset = (size_t)((const char *)at - low);
    if (offset < size && bytes <= size - offset && !allocation_of(low)->freed)
        return 1;
    const struct allocation *a = allocation_of(at);
    offset = a ? (size_t)((const char *)at - a->at) : 0;
    if (a && !a->freed && offset < a->bytes && bytes <= a->bytes - offset) {
        low = a->at;
        size = a->bytes;
        return 1;
    }
    int freed = a && a->freed && offset < a->bytes;
    report(freed ? EMU_FREED : EMU_BOUNDS, site, "%s %zu bytes at %s%s", verb, bytes, place_of(at),
           freed ? ", which was freed"
           : a   ? ", outside of it"
                 : ", which is no memory");
    return 0;
}

static int in_read_only_segment(const void *at);

/* Memory that is not the device's: fine if a kernel may touch it. */
static int host_memory_allowed(const void *at, size_t bytes, int writes, const void *site)
{
    const struct launch *l = now.launch;
    const struct host_range *range;
    if ((size_t)((const char *)at - (const char *)l->call) < l->call_bytes)
        return 1;
    if ((size_t)((const char *)at - (const char *)&emu_place) < sizeof emu_place)
        return 1;
    if (!writes && in_read_only_segment(at))
        return 1;
    range = host_range_of(at, bytes);
    if (range && !(writes && range->read_only))
        return 1;
    if (range)
        report(EMU_READ_ONLY, site, "writes %zu bytes of host memory that is registered read-only",
               bytes);
    else
        report(EMU_HOST_MEMORY, site, "%s %zu bytes at %p, %s", writes ? "writes" : "reads", bytes,
               at, fiber_owns(at) ? "local memory of another thread" : "host memory");
    return 0;
}

struct segments {
    const char *low[64];
    size_t bytes[64];
    int count;
};

static int find_segments(struct dl_phdr_info *info, size_t, void *user)
{
    struct segments *s = (struct segments *)user;
    for (int i = 0; i < info->dlpi_phnum && s->count < 64; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        if (p->p_type != PT_LOAD || (p->p_flags & PF_W))
            continue;
        s->low[s->count] = (const char *)info->dlpi_addr + p->p_vaddr;
        s->bytes[s->count++] = p->p_memsz;
    }
    return 0;
}

static int in_read_only_segment(const void *at)
{
    static struct segments segments;
    if (!segments.count)
        dl_iterate_phdr(find_segments, &segments);
    for (int i = 0; i < segments.count; i++)
        if ((size_t)((const char *)at - segments.low[i]) < segments.bytes[i])
            return 1;
    return 0;
}

/* Inside of what the launch asked for, as far as the dynamic part goes. */
static int shared_fits(const void *at, size_t bytes, const void *site, const char *verb)
{
    size_t offset = (size_t)((const unsigned char *)at - dynamic_shared);
    if (offset >= MAX_SHARED || offset + bytes <= dynamic_size)
        return 1;
    report(EMU_BOUNDS, site, "%s %zu bytes at %s; the launch asked for %zu", verb, bytes,
           place_of(at), dynamic_size);
    return 0;
}

static void touch(const void *at, size_t bytes, const void *site, int writes, int atomic)
{
    struct fiber *self = now.self;
    const char *verb = atomic ? "changes" : writes ? "writes" : "reads";
    int allowed, shadowed = 1;
    if (shadow_is_shared(at)) {
        allowed = shared_fits(at, bytes, site, verb);
    } else if (is_device(at)) {
        allowed = in_device_allocation(at, bytes, site, verb);
    } else {
        allowed = host_memory_allowed(at, bytes, writes, site);
        shadowed = 0;
    }
    if (!allowed)
        fiber_abort(cudaErrorIllegalAddress);
    if (!shadowed)
        return;
    struct access a = {(uint32_t)self->index,
                       self->warp->phase,
                       (uint32_t)self->warp->index,
                       verb,
                       at,
                       site,
                       bytes,
                       writes,
                       atomic};
    do_access(&a);
}

void shadow_read(const void *at, size_t bytes, const void *site)
{
    if (checking && !fiber_is_local(at))
        touch(at, bytes, site, 0, 0);
}

void shadow_write(void *at, size_t bytes, const void *site)
{
    if (checking && !fiber_is_local(at))
        touch(at, bytes, site, 1, 0);
}

void shadow_atomic(void *at, size_t bytes, const void *site)
{
    if (checking && !fiber_is_local(at))
        touch(at, bytes, site, 1, 1);
}

/* Its bytes are nobody's to touch until they have arrived; then they are written by this thread. */
void shadow_async(void *at, size_t bytes, int pending, const void *site)
{
    if (!checking)
        return;
    struct view v = view_of(at);
    uint32_t tid = (uint32_t)now.self->index;
    if (pending)
        touch(at, bytes, site, 1, 0);
    for (size_t i = 0; i < bytes; i++)
        v.written[i] = pending ? stamp_of(pending_epoch, tid, 0)
                               : stamp_of(now.epoch, tid, now.self->warp->phase);
}

/* ------------------------------------------------------------- blocks, barriers, the host ---- */

void shadow_begin_block(size_t dynamic_bytes)
{
    dynamic_size = dynamic_bytes;
    now.block_epoch = ++now.epoch;
    if (!checking || !dynamic_bytes)
        memset(dynamic_shared, 0xff, dynamic_bytes);
}

void shadow_barrier(void)
{
    now.epoch++;
}

static cudaError_t host_access(const void *at, size_t bytes, const char *who, int writes)
{
    if (!checking)
        return cudaSuccess;
    if (!in_device_allocation(at, bytes, who, who))
        return cudaErrorIllegalAddress;
    struct access a = {HOST, 0, ~0u, who, at, who, bytes, writes, 0};
    do_access(&a);
    return cudaSuccess;
}

cudaError_t shadow_host_read(const void *at, size_t bytes, const char *who)
{
    return host_access(at, bytes, who, 0);
}

cudaError_t shadow_host_write(void *at, size_t bytes, const char *who)
{
    return host_access(at, bytes, who, 1);
}

void shadow_instrumented(void)
{
    instrumented = 1;
    checking = !switched_off;
}
