/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/status.h"

#include <unistd.h>

#include "daemon/server/state.h"

void status_put_running(struct kr_out *out, const struct server *server)
{
    const struct job *job = server->running ? server->running : server->starting;
    bool runs = job && job->state == JOB_RUNNING; /* else it is about to */
    kr_out_key(out, "running");
    if (runs)
        kr_out_int(out, (int64_t)job->id);
    else
        kr_out_nil(out);
    kr_out_pair_int(out, "queued",
                    server->queue.waiting + server->jobs.accepting + (job && !runs ? 1 : 0));
}

static void put_counts(struct kr_out *out, const struct server *server)
{
    kr_out_key(out, "jobs");
    kr_out_map(out, 3);
    kr_out_pair_int(out, "done", server->jobs.done);
    kr_out_pair_int(out, "failed", server->jobs.failed);
    kr_out_pair_int(out, "cancelled", server->jobs.cancelled);
}

static void put_kept(struct kr_out *out, const struct keep *keep)
{
    kr_out_key(out, "kept");
    kr_out_map(out, 2);
    kr_out_pair_int(out, "images", keep->images);
    kr_out_pair_int(out, "bytes", keep->bytes);
}

static void put_spool(struct kr_out *out, const struct server *server)
{
    const struct keep *keep = &server->keep;
    bool usable = keep->unusable.code == KR_OK;
    int64_t records = 0, queued = 0;
    for (const struct job *job = server->jobs.first; job; job = job->next) {
        records += job->detach;
        queued += job->detach && !job_ended(job);
    }
    kr_out_key(out, "spool");
    kr_out_map(out, 9);
    kr_out_pair_text(out, "folder", server->options.state_dir);
    kr_out_pair_bool(out, "usable", usable);
    kr_out_pair_text(out, "why", usable ? NULL : keep->unusable.text);
    kr_out_pair_int(out, "jobs", records);
    kr_out_pair_int(out, "unfinished", queued);
    kr_out_pair_int(out, "images", keep->images);
    kr_out_pair_int(out, "bytes", keep->bytes);
    kr_out_pair_int(out, "fetched", keep->fetched);
    kr_out_pair_int(out, "damaged", keep->damaged);
}

static void put_percentiles(struct kr_out *out, const struct figures *f)
{
    kr_out_key(out, "percentiles");
    kr_out_map(out, FIGURES + 1);
    kr_out_pair_int(out, "jobs", (int64_t)figures_count(f));
    for (int i = 0; i < FIGURES; i++) {
        kr_out_key(out, figure_names[i]);
        kr_out_map(out, 3);
        kr_out_pair_real(out, "p50", figures_percentile(f, i, 0.5));
        kr_out_pair_real(out, "p90", figures_percentile(f, i, 0.9));
        kr_out_pair_real(out, "p99", figures_percentile(f, i, 0.99));
    }
}

static void put_worker(struct kr_out *out, const struct server *server)
{
    kr_out_key(out, "worker");
    kr_out_map(out, 4);
    kr_out_pair_bool(out, "busy", server->running != NULL);
    kr_out_pair_bool(out, "stuck", server->health.stuck);
    kr_out_pair_real(out, "silent_seconds", health_silence(server));
    kr_out_pair_real(out, "limit_seconds", health_limit(server));
}

void status_put(struct kr_out *out, const struct server *server)
{
    kr_out_pair_int(out, "version", KR_PROTOCOL_VERSION);
    kr_out_pair_text(out, "name", "kread");
    kr_out_pair_text(out, "release", KR_VERSION);
    kr_out_pair_int(out, "pid", getpid());
    kr_out_pair_real(out, "uptime", (double)(uv_hrtime() - server->started_ns) / 1e9);
    kr_out_pair_text(out, "state", server->phase == PHASE_READY ? "ready" : "stopping");
    status_put_running(out, server);
    kr_out_pair_int(out, "queue_limit", server->options.queue_limit);
    kr_out_pair_int(out, "users_waiting", queue_users(server));
    kr_out_pair_int(out, "user_queue_limit", server->options.user_queue_limit);
    kr_out_pair_int(out, "client_queue_limit", server->options.client_queue_limit);
    put_counts(out, server);
    kr_out_pair_int(out, "clients", server->conn_count);
    put_kept(out, &server->keep);
    put_spool(out, server);
    put_percentiles(out, &server->figures);
    put_worker(out, server);
    kr_out_pair_int(out, "keep_days", server->options.keep_days);
}
