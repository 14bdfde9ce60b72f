/* SPDX-License-Identifier: Apache-2.0
 *
 * The commands that ask one question and print its answer, and what all commands share.
 */
#include "client/kreactl/commands.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/kreactl/text.h"
#include "proto/utf8.h"

/* ---------------------------------------------------------------------------------- shared --- */

int ctl_connect(const struct cli *cli, struct client **client, struct kr_err *err)
{
    char *path;
    *client = NULL;
    if (client_socket_path(cli->socket, NULL, &path, err) != 0) {
        return -1;
    }
    int rc = client_open(path, "kreactl " KR_VERSION, cli->wake, client, err);
    free(path);
    return rc;
}

static int read_stdin(const struct cli *cli, const char *what, char *buf, size_t size,
                      size_t *length, struct kr_err *err)
{
    *length = 0;
    for (;;) {
        struct pollfd fds[2] = {{.fd = STDIN_FILENO, .events = POLLIN},
                                {.fd = cli->wake, .events = POLLIN}};
        if (poll(fds, 2, -1) > 0 && fds[1].revents) {
            return kr_fail(err, KR_CANCELLED, "interrupted");
        }
        ssize_t n = fds[0].revents ? read(STDIN_FILENO, buf + *length, size - *length) : -1;
        if (n == 0) {
            return 0;
        }
        if (n > 0) {
            *length += (size_t)n;
        } else if (fds[0].revents && errno != EINTR && errno != EAGAIN) {
            return kr_fail(err, KR_IO, "cannot read standard input: %s", strerror(errno));
        }
        if (*length == size) {
            return kr_fail(err, KR_BAD_REQUEST,
                           "the %s on standard input has more than %d bytes, at most that many are "
                           "allowed",
                           what, KR_MAX_TEXT);
        }
    }
}

int ctl_text(const struct cli *cli, const char *what, char **text, struct kr_err *err)
{
    bool given = cli->argument != NULL && strcmp(cli->argument, "-") != 0;
    size_t length;
    if (cli->argument == NULL && isatty(STDIN_FILENO)) {
        return kr_fail(err, KR_BAD_REQUEST,
                       "no %s: give one in quotes, or - to read it from "
                       "standard input",
                       what);
    }
    *text = given ? strdup(cli->argument) : malloc(KR_MAX_TEXT + 2);
    if (*text == NULL) {
        return kr_fail(err, KR_NO_MEMORY, "no memory for the %s", what);
    }
    if (given) {
        return 0;
    }
    if (read_stdin(cli, what, *text, KR_MAX_TEXT + 2, &length, err) != 0) {
        free(*text);
        *text = NULL;
        return -1;
    }
    length -= length > 0 && (*text)[length - 1] == '\n';
    (*text)[length] = 0;
    if (memchr(*text, 0, length) != NULL) {
        free(*text);
        *text = NULL;
        return kr_fail(err, KR_BAD_REQUEST,
                       "the %s on standard input contains a NUL character; "
                       "leave it out",
                       what);
    }
    return 0;
}

int ctl_check_output(const struct cli *cli, bool many, struct kr_err *err)
{
    if (cli->output == NULL || strcmp(cli->output, "-") != 0) {
        return 0;
    }
    if (cli->json) {
        return kr_fail(err, KR_BAD_REQUEST,
                       "--json and -o - both want standard output: give one of them");
    }
    if (many) {
        return kr_fail(err, KR_BAD_REQUEST, "-o - takes one picture, not several: name a file");
    }
    if (isatty(STDOUT_FILENO)) {
        return kr_fail(err, KR_BAD_REQUEST,
                       "a picture is nothing for a terminal: send it to a file or a pipe");
    }
    return 0;
}

static void print_picture(const struct cli *cli, const struct picture_output *output,
                          const struct kr_value *map, size_t size)
{
    if (cli->json) {
        printf("{\"event\": \"image\", \"job\": %" PRId64 ", \"index\": %" PRId64
               ", \"seed\": %" PRId64 ", \"width\": %" PRId64 ", \"height\": %" PRId64
               ", \"bytes\": %zu, \"path\": ",
               map_int(map, "job", 0), map_int(map, "index", 0), map_int(map, "seed", 0),
               map_int(map, "width", 0), map_int(map, "height", 0), size);
        json_string(stdout, output->path, strlen(output->path));
        puts("}");
    } else if (output->path != NULL) {
        puts(output->path); /* as it is: a script will open it */
    }
    fflush(stdout);
}

int ctl_picture(const struct cli *cli, struct picture_output *output, const struct kr_value *map,
                struct kr_err *err)
{
    const void *png;
    size_t size;
    if (!kr_value_bytes(kr_value_get(map, "png"), &png, &size) || size < 8 ||
        memcmp(png, "\x89PNG\r\n\x1a\n", 8) != 0) {
        return kr_fail(err, KR_BAD_FRAME, "what kread sent as a picture is no PNG");
    }
    if (picture_write(output, png, size, map_int(map, "index", 0), map_int(map, "seed", 0), err)) {
        return -1;
    }
    print_picture(cli, output, map, size);
    return 0;
}

int ctl_end(const char *method, const struct kr_value *map, struct kr_err *err)
{
    if (strcmp(method, "done") == 0) {
        return CLI_DONE;
    }
    if (strcmp(method, "cancelled") == 0) {
        kr_fail(err, KR_CANCELLED, "the job was cancelled");
        return CLI_CANCELLED;
    }
    if (kr_value_error(kr_value_get(map, "error"), err) != 0) {
        kr_fail(err, KR_IO, "the job failed, and kread did not say why");
    }
    return CLI_FAILED;
}

/* A method without parameters but `job`, or with none where job is 0. */
static int ask(const struct cli *cli, enum kr_method method, int64_t job, struct client **client,
               const struct kr_value **result, struct kr_err *err)
{
    struct kr_out out;
    if (ctl_connect(cli, client, err) != 0) {
        return -1;
    }
    uint32_t id = client_begin(*client, method, &out);
    kr_out_map(&out, job ? 1 : 0);
    if (job) {
        kr_out_pair_int(&out, "job", job);
    }
    return client_call(*client, &out, id, result, err);
}

static void print_json(const struct kr_value *v)
{
    json_value(stdout, v);
    putchar('\n');
}

/* ------------------------------------------------------------- status, inspect and profile --- */

static void print_queue(const struct kr_value *v)
{
    const struct kr_value *jobs = kr_value_get(v, "jobs");
    int64_t running = map_int(v, "running", 0), users = map_int(v, "users_waiting", 0);
    if (running) {
        printf("job %" PRId64 " is running, ", running);
    } else {
        printf("no job is running, ");
    }
    printf("%" PRId64 " of at most %" PRId64 " waiting", map_int(v, "queued", 0),
           map_int(v, "queue_limit", 0));
    if (users > 1) {
        printf(" for %" PRId64 " users", users);
    }
    printf("\n%" PRId64 " done, %" PRId64 " failed, %" PRId64 " cancelled\n",
           map_int(jobs, "done", 0), map_int(jobs, "failed", 0), map_int(jobs, "cancelled", 0));
    if (map_bool(kr_value_get(v, "worker"), "stuck")) {
        puts("the worker gives no sign of life");
    }
}

static void print_spool(const struct kr_value *spool)
{
    char why[512], folder[512], bytes[32];
    if (kr_value_nil(spool)) {
        return;
    }
    if (!map_bool(spool, "usable")) {
        fputs("jobs cannot be detached: ", stdout);
        text_puts(stdout, map_text(spool, "why", why, sizeof why));
        putchar('\n');
        return;
    }
    text_bytes(bytes, sizeof bytes, map_real(spool, "bytes", 0));
    printf("%" PRId64 " detached jobs (%" PRId64 " unfinished), %" PRId64 " pictures (%s, %" PRId64
           " fetched) in ",
           map_int(spool, "jobs", 0), map_int(spool, "unfinished", 0), map_int(spool, "images", 0),
           bytes, map_int(spool, "fetched", 0));
    text_puts(stdout, map_text(spool, "folder", folder, sizeof folder));
    putchar('\n');
    if (map_int(spool, "damaged", 0)) {
        printf("%" PRId64 " files could not be read and lie in its folder damaged\n",
               map_int(spool, "damaged", 0));
    }
}

static void print_percentiles(const struct kr_value *p)
{
    static const char *const names[] = {"queued", "encode", "denoise", "decode", "png", "total"};
    if (map_int(p, "jobs", 0) == 0) {
        return;
    }
    printf("seconds of the last %" PRId64 " jobs   p50        p90        p99\n",
           map_int(p, "jobs", 0));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct kr_value *row = kr_value_get(p, names[i]);
        printf("  %-8s  %17.3f  %9.3f  %9.3f\n", names[i], map_real(row, "p50", 0),
               map_real(row, "p90", 0), map_real(row, "p99", 0));
    }
}

static void print_status(const struct kr_value *v)
{
    char name[32], release[32], state[32], uptime[32];
    text_duration(uptime, sizeof uptime, map_real(v, "uptime", 0));
    text_puts(stdout, map_text(v, "name", name, sizeof name));
    putchar(' ');
    text_puts(stdout, map_text(v, "release", release, sizeof release));
    fputs(", ", stdout);
    text_puts(stdout, map_text(v, "state", state, sizeof state));
    printf(", process %" PRId64 ", up %s\n", map_int(v, "pid", 0), uptime);
    print_queue(v);
    print_spool(kr_value_get(v, "spool"));
    print_percentiles(kr_value_get(v, "percentiles"));
    text_map(stdout, kr_value_get(v, "engine"));
}

static void print_map(const struct kr_value *v)
{
    text_map(stdout, v);
}

static int report(const struct cli *cli, enum kr_method method,
                  void (*print)(const struct kr_value *), struct kr_err *err)
{
    struct client *client;
    const struct kr_value *result;
    int rc = ask(cli, method, 0, &client, &result, err);
    if (rc == 0) {
        (cli->json ? print_json : print)(result);
    }
    client_close(client);
    return rc == 0 ? CLI_DONE : cli_status(err);
}

int command_status(const struct cli *cli, struct kr_err *err)
{
    return report(cli, KR_M_STATUS, print_status, err);
}

int command_inspect(const struct cli *cli, struct kr_err *err)
{
    return report(cli, KR_M_INSPECT, print_map, err);
}

int command_profile(const struct cli *cli, struct kr_err *err)
{
    return report(cli, KR_M_PROFILE, print_map, err);
}

/* ------------------------------------------------------------------------------------ jobs --- */

/* How far a job is, in few words. */
static void job_progress(const struct kr_value *job, char *buf, size_t size)
{
    const struct kr_value *p = kr_value_get(job, "progress");
    char state[16], stage[24];
    map_text(job, "state", state, sizeof state);
    map_text(p, "stage", stage, sizeof stage);
    double wait = map_real(job, "wait", -1);
    if (strcmp(state, "queued") == 0 && wait >= 0) {
        text_duration(stage, sizeof stage, wait);
        snprintf(buf, size, "%" PRId64 " before, %s", map_int(job, "position", 0), stage);
    } else if (strcmp(state, "queued") == 0) {
        snprintf(buf, size, "%" PRId64 " before", map_int(job, "position", 0));
    } else if (strcmp(state, "running") == 0 && stage[0]) {
        snprintf(buf, size, "%s %" PRId64 "/%" PRId64, stage, map_int(p, "step", 0),
                 map_int(p, "steps", 0));
    } else {
        snprintf(buf, size, "-");
    }
}

static void print_job(const struct kr_value *job)
{
    char state[16], progress[96], shown[96], measures[64], prompt[512] = "";
    const char *text;
    size_t length;
    struct kr_err why;
    job_progress(job, progress, sizeof progress);
    text_cut(shown, sizeof shown, progress, strlen(progress), 20);
    map_text(job, "state", state, sizeof state);
    snprintf(measures, sizeof measures, "%" PRId64 "x%" PRId64, map_int(job, "width", 0),
             map_int(job, "height", 0));
    printf("%5" PRId64 "  ", map_int(job, "job", 0));
    text_puts(stdout, state);
    printf("%*s  %-20s  %-9s  %5" PRId64 "  %19" PRId64 "  ",
           strlen(state) < 9 ? (int)(9 - strlen(state)) : 0, "", shown, measures,
           map_int(job, "steps", 0), map_int(job, "seed", 0));
    if (kr_value_error(kr_value_get(job, "error"), &why) == 0) {
        text_puts(stdout, why.text);
    } else if (kr_value_text(kr_value_get(job, "prompt"), &text, &length)) {
        text_cut(prompt, sizeof prompt, text, length, 40);
        fputs(prompt, stdout);
    } else {
        fputs("(another user's)", stdout);
    }
    putchar('\n');
}

static void print_jobs(const struct kr_value *v)
{
    const struct kr_value *jobs = kr_value_get(v, "jobs");
    if (kr_value_count(jobs) == 0) {
        puts("no jobs");
        return;
    }
    printf("%5s  %-9s  %-20s  %-9s  %5s  %19s  %s\n", "JOB", "STATE", "PROGRESS", "SIZE", "STEPS",
           "SEED", "PROMPT");
    for (size_t i = 0; i < kr_value_count(jobs); i++) {
        print_job(kr_value_item(jobs, i));
    }
}

int command_jobs(const struct cli *cli, struct kr_err *err)
{
    struct client *client;
    const struct kr_value *result;
    int rc = ask(cli, KR_M_JOBS, 0, &client, &result, err);
    if (rc == 0 && cli->json) {
        const struct kr_value *jobs = kr_value_get(result, "jobs");
        for (size_t i = 0; i < kr_value_count(jobs); i++) {
            print_json(kr_value_item(jobs, i));
        }
    } else if (rc == 0) {
        print_jobs(result);
    }
    client_close(client);
    return rc == 0 ? CLI_DONE : cli_status(err);
}

int command_cancel(const struct cli *cli, struct kr_err *err)
{
    struct client *client;
    const struct kr_value *result;
    char state[16];
    int rc = ask(cli, KR_M_CANCEL, cli->job, &client, &result, err);
    if (rc == 0 && cli->json) {
        print_json(result);
    } else if (rc == 0) {
        map_text(result, "state", state, sizeof state);
        bool open = strcmp(state, "running") == 0;
        printf("job %" PRId64 ": ", cli->job);
        text_puts(stdout, open ? "is being cancelled" : state);
        putchar('\n');
    }
    client_close(client);
    return rc == 0 ? CLI_DONE : cli_status(err);
}

/* ----------------------------------------------------------------------------------- fetch --- */

static int fetch_one(const struct cli *cli, struct client *client, int64_t index,
                     const struct kr_value **result, struct kr_err *err)
{
    struct kr_out out;
    uint32_t id = client_begin(client, KR_M_FETCH, &out);
    kr_out_map(&out, 2);
    kr_out_pair_int(&out, "job", cli->job);
    kr_out_pair_int(&out, "index", index);
    return client_call(client, &out, id, result, err);
}

/* The first answer says how many there are; the names depend on that. */
static int fetch_all(const struct cli *cli, struct client *client, struct picture_output *output,
                     struct kr_err *err)
{
    const struct kr_value *result;
    int64_t index = cli->index < 0 ? 0 : cli->index, count = 1;
    for (; index < count || index == cli->index; index++) {
        if (fetch_one(cli, client, index, &result, err) != 0) {
            return -1;
        }
        count = map_int(result, "count", 1);
        count = count > 64 ? 64 : count;
        bool several = cli->index < 0 && count > 1;
        if (ctl_check_output(cli, several, err) != 0) {
            return -1;
        }
        output->many = several;
        if (ctl_picture(cli, output, result, err) != 0) {
            return -1;
        }
        if (cli->index >= 0) {
            break;
        }
    }
    return 0;
}

int command_fetch(const struct cli *cli, struct kr_err *err)
{
    struct client *client = NULL;
    struct picture_output output = {.fd = -1};
    int rc = ctl_check_output(cli, false, err);
    rc = rc == 0 ? picture_open(&output, cli->output, false, cli->wake, err) : -1;
    rc = rc == 0 ? ctl_connect(cli, &client, err) : -1;
    rc = rc == 0 ? fetch_all(cli, client, &output, err) : -1;
    client_close(client);
    picture_close(&output);
    return rc == 0 ? CLI_DONE : cli_status(err);
}

/* ------------------------------------------------------------------------- tokens and stop --- */

static void print_tokens(const struct kr_value *v)
{
    const struct kr_value *ids = kr_value_get(v, "ids");
    int64_t id, cut = map_int(v, "cut", 0), count = map_int(v, "count", 0);
    for (size_t i = 0; i < kr_value_count(ids); i++) {
        if (kr_value_int(kr_value_item(ids, i), &id)) {
            printf("%s%" PRId64, i ? " " : "", id);
        }
    }
    printf("%s%" PRId64 " token%s, at most %" PRId64 " fit, ", kr_value_count(ids) ? "\n" : "",
           count, count == 1 ? "" : "s", map_int(v, "limit", 0));
    if (cut > 0) {
        printf("the last %" PRId64 " would be cut\n", cut);
    } else {
        printf("nothing is cut\n");
    }
}

int command_tokens(const struct cli *cli, struct kr_err *err)
{
    struct client *client = NULL;
    struct kr_out out;
    const struct kr_value *result;
    char *given = NULL;
    int rc = ctl_text(cli, "text", &given, err);
    if (rc == 0 && !kr_utf8_valid(given, strlen(given))) {
        rc = kr_fail(err, KR_BAD_REQUEST, "text is not valid UTF-8; convert it first");
    }
    rc = rc == 0 ? ctl_connect(cli, &client, err) : -1;
    if (rc == 0) {
        uint32_t id = client_begin(client, KR_M_TOKENS, &out);
        kr_out_map(&out, 1);
        kr_out_pair_text(&out, "text", given);
        rc = client_call(client, &out, id, &result, err);
    }
    if (rc == 0) {
        (cli->json ? print_json : print_tokens)(result);
    }
    free(given);
    client_close(client);
    return rc == 0 ? CLI_DONE : cli_status(err);
}

/* The daemon answers, then works off its last job; its going shows as the end of the connection. */
static int wait_for_end(struct client *client, struct kr_err *err)
{
    const struct kr_in *in;
    while (client_next(client, -1, &in, err) >= 0) {
    }
    if (err->code != KR_NO_DAEMON) {
        return -1;
    }
    err->text[0] = 0;
    return 0;
}

int command_stop(const struct cli *cli, struct kr_err *err)
{
    struct client *client;
    const struct kr_value *result;
    int rc = ask(cli, KR_M_STOP, 0, &client, &result, err);
    if (rc == 0) {
        if (cli->json) {
            print_json(result);
        } else if (map_int(result, "running", 0)) {
            printf("job %" PRId64 " ends first\n", map_int(result, "running", 0));
        }
        fflush(stdout);
        rc = wait_for_end(client, err);
    }
    client_close(client);
    return rc == 0 ? CLI_DONE : cli_status(err);
}
