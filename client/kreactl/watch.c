/* SPDX-License-Identifier: Apache-2.0
 *
 * kreactl watch: a job to its end, or all of one's own until the daemon goes. On a terminal
 * the progress of the running job is one live line; otherwise a line a change is printed.
 */
#include <inttypes.h>
#include <string.h>

#include "client/kreactl/commands.h"
#include "client/kreactl/progress.h"
#include "client/kreactl/text.h"

struct watch {
    const struct cli *cli;
    struct progress progress;
    int64_t running; /* the job whose start was told last */
};

static void print_end(const char *method, const struct kr_value *map)
{
    char duration[32];
    struct kr_err why = {.text = ""};
    printf("job %" PRId64 ": %s", map_int(map, "job", 0), method);
    double total = map_real(kr_value_get(map, "times"), "total", -1);
    if (strcmp(method, "done") == 0 && total >= 0) {
        if (total < 10) {
            snprintf(duration, sizeof duration, "%.1f s", total);
        } else {
            text_duration(duration, sizeof duration, total);
        }
        printf(" in %s, seed %" PRId64, duration, map_int(map, "seed", 0));
    }
    if (kr_value_error(kr_value_get(map, "error"), &why) == 0) {
        fputs(": ", stdout);
        text_puts(stdout, why.text);
    }
    putchar('\n');
    fflush(stdout);
}

static void print_progress(struct watch *w, const struct kr_value *map)
{
    char state[16];
    int64_t job = map_int(map, "job", 0);
    map_text(map, "state", state, sizeof state);
    if (strcmp(state, "running") == 0 && job != w->running) {
        w->running = job;
        printf("job %" PRId64 ": running\n", job);
        fflush(stdout);
    }
}

/* 1: it was a job's last; err and *status say how it went. */
static int show(struct watch *w, const struct kr_in *in, int *status, struct kr_err *err)
{
    char method[32];
    if (in->kind != KR_IN_NOTICE) {
        return 0;
    }
    snprintf(method, sizeof method, "%.*s", (int)(in->method_length < 31 ? in->method_length : 31),
             in->method);
    bool progress = strcmp(method, "progress") == 0;
    bool last = strcmp(method, "done") == 0 || strcmp(method, "failed") == 0 ||
                strcmp(method, "cancelled") == 0;
    if (w->cli->json) {
        json_event(stdout, method, in->params);
    } else if (last) {
        progress_clear(&w->progress);
        print_end(method, in->params);
    } else if (progress) {
        progress_clear(&w->progress);
        print_progress(w, in->params);
    }
    if (progress) {
        progress_report(&w->progress, in->params);
    }
    if (last) {
        *status = ctl_end(method, in->params, err);
        w->progress.state[0] = 0;
    }
    return last;
}

static int follow(struct watch *w, struct client *client, struct kr_err *err)
{
    int status = CLI_DONE;
    for (;;) {
        const struct kr_in *in;
        int got = client_next(client, progress_tick(&w->progress), &in, err);
        if (got < 0) {
            return -1;
        }
        if (got == 0) {
            progress_draw(&w->progress);
        } else if (show(w, in, &status, err) && w->cli->job != 0) {
            err->text[0] = 0; /* it was printed as the job's last line */
            return status;
        }
    }
}

int command_watch(const struct cli *cli, struct kr_err *err)
{
    struct watch w = {.cli = cli};
    struct client *client;
    struct kr_out out;
    const struct kr_value *result;
    if (ctl_connect(cli, &client, err) != 0) {
        return cli_status(err);
    }
    progress_init(&w.progress, stderr, !cli->quiet && !cli->json);
    uint32_t id = client_begin(client, KR_M_WATCH, &out);
    kr_out_map(&out, cli->job ? 1 : 0);
    if (cli->job) {
        kr_out_pair_int(&out, "job", cli->job);
    }
    int rc = client_call(client, &out, id, &result, err);
    if (rc == 0 && cli->json) {
        json_event(stdout, "watching", result);
    }
    rc = rc == 0 ? follow(&w, client, err) : -1;
    progress_clear(&w.progress);
    client_close(client);
    if (rc < 0 && err->code == KR_CANCELLED) {
        err->text[0] = 0; /* Ctrl-C ends the watching and cancels nothing */
    }
    return rc < 0 ? cli_status(err) : rc;
}
