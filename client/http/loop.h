/* SPDX-License-Identifier: Apache-2.0
 *
 * The one loop of kread-http: descriptors to poll and timers. Everything in the program runs on the
 * thread that calls loop_once(); no callback may block. Watches and timers are embedded in their
 * owners, who start and stop them; any callback may stop any of them, its own included.
 */
#ifndef KR_HTTP_LOOP_H
#define KR_HTTP_LOOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct loop;

struct loop_watch {
    void (*ready)(void *user, short events); /* what poll() returned */
    void *user;
    int fd;       /* private from here on */
    size_t place; /* in the loop's list, counted from 1; 0: not watched */
};

struct loop_timer {
    void (*due)(void *user);
    void *user;
    int64_t at; /* private from here on; 0: not set */
    struct loop_timer *next;
};

struct loop *loop_new(void); /* NULL: no memory */
void loop_free(struct loop *loop);

/* -1: no memory. `events` as poll() takes them; 0 still reports errors and hang-ups. */
int loop_watch(struct loop *loop, struct loop_watch *watch, int fd, short events);
void loop_unwatch(struct loop *loop, struct loop_watch *watch); /* also one that is not watched */

void loop_timer(struct loop *loop, struct loop_timer *timer, int64_t milliseconds); /* once; anew */
void loop_untimer(struct loop *loop, struct loop_timer *timer);

/* Waits for what comes first, `limit` milliseconds at most (-1: no limit), and calls back. */
void loop_once(struct loop *loop, int64_t limit);

#endif
