/* SPDX-License-Identifier: Apache-2.0
 *
 * oneDNN's matrix product, a shape at a time. A primitive is made for one thread, because threads
 * share work above it (pool.c), and brings no memory of its own: the scratch that it wants is the
 * caller's, so that planning counts it. Primitives are kept; the least recently used is dropped.
 */
#include "kernels/cpu/cpu.h"

#include <dnnl.h>
#include <omp.h>
#include <stdlib.h>

enum { CACHED = 64 };

struct matmul {
    int64_t m, n, k;
    uint64_t used; /* when last */
    dnnl_primitive_t primitive;
    dnnl_memory_desc_t a, b, c, scratch;
};

struct matmul_cache {
    dnnl_engine_t engine;
    struct matmul entry[CACHED];
    uint64_t clock;
};

static dnnl_data_type_t dnnl_type(enum kr_dtype dtype)
{
    return dtype == KR_BF16 ? dnnl_bf16 : dnnl_f32;
}

static struct matmul_cache *cache_of(struct cpu_device *cpu)
{
    if (!cpu->matmuls) {
        struct matmul_cache *cache = calloc(1, sizeof *cache);
        if (cache && dnnl_engine_create(&cache->engine, dnnl_cpu, 0) != dnnl_success) {
            free(cache);
            cache = NULL;
        }
        cpu->matmuls = cache;
    }
    return cpu->matmuls;
}

static int describe(struct matmul *mm, dnnl_data_type_t type)
{
    const dnnl_dims_t a = {mm->m, mm->k}, b = {mm->k, mm->n}, c = {mm->m, mm->n};
    const dnnl_dims_t a_step = {mm->k, 1}, b_step = {1, mm->k}, c_step = {mm->n, 1};
    return dnnl_memory_desc_init_by_strides(&mm->a, 2, a, type, a_step) != dnnl_success ||
           dnnl_memory_desc_init_by_strides(&mm->b, 2, b, type, b_step) != dnnl_success ||
           dnnl_memory_desc_init_by_strides(&mm->c, 2, c, dnnl_f32, c_step) != dnnl_success;
}

static int make(struct matmul *mm, dnnl_engine_t engine, dnnl_data_type_t type)
{
    dnnl_matmul_desc_t desc;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t pd = NULL;
    int failed = describe(mm, type) || dnnl_primitive_attr_create(&attr) != dnnl_success ||
                 dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user) ||
                 dnnl_matmul_desc_init(&desc, &mm->a, &mm->b, NULL, &mm->c) != dnnl_success ||
                 dnnl_primitive_desc_create(&pd, &desc, attr, engine, NULL) != dnnl_success ||
                 dnnl_primitive_create(&mm->primitive, pd) != dnnl_success;
    if (!failed)
        mm->scratch = *dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    dnnl_primitive_desc_destroy(pd);
    dnnl_primitive_attr_destroy(attr);
    return failed;
}

/* The entry of that shape, else the one to give up for it. */
static struct matmul *find(struct matmul_cache *cache, int64_t m, int64_t n, int64_t k)
{
    struct matmul *oldest = cache->entry;
    for (int i = 0; i < CACHED; i++) {
        struct matmul *mm = &cache->entry[i];
        if (mm->primitive && mm->m == m && mm->n == n && mm->k == k)
            return mm;
        if (mm->used < oldest->used)
            oldest = mm;
    }
    return oldest;
}

const struct matmul *matmul_get(struct cpu_device *cpu, int64_t m, int64_t n, int64_t k)
{
    struct matmul_cache *cache = cache_of(cpu);
    if (!cache)
        return NULL;
    struct matmul *mm = find(cache, m, n, k);
    mm->used = ++cache->clock;
    if (mm->primitive && mm->m == m && mm->n == n && mm->k == k)
        return mm;
    dnnl_primitive_destroy(mm->primitive);
    *mm = (struct matmul){.m = m, .n = n, .k = k, .used = cache->clock};
    omp_set_num_threads(1);
    return make(mm, cache->engine, dnnl_type(cpu->base.compute)) ? NULL : mm;
}

size_t matmul_scratch(const struct matmul *mm)
{
    return mm ? dnnl_memory_desc_get_size(&mm->scratch) : 0;
}

int matmul_run(struct cpu_device *cpu, const struct matmul *mm, const void *a, const void *b,
               float *c, void *scratch)
{
    dnnl_engine_t engine = cpu->matmuls->engine;
    dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, NULL},
                              {DNNL_ARG_WEIGHTS, NULL},
                              {DNNL_ARG_DST, NULL},
                              {DNNL_ARG_SCRATCHPAD, NULL}};
    const dnnl_memory_desc_t *const descs[] = {&mm->a, &mm->b, &mm->c, &mm->scratch};
    void *const data[] = {(void *)(uintptr_t)a, (void *)(uintptr_t)b, c, scratch};
    dnnl_stream_t stream = NULL;
    int failed = dnnl_stream_create(&stream, engine, dnnl_stream_default_flags) != dnnl_success;
    for (int i = 0; i < 4 && !failed; i++)
        failed = dnnl_memory_create(&args[i].memory, descs[i], engine, data[i]) != dnnl_success;
    if (!failed)
        failed = dnnl_primitive_execute(mm->primitive, stream, 4, args) != dnnl_success;
    for (int i = 0; i < 4; i++)
        dnnl_memory_destroy(args[i].memory);
    dnnl_stream_destroy(stream);
    return failed ? -1 : 0;
}

void matmul_cache_free(struct matmul_cache *cache)
{
    if (!cache)
        return;
    for (int i = 0; i < CACHED; i++)
        dnnl_primitive_destroy(cache->entry[i].primitive);
    dnnl_engine_destroy(cache->engine);
    free(cache);
}
