/* SPDX-License-Identifier: Apache-2.0
 *
 * The operations that streams are made of, but for products: launches, copies, memsets. What a call
 * can see to be wrong it refuses at once; the rest shows when the operation runs.
 */
#include "internal.h"

#include <assert.h>

/* ----------------------------------------------------------------------------- launches ------ */

enum { MAX_KERNELS = 1024, PLAIN_SHARED = 48 << 10 };

static struct {
    const void *kernel;
    int dynamic;
} limits[MAX_KERNELS];
static int limit_count;

static size_t dynamic_limit(const void *kernel)
{
    for (int i = 0; i < limit_count; i++)
        if (limits[i].kernel == kernel)
            return (size_t)limits[i].dynamic;
    return PLAIN_SHARED;
}

cudaError_t emu_func_set_attribute(const void *kernel, enum cudaFuncAttribute attr, int value)
{
    entry call;
    int i = 0;
    if (call.error)
        return result(call.error);
    if (attr != cudaFuncAttributeMaxDynamicSharedMemorySize)
        return result(cudaSuccess);
    if (value < 0 || (size_t)value > shared_limit_optin()) {
        report(EMU_LAUNCH, NULL, "%s: %d bytes of dynamic shared memory; sm_%d has %zu",
               symbol_of(kernel), value, architecture(), shared_limit_optin());
        return result(cudaErrorInvalidValue);
    }
    while (i < limit_count && limits[i].kernel != kernel)
        i++;
    assert(i < MAX_KERNELS);
    limits[i] = {kernel, value};
    limit_count += i == limit_count;
    return result(cudaSuccess);
}

static cudaError_t launch_check(const cudaLaunchConfig_t *c, const void *kernel)
{
    const dim3 b = c->blockDim, g = c->gridDim;
    if (!b.x || !b.y || !b.z || b.x > 1024 || b.y > 1024 || b.z > 64 ||
        (uint64_t)b.x * b.y * b.z > MAX_THREADS) {
        report(EMU_LAUNCH, NULL, "%s: a block of %u x %u x %u threads", symbol_of(kernel), b.x, b.y,
               b.z);
        return cudaErrorInvalidConfiguration;
    }
    if (!g.x || !g.y || !g.z || g.x > 2147483647u || g.y > 65535 || g.z > 65535) {
        report(EMU_LAUNCH, NULL, "%s: a grid of %u x %u x %u blocks", symbol_of(kernel), g.x, g.y,
               g.z);
        return cudaErrorInvalidConfiguration;
    }
    size_t limit = dynamic_limit(kernel);
    if (limit > shared_limit_optin())
        limit = PLAIN_SHARED; /* set for another device */
    if (c->dynamicSmemBytes > limit) {
        report(EMU_LAUNCH, NULL, "%s: %zu bytes of dynamic shared memory, %zu are allowed on sm_%d",
               symbol_of(kernel), c->dynamicSmemBytes, limit, architecture());
        return cudaErrorInvalidValue;
    }
    return cudaSuccess;
}

struct kernel_launch {
    struct operation op;
    struct launch launch;
};

static cudaError_t kernel_run(struct operation *self)
{
    return launch_run(&((struct kernel_launch *)self)->launch);
}

static void kernel_fini(struct operation *self)
{
    free(((struct kernel_launch *)self)->launch.call);
}

cudaError_t emu_launch(const cudaLaunchConfig_t *config, const void *kernel, void (*run)(void *),
                       const void *arguments, size_t bytes)
{
    entry call;
    if (call.error)
        return result(call.error);
    struct emu_stream *s = stream_of(config->stream);
    cudaError_t error = s ? launch_check(config, kernel) : cudaErrorInvalidResourceHandle;
    if (error)
        return result(error);
    struct kernel_launch *k = (struct kernel_launch *)operation_new(sizeof *k, kernel_run);
    k->op.fini = kernel_fini;
    k->launch = {kernel,
                 run,
                 aligned_alloc(64, (bytes + 63) / 64 * 64),
                 bytes,
                 config->gridDim,
                 config->blockDim,
                 config->dynamicSmemBytes};
    assert(k->launch.call);
    memcpy(k->launch.call, arguments, bytes);
    figures.launches++;
    return result(stream_enqueue(s, &k->op));
}

/* ------------------------------------------------------------------------------- copies ------ */

struct transfer {
    struct operation op;
    char *to;
    const char *from; /* NULL: a memset */
    size_t bytes;
    int value;
    char *staged; /* pageable memory is read when the call is made */
};

static cudaError_t transfer_run(struct operation *self)
{
    struct transfer *t = (struct transfer *)self;
    const char *from = t->staged ? t->staged : t->from;
    cudaError_t error = cudaSuccess;
    if (from && is_device(from))
        error = shadow_host_read(from, t->bytes, "a copy");
    if (!error && is_device(t->to))
        error = shadow_host_write(t->to, t->bytes, from ? "a copy" : "a memset");
    if (error)
        return error;
    if (from)
        memmove(t->to, from, t->bytes);
    else
        memset(t->to, t->value, t->bytes);
    return cudaSuccess;
}

static void transfer_fini(struct operation *self)
{
    free(((struct transfer *)self)->staged);
}

/* Inside one living allocation; else reported. */
static int device_fits(const void *at, size_t bytes, const char *who)
{
    const struct allocation *a = allocation_of(at);
    size_t offset = a ? (size_t)((const char *)at - a->at) : 0;
    if (a && !a->freed && offset <= a->bytes && bytes <= a->bytes - offset)
        return 1;
    if (!a)
        report(EMU_BOUNDS, NULL, "%s at %p, which no allocation ever had", who, at);
    else
        report(a->freed ? EMU_FREED : EMU_BOUNDS, NULL,
               "%s of %zu bytes at offset %zu of %sallocation %llu of %zu bytes", who, bytes,
               offset, a->freed ? "freed " : "", (unsigned long long)a->serial, a->bytes);
    return 0;
}

static cudaError_t copy_check(const void *to, const void *from, size_t bytes,
                              enum cudaMemcpyKind kind)
{
    static const int to_device[] = {0, 1, 0, 1}, from_device[] = {0, 0, 1, 1};
    if ((unsigned)kind > cudaMemcpyDefault)
        return cudaErrorInvalidMemcpyDirection;
    if (kind != cudaMemcpyDefault &&
        (to_device[kind] != is_device(to) || from_device[kind] != is_device(from))) {
        report(EMU_MISUSE, NULL, "a copy from %s to %s memory that is called the kind %d",
               is_device(from) ? "device" : "host", is_device(to) ? "device" : "host", (int)kind);
        return cudaErrorInvalidValue;
    }
    if ((is_device(to) && !device_fits(to, bytes, "a copy to")) ||
        (is_device(from) && !device_fits(from, bytes, "a copy from")))
        return cudaErrorInvalidValue;
    const struct host_range *r = is_device(to) ? NULL : host_range_of(to, bytes);
    if (r && r->read_only) {
        report(EMU_READ_ONLY, NULL, "a copy to host memory that is registered read-only");
        return cudaErrorInvalidValue;
    }
    return cudaSuccess;
}

static cudaError_t copy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                        struct emu_stream *s)
{
    cudaError_t error = s ? copy_check(to, from, bytes, kind) : cudaErrorInvalidResourceHandle;
    if (error || bytes == 0)
        return error;
    struct transfer *t = (struct transfer *)operation_new(sizeof *t, transfer_run);
    t->op.fini = transfer_fini;
    t->to = (char *)to;
    t->from = (const char *)from;
    t->bytes = bytes;
    int capturing = s->capture != NULL;
    if (!is_device(from) && !host_range_of(from, bytes) && !capturing) {
        t->staged = (char *)malloc(bytes);
        assert(t->staged);
        memcpy(t->staged, from, bytes);
    }
    figures.copies++;
    error = stream_enqueue(s, &t->op);
    if (!error && !is_device(to) && !host_range_of(to, bytes) && !capturing)
        error = stream_finish(s); /* to pageable memory: returns when it is there */
    return error;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    entry call;
    if (call.error)
        return result(call.error);
    return result(copy(to, from, bytes, kind, stream_of(stream)));
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    entry call;
    if (call.error)
        return result(call.error);
    if (capture_forbids("cudaMemcpy"))
        return result(cudaErrorStreamCaptureUnsupported);
    cudaError_t error = copy(to, from, bytes, kind, &legacy_stream);
    return result(error ? error : stream_finish(&legacy_stream));
}

cudaError_t cudaMemsetAsync(void *at, int value, size_t bytes, cudaStream_t stream)
{
    entry call;
    if (call.error)
        return result(call.error);
    struct emu_stream *s = stream_of(stream);
    if (!s)
        return result(cudaErrorInvalidResourceHandle);
    if (!is_device(at) && !host_range_of(at, bytes)) {
        report(EMU_HOST_MEMORY, NULL, "a memset of host memory");
        return result(cudaErrorInvalidValue);
    }
    if (is_device(at) && !device_fits(at, bytes, "a memset"))
        return result(cudaErrorInvalidValue);
    if (bytes == 0)
        return result(cudaSuccess);
    struct transfer *t = (struct transfer *)operation_new(sizeof *t, transfer_run);
    t->to = (char *)at;
    t->value = value;
    t->bytes = bytes;
    return result(stream_enqueue(s, &t->op));
}

cudaError_t cudaMemset(void *at, int value, size_t bytes)
{
    return cudaMemsetAsync(at, value, bytes, cudaStreamLegacy);
}
