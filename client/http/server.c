/* SPDX-License-Identifier: Apache-2.0
 *
 * libmicrohttpd parses and sends; it runs when this file says so, on the loop's thread, with one
 * epoll descriptor that the loop polls. Connections are accepted here, because it alone would let a
 * client hold one for ever by sending a byte now and then: every connection has a time by which a
 * whole request must have come (request_timeout, counted from the last answer), and another for
 * taking the answer; one that takes nothing of it for request_timeout is thrown out before. When
 * all places are taken, the connection that has asked for nothing for the longest makes room.
 *
 * A request that waits for the daemon is suspended: libmicrohttpd does not look at its socket then,
 * so the loop does, for the one thing that matters, the client's leaving. Half-closing counts as
 * leaving; no known client does it before it has its answer.
 */
#include "client/http/server.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/http/log.h"
#include "client/http/routes.h"

enum {
    MAX_LISTENERS = 16,
    HEADER_MEMORY = 32 << 10, /* of a connection: request line and headers */
    SLACK = 64,               /* connections that are being thrown out */
    SWEEP = 500,              /* milliseconds */
    FULL_PAUSE = 100,         /* no descriptor left: milliseconds until the next try */
    ANSWER_RATE = 8 << 10,    /* bytes a second that a client must take at least */
    BODIES = 64               /* so many bodies of max_body at a time in all */
};

struct conn {
    int fd;
    struct in6_addr from;
    int64_t
        due; /* client_now() by which a request must have come, or an answer gone; 0: no limit */
    bool asking; /* between answers: waits for a request, or for the rest of one */
    /* While an answer goes out: bytes of it that were handed on, of these the kernel's, and when
     * either changed. */
    uint64_t given, seen;
    int kernels;
    int64_t moved;
    struct conn *next, **place;
};

struct listener {
    struct server *server;
    struct loop_watch watch;
    int fd;
};

struct server {
    struct shim *shim;
    struct MHD_Daemon *mhd;
    struct loop_watch wake; /* libmicrohttpd's epoll descriptor */
    struct loop_timer sweep;
    struct listener listeners[MAX_LISTENERS];
    size_t listener_count;
    struct conn *conns;
    size_t conn_count, answering;
    size_t bodies; /* bytes in memory */
    struct request *waiting;
};

/* ------------------------------------------------------------------------------ connections --- */

static struct in6_addr address_of(const struct sockaddr *sa)
{
    struct in6_addr address = IN6ADDR_ANY_INIT;
    if (sa->sa_family == AF_INET6) {
        address = ((const struct sockaddr_in6 *)sa)->sin6_addr;
    } else if (sa->sa_family == AF_INET) {
        address.s6_addr[10] = address.s6_addr[11] = 0xff;
        memcpy(address.s6_addr + 12, &((const struct sockaddr_in *)sa)->sin_addr, 4);
    }
    return address;
}

static void conn_asks(struct conn *conn, const struct shim *shim)
{
    conn->asking = true;
    conn->due = client_now() + shim->settings.request_timeout * 1000;
}

static void on_connection(void *user, struct MHD_Connection *connection, void **context,
                          enum MHD_ConnectionNotificationCode code)
{
    struct server *server = user;
    struct conn *conn = *context;
    const union MHD_ConnectionInfo *info;
    if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
        if (conn != NULL) {
            *conn->place = conn->next;
            if (conn->next != NULL) {
                conn->next->place = conn->place;
            }
            server->conn_count--;
            free(conn);
        }
        return;
    }
    conn = calloc(1, sizeof *conn);
    *context = conn;
    if (conn == NULL) {
        return;
    }
    info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    conn->fd = info->connect_fd;
    info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    conn->from = address_of(info->client_addr);
    conn_asks(conn, server->shim);
    conn->next = server->conns;
    conn->place = &server->conns;
    if (conn->next != NULL) {
        conn->next->place = &conn->next;
    }
    server->conns = conn;
    server->conn_count++;
}

static struct conn *conn_of(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info->socket_context;
}

/* libmicrohttpd finds the socket's end and does the rest. */
static void throw_out(struct conn *conn)
{
    shutdown(conn->fd, SHUT_RDWR);
    conn->due = 0;
    conn->asking = false;
}

/* ---------------------------------------------------------------------------------- accepting ---
 */

/* Makes room for one more from that address. false: everybody is busy. */
static bool make_room(struct server *server, const struct in6_addr *from)
{
    const struct http_settings *s = &server->shim->settings;
    int64_t same = 0;
    struct conn *oldest = NULL, *oldest_same = NULL;
    for (struct conn *conn = server->conns; conn != NULL; conn = conn->next) {
        bool is_same = memcmp(&conn->from, from, sizeof *from) == 0;
        same += is_same;
        if (conn->asking && (oldest == NULL || conn->due < oldest->due)) {
            oldest = conn;
        }
        if (conn->asking && is_same && (oldest_same == NULL || conn->due < oldest_same->due)) {
            oldest_same = conn;
        }
    }
    bool many = same >= s->max_connections_per_address;
    if (!many && (int64_t)server->conn_count < s->max_connections) {
        return true;
    }
    struct conn *out = many ? oldest_same : oldest;
    if (out == NULL) {
        return false;
    }
    throw_out(out);
    return (int64_t)server->conn_count < s->max_connections + SLACK;
}

static void take_in(struct server *server, int fd, const struct sockaddr *sa, socklen_t length)
{
    static const char full[] = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 2\r\n"
                               "Content-Length: 0\r\nConnection: close\r\n\r\n";
    struct in6_addr from = address_of(sa);
    if (!make_room(server, &from)) {
        ssize_t sent = send(fd, full, sizeof full - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
        (void)sent;
        close(fd);
        return;
    }
    MHD_add_connection(server->mhd, fd, sa, length); /* closes it if it fails */
}

/* Whether the client will send no more, in the middle of a request. libmicrohttpd reads what comes
 * with the end and learns of the end only by the next thing that happens. */
static bool broke_off(const struct conn *conn)
{
    char byte;
    return conn->asking && recv(conn->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

/* Whether the client takes nothing of its answer any more. */
static bool stalls(struct conn *conn, int64_t now, int64_t limit)
{
    int kernels = 0;
    if (conn->asking || conn->due == 0) {
        return false;
    }
    if (ioctl(conn->fd, TIOCOUTQ, &kernels) != 0 || kernels != conn->kernels ||
        conn->given != conn->seen) {
        conn->kernels = kernels;
        conn->seen = conn->given;
        conn->moved = now;
    }
    return now - conn->moved > limit;
}

/* Now and then: throws out whose time is up, and listens again after a pause. */
static void on_sweep(void *user)
{
    struct server *server = user;
    int64_t now = client_now(), limit = server->shim->settings.request_timeout * 1000;
    for (struct conn *conn = server->conns; conn != NULL; conn = conn->next) {
        if ((conn->due != 0 && conn->due <= now) || broke_off(conn) || stalls(conn, now, limit)) {
            throw_out(conn);
        }
    }
    for (size_t i = 0; i < server->listener_count; i++) {
        struct listener *l = &server->listeners[i];
        if (l->watch.place == 0) {
            loop_watch(server->shim->loop, &l->watch, l->fd, POLLIN);
        }
    }
    loop_timer(server->shim->loop, &server->sweep, SWEEP);
}

/* Out of descriptors: a level-triggered poll would spin. */
static void pause_accepting(struct server *server)
{
    for (size_t i = 0; i < server->listener_count; i++) {
        loop_unwatch(server->shim->loop, &server->listeners[i].watch);
    }
    loop_timer(server->shim->loop, &server->sweep, FULL_PAUSE);
}

static void on_accept(void *user, short events)
{
    struct listener *l = user;
    (void)events;
    for (int i = 0; i < 64; i++) {
        struct sockaddr_storage from = {0};
        socklen_t length = sizeof from;
        int fd = accept4(l->fd, (struct sockaddr *)&from, &length, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            take_in(l->server, fd, (struct sockaddr *)&from, length);
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            pause_accepting(l->server);
            return;
        } else if (errno != EINTR && errno != ECONNABORTED) {
            return;
        }
    }
}

int server_listen(struct server *server, int fd, struct kr_err *err)
{
    if (server->listener_count == MAX_LISTENERS) {
        return kr_fail(err, KR_BAD_CONFIG, "there are more than %d addresses to listen on",
                       MAX_LISTENERS);
    }
    struct listener *l = &server->listeners[server->listener_count];
    *l = (struct listener){.server = server, .fd = fd, .watch = {.ready = on_accept, .user = l}};
    if (loop_watch(server->shim->loop, &l->watch, fd, POLLIN) != 0) {
        return kr_fail(err, KR_NO_MEMORY, "no memory for a listening socket");
    }
    server->listener_count++;
    return 0;
}

/* --------------------------------------------------------------------------------- requests --- */

static void unlink_waiting(struct request *r)
{
    struct shim *shim = r->shim;
    r->waiting = false;
    *r->place = r->next;
    if (r->next != NULL) {
        r->next->place = r->place;
    }
    loop_unwatch(shim->loop, &r->hangup);
    MHD_resume_connection(r->connection);
}

static void on_hangup(void *user, short events)
{
    struct request *r = user;
    (void)events;
    r->gone = true;
    unlink_waiting(r);
    r->left(r->op);
}

void request_wait(struct request *r, void (*left)(void *op), void *op)
{
    struct server *server = r->shim->server;
    struct conn *conn = conn_of(r->connection);
    assert(!r->waiting && r->answer == NULL);
    r->left = left;
    r->op = op;
    r->waiting = true;
    r->hangup = (struct loop_watch){.ready = on_hangup, .user = r};
    loop_watch(r->shim->loop, &r->hangup, conn->fd, POLLRDHUP);
    r->next = server->waiting;
    r->place = &server->waiting;
    if (r->next != NULL) {
        r->next->place = &r->next;
    }
    server->waiting = r;
    MHD_suspend_connection(r->connection);
}

void request_answer(struct request *r, struct answer *answer)
{
    assert(r->answer == NULL && !r->gone);
    r->answer = answer;
    if (answer == NULL) {
        r->gone = true; /* without memory for an answer the connection is closed */
    }
    if (r->waiting) {
        unlink_waiting(r);
    }
}

struct in6_addr request_from(const struct request *r)
{
    return conn_of(r->connection)->from;
}

const char *request_query(const struct request *r, const char *key)
{
    return MHD_lookup_connection_value(r->connection, MHD_GET_ARGUMENT_KIND, key);
}

const char *request_header(const struct request *r, const char *name)
{
    return MHD_lookup_connection_value(r->connection, MHD_HEADER_KIND, name);
}

static void free_request(struct request *r)
{
    struct server *server = r->shim->server;
    server->bodies -= r->capacity;
    answer_free(r->answer);
    free(r->body);
    free(r);
}

static void on_completed(void *user, struct MHD_Connection *connection, void **context,
                         enum MHD_RequestTerminationCode code)
{
    struct server *server = user;
    struct request *r = *context;
    struct conn *conn = conn_of(connection);
    (void)code;
    if (conn != NULL) {
        conn_asks(conn, server->shim);
    }
    if (r != NULL) {
        server->answering -= r->complete;
        free_request(r);
        *context = NULL;
    }
}

/* ------------------------------------------------------------------------------------ bodies ---
 */

/* What does not fit is read and dropped, so that the client hears why; not for ever. */
static enum MHD_Result take_body(struct request *r, const char *data, size_t size)
{
    struct server *server = r->shim->server;
    size_t limit = (size_t)r->shim->settings.max_body;
    if (r->answer != NULL || r->overflow || size > limit - r->size) {
        r->overflow = r->answer == NULL;
        r->size += size;
        return r->size > 4 * limit ? MHD_NO : MHD_YES;
    }
    if (r->size + size > r->capacity) {
        size_t capacity = r->capacity ? 2 * r->capacity : 4096;
        capacity = capacity < r->size + size ? r->size + size : capacity;
        if (server->bodies + capacity > BODIES * limit) {
            return MHD_NO;
        }
        char *body = realloc(r->body, capacity);
        if (body == NULL) {
            return MHD_NO;
        }
        server->bodies += capacity - r->capacity;
        r->body = body;
        r->capacity = capacity;
    }
    memcpy(r->body + r->size, data, size);
    r->size += size;
    return MHD_YES;
}

/* The length that a request announces; 0 where it says none. */
static uint64_t announced(const struct request *r)
{
    const char *length = request_header(r, MHD_HTTP_HEADER_CONTENT_LENGTH);
    return length ? strtoull(length, NULL, 10) : 0;
}

static void too_large(struct request *r)
{
    char sentence[96];
    snprintf(sentence, sizeof sentence, "the body is larger than %lld bytes",
             (long long)r->shim->settings.max_body);
    request_answer(
        r, error_answer(r->family, MHD_HTTP_CONTENT_TOO_LARGE, "body too large", NULL, sentence));
}

static void refuse_stopping(struct request *r)
{
    request_fail(r, MHD_HTTP_SERVICE_UNAVAILABLE, "kread-http is stopping",
                 "kread-http is stopping; ask again when it is back");
}

/* ---------------------------------------------------------------------------------- answering ---
 */

static void log_request(const struct request *r, unsigned status)
{
    static const char *const names[FAMILIES] = {"kread", "sdapi", "sdcpp", "openai"};
    log_line(LOG_LEVEL_DEBUG, "%s %s: %u in %lld ms", names[r->family],
             r->route ? r->route->path : "?", status, (long long)(client_now() - r->since));
}

static enum MHD_Result queue(struct request *r)
{
    struct conn *conn = conn_of(r->connection);
    struct answer *answer = r->answer;
    unsigned status = answer_status(answer);
    size_t size = answer_size(answer);
    r->answer = NULL;
    routes_decorate(r, answer);
    if (r->shim->stopping) {
        answer_header(answer, MHD_HTTP_HEADER_CONNECTION, "close");
    }
    struct MHD_Response *response = answer_response(answer, conn ? &conn->given : NULL);
    if (response == NULL) {
        return MHD_NO;
    }
    enum MHD_Result result = MHD_queue_response(r->connection, status, response);
    MHD_destroy_response(response);
    if (conn != NULL) {
        conn->asking = false;
        conn->moved = client_now();
        conn->due = conn->moved + r->shim->settings.request_timeout * 1000 +
                    (int64_t)(size / ANSWER_RATE) * 1000;
    }
    if (status / 100 < STATUS_CLASSES) {
        r->shim->answered[r->family][status / 100]++;
    }
    log_request(r, status);
    return result;
}

/* What is odd about the headers of a request. */
struct oddity {
    int lengths, hosts;
    bool coded;
};

static enum MHD_Result look_at(void *user, enum MHD_ValueKind kind, const char *name,
                               const char *value)
{
    struct oddity *odd = user;
    bool coding = strcasecmp(name, MHD_HTTP_HEADER_TRANSFER_ENCODING) == 0;
    (void)kind;
    odd->lengths += coding || strcasecmp(name, MHD_HTTP_HEADER_CONTENT_LENGTH) == 0;
    odd->coded |= coding && strcasecmp(value, "chunked") != 0;
    odd->hosts += strcasecmp(name, MHD_HTTP_HEADER_HOST) == 0;
    return MHD_YES;
}

/* A request that can be read in two ways may be read in the other way by a proxy in front. true: it
 * has a body whose end nobody knows, so the answer cannot wait for that. */
static bool refuse_odd(struct request *r)
{
    struct oddity odd = {0};
    MHD_get_connection_values(r->connection, MHD_HEADER_KIND, look_at, &odd);
    const struct {
        bool is;
        unsigned status;
        const char *what, *sentence;
    } table[] = {
        {odd.lengths > 1, MHD_HTTP_BAD_REQUEST, "two lengths",
         "the request says the length of its body more than once"},
        {odd.coded, MHD_HTTP_NOT_IMPLEMENTED, "unknown transfer coding",
         "the only Transfer-Encoding that this server knows is chunked"},
        {odd.hosts > 1, MHD_HTTP_BAD_REQUEST, "two hosts",
         "the request has more than one Host header"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (table[i].is) {
            answer_free(r->answer);
            r->answer = NULL;
            struct answer *a =
                error_answer(r->family, table[i].status, table[i].what, NULL, table[i].sentence);
            answer_header(a, MHD_HTTP_HEADER_CONNECTION, "close");
            request_answer(r, a);
            break;
        }
    }
    return odd.coded;
}

/* The headers are there. What can be refused now is refused after the body was read, if it is small
 * enough to be read: a client that is still sending would not hear it. */
static enum MHD_Result begin(struct server *server, struct MHD_Connection *connection,
                             const char *method, const char *url, void **context)
{
    struct request *r = calloc(1, sizeof *r);
    *context = r;
    if (r == NULL || conn_of(connection) == NULL) {
        free(r);
        *context = NULL;
        return MHD_NO;
    }
    r->shim = server->shim;
    r->connection = connection;
    r->since = client_now();
    routes_find(r, method, url);
    bool endless = refuse_odd(r);
    if (r->answer == NULL && announced(r) > (uint64_t)r->shim->settings.max_body) {
        too_large(r);
    }
    return r->answer != NULL && (endless || announced(r) > HEADER_MEMORY) ? queue(r) : MHD_YES;
}

static enum MHD_Result on_request(void *user, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *data,
                                  size_t *size, void **context)
{
    struct server *server = user;
    struct request *r = *context;
    (void)version;
    if (r == NULL) {
        return begin(server, connection, method, url, context);
    }
    if (*size > 0) {
        size_t taken = *size;
        *size = 0;
        return take_body(r, data, taken);
    }
    if (!r->complete) {
        r->complete = true;
        server->answering++;
        conn_of(connection)->asking = false;
        conn_of(connection)->due = 0;
        if (r->answer == NULL && r->overflow) {
            too_large(r);
        } else if (r->answer == NULL && server->shim->stopping) {
            refuse_stopping(r);
        } else if (r->answer == NULL) {
            r->route->handle(r);
        }
    }
    return r->gone ? MHD_NO : r->answer != NULL ? queue(r) : MHD_YES;
}

/* -------------------------------------------------------------------------------- the server ---
 */

/* %00 would end a path early: it becomes a character that no route has. */
static size_t unescape(void *user, struct MHD_Connection *connection, char *text)
{
    size_t length = MHD_http_unescape(text);
    (void)user;
    (void)connection;
    for (size_t i = 0; i < length; i++) {
        text[i] = (char)(text[i] ? text[i] : 1);
    }
    return length;
}

static void on_wake(void *user, short events)
{
    (void)user; /* server_run() follows */
    (void)events;
}

int server_open(struct shim *shim, struct kr_err *err)
{
    struct server *server = calloc(1, sizeof *server);
    const unsigned flags = MHD_USE_EPOLL | MHD_USE_NO_LISTEN_SOCKET | MHD_ALLOW_SUSPEND_RESUME;
    if (server == NULL) {
        return kr_fail(err, KR_NO_MEMORY, "no memory for the server");
    }
    server->shim = shim;
    shim->server = server;
    server->mhd = MHD_start_daemon(
        flags, 0, NULL, NULL, on_request, server, MHD_OPTION_NOTIFY_COMPLETED, on_completed, server,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, server, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)shim->settings.max_connections + 2 * SLACK, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)HEADER_MEMORY, MHD_OPTION_UNESCAPE_CALLBACK, unescape, NULL,
        MHD_OPTION_CONNECTION_TIMEOUT, 0u, MHD_OPTION_STRICT_FOR_CLIENT, 1,
        MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1, MHD_OPTION_END);
    if (server->mhd == NULL) {
        return kr_fail(err, KR_IO, "libmicrohttpd does not start: %s", strerror(errno));
    }
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(server->mhd, MHD_DAEMON_INFO_EPOLL_FD);
    server->wake = (struct loop_watch){.ready = on_wake, .user = server};
    server->sweep = (struct loop_timer){.due = on_sweep, .user = server};
    if (loop_watch(shim->loop, &server->wake, info->epoll_fd, POLLIN) != 0) {
        return kr_fail(err, KR_NO_MEMORY, "no memory for the server");
    }
    loop_timer(shim->loop, &server->sweep, SWEEP);
    return 0;
}

int64_t server_limit(const struct server *server)
{
    MHD_UNSIGNED_LONG_LONG limit;
    return MHD_get_timeout(server->mhd, &limit) == MHD_YES ? (int64_t)limit : -1;
}

void server_run(struct server *server)
{
    MHD_run(server->mhd);
}

static void stop_listening(struct server *server)
{
    for (size_t i = 0; i < server->listener_count; i++) {
        loop_unwatch(server->shim->loop, &server->listeners[i].watch);
        close(server->listeners[i].fd);
    }
    server->listener_count = 0;
}

void server_stop(struct server *server)
{
    server->shim->stopping = true;
    stop_listening(server);
    while (server->waiting != NULL) {
        struct request *r = server->waiting;
        r->left(r->op);
        refuse_stopping(r);
    }
}

bool server_idle(const struct server *server)
{
    return server->answering == 0;
}

void server_close(struct server *server)
{
    if (server == NULL) {
        return;
    }
    stop_listening(server);
    loop_untimer(server->shim->loop, &server->sweep);
    loop_unwatch(server->shim->loop, &server->wake);
    if (server->mhd != NULL) {
        MHD_stop_daemon(server->mhd);
    }
    free(server);
}

size_t server_connections(const struct server *server)
{
    return server->conn_count;
}
