/* SPDX-License-Identifier: Apache-2.0
 *
 * What the lanes of a warp do together: exchanges, votes and the matrix instructions, with the lane
 * layouts of the PTX ISA ("Matrix Fragments for mma.m16n8k16", "Warp-level matrix load
 * instruction: ldmatrix"). The last lane to arrive performs an instruction for all (block.cc). And
 * cp.async, whose bytes arrive at the wait and not before: until then the destination holds
 * garbage.
 */
#include "internal.h"
#include "emu_convert.h"

#include <assert.h>

#define HERE __builtin_return_address(0)

void emu_fence(void)
{
    now.fenced = 1;
}

static void sync_lanes(struct warp *w, unsigned)
{
    w->phase++;
}

void emu_syncwarp(unsigned mask, const char *file, int line)
{
    struct warp_call call = {WARP_SYNC, mask, NULL, sync_lanes, file, line};
    if (wait_skipped(EMU_WAIT_WARP, file, line, NULL))
        return;
    fiber_wait_warp(&call);
}

/* ----------------------------------------------------------------------------- exchange ------ */

struct shuffle {
    int how, lane, width;
    uint64_t in, out;
};

/* The lane that lane `l` reads from, or itself where the instruction says so. */
static int shuffle_source(const struct shuffle *s, int l)
{
    int base = l & ~(s->width - 1), last = base + s->width - 1, from = l;
    switch (s->how) {
    case EMU_SHFL_INDEX:
        return base | (s->lane & (s->width - 1));
    case EMU_SHFL_XOR:
        from = l ^ s->lane;
        return from > last ? l : from; /* lower groups may be read, higher ones not */
    case EMU_SHFL_DOWN:
        from = l + s->lane;
        return from > last ? l : from;
    default:
        from = l - s->lane;
        return from < base ? l : from;
    }
}

static void shuffle_lanes(struct warp *w, unsigned lanes)
{
    for (unsigned left = lanes; left; left &= left - 1) {
        int l = __builtin_ctz(left);
        struct shuffle *s = (struct shuffle *)w->lanes[l].call->args;
        int from = shuffle_source(s, l) & 31;
        if (!(lanes & (1u << from))) {
            report(EMU_WARP, NULL, "lane %d shuffles from lane %d, which is not in %08x, at %s:%d",
                   l, from, lanes, w->lanes[l].call->file, w->lanes[l].call->line);
            s->out = 0xffffffffffffffffu;
            continue;
        }
        s->out = ((struct shuffle *)w->lanes[from].call->args)->in;
    }
}

uint64_t emu_shfl(int how, unsigned mask, uint64_t value, int lane, int width, const char *file,
                  int line)
{
    struct shuffle s = {how, lane, width, value, 0};
    struct warp_call call = {WARP_SHUFFLE, mask, &s, shuffle_lanes, file, line};
    if (width < 1 || width > WARP || (width & (width - 1)))
        report(EMU_WARP, NULL, "a shuffle of width %d at %s:%d", width, file, line);
    fiber_wait_warp(&call);
    return s.out;
}

struct vote {
    int predicate;
    unsigned ballot;
};

static void vote_lanes(struct warp *w, unsigned lanes)
{
    unsigned ballot = 0;
    for (unsigned left = lanes; left; left &= left - 1) {
        int l = __builtin_ctz(left);
        if (((struct vote *)w->lanes[l].call->args)->predicate)
            ballot |= 1u << l;
    }
    for (unsigned left = lanes; left; left &= left - 1)
        ((struct vote *)w->lanes[__builtin_ctz(left)].call->args)->ballot = ballot;
}

unsigned emu_ballot(unsigned mask, int predicate, const char *file, int line)
{
    struct vote v = {predicate, 0};
    struct warp_call call = {WARP_VOTE, mask, &v, vote_lanes, file, line};
    fiber_wait_warp(&call);
    return v.ballot;
}

/* ------------------------------------------------------------------------------ matrices ----- */

struct mma {
    int type; /* enum emu_mma */
    float *d;
    const uint32_t *a, *b;
};

static float e4m3_values[256];

static void make_e4m3_values(void)
{
    if (e4m3_values[1] == 0)
        for (int i = 0; i < 256; i++)
            e4m3_values[i] = emu_f32_of_fp8((uint8_t)i, 0);
}

/* Element i of a register, which has two of 16 bits or four of 8. */
static float element_of(uint32_t bits, int i, int type)
{
    if (type == EMU_MMA_E4M3)
        return e4m3_values[bits >> 8 * i & 0xff];
    bits >>= 16 * i;
    return type == EMU_MMA_F16 ? emu_f32_of_f16((uint16_t)bits) : emu_f32_of_bf16((uint16_t)bits);
}

typedef float eight __attribute__((vector_size(32), aligned(4)));

/* With g = lane / 4, t = lane % 4 and e elements in a register: register r of A holds row
 * g + 8 (r % 2), columns e t + 4 e (r / 2) and the next ones; register r of B rows e t + 4 e r and
 * the next ones of column g; D holds rows g and g + 8, columns 2t and 2t + 1. */
__attribute__((target_clones("arch=x86-64-v3", "default"))) static void mma_lanes(struct warp *w,
                                                                                  unsigned)
{
    float a[16][32];
    alignas(32) float b[32][8], d[16][8];
    int type = ((const struct mma *)w->lanes[0].call->args)->type;
    int e = type == EMU_MMA_E4M3 ? 4 : 2;
    for (int l = 0; l < WARP; l++) {
        const struct mma *m = (const struct mma *)w->lanes[l].call->args;
        int g = l / 4, t = l % 4;
        for (int r = 0; r < 4; r++)
            for (int h = 0; h < e; h++)
                a[g + 8 * (r % 2)][e * t + 4 * e * (r / 2) + h] = element_of(m->a[r], h, type);
        for (int r = 0; r < 2; r++)
            for (int h = 0; h < e; h++)
                b[e * t + 4 * e * r + h][g] = element_of(m->b[r], h, type);
        for (int r = 0; r < 4; r++)
            d[g + 8 * (r / 2)][2 * t + r % 2] = m->d[r];
    }
    for (int i = 0; i < 16; i++) {
        eight sum = *(eight *)d[i];
        for (int k = 0; k < 8 * e; k++)
            sum += a[i][k] * *(eight *)b[k];
        *(eight *)d[i] = sum;
    }
    for (int l = 0; l < WARP; l++) {
        const struct mma *m = (const struct mma *)w->lanes[l].call->args;
        for (int r = 0; r < 4; r++)
            m->d[r] = d[l / 4 + 8 * (r / 2)][2 * (l % 4) + r % 2];
    }
}

void emu_mma(int type, float *d, const uint32_t *a, const uint32_t *b, const char *file, int line)
{
    struct mma m = {type, d, a, b};
    struct warp_call call = {WARP_MMA, 0xffffffffu, &m, mma_lanes, file, line};
    if (type == EMU_MMA_E4M3 && architecture() < 89) {
        report(EMU_WARP, NULL, "an mma of FP8 on sm_%d at %s:%d", architecture(), file, line);
        fiber_abort(cudaErrorLaunchFailure);
    }
    make_e4m3_values();
    fiber_wait_warp(&call);
}

struct ldmatrix {
    int count, trans;
    const char *row;
    uint32_t *r;
};

/* Matrix m of 8x8 16-bit values: its row i stands at the address that lane 8 m + i gives. Lane l
 * gets of each matrix row l / 4, columns 2 (l % 4) and the next; transposed: the same of the
 * columns. */
static void ldmatrix_lanes(struct warp *w, unsigned)
{
    uint16_t value[4][8][8];
    int count = ((struct ldmatrix *)w->lanes[0].call->args)->count;
    for (int l = 0; l < 8 * count; l++)
        memcpy(value[l / 8][l % 8], ((struct ldmatrix *)w->lanes[l].call->args)->row, 16);
    for (int l = 0; l < WARP; l++) {
        struct ldmatrix *m = (struct ldmatrix *)w->lanes[l].call->args;
        int i = l / 4, j = 2 * (l % 4);
        for (int x = 0; x < count; x++)
            m->r[x] = m->trans ? value[x][j][i] | (uint32_t)value[x][j + 1][i] << 16
                               : value[x][i][j] | (uint32_t)value[x][i][j + 1] << 16;
    }
}

void emu_ldmatrix(int count, int trans, uint32_t *r, const void *row, const char *file, int line)
{
    struct ldmatrix m = {count, trans, (const char *)row, r};
    struct warp_call call = {WARP_LDMATRIX, 0xffffffffu, &m, ldmatrix_lanes, file, line};
    if (now.self->lane < 8 * count) {
        if ((uintptr_t)row % 16) {
            report(EMU_MISALIGNED, HERE,
                   "ldmatrix: the address of a row is not a multiple of 16 at "
                   "%s:%d",
                   file, line);
            fiber_abort(cudaErrorMisalignedAddress);
        }
        if (!shadow_is_shared(row)) {
            report(EMU_BOUNDS, HERE, "ldmatrix: a row outside of shared memory at %s:%d", file,
                   line);
            fiber_abort(cudaErrorIllegalAddress);
        }
        shadow_read(row, 16, HERE);
    }
    fiber_wait_warp(&call);
}

/* -------------------------------------------------------------------- asynchronous copies ---- */

static void async_check(void *shared, const void *global, int bytes, int valid, const void *site)
{
    if ((uintptr_t)shared % (unsigned)bytes || (valid && (uintptr_t)global % (unsigned)bytes)) {
        report(EMU_MISALIGNED, site, "cp.async of %d bytes: an address is not a multiple of %d",
               bytes, bytes);
        fiber_abort(cudaErrorMisalignedAddress);
    }
    if (!shadow_is_shared(shared)) {
        report(EMU_BOUNDS, site, "cp.async to outside of shared memory");
        fiber_abort(cudaErrorIllegalAddress);
    }
}

void emu_cp_async(void *shared, const void *global, int bytes, int valid)
{
    struct fiber *f = now.self;
    async_check(shared, global, bytes, valid, HERE);
    if (valid)
        shadow_read(global, (size_t)valid, HERE);
    assert(f->async_count < MAX_ASYNC); /* more than any kernel has under way */
    struct async_copy *c = &f->asyncs[(f->async_first + f->async_count++) % MAX_ASYNC];
    *c = {shared, global, bytes, valid, f->async_group};
    shadow_async(shared, (size_t)bytes, 1, HERE);
    memset(shared, 0xff, (size_t)bytes); /* NaN until the wait */
}

void emu_cp_async_commit(void)
{
    now.self->async_group++;
}

/* All groups but the `newest_left` youngest committed ones arrive. */
static void async_arrive(struct fiber *f, int newest_left)
{
    while (f->async_count && f->asyncs[f->async_first].group < f->async_group - newest_left) {
        struct async_copy *c = &f->asyncs[f->async_first];
        shadow_async(c->shared, (size_t)c->bytes, 0, HERE);
        memset(c->shared, 0, (size_t)c->bytes);
        if (c->valid)
            memcpy(c->shared, c->global, (size_t)c->valid);
        f->async_first = (f->async_first + 1) % MAX_ASYNC;
        f->async_count--;
    }
}

void emu_cp_async_wait(int newest_left, const char *file, int line)
{
    if (!wait_skipped(EMU_WAIT_ASYNC_COPY, file, line, NULL))
        async_arrive(now.self, newest_left);
}

/* A thread that ends leaves no copy under way. */
void async_forget(struct fiber *f)
{
    f->async_group++;
    async_arrive(f, 0);
}

/* ------------------------------------------------------------------------------- atomics ----- */

#define ATOMIC(name, type, result)                                                                 \
    type name(type *at, type v)                                                                    \
    {                                                                                              \
        shadow_atomic(at, sizeof *at, HERE);                                                       \
        type old = *at;                                                                            \
        *at = (result);                                                                            \
        return old;                                                                                \
    }
ATOMIC(emu_atomic_add_f32, float, old + v)
ATOMIC(emu_atomic_add_u32, unsigned, old + v)
ATOMIC(emu_atomic_max_u32, unsigned, old > v ? old : v)
ATOMIC(emu_atomic_max_i32, int, old > v ? old : v)
ATOMIC(emu_atomic_min_u32, unsigned, old < v ? old : v)
ATOMIC(emu_atomic_min_i32, int, old < v ? old : v)
ATOMIC(emu_atomic_or_u32, unsigned, old | v)
ATOMIC(emu_atomic_and_u32, unsigned, old &v)
ATOMIC(emu_atomic_exch_u32, unsigned, v)

unsigned emu_atomic_cas_u32(unsigned *at, unsigned compare, unsigned v)
{
    shadow_atomic(at, sizeof *at, HERE);
    unsigned old = *at;
    if (old == compare)
        *at = v;
    return old;
}
