/* SPDX-License-Identifier: Apache-2.0
 *
 * The life of a device: jobs, the sticky fault, planning, persistent vectors and the way between
 * host and device. Everything here is the same for every kind of device.
 */
#include "kernels/backend.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void kr_device_init(struct kr_device *dev, const struct kr_backend *backend)
{
    *dev = (struct kr_device){.backend = backend};
}

void kr_device_close(struct kr_device *dev)
{
    if (!dev)
        return;
    kr_job_end(dev);
    dev->backend->close(dev);
}

const char *kr_device_name(const struct kr_device *dev)
{
    return dev->name;
}

enum kr_dtype kr_compute_dtype(const struct kr_device *dev)
{
    return dev->compute;
}

size_t kr_device_free_memory(const struct kr_device *dev)
{
    return dev->backend->free_memory(dev);
}

/* ------------------------------------------------------------------------------ faults ------ */

void kr_fault_set(struct kr_device *dev, enum kr_fault fault, const char *format, ...)
{
    if (dev->fault != KR_FINE)
        return;
    dev->fault = fault;
    va_list args;
    va_start(args, format);
    vsnprintf(dev->text, sizeof dev->text, format, args);
    va_end(args);
}

/* A lost device stays lost. */
static void forget_fault(struct kr_device *dev)
{
    if (dev->fault == KR_FAULT_LOST)
        return;
    dev->fault = KR_FINE;
    dev->text[0] = '\0';
}

int kr_cancelled(const struct kr_device *dev)
{
    return dev->cancel && atomic_load_explicit(dev->cancel, memory_order_relaxed) != 0;
}

int kr_live(struct kr_device *dev)
{
    if (dev->fault == KR_FINE && !dev->planning && kr_cancelled(dev))
        kr_fault_set(dev, KR_FAULT_CANCELLED, "the job was cancelled");
    return dev->fault == KR_FINE && !dev->planning;
}

enum kr_fault kr_device_sync(struct kr_device *dev)
{
    if (kr_live(dev))
        dev->backend->sync(dev);
    kr_live(dev);
    return dev->fault;
}

const char *kr_device_fault_text(const struct kr_device *dev)
{
    return dev->text;
}

static int print_shape(char *at, size_t size, const struct kr_arg *arg)
{
    const struct kr_tensor *t = arg->tensor;
    int n = snprintf(at, size, " %s%s[", arg->name, t->data ? " " : " (no data) ");
    for (int i = 0; i < t->rank && n < (int)size; i++)
        n += snprintf(at + n, size - (size_t)n, "%s%lld", i ? "," : "", (long long)t->dim[i]);
    if (n < (int)size)
        n += snprintf(at + n, size - (size_t)n, "] %s,", kr_dtype_name(t->dtype));
    return n;
}

int kr_fits(struct kr_device *dev, const char *op, int fits, const char *rule,
            const struct kr_arg *args, int count)
{
    if (dev->fault != KR_FINE)
        return 0;
    for (int i = 0; i < count; i++)
        fits = fits && args[i].tensor->data;
    if (fits)
        return 1;
    char shapes[200] = "";
    int n = 0;
    for (int i = 0; i < count && n < (int)sizeof shapes; i++)
        n += print_shape(shapes + n, sizeof shapes - (size_t)n, &args[i]);
    if (n > 0 && n < (int)sizeof shapes)
        shapes[n - 1] = '\0'; /* the last comma */
    kr_fault_set(dev, KR_FAULT_MISUSE, "%s: want %s; got%s", op, rule, shapes);
    return 0;
}

/* -------------------------------------------------------------------------------- jobs ------ */

int kr_job_begin(struct kr_device *dev, const atomic_int *cancel, size_t bytes, char *why,
                 size_t size)
{
    assert(!dev->planning);
    kr_job_end(dev);
    forget_fault(dev);
    if (dev->fault != KR_FINE) {
        snprintf(why, size, "%s", dev->text);
        return -1;
    }
    if (kr_arena_open(dev, bytes)) {
        snprintf(why, size, "the job needs %zu MiB of memory and they can't be had (%zu MiB free)",
                 bytes >> 20, kr_device_free_memory(dev) >> 20);
        return -1;
    }
    dev->cancel = cancel;
    return 0;
}

void kr_job_end(struct kr_device *dev)
{
    assert(!dev->planning);
    dev->cancel = NULL;
    if (dev->backend->job_end)
        dev->backend->job_end(dev);
    kr_arena_close(dev);
}

size_t kr_job_peak(const struct kr_device *dev)
{
    return dev->arena.peak;
}

void kr_plan_begin(struct kr_device *dev)
{
    assert(!dev->planning);
    forget_fault(dev);
    dev->planned_over = dev->arena;
    dev->arena = (struct kr_arena){0};
    dev->planning = 1;
    dev->plan_prepared = 0;
    dev->plans++;
    if (dev->backend->plan_begin)
        dev->backend->plan_begin(dev);
}

size_t kr_plan_end(struct kr_device *dev)
{
    assert(dev->planning);
    size_t peak = dev->arena.peak;
    dev->arena = dev->planned_over;
    dev->planning = 0;
    return peak;
}

int kr_planning(const struct kr_device *dev)
{
    return dev->planning;
}

/* ---------------------------------------------------------------------- weights' places ------ */

void kr_device_residency(struct kr_device *dev, enum kr_residency residency, size_t ring)
{
    if (dev->backend->residency)
        dev->backend->residency(dev, residency, ring);
}

void kr_stage_end(struct kr_device *dev)
{
    if (dev->backend->stage_end)
        dev->backend->stage_end(dev);
}

size_t kr_weights_held(const struct kr_device *dev)
{
    return dev->backend->weights_held ? dev->backend->weights_held(dev) : 0;
}

int kr_device_has_memory(const struct kr_device *dev)
{
    return dev->backend->plan_weights != NULL;
}

size_t kr_plan_weights(const struct kr_device *dev, enum kr_residency residency)
{
    return dev->backend->plan_weights ? dev->backend->plan_weights(dev, residency) : 0;
}

/* ----------------------------------------------------------------- persistent and host ------ */

struct kr_tensor kr_persist(struct kr_device *dev, const float *host, int64_t d0, int64_t d1)
{
    assert(d0 > 0 && d1 >= 0);
    struct kr_tensor t = {.dtype = KR_F32, .rank = d1 > 0 ? 2 : 1, .dim = {d0, d1}};
    size_t bytes = (size_t)kr_count(&t) * sizeof *host;
    t.data = dev->backend->alloc(dev, bytes);
    if (t.data && host)
        dev->backend->upload(dev, t, host);
    else if (!t.data)
        kr_fault_set(dev, KR_FAULT_NO_MEMORY, "out of memory: no %zu bytes for a model's vector",
                     bytes);
    return t;
}

void kr_persist_free(struct kr_device *dev, struct kr_tensor *t)
{
    if (t->data)
        dev->backend->free(dev, t->data);
    *t = (struct kr_tensor){0};
}

size_t kr_prepared_bytes(const struct kr_device *dev)
{
    return atomic_load(&dev->prepared);
}

size_t kr_plan_prepared(const struct kr_device *dev)
{
    return dev->plan_prepared;
}

void kr_prepared_set(struct kr_device *dev, struct kr_conv *conv, size_t bytes)
{
    if (!dev->planning) {
        atomic_fetch_add(&dev->prepared, bytes - conv->prepared_bytes);
        conv->prepared_bytes = bytes;
    } else if (conv->planned != dev->plans) {
        dev->plan_prepared += bytes;
        conv->planned = dev->plans;
    }
}

void kr_conv_fini(struct kr_device *dev, struct kr_conv *conv)
{
    if (conv->prepared)
        dev->backend->conv_fini(dev, conv);
    conv->prepared = NULL;
    atomic_fetch_sub(&dev->prepared, conv->prepared_bytes);
    conv->prepared_bytes = 0;
}

void kr_upload(struct kr_device *dev, struct kr_tensor t, const float *host)
{
    if (!KR_FITS(dev, "kr_upload", (t.dtype == KR_F32 || t.dtype == KR_BF16) && !t.stride,
                 "F32 or BF16, no columns", {"t", &t}))
        return;
    if (kr_live(dev))
        dev->backend->upload(dev, t, host);
}

int kr_download(struct kr_device *dev, struct kr_tensor t, float *host)
{
    if (!KR_FITS(dev, "kr_download", (t.dtype == KR_F32 || t.dtype == KR_BF16) && !t.stride,
                 "F32 or BF16, no columns", {"t", &t}))
        return -1;
    if (dev->planning) {
        memset(host, 0, (size_t)kr_count(&t) * sizeof *host);
        return 0;
    }
    if (kr_device_sync(dev) != KR_FINE)
        return -1;
    dev->backend->download(dev, t, host);
    return dev->fault == KR_FINE ? 0 : -1;
}
