/* SPDX-License-Identifier: Apache-2.0
 *
 * What the text encoder made of the last prompts, in host memory. The key is exactly what the
 * encoder was given (the ids and how many of them are dropped), so texts that differ only in what
 * was cut off share an entry and a dialect needs no part in it.
 *
 * Belongs to the worker; the counters may be read by any thread.
 */
#ifndef KR_ENGINE_CACHE_H
#define KR_ENGINE_CACHE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/engine/prompt.h"

enum { CACHE_SLOTS = 16 };

/* One encoded prompt. */
struct encoded {
    int32_t *ids;
    size_t count, skip;
    float *text; /* what the diffusion model takes */
    float *taps; /* the encoder's own output, kept for the trace only; else NULL */
    size_t bytes;
    uint64_t used; /* when, by the cache's clock; 0: the slot is free */
};

struct prompt_cache {
    struct encoded slot[CACHE_SLOTS];
    size_t limit; /* bytes */
    uint64_t clock;
    atomic_size_t bytes, entries, hits, misses;
};

void cache_init(struct prompt_cache *cache, size_t limit);
void cache_fini(struct prompt_cache *cache);

/* The entry of a prompt, or NULL; counts as hit or miss. Valid until the next cache_put(). */
const struct encoded *cache_find(struct prompt_cache *cache, const struct prompt *prompt);

/* Keeps a result. text and taps (may be NULL) become the cache's. Without memory, or if it is
 * larger than the limit, nothing is kept: a cache may forget. */
void cache_put(struct prompt_cache *cache, const struct prompt *prompt, float *text,
               size_t text_count, float *taps, size_t taps_count);

#endif
