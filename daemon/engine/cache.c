/* SPDX-License-Identifier: Apache-2.0
 *
 * See cache.h. A handful of slots and a byte limit, least recently used goes first: people work on
 * one prompt at a time, and a guided job uses two.
 */
#include "daemon/engine/cache.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

void cache_init(struct prompt_cache *cache, size_t limit)
{
    *cache = (struct prompt_cache){.limit = limit};
}

static void drop(struct prompt_cache *cache, struct encoded *e)
{
    if (!e->used)
        return;
    atomic_fetch_sub(&cache->bytes, e->bytes);
    atomic_fetch_sub(&cache->entries, 1);
    free(e->ids);
    free(e->text);
    free(e->taps);
    *e = (struct encoded){0};
}

void cache_fini(struct prompt_cache *cache)
{
    for (int i = 0; i < CACHE_SLOTS; i++)
        drop(cache, &cache->slot[i]);
}

const struct encoded *cache_find(struct prompt_cache *cache, const struct prompt *prompt)
{
    for (int i = 0; i < CACHE_SLOTS; i++) {
        struct encoded *e = &cache->slot[i];

        if (e->used && e->count == prompt->count && e->skip == prompt->skip &&
            memcmp(e->ids, prompt->ids, prompt->count * sizeof(*e->ids)) == 0) {
            e->used = ++cache->clock;
            atomic_fetch_add(&cache->hits, 1);
            return e;
        }
    }
    atomic_fetch_add(&cache->misses, 1);
    return NULL;
}

/* A free slot, or the one that was not used for longest. */
static struct encoded *oldest(struct prompt_cache *cache, bool in_use)
{
    struct encoded *best = NULL;

    for (int i = 0; i < CACHE_SLOTS; i++) {
        struct encoded *e = &cache->slot[i];

        if ((e->used || !in_use) && (!best || e->used < best->used))
            best = e;
    }
    return best;
}

void cache_put(struct prompt_cache *cache, const struct prompt *prompt, float *text,
               size_t text_count, float *taps, size_t taps_count)
{
    size_t id_bytes = prompt->count * sizeof(*prompt->ids);
    struct encoded new = {.ids = malloc(id_bytes),
                          .count = prompt->count,
                          .skip = prompt->skip,
                          .text = text,
                          .taps = taps,
                          .bytes = id_bytes + (text_count + taps_count) * sizeof(*text)};
    struct encoded *slot;

    if (!new.ids || new.bytes > cache->limit) {
        free(new.ids);
        free(text);
        free(taps);
        return;
    }
    memcpy(new.ids, prompt->ids, id_bytes);
    new.used = ++cache->clock;
    while (atomic_load(&cache->bytes) + new.bytes > cache->limit)
        drop(cache, oldest(cache, true));
    slot = oldest(cache, false);
    drop(cache, slot);
    *slot = new;
    atomic_fetch_add(&cache->bytes, new.bytes);
    atomic_fetch_add(&cache->entries, 1);
}
