/* SPDX-License-Identifier: Apache-2.0
 *
 * Graphs: while a stream captures, its operations become nodes instead, each after the stream's
 * last ones; events carry that to other streams, which then capture too. A launch runs the nodes in
 * an order drawn by seed among those that the edges allow. Calls that are not allowed meanwhile are
 * reported, fail as documented and make the capture invalid.
 */
#include "internal.h"

#include <assert.h>

struct node {
    struct operation *op;
    int *after, after_count;
};

struct emu_graph {
    struct emu_graph *next; /* all graphs */
    struct node *nodes;
    int count, refs; /* the graph and what was instantiated from it share the nodes */
};

struct emu_graph_exec {
    struct emu_graph_exec *next;
    struct emu_graph *graph;
};

struct capture {
    struct capture *next;
    struct emu_stream *origin;
    struct emu_graph *graph;
    enum cudaStreamCaptureMode mode;
    int invalid;
    struct emu_stream *members[MAX_STREAMS];
    int member_count;
};

static struct capture *captures;
static struct emu_graph *graphs;
static struct emu_graph_exec *execs;

/* ------------------------------------------------------------------------------- capture ----- */

int capture_forbids(const char *what)
{
    int forbids = 0;
    for (struct capture *c = captures; c; c = c->next) {
        if (c->mode == cudaStreamCaptureModeRelaxed)
            continue;
        report(EMU_CAPTURE, NULL, "%s while a stream captures", what);
        c->invalid = forbids = 1;
    }
    return forbids;
}

void capture_invalidate(struct emu_stream *s, const char *what)
{
    if (!s->capture)
        return;
    s->capture->invalid = 1;
    if (what)
        report(EMU_CAPTURE, NULL, "%s", what);
}

int capture_blocks_legacy(void)
{
    for (struct capture *c = captures; c; c = c->next)
        for (int i = 0; i < c->member_count; i++)
            if (!(c->members[i]->flags & cudaStreamNonBlocking)) {
                report(EMU_CAPTURE, NULL,
                       "the legacy stream is used while a blocking one captures");
                c->invalid = 1;
                return 1;
            }
    return 0;
}

/* a := the union of a and b. */
static void merge(int **a, int *a_count, const int *b, int b_count)
{
    int *all = (int *)realloc(*a, (size_t)(*a_count + b_count + 1) * sizeof all[0]);
    assert(all);
    *a = all;
    for (int i = 0; i < b_count; i++) {
        int known = 0;
        for (int j = 0; j < *a_count; j++)
            known |= all[j] == b[i];
        if (!known)
            all[(*a_count)++] = b[i];
    }
}

static void join(struct emu_stream *s, struct capture *c)
{
    s->capture = c;
    s->last_count = 0;
    c->members[c->member_count++] = s;
}

cudaError_t capture_add(struct emu_stream *s, struct operation *op)
{
    struct capture *c = s->capture;
    struct emu_graph *g = c->graph;
    if (c->invalid) {
        operation_free(op);
        return cudaErrorStreamCaptureInvalidated;
    }
    g->nodes = (struct node *)realloc(g->nodes, (size_t)(g->count + 1) * sizeof g->nodes[0]);
    assert(g->nodes);
    struct node *n = &g->nodes[g->count];
    *n = {op, NULL, 0};
    merge(&n->after, &n->after_count, s->last, s->last_count);
    s->last_count = 0;
    merge(&s->last, &s->last_count, &g->count, 1);
    g->count++;
    return cudaSuccess;
}

void capture_record(struct emu_stream *s, struct emu_event *e)
{
    e->capture = s->capture;
    e->last_count = 0;
    merge(&e->last, &e->last_count, s->last, s->last_count);
}

cudaError_t capture_wait(struct emu_stream *s, struct emu_event *e)
{
    if (!e->capture || (s->capture && s->capture != e->capture)) {
        report(EMU_CAPTURE, NULL, "a capturing stream waits for what is outside of its capture");
        s->capture->invalid = 1;
        return e->capture ? cudaErrorStreamCaptureMerge : cudaErrorStreamCaptureIsolation;
    }
    if (!s->capture)
        join(s, e->capture);
    merge(&s->last, &s->last_count, e->last, e->last_count);
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    entry call;
    if (call.error)
        return result(call.error);
    struct emu_stream *s = stream_of(stream);
    if (!s)
        return result(cudaErrorInvalidResourceHandle);
    if (s == &legacy_stream || s->capture) {
        report(EMU_CAPTURE, NULL,
               s->capture ? "the stream captures already" : "the legacy stream can't capture");
        return result(s->capture ? cudaErrorIllegalState : cudaErrorStreamCaptureUnsupported);
    }
    struct capture *c = (struct capture *)calloc(1, sizeof *c);
    c->graph = (struct emu_graph *)calloc(1, sizeof *c->graph);
    assert(c->graph);
    c->graph->refs = 1;
    c->origin = s;
    c->mode = mode;
    c->next = captures;
    captures = c;
    join(s, c);
    return result(cudaSuccess);
}

static void graph_free(struct emu_graph *g)
{
    if (--g->refs)
        return;
    for (int i = 0; i < g->count; i++) {
        operation_free(g->nodes[i].op);
        free(g->nodes[i].after);
    }
    free(g->nodes);
    free(g);
}

/* Whether all that other streams captured comes before the origin's end. */
static int is_joined(const struct capture *c)
{
    for (int i = 0; i < c->graph->count; i++) {
        int followed = 0;
        for (int j = i + 1; j < c->graph->count; j++)
            for (int k = 0; k < c->graph->nodes[j].after_count; k++)
                followed |= c->graph->nodes[j].after[k] == i;
        for (int k = 0; k < c->origin->last_count; k++)
            followed |= c->origin->last[k] == i;
        if (!followed)
            return 0;
    }
    return 1;
}

static void capture_end(struct capture *c)
{
    struct capture **at = &captures;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    for (int i = 0; i < c->member_count; i++)
        c->members[i]->capture = NULL;
    free(c);
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    entry call;
    if (call.error)
        return result(call.error);
    struct emu_stream *s = stream_of(stream);
    if (!s)
        return result(cudaErrorInvalidResourceHandle);
    *graph = NULL;
    if (!s->capture)
        return result(cudaErrorIllegalState);
    struct capture *c = s->capture;
    if (c->origin != s)
        return result(cudaErrorStreamCaptureUnmatched);
    cudaError_t error = c->invalid     ? cudaErrorStreamCaptureInvalidated
                        : is_joined(c) ? cudaSuccess
                                       : cudaErrorStreamCaptureUnjoined;
    if (error == cudaErrorStreamCaptureUnjoined)
        report(EMU_CAPTURE, NULL, "a forked stream was not joined before the capture ended");
    if (error) {
        graph_free(c->graph);
    } else {
        c->graph->next = graphs;
        graphs = c->graph;
        *graph = c->graph;
    }
    capture_end(c);
    return result(error);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    entry call;
    struct emu_stream *s = stream_of(stream);
    if (!s)
        return result(cudaErrorInvalidResourceHandle);
    *status = !s->capture           ? cudaStreamCaptureStatusNone
              : s->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                    : cudaStreamCaptureStatusActive;
    return result(call.error);
}

/* -------------------------------------------------------------------------------- replay ----- */

struct graph_launch {
    struct operation op;
    struct emu_graph *graph;
};

static void graph_launch_fini(struct operation *op)
{
    graph_free(((struct graph_launch *)op)->graph);
}

static int node_ready(const struct emu_graph *g, const char *done, int i)
{
    for (int k = 0; k < g->nodes[i].after_count; k++)
        if (!done[g->nodes[i].after[k]])
            return 0;
    return !done[i];
}

static cudaError_t graph_run(struct operation *self)
{
    const struct emu_graph *g = ((struct graph_launch *)self)->graph;
    struct order order = self->order;
    char *done = (char *)calloc((size_t)g->count + 1, 1);
    cudaError_t error = cudaSuccess;
    int first = 0; /* all before it are done */
    while (!error) {
        int picked = -1;
        uint32_t ready = 0;
        while (first < g->count && done[first])
            first++;
        for (int i = first; i < g->count && i < first + 64; i++)
            if (node_ready(g, done, i) && random_below(++ready) == 0)
                picked = i;
        if (picked < 0)
            break;
        error = operation_run(g->nodes[picked].op, &order, self->slot);
        done[picked] = 1;
    }
    free(done);
    return error;
}

static struct emu_graph_exec *exec_of(cudaGraphExec_t handle)
{
    for (struct emu_graph_exec *x = execs; x; x = x->next)
        if (x == handle)
            return x;
    report(EMU_MISUSE, NULL, "%p is no executable graph", (void *)handle);
    return NULL;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long)
{
    entry call;
    if (call.error)
        return result(call.error);
    if (!exec || !graph)
        return result(cudaErrorInvalidValue);
    struct emu_graph_exec *x = (struct emu_graph_exec *)calloc(1, sizeof *x);
    assert(x);
    x->graph = graph;
    graph->refs++;
    x->next = execs;
    execs = x;
    *exec = x;
    return result(cudaSuccess);
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream)
{
    entry call;
    if (call.error)
        return result(call.error);
    return result(exec_of(exec) && stream_of(stream) ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    entry call;
    if (call.error)
        return result(call.error);
    struct emu_graph_exec *x = exec_of(exec);
    struct emu_stream *s = stream_of(stream);
    if (!x || !s)
        return result(cudaErrorInvalidValue);
    struct graph_launch *l = (struct graph_launch *)operation_new(sizeof *l, graph_run);
    l->op.fini = graph_launch_fini;
    l->graph = x->graph;
    l->graph->refs++;
    figures.graph_launches++;
    return result(stream_enqueue(s, &l->op));
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    entry call;
    for (struct emu_graph **at = &graphs; *at; at = &(*at)->next)
        if (*at == graph) {
            *at = graph->next;
            graph_free(graph);
            return result(call.error);
        }
    return result(cudaErrorInvalidValue);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    entry call;
    for (struct emu_graph_exec **at = &execs; *at; at = &(*at)->next)
        if (*at == exec) {
            *at = exec->next;
            graph_free(exec->graph);
            free(exec);
            return result(call.error);
        }
    return result(cudaErrorInvalidValue);
}

int graph_leaks(int reporting)
{
    int leaks = 0;
    for (struct emu_graph *g = graphs; g; g = g->next, leaks++)
        if (reporting)
            report(EMU_LEAK, NULL, "a graph of %d nodes", g->count);
    for (struct emu_graph_exec *x = execs; x; x = x->next, leaks++)
        if (reporting)
            report(EMU_LEAK, NULL, "an executable graph of %d nodes", x->graph->count);
    return leaks;
}

void graph_open(void)
{
    captures = NULL;
    graphs = NULL;
    execs = NULL;
}
