/* SPDX-License-Identifier: Apache-2.0
 *
 * The server: clients on a Unix socket, a bounded queue of jobs, one worker thread with the engine.
 * This room is the only one with an event loop. It prints nothing and never exits: what is to be
 * logged and how the daemon is doing goes through the hooks.
 */
#ifndef KR_SERVER_H
#define KR_SERVER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/engine/engine.h"
#include "proto/err.h"

/* ---------------------------------------------------------------------------- the socket ----- */

/* A listening socket. One that listener_open() made belongs to us: it is removed at the end. */
struct listener {
    int fd;
    int lock_fd;  /* holds PATH.lock, so that two daemons cannot start on one path; or -1 */
    char *path;   /* NULL: passed to us and without a name in the file system */
    dev_t device; /* what was bound, to remove that and nothing else */
    ino_t inode;
    bool ours;
    uid_t owner; /* of the socket; he and root may stop the daemon */
};

/* Binds and listens. `mode` is the socket file's: 0600 lets only its owner connect. A socket file
 * that nobody listens on is replaced, a live one refused. */
int listener_open(struct listener *l, const char *path, mode_t mode, struct kr_err *err);

/* Takes over a socket that listens already. */
int listener_adopt(struct listener *l, int fd, struct kr_err *err);

void listener_close(struct listener *l);

/* ---------------------------------------------------------------------------- the server ----- */

enum server_level { SERVER_ERROR, SERVER_WARN, SERVER_INFO, SERVER_DEBUG };

struct server_hooks {
    void (*log)(enum server_level level, const char *line);
    void (*status)(const char *line); /* how it is doing, for the service manager */
    void (*stopping)(void);
};

struct server_options {
    struct engine *engine;     /* borrowed */
    struct listener *listener; /* borrowed; its fd becomes the server's */
    struct server_hooks hooks;
    const char *output_dir;          /* NULL: pictures go to clients only */
    int64_t queue_limit;             /* jobs beside the running one */
    int64_t keep_images, keep_bytes; /* of detached jobs, until they are fetched */
    int64_t max_clients;
    int64_t client_timeout, stop_timeout; /* seconds */
};

enum server_end {
    SERVER_STOPPED,     /* as asked */
    SERVER_DEVICE_LOST, /* a job ended with KR_DEVICE; all replies went out */
    SERVER_DEAF,        /* no client can be accepted any more; jobs and replies went out */
    SERVER_STUCK        /* the worker did not come back: end the process without closing anything */
};

struct server;

/* Holds SIGTERM, SIGINT and SIGHUP back. To be called before the process has a socket or a second
 * thread, so that one that comes early stops the daemon as cleanly as a later one, and so that it
 * reaches no thread but the loop's. They are let through in server_run() alone. */
void server_block_signals(void);

/* Clients may connect from here on; they are served in server_run(). */
int server_open(const struct server_options *options, struct server **server, struct kr_err *err);

enum server_end server_run(struct server *server); /* returns when the daemon shall end */

void server_close(struct server *server); /* not after SERVER_STUCK */

#endif
