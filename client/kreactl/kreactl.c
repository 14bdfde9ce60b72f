/* SPDX-License-Identifier: Apache-2.0
 *
 * kreactl, the command line of kread: one command, one connection, one exit status. Errors are one
 * sentence on standard error; with --json also one object on standard output.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client/kreactl/cli.h"
#include "client/signals.h"
#include "client/kreactl/text.h"
#include "proto/message.h"

static void complain(const struct cli *cli, const struct kr_err *err)
{
    fputs("kreactl: ", stderr);
    text_puts(stderr, err->text);
    fputc('\n', stderr);
    if (cli->json) {
        printf("{\"event\": \"error\", \"error\": {\"code\": \"%s\", \"message\": ",
               kr_code_name(err->code));
        json_string(stdout, err->text, strlen(err->text));
        puts("}}");
    }
}

static int usage(const struct cli *cli, const struct kr_err *err)
{
    complain(cli, err);
    if (cli->command != NULL) {
        fprintf(stderr, "Try: kreactl help %s\n", cli->command->name);
    } else {
        fputs("Try: kreactl --help\n", stderr);
    }
    return CLI_USAGE;
}

static int run(struct cli *cli)
{
    struct kr_err err = {.text = ""};
    if (cli->version) {
        printf("kreactl %s (protocol version %d)\n", KR_VERSION, KR_PROTOCOL_VERSION);
        return CLI_DONE;
    }
    if (cli->help || cli->command->run == NULL) {
        cli_help(stdout, cli->help ? cli->command : cli->topic);
        return CLI_DONE;
    }
    int status = signals_open(&cli->wake, &err) == 0 ? cli->command->run(cli, &err) : CLI_FAILED;
    if (status != CLI_DONE && status != CLI_CANCELLED && err.text[0]) {
        complain(cli, &err);
    } else if (status == CLI_CANCELLED && err.text[0]) {
        fputs("kreactl: cancelled\n", stderr);
    }
    return status;
}

/* A standard descriptor that the caller closed would be given to the next file opened, and the path
 * of a picture would end up in the picture. These fail when they are used. */
static void guard_descriptors(void)
{
    for (int fd = 0; fd <= 2; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) != fd) {
            _exit(CLI_FAILED);
        }
    }
}

int main(int argc, char **argv)
{
    struct cli cli;
    struct kr_err err = {.text = ""};
    guard_descriptors();
    int status = cli_parse(&cli, argc, argv, &err) == 0 ? run(&cli) : usage(&cli, &err);
    cli_fini(&cli);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "kreactl: cannot write to standard output: %s\n", strerror(errno));
        return status == CLI_DONE ? CLI_FAILED : status;
    }
    return status;
}
