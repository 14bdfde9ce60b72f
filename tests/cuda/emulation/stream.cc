/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams and events. An operation is queued and runs late: when a call waits for it, in an order
 * drawn by seed among all that streams, events and the rules of the legacy stream allow. So a wait
 * that is missing shows: what should have been there is not yet, or not any more. Each operation
 * also carries what is ordered before it, by which shadow.cc tells that two operations touch the
 * same bytes with nothing between them, whichever ran first.
 */
#include "internal.h"

#include <assert.h>
#include <time.h>

struct emu_stream legacy_stream;
struct order running_order;

static struct emu_stream *streams; /* but the legacy one */
static struct emu_event *events;
static struct order host_order; /* what the host has waited for */
static uint64_t issued;
static unsigned slots = 1; /* in use; the legacy stream has 0 */
static uint32_t slot_issued[MAX_STREAMS];
static int eager_mode;

void order_merge(struct order *order, const struct order *other)
{
    for (int i = 0; i < MAX_STREAMS; i++)
        if (other->seen[i] > order->seen[i])
            order->seen[i] = other->seen[i];
}

/* --------------------------------------------------------------------------- operations ------ */

struct operation *operation_new(size_t bytes, cudaError_t (*run)(struct operation *))
{
    struct operation *op = (struct operation *)calloc(1, bytes);
    assert(op);
    op->run = run;
    return op;
}

static void record_free(struct record *r)
{
    if (r && --r->refs == 0)
        free(r);
}

void operation_free(struct operation *op)
{
    if (op->fini)
        op->fini(op);
    record_free(op->record);
    free(op);
}

cudaError_t operation_run(struct operation *op, const struct order *order, int slot)
{
    running_order = *order;
    shadow_begin_operation(order, slot);
    return sticking() ? sticking() : op->run(op);
}

/* ----------------------------------------------------------------------------- the order ----- */

static int is_blocking(const struct emu_stream *s)
{
    return !(s->flags & cudaStreamNonBlocking);
}

static int head_ready(const struct emu_stream *s)
{
    const struct operation *op = s->head;
    if (!op || (op->kind == OP_WAIT && !op->record->done))
        return 0;
    if (s != &legacy_stream)
        return !is_blocking(s) || !legacy_stream.head || legacy_stream.head->issued > op->issued;
    for (const struct emu_stream *other = streams; other; other = other->next)
        if (is_blocking(other) && other->head && other->head->issued < op->issued)
            return 0;
    return 1;
}

static struct emu_stream *pick_stream(void)
{
    struct emu_stream *picked = head_ready(&legacy_stream) ? &legacy_stream : NULL;
    uint32_t ready = picked != NULL;
    for (struct emu_stream *s = streams; s; s = s->next)
        if (head_ready(s) && random_below(++ready) == 0)
            picked = s;
    return picked;
}

static uint64_t nanoseconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void run_head(struct emu_stream *s)
{
    struct operation *op = s->head;
    s->head = op->next;
    if (!s->head)
        s->tail = NULL;
    if (op->kind == OP_RUN) {
        cudaError_t error = operation_run(op, &op->order, op->slot);
        if (error)
            stick(error);
    } else if (op->kind == OP_RECORD) {
        op->record->done = 1;
        op->record->nanoseconds = nanoseconds();
    }
    operation_free(op);
}

/* Runs what is ready until `done` says enough or nothing is left. */
static void run_until(int (*done)(const void *), const void *what)
{
    struct emu_stream *s;
    memory_access(1);
    while (!done(what) && (s = pick_stream()))
        run_head(s);
    memory_access(0);
}

static int stream_done(const void *stream)
{
    return !((const struct emu_stream *)stream)->head;
}

static int record_done(const void *record)
{
    return ((const struct record *)record)->done;
}

static int nothing_done(const void *)
{
    return 0;
}

cudaError_t stream_finish(struct emu_stream *s)
{
    run_until(stream_done, s);
    order_merge(&host_order, &s->order);
    return sticking();
}

cudaError_t stream_finish_all(void)
{
    run_until(nothing_done, NULL);
    order_merge(&host_order, &legacy_stream.order);
    for (struct emu_stream *s = streams; s; s = s->next)
        order_merge(&host_order, &s->order);
    return sticking();
}

/* What the new operation comes after, by the rules of the legacy stream too. */
static void issue(struct emu_stream *s, struct operation *op)
{
    order_merge(&s->order, &host_order);
    if (s == &legacy_stream) {
        for (struct emu_stream *other = streams; other; other = other->next)
            if (is_blocking(other))
                order_merge(&s->order, &other->order);
    } else if (is_blocking(s)) {
        order_merge(&s->order, &legacy_stream.order);
    }
    s->order.seen[s->slot] = ++s->issued;
    op->order = s->order;
    op->slot = s->slot;
    op->issued = ++issued;
}

cudaError_t stream_enqueue(struct emu_stream *s, struct operation *op)
{
    if (s == &legacy_stream && capture_blocks_legacy()) {
        operation_free(op);
        return cudaErrorStreamCaptureImplicit;
    }
    if (s->capture)
        return capture_add(s, op);
    issue(s, op);
    op->next = NULL;
    if (s->tail)
        s->tail->next = op;
    else
        s->head = op;
    s->tail = op;
    if (eager_mode)
        stream_finish_all();
    return cudaSuccess;
}

/* ------------------------------------------------------------------------------- streams ----- */

struct emu_stream *stream_of(cudaStream_t handle)
{
    if (!handle || handle == cudaStreamLegacy)
        return &legacy_stream;
    for (struct emu_stream *s = streams; s; s = s->next)
        if (s == handle)
            return s;
    report(EMU_MISUSE, NULL, "%p is no stream", (void *)handle);
    return NULL;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    entry call;
    if (call.error)
        return result(call.error);
    if (!stream || (flags & ~1u))
        return result(cudaErrorInvalidValue);
    struct emu_stream *s = (struct emu_stream *)calloc(1, sizeof *s);
    assert(s && slots != (1u << MAX_STREAMS) - 1);
    s->flags = flags;
    s->slot = __builtin_ctz(~slots);
    slots |= 1u << s->slot;
    s->issued = slot_issued[s->slot]; /* the place may have been used before */
    s->next = streams;
    streams = s;
    *stream = s;
    return result(cudaSuccess);
}

cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    entry call;
    struct emu_stream *s = stream_of(stream);
    if (!s || s == &legacy_stream)
        return result(cudaErrorInvalidResourceHandle);
    stream_finish(s); /* the queued work is still done */
    capture_invalidate(s, NULL);
    struct emu_stream **at = &streams;
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    slots &= ~(1u << s->slot);
    slot_issued[s->slot] = s->issued;
    free(s->last);
    free(s);
    return result(call.error);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    entry call;
    if (call.error)
        return result(call.error);
    struct emu_stream *s = stream_of(stream);
    if (!s)
        return result(cudaErrorInvalidResourceHandle);
    if (s->capture) {
        capture_invalidate(s, "cudaStreamSynchronize of the capturing stream");
        return result(cudaErrorStreamCaptureUnsupported);
    }
    return result(stream_finish(s));
}

/* Goes a little way, so that who asks again and again gets there. */
static void run_a_little(void)
{
    struct emu_stream *s;
    memory_access(1);
    for (uint32_t n = random_below(4); n && (s = pick_stream()); n--)
        run_head(s);
    memory_access(0);
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    entry call;
    if (call.error)
        return result(call.error);
    struct emu_stream *s = stream_of(stream);
    if (!s)
        return result(cudaErrorInvalidResourceHandle);
    if (s->capture) {
        capture_invalidate(s, "cudaStreamQuery of the capturing stream");
        return result(cudaErrorStreamCaptureUnsupported);
    }
    run_a_little();
    if (s->head)
        return cudaErrorNotReady;
    order_merge(&host_order, &s->order);
    return result(sticking());
}

cudaError_t cudaDeviceSynchronize(void)
{
    entry call;
    if (call.error)
        return result(call.error);
    if (capture_forbids("cudaDeviceSynchronize"))
        return result(cudaErrorStreamCaptureUnsupported);
    return result(stream_finish_all());
}

/* -------------------------------------------------------------------------------- events ----- */

static struct emu_event *event_of(cudaEvent_t handle)
{
    for (struct emu_event *e = events; e; e = e->next)
        if (e == handle)
            return e;
    report(EMU_MISUSE, NULL, "%p is no event", (void *)handle);
    return NULL;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    entry call;
    if (call.error)
        return result(call.error);
    struct emu_event *e = (struct emu_event *)calloc(1, sizeof *e);
    assert(e);
    e->flags = flags;
    e->next = events;
    events = e;
    *event = e;
    return result(cudaSuccess);
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    entry call;
    struct emu_event *e = event_of(event);
    if (!e)
        return result(cudaErrorInvalidResourceHandle);
    struct emu_event **at = &events;
    while (*at != e)
        at = &(*at)->next;
    *at = e->next;
    record_free(e->record);
    free(e->last);
    free(e);
    return result(call.error);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    entry call;
    if (call.error)
        return result(call.error);
    struct emu_event *e = event_of(event);
    struct emu_stream *s = stream_of(stream);
    if (!e || !s)
        return result(cudaErrorInvalidResourceHandle);
    if (s->capture) {
        capture_record(s, e);
        return result(cudaSuccess);
    }
    struct operation *op = operation_new(sizeof *op, NULL);
    struct record *r = (struct record *)calloc(1, sizeof *r);
    assert(r);
    op->kind = OP_RECORD;
    op->record = r;
    r->refs = 2;
    record_free(e->record);
    e->record = r;
    e->capture = NULL;
    order_merge(&r->order, &s->order);
    order_merge(&r->order, &host_order);
    return result(stream_enqueue(s, op));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
    entry call;
    if (call.error)
        return result(call.error);
    struct emu_event *e = event_of(event);
    struct emu_stream *s = stream_of(stream);
    if (!e || !s)
        return result(cudaErrorInvalidResourceHandle);
    if (wait_skipped(EMU_WAIT_STREAM, NULL, 0, __builtin_return_address(0)))
        return result(cudaSuccess);
    if (s->capture || e->capture)
        return result(capture_wait(s, e));
    if (!e->record)
        return result(cudaSuccess); /* never recorded: nothing to wait for */
    struct operation *op = operation_new(sizeof *op, NULL);
    op->kind = OP_WAIT;
    op->record = e->record;
    e->record->refs++;
    order_merge(&s->order, &e->record->order);
    return result(stream_enqueue(s, op));
}

static cudaError_t event_check(struct emu_event *e, const char *what)
{
    if (!e)
        return cudaErrorInvalidResourceHandle;
    if (!e->capture)
        return cudaSuccess;
    report(EMU_CAPTURE, NULL, "%s of an event that was recorded while capturing", what);
    return cudaErrorCapturedEvent;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    entry call;
    struct emu_event *e = event_of(event);
    cudaError_t error = call.error ? call.error : event_check(e, "cudaEventQuery");
    if (error)
        return result(error);
    run_a_little();
    if (e->record && !e->record->done)
        return cudaErrorNotReady;
    if (e->record)
        order_merge(&host_order, &e->record->order);
    return result(sticking());
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    entry call;
    struct emu_event *e = event_of(event);
    cudaError_t error = call.error ? call.error : event_check(e, "cudaEventSynchronize");
    if (error || !e->record)
        return result(error);
    run_until(record_done, e->record);
    order_merge(&host_order, &e->record->order);
    return result(sticking());
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    entry call;
    struct emu_event *a = event_of(start), *b = event_of(end);
    if (call.error)
        return result(call.error);
    if (!a || !b || !a->record || !b->record || ((a->flags | b->flags) & cudaEventDisableTiming))
        return result(cudaErrorInvalidResourceHandle);
    if (!a->record->done || !b->record->done)
        return cudaErrorNotReady;
    *ms = (float)((double)(int64_t)(b->record->nanoseconds - a->record->nanoseconds) * 1e-6);
    return result(cudaSuccess);
}

/* ------------------------------------------------------------------------------------------- */

static void queue_drop(struct emu_stream *s)
{
    while (s->head) {
        struct operation *op = s->head;
        s->head = op->next;
        operation_free(op);
    }
    s->tail = NULL;
    s->capture = NULL;
}

/* What the last device left is forgotten: its streams and events exist no more. */
void stream_open(int eager)
{
    queue_drop(&legacy_stream);
    for (struct emu_stream *s = streams; s; s = s->next) {
        queue_drop(s);
        slot_issued[s->slot] = s->issued;
        order_merge(&host_order, &s->order);
    }
    order_merge(&host_order, &legacy_stream.order);
    streams = NULL;
    events = NULL;
    slots = 1;
    eager_mode = eager;
}

int stream_leaks(int reporting)
{
    int leaks = 0;
    for (struct emu_stream *s = streams; s; s = s->next, leaks++)
        if (reporting)
            report(EMU_LEAK, NULL, "a stream");
    for (struct emu_event *e = events; e; e = e->next, leaks++)
        if (reporting)
            report(EMU_LEAK, NULL, "an event");
    return leaks;
}
