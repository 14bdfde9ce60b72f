/* SPDX-License-Identifier: Apache-2.0
 *
 * The parser of the command line. Not getopt_long(): it would take shortened options, which turn
 * into others when an option is added, and it prints by itself.
 */
#include "client/kreactl/cli.h"

#include <string.h>

#include "client/kreactl/commands.h"
#include "proto/message.h"

const struct cli_option_row cli_option_rows[] = {
    {CLI_SOCKET, 0, "socket", "PATH",
     "the daemon's socket; else $KREAD_SOCKET, the config file's, "
     "$XDG_RUNTIME_DIR/kread.sock, /run/kread/kread.sock"},
    {CLI_JSON, 0, "json", NULL, "print one JSON object a line"},
    {CLI_OUTPUT, 'o', "output", "FILE",
     "the picture's name; - for standard output; a folder for a name of its own there (default: "
     "kread-SEED.png here, never in place of another file). With several pictures %d in FILE, or "
     "-0, -1 before its suffix, tells them apart"},
    {CLI_INDEX, 0, "index", "N", "only picture N, counted from 0 (default: all)"},
    {CLI_QUIET, 'q', "quiet", NULL, "no progress and no warnings"},
    {CLI_HELP, 'h', "help", NULL, "this text, or a command's"},
    {CLI_VERSION, 0, "version", NULL, "print the version"},
    {0, 0, NULL, NULL, NULL},
};

const struct command cli_commands[] = {
    {"generate", CLI_TEXT, "[PROMPT | -]", CLI_OUTPUT | CLI_QUIET, true,
     "make pictures of a prompt",
     "Without PROMPT, or with -, the prompt is read from standard input. Prints the path of each "
     "picture. Ctrl-C cancels the job. With --preview and -o NAME.png the newest preview is in "
     "NAME.preview.png while the job runs. With --detach only the job's number is printed, for "
     "watch, fetch and cancel, from any terminal and after a restart of the daemon.",
     command_generate},
    {"status", CLI_NOTHING, "", 0, false, "how the daemon is and what it runs on", "",
     command_status},
    {"jobs", CLI_NOTHING, "", 0, false, "the jobs that wait, run or are remembered",
     "Prompts of other users' jobs are not shown.", command_jobs},
    {"watch", CLI_MAYBE_JOB, "[JOB]", CLI_QUIET, false, "follow a job to its end, or all jobs",
     "Ctrl-C stops watching; the job goes on. Without JOB: all of your own.", command_watch},
    {"cancel", CLI_JOB, "JOB", 0, false, "cancel a job", "", command_cancel},
    {"fetch", CLI_JOB, "JOB", CLI_OUTPUT | CLI_INDEX | CLI_QUIET, false,
     "get the pictures of a job made with --detach",
     "The daemon keeps them, also across a restart, until its limits on their age, number and "
     "size.",
     command_fetch},
    {"tokens", CLI_TEXT, "[TEXT | -]", 0, false, "what the model reads: token ids, count and limit",
     "Without TEXT, or with -, it is read from standard input.", command_tokens},
    {"inspect", CLI_NOTHING, "", 0, false, "the model files that the daemon uses", "",
     command_inspect},
    {"profile", CLI_NOTHING, "", 0, false, "the profile's name, architecture and defaults", "",
     command_profile},
    {"stop", CLI_NOTHING, "", 0, false, "stop the daemon and wait until it is gone",
     "The running job is finished first if the daemon's limit allows; those that wait end with "
     "shutdown, but for detached ones: they go on at the daemon's next start.",
     command_stop},
    {"help", CLI_MAYBE_COMMAND, "[COMMAND]", 0, false, "how to use kreactl, or one command", "",
     NULL},
    {NULL, CLI_NOTHING, NULL, 0, false, NULL, NULL, NULL},
};

const struct command *cli_command(const char *name)
{
    for (const struct command *c = cli_commands; c->name != NULL; c++) {
        if (strcmp(c->name, name) == 0) {
            return c;
        }
    }
    return NULL;
}

/* The prompt is the argument. */
bool cli_takes_field(enum kr_field_id id)
{
    return id != KR_F_PROMPT;
}

int cli_status(const struct kr_err *err)
{
    switch (err->code) {
    case KR_BUSY:
        return CLI_BUSY;
    case KR_CANCELLED:
        return CLI_CANCELLED;
    case KR_NO_DAEMON:
    case KR_SHUTDOWN:
    case KR_BAD_FRAME:
        return CLI_NO_DAEMON;
    case KR_BAD_REQUEST:
    case KR_BAD_METHOD:
    case KR_BAD_VERSION:
    case KR_BAD_CONFIG:
    case KR_NO_JOB:
    case KR_FORBIDDEN:
    case KR_NO_MEMORY:
        return CLI_USAGE;
    default:
        return CLI_FAILED;
    }
}

/* --------------------------------------------------------------------------------- parsing --- */

/* The arguments that are left. */
struct line {
    char **at, **end;
};

static int positive(const char *text, const char *what, int64_t min, int64_t *value,
                    struct kr_err *err)
{
    char quoted[128];
    size_t length = strlen(text);
    *value = 0;
    for (size_t i = 0; i < length && length <= 18; i++) {
        if (text[i] < '0' || text[i] > '9') {
            length = 0;
        } else {
            *value = *value * 10 + (text[i] - '0');
        }
    }
    if (length == 0 || length > 18 || *value < min) {
        kr_quote(quoted, sizeof quoted, text, strlen(text));
        return kr_fail(err, KR_BAD_REQUEST, "%s is %s; it must be a number from %d on", what,
                       quoted, (int)min);
    }
    return 0;
}

/* The field that an option names, dashes for underscores; KR_FIELDS if none. */
static enum kr_field_id field_of(const char *name, size_t length)
{
    for (int i = 0; i < KR_FIELDS; i++) {
        const char *field = kr_fields[i].name;
        size_t n = 0;
        while (n < length && field[n] && name[n] == (field[n] == '_' ? '-' : field[n])) {
            n++;
        }
        if (n == length && field[n] == 0 && cli_takes_field(i)) {
            return i;
        }
    }
    return KR_FIELDS;
}

static int apply_option(struct cli *cli, enum cli_option option, const char *value,
                        struct kr_err *err)
{
    switch (option) {
    case CLI_SOCKET:
        cli->socket = value;
        return value[0] ? 0 : kr_fail(err, KR_BAD_REQUEST, "--socket needs a path");
    case CLI_OUTPUT:
        cli->output = value;
        return value[0] ? 0 : kr_fail(err, KR_BAD_REQUEST, "-o needs a file name, or -");
    case CLI_INDEX:
        return positive(value, "index", 0, &cli->index, err);
    case CLI_JSON:
        cli->json = true;
        break;
    case CLI_QUIET:
        cli->quiet = true;
        break;
    case CLI_HELP:
        cli->help = true;
        break;
    default:
        cli->version = true;
    }
    return 0;
}

static int unknown_option(const struct cli *cli, const char *option, size_t length, bool elsewhere,
                          struct kr_err *err)
{
    char quoted[128];
    kr_quote(quoted, sizeof quoted, option, length);
    if (cli->command == NULL && elsewhere) {
        return kr_fail(err, KR_BAD_REQUEST, "option %s belongs behind the command", quoted);
    }
    return kr_fail(err, KR_BAD_REQUEST, "%s%sunknown option %s",
                   cli->command ? cli->command->name : "", cli->command ? ": " : "", quoted);
}

/* The value of an option that needs one: behind '=', or the next argument. */
static const char *take_value(struct line *line, const char *equals)
{
    if (equals != NULL) {
        return equals + 1;
    }
    return line->at < line->end ? *line->at++ : NULL;
}

static int needs_value(const char *option, size_t length, struct kr_err *err)
{
    return kr_fail(err, KR_BAD_REQUEST, "option \"%.*s\" needs a value", (int)length, option);
}

static int parse_field(struct cli *cli, enum kr_field_id id, const char *option, size_t length,
                       const char *equals, struct line *line, struct kr_err *err)
{
    if (cli->command == NULL || !cli->command->fields) {
        return unknown_option(cli, option, length, true, err);
    }
    if (kr_fields[id].type == KR_T_BOOL && equals == NULL) {
        return kr_params_set_bool(&cli->params, id, true, err);
    }
    const char *value = take_value(line, equals);
    return value ? kr_params_parse(&cli->params, id, value, err) : needs_value(option, length, err);
}

static int parse_row(struct cli *cli, const struct cli_option_row *row, const char *option,
                     size_t length, const char *equals, struct line *line, struct kr_err *err)
{
    unsigned taken = CLI_EVERYWHERE | (cli->command ? cli->command->options : 0);
    const char *value = NULL;
    if (!(taken & row->option)) {
        return unknown_option(cli, option, length, true, err);
    }
    if (row->value != NULL) {
        value = take_value(line, equals);
        if (value == NULL) {
            return needs_value(option, length, err);
        }
    } else if (equals != NULL) {
        return kr_fail(err, KR_BAD_REQUEST, "option \"%.*s\" takes no value", (int)length, option);
    }
    return apply_option(cli, row->option, value, err);
}

static int parse_long(struct cli *cli, const char *option, struct line *line, struct kr_err *err)
{
    const char *equals = strchr(option, '=');
    size_t length = equals ? (size_t)(equals - option) : strlen(option);
    enum kr_field_id id = field_of(option + 2, length - 2);
    if (id != KR_FIELDS) {
        return parse_field(cli, id, option, length, equals, line, err);
    }
    for (const struct cli_option_row *row = cli_option_rows; row->name != NULL; row++) {
        if (strlen(row->name) == length - 2 && memcmp(row->name, option + 2, length - 2) == 0) {
            return parse_row(cli, row, option, length, equals, line, err);
        }
    }
    return unknown_option(cli, option, length, false, err);
}

/* -o FILE, -oFILE, -q */
static int parse_short(struct cli *cli, const char *option, struct line *line, struct kr_err *err)
{
    for (const struct cli_option_row *row = cli_option_rows; row->name != NULL; row++) {
        if (row->letter != 0 && row->letter == option[1]) {
            const char *attached = option[2] ? option + 1 : NULL; /* as if it were behind '=' */
            return parse_row(cli, row, option, 2, attached, line, err);
        }
    }
    return unknown_option(cli, option, strlen(option), false, err);
}

static int parse_argument(struct cli *cli, const char *text, struct kr_err *err)
{
    char quoted[128];
    kr_quote(quoted, sizeof quoted, text, strlen(text));
    if (cli->command == NULL) {
        cli->command = cli_command(text);
        return cli->command ? 0 : kr_fail(err, KR_BAD_REQUEST, "unknown command %s", quoted);
    }
    if (cli->command->argument == CLI_NOTHING) {
        return kr_fail(err, KR_BAD_REQUEST, "%s takes no argument, not %s", cli->command->name,
                       quoted);
    }
    if (cli->argument != NULL) {
        return kr_fail(err, KR_BAD_REQUEST, "%s takes one argument, and %s is another%s",
                       cli->command->name, quoted,
                       cli->command->argument == CLI_TEXT ? ": put the text in quotes" : "");
    }
    cli->argument = text;
    if (cli->command->argument == CLI_MAYBE_COMMAND) {
        cli->topic = cli_command(text);
        return cli->topic ? 0 : kr_fail(err, KR_BAD_REQUEST, "unknown command %s", quoted);
    }
    return cli->command->argument == CLI_TEXT ? 0 : positive(text, "JOB", 1, &cli->job, err);
}

/* An error is told in JSON also where it comes before the option that asks for it. */
static bool wants_json(int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "--json") == 0) {
            return true;
        }
    }
    return false;
}

int cli_parse(struct cli *cli, int argc, char **argv, struct kr_err *err)
{
    struct line line = {argv + (argc > 0), argv + argc};
    bool options = true;
    *cli = (struct cli){.index = -1, .wake = -1, .json = wants_json(argc, argv)};
    while (line.at < line.end) {
        const char *text = *line.at++;
        int rc;
        if (options && strcmp(text, "--") == 0) {
            options = false;
            continue;
        }
        if (options && text[0] == '-' && text[1] == '-') {
            rc = parse_long(cli, text, &line, err);
        } else if (options && text[0] == '-' && text[1]) {
            rc = parse_short(cli, text, &line, err);
        } else {
            rc = parse_argument(cli, text, err);
        }
        if (rc != 0) {
            return -1;
        }
    }
    if (cli->help || cli->version) {
        return 0;
    }
    if (cli->command == NULL) {
        return kr_fail(err, KR_BAD_REQUEST, "no command was given");
    }
    if (cli->command->argument == CLI_JOB && cli->job == 0) {
        return kr_fail(err, KR_BAD_REQUEST, "%s needs the number of a job; kreactl jobs lists them",
                       cli->command->name);
    }
    return 0;
}

void cli_fini(struct cli *cli)
{
    kr_params_fini(&cli->params);
}
