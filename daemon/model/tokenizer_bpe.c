/* SPDX-License-Identifier: Apache-2.0
 *
 * A piece starts as its bytes. As long as two neighbours have a merge, the pair of the lowest rank
 * (the leftmost of equals) becomes one symbol. The symbols are a doubly linked list in arrays over
 * the piece's byte positions, and the candidates a heap of (rank, position) in one integer each, so
 * that a piece of a megabyte takes n log n steps and not n^2. A candidate is not removed when one
 * of its symbols is merged away; it is recognized when it comes up, because a rank names its
 * symbols.
 *
 * The heap never holds more than 2n entries: it starts with at most n - 1, and each of at most n -
 * 1 merges takes one off and puts two on.
 */
#include "daemon/model/tokenizer_bpe.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { GONE = -1, END = -1 };

/* ------------------------------------------------------------------------------ the merges ---- */

int bpe_init(struct bpe *bpe, size_t merges)
{
    size_t slots = 16;

    memset(bpe, 0, sizeof(*bpe));
    while (slots < merges + merges / 2)
        slots *= 2;
    assert(slots <= UINT32_MAX / 2);
    bpe->merges = malloc((merges ? merges : 1) * sizeof(*bpe->merges));
    bpe->slots = calloc(slots, sizeof(*bpe->slots));
    bpe->mask = (uint32_t)slots - 1;
    return bpe->merges && bpe->slots ? 0 : -1;
}

void bpe_fini(struct bpe *bpe)
{
    free(bpe->merges);
    free(bpe->slots);
    memset(bpe, 0, sizeof(*bpe));
}

static uint32_t hash_pair(int32_t left, int32_t right)
{
    uint64_t hash = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0xD6E8FEB86659FD93u;

    return (uint32_t)((hash ^ hash >> 32) * 0x9E3779B97F4A7C15u >> 32);
}

/* The slot that has this pair, or the empty one where it would go. */
static struct bpe_slot *find_slot(const struct bpe *bpe, int32_t left, int32_t right)
{
    uint32_t hash = hash_pair(left, right), at = hash & bpe->mask;

    for (; bpe->slots[at].next_rank != 0; at = (at + 1) & bpe->mask) {
        const struct bpe_merge *m = &bpe->merges[bpe->slots[at].next_rank - 1];

        if (bpe->slots[at].hash == hash && m->left == left && m->right == right)
            break;
    }
    return &bpe->slots[at];
}

int bpe_add(struct bpe *bpe, struct bpe_merge merge)
{
    struct bpe_slot *slot = find_slot(bpe, merge.left, merge.right);

    if (slot->next_rank != 0)
        return -1;
    bpe->merges[bpe->count++] = merge;
    *slot = (struct bpe_slot){hash_pair(merge.left, merge.right), bpe->count};
    return 0;
}

void bpe_fetch(const struct bpe *bpe, const struct bpe_merge *merge)
{
    __builtin_prefetch(&bpe->slots[hash_pair(merge->left, merge->right) & bpe->mask]);
}

static uint32_t find_rank(const struct bpe *bpe, int32_t left, int32_t right)
{
    return find_slot(bpe, left, right)->next_rank - 1; /* empty: BPE_NO_RANK */
}

/* ---------------------------------------------------------------------------- the workspace --- */

int ids_reserve(struct ids *ids, size_t room)
{
    int32_t *grown = realloc(ids->id, room * sizeof(*grown));

    if (grown == NULL)
        return -1;
    ids->id = grown;
    ids->room = room;
    return 0;
}

int ids_push(struct ids *ids, int32_t id)
{
    if (ids->count == ids->room && ids_reserve(ids, ids->room ? ids->room * 2 : 64) < 0)
        return -1;
    ids->id[ids->count++] = id;
    return 0;
}

void bpe_work_fini(struct bpe_work *work)
{
    free(work->symbol);
    free(work->before);
    free(work->after);
    free(work->heap);
    memset(work, 0, sizeof(*work));
}

static int work_reserve(struct bpe_work *work, size_t length)
{
    size_t room = 64;

    if (length <= work->room)
        return 0;
    while (room < length)
        room *= 2;
    bpe_work_fini(work);
    work->symbol = malloc(room * sizeof(*work->symbol));
    work->before = malloc(room * sizeof(*work->before));
    work->after = malloc(room * sizeof(*work->after));
    work->heap = malloc(2 * room * sizeof(*work->heap));
    if (!work->symbol || !work->before || !work->after || !work->heap)
        return -1;
    work->room = room;
    return 0;
}

static void heap_push(struct bpe_work *work, uint64_t entry)
{
    uint64_t *heap = work->heap;
    size_t at = work->heap_count++;

    for (; at > 0 && heap[(at - 1) / 2] > entry; at = (at - 1) / 2)
        heap[at] = heap[(at - 1) / 2];
    heap[at] = entry;
}

static uint64_t heap_pop(struct bpe_work *work)
{
    uint64_t *heap = work->heap, least = heap[0], last = heap[--work->heap_count];
    size_t n = work->heap_count, at = 0, child;

    while ((child = 2 * at + 1) < n) {
        if (child + 1 < n && heap[child + 1] < heap[child])
            child++;
        if (heap[child] >= last)
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = last;
    return least;
}

/* --------------------------------------------------------------------------------- merging ---- */

/* Puts the pair that starts at `at` on the heap if it has a merge. */
static void consider(const struct bpe *bpe, struct bpe_work *work, int32_t at)
{
    uint32_t rank;

    if (at == END || work->after[at] == END)
        return;
    rank = find_rank(bpe, work->symbol[at], work->symbol[work->after[at]]);
    if (rank != BPE_NO_RANK)
        heap_push(work, (uint64_t)rank << 32 | (uint32_t)at);
}

static void merge_next(const struct bpe *bpe, struct bpe_work *work)
{
    uint64_t entry = heap_pop(work);
    const struct bpe_merge *m = &bpe->merges[entry >> 32];
    int32_t at = (int32_t)(uint32_t)entry, right = work->after[at];

    if (work->symbol[at] != m->left || right == END || work->symbol[right] != m->right)
        return;
    work->symbol[at] = m->result;
    work->symbol[right] = GONE;
    work->after[at] = work->after[right];
    if (work->after[at] != END)
        work->before[work->after[at]] = at;
    consider(bpe, work, work->before[at]);
    consider(bpe, work, at);
}

int bpe_encode(const struct bpe *bpe, struct bpe_work *work, const char *piece, size_t length,
               struct ids *ids)
{
    int32_t n = (int32_t)length;

    assert(length <= INT32_MAX);
    if (work_reserve(work, length) < 0)
        return -1;
    for (int32_t i = 0; i < n; i++) {
        work->symbol[i] = bpe->byte_id[(unsigned char)piece[i]];
        work->before[i] = i - 1;
        work->after[i] = i + 1 < n ? i + 1 : END;
    }
    work->heap_count = 0;
    for (int32_t i = 0; i < n; i++)
        consider(bpe, work, i);
    while (work->heap_count > 0)
        merge_next(bpe, work);
    for (int32_t i = n > 0 ? 0 : END; i != END; i = work->after[i])
        if (ids_push(ids, work->symbol[i]) < 0)
            return -1;
    return 0;
}
