/* SPDX-License-Identifier: Apache-2.0
 *
 * Advice to the kernel about the mappings. Giving pages back is a short call. Asking for 12 GB is
 * not: MADV_WILLNEED queues the reads before it returns, and on a busy disk that takes as long as
 * the reading. So a thread of the lowest priority walks the file in pieces and can be stopped
 * between two of them. It only fills the page cache (the kernel's readahead gives up rather than
 * push out what others use), so nothing depends on it and nothing waits for it but the closing of
 * the file.
 *
 * want, release and close are called by the one thread that uses the file.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/weights/internal.h"

enum { PIECE = 16 << 20 };

struct prefetch {
    const unsigned char *data; /* page-aligned */
    size_t size;
    pthread_t thread;
    bool started;           /* by the owner; the thread must be joined */
    atomic_bool stop, done; /* owner to thread, thread to owner */
};

static void *walk(void *arg)
{
    struct prefetch *p = arg;
    size_t at, n;

    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), 19);
    for (at = 0; at < p->size && !atomic_load(&p->stop); at += n) {
        n = p->size - at < PIECE ? p->size - at : PIECE;
        if (madvise((void *)(p->data + at), n, MADV_WILLNEED) < 0)
            break;
    }
    atomic_store(&p->done, true);
    return NULL;
}

static void stop(struct prefetch *p)
{
    if (!p->started)
        return;
    atomic_store(&p->stop, true);
    pthread_join(p->thread, NULL);
    p->started = false;
}

int prefetch_new(struct prefetch **prefetch, const void *data, size_t size)
{
    *prefetch = calloc(1, sizeof **prefetch);
    if (!*prefetch)
        return -1;
    (*prefetch)->data = data;
    (*prefetch)->size = size;
    return 0;
}

void prefetch_free(struct prefetch *prefetch)
{
    if (!prefetch)
        return;
    stop(prefetch);
    free(prefetch);
}

void weights_want(const struct weights *weights)
{
    struct prefetch *p = weights->prefetch;

    if (p->started && !atomic_load(&p->done))
        return;
    stop(p);
    atomic_store(&p->stop, false);
    atomic_store(&p->done, false);
    p->started = pthread_create(&p->thread, NULL, walk, p) == 0;
}

void weights_release(const struct weights *weights)
{
    stop(weights->prefetch);
    madvise(weights->st.map, weights->st.size, MADV_DONTNEED);
}
