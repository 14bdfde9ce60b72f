/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/health.h"

#include <inttypes.h>
#include <string.h>

#include "daemon/server/state.h"

static double pixels(const struct job *job)
{
    return (double)job->params.width * (double)job->params.height * (job->params.cfg > 0 ? 2 : 1);
}

void health_heard(struct health *health, const struct job *job, const struct event *event)
{
    /* Events between may have been merged, so the time is shared among the steps since. */
    int steps = event->progress.step - job->progress.step;
    if (strcmp(event->stage, "denoise") != 0 || strcmp(job->stage, "denoise") != 0 || steps <= 0)
        return;
    double took = (double)(uv_hrtime() - job->heard_ns) / 1e9 / steps / pixels(job);
    if (took > health->slowest)
        health->slowest = took;
}

double health_silence(const struct server *server)
{
    return server->running ? (double)(uv_hrtime() - server->running->heard_ns) / 1e9 : 0;
}

double health_limit(const struct server *server)
{
    double least = (double)server->options.worker_timeout;
    double scaled =
        server->running ? HEALTH_PATIENCE * server->health.slowest * pixels(server->running) : 0;
    return scaled > least ? scaled : least;
}

void health_check(struct server *server)
{
    struct health *health = &server->health;
    double silence = health_silence(server), limit = health_limit(server);
    bool stuck = silence > limit;
    if (stuck && !health->stuck)
        server_log(server, SERVER_ERROR,
                   "the worker has given no sign of life for %.0f s, %.0f s is the limit: job "
                   "%" PRIu64 ", stage %s (worker_timeout)",
                   silence, limit, server->running->id,
                   server->running->stage[0] ? server->running->stage : "none yet");
    if (!stuck && health->stuck)
        server_log(server, SERVER_WARN, "the worker is alive again");
    health->stuck = stuck;
    if (!stuck && server->options.hooks.alive)
        server->options.hooks.alive();
}
