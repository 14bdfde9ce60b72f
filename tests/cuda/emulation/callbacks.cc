/* SPDX-License-Identifier: Apache-2.0
 *
 * What instrumented kernels call. They are compiled with -fsanitize=thread,alignment,bounds, but no
 * sanitizer is linked: every load and store, every pointer that is not as aligned as its type
 * wants, every index past an array of known length comes here. Host code of the same files calls
 * too, and is not looked at.
 */
#include "internal.h"

#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#define SITE __builtin_return_address(0)

extern "C" {

void __tsan_init(void)
{
    shadow_instrumented();
}
void __tsan_func_entry(void *)
{
}
void __tsan_func_exit(void)
{
}

#define READ_WRITE(size)                                                                           \
    void __tsan_read##size(void *at)                                                               \
    {                                                                                              \
        if (now.self)                                                                              \
            shadow_read(at, size, SITE);                                                           \
    }                                                                                              \
    void __tsan_write##size(void *at)                                                              \
    {                                                                                              \
        if (now.self)                                                                              \
            shadow_write(at, size, SITE);                                                          \
    }                                                                                              \
    void __tsan_unaligned_read##size(void *at)                                                     \
    {                                                                                              \
        if (now.self)                                                                              \
            shadow_read(at, size, SITE);                                                           \
    }                                                                                              \
    void __tsan_unaligned_write##size(void *at)                                                    \
    {                                                                                              \
        if (now.self)                                                                              \
            shadow_write(at, size, SITE);                                                          \
    }
READ_WRITE(1)
READ_WRITE(2)
READ_WRITE(4)
READ_WRITE(8)
READ_WRITE(16)

void __tsan_read_range(void *at, size_t bytes)
{
    if (now.self)
        shadow_read(at, bytes, SITE);
}
void __tsan_write_range(void *at, size_t bytes)
{
    if (now.self)
        shadow_write(at, bytes, SITE);
}
void __tsan_vptr_update(void **, void *)
{
}
void __tsan_vptr_read(void **)
{
}

/* Atomics of host code: what they do, without the bookkeeping. */
#define ATOMICS(bits, type)                                                                        \
    type __tsan_atomic##bits##_load(const volatile type *at, int)                                  \
    {                                                                                              \
        return __atomic_load_n(at, __ATOMIC_SEQ_CST);                                              \
    }                                                                                              \
    void __tsan_atomic##bits##_store(volatile type *at, type v, int)                               \
    {                                                                                              \
        __atomic_store_n(at, v, __ATOMIC_SEQ_CST);                                                 \
    }                                                                                              \
    type __tsan_atomic##bits##_exchange(volatile type *at, type v, int)                            \
    {                                                                                              \
        return __atomic_exchange_n(at, v, __ATOMIC_SEQ_CST);                                       \
    }                                                                                              \
    type __tsan_atomic##bits##_fetch_add(volatile type *at, type v, int)                           \
    {                                                                                              \
        return __atomic_fetch_add(at, v, __ATOMIC_SEQ_CST);                                        \
    }                                                                                              \
    type __tsan_atomic##bits##_fetch_sub(volatile type *at, type v, int)                           \
    {                                                                                              \
        return __atomic_fetch_sub(at, v, __ATOMIC_SEQ_CST);                                        \
    }                                                                                              \
    type __tsan_atomic##bits##_fetch_or(volatile type *at, type v, int)                            \
    {                                                                                              \
        return __atomic_fetch_or(at, v, __ATOMIC_SEQ_CST);                                         \
    }                                                                                              \
    type __tsan_atomic##bits##_fetch_and(volatile type *at, type v, int)                           \
    {                                                                                              \
        return __atomic_fetch_and(at, v, __ATOMIC_SEQ_CST);                                        \
    }                                                                                              \
    int __tsan_atomic##bits##_compare_exchange_strong(volatile type *at, type *expected, type v,   \
                                                      int, int)                                    \
    {                                                                                              \
        return __atomic_compare_exchange_n(at, expected, v, 0, __ATOMIC_SEQ_CST,                   \
                                           __ATOMIC_SEQ_CST);                                      \
    }                                                                                              \
    int __tsan_atomic##bits##_compare_exchange_weak(volatile type *at, type *expected, type v,     \
                                                    int, int)                                      \
    {                                                                                              \
        return __atomic_compare_exchange_n(at, expected, v, 0, __ATOMIC_SEQ_CST,                   \
                                           __ATOMIC_SEQ_CST);                                      \
    }
ATOMICS(8, uint8_t)
ATOMICS(16, uint16_t)
ATOMICS(32, uint32_t)
ATOMICS(64, uint64_t)

/* ----------------------------------------------------------------- -fsanitize=alignment ------ */

struct source_place {
    const char *file;
    uint32_t line, column;
};
struct type_name {
    uint16_t kind, info;
    char name[1];
};
struct misaligned_data {
    struct source_place place;
    const struct type_name *type;
    unsigned char log_alignment, what;
};
struct bounds_data {
    struct source_place place;
    const struct type_name *array, *index;
};

static void misaligned(const struct misaligned_data *data, uintptr_t at, const void *site)
{
    if (!now.self)
        return;
    report(EMU_MISALIGNED, site, "%p is no multiple of %u, which %s needs, at %s:%u", (void *)at,
           1u << data->log_alignment, data->type->name, data->place.file, data->place.line);
    fiber_abort(cudaErrorMisalignedAddress);
}

static void out_of_bounds(const struct bounds_data *data, uintptr_t index, const void *site)
{
    if (!now.self)
        return;
    report(EMU_BOUNDS, site, "index %lld of %s at %s:%u", (long long)index, data->array->name,
           data->place.file, data->place.line);
    fiber_abort(cudaErrorIllegalAddress);
}

void __ubsan_handle_type_mismatch_v1(const struct misaligned_data *data, uintptr_t at)
{
    misaligned(data, at, SITE);
}
void __ubsan_handle_type_mismatch_v1_abort(const struct misaligned_data *data, uintptr_t at)
{
    misaligned(data, at, SITE);
}
void __ubsan_handle_out_of_bounds(const struct bounds_data *data, uintptr_t index)
{
    out_of_bounds(data, index, SITE);
}
void __ubsan_handle_out_of_bounds_abort(const struct bounds_data *data, uintptr_t index)
{
    out_of_bounds(data, index, SITE);
}
} /* extern "C" */

/* ------------------------------------------------- faults of kernels that are not checked ---- */

#if defined(__x86_64__)
__attribute__((noreturn)) static void end_launch(void)
{
    fiber_abort(cudaErrorIllegalAddress);
}

/* A kernel touched what is not there: reported, and the launch ends. Host code that touched device
 * memory: reported, and the program ends. */
static void on_fault(int signal, siginfo_t *info, void *context)
{
    ucontext_t *c = (ucontext_t *)context;
    const struct allocation *a = allocation_of(info->si_addr);
    if (!now.self && !is_device(info->si_addr)) {
        struct sigaction plain = {};
        plain.sa_handler = SIG_DFL;
        sigaction(signal, &plain, NULL);
        return; /* again, for the default */
    }
    report(!now.self       ? EMU_DEVICE_MEMORY
           : a && a->freed ? EMU_FREED
                           : EMU_BOUNDS,
           (void *)c->uc_mcontext.gregs[REG_RIP], "touches %p%s", info->si_addr,
           fiber_owns(info->si_addr) ? ": the thread's stack is full" : "");
    if (!now.self)
        exit(97); /* the reports are printed there */
    c->uc_mcontext.gregs[REG_RSP] = (c->uc_mcontext.gregs[REG_RSP] - 256) / 16 * 16 - 8;
    c->uc_mcontext.gregs[REG_RIP] = (greg_t)end_launch;
}

void faults_watch(void)
{
    static char stack[64 << 10];
    stack_t alternate = {};
    struct sigaction action = {};
    alternate.ss_sp = stack;
    alternate.ss_size = sizeof stack;
    sigaltstack(&alternate, NULL);
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
}
#else
void faults_watch(void)
{
}
#endif
