/* SPDX-License-Identifier: Apache-2.0
 *
 * The prompt cache: what it finds, what it drops first, and that it stays within its bytes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "daemon/engine/cache.h"

/* A prompt of three ids that begin with n. */
struct key {
    int32_t ids[3];
    struct prompt prompt;
};

static struct prompt *key(struct key *k, int n)
{
    *k = (struct key){.ids = {n, 1, 2}};
    k->prompt = (struct prompt){.ids = k->ids, .count = 3, .skip = 1};
    return &k->prompt;
}

static void put(struct prompt_cache *cache, int n, size_t floats)
{
    struct key k;
    float *text = calloc(floats, sizeof(*text));

    text[0] = (float)n;
    cache_put(cache, key(&k, n), text, floats, NULL, 0);
}

static bool has(struct prompt_cache *cache, int n)
{
    struct key k;
    const struct encoded *found = cache_find(cache, key(&k, n));

    if (found)
        assert_true(found->text[0] == (float)n);
    return found != NULL;
}

static void test_find(void **state)
{
    struct prompt_cache cache;
    struct key k;

    (void)state;
    cache_init(&cache, 1 << 20);
    assert_false(has(&cache, 1));
    put(&cache, 1, 10);
    assert_true(has(&cache, 1));
    assert_false(has(&cache, 2));
    key(&k, 1)->skip = 0; /* the same ids, of which another part is dropped */
    assert_null(cache_find(&cache, &k.prompt));
    key(&k, 1)->count = 2;
    assert_null(cache_find(&cache, &k.prompt));
    assert_int_equal(atomic_load(&cache.hits), 1);
    assert_int_equal(atomic_load(&cache.misses), 4);
    cache_fini(&cache);
    assert_int_equal(atomic_load(&cache.bytes), 0);
    assert_int_equal(atomic_load(&cache.entries), 0);
}

/* More prompts than slots: the one that was not used for longest goes. */
static void test_slots(void **state)
{
    struct prompt_cache cache;

    (void)state;
    cache_init(&cache, 1 << 20);
    for (int i = 0; i < CACHE_SLOTS; i++)
        put(&cache, i, 10);
    assert_true(has(&cache, 0)); /* now used last */
    put(&cache, 100, 10);
    assert_true(has(&cache, 0));
    assert_false(has(&cache, 1));
    assert_true(has(&cache, 2));
    assert_true(has(&cache, 100));
    assert_int_equal(atomic_load(&cache.entries), CACHE_SLOTS);
    cache_fini(&cache);
}

static void test_bytes(void **state)
{
    struct prompt_cache cache;

    (void)state;
    cache_init(&cache, 1000);
    put(&cache, 1, 100);
    put(&cache, 2, 100); /* 412 bytes each */
    put(&cache, 3, 100);
    assert_false(has(&cache, 1));
    assert_true(has(&cache, 2) && has(&cache, 3));
    put(&cache, 4, 240); /* takes the place of both */
    assert_false(has(&cache, 2) || has(&cache, 3));
    assert_true(has(&cache, 4));
    put(&cache, 5, 300); /* larger than the whole cache */
    assert_false(has(&cache, 5));
    assert_true(has(&cache, 4));
    assert_int_equal(atomic_load(&cache.bytes), 3 * 4 + 240 * 4);
    cache_fini(&cache);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_find),
        cmocka_unit_test(test_slots),
        cmocka_unit_test(test_bytes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
