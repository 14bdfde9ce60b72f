/* SPDX-License-Identifier: Apache-2.0
 *
 * Columns of operations that come again, replayed as graphs: the first time a key comes the
 * operations just run (weights come in, algorithms are chosen), the second time they run and are
 * recorded on a stream of their own, from then on the graphs are launched. What runs never depends
 * on the recording, so a recording that fails is thrown away and nothing is lost.
 *
 * One graph would be a step that cannot be cancelled, which is seconds on a small card. So the
 * recording is cut into graphs of about so much time, between which the cancel flag is looked at,
 * and where that leaves a graph only a few launches there is nothing to gain, and none is kept.
 */
#include "kernels/cuda/cuda.h"

#include <stdlib.h>
#include <time.h>

enum {
    KEYS = 16,
    GRAPHS = 512,       /* of one key */
    LEAST_LAUNCHES = 8, /* that a graph has to save */
};

struct column {
    struct kr_repeat key;
    int hopeless, count;
    int64_t launches;
    cudaGraphExec_t graph[GRAPHS];
};

struct cuda_repeats {
    struct column *column[KEYS];
    int count;
    struct column *recorded; /* the one that is being recorded, or NULL */
    int failed;
    int64_t launches; /* in the graph that is being recorded */
    double since;     /* when it was begun */
    cudaStream_t stream;
};

static double milliseconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

int cuda_repeats_open(struct cuda_device *cuda)
{
    cuda->repeats = (struct cuda_repeats *)calloc(1, sizeof *cuda->repeats);
    if (!cuda->repeats) {
        kr_fault_set(&cuda->base, KR_FAULT_NO_MEMORY, "out of memory");
        return -1;
    }
    return cuda_ok(cuda, cudaStreamCreateWithFlags(&cuda->repeats->stream, cudaStreamNonBlocking),
                   "cudaStreamCreate")
               ? 0
               : -1;
}

static void free_graphs(struct column *c)
{
    for (int i = 0; i < c->count; i++)
        (void)cudaGraphExecDestroy(c->graph[i]);
    c->count = 0;
}

void cuda_repeats_forget(struct cuda_device *cuda)
{
    struct cuda_repeats *r = cuda->repeats;
    for (int i = 0; i < r->count; i++) {
        free_graphs(r->column[i]);
        free(r->column[i]);
    }
    r->count = 0;
}

void cuda_repeats_close(struct cuda_device *cuda)
{
    if (!cuda->repeats)
        return;
    cuda_repeats_forget(cuda);
    if (cuda->repeats->stream)
        (void)cudaStreamDestroy(cuda->repeats->stream);
    free(cuda->repeats);
    cuda->repeats = NULL;
}

/* ----------------------------------------------------------------------- recording ------ */

void cuda_record_failed(struct cuda_device *cuda)
{
    (void)cudaGetLastError();
    cuda->repeats->failed = 1;
}

static void begin_graph(struct cuda_device *cuda)
{
    struct cuda_repeats *r = cuda->repeats;
    if (cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeRelaxed) != cudaSuccess) {
        cuda_record_failed(cuda);
        return;
    }
    r->launches = 0;
    r->since = milliseconds();
    cuda->stream[1] = r->stream;
    cuda->streams = 2;
}

static void end_graph(struct cuda_device *cuda)
{
    struct cuda_repeats *r = cuda->repeats;
    struct column *c = r->recorded;
    cudaGraph_t graph = NULL;
    cuda->streams = 1;
    if (cudaStreamEndCapture(r->stream, &graph) != cudaSuccess || !graph) {
        cuda_record_failed(cuda);
        return;
    }
    if (!r->failed && c->count < GRAPHS && r->launches > 0 &&
        cudaGraphInstantiate(&c->graph[c->count], graph, 0) == cudaSuccess)
        c->count++;
    else if (r->launches > 0)
        cuda_record_failed(cuda);
    (void)cudaGraphDestroy(graph);
}

/* Launches are paced (cuda_launched()), so the host's time is about the device's. */
void cuda_recorded(struct cuda_device *cuda)
{
    struct cuda_repeats *r = cuda->repeats;
    if (cuda->streams < 2)
        return;
    r->launches++;
    r->recorded->launches++;
    if (milliseconds() - r->since < cuda->graph_ms)
        return;
    end_graph(cuda);
    if (!r->failed)
        begin_graph(cuda);
}

/* -------------------------------------------------------------------- begin and end ------ */

static int is_same(const struct kr_repeat *a, const struct kr_repeat *b)
{
    return a->address == b->address && a->rows == b->rows;
}

static struct column *find(struct cuda_repeats *r, const struct kr_repeat *key)
{
    for (int i = 0; i < r->count; i++)
        if (is_same(&r->column[i]->key, key))
            return r->column[i];
    return NULL;
}

static void remember(struct cuda_repeats *r, const struct kr_repeat *key)
{
    struct column *c = r->count < KEYS ? (struct column *)calloc(1, sizeof *r->column[0]) : NULL;
    if (!c)
        return; /* it runs plainly, each time */
    c->key = *key;
    r->column[r->count++] = c;
}

/* Some graphs may be launched when a fault comes; what they computed is then as lost as the rest.
 */
static void replay(struct cuda_device *cuda, const struct column *c)
{
    for (int i = 0; i < c->count && kr_live(&cuda->base); i++) {
        if (!cuda_ok(cuda, cudaGraphLaunch(c->graph[i], cuda->stream[0]), "a graph's launch"))
            return;
        cuda->launches += CUDA_BATCH - 1; /* each is a batch of its own */
        cuda_launched(cuda);
    }
}

int cuda_repeat_begin(struct kr_device *dev, struct kr_repeat key)
{
    struct cuda_device *cuda = cuda_of(dev);
    struct cuda_repeats *r = cuda->repeats;
    struct column *c = find(r, &key);
    if (!cuda_weights_stay(cuda) || r->recorded)
        return 1;
    if (!c)
        remember(r, &key);
    if (!c || c->hopeless)
        return 1;
    if (c->count > 0) {
        replay(cuda, c);
        return 0;
    }
    r->recorded = c;
    r->failed = 0;
    begin_graph(cuda);
    return 1;
}

void cuda_repeat_end(struct kr_device *dev)
{
    struct cuda_device *cuda = cuda_of(dev);
    struct cuda_repeats *r = cuda->repeats;
    struct column *c = r->recorded;
    if (!c)
        return;
    if (cuda->streams > 1)
        end_graph(cuda);
    r->recorded = NULL;
    if (r->failed || dev->fault != KR_FINE || c->launches < (int64_t)LEAST_LAUNCHES * c->count) {
        free_graphs(c);
        c->hopeless = 1;
    }
}
