/* SPDX-License-Identifier: Apache-2.0
 *
 * The threads of a block as fibers. Blocks of a launch run one after the other in random order; in
 * a block each thread is a fiber with its own stack, which runs until it waits: for the block
 * (__syncthreads) or for the lanes of its warp. Who runs next is random by seed, with a preference
 * for the same warp, which is what makes shuffles and mma cheap: the last lane to arrive performs
 * the exchange for all.
 *
 * When nobody can run and somebody waits, the kernel has threads that wait for each other for ever:
 * it is reported and the launch ends as a failed one. A fiber that ends a launch from inside is
 * abandoned with its stack; kernels have nothing to destroy.
 */
#include "internal.h"

#include <assert.h>
#include <errno.h>
#include <sys/mman.h>

struct emu_place emu_place;
struct running now;

enum { GUARD = 4096 };

static struct {
    char *stacks; /* MAX_THREADS of them, each behind a guard */
    struct fiber fibers[MAX_THREADS];
    struct warp warps[MAX_THREADS / WARP];
    struct async_copy asyncs[MAX_THREADS * MAX_ASYNC];
    uint32_t ready; /* warps with runnable lanes */
    int threads, warp_count, alive, at_barrier;
    void *launcher; /* the stack of the one who launched */
    cudaError_t failed;
} block;

/* --------------------------------------------------------------------- context switches ------ */

#if defined(__x86_64__) && !defined(EMU_UCONTEXT)
extern "C" void emu_switch(void **save, void *load);
/* Pushes what a call preserves, exchanges stacks, pops the other's. */
__asm__(".text\n"
        ".globl emu_switch\n"
        ".type emu_switch, @function\n"
        "emu_switch:\n"
        "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n    pushq %r13\n"
        "    pushq %r14\n    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n    popq %r14\n    popq %r13\n    popq %r12\n"
        "    popq %rbx\n    popq %rbp\n"
        "    ret\n"
        ".size emu_switch, .-emu_switch\n");

static void context_make(struct fiber *f, void (*entry)(void))
{
    /* Stacks start at different cache sets: otherwise all tops would fall into the same. */
    uintptr_t top = (uintptr_t)f->stack + FIBER_STACK - 64 - (uintptr_t)(f->index % 61) * 192;
    void **sp = (void **)(top & ~(uintptr_t)15);
    *--sp = NULL;          /* entry sees a return address that nobody uses */
    *--sp = (void *)entry; /* where emu_switch returns to */
    for (int i = 0; i < 6; i++)
        *--sp = NULL;
    f->sp = sp;
}
#else
#include <ucontext.h>
/* Contexts are ucontexts; `void *` is the address of one. */
static ucontext_t contexts[MAX_THREADS + 1];

static void emu_switch(void **save, void *load)
{
    ucontext_t *from =
        save == &block.launcher ? &contexts[MAX_THREADS] : &contexts[((struct fiber *)save)->index];
    *save = from;
    swapcontext(from, (ucontext_t *)load);
}

static void context_make(struct fiber *f, void (*entry)(void))
{
    ucontext_t *c = &contexts[f->index];
    getcontext(c);
    c->uc_stack.ss_sp = f->stack;
    c->uc_stack.ss_size = FIBER_STACK;
    c->uc_link = NULL;
    makecontext(c, entry, 0);
    f->sp = c;
}
#endif

static void stacks_map(void)
{
    size_t bytes = (size_t)MAX_THREADS * (FIBER_STACK + GUARD);
    if (block.stacks)
        return;
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert(at != MAP_FAILED);
    block.stacks = (char *)at;
    for (int i = 0; i < MAX_THREADS; i++) {
        char *guard = block.stacks + (size_t)i * (FIBER_STACK + GUARD);
        mprotect(guard, GUARD, PROT_NONE);
        block.fibers[i].index = (uint16_t)i;
        block.fibers[i].lane = (uint16_t)(i % WARP);
        block.fibers[i].warp = &block.warps[i / WARP];
        block.fibers[i].stack = guard + GUARD;
        block.fibers[i].asyncs = &block.asyncs[i * MAX_ASYNC];
        block.warps[i / WARP].lanes = &block.fibers[i / WARP * WARP];
        block.warps[i / WARP].index = i / WARP;
    }
}

int fiber_owns(const void *at)
{
    return (size_t)((const char *)at - block.stacks) < (size_t)MAX_THREADS * (FIBER_STACK + GUARD);
}

/* --------------------------------------------------------------------------- scheduling ------ */

/* A set bit of `mask`: the first from a random one on. */
static int random_bit(uint32_t mask, unsigned turn)
{
    turn &= 31;
    uint32_t turned = mask >> turn | mask << (-turn & 31);
    return (int)(((unsigned)__builtin_ctz(turned) + turn) & 31);
}

static struct fiber *pick(struct warp *preferred)
{
    struct warp *w = preferred;
    if (!block.ready)
        return NULL;
    uint64_t random = random_bits();
    if (!w || !w->runnable || random >> 60 == 0)
        w = &block.warps[random_bit(block.ready, (unsigned)(random >> 32))];
    struct fiber *f = &w->lanes[random_bit(w->runnable, (unsigned)(random >> 40))];
    w->runnable &= ~(1u << f->lane);
    if (!w->runnable)
        block.ready &= ~(1u << w->index);
    return f;
}

static void make_runnable(struct warp *w, unsigned lanes)
{
    w->runnable |= lanes;
    if (w->runnable)
        block.ready |= 1u << w->index;
}

/* Leaves the running fiber, which is queued somewhere or ended, for another or for the launcher. */
static void leave(void)
{
    struct fiber *from = now.self, *to = pick(from->warp);
    if (to == from)
        return;
    now.self = to;
    if (to) {
        emu_place.thread = to->thread;
        emu_switch(&from->sp, to->sp);
    } else {
        emu_switch(&from->sp, block.launcher);
    }
}

void fiber_abort(cudaError_t error)
{
    struct fiber *from = now.self;
    block.failed = error;
    now.self = NULL;
    emu_switch(&from->sp, block.launcher);
    __builtin_unreachable();
}

/* -------------------------------------------------------------------------- the barrier ------ */

static void barrier_check(void)
{
    struct fiber *first = NULL;
    for (int i = 0; i < block.threads; i++) {
        struct fiber *f = &block.fibers[i];
        if (!(f->warp->alive & (1u << f->lane)))
            continue;
        if (!first)
            first = f;
        if (f->barrier_line != first->barrier_line) {
            report(EMU_BARRIER, NULL, "thread %d waits at %s:%d, thread %d at %s:%d", first->index,
                   first->barrier_file, first->barrier_line, f->index, f->barrier_file,
                   f->barrier_line);
            return;
        }
    }
    if (block.alive != block.threads)
        report(EMU_BARRIER, NULL, "%d of %d threads ended before the barrier at %s:%d",
               block.threads - block.alive, block.threads, first->barrier_file,
               first->barrier_line);
}

static void barrier_release(void)
{
    barrier_check();
    block.at_barrier = 0;
    shadow_barrier();
    for (int w = 0; w < block.warp_count; w++)
        make_runnable(&block.warps[w], block.warps[w].alive);
}

void emu_syncthreads(const char *file, int line)
{
    struct fiber *self = now.self;
    if (wait_skipped(EMU_WAIT_BARRIER, file, line, NULL))
        return;
    self->barrier_file = file;
    self->barrier_line = line;
    if (++block.at_barrier == block.alive)
        barrier_release();
    leave();
}

/* ------------------------------------------------------------------------ warp rendezvous ---- */

static int is_aligned_kind(int kind) /* .aligned in PTX: one instruction, and the whole warp */
{
    return kind == WARP_MMA || kind == WARP_LDMATRIX;
}

/* Whether all lanes of the call's mask wait for the same; reports lanes that wait for another. */
static int warp_agrees(struct warp *w, const struct warp_call *call, unsigned lanes)
{
    for (unsigned left = lanes; left; left &= left - 1) {
        const struct warp_call *other = w->lanes[__builtin_ctz(left)].call;
        if (other->kind == call->kind && other->mask == call->mask &&
            (!is_aligned_kind(call->kind) || other->line == call->line))
            continue;
        report(EMU_WARP, NULL,
               "lanes of one mask are at different instructions: mask %08x at %s:%d, mask %08x at "
               "%s:%d",
               call->mask, call->file, call->line, other->mask, other->file, other->line);
        return 0;
    }
    return 1;
}

/* Performs the call when all its lanes are there; they may then run. */
static void warp_try(struct warp *w, const struct warp_call *call)
{
    unsigned lanes = call->mask & w->alive;
    if ((w->waiting & lanes) != lanes)
        return;
    if (!warp_agrees(w, call, lanes))
        fiber_abort(cudaErrorLaunchFailure);
    if (call->perform)
        call->perform(w, lanes);
    w->waiting &= ~lanes;
    make_runnable(w, lanes);
}

void fiber_wait_warp(const struct warp_call *call)
{
    struct fiber *self = now.self;
    struct warp *w = self->warp;
    if (!(call->mask & (1u << self->lane))) {
        report(EMU_WARP, NULL, "lane %d is not in its own mask %08x at %s:%d", self->lane,
               call->mask, call->file, call->line);
        fiber_abort(cudaErrorLaunchFailure);
    }
    if (is_aligned_kind(call->kind) && w->alive != 0xffffffffu) {
        report(EMU_WARP, NULL, "only lanes %08x of the warp are left at %s:%d", w->alive,
               call->file, call->line);
        fiber_abort(cudaErrorLaunchFailure);
    }
    self->call = call;
    w->waiting |= 1u << self->lane;
    warp_try(w, call);
    leave();
}

unsigned emu_active_mask(void)
{
    return 1u << now.self->lane; /* all that is sure */
}

/* ---------------------------------------------------------------------------- one block ------ */

static void fiber_main(void)
{
    now.launch->run(now.launch->call);
    struct fiber *self = now.self;
    struct warp *w = self->warp;
    async_forget(self);
    w->alive &= ~(1u << self->lane);
    block.alive--;
    if (block.alive && block.at_barrier == block.alive)
        barrier_release();
    for (unsigned left = w->waiting; left; left &= left - 1) {
        const struct fiber *f = &w->lanes[__builtin_ctz(left)];
        if (f->call->mask & (1u << self->lane)) {
            warp_try(w, f->call);
            break;
        }
    }
    leave();
    __builtin_unreachable();
}

static void report_stuck(void)
{
    for (int i = 0; i < block.threads; i++) {
        struct fiber *f = &block.fibers[i];
        if (f->warp->waiting & (1u << f->lane)) {
            report(EMU_WARP, NULL,
                   "thread %d waits at %s:%d for lanes of mask %08x that never come; at the same "
                   "time %d thread(s) wait at a barrier",
                   i, f->call->file, f->call->line, f->call->mask, block.at_barrier);
            return;
        }
    }
    report(EMU_BARRIER, NULL, "%d thread(s) wait at a barrier that the others never reach",
           block.at_barrier);
}

static void block_start(const struct launch *l)
{
    block.threads = (int)(l->block.x * l->block.y * l->block.z);
    block.alive = block.threads;
    block.warp_count = (block.threads + WARP - 1) / WARP;
    block.at_barrier = 0;
    block.ready = 0;
    for (int w = 0; w < block.warp_count; w++) {
        int left = block.threads - w * WARP;
        block.warps[w].alive = left >= WARP ? 0xffffffffu : (1u << left) - 1;
        block.warps[w].waiting = block.warps[w].runnable = 0;
        block.warps[w].phase = 0;
        make_runnable(&block.warps[w], block.warps[w].alive);
    }
    uint3 t = {0, 0, 0};
    for (int i = 0; i < block.threads; i++) {
        struct fiber *f = &block.fibers[i];
        f->thread = t;
        f->async_first = f->async_count = f->async_group = 0;
        context_make(f, fiber_main);
        if (++t.x == l->block.x)
            t.x = 0, t.y++;
        if (t.y == l->block.y)
            t.y = 0, t.z++;
    }
}

static void block_run(const struct launch *l, uint3 at)
{
    emu_place.block = at;
    block_start(l);
    shadow_begin_block(l->dynamic_bytes);
    struct fiber *first = pick(NULL);
    now.self = first;
    emu_place.thread = first->thread;
    emu_switch(&block.launcher, first->sp);
    now.self = NULL;
    if (!block.failed && block.alive) {
        report_stuck();
        block.failed = cudaErrorLaunchFailure;
    }
}

cudaError_t launch_run(const struct launch *l)
{
    uint64_t blocks = (uint64_t)l->grid.x * l->grid.y * l->grid.z;
    uint32_t *order = (uint32_t *)malloc(blocks * sizeof order[0]);
    assert(order && blocks < UINT32_MAX);
    stacks_map();
    for (uint64_t i = 0; i < blocks; i++) { /* a random permutation as it grows */
        uint32_t j = random_below((uint32_t)i + 1);
        order[i] = order[j];
        order[j] = (uint32_t)i;
    }
    now.launch = l;
    emu_place.grid_dim = l->grid;
    emu_place.block_dim = l->block;
    block.failed = cudaSuccess;
    now.fenced = 0;
    for (uint64_t i = 0; i < blocks && !block.failed; i++) {
        uint32_t b = order[i];
        block_run(l, {b % l->grid.x, b / l->grid.x % l->grid.y, b / l->grid.x / l->grid.y});
    }
    now.launch = NULL;
    free(order);
    return block.failed;
}
