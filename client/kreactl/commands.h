/* SPDX-License-Identifier: Apache-2.0
 *
 * What kreactl's commands do. Each returns the exit status; where that is not 0 and err has a text,
 * main() prints it.
 */
#ifndef KR_CLIENT_COMMANDS_H
#define KR_CLIENT_COMMANDS_H

#include "client/kreactl/cli.h"
#include "client/client.h"
#include "client/kreactl/picture.h"

int command_generate(const struct cli *cli, struct kr_err *err);
int command_status(const struct cli *cli, struct kr_err *err);
int command_jobs(const struct cli *cli, struct kr_err *err);
int command_watch(const struct cli *cli, struct kr_err *err);
int command_cancel(const struct cli *cli, struct kr_err *err);
int command_fetch(const struct cli *cli, struct kr_err *err);
int command_tokens(const struct cli *cli, struct kr_err *err);
int command_inspect(const struct cli *cli, struct kr_err *err);
int command_profile(const struct cli *cli, struct kr_err *err);
int command_stop(const struct cli *cli, struct kr_err *err);

/* Shared by them. -1 with err filled. */

/* Connects to the daemon that the command line, the environment or the config names. */
int ctl_connect(const struct cli *cli, struct client **client, struct kr_err *err);

/* The command's text: its argument, or standard input without the newline at its end. The caller
 * frees *text. */
int ctl_text(const struct cli *cli, const char *what, char **text, struct kr_err *err);

/* What -o may be, before anything is asked of the daemon. */
int ctl_check_output(const struct cli *cli, bool many, struct kr_err *err);

/* Writes the picture in a map {index, seed, png, ...} and prints its path or its event. */
int ctl_picture(const struct cli *cli, struct picture_output *output, const struct kr_value *map,
                struct kr_err *err);

/* The last notification of a job as exit status; err has why, for failed and cancelled. */
int ctl_end(const char *method, const struct kr_value *map, struct kr_err *err);

#endif
