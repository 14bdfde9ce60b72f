/* SPDX-License-Identifier: Apache-2.0
 *
 * Where an allocation fails, jansson (2.14) goes on with a string that lacks its end, reads beyond
 * it and writes what it finds. So a failure never returns to it: all that a call took is given back
 * from here, and the call is left by longjmp. Outside of a call jansson's memory is malloc()'s as
 * ever, so what it hands out may be freed as ever.
 */
#include "proto/json_load.h"

#include <setjmp.h>
#include <stdlib.h>

/* A call that is under way, and what jansson has from malloc() in it. */
struct call {
    void **taken;
    size_t count, capacity;
    jmp_buf no_memory;
};

static _Thread_local struct call *call;

static bool make_room(struct call *c)
{
    size_t capacity = c->capacity ? 2 * c->capacity : 256;
    void **taken;

    if (c->count < c->capacity)
        return true;
    taken = realloc(c->taken, capacity * sizeof(*taken));
    if (!taken)
        return false;
    c->taken = taken;
    c->capacity = capacity;
    return true;
}

static void *json_malloc(size_t size)
{
    void *at = !call || make_room(call) ? malloc(size) : NULL;

    if (!call)
        return at;
    if (!at)
        longjmp(call->no_memory, 1);
    call->taken[call->count++] = at;
    return at;
}

/* What is freed in a call is nearly always among its last. */
static void json_free(void *at)
{
    for (size_t i = call && at ? call->count : 0; i > 0; i--)
        if (call->taken[i - 1] == at) {
            call->taken[i - 1] = call->taken[--call->count];
            break;
        }
    free(at);
}

__attribute__((constructor)) static void watch_memory(void)
{
    json_set_alloc_funcs(json_malloc, json_free);
}

json_t *kr_json_load(const char *text, size_t size, size_t flags, json_error_t *error,
                     bool *no_memory)
{
    struct call this = {0};
    json_t *volatile root = NULL; /* is set after setjmp() */

    call = &this;
    *no_memory = setjmp(this.no_memory) != 0;
    if (!*no_memory)
        root = json_loadb(text, size, flags, error);
    call = NULL;
    for (size_t i = 0; *no_memory && i < this.count; i++)
        free(this.taken[i]);
    free(this.taken);
    return root;
}
