/* SPDX-License-Identifier: Apache-2.0
 *
 * A connection to the daemon that blocks: one socket, poll() with deadlines, no threads. kreactl
 * drives one; a program with several threads gives each thread its own.
 *
 * Every function that fails says so by -1 and an error: KR_NO_DAEMON when nobody listens, answers
 * or stays on the line, KR_BAD_FRAME when what listens speaks something else, KR_CANCELLED when the
 * wake descriptor became readable, and whatever code the daemon answered with.
 */
#ifndef KR_CLIENT_H
#define KR_CLIENT_H

#include <stddef.h>
#include <stdint.h>

#include "proto/message.h"

enum {
    CLIENT_CONNECT_LIMIT = 5000, /* milliseconds, for a daemon whose backlog is full */
    CLIENT_ANSWER_LIMIT = 60000, /* for an answer, and for the rest of a message that began */
};

/* Where the daemon listens, in the daemon's own order: option (NULL: none), $KREAD_SOCKET, `socket`
 * in the config file (the one that is named, NULL: the one that is found),
 * $XDG_RUNTIME_DIR/kread.sock if it is there, /run/kread/kread.sock. The caller frees *path. */
int client_socket_path(const char *option, const char *config, char **path, struct kr_err *err);

struct client;

/* Connects and says hello under `name`. wake: a descriptor that interrupts any wait when it becomes
 * readable, -1 for none. */
int client_open(const char *path, const char *name, int wake, struct client **client,
                struct kr_err *err);
void client_close(struct client *client); /* NULL is fine */

/* For a program with a loop of its own: connects and sends hello without waiting for anything; the
 * answer to hello comes like any other message (request 1). Whenever client_fd() is readable, call
 * client_next() with a timeout of 0 until it returns 0. */
int client_start(const char *path, const char *name, struct client **client, struct kr_err *err);
int client_fd(const struct client *client);

/* Begins a request in `out`, up to where its one map of parameters goes, and returns its id. */
uint32_t client_begin(struct client *client, enum kr_method method, struct kr_out *out);

/* Sends what client_begin() began and the caller completed; `out` is used up either way. */
int client_send(struct client *client, struct kr_out *out, struct kr_err *err);

/* The next message. 1: *in is it, valid until the next call; 0: none came within timeout
 * milliseconds (-1: no limit). An error that belongs to no request is returned as one. */
int client_next(struct client *client, int timeout, const struct kr_in **in, struct kr_err *err);

/* Sends, then waits for the answer and drops notifications that come before it. 0: *result is what
 * it was answered with, valid until the next call. */
int client_call(struct client *client, struct kr_out *out, uint32_t id,
                const struct kr_value **result, struct kr_err *err);

int64_t client_now(void); /* monotonic milliseconds */

#endif
