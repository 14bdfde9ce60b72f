/* SPDX-License-Identifier: Apache-2.0
 *
 * Byte-pair encoding of one piece of text. Private to the tokenizer.
 */
#ifndef KR_TOKENIZER_BPE_H
#define KR_TOKENIZER_BPE_H

#include <stddef.h>
#include <stdint.h>

struct bpe_merge {
    int32_t left, right, result;
};

struct bpe_slot {
    uint32_t hash;
    uint32_t next_rank; /* rank + 1; 0: empty */
};

/* Filled once, then read by any number of threads. */
struct bpe {
    int32_t byte_id[256];
    struct bpe_merge *merges; /* by rank */
    uint32_t count;
    struct bpe_slot *slots; /* hash table over merges */
    uint32_t mask;
};

enum { BPE_NO_RANK = UINT32_MAX };

/* Room for `merges` merges; -1 if there is no memory. */
int bpe_init(struct bpe *bpe, size_t merges);
void bpe_fini(struct bpe *bpe);

/* Adds the merge of the next rank; -1 if that pair has one already. */
int bpe_add(struct bpe *bpe, struct bpe_merge merge);
void bpe_fetch(const struct bpe *bpe, const struct bpe_merge *merge); /* it will be added soon */

struct ids {
    int32_t *id;
    size_t count, room;
};

int ids_reserve(struct ids *ids, size_t room);
int ids_push(struct ids *ids, int32_t id);

/* What one call of bpe_encode needs, kept for the next. Zeroed at first; one for each thread. */
struct bpe_work {
    int32_t *symbol, *before, *after;
    uint64_t *heap;
    size_t room, heap_count;
};

void bpe_work_fini(struct bpe_work *work);

/* Appends the ids of piece[length] to ids; -1 if there is no memory. Takes n log n time. */
int bpe_encode(const struct bpe *bpe, struct bpe_work *work, const char *piece, size_t length,
               struct ids *ids);

#endif
