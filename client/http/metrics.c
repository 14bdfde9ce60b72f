/* SPDX-License-Identifier: Apache-2.0
 *
 * GET /metrics: the text format of Prometheus. The daemon's own numbers, under whatever names it
 * has for them, and this program's.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "client/http/handlers.h"
#include "client/http/render.h"
#include "client/http/server.h"

static void put_own(FILE *out, const struct shim *shim)
{
    static const char *const names[FAMILIES] = {"kread", "sdapi", "sdcpp", "openai"};
    size_t waiting = 0;
    for (const struct render *render = shim->renders; render != NULL; render = render->next) {
        waiting++;
    }
    fputs("# HELP kread_http_requests_total Answers, by family of routes and class of status.\n"
          "# TYPE kread_http_requests_total counter\n",
          out);
    for (int f = 0; f < FAMILIES; f++) {
        for (int c = 2; c < STATUS_CLASSES; c++) {
            fprintf(out, "kread_http_requests_total{family=\"%s\",status=\"%dxx\"} %llu\n",
                    names[f], c, (unsigned long long)shim->answered[f][c]);
        }
    }
    fprintf(out,
            "# HELP kread_http_connections Open connections.\n"
            "# TYPE kread_http_connections gauge\nkread_http_connections %zu\n"
            "# HELP kread_http_waiting Requests that wait for their pictures.\n"
            "# TYPE kread_http_waiting gauge\nkread_http_waiting %zu\n"
            "# HELP kread_http_uptime_seconds Seconds since kread-http started.\n"
            "# TYPE kread_http_uptime_seconds gauge\nkread_http_uptime_seconds %.3f\n",
            server_connections(shim->server), waiting,
            (double)(client_now() - shim->started) / 1000);
}

static void put_number(FILE *out, const char *name, const char *type, const char *help,
                       const json_t *value)
{
    if (json_is_number(value)) {
        fprintf(out, "# HELP %s %s\n# TYPE %s %s\n%s %.17g\n", name, help, name, type, name,
                json_number_value(value));
    }
}

/* {"done": 5, ...} as one metric with a label. */
static void put_labelled(FILE *out, const char *name, const char *type, const char *label,
                         const char *help, json_t *map)
{
    const char *key;
    json_t *value;
    if (json_object_size(map) == 0) {
        return;
    }
    fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
    json_object_foreach(map, key, value)
    {
        if (json_is_number(value) &&
            strspn(key, "abcdefghijklmnopqrstuvwxyz_0123456789") == strlen(key)) {
            fprintf(out, "%s{%s=\"%s\"} %.17g\n", name, label, key, json_number_value(value));
        }
    }
}

/* {"total": {"p50": 1.5, ...}, ...}: what a job's parts took. */
static void put_times(FILE *out, json_t *percentiles)
{
    const char *stage, *key;
    json_t *map, *value;
    bool first = true;
    json_object_foreach(percentiles, stage, map)
    {
        json_object_foreach(map, key, value)
        {
            if (!json_is_number(value) || key[0] != 'p' || !isdigit((unsigned char)key[1])) {
                continue;
            }
            fprintf(out, "%skread_job_seconds{stage=\"%s\",quantile=\"%g\"} %.6g\n",
                    first ? "# HELP kread_job_seconds What the parts of recent jobs took.\n"
                            "# TYPE kread_job_seconds gauge\n"
                          : "",
                    stage, atof(key + 1) / 100, json_number_value(value));
            first = false;
        }
    }
}

static void put_daemon(FILE *out, const struct shim *shim, const json_t *status)
{
    json_t *running = json_object_get(status, "running");
    fprintf(out,
            "# HELP kread_up Whether the daemon is ready.\n# TYPE kread_up gauge\nkread_up %d\n",
            status != NULL && shim->up.state == UPSTREAM_READY);
    if (status == NULL) {
        return;
    }
    put_number(out, "kread_uptime_seconds", "gauge", "Seconds since the daemon started.",
               json_object_get(status, "uptime"));
    put_number(out, "kread_jobs_queued", "gauge", "Jobs that wait.",
               json_object_get(status, "queued"));
    put_number(out, "kread_queue_limit", "gauge", "Jobs that may wait.",
               json_object_get(status, "queue_limit"));
    put_number(out, "kread_clients", "gauge", "Connections to the daemon.",
               json_object_get(status, "clients"));
    fprintf(out,
            "# HELP kread_jobs_running Jobs that run.\n# TYPE kread_jobs_running gauge\n"
            "kread_jobs_running %d\n",
            json_is_integer(running));
    put_labelled(out, "kread_jobs_total", "counter", "result", "Jobs that ended, by how.",
                 json_object_get(status, "jobs"));
    put_labelled(out, "kread_failures_total", "counter", "code", "Jobs that failed, by why.",
                 json_object_get(status, "failures"));
    put_labelled(out, "kread_kept", "gauge", "what", "Pictures of detached jobs that are kept.",
                 json_object_get(status, "kept"));
    put_labelled(out, "kread_spool", "gauge", "what", "What the spool on disk holds.",
                 json_object_get(status, "spool"));
    put_labelled(out, "kread_memory_bytes", "gauge", "what", "Memory, as the daemon counts it.",
                 json_object_get(json_object_get(status, "engine"), "memory"));
    put_times(out, json_object_get(status, "percentiles"));
}

static struct answer *metrics_answer(const struct shim *shim, const json_t *status)
{
    char *text = NULL;
    size_t size;
    struct answer *a = answer_new(MHD_HTTP_OK, "text/plain; version=0.0.4; charset=utf-8");
    FILE *out = open_memstream(&text, &size);
    if (out != NULL) {
        put_daemon(out, shim, status);
        put_own(out, shim);
        fclose(out);
    }
    answer_take(a, text);
    return a;
}

static void on_status(void *user, const struct kr_value *result, const struct kr_err *err)
{
    struct request *r = user;
    json_t *status = result ? upstream_json(result) : NULL;
    (void)err;
    struct answer *a = metrics_answer(r->shim, status);
    json_decref(status);
    request_answer(r, a);
}

void handle_metrics(struct request *r)
{
    if (ask_status(r, on_status) < 0)
        request_answer(r, metrics_answer(r->shim, NULL));
}
