/* SPDX-License-Identifier: Apache-2.0
 *
 * poll() over a dense array. A watch that is stopped while callbacks run leaves a hole (fd -1,
 * which poll() passes over) that is closed at the end of the round, so that the places of those
 * still to be called do not change under the loop's feet.
 */
#include "client/http/loop.h"

#include <assert.h>
#include <poll.h>
#include <stdlib.h>

#include "client/client.h"

struct loop {
    struct pollfd *fds;
    struct loop_watch **watches; /* NULL: a hole */
    size_t count, capacity;
    struct loop_timer *timers; /* the next first */
    bool holes;
};

struct loop *loop_new(void)
{
    return calloc(1, sizeof(struct loop));
}

void loop_free(struct loop *loop)
{
    if (loop != NULL) {
        free(loop->fds);
        free(loop->watches);
        free(loop);
    }
}

static int grow(struct loop *loop)
{
    size_t capacity = loop->capacity ? 2 * loop->capacity : 64;
    struct pollfd *fds = realloc(loop->fds, capacity * sizeof *fds);
    if (fds == NULL) {
        return -1;
    }
    loop->fds = fds;
    struct loop_watch **watches = realloc(loop->watches, capacity * sizeof(struct loop_watch *));
    if (watches == NULL) {
        return -1;
    }
    loop->watches = watches;
    loop->capacity = capacity;
    return 0;
}

int loop_watch(struct loop *loop, struct loop_watch *watch, int fd, short events)
{
    assert(watch->place == 0 && fd >= 0);
    if (loop->count == loop->capacity && grow(loop) != 0) {
        return -1;
    }
    loop->fds[loop->count] = (struct pollfd){.fd = fd, .events = events};
    loop->watches[loop->count] = watch;
    watch->fd = fd;
    watch->place = ++loop->count;
    return 0;
}

void loop_unwatch(struct loop *loop, struct loop_watch *watch)
{
    if (watch->place == 0) {
        return;
    }
    loop->fds[watch->place - 1].fd = -1;
    loop->watches[watch->place - 1] = NULL;
    loop->holes = true;
    watch->place = 0;
}

static void close_holes(struct loop *loop)
{
    size_t kept = 0;
    for (size_t i = 0; loop->holes && i < loop->count; i++) {
        if (loop->watches[i] != NULL) {
            loop->fds[kept] = loop->fds[i];
            loop->watches[kept] = loop->watches[i];
            loop->watches[kept]->place = kept + 1;
            kept++;
        }
    }
    loop->count = loop->holes ? kept : loop->count;
    loop->holes = false;
}

void loop_timer(struct loop *loop, struct loop_timer *timer, int64_t milliseconds)
{
    struct loop_timer **at = &loop->timers;
    loop_untimer(loop, timer);
    timer->at = client_now() + milliseconds;
    while (*at != NULL && (*at)->at <= timer->at) {
        at = &(*at)->next;
    }
    timer->next = *at;
    *at = timer;
}

void loop_untimer(struct loop *loop, struct loop_timer *timer)
{
    for (struct loop_timer **at = &loop->timers; timer->at != 0 && *at != NULL; at = &(*at)->next) {
        if (*at == timer) {
            *at = timer->next;
            break;
        }
    }
    timer->at = 0;
}

static int wait_limit(const struct loop *loop, int64_t limit)
{
    if (loop->timers != NULL) {
        int64_t left = loop->timers->at - client_now();
        left = left < 0 ? 0 : left;
        limit = limit < 0 || left < limit ? left : limit;
    }
    return limit > 60000 ? 60000 : (int)limit;
}

void loop_once(struct loop *loop, int64_t limit)
{
    close_holes(loop);
    size_t count = loop->count;
    int ready = poll(loop->fds, count, wait_limit(loop, limit));
    for (size_t i = 0; i < count && ready > 0; i++) {
        short events = loop->fds[i].revents;
        if (events != 0) {
            ready--;
            if (loop->watches[i] != NULL) {
                loop->watches[i]->ready(loop->watches[i]->user, events);
            }
        }
    }
    int64_t now = client_now();
    while (loop->timers != NULL && loop->timers->at <= now) {
        struct loop_timer *timer = loop->timers;
        loop_untimer(loop, timer);
        timer->due(timer->user);
    }
}
