/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/conn.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "daemon/server/job.h"
#include "daemon/server/methods.h"
#include "daemon/server/state.h"

enum {
    INPUT_LEAST = 4 << 10,   /* bytes offered to a read */
    INPUT_KEPT = 64 << 10,   /* an empty buffer larger than this is given back */
    OUTPUT_HIGH = 256 << 10, /* bytes waiting: stop listening to the client */
    OUTPUT_LOW = 64 << 10,   /* go on */
    HALF_CHECK = 200         /* milliseconds between looks at a half-closed client */
};

static const uint64_t output_most = (uint64_t)KR_MAX_REPLY * 2; /* nobody needs to buffer more */

static size_t waiting(struct conn *conn)
{
    return uv_stream_get_write_queue_size((uv_stream_t *)&conn->pipe);
}

/* ---------------------------------------------------------------------------- closing -------- */

static void on_handle_closed(uv_handle_t *handle)
{
    struct conn *conn = handle->data;
    struct server *server = conn->server;
    if (--conn->handles > 0)
        return;
    free(conn->input);
    free(conn->name);
    free(conn);
    if (server->accept_owed && server->phase < PHASE_CLOSED) {
        server->accept_owed = false;
        conn_accept(server);
    }
}

void conn_close(struct conn *conn)
{
    struct server *server = conn->server;
    if (conn->closing)
        return;
    conn->closing = true;
    if (conn->prev)
        conn->prev->next = conn->next;
    else
        server->conns = conn->next;
    if (conn->next)
        conn->next->prev = conn->prev;
    server->conn_count--;
    uv_close((uv_handle_t *)&conn->pipe, on_handle_closed);
    uv_close((uv_handle_t *)&conn->input_timer, on_handle_closed);
    uv_close((uv_handle_t *)&conn->output_timer, on_handle_closed);
    keep_forget(server, conn);
    jobs_forget(server, conn);
    server_step(server);
}

void conn_finish(struct conn *conn)
{
    if (conn->closing || conn->doomed)
        return;
    conn->finishing = true;
    uv_read_stop((uv_stream_t *)&conn->pipe);
    uv_timer_stop(&conn->input_timer);
    if (waiting(conn) == 0)
        conn_close(conn);
}

/* ---------------------------------------------------------------------------- output --------- */

struct write {
    uv_write_t request;
    char *data;
};

static void read_on(struct conn *conn);

static void on_written(uv_write_t *request, int status)
{
    struct write *write = (struct write *)request;
    struct conn *conn = request->handle->data;
    free(write->data);
    free(write);
    if (conn->closing)
        return;
    if (status < 0) {
        conn_close(conn);
        return;
    }
    if (waiting(conn) == 0) {
        uv_timer_stop(&conn->output_timer);
        if (conn->finishing) {
            conn_close(conn);
            return;
        }
    }
    if (conn->paused && waiting(conn) <= OUTPUT_LOW) {
        conn->paused = false;
        read_on(conn);
    }
}

static void on_output_timer(uv_timer_t *timer)
{
    struct conn *conn = timer->data;
    uint64_t taken = conn->queued - waiting(conn);
    if (taken == conn->last_taken) {
        server_log(conn->server, SERVER_WARN,
                   "a client of uid %u read nothing for %lld s and was disconnected",
                   (unsigned)conn->uid, (long long)conn->server->options.client_timeout);
        conn_close(conn);
        return;
    }
    conn->last_taken = taken;
}

static void watch_output(struct conn *conn)
{
    uint64_t period = (uint64_t)conn->server->options.client_timeout * 1000;
    if (waiting(conn) == 0 || uv_is_active((uv_handle_t *)&conn->output_timer))
        return;
    conn->last_taken = conn->queued - waiting(conn);
    uv_timer_start(&conn->output_timer, on_output_timer, period, period);
}

static void on_doomed(uv_timer_t *timer)
{
    conn_close(timer->data);
}

/* Closes it when the loop comes round again: whoever sends may be walking a list that this client
 * is in, and closing tells others, which are in lists too. */
static void doom(struct conn *conn)
{
    conn->doomed = true;
    uv_read_stop((uv_stream_t *)&conn->pipe);
    uv_timer_start(&conn->input_timer, on_doomed, 0, 0);
}

void conn_send(struct conn *conn, struct kr_out *out)
{
    size_t size;
    bool gone = conn->closing || conn->doomed;
    char *data = kr_out_take(out, &size);
    struct write *write = data && !gone ? malloc(sizeof *write) : NULL;
    if (write && waiting(conn) + size <= output_most) {
        uv_buf_t buf = uv_buf_init(data, (unsigned)size);
        write->data = data;
        conn->queued += size;
        if (uv_write(&write->request, (uv_stream_t *)&conn->pipe, &buf, 1, on_written) == 0) {
            watch_output(conn);
            return;
        }
    }
    free(data);
    free(write);
    if (!gone)
        doom(conn);
}

void conn_send_progress(struct conn *conn, struct kr_out *out)
{
    if (out->failed || waiting(conn) > OUTPUT_LOW)
        kr_out_fini(out);
    else
        conn_send(conn, out);
}

/* ---------------------------------------------------------------------------- input ---------- */

static void refuse(struct conn *conn, const struct kr_err *err)
{
    struct kr_out out;
    kr_out_init(&out);
    kr_out_error(&out, 0, err);
    conn_send(conn, &out);
    conn_finish(conn);
}

static void on_frame_late(uv_timer_t *timer)
{
    struct conn *conn = timer->data;
    struct kr_err err;
    kr_fail(&err, KR_BAD_FRAME, "the message was not finished within %lld s",
            (long long)conn->server->options.client_timeout);
    refuse(conn, &err);
}

static void handle_frame(struct conn *conn, const char *frame, size_t size)
{
    struct kr_in in;
    struct kr_err err;
    if (kr_in_init(&in, frame, size, &err) < 0) {
        refuse(conn, &err);
        return;
    }
    if (in.kind == KR_IN_REQUEST) {
        methods_handle(conn, &in);
    } else {
        kr_fail(&err, KR_BAD_FRAME, "a client sends requests only");
        refuse(conn, &err);
    }
    kr_in_fini(&in);
}

static bool wants_input(const struct conn *conn)
{
    return !conn->closing && !conn->doomed && !conn->finishing && !conn->paused;
}

/* Handles what frames there are whole; `*done` bytes of the input are used up. */
static void take_frames(struct conn *conn, size_t *done)
{
    struct kr_err err;
    *done = 0;
    while (wants_input(conn) && *done < conn->input_size) {
        const char *at = conn->input + *done;
        int64_t size = kr_scan_feed(&conn->scan, at, conn->input_size - *done, &err);
        if (size == 0)
            return;
        if (size < 0) {
            refuse(conn, &err);
            return;
        }
        kr_scan_init(&conn->scan, KR_MAX_REQUEST);
        uv_timer_stop(&conn->input_timer);
        handle_frame(conn, at, (size_t)size);
        *done += (size_t)size;
        if (!conn->closing && waiting(conn) > OUTPUT_HIGH)
            conn->paused = true;
    }
}

static void drop_input(struct conn *conn, size_t done)
{
    conn->input_size -= done;
    if (conn->input_size > 0) {
        memmove(conn->input, conn->input + done, conn->input_size);
    } else if (conn->input_room > INPUT_KEPT) {
        free(conn->input);
        conn->input = NULL;
        conn->input_room = 0;
    }
}

static void end_input(struct conn *conn);
static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf);
static void on_room(uv_handle_t *handle, size_t suggested, uv_buf_t *buf);

/* Goes on with the input that is there, then with reading, as far as the client's own reading
 * allows. The clock of a frame starts with its first byte and runs only while we listen. */
static void read_on(struct conn *conn)
{
    uint64_t patience = (uint64_t)conn->server->options.client_timeout * 1000;
    size_t done;
    take_frames(conn, &done);
    if (conn->closing)
        return;
    drop_input(conn, done);
    if (conn->finishing || conn->doomed)
        return;
    if (conn->paused) {
        uv_read_stop((uv_stream_t *)&conn->pipe);
        uv_timer_stop(&conn->input_timer);
    } else {
        int rc = uv_read_start((uv_stream_t *)&conn->pipe, on_room, on_read);
        assert(rc == 0 || rc == UV_EALREADY);
        if (conn->input_size > 0 && !uv_is_active((uv_handle_t *)&conn->input_timer))
            uv_timer_start(&conn->input_timer, on_frame_late, patience, 0);
    }
}

/* Room for the next read behind what is there. A message that says how long it is gets its room
 * at once; otherwise the buffer doubles. */
static void on_room(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    struct conn *conn = handle->data;
    size_t want = conn->input_size + INPUT_LEAST, need = kr_scan_need(&conn->scan);
    (void)suggested;
    if (conn->input_room < want) {
        size_t room = conn->input_room * 2;
        room = room < want ? want : room;
        room = room < need && need <= KR_MAX_REQUEST ? need : room;
        char *grown = realloc(conn->input, room);
        if (!grown) {
            *buf = uv_buf_init(NULL, 0); /* on_read() gets UV_ENOBUFS */
            return;
        }
        conn->input = grown;
        conn->input_room = room;
    }
    *buf = uv_buf_init(conn->input + conn->input_size,
                       (unsigned)(conn->input_room - conn->input_size));
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct conn *conn = stream->data;
    (void)buf;
    if (n == UV_EOF) {
        uv_read_stop(stream);
        end_input(conn);
    } else if (n < 0) {
        conn_close(conn);
    } else if (n > 0) {
        conn->input_size += (size_t)n;
        read_on(conn);
    }
}

/* ---------------------------------------------------------------------------- half-closed ---- */

/* The end of a client's input may be that of the client or of its requests. The socket tells: it
 * hangs up in the first case, now or later. */
static bool hung_up(struct conn *conn)
{
    uv_os_fd_t fd;
    if (uv_fileno((uv_handle_t *)&conn->pipe, &fd) != 0)
        return true;
    struct pollfd look = {.fd = fd};
    return poll(&look, 1, 0) == 1 && look.revents & (POLLHUP | POLLERR);
}

static void on_half_check(uv_timer_t *timer)
{
    struct conn *conn = timer->data;
    bool owed =
        conn->watching > 0 || conn->watch_all || waiting(conn) > 0 || keep_owes(conn->server, conn);
    if (!owed || hung_up(conn))
        conn_close(conn);
}

static void end_input(struct conn *conn)
{
    conn->input_size = 0; /* half a message is none */
    uv_timer_start(&conn->input_timer, on_half_check, HALF_CHECK, HALF_CHECK);
    on_half_check(&conn->input_timer);
}

/* ---------------------------------------------------------------------------- accepting ------ */

static uid_t peer_uid(struct conn *conn)
{
    struct ucred peer = {.uid = (uid_t)-1};
    socklen_t size = sizeof peer;
    uv_os_fd_t fd;
    if (uv_fileno((uv_handle_t *)&conn->pipe, &fd) == 0)
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size);
    return peer.uid;
}

static void init_conn(struct conn *conn, struct server *server)
{
    *conn = (struct conn){.server = server, .handles = 3, .next = server->conns};
    uv_pipe_init(&server->loop, &conn->pipe, 0);
    uv_timer_init(&server->loop, &conn->input_timer);
    uv_timer_init(&server->loop, &conn->output_timer);
    conn->pipe.data = conn->input_timer.data = conn->output_timer.data = conn;
    kr_scan_init(&conn->scan, KR_MAX_REQUEST);
    if (server->conns)
        server->conns->prev = conn;
    server->conns = conn;
    server->conn_count++;
}

void conn_check_access(struct conn *conn)
{
    uv_os_fd_t fd;
    conn->allowed =
        uv_fileno((uv_handle_t *)&conn->pipe, &fd) == 0 && access_allows(&conn->server->access, fd);
}

static int64_t clients_of(const struct server *server, uid_t uid)
{
    int64_t n = 0;
    for (const struct conn *conn = server->conns; conn; conn = conn->next)
        n += conn->uid == uid;
    return n;
}

/* Whether another client is taken. */
static int admit(const struct conn *conn, struct kr_err *err)
{
    const struct server *server = conn->server;
    int64_t most = server->options.user_clients;
    if (server->phase >= PHASE_CLOSING)
        return kr_fail(err, KR_SHUTDOWN, "the daemon is stopping, try again when it is back");
    if (server->conn_count > server->options.max_clients)
        return kr_fail(err, KR_BUSY, "%lld clients are connected, no more are taken (max_clients)",
                       (long long)server->options.max_clients);
    if (most > 0 && clients_of(server, conn->uid) > most)
        return kr_fail(err, KR_BUSY,
                       "%lld clients of yours are connected, no more are taken (user_clients)",
                       (long long)most);
    return 0;
}

void conn_accept(struct server *server)
{
    struct kr_err err;
    struct conn *conn = malloc(sizeof *conn);
    if (!conn) {
        server->accept_owed = true; /* when another client leaves there is memory again */
        return;
    }
    init_conn(conn, server);
    if (uv_accept((uv_stream_t *)&server->listener, (uv_stream_t *)&conn->pipe) < 0) {
        conn_close(conn);
        return;
    }
    conn->uid = peer_uid(conn);
    conn_check_access(conn);
    if (admit(conn, &err) < 0)
        refuse(conn, &err);
    else
        read_on(conn);
}
