/* SPDX-License-Identifier: Apache-2.0
 *
 * --help, laid out from the tables of commands, options and fields.
 */
#include "client/kreactl/cli.h"

#include <inttypes.h>
#include <string.h>

enum { WIDTH = 79, COLUMN = 26 }; /* of the page, and where the explanations begin */

/* Words of text from `column` on, continued under `indent`. */
static void wrap(FILE *out, const char *text, int column, int indent)
{
    while (*text) {
        int n = (int)strcspn(text, " ");
        if (column > indent && column + 1 + n > WIDTH) {
            fprintf(out, "\n%*s", indent, "");
            column = indent;
        } else if (column > indent) {
            fputc(' ', out);
            column++;
        }
        fprintf(out, "%.*s", n, text);
        column += n;
        text += n;
        text += strspn(text, " ");
    }
    fputc('\n', out);
}

static void entry(FILE *out, const char *name, const char *text)
{
    int n = fprintf(out, "  %s", name);
    if (n + 2 > COLUMN) {
        fputc('\n', out);
        n = 0;
    }
    fprintf(out, "%*s", COLUMN - n, "");
    wrap(out, text, COLUMN, COLUMN);
}

static void option_entry(FILE *out, const struct cli_option_row *row)
{
    char name[64];
    snprintf(name, sizeof name, "%.*s%s--%s%s%s", row->letter ? 2 : 0,
             (const char[]){'-', row->letter, 0}, row->letter ? ", " : "", row->name,
             row->value ? " " : "", row->value ? row->value : "");
    entry(out, name, row->help);
}

/* What stands for the value: N, X, TEXT or the choices. */
static void value_name(const struct kr_field *f, char *buf, size_t size)
{
    static const char *const names[] = {
        [KR_T_TEXT] = " TEXT", [KR_T_INT] = " N", [KR_T_REAL] = " X", [KR_T_BOOL] = ""};
    size_t used = 0;
    if (f->type != KR_T_CHOICE) {
        snprintf(buf, size, "%s", names[f->type]);
        return;
    }
    for (int i = 0; f->choices[i] != NULL && used < size; i++) {
        used += (size_t)snprintf(buf + used, size - used, "%c%s", i ? '|' : ' ', f->choices[i]);
    }
}

static void range_text(const struct kr_field *f, char *buf, size_t size)
{
    const char *unit = f->unit[0] ? " " : "";
    buf[0] = 0;
    if (f->type == KR_T_INT && f->max >= 9223372036854775807.0) {
        snprintf(buf, size, "%.0f to 2^63 - 1%s%s; ", f->min, unit, f->unit);
    } else if (f->type == KR_T_INT || f->type == KR_T_REAL) {
        snprintf(buf, size, "%g to %g%s%s; ", f->min, f->max, unit, f->unit);
    }
}

static void field_entry(FILE *out, const struct kr_field *f)
{
    char name[96], value[48], range[64], text[320];
    value_name(f, value, sizeof value);
    range_text(f, range, sizeof range);
    int n = snprintf(name, sizeof name, "--%s%s", f->name, value);
    for (int i = 0; i < n; i++) {
        name[i] = name[i] == '_' ? '-' : name[i];
    }
    snprintf(text, sizeof text, "%s; %sdefault %s", f->help, range, f->fallback);
    entry(out, name, f->type == KR_T_BOOL ? f->help : text);
}

static void help_command(FILE *out, const struct command *c)
{
    unsigned options = c->options | CLI_SOCKET | CLI_JSON;
    fprintf(out, "Usage: kreactl %s%s%s%s\n\n", c->name, c->usage[0] ? " " : "", c->usage,
            c->run ? " [OPTION]..." : "");
    char text[512];
    snprintf(text, sizeof text, "%s.%s%s", c->brief, c->help[0] ? " " : "", c->help);
    text[0] = (char)(text[0] >= 'a' && text[0] <= 'z' ? text[0] - 32 : text[0]);
    wrap(out, text, 0, 0);
    if (c->run == NULL) {
        return;
    }
    if (c->fields) {
        fputs("\nThe picture:\n", out);
        for (int i = 0; i < KR_FIELDS; i++) {
            if (cli_takes_field(i)) {
                field_entry(out, &kr_fields[i]);
            }
        }
    }
    fputs("\nOptions:\n", out);
    for (const struct cli_option_row *row = cli_option_rows; row->name != NULL; row++) {
        if (options & row->option) {
            option_entry(out, row);
        }
    }
}

static void help_all(FILE *out)
{
    fputs("Usage: kreactl [--socket PATH] [--json] COMMAND ...\n\n"
          "Asks kread, the picture daemon, for pictures and tells how it is.\n\nCommands:\n",
          out);
    for (const struct command *c = cli_commands; c->name != NULL; c++) {
        char name[64];
        snprintf(name, sizeof name, "%s %s", c->name, c->usage);
        entry(out, name, c->brief);
    }
    fputs("\nOptions:\n", out);
    for (const struct cli_option_row *row = cli_option_rows; row->name != NULL; row++) {
        if (row->option & CLI_EVERYWHERE) {
            option_entry(out, row);
        }
    }
    fputs("\nkreactl help COMMAND tells a command's options. A text that begins with a dash\n"
          "goes behind --.\n\n"
          "Exit status: 0 done, 1 the job failed, 2 wrong usage or a refused request, 3 no\n"
          "daemon reachable, 4 the daemon's queue is full, 130 cancelled.\n",
          out);
}

void cli_help(FILE *out, const struct command *topic)
{
    if (topic != NULL) {
        help_command(out, topic);
    } else {
        help_all(out);
    }
}
