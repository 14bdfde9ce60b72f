/* SPDX-License-Identifier: Apache-2.0
 *
 * A connection to the daemon on the loop: requests with a function for each answer, notifications,
 * and the end. client/client.h does the framing; this file never lets it wait. Closing a link is
 * how a job that was submitted on it is cancelled.
 */
#ifndef KR_HTTP_LINK_H
#define KR_HTTP_LINK_H

#include "client/client.h"
#include "client/http/loop.h"

struct link;

enum { LINK_ANSWER_LIMIT = 15000 }; /* milliseconds until a daemon that does not answer is lost */

/* An answer: `result`, or NULL and the error. Both are valid during the call only. */
typedef void link_answer(void *user, const struct kr_value *result, const struct kr_err *err);

struct link_owner {
    void (*notice)(void *user, const struct kr_in *in); /* NULL: they are dropped */
    /* Once, before the answers that were to come; the link is closed after it. */
    void (*lost)(void *user, const struct kr_err *reason);
    void *user;
};

/* -1: nobody listens. The owner hears nothing before this returns. */
int link_open(struct loop *loop, const char *path, const struct link_owner *owner,
              struct link **link, struct kr_err *err);
void link_close(struct link *link); /* no more callbacks; NULL is fine; also inside a callback */

/* Begins a request in `out`, up to where its one map of parameters goes. */
uint32_t link_begin(struct link *link, enum kr_method method, struct kr_out *out);

/* Sends it; `answer` is called once, also when the link is lost, unless the link is closed before
 * or the user forgotten. -1: it could not be sent, and nothing will be called. */
int link_send(struct link *link, struct kr_out *out, uint32_t id, link_answer *answer, void *user,
              struct kr_err *err);

void link_forget(struct link *link, const void *user); /* drops its answers when they come */
size_t link_waiting(const struct link *link);          /* answers that are to come */

#endif
