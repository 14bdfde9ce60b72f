/* SPDX-License-Identifier: Apache-2.0
 *
 * All of this runs on the loop's thread. The process has one server, and its hooks get no pointer
 * of ours: what they need is static.
 */
#include "daemon/hooks.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/cmdline.h"
#include "daemon/log.h"
#include "daemon/reload.h"
#include "daemon/service.h"

static struct {
    int argc;
    char **argv;
    struct setup *running;
    int restart; /* changed settings that wait for one */
    char status[160];
} state;

void hooks_init(int argc, char **argv, struct setup *running)
{
    state.argc = argc;
    state.argv = argv;
    state.running = running;
}

/* ------------------------------------------------------------------------- log and status ---- */

static enum log_level level_of(enum server_level level)
{
    static const enum log_level levels[] = {LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO,
                                            LOG_LEVEL_DEBUG};
    return levels[level];
}

static void on_log(enum server_level level, const char *line)
{
    log_line(level_of(level), "%s", line);
}

/* The line for the service manager, with what the owner may have forgotten. */
static const char *status_line(void)
{
    static char line[240];
    if (state.restart == 0)
        return state.status;
    snprintf(line, sizeof line, "%s; %d changed setting%s need%s a restart", state.status,
             state.restart, state.restart == 1 ? "" : "s", state.restart == 1 ? "s" : "");
    return line;
}

static void on_status(const char *line)
{
    snprintf(state.status, sizeof state.status, "%s", line);
    service_status(status_line());
}

struct fields {
    struct log_field field[20];
    size_t count;
};

static void add_text(struct fields *f, const char *name, const char *text)
{
    struct log_field *field = &f->field[f->count++];
    snprintf(field->name, sizeof field->name, "%s", name);
    snprintf(field->text, sizeof field->text, "%s", text);
}

static void add_int(struct fields *f, const char *name, int64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRId64, value);
    add_text(f, name, text);
}

static void add_seconds(struct fields *f, const char *name, double value)
{
    char text[32];
    snprintf(text, sizeof text, "%.3f", value);
    add_text(f, name, text);
}

static void log_with_prompt(const struct server_job_record *job, const struct fields *f)
{
    char *line;
    if (asprintf(&line, "%s: %s", job->line, job->prompt) < 0)
        return;
    log_fields(level_of(job->level), f->field, f->count, job->prompt, line);
    free(line);
}

static void on_job(const struct server_job_record *job)
{
    struct fields f = {.count = 0};
    add_int(&f, "KREAD_JOB", (int64_t)job->id);
    add_int(&f, "KREAD_UID", (int64_t)job->uid);
    add_text(&f, "KREAD_OUTCOME", job->outcome);
    if (job->code)
        add_text(&f, "KREAD_CODE", job->code);
    add_int(&f, "KREAD_WIDTH", job->width);
    add_int(&f, "KREAD_HEIGHT", job->height);
    add_int(&f, "KREAD_STEPS", job->steps);
    add_int(&f, "KREAD_COUNT", job->count);
    add_int(&f, "KREAD_SEED", job->seed);
    add_int(&f, "KREAD_DETACH", job->detach);
    add_seconds(&f, "KREAD_QUEUED", job->queued);
    add_seconds(&f, "KREAD_ENCODE", job->encode);
    add_seconds(&f, "KREAD_DENOISE", job->denoise);
    add_seconds(&f, "KREAD_DECODE", job->decode);
    add_seconds(&f, "KREAD_PNG", job->png);
    add_seconds(&f, "KREAD_TOTAL", job->total);
    add_int(&f, "KREAD_PEAK", (int64_t)job->peak);
    if (state.running->settings.log_prompts)
        log_with_prompt(job, &f);
    else
        log_fields(level_of(job->level), f.field, f.count, NULL, job->line);
}

/* --------------------------------------------------------------------------------- reload ---- */

static void tell(bool took_effect, const char *sentence)
{
    log_line(took_effect ? LOG_LEVEL_INFO : LOG_LEVEL_WARN, "SIGHUP: %s", sentence);
}

/* 0: the settings are read and right, and the server has taken over what it can. */
static int read_again(struct server *server, struct setup *fresh, struct kr_err *err)
{
    struct settings asked = {0};
    struct engine_config engine;
    int rc = cmdline_parse(state.argc, state.argv, &asked, err);
    rc = rc == 0 ? setup_open(fresh, &asked, err) : rc;
    options_fini(&daemon_options, &asked);
    if (rc < 0)
        return -1;
    rc = setup_profile(fresh, &engine, err);
    if (rc == 0) {
        struct server_options options = hooks_options(fresh);
        rc = server_reload(server, &options, err);
    }
    if (rc < 0)
        setup_close(fresh);
    return rc;
}

static void on_reload(struct server *server)
{
    struct setup fresh;
    struct kr_err err;
    service_reloading();
    if (read_again(server, &fresh, &err) < 0) {
        log_line(LOG_LEVEL_ERROR, "SIGHUP: nothing changes: %s", err.text);
    } else {
        state.restart = reload_settings(state.running, &fresh, tell);
        log_init((enum log_level)state.running->settings.log_level);
        setup_close(&fresh);
        log_line(LOG_LEVEL_INFO, "SIGHUP: settings are read again; %d need%s a restart",
                 state.restart, state.restart == 1 ? "s" : "");
    }
    service_ready(status_line());
}

/* -------------------------------------------------------------------------------- options ---- */

struct server_options hooks_options(const struct setup *setup)
{
    const struct settings *s = &setup->settings;
    int64_t limit = service_watchdog_limit();
    return (struct server_options){
        .hooks = {.log = on_log,
                  .status = on_status,
                  .stopping = service_stopping,
                  .job = on_job,
                  .alive = limit > 0 ? service_alive : NULL,
                  .reload = on_reload},
        .alive_interval = limit / 2,
        .profile = setup->profile->name,
        .output_dir = s->output_dir,
        .state_dir = setup->state_dir,
        .state_dir_named = setup->state_dir_named,
        .allow_users = s->allow_users,
        .allow_groups = s->allow_groups,
        .queue_limit = s->queue_limit,
        .user_queue_limit = s->user_queue_limit,
        .client_queue_limit = s->client_queue_limit,
        .keep_images = s->keep_images,
        .keep_bytes = s->keep_megabytes * 1000000,
        .keep_days = s->keep_days,
        .max_clients = s->max_clients,
        .user_clients = s->user_clients,
        .client_timeout = s->client_timeout,
        .stop_timeout = s->stop_timeout,
        .worker_timeout = s->worker_timeout,
    };
}
