/* SPDX-License-Identifier: Apache-2.0
 *
 * The device's threads. Work comes as a number of items; whoever is free takes the next one, so a
 * core that other programs slow down holds nobody up. The caller works along and returns when the
 * last item is done.
 *
 * Plain pthreads and not OpenMP regions, for three reasons: the thread sanitizer understands them,
 * idle threads sleep at once (a daemon that waits for a job must cost nothing), and oneDNN, which
 * would otherwise split one small product over all cores, stays on the thread that calls it.
 */
#include "kernels/cpu/cpu.h"

#include <omp.h>
#include <stdlib.h>

/* How often to look for work, or for the others' end, before going to sleep: some 20 microseconds,
 * which is what the operations of a forward are apart. */
enum { LOOKS = 1000 };

static void pause_a_little(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void work_along(struct cpu_pool *pool, int thread)
{
    for (;;) {
        int64_t item = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed);
        if (item >= pool->items || kr_cancelled(pool->dev))
            return;
        pool->run(pool->arg, item, thread);
    }
}

struct start {
    struct cpu_pool *pool;
    int thread;
};

/* Waits for another generation than `seen`; says which. */
static unsigned next_generation(struct cpu_pool *pool, unsigned seen)
{
    for (int i = 0; i < LOOKS; i++) {
        if (atomic_load(&pool->generation) != seen)
            return atomic_load(&pool->generation);
        pause_a_little();
    }
    pthread_mutex_lock(&pool->lock);
    while (atomic_load(&pool->generation) == seen)
        pthread_cond_wait(&pool->work, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
    return atomic_load(&pool->generation);
}

static void *thread_main(void *arg)
{
    struct cpu_pool *pool = ((struct start *)arg)->pool;
    int thread = ((struct start *)arg)->thread;
    unsigned seen = 0;
    free(arg);
    omp_set_num_threads(1); /* of this thread: oneDNN asks for it */
    for (;;) {
        seen = next_generation(pool, seen);
        if (atomic_load(&pool->quit))
            return NULL;
        work_along(pool, thread);
        if (atomic_fetch_sub(&pool->running, 1) > 1)
            continue;
        pthread_mutex_lock(&pool->lock);
        pthread_cond_signal(&pool->done);
        pthread_mutex_unlock(&pool->lock);
    }
}

/* Calls all threads to work on what stands in the pool, or to quit. */
static void next_begins(struct cpu_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->generation, 1);
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
}

static void wait_for_others(struct cpu_pool *pool)
{
    for (int i = 0; i < LOOKS && atomic_load(&pool->running) > 0; i++)
        pause_a_little();
    if (atomic_load(&pool->running) == 0)
        return;
    pthread_mutex_lock(&pool->lock);
    while (atomic_load(&pool->running) > 0)
        pthread_cond_wait(&pool->done, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}

int pool_open(struct cpu_pool *pool, const struct kr_device *dev, int threads)
{
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    pthread_cond_init(&pool->done, NULL);
    pool->dev = dev;
    pool->threads = 1;
    for (int i = 1; i < threads && i < CPU_MAX_THREADS; i++) {
        struct start *start = malloc(sizeof *start);
        if (!start)
            return -1;
        *start = (struct start){pool, i};
        if (pthread_create(&pool->thread[i], NULL, thread_main, start)) {
            free(start);
            return -1;
        }
        pool->threads++;
    }
    return 0;
}

void pool_close(struct cpu_pool *pool)
{
    atomic_store(&pool->quit, 1);
    next_begins(pool);
    for (int i = 1; i < pool->threads; i++)
        pthread_join(pool->thread[i], NULL);
    pthread_cond_destroy(&pool->done);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->lock);
}

void cpu_each(struct cpu_device *cpu, int64_t items,
              void (*run)(void *arg, int64_t item, int thread), void *arg)
{
    struct cpu_pool *pool = &cpu->pool;
    omp_set_num_threads(1);
    pool->run = run;
    pool->arg = arg;
    pool->items = items;
    atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
    if (items > 1 && pool->threads > 1) {
        atomic_store(&pool->running, pool->threads - 1);
        next_begins(pool);
        work_along(pool, 0);
        wait_for_others(pool);
    } else {
        work_along(pool, 0);
    }
    kr_live(&cpu->base); /* a cancel becomes the fault */
}
