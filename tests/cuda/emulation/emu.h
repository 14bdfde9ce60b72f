/* SPDX-License-Identifier: Apache-2.0
 *
 * CUDA executed on the CPU, as a test sees it: open a device of some architecture, run the product
 * on it, assert what was reported. tests/cuda/README.md shows a test.
 *
 * One emulated device in a process. Calls may come from several threads (a lock orders them);
 * kernels run in the thread whose call waits for them.
 */
#ifndef EMU_H
#define EMU_H

#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(default) /* tests find them in the module */
#ifdef __cplusplus
extern "C" {
#endif

enum emu_kind {
    EMU_BARRIER,     /* threads of a block that wait at different barriers, or exited before one */
    EMU_WARP,        /* lanes of a mask that don't all arrive, or at different instructions */
    EMU_RACE_SHARED, /* two threads, no barrier between, one writes */
    EMU_RACE_GLOBAL, /* the same in global memory, or two blocks of one launch */
    EMU_RACE_STREAM, /* an operation touches what another one wrote that nothing puts before it */
    EMU_UNWRITTEN,   /* memory read that nothing has written */
    EMU_BOUNDS,      /* outside of any allocation, or of the launch's shared memory */
    EMU_FREED,       /* memory that was freed */
    EMU_HOST_MEMORY, /* host memory that is neither pinned nor registered, in device code */
    EMU_DEVICE_MEMORY, /* device memory touched by host code */
    EMU_READ_ONLY,     /* written by a kernel, but registered read-only */
    EMU_MISALIGNED,    /* an access of more than one byte off its alignment */
    EMU_ASYNC_COPY,    /* cp.async data touched before the wait that covers it */
    EMU_LAUNCH,        /* a launch that the device refuses */
    EMU_CAPTURE,       /* a call that is not allowed while a stream captures */
    EMU_BLAS,          /* cuBLASLt: what the documentation refuses */
    EMU_MISUSE,        /* any other call with wrong arguments */
    EMU_LEAK,          /* not freed when the program ended */
    EMU_KINDS
};

struct emu_options {
    int architecture;    /* 75, 80, 86, 89, 90, 100, 120; default 90 */
    size_t memory;       /* bytes of device memory; default 4 GiB */
    uint64_t seed;       /* of every order that CUDA leaves open; default: 1 */
    int fail_allocation; /* the nth cudaMalloc, cudaMallocHost from here on fails; 0: none */
    int lose_device;     /* from the nth runtime call on the device is lost; 0: never */
    int no_device;     /* 1: no GPU, 2: no driver, 3: one of CUDA 12.4, more: that error instead */
    int eager;         /* operations run when they are queued, not late */
    int alpha_vectors; /* cuBLASLt has algorithms that take a vector of alpha: nowhere documented
                          for these types, so a caller has to do without, too */
    int rows_to_bf16;  /* FP8 products with vectors of scales write bfloat16 alone: which types they
                          write is documented no better */
};

/* A fresh device. What the last one left is reported and taken away; its reports are kept. NULL:
 * the defaults, and where set the environment's EMU_ARCHITECTURE, EMU_MEMORY, EMU_SEED. */
void emu_open(const struct emu_options *options);

/* What may be changed while running. */
void emu_fail_allocation(int nth);
void emu_lose_device(int nth);
void emu_seed(uint64_t seed);

/* Whether accesses of kernels are checked (compiled with -fsanitize=thread for its callbacks, which
 * is noticed, and not switched off). */
void emu_check_memory(int on);

/* Reports so far. Those that are left when the program ends are printed and make it fail. */
int emu_reports(void);
int emu_reported(enum emu_kind kind);
const char *emu_report_text(int index); /* NULL: no such report */
void emu_forget_reports(void);
const char *emu_kind_name(enum emu_kind kind);

/* Every place where something waits, as it is first reached, and the one that does nothing (-1:
 * none): how a test sees that the product would be reported without it. */
enum emu_wait_kind { EMU_WAIT_BARRIER, EMU_WAIT_WARP, EMU_WAIT_ASYNC_COPY, EMU_WAIT_STREAM };
struct emu_wait {
    enum emu_wait_kind kind;
    const char *file; /* of a kernel's wait */
    int line;
    const void *site; /* of cudaStreamWaitEvent: the code that called */
    uint64_t count;
};
int emu_waits(const struct emu_wait **list);
void emu_skip_wait(int index);

/* Figures of the device since emu_open(). */
struct emu_figures {
    uint64_t launches, products, copies, allocations, runtime_calls, graph_launches;
    size_t used, peak;
};
void emu_read_figures(struct emu_figures *read);

/* Leaks now: reports what is still allocated and returns how many pieces. */
int emu_leaks(void);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop

#endif
