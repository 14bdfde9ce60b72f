/* SPDX-License-Identifier: Apache-2.0
 *
 * kreactl generate: from the prompt to files. Everything that can be refused here is refused before
 * the daemon is asked, the output's folder included. Then the connection carries one job: its
 * acceptance, its progress, its pictures, and one last word. The daemon cancels a job whose client
 * hangs up, so leaving at any point leaves no work behind.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/kreactl/commands.h"
#include "client/kreactl/progress.h"
#include "client/signals.h"
#include "client/kreactl/text.h"

enum { CANCEL_LIMIT = 3000 }; /* milliseconds that the daemon has to confirm */

struct run {
    const struct cli *cli;
    struct client *client;
    struct picture_output output;
    struct preview_output preview;
    struct progress progress;
    int64_t job, count;
    uint64_t got;    /* bit i: picture i was written; count is at most 64 */
    bool cancelling; /* Ctrl-C came: pictures are not written any more */
};

static bool same(const struct kr_in *in, const char *method)
{
    return in->method_length == strlen(method) &&
           memcmp(in->method, method, in->method_length) == 0;
}

static bool is_last(const struct kr_in *in)
{
    return same(in, "done") || same(in, "failed") || same(in, "cancelled");
}

/* ------------------------------------------------------------------------------ submitting --- */

/* Answers what the daemon made of the request: a detached job's number, or its warning. */
static int accepted(struct run *r, const struct kr_value *result, struct kr_err *err)
{
    const char *warning;
    size_t length;
    r->job = map_int(result, "job", 0);
    r->count = map_int(result, "count", 1);
    if (r->job < 1 || r->count < 1 || r->count > 64) {
        return kr_fail(err, KR_BAD_FRAME, "kread accepted the job without telling its number");
    }
    if (!r->cli->quiet && kr_value_text(kr_value_get(result, "warning"), &warning, &length) &&
        length > 0) {
        fputs("kreactl: ", stderr);
        text_put(stderr, warning, length);
        fputc('\n', stderr);
    }
    if (r->cli->json) {
        json_event(stdout, "accepted", result);
    } else if (r->cli->params.detach) {
        printf("%" PRId64 "\n", r->job);
    }
    return 0;
}

static int submit(struct run *r, const struct kr_params *params, struct kr_err *err)
{
    struct kr_out out;
    const struct kr_value *result;
    uint32_t id = client_begin(r->client, KR_M_GENERATE, &out);
    kr_out_params(&out, params);
    return client_call(r->client, &out, id, &result, err) != 0 ? -1 : accepted(r, result, err);
}

/* ------------------------------------------------------------------------------- following --- */

static int take_image(struct run *r, const struct kr_value *map, struct kr_err *err)
{
    int64_t index = map_int(map, "index", -1);
    if (map_bool(map, "preview") || r->cancelling) {
        return 0;
    }
    if (index < 0 || index >= r->count || r->got >> index & 1) {
        return kr_fail(err, KR_BAD_FRAME, "kread sent a picture that was not asked for");
    }
    progress_clear(&r->progress);
    if (ctl_picture(r->cli, &r->output, map, err) != 0) {
        return -1;
    }
    r->got |= UINT64_C(1) << index;
    progress_draw(&r->progress);
    return 0;
}

/* The preview that may come with a step's progress. */
static int take_preview(struct run *r, const struct kr_value *map, struct kr_err *err)
{
    const void *png;
    size_t size;
    if (r->preview.path == NULL || r->cancelling ||
        !kr_value_bytes(kr_value_get(map, "preview"), &png, &size)) {
        return 0;
    }
    if (preview_write(&r->preview, png, size, err) != 0) {
        return -1;
    }
    if (r->cli->json) {
        printf("{\"event\": \"preview\", \"job\": %" PRId64 ", \"path\": ", r->job);
        json_string(stdout, r->preview.path, strlen(r->preview.path));
        puts("}");
    }
    return 0;
}

static int ask_to_cancel(struct run *r, struct kr_err *err)
{
    struct kr_out out;
    client_begin(r->client, KR_M_CANCEL, &out);
    kr_out_map(&out, 1);
    kr_out_pair_int(&out, "job", r->job);
    return client_send(r->client, &out, err);
}

/* Ctrl-C: the first asks the daemon, and a second one, or its silence, ends the waiting. */
static int interrupt(struct run *r, int64_t *deadline, struct kr_err *err)
{
    struct kr_err ignored;
    if (r->cancelling) {
        return -1;
    }
    signals_clear();
    r->cancelling = true;
    *deadline = client_now() + CANCEL_LIMIT;
    return ask_to_cancel(r, &ignored) == 0 ? 0 : kr_fail(err, KR_CANCELLED, "cancelled");
}

/* One notification. 1: it was the job's last, and *status is what it comes to. */
static int handle(struct run *r, const struct kr_in *in, int *status, struct kr_err *err)
{
    if (in->kind != KR_IN_NOTICE || map_int(in->params, "job", 0) != r->job) {
        return 0; /* the answer to cancel, or what a later version tells */
    }
    if (same(in, "image")) {
        return take_image(r, in->params, err);
    }
    char method[32];
    snprintf(method, sizeof method, "%.*s", (int)(in->method_length < 31 ? in->method_length : 31),
             in->method);
    if (same(in, "progress")) {
        if (!r->cancelling) {
            progress_report(&r->progress, in->params);
        }
        if (take_preview(r, in->params, err) != 0) {
            return -1;
        }
    } else if (!is_last(in)) {
        return 0;
    }
    if (r->cli->json) {
        json_event(stdout, method, in->params);
    }
    if (is_last(in)) {
        *status = ctl_end(method, in->params, err);
        return 1;
    }
    return 0;
}

static int follow(struct run *r, struct kr_err *err)
{
    int64_t deadline = -1;
    int status = CLI_DONE;
    for (;;) {
        const struct kr_in *in;
        int wait = progress_tick(&r->progress);
        if (r->cancelling) {
            int64_t left = deadline - client_now();
            wait = left > 0 ? (int)left : 0;
        }
        int got = client_next(r->client, wait, &in, err);
        if (got == 0 && r->cancelling) {
            return CLI_CANCELLED;
        }
        if (got == 0) {
            progress_draw(&r->progress);
            continue;
        }
        int rc = got < 0 ? -1 : handle(r, in, &status, err);
        if (rc > 0) {
            break;
        }
        if (rc < 0 && (err->code != KR_CANCELLED || interrupt(r, &deadline, err) != 0)) {
            return r->cancelling ? CLI_CANCELLED : cli_status(err);
        }
    }
    if (status == CLI_DONE && !r->cancelling &&
        r->got != (r->count == 64 ? UINT64_MAX : (UINT64_C(1) << r->count) - 1)) {
        kr_fail(err, KR_BAD_FRAME, "kread ended the job without sending all %" PRId64 " pictures",
                r->count);
        return cli_status(err);
    }
    return r->cancelling ? CLI_CANCELLED : status;
}

/* --------------------------------------------------------------------------------- command --- */

static int work(struct run *r, const struct kr_params *params, struct kr_err *err)
{
    bool detach = kr_has(params, KR_F_DETACH) && params->detach;
    bool many = kr_has(params, KR_F_COUNT) && params->count > 1;
    bool preview = kr_has(params, KR_F_PREVIEW) && params->preview > 0;
    if (!detach && preview && preview_open(&r->preview, r->cli->output, err) != 0) {
        return cli_status(err);
    }
    if (!detach && picture_open(&r->output, r->cli->output, many, r->cli->wake, err) != 0) {
        return cli_status(err);
    }
    if (ctl_connect(r->cli, &r->client, err) != 0 || submit(r, params, err) != 0) {
        return cli_status(err);
    }
    if (detach) {
        return CLI_DONE;
    }
    progress_init(&r->progress, stderr, !r->cli->quiet && !r->cli->json);
    int status = follow(r, err);
    progress_clear(&r->progress);
    return status;
}

int command_generate(const struct cli *cli, struct kr_err *err)
{
    struct run run = {.cli = cli, .output = {.fd = -1}};
    struct kr_params params;
    char *prompt = NULL;
    int status = -1;
    if (kr_params_copy(&params, &cli->params, err) != 0) {
        return CLI_FAILED;
    }
    if (params.detach && cli->output != NULL) {
        kr_fail(err, KR_BAD_REQUEST,
                "--detach writes no file: leave out -o, and later use kreactl "
                "fetch JOB -o FILE");
    } else if (ctl_check_output(cli, kr_has(&params, KR_F_COUNT) && params.count > 1, err) == 0 &&
               ctl_text(cli, "prompt", &prompt, err) == 0 &&
               kr_params_parse(&params, KR_F_PROMPT, prompt, err) == 0) {
        status = work(&run, &params, err);
    }
    status = status < 0 ? cli_status(err) : status;
    client_close(run.client);
    picture_close(&run.output);
    preview_close(&run.preview);
    kr_params_fini(&params);
    free(prompt);
    return status;
}
