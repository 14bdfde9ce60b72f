/* SPDX-License-Identifier: Apache-2.0
 *
 * kreactl's command line: its commands and options stand in tables, from which the parser and the
 * help are made. The options of `generate` come from the field table.
 */
#ifndef KR_CLIENT_CLI_H
#define KR_CLIENT_CLI_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "proto/fields.h"

/* Exit status of kreactl. */
enum {
    CLI_DONE = 0,
    CLI_FAILED = 1,
    CLI_USAGE = 2, /* or a refused request */
    CLI_NO_DAEMON = 3,
    CLI_BUSY = 4,
    CLI_CANCELLED = 130
};

enum cli_argument { CLI_NOTHING, CLI_TEXT, CLI_JOB, CLI_MAYBE_JOB, CLI_MAYBE_COMMAND };

/* Options beside the fields; an enum cli_option is a bit in struct command's `options`. */
enum cli_option {
    CLI_SOCKET = 1,
    CLI_JSON = 2,
    CLI_HELP = 4,
    CLI_VERSION = 8,
    CLI_OUTPUT = 16,
    CLI_INDEX = 32,
    CLI_QUIET = 64,
    CLI_EVERYWHERE = CLI_SOCKET | CLI_JSON | CLI_HELP | CLI_VERSION
};

struct cli;

struct command {
    const char *name;
    enum cli_argument argument;
    const char *usage; /* of the argument: "[PROMPT | -]" */
    unsigned options;  /* enum cli_option, beyond CLI_EVERYWHERE */
    bool fields;       /* takes the generation fields */
    const char *brief; /* one line for the list of commands */
    const char *help;  /* what `help COMMAND` adds, may be "" */
    int (*run)(const struct cli *cli, struct kr_err *err); /* exit status; err says why if not 0 */
};

struct cli_option_row {
    enum cli_option option;
    char letter; /* 0: none */
    const char *name, *value, *help;
};

extern const struct command cli_commands[];           /* ends with a NULL name */
extern const struct cli_option_row cli_option_rows[]; /* ends with a NULL name */

struct cli {
    const struct command *command; /* NULL: none was given */
    const char *socket, *output, *argument;
    const struct command *topic; /* of help */
    bool json, quiet, help, version;
    int64_t job;   /* 0: none */
    int64_t index; /* -1: none */
    struct kr_params params;
    int wake; /* readable after Ctrl-C or SIGTERM */
};

int cli_parse(struct cli *cli, int argc, char **argv, struct kr_err *err);
void cli_fini(struct cli *cli);

const struct command *cli_command(const char *name); /* NULL: no such command */
bool cli_takes_field(enum kr_field_id id);

void cli_help(FILE *out, const struct command *topic); /* NULL: kreactl as a whole */

/* The exit status of a request that was refused or got no answer. */
int cli_status(const struct kr_err *err);

#endif
