/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/cmdline.h"

int cmdline_parse(int argc, char **argv, struct settings *s, struct kr_err *err)
{
    if (options_parse(&daemon_options, "kread", argc, argv, s, err) < 0)
        return -1;
    if (s->json && !s->inspect)
        return kr_fail(err, KR_BAD_CONFIG, "--json goes with --inspect only");
    if (s->inspect && s->check_config)
        return kr_fail(err, KR_BAD_CONFIG, "--inspect and --check-config do not go together");
    return 0;
}

void cmdline_help(FILE *out)
{
    fputs("kread serves pictures of the image model Krea 2 on a Unix socket; kreactl asks it for\n"
          "them. Without any settings it serves the demo model.\n\n"
          "  kread [options]\n\n",
          out);
    for (size_t i = 0; i < SETTINGS; i++)
        if (daemon_options.rows[i].places & OPTION_ARGV)
            option_help(out, &daemon_options.rows[i], OPTION_ARGV);
    fputs("\nOnly in kread.ini, section [kread]:\n", out);
    for (size_t i = 0; i < SETTINGS; i++)
        if (!(daemon_options.rows[i].places & OPTION_ARGV))
            option_help(out, &daemon_options.rows[i], OPTION_FILE);
    fputs("\nExit: 0 stopped cleanly, 1 could not start, 2 wrong usage, 3 the device failed or a "
          "job hung\n",
          out);
}
