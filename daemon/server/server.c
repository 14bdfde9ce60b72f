/* SPDX-License-Identifier: Apache-2.0
 *
 * The loop and the daemon's life in phases: ready, draining (no new jobs, the running one may
 * finish within stop_timeout and is cancelled then), closing (no jobs left; what was promised to
 * clients is written, within a few seconds), closed. Everything moves on in advance(), which runs
 * when the loop comes round after server_step(), so nothing is torn down under anybody's feet.
 *
 * A second signal shortens all of it: the running job is cancelled now and clients get a second.
 * A worker that does not come back from a cancelled job within CANCEL_LIMIT is given up.
 */
#include <assert.h>
#include <errno.h>
#include <malloc.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "daemon/server/conn.h"
#include "daemon/server/state.h"

enum {
    TICK = 10000,           /* milliseconds between looks at the worker, if nobody asks for more */
    CANCEL_LIMIT = 10000,   /* milliseconds that a cancelled job may take to end */
    FLUSH_LIMIT = 5000,     /* milliseconds that clients get to read their results at the end */
    HURRY_LIMIT = 1000,     /* both of them after a second signal */
    LEAST_FILES = 16,       /* descriptors: the loop's, its reserve, a picture, some clients */
    LARGE_BLOCK = 256 << 10 /* bytes: requests, pictures: their memory goes back when freed */
};

void server_log(const struct server *server, enum server_level level, const char *format, ...)
{
    char line[1600];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    server->options.hooks.log(level, line);
}

double server_wall_clock(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static int64_t waiting_of(const struct server *server, const struct conn *conn)
{
    int64_t n = keep_accepting(server, conn, conn->uid);
    for (const struct job *job = server->jobs.first; job; job = job->next)
        n += job->waits && job->owner == conn;
    return n;
}

static int too_many(const char *whose, int64_t limit, const char *setting, struct kr_err *err)
{
    return kr_fail(err, KR_BUSY,
                   "the queue is full: %s%s takes %lld and no more are taken; try again later",
                   setting, whose, (long long)limit);
}

int server_admit(const struct server *server, const struct conn *conn, struct kr_err *err)
{
    const struct server_options *o = &server->options;
    if (server->phase != PHASE_READY)
        return kr_fail(err, KR_SHUTDOWN, "the daemon is stopping, try again when it is back");
    int64_t active = server->queue.waiting + server->jobs.accepting +
                     (server->running || server->starting ? 1 : 0);
    if (active > o->queue_limit)
        return too_many("", o->queue_limit, "queue_limit", err);
    if (o->user_queue_limit > 0 &&
        queue_of(server, conn->uid) + keep_accepting(server, NULL, conn->uid) >=
            o->user_queue_limit)
        return too_many(", for one user,", o->user_queue_limit, "user_queue_limit", err);
    if (o->client_queue_limit > 0 && waiting_of(server, conn) >= o->client_queue_limit)
        return too_many(", for one connection,", o->client_queue_limit, "client_queue_limit", err);
    if (keep_is_behind(server))
        return kr_fail(err, KR_BUSY, "the disk is slower than jobs come; try again in a moment");
    return 0;
}

void server_step(struct server *server)
{
    uv_async_send(&server->wake);
}

/* ---------------------------------------------------------------------------- stopping ------- */

static void close_handle(uv_handle_t *handle)
{
    if (!uv_is_closing(handle))
        uv_close(handle, NULL);
}

static void on_deadline(uv_timer_t *timer);

static void set_deadline(struct server *server, int64_t milliseconds)
{
    uv_timer_start(&server->deadline, on_deadline, (uint64_t)milliseconds, 0);
}

static void give_up(struct server *server)
{
    server_log(server, SERVER_ERROR, "the running job did not end after it was cancelled");
    server->end = SERVER_STUCK;
    uv_stop(&server->loop);
}

static const int signal_numbers[SIGNALS] = {SIGTERM, SIGINT, SIGHUP};

static void mask_signals(int how)
{
    sigset_t ours;
    sigemptyset(&ours);
    for (int i = 0; i < SIGNALS; i++)
        sigaddset(&ours, signal_numbers[i]);
    pthread_sigmask(how, &ours, NULL);
}

void server_block_signals(void)
{
    mask_signals(SIG_BLOCK);
}

static void close_all(struct server *server)
{
    struct conn *next;
    server->phase = PHASE_CLOSED;
    for (struct conn *conn = server->conns; conn; conn = next) {
        next = conn->next;
        conn_close(conn);
    }
    close_handle((uv_handle_t *)&server->listener);
    close_handle((uv_handle_t *)&server->deadline);
    close_handle((uv_handle_t *)&server->tick);
    close_handle((uv_handle_t *)&server->wake);
    server_block_signals(); /* before libuv gives them back their deadly defaults */
    for (int i = 0; i < SIGNALS; i++)
        close_handle((uv_handle_t *)&server->signals[i]);
}

/* The running job is to end now. */
static void cancel_running(struct server *server)
{
    server->cancelled = true;
    if (server->running)
        atomic_store(&server->running->cancel, 1);
    set_deadline(server, server->hurry ? HURRY_LIMIT : CANCEL_LIMIT);
}

static void on_deadline(uv_timer_t *timer)
{
    struct server *server = timer->data;
    if (server->phase == PHASE_CLOSING)
        close_all(server);
    else if (!server->cancelled)
        cancel_running(server);
    else if (server->running)
        give_up(server);
    else
        set_deadline(server, CANCEL_LIMIT); /* the disk holds it up; that ends */
}

void server_stop(struct server *server, const char *why)
{
    if (server->phase != PHASE_READY)
        return;
    server_log(server, SERVER_INFO, "stopping: %s", why);
    server->options.hooks.stopping();
    server->phase = PHASE_DRAINING;
    jobs_refuse(server, "the daemon is stopping, try again when it is back");
    set_deadline(server, server->options.stop_timeout * 1000);
    server_step(server);
}

static void begin_closing(struct server *server)
{
    struct conn *next;
    server->phase = PHASE_CLOSING;
    worker_stop(&server->worker);
    set_deadline(server, server->hurry ? HURRY_LIMIT : FLUSH_LIMIT);
    for (struct conn *conn = server->conns; conn; conn = next) {
        next = conn->next;
        conn_finish(conn);
    }
}

static bool at_work(const struct server *server)
{
    return server->running || server->starting || server->jobs.attached > 0 || keep_busy(server);
}

/* Goes from phase to phase as soon as nothing holds it back. */
static void advance(struct server *server)
{
    if (server->phase == PHASE_READY && server->end == SERVER_DEVICE_LOST)
        server_stop(server, "the device failed");
    if (server->phase == PHASE_DRAINING && !at_work(server))
        begin_closing(server);
    if (server->phase == PHASE_CLOSING && !server->conns)
        close_all(server);
}

static void tell_status(struct server *server)
{
    char line[sizeof server->told];
    const struct job *job = server->running;
    if (server->phase != PHASE_READY)
        return;
    if (job)
        snprintf(line, sizeof line, "running job %llu, %lld waiting", (unsigned long long)job->id,
                 (long long)server->queue.waiting);
    else
        snprintf(line, sizeof line, "ready, %lld jobs done", (long long)server->jobs.done);
    if (strcmp(line, server->told) == 0)
        return;
    strcpy(server->told, line);
    server->options.hooks.status(line);
}

static void on_wake(uv_async_t *wake)
{
    struct server *server = wake->data;
    struct event *next, *event = NULL;
    if (server->worker.running)
        event = worker_events(&server->worker);
    for (; event; event = next) {
        next = event->next;
        jobs_take(event);
    }
    if (server->phase < PHASE_CLOSING) {
        jobs_feed(server);
        if (server->jobs.crowded)
            keep_trim(server);
        jobs_trim(server);
    }
    advance(server);
    tell_status(server);
}

/* ---------------------------------------------------------------------------- the outside ---- */

static void on_tick(uv_timer_t *timer)
{
    struct server *server = timer->data;
    health_check(server);
    if (server->untidy && !server->running) {
        server->untidy = false;
        malloc_trim(0); /* pictures left holes; while nothing runs nobody waits for this */
    }
    server->jobs.crowded = true; /* kept pictures grow old */
    server_step(server);
}

static void on_signal(uv_signal_t *handle, int number)
{
    struct server *server = handle->data;
    if (number == SIGHUP && server->options.hooks.reload) {
        server->options.hooks.reload(server);
    } else if (number == SIGHUP) {
        server_log(server, SERVER_INFO,
                   "SIGHUP: nothing to do, settings are read at start; restart to change them");
    } else if (server->phase == PHASE_READY) {
        server_stop(server, number == SIGINT ? "interrupted" : "terminated");
    } else if (!server->hurry) {
        server->hurry = true;
        server_log(server, SERVER_INFO, "stopping at once");
        if (server->phase == PHASE_DRAINING)
            cancel_running(server);
        else
            set_deadline(server, HURRY_LIMIT);
    }
}

/* libuv turns clients away by itself while it has a descriptor in reserve. An error that reaches us
 * would come back at once and for ever, with no other event between, as long as the listener is
 * open. */
static void on_client(uv_stream_t *listener, int status)
{
    struct server *server = listener->data;
    if (status == 0) {
        conn_accept(server);
        return;
    }
    server_log(server, SERVER_ERROR, "no client can be accepted any more: %s", uv_strerror(status));
    close_handle((uv_handle_t *)listener);
    server->end = SERVER_DEAF;
    server_stop(server, "nobody can connect");
}

/* ---------------------------------------------------------------------------- open, run, close -
 */

static int start_handles(struct server *server, struct kr_err *err)
{
    struct listener *l = server->options.listener;
    int rc = uv_async_init(&server->loop, &server->wake, on_wake);
    assert(rc == 0); /* the loop's own first one was the one that could fail */
    uv_timer_init(&server->loop, &server->deadline);
    uv_timer_init(&server->loop, &server->tick);
    uv_pipe_init(&server->loop, &server->listener, 0);
    server->wake.data = server->deadline.data = server->tick.data = server->listener.data = server;
    for (int i = 0; i < SIGNALS; i++) {
        uv_signal_init(&server->loop, &server->signals[i]);
        server->signals[i].data = server;
        rc = rc ? rc : uv_signal_start(&server->signals[i], on_signal, signal_numbers[i]);
    }
    if (rc == 0)
        rc = uv_pipe_open(&server->listener, l->fd);
    if (rc == 0) {
        l->fd = -1;
        rc = uv_listen((uv_stream_t *)&server->listener, SOMAXCONN, on_client);
    }
    if (rc < 0)
        return kr_fail(err, KR_IO, "cannot listen for clients: %s", uv_strerror(rc));
    return 0;
}

/* Whether as many files may be opened as it takes to serve anybody. libuv aborts without some of
 * them, and spins without its reserve. */
static int check_files(int any, struct kr_err *err)
{
    int fds[LEAST_FILES], n = 0;
    while (n < LEAST_FILES && (fds[n] = dup(any)) >= 0)
        n++;
    int why = errno;
    bool enough = n == LEAST_FILES;
    while (n > 0)
        close(fds[--n]);
    return enough ? 0
                  : kr_fail(err, KR_IO,
                            "kread cannot open enough files: %s; raise the limit (ulimit "
                            "-n, LimitNOFILE=)",
                            strerror(why));
}

static void work_nothing(uv_work_t *request)
{
    (void)request;
}

/* The threads of libuv's pool start with their first work: now, while signals are held back, so
 * that none of them ever gets one. */
static void start_pool(struct server *server)
{
    uv_queue_work(&server->loop, &server->pool, work_nothing, NULL);
}

static int start(struct server *server, struct kr_err *err)
{
    const struct server_options *o = &server->options;
    int64_t tick = o->alive_interval > 0 && o->alive_interval < TICK ? o->alive_interval : TICK;
    int64_t timeout = o->worker_timeout * 1000 / 2;
    tick = timeout > 0 && timeout < tick ? timeout : tick;
    if (start_handles(server, err) < 0 ||
        access_init(&server->access, o->allow_users, o->allow_groups, err) < 0)
        return -1;
    start_pool(server);
    uv_timer_start(&server->tick, on_tick, (uint64_t)tick, (uint64_t)tick);
    if (keep_open(server, err) < 0)
        return -1;
    return worker_start(&server->worker, o->engine, o->output_dir, &server->keep.spool,
                        &server->wake, err);
}

int server_open(const struct server_options *options, struct server **result, struct kr_err *err)
{
    if (check_files(options->listener->fd, err) < 0)
        return -1;
    /* Else each thread's arena would hold on to what the largest block that it freed took. */
    mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK);
    struct server *server = calloc(1, sizeof *server);
    if (!server)
        return kr_fail(err, KR_NO_MEMORY, "out of memory");
    server->options = *options;
    server->started_ns = uv_hrtime();
    server->keep.spool = (struct spool){.lock_fd = -1, .dir_fd = -1, .jobs_fd = -1};
    int rc = uv_loop_init(&server->loop);
    if (rc < 0) {
        free(server);
        return kr_fail(err, KR_IO, "cannot start the event loop: %s", uv_strerror(rc));
    }
    if (start(server, err) < 0) {
        close_all(server);
        uv_run(&server->loop, UV_RUN_DEFAULT);
        server_close(server);
        return -1;
    }
    *result = server;
    return 0;
}

enum server_end server_run(struct server *server)
{
    mask_signals(SIG_UNBLOCK);
    uv_run(&server->loop, UV_RUN_DEFAULT);
    return server->end;
}

int server_reload(struct server *server, const struct server_options *options, struct kr_err *err)
{
    struct access access;
    if (access_init(&access, options->allow_users, options->allow_groups, err) < 0)
        return -1;
    access_fini(&server->access);
    server->access = access;
    struct server_options next = server->options;
    next.queue_limit = options->queue_limit;
    next.user_queue_limit = options->user_queue_limit;
    next.client_queue_limit = options->client_queue_limit;
    next.keep_images = options->keep_images;
    next.keep_bytes = options->keep_bytes;
    next.keep_days = options->keep_days;
    next.max_clients = options->max_clients;
    next.user_clients = options->user_clients;
    next.client_timeout = options->client_timeout;
    next.stop_timeout = options->stop_timeout;
    next.worker_timeout = options->worker_timeout;
    server->options = next;
    for (struct conn *conn = server->conns; conn; conn = conn->next)
        conn_check_access(conn);
    server->jobs.crowded = true;
    server_step(server);
    return 0;
}

void server_close(struct server *server)
{
    if (!server)
        return;
    keep_close(server);
    jobs_free(server);
    queue_fini(&server->queue);
    access_fini(&server->access);
    int rc = uv_loop_close(&server->loop);
    assert(rc == 0);
    (void)rc;
    free(server);
}
