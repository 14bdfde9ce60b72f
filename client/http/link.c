/* SPDX-License-Identifier: Apache-2.0
 *
 * A callback may close the link that calls it, so while messages are handed out closing only marks
 * it, and the hand that feeds frees it.
 */
#include "client/http/link.h"

#include <poll.h>
#include <stdlib.h>

struct call {
    uint32_t id;
    link_answer *answer; /* NULL: forgotten */
    void *user;
    int64_t deadline;
    struct call *next;
};

struct link {
    struct loop *loop;
    struct client *client;
    struct link_owner owner;
    struct loop_watch watch;
    struct loop_timer limit; /* of the oldest call */
    struct call *first, **last;
    size_t waiting;
    bool busy, closed;
};

static void free_link(struct link *link)
{
    while (link->first != NULL) {
        struct call *call = link->first;
        link->first = call->next;
        free(call);
    }
    client_close(link->client);
    free(link);
}

void link_close(struct link *link)
{
    if (link == NULL || link->closed) {
        return;
    }
    link->closed = true;
    loop_unwatch(link->loop, &link->watch);
    loop_untimer(link->loop, &link->limit);
    if (!link->busy) {
        free_link(link);
    }
}

/* While the link is busy. The owner first, so that whoever is answered finds no link any more. */
static void lose(struct link *link, const struct kr_err *reason)
{
    link->owner.lost(link->owner.user, reason);
    while (!link->closed && link->first != NULL) {
        struct call *call = link->first;
        link->first = call->next;
        if (call->answer != NULL) {
            call->answer(call->user, NULL, reason);
        }
        free(call);
    }
    link_close(link);
}

static void set_limit(struct link *link)
{
    int64_t left = link->first ? link->first->deadline - client_now() : 0;
    if (link->first == NULL) {
        loop_untimer(link->loop, &link->limit);
    } else {
        loop_timer(link->loop, &link->limit, left > 0 ? left : 0);
    }
}

static void on_limit(void *user)
{
    struct link *link = user;
    struct kr_err err;
    kr_fail(&err, KR_NO_DAEMON, "kread did not answer within %d seconds", LINK_ANSWER_LIMIT / 1000);
    link->busy = true;
    lose(link, &err);
    free_link(link);
}

static void answered(struct link *link, const struct kr_in *in)
{
    struct call **at = &link->first;
    while (*at != NULL && (*at)->id != in->id) {
        at = &(*at)->next;
    }
    struct call *call = *at;
    if (call == NULL) {
        return; /* hello's, when it is well */
    }
    *at = call->next;
    link->last = call->next == NULL ? at : link->last;
    link->waiting--;
    set_limit(link);
    if (call->answer != NULL) {
        call->answer(call->user, in->result, in->result ? NULL : &in->error);
    }
    free(call);
}

static void hand_out(struct link *link, const struct kr_in *in)
{
    if (in->kind == KR_IN_NOTICE && link->owner.notice != NULL) {
        link->owner.notice(link->owner.user, in);
    } else if (in->kind == KR_IN_RESPONSE && in->id == 1 && in->result == NULL) {
        lose(link, &in->error); /* hello was refused: another version */
    } else if (in->kind == KR_IN_RESPONSE) {
        answered(link, in);
    }
}

static void on_ready(void *user, short events)
{
    struct link *link = user;
    const struct kr_in *in;
    struct kr_err err;
    int got = 1;
    (void)events;
    link->busy = true;
    while (!link->closed && (got = client_next(link->client, 0, &in, &err)) > 0) {
        hand_out(link, in);
    }
    if (!link->closed && got < 0) {
        lose(link, &err);
    }
    link->busy = false;
    if (link->closed) {
        free_link(link);
    }
}

int link_open(struct loop *loop, const char *path, const struct link_owner *owner,
              struct link **out, struct kr_err *err)
{
    struct link *link = calloc(1, sizeof *link);
    *out = NULL;
    if (link == NULL) {
        return kr_fail(err, KR_NO_MEMORY, "no memory for a connection to kread");
    }
    *link = (struct link){.loop = loop,
                          .owner = *owner,
                          .watch = {.ready = on_ready, .user = link},
                          .limit = {.due = on_limit, .user = link},
                          .last = &link->first};
    if (client_start(path, "kread-http " KR_VERSION, &link->client, err) != 0) {
        free(link);
        return -1;
    }
    if (loop_watch(loop, &link->watch, client_fd(link->client), POLLIN) != 0) {
        free_link(link);
        return kr_fail(err, KR_NO_MEMORY, "no memory for a connection to kread");
    }
    *out = link;
    return 0;
}

uint32_t link_begin(struct link *link, enum kr_method method, struct kr_out *out)
{
    return client_begin(link->client, method, out);
}

int link_send(struct link *link, struct kr_out *out, uint32_t id, link_answer *answer, void *user,
              struct kr_err *err)
{
    struct call *call = calloc(1, sizeof *call);
    if (call == NULL) {
        kr_out_fini(out);
        return kr_fail(err, KR_NO_MEMORY, "no memory for a request to kread");
    }
    if (client_send(link->client, out, err) != 0) {
        free(call);
        return -1;
    }
    *call = (struct call){
        .id = id, .answer = answer, .user = user, .deadline = client_now() + LINK_ANSWER_LIMIT};
    *link->last = call;
    link->last = &call->next;
    link->waiting++;
    set_limit(link);
    return 0;
}

void link_forget(struct link *link, const void *user)
{
    for (struct call *call = link ? link->first : NULL; call != NULL; call = call->next) {
        if (call->user == user) {
            call->answer = NULL;
        }
    }
}

size_t link_waiting(const struct link *link)
{
    return link->waiting;
}
