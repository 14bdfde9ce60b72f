/* SPDX-License-Identifier: Apache-2.0
 *
 * What `status` says about the server; the loop's thread.
 */
#ifndef KR_STATUS_H
#define KR_STATUS_H

#include "proto/message.h"

struct server;

enum { STATUS_PAIRS = 19 };
void status_put(struct kr_out *out, const struct server *server); /* so many pairs of a map */

/* `running` and `queued`, two pairs. */
void status_put_running(struct kr_out *out, const struct server *server);

#endif
