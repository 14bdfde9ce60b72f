/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/cmdline.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "proto/utf8.h"

enum { NAME_SIZE = 40, COLUMN = 30, LINE = 100 };

/* The option behind "--diffusion-model" or "--diffusion-model=...", NULL if there is none. */
static const struct option *find(const char *arg, const char **value)
{
    char name[NAME_SIZE];
    size_t length = strcspn(arg + 2, "=");
    if (length >= sizeof name)
        return NULL;
    for (size_t i = 0; i < length; i++) {
        if (arg[2 + i] == '_')
            return NULL; /* the one spelling is with '-' */
        name[i] = arg[2 + i] == '-' ? '_' : arg[2 + i];
    }
    *value = arg[2 + length] ? arg + 2 + length + 1 : NULL;
    const struct option *option = option_find(daemon_options, SETTINGS, name, length);
    return option && option->places & OPTION_ARGV ? option : NULL;
}

/* One argument and, where it takes one, its value; the number of arguments used or -1. */
static int take(char **arg, const char *folder, struct settings *s, struct kr_err *err)
{
    const char *word = strcmp(arg[0], "-h") == 0 ? "--help" : arg[0];
    const char *value = NULL;
    if (strncmp(word, "--", 2) != 0 || !word[2])
        return kr_fail(err, KR_BAD_CONFIG, "\"%.80s\" is no option, see kread --help", arg[0]);
    const struct option *option = find(word, &value);
    if (!option)
        return kr_fail(err, KR_BAD_CONFIG, "unknown option %.80s, see kread --help", arg[0]);
    int used = 1;
    if (option->type == OPTION_FLAG) {
        if (value)
            return kr_fail(err, KR_BAD_CONFIG, "%.80s takes no value", arg[0]);
        value = "";
    } else if (!value) {
        value = arg[1];
        used = 2;
        if (!value)
            return kr_fail(err, KR_BAD_CONFIG, "%s needs a value: %s %s", arg[0], arg[0],
                           option->value_name);
    }
    if (!kr_utf8_valid(value, strlen(value)))
        return kr_fail(err, KR_BAD_CONFIG, "the value of %s is not UTF-8", word);
    s->set |= UINT64_C(1) << (option - daemon_options);
    struct kr_err why;
    if (option_set(option, s, value, folder, &why) == 0)
        return used;
    return kr_fail(err, why.code, "command line: %s", why.text);
}

int cmdline_parse(int argc, char **argv, struct settings *s, struct kr_err *err)
{
    char folder[4096];
    if (!getcwd(folder, sizeof folder))
        return kr_fail(err, KR_IO, "cannot tell the current folder: %s", strerror(errno));
    for (int i = 1; i < argc;) {
        int used = take(argv + i, folder, s, err);
        if (used < 0)
            return -1;
        i += used;
    }
    if (s->json && !s->inspect)
        return kr_fail(err, KR_BAD_CONFIG, "--json goes with --inspect only");
    if (s->inspect && s->check_config)
        return kr_fail(err, KR_BAD_CONFIG, "--inspect and --check-config do not go together");
    return 0;
}

/* Prints text from column COLUMN on, broken at blanks. */
static void print_wrapped(FILE *out, const char *text)
{
    size_t column = COLUMN;
    while (*text) {
        size_t word = strcspn(text, " ");
        if (column + word > LINE && column > COLUMN) {
            fprintf(out, "\n%*s", COLUMN, "");
            column = COLUMN;
        }
        fprintf(out, "%s%.*s", column > COLUMN ? " " : "", (int)word, text);
        column += word + 1;
        text += word + strspn(text + word, " ");
    }
    fputc('\n', out);
}

/* The option as it is written, "--device auto|cuda|cpu" or, for the file, "socket_access". */
static void spell(const struct option *option, int place, char *buf, size_t size)
{
    size_t n =
        (size_t)snprintf(buf, size, "  %s%s", place == OPTION_ARGV ? "--" : "", option->name);
    if (place == OPTION_FILE)
        return;
    for (size_t i = 4; i < n; i++)
        if (buf[i] == '_')
            buf[i] = '-';
    const char *joint = " ";
    for (const char *const *c = option->choices; c && *c; c++, joint = "|")
        n += (size_t)snprintf(buf + n, size - n, "%s%s", joint, *c);
    if (!option->choices && option->value_name)
        snprintf(buf + n, size - n, " %s", option->value_name);
}

static void print_option(FILE *out, const struct option *option, int place)
{
    char left[80], help[300];
    spell(option, place, left, sizeof left);
    if (strlen(left) + 1 > COLUMN)
        fprintf(out, "%s\n%*s", left, COLUMN, "");
    else
        fprintf(out, "%-*s", COLUMN, left);
    const char *open = option->fallback ? " (default: " : "", *shut = option->fallback ? ")" : "";
    snprintf(help, sizeof help, "%s%s%s%s", option->help, open,
             option->fallback ? option->fallback : "", shut);
    print_wrapped(out, help);
}

void cmdline_help(FILE *out)
{
    fputs("kread serves pictures of the image model Krea 2 on a Unix socket; kreactl asks it for\n"
          "them. Without any settings it serves the demo model.\n\n"
          "  kread [options]\n\n",
          out);
    for (size_t i = 0; i < SETTINGS; i++)
        if (daemon_options[i].places & OPTION_ARGV)
            print_option(out, &daemon_options[i], OPTION_ARGV);
    fputs("\nOnly in kread.ini, section [kread]:\n", out);
    for (size_t i = 0; i < SETTINGS; i++)
        if (!(daemon_options[i].places & OPTION_ARGV))
            print_option(out, &daemon_options[i], OPTION_FILE);
    fputs("\nExit: 0 stopped cleanly, 1 could not start, 2 wrong usage, 3 the device failed or a "
          "job hung\n",
          out);
}
