/* SPDX-License-Identifier: Apache-2.0
 *
 * kread: reads its settings, opens the engine on the chosen profile, listens, serves. The only file
 * of the daemon that prints and decides its exit status. Nothing is computed before the first job:
 * the engine reads headers only, so the socket answers within milliseconds.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/cmdline.h"
#include "daemon/engine/engine.h"
#include "daemon/hooks.h"
#include "daemon/log.h"
#include "daemon/server/server.h"
#include "daemon/service.h"
#include "daemon/setup.h"

enum { EXIT_STOPPED = 0, EXIT_NO_START = 1, EXIT_USAGE = 2, EXIT_BROKEN = 3 };

static int fail(int status, const struct kr_err *err)
{
    fprintf(stderr, "kread: %s\n", err->text);
    return status;
}

/* Whether everything printed reached standard output. */
static int printed(void)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return EXIT_STOPPED;
    perror("kread: standard output");
    return EXIT_NO_START;
}

static int check_config(const struct setup *setup)
{
    struct kr_err err;
    if (setup_check(setup, stderr, &err) < 0)
        return fail(EXIT_NO_START, &err);
    setup_print(setup, stdout);
    return printed();
}

static int inspect(const struct setup *setup)
{
    struct engine_config config;
    struct kr_err err;
    if (setup_profile(setup, &config, &err) < 0 ||
        engine_inspect(&config, stdout, setup->settings.json != 0, &err) < 0)
        return fail(EXIT_NO_START, &err);
    return printed();
}

/* ---------------------------------------------------------------------------- serving -------- */

/* Who may connect: under /run/kread the daemon serves a machine, and the folder's group is let in;
 * anywhere else it serves its owner. */
static mode_t socket_mode(const struct setup *setup)
{
    static const char shared[] = "/run/kread/";
    switch (setup->settings.socket_access) {
    case ACCESS_OWNER:
        return 0600;
    case ACCESS_GROUP:
        return 0660;
    case ACCESS_EVERYONE:
        return 0666;
    default:
        return strncmp(setup->socket, shared, sizeof shared - 1) == 0 ? 0660 : 0600;
    }
}

static int open_listener(const struct setup *setup, struct listener *listener, struct kr_err *err)
{
    int fd = service_socket(err);
    if (fd >= 0)
        return listener_adopt(listener, fd, err);
    if (fd == SERVICE_WRONG_SOCKET)
        return -1;
    return listener_open(listener, setup->socket, socket_mode(setup), err);
}

/* 0 or the exit status. */
static int run_server(const struct setup *setup, struct engine *engine, struct listener *listener)
{
    struct server_options options = hooks_options(setup);
    options.engine = engine;
    options.listener = listener;
    struct server *server;
    struct kr_err err;
    if (server_open(&options, &server, &err) < 0)
        return fail(EXIT_NO_START, &err);
    log_line(LOG_LEVEL_INFO, "kread " KR_VERSION " serves profile %s on %s", setup->profile->name,
             listener->path ? listener->path : "the socket of systemd");
    service_ready("ready");
    enum server_end end = server_run(server);
    if (end == SERVER_STUCK) {
        listener_close(listener);
        _exit(EXIT_BROKEN); /* the worker still uses everything there is */
    }
    server_close(server);
    log_line(LOG_LEVEL_INFO, "stopped");
    return end == SERVER_STOPPED ? EXIT_STOPPED : EXIT_BROKEN;
}

static int check_folder(const char *what, const char *dir, struct kr_err *err)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/.", dir); /* the dot tells a folder from a file */
    if (access(path, W_OK | X_OK) == 0)
        return 0;
    return kr_fail(err, KR_BAD_CONFIG, "%s %s cannot be written to: %s", what, dir,
                   strerror(errno));
}

/* Jobs would fail one by one at their end; say so before the first. */
static int check_output(const struct setup *setup, struct kr_err *err)
{
    const struct settings *s = &setup->settings;
    if (s->output_dir && check_folder("output_dir", s->output_dir, err) < 0)
        return -1;
    if (!s->trace)
        return 0;
    if (mkdir(s->trace, 0777) < 0 && errno != EEXIST)
        return kr_fail(err, KR_BAD_CONFIG, "the trace folder %s cannot be made: %s", s->trace,
                       strerror(errno));
    return check_folder("the trace folder", s->trace, err);
}

/* The model files are mapped: one that shrinks while a job reads it takes its pages along, and
 * nothing is left but to say so. */
static void on_bus_error(int number)
{
    static const char text[] = "kread: a model file became shorter or unreadable while it was in "
                               "use; restart kread when it is whole\n";
    ssize_t n = write(STDERR_FILENO, text, sizeof text - 1);
    (void)n;
    raise(number); /* SA_RESETHAND gave it its deadly default back */
}

static void catch_bus_error(void)
{
    struct sigaction action = {.sa_handler = on_bus_error, .sa_flags = (int)SA_RESETHAND};
    sigaction(SIGBUS, &action, NULL);
}

static int serve(int argc, char **argv, struct setup *setup)
{
    struct engine_config config;
    struct engine *engine;
    struct listener listener;
    struct kr_err err;
    signal(SIGPIPE, SIG_IGN);
    catch_bus_error();
    server_block_signals();
    log_init((enum log_level)setup->settings.log_level);
    hooks_init(argc, argv, setup);
    if (setup_profile(setup, &config, &err) < 0 || check_output(setup, &err) < 0 ||
        engine_open(&config, &engine, &err) < 0)
        return fail(EXIT_NO_START, &err);
    int status = EXIT_NO_START;
    if (open_listener(setup, &listener, &err) < 0) {
        fail(status, &err);
    } else {
        status = run_server(setup, engine, &listener);
        listener_close(&listener);
    }
    engine_close(engine);
    return status;
}

/* A descriptor from 0 to 2 that is closed would go to a socket or a model file, and the log would
 * be written into it. */
static void open_standard_files(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0)
            open("/dev/null", O_RDWR);
}

int main(int argc, char **argv)
{
    struct settings asked = {0};
    struct setup setup;
    struct kr_err err;
    int status;
    open_standard_files();
    if (cmdline_parse(argc, argv, &asked, &err) < 0) {
        status = fail(err.code == KR_BAD_CONFIG ? EXIT_USAGE : EXIT_NO_START, &err);
    } else if (asked.help) {
        cmdline_help(stdout);
        status = printed();
    } else if (asked.version) {
        puts("kread " KR_VERSION);
        status = printed();
    } else if (setup_open(&setup, &asked, &err) < 0) {
        status = fail(EXIT_NO_START, &err);
    } else {
        status = setup.settings.check_config ? check_config(&setup)
                 : setup.settings.inspect    ? inspect(&setup)
                                             : serve(argc, argv, &setup);
        setup_close(&setup);
    }
    options_fini(&daemon_options, &asked);
    return status;
}
