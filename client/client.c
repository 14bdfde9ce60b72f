/* SPDX-License-Identifier: Apache-2.0
 *
 * The socket is non-blocking, so that every wait is a poll() here, with a deadline and with the
 * wake descriptor beside it. Received bytes collect in one buffer; the message that was handed out
 * stays at its front until the next call, and then makes room. The scan says how large the message
 * under way is, so that a picture's buffer grows once.
 */
#include "client/client.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { READ_SIZE = 64 << 10 };

struct client {
    int fd, wake;
    uint32_t last_id;
    char *data; /* bytes received: the message handed out, then what follows it */
    size_t size, capacity;
    size_t handed; /* bytes of the message handed out */
    bool decoded;  /* `in` is to be freed */
    struct kr_in in;
    struct kr_scan scan;
    int64_t heard; /* when the last byte came */
};

int64_t client_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Waits for `events` until `deadline` (-1: for ever). 1: they are there, 0: they are not. */
static int wait_for(const struct client *c, short events, int64_t deadline, struct kr_err *err)
{
    for (;;) {
        struct pollfd fds[2] = {{.fd = c->fd, .events = events},
                                {.fd = c->wake, .events = POLLIN}}; /* -1 is passed over */
        int64_t left = deadline < 0 ? -1 : deadline - client_now();
        int timeout = left < 0 ? (deadline < 0 ? -1 : 0) : left > INT32_MAX ? INT32_MAX : (int)left;
        int n = poll(fds, 2, timeout);
        if (n < 0 && errno != EINTR) {
            return kr_fail(err, KR_IO, "cannot wait for kread: %s", strerror(errno));
        }
        if (n > 0 && fds[1].revents) {
            return kr_fail(err, KR_CANCELLED, "interrupted");
        }
        if (n > 0) {
            return 1;
        }
        if (n == 0 && deadline >= 0 && client_now() >= deadline) {
            return 0;
        }
    }
}

/* ------------------------------------------------------------------------------ connecting --- */

static int address_of(const char *path, struct sockaddr_un *address, struct kr_err *err)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address->sun_path) {
        return kr_fail(err, KR_BAD_CONFIG,
                       "the socket's path has %zu bytes, the system allows %zu: %s", strlen(path),
                       sizeof address->sun_path - 1, path);
    }
    strcpy(address->sun_path, path);
    return 0;
}

static int connect_failed(const char *path, int error, struct kr_err *err)
{
    if (error == ENOENT || error == ECONNREFUSED) {
        return kr_fail(err, KR_NO_DAEMON,
                       "no daemon listens on %s: start kread, or name its socket with --socket or "
                       "KREAD_SOCKET",
                       path);
    }
    if (error == EACCES || error == EPERM) {
        return kr_fail(err, KR_NO_DAEMON, "you may not open %s: its owner or group may", path);
    }
    return kr_fail(err, KR_NO_DAEMON, "cannot connect to %s: %s", path, strerror(error));
}

/* A local socket whose backlog is full answers EAGAIN at once, and poll() can't wait for it. */
static int connect_to(struct client *c, const char *path, int limit, struct kr_err *err)
{
    struct sockaddr_un address;
    int64_t deadline = client_now() + limit;
    if (address_of(path, &address, err) != 0) {
        return -1;
    }
    c->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (c->fd < 0) {
        return kr_fail(err, KR_IO, "cannot open a socket: %s", strerror(errno));
    }
    while (connect(c->fd, (struct sockaddr *)&address, sizeof address) != 0) {
        if (errno == EINTR) {
            continue;
        }
        if (errno != EAGAIN || client_now() >= deadline) {
            return connect_failed(path, errno, err);
        }
        struct pollfd wake = {.fd = c->wake, .events = POLLIN};
        if (poll(&wake, 1, 20) > 0) {
            return kr_fail(err, KR_CANCELLED, "interrupted");
        }
    }
    return 0;
}

static uint32_t begin_hello(struct client *c, const char *name, struct kr_out *out)
{
    uint32_t id = client_begin(c, KR_M_HELLO, out);
    kr_out_map(out, 2);
    kr_out_pair_int(out, "version", KR_PROTOCOL_VERSION);
    kr_out_pair_text(out, "client", name);
    return id;
}

static int connect_within(const char *path, int wake, int limit, struct client **client,
                          struct kr_err *err)
{
    struct client *c = calloc(1, sizeof *c);
    *client = NULL;
    if (c == NULL) {
        return kr_fail(err, KR_NO_MEMORY, "no memory for a connection");
    }
    c->fd = -1;
    c->wake = wake;
    kr_scan_init(&c->scan, KR_MAX_REPLY);
    if (connect_to(c, path, limit, err) != 0) {
        client_close(c);
        return -1;
    }
    *client = c;
    return 0;
}

int client_open(const char *path, const char *name, int wake, struct client **client,
                struct kr_err *err)
{
    struct kr_out out;
    const struct kr_value *result;
    if (connect_within(path, wake, CLIENT_CONNECT_LIMIT, client, err) != 0) {
        return -1;
    }
    uint32_t id = begin_hello(*client, name, &out);
    if (client_call(*client, &out, id, &result, err) != 0) {
        client_close(*client);
        *client = NULL;
        return -1;
    }
    return 0;
}

int client_start(const char *path, const char *name, struct client **client, struct kr_err *err)
{
    struct kr_out out;
    if (connect_within(path, -1, 0, client, err) != 0) {
        return -1;
    }
    begin_hello(*client, name, &out);
    if (client_send(*client, &out, err) != 0) {
        client_close(*client);
        *client = NULL;
        return -1;
    }
    return 0;
}

int client_fd(const struct client *client)
{
    return client->fd;
}

void client_close(struct client *client)
{
    if (client == NULL) {
        return;
    }
    if (client->decoded) {
        kr_in_fini(&client->in);
    }
    if (client->fd >= 0) {
        close(client->fd);
    }
    free(client->data);
    free(client);
}

/* --------------------------------------------------------------------------------- sending --- */

uint32_t client_begin(struct client *client, enum kr_method method, struct kr_out *out)
{
    client->last_id = client->last_id == UINT32_MAX ? 1 : client->last_id + 1;
    kr_out_init(out);
    kr_out_request(out, client->last_id, method);
    return client->last_id;
}

static int send_all(struct client *c, const char *data, size_t size, struct kr_err *err)
{
    int64_t deadline = client_now() + CLIENT_ANSWER_LIMIT;
    while (size > 0) {
        ssize_t n = send(c->fd, data, size, MSG_NOSIGNAL);
        if (n >= 0) {
            data += n;
            size -= (size_t)n;
        } else if (errno == EPIPE || errno == ECONNRESET) {
            return 0; /* what it said before it hung up is still to be read */
        } else if (errno == EAGAIN) {
            int ready = wait_for(c, POLLOUT, deadline, err);
            if (ready == 0) {
                kr_fail(err, KR_NO_DAEMON, "kread takes no more bytes; it seems to hang");
            }
            if (ready != 1) {
                return -1;
            }
        } else if (errno != EINTR) {
            return kr_fail(err, KR_NO_DAEMON, "cannot send to kread: %s", strerror(errno));
        }
    }
    return 0;
}

int client_send(struct client *client, struct kr_out *out, struct kr_err *err)
{
    size_t size;
    char *data = kr_out_take(out, &size);
    if (data == NULL) {
        return kr_fail(err, KR_NO_MEMORY, "no memory for a request");
    }
    int rc = size > KR_MAX_REQUEST
                 ? kr_fail(err, KR_BAD_REQUEST, "the request has %zu bytes, at most %d are allowed",
                           size, KR_MAX_REQUEST)
                 : send_all(client, data, size, err);
    free(data);
    return rc;
}

/* ------------------------------------------------------------------------------- receiving --- */

/* The message handed out before makes room. */
static void drop_handed(struct client *c)
{
    if (c->decoded) {
        kr_in_fini(&c->in);
        c->decoded = false;
    }
    if (c->handed > 0) {
        c->size -= c->handed;
        memmove(c->data, c->data + c->handed, c->size);
        c->handed = 0;
        kr_scan_init(&c->scan, KR_MAX_REPLY);
    }
}

static int make_room(struct client *c, struct kr_err *err)
{
    size_t want =
        kr_scan_need(&c->scan) > c->size + READ_SIZE ? kr_scan_need(&c->scan) : c->size + READ_SIZE;
    if (want <= c->capacity) {
        return 0;
    }
    size_t capacity = want > 2 * c->capacity ? want : 2 * c->capacity;
    char *data = realloc(c->data, capacity);
    if (data == NULL) {
        return kr_fail(err, KR_NO_MEMORY, "no memory for an answer of %zu bytes", want);
    }
    c->data = data;
    c->capacity = capacity;
    return 0;
}

/* Reads once. 1: bytes came, 0: none within the deadline. */
static int receive(struct client *c, int64_t deadline, struct kr_err *err)
{
    if (make_room(c, err) != 0) {
        return -1;
    }
    for (;;) {
        ssize_t n = recv(c->fd, c->data + c->size, c->capacity - c->size, 0);
        if (n > 0) {
            c->size += (size_t)n;
            c->heard = client_now();
            return 1;
        }
        if (n == 0 || errno == ECONNRESET) {
            return kr_fail(err, KR_NO_DAEMON, "kread closed the connection%s",
                           c->size > 0 ? " in the middle of a message" : "");
        }
        if (errno == EAGAIN) {
            int ready = wait_for(c, POLLIN, deadline, err);
            if (ready != 1) {
                return ready;
            }
        } else if (errno != EINTR) {
            return kr_fail(err, KR_NO_DAEMON, "cannot receive from kread: %s", strerror(errno));
        }
    }
}

static int interrupted(const struct client *c, struct kr_err *err)
{
    struct pollfd wake = {.fd = c->wake, .events = POLLIN};
    return poll(&wake, 1, 0) > 0 ? kr_fail(err, KR_CANCELLED, "interrupted") : 0;
}

/* Not every stranger on a socket is one; say what was spoken instead. */
static int strange(struct kr_err *err)
{
    char why[sizeof err->text];
    memcpy(why, err->text, sizeof why);
    return kr_fail(err, KR_BAD_FRAME,
                   "what listens on the socket does not speak kread's protocol "
                   "(%.300s)",
                   why);
}

static int decode(struct client *c, size_t size, const struct kr_in **in, struct kr_err *err)
{
    if (kr_in_init(&c->in, c->data, size, err) != 0) {
        return err->code == KR_BAD_FRAME ? strange(err) : -1;
    }
    c->handed = size;
    c->decoded = true;
    if (c->in.kind == KR_IN_REQUEST) {
        kr_fail(err, KR_BAD_FRAME, "it sent a request");
        return strange(err);
    }
    if (c->in.kind == KR_IN_RESPONSE && c->in.id == 0 && c->in.result == NULL) {
        *err = c->in.error;
        return -1;
    }
    *in = &c->in;
    return 1;
}

int client_next(struct client *client, int timeout, const struct kr_in **in, struct kr_err *err)
{
    struct client *c = client;
    struct kr_err local = {.text = ""};
    int64_t deadline = timeout < 0 ? -1 : client_now() + timeout;
    err = err ? err : &local;
    drop_handed(c);
    if (interrupted(c, err) != 0) { /* also while messages keep coming */
        return -1;
    }
    for (;;) {
        int64_t size = kr_scan_feed(&c->scan, c->data, c->size, err);
        if (size != 0) {
            return size < 0 ? strange(err) : decode(c, (size_t)size, in, err);
        }
        bool begun = c->size > 0;
        int64_t stalled = c->heard + CLIENT_ANSWER_LIMIT;
        int got =
            receive(c, begun && (deadline < 0 || deadline > stalled) ? stalled : deadline, err);
        if (got < 0) {
            return -1;
        }
        if (got == 0) {
            return begun && client_now() >= stalled
                       ? kr_fail(err, KR_NO_DAEMON, "kread fell silent in the middle of a message")
                       : 0;
        }
    }
}

int client_call(struct client *client, struct kr_out *out, uint32_t id,
                const struct kr_value **result, struct kr_err *err)
{
    const struct kr_in *in;
    int64_t deadline = client_now() + CLIENT_ANSWER_LIMIT;
    if (client_send(client, out, err) != 0) {
        return -1;
    }
    for (;;) {
        int64_t left = deadline - client_now();
        int got = client_next(client, left > 0 ? (int)left : 0, &in, err);
        if (got < 0) {
            return -1;
        }
        if (got == 0) {
            return kr_fail(err, KR_NO_DAEMON, "kread did not answer within %d seconds",
                           CLIENT_ANSWER_LIMIT / 1000);
        }
        if (in->kind != KR_IN_RESPONSE || in->id != id) {
            continue;
        }
        if (in->result == NULL) {
            *err = in->error;
            return -1;
        }
        *result = in->result;
        return 0;
    }
}
