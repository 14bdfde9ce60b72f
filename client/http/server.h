/* SPDX-License-Identifier: Apache-2.0
 *
 * Sockets, connections and requests, on libmicrohttpd without threads of its own.
 */
#ifndef KR_HTTP_SERVER_H
#define KR_HTTP_SERVER_H

#include "client/http/shim.h"

/* -1: libmicrohttpd does not start. shim->loop and settings are there already. */
int server_open(struct shim *shim, struct kr_err *err);

/* Takes a listening TCP socket. */
int server_listen(struct server *server, int fd, struct kr_err *err);

/* To be called around loop_once(): how long it may wait, and what libmicrohttpd has to do. */
int64_t server_limit(const struct server *server);
void server_run(struct server *server);

/* Takes no more connections, and answers what waits with 503. */
void server_stop(struct server *server);
bool server_idle(const struct server *server); /* no answer is on its way */
void server_close(struct server *server);

size_t server_connections(const struct server *server);

#endif
