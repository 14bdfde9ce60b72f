/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the emulation share.
 *
 * block.cc    fibers: the threads of one block, barriers, warp rendezvous
 * warp.cc     shuffles, votes, mma, ldmatrix, cp.async
 * shadow.cc   what each byte of memory has seen
 * memory.cc   device memory, pinned and registered host memory
 * stream.cc   streams, events, the order in which operations run
 * transfer.cc launches, copies, memsets
 * graph.cc    capture and replay
 * runtime.cc  the device's properties, errors, everything else of the runtime
 * report.cc   what was found
 * waits.cc    waits that a test drops
 * callbacks.cc what instrumented kernels call; faults of those that are not
 * blaslt.cc   cuBLASLt: what it takes and refuses; product.cc its arithmetic
 */
#ifndef EMU_INTERNAL_H
#define EMU_INTERNAL_H

#include "emu.h"

#include <cuda_runtime.h>

enum { WARP = 32, MAX_THREADS = 1024, MAX_SHARED = 228 * 1024, FIBER_STACK = 64 << 10 };

/* ------------------------------------------------------------------------------ reports ------ */

/* `site` is a code address of the fault, or NULL. One report per (kind, kernel, site); others
 * count. */
void report(enum emu_kind kind, const void *site, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
const char *symbol_of(const void *code); /* of the program; "?" */

extern uint64_t random_state; /* from the seed */
static inline uint64_t random_bits(void)
{
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 32)) * 0xbf58476d1ce4e5b9u;
    return z ^ (z >> 29);
}
static inline uint32_t random_below(uint32_t n)
{
    return (uint32_t)(((random_bits() >> 32) * n) >> 32);
}

/* -------------------------------------------------------------------------------- block ------ */

struct warp;

/* What a lane that waits for its warp wants; the last to arrive performs it for all. */
struct warp_call {
    int kind; /* enum warp_kind */
    unsigned mask;
    void *args;
    void (*perform)(struct warp *warp, unsigned lanes);
    const char *file;
    int line;
};
enum warp_kind { WARP_SYNC, WARP_SHUFFLE, WARP_VOTE, WARP_MMA, WARP_LDMATRIX };

struct async_copy {
    void *shared;
    const void *global;
    int bytes, valid;
    int group;
};
enum { MAX_ASYNC = 256 };

/* What is looked at when threads take turns comes first, in one cache line. */
struct alignas(64) fiber {
    void *sp;
    uint3 thread;
    uint16_t index, lane;
    struct warp *warp;
    char *stack;                  /* lowest address */
    const struct warp_call *call; /* while it waits for its warp */
    const char *barrier_file;
    int barrier_line;
    int async_first, async_count, async_group; /* ring in asyncs */
    struct async_copy *asyncs;
};

struct warp {
    struct fiber *lanes;     /* of WARP */
    unsigned alive, waiting; /* lanes; waiting for the warp */
    unsigned runnable;
    uint16_t phase; /* counts __syncwarp */
    int index;
};

/* One kernel launch, while it runs. */
struct launch {
    const void *kernel;
    void (*run)(void *);
    void *call; /* the arguments' copy */
    size_t call_bytes;
    dim3 grid, block;
    size_t dynamic_bytes;
};

/* Runs all blocks. 0, or the sticky error that it ended with. */
cudaError_t launch_run(const struct launch *launch);

struct running {
    const struct launch *launch; /* NULL: no kernel runs */
    struct fiber *self;          /* NULL: host or emulator code */
    uint32_t launch_epoch, block_epoch, epoch;
    int fenced; /* the launch has used __threadfence */
};
extern struct running now;

void async_forget(struct fiber *f); /* warp.cc */
void fiber_wait_warp(const struct warp_call *call);
/* Ends the launch from inside a fiber; never returns. */
__attribute__((noreturn)) void fiber_abort(cudaError_t error);
int fiber_owns(const void *at);                  /* on any fiber's stack */
static inline int fiber_is_local(const void *at) /* on the running one's */
{
    return (size_t)((const char *)at - now.self->stack) < FIBER_STACK;
}

/* ------------------------------------------------------------------------------- shadow ------ */

extern int checking; /* memory checks are on, and there are instrumented kernels */

struct order;

/* An operation of a stream: everything it touches carries its epoch. */
void shadow_begin_operation(const struct order *order, int slot);
void shadow_instrumented(void);
void shadow_begin_block(size_t dynamic_bytes);
void shadow_barrier(void);
int shadow_is_shared(const void *at);

/* Accesses on behalf of the running fiber; what is wrong is reported, and ends the launch where the
 * hardware would. */
void shadow_read(const void *at, size_t bytes, const void *site);
void shadow_write(void *at, size_t bytes, const void *site);
void shadow_atomic(void *at, size_t bytes, const void *site);
void shadow_async(void *at, size_t bytes, int pending, const void *site);

/* Accesses of copies, memsets and products: 0, or what the device's answer would be. */
cudaError_t shadow_host_read(const void *at, size_t bytes, const char *who);
cudaError_t shadow_host_write(void *at, size_t bytes, const char *who);

void shadow_freed(void *at, size_t bytes);

/* ------------------------------------------------------------------------------- memory ------ */

enum { DEVICE_PAGE = 4096 };
#define DEVICE_SPAN ((size_t)64 << 30)
extern char *device_base; /* DEVICE_SPAN bytes of addresses */

struct allocation {
    char *at;
    size_t bytes;
    int freed;
    uint64_t serial;
};

static inline int is_device(const void *at)
{
    return (size_t)((const char *)at - device_base) < DEVICE_SPAN;
}
/* The allocation of a device address, also when freed; NULL: none ever. */
const struct allocation *allocation_of(const void *at);

struct host_range {
    char *at;
    size_t bytes;
    int registered, read_only;
};
const struct host_range *host_range_of(const void *at, size_t bytes); /* pinned or registered */

void memory_open(size_t total);
int memory_leaks(int reporting);
void memory_access(int allowed); /* the device's memory, for this thread */
size_t memory_used(void);
size_t memory_peak(void);

/* ------------------------------------------------------------------------------ runtime ------ */

/* Every runtime call begins with it: takes the lock, counts, and fails when the device is lost or
 * an earlier error sticks. */
struct entry {
    entry();
    ~entry();
    cudaError_t error;
};
cudaError_t result(cudaError_t error); /* remembers the last error */
void stick(cudaError_t error);         /* from now on every call returns it */
cudaError_t sticking(void);
int architecture(void);
int takes_alpha_vectors(void);
int writes_rows_as_bf16(void);
extern struct emu_figures figures;
int fails_allocation(void);
size_t shared_limit_optin(void);

/* ------------------------------------------------------------------------------- stream ------ */

/* What happens before: of each stream, how many of its operations. */
enum { MAX_STREAMS = 16 };
struct order {
    uint32_t seen[MAX_STREAMS];
};
void order_merge(struct order *order, const struct order *other);

/* One cudaEventRecord; waits and the event share it. */
struct record {
    int refs, done;
    uint64_t nanoseconds; /* when it was done */
    struct order order;
};

enum operation_kind { OP_RUN, OP_RECORD, OP_WAIT };

/* An operation: queued in a stream or a node of a graph. What embeds it follows it in memory. */
struct operation {
    struct operation *next; /* in its stream */
    enum operation_kind kind;
    cudaError_t (*run)(struct operation *self);
    void (*fini)(struct operation *self); /* frees what it owns; may be NULL */
    uint64_t issued;
    struct record *record; /* of a record or a wait */
    struct order order;
    int slot; /* its stream's place in orders */
};

struct capture;

struct emu_stream {
    struct emu_stream *next; /* all streams */
    unsigned flags;
    int slot;
    uint32_t issued;
    struct order order; /* of the last operation issued */
    struct operation *head, *tail;
    struct capture *capture; /* NULL: none */
    int *last, last_count;   /* the nodes that the next one comes after */
};

struct emu_event {
    struct emu_event *next; /* all events */
    unsigned flags;
    struct record *record;   /* the last one; NULL: never recorded */
    struct capture *capture; /* recorded while capturing: the nodes it stands for */
    int *last, last_count;
};

struct operation *operation_new(size_t bytes, cudaError_t (*run)(struct operation *));
void operation_free(struct operation *op);

/* Queues, or captures; the operation is then the stream's. */
cudaError_t stream_enqueue(struct emu_stream *stream, struct operation *op);
struct emu_stream *stream_of(cudaStream_t handle); /* NULL: no stream */
cudaError_t stream_finish(struct emu_stream *stream);
cudaError_t stream_finish_all(void);
cudaError_t operation_run(struct operation *op, const struct order *order, int slot);
void stream_open(int eager);
int stream_leaks(int reporting);
extern struct emu_stream legacy_stream;

/* The operation that runs; shadow.cc compares what it touches with who wrote that. */
extern struct order running_order;

/* graph.cc */
int capture_forbids(const char *what); /* 1: some capture forbids it: reported and invalidated */
cudaError_t capture_add(struct emu_stream *stream, struct operation *op);
void capture_record(struct emu_stream *stream, struct emu_event *event);
cudaError_t capture_wait(struct emu_stream *stream, struct emu_event *event);
void capture_invalidate(struct emu_stream *stream, const char *what);
int capture_blocks_legacy(void);
int graph_leaks(int reporting);
void graph_open(void);

/* blaslt.cc */
int blaslt_leaks(int reporting);
void blaslt_open(void);

/* waits.cc: whether a test wants this wait to do nothing */
int wait_skipped(enum emu_wait_kind kind, const char *file, int line, const void *site);

/* callbacks.cc */
void faults_watch(void);

#endif
