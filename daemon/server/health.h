/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether the worker is alive. It shows by what it posts: the start of a job, a stage, a step, a
 * picture. Between two signs of life lies a step or a stage, which takes milliseconds or, on a
 * processor at full size, minutes. So the limit is generous: worker_timeout seconds, or
 * HEALTH_PATIENCE times what the slowest step so far would take at this job's size, whichever is
 * more. A worker that is silent for longer counts as stuck: that is logged, shown by `status`, and
 * hooks.alive() is not called any more, upon which a supervisor with a watchdog restarts the
 * daemon. If the worker comes back, so does the sign of life. All on the loop's thread.
 */
#ifndef KR_HEALTH_H
#define KR_HEALTH_H

#include <stdbool.h>

struct event;
struct job;
struct server;

enum { HEALTH_PATIENCE = 20 };

struct health {
    double slowest; /* seconds a pixel of a step, the most so far; 0: none was measured */
    bool stuck;
};

/* A progress event of a job arrives, after the job's previous one at job->heard_ns. */
void health_heard(struct health *health, const struct job *job, const struct event *event);

double health_silence(const struct server *server); /* seconds; 0 while nothing runs */
double health_limit(const struct server *server);   /* for the job that runs */

/* To be called now and then: looks, and passes the sign of life on. */
void health_check(struct server *server);

#endif
