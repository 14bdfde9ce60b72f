/* SPDX-License-Identifier: Apache-2.0
 *
 * kread-http: reads its settings, listens, and turns HTTP requests into jobs of the daemon kread.
 * One thread, one loop. It keeps nothing that matters: jobs of /sdcpp/v1 are the daemon's, and what
 * waits when it ends is told to come again.
 */
#include <malloc.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <systemd/sd-daemon.h>

#include "client/http/listen.h"
#include "client/http/log.h"
#include "client/http/server.h"
#include "client/http/token.h"
#include "client/signals.h"

enum { EXIT_STOPPED = 0, EXIT_NO_START = 1, EXIT_USAGE = 2 };
enum {
    FLUSH = 5000,           /* milliseconds for the last answers */
    LEAST_FILES = 16,       /* descriptors: its own, and those of a request */
    LARGE_BLOCK = 256 << 10 /* pictures: their memory goes back to the system when they are sent */
};

static int fail(int status, const struct kr_err *err)
{
    fprintf(stderr, "kread-http: %s\n", err->text);
    return status;
}

static int printed(void)
{
    if (fflush(stdout) == 0 && !ferror(stdout)) {
        return EXIT_STOPPED;
    }
    perror("kread-http: standard output");
    return EXIT_NO_START;
}

/* A connection of a client and its link to the daemon are two descriptors. */
static int raise_limit(struct kr_err *err)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
        return 0;
    }
    if (limit.rlim_max < LEAST_FILES) {
        return kr_fail(err, KR_IO,
                       "at most %d files may be open, want %d; raise the limit (ulimit -n, "
                       "LimitNOFILE=)",
                       (int)limit.rlim_max, (int)LEAST_FILES);
    }
    limit.rlim_cur = limit.rlim_max > 65536 ? 65536 : limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    return 0;
}

static void on_signal(void *user, short events)
{
    bool *stop = user;
    (void)events;
    *stop = true;
    signals_clear();
}

static void on_changed(void *user)
{
    static const char *const words[] = {"kread is away", "kread is starting", "ready",
                                        "kread is stopping"};
    const struct shim *shim = user;
    sd_notifyf(0, "STATUS=%s", words[shim->up.state]);
}

static int open_server(struct shim *shim, const struct listen_set *set, struct kr_err *err)
{
    char *path;
    shim->loop = loop_new();
    shim->started = client_now();
    if (shim->loop == NULL) {
        return kr_fail(err, KR_NO_MEMORY, "no memory for the loop");
    }
    if (client_socket_path(shim->settings.socket, shim->settings.config, &path, err) != 0 ||
        server_open(shim, err) != 0) {
        return -1;
    }
    upstream_init(&shim->up, shim->loop, path);
    shim->up.user = shim;
    shim->up.changed = on_changed;
    for (int i = 0; i < set->count; i++) {
        if (server_listen(shim->server, set->fds[i], err) != 0) {
            return -1;
        }
        log_line(LOG_LEVEL_INFO, "listening on %s", set->names[i]);
    }
    return 0;
}

static void turn(struct shim *shim, int64_t limit)
{
    int64_t own = server_limit(shim->server);
    loop_once(shim->loop, own < 0 || (limit >= 0 && limit < own) ? limit : own);
    server_run(shim->server);
}

static void serve(struct shim *shim, const bool *stop)
{
    sd_notify(0, "READY=1\nSTATUS=serving");
    on_changed(shim);
    while (!*stop) {
        turn(shim, -1);
    }
    sd_notify(0, "STOPPING=1\nSTATUS=stopping");
    log_line(LOG_LEVEL_INFO, "stopping");
    int64_t end = client_now() + FLUSH;
    server_stop(shim->server);
    do {
        turn(shim, 50);
    } while (!server_idle(shim->server) && client_now() < end);
}

static int run(struct shim *shim, const struct listen_set *set)
{
    struct kr_err err;
    bool stop = false;
    int wake, status = EXIT_STOPPED;
    struct loop_watch watch = {.ready = on_signal, .user = &stop};
    mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK);
    kr_fail(&err, KR_NO_MEMORY, "no memory for the loop");
    if (raise_limit(&err) != 0 || signals_open(&wake, &err) != 0 ||
        open_server(shim, set, &err) != 0 || loop_watch(shim->loop, &watch, wake, POLLIN) != 0) {
        status = fail(EXIT_NO_START, &err);
    } else {
        serve(shim, &stop);
    }
    server_close(shim->server);
    if (shim->up.path != NULL) {
        upstream_fini(&shim->up);
    }
    loop_free(shim->loop);
    return status;
}

int main(int argc, char **argv)
{
    struct shim shim = {.loop = NULL};
    struct http_settings *s = &shim.settings;
    struct listen_set set;
    struct kr_err err;
    bool usage;
    int status;
    if (http_settings_read(argc, argv, s, &usage, &err) != 0) {
        status = fail(usage ? EXIT_USAGE : EXIT_NO_START, &err);
    } else if (s->help || s->version) {
        if (s->help) {
            http_settings_help(stdout);
        } else {
            puts("kread-http " KR_VERSION);
        }
        status = printed();
    } else if ((s->token_file && token_read(s->token_file, &shim.token, &err) != 0) ||
               listen_open(&set, s->listen, !option_given(s, H_LISTEN), shim.token != NULL,
                           s->check_config != 0, &err) != 0) {
        status = fail(EXIT_NO_START, &err);
    } else if (s->check_config) {
        http_settings_print(s, stdout);
        status = printed();
    } else {
        log_init((enum log_level)s->log_level);
        status = run(&shim, &set);
    }
    free(shim.token);
    options_fini(&http_options, s);
    return status;
}
