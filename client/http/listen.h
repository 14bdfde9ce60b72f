/* SPDX-License-Identifier: Apache-2.0
 *
 * The sockets to listen on: those that systemd passed, else those of the setting.
 */
#ifndef KR_HTTP_LISTEN_H
#define KR_HTTP_LISTEN_H

#include <stdbool.h>

#include "proto/err.h"

enum { LISTEN_MAX = 16 };

struct listen_set {
    int fds[LISTEN_MAX];
    char names[LISTEN_MAX][64]; /* "http://127.0.0.1:1234/" */
    int count;
};

/* `words`: "127.0.0.1:1234 [::1]:1234"; `optional`: an address that this machine does not have is
 * passed over as long as one is left. An address that others can reach is refused without a token.
 * With `probe` nothing is opened, only the words are checked. */
int listen_open(struct listen_set *set, const char *words, bool optional, bool has_token,
                bool probe, struct kr_err *err);

#endif
