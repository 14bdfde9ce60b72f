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

/* Whether `path` can be a socket's name at all. */
int listener_check(const char *path, struct kr_err *err);

/* Takes over a socket that listens already. */
int listener_adopt(struct listener *l, int fd, struct kr_err *err);

void listener_close(struct listener *l);

/* ---------------------------------------------------------------------------- the server ----- */

enum server_level { SERVER_ERROR, SERVER_WARN, SERVER_INFO, SERVER_DEBUG };

struct server;

/* How one job ended. Texts are valid during the call. */
struct server_job_record {
    uint64_t id;
    uid_t uid;
    const char *outcome; /* "done", "failed", "cancelled" */
    const char *code;    /* of the error that it failed with ("io", ...), or NULL */
    bool detach;
    int64_t width, height, steps, count, seed;
    double queued, encode, denoise, decode, png, total; /* seconds */
    size_t peak;                                        /* bytes */
    enum server_level level;                            /* a failed job is a warning */
    const char *prompt;                                 /* for an owner who wants it logged */
    const char *line; /* all of it as one line, for a log without fields; no prompt */
};

/* All are called on the loop's thread. Those marked so may be NULL. */
struct server_hooks {
    void (*log)(enum server_level level, const char *line);
    void (*status)(const char *line); /* how it is doing, for the service manager */
    void (*stopping)(void);
    /* A job has ended: the one line of the log about it. NULL: job->line goes to log(). */
    void (*job)(const struct server_job_record *job);
    /* Loop and worker are alive; every `alive_interval`, while that is so. May be NULL. */
    void (*alive)(void);
    /* SIGHUP came. Reads the settings again and calls server_reload(). NULL: SIGHUP is only logged.
     */
    void (*reload)(struct server *server);
};

struct server_options {
    struct engine *engine;     /* borrowed */
    struct listener *listener; /* borrowed; its fd becomes the server's */
    struct server_hooks hooks;
    const char *profile;    /* its name, for detached jobs; or NULL */
    const char *output_dir; /* NULL: pictures go to clients only */
    const char *state_dir;  /* NULL: detached jobs are refused */
    bool state_dir_named;   /* by somebody: that another daemon uses it is an error */
    int64_t alive_interval; /* milliseconds; 0: hooks.alive() is called every ten seconds */

    /* server_reload() takes these over. The two texts are read during the call only. */
    const char *allow_users, *allow_groups; /* names or numbers; NULL or "": whoever can connect */
    int64_t queue_limit;                    /* jobs beside the running one */
    int64_t user_queue_limit, client_queue_limit; /* of one user, of one connection; 0: no limit */
    int64_t keep_images, keep_bytes, keep_days;   /* of detached jobs; days 0: for ever */
    int64_t max_clients, user_clients;            /* connections: all, of one user (0: no limit) */
    int64_t client_timeout, stop_timeout, worker_timeout; /* seconds */
};

enum server_end {
    SERVER_STOPPED,     /* as asked */
    SERVER_DEVICE_LOST, /* a job ended with KR_DEVICE; all replies went out */
    SERVER_DEAF,        /* no client can be accepted any more; jobs and replies went out */
    SERVER_STUCK        /* the worker did not come back: end the process without closing anything */
};

/* Holds SIGTERM, SIGINT and SIGHUP back. To be called before the process has a socket or a second
 * thread, so that one that comes early stops the daemon as cleanly as a later one, and so that it
 * reaches no thread but the loop's. They are let through in server_run() alone. */
void server_block_signals(void);

/* Clients may connect from here on; they are served in server_run(). */
int server_open(const struct server_options *options, struct server **server, struct kr_err *err);

enum server_end server_run(struct server *server); /* returns when the daemon shall end */

/* Takes over what can change while it runs; from within hooks.reload(). -1 and nothing changes: a
 * user or group in the lists is unknown. */
int server_reload(struct server *server, const struct server_options *options, struct kr_err *err);

void server_close(struct server *server); /* not after SERVER_STUCK */

#endif
