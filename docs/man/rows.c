/* SPDX-License-Identifier: Apache-2.0 */
#include "docs/man/rows.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/http/settings.h"
#include "client/kreactl/cli.h"
#include "daemon/options.h"
#include "proto/fields.h"

/* Texts that rows point to live as long as the program. */
static const char *keep(char *made)
{
    static char *kept[4096];
    static size_t count;
    assert(made && count < sizeof kept / sizeof *kept);
    return kept[count++] = made;
}

static const char *text(const char *format, ...) __attribute__((format(printf, 1, 2)));
static const char *text(const char *format, ...)
{
    char *made;
    va_list args;
    va_start(args, format);
    int n = vasprintf(&made, format, args);
    va_end(args);
    return keep(n < 0 ? NULL : made);
}

static const char *range(int64_t min, int64_t max)
{
    return text("%" PRId64 " to %" PRId64, min, max);
}

static const char *const yes_no[] = {"yes", "no", NULL};

static const char *dashed(const char *name)
{
    char *copy = strdup(name);
    for (char *c = copy; c && *c; c++)
        if (*c == '_')
            *c = '-';
    return keep(copy);
}

void rows_add(struct rows *rows, struct row row)
{
    assert(rows->count < sizeof rows->row / sizeof *rows->row);
    row.range = row.range ? row.range : "";
    row.fallback = row.fallback ? row.fallback : "";
    rows->row[rows->count++] = row;
}

/* -------------------------------------------------------------------------- from the tables --- */

static enum row_value file_or_folder(const char *value_name)
{
    return value_name && strcmp(value_name, "DIR") == 0 ? ROW_FOLDER : ROW_FILE;
}

static struct row of_option(const struct option *o, bool on_argv)
{
    struct row row = {.name = on_argv ? dashed(o->name) : o->name,
                      .value = ROW_WORD,
                      .value_name = o->value_name,
                      .help = o->help,
                      .fallback = o->fallback,
                      .live = o->places & OPTION_LIVE};
    if (o->type == OPTION_FLAG)
        row.value = ROW_NOTHING;
    if (o->type == OPTION_PATH)
        row.value = file_or_folder(o->value_name);
    if (o->type == OPTION_CHOICE) {
        row.value = ROW_CHOICE;
        row.choices = o->choices;
    }
    if (o->type == OPTION_BOOL) {
        row.value = ROW_CHOICE;
        row.choices = yes_no;
    }
    if (o->type == OPTION_INT)
        row.range = range(o->min, o->max);
    if (row.value != ROW_NOTHING && row.value != ROW_CHOICE && !row.value_name)
        row.value_name = o->type == OPTION_INT ? "N" : "PATH";
    return row;
}

static struct row of_field(const struct kr_field *f, bool on_argv)
{
    static const char *const value_names[] = {
        [KR_T_TEXT] = "TEXT", [KR_T_INT] = "N", [KR_T_REAL] = "X"};
    const char *blank = f->unit[0] ? " " : "";
    struct row row = {.name = on_argv ? dashed(f->name) : f->name,
                      .value = ROW_WORD,
                      .help = f->help,
                      .fallback = f->fallback};
    if (f->type == KR_T_BOOL)
        row.value = ROW_NOTHING;
    else if (f->type == KR_T_CHOICE)
        row.value = ROW_CHOICE;
    else
        row.value_name = value_names[f->type];
    row.choices = f->choices;
    if (f->type == KR_T_TEXT)
        row.range = text("at most %.0f bytes", f->max);
    else if (f->type == KR_T_INT && f->max >= 9223372036854775807.0)
        row.range = text("%.0f to 2^63 - 1%s%s", f->min, blank, f->unit);
    else if (f->type == KR_T_INT || f->type == KR_T_REAL)
        row.range = text("%g to %g%s%s", f->min, f->max, blank, f->unit);
    return row;
}

static struct row of_cli(const struct cli_option_row *o)
{
    struct row row = {
        .name = o->name, .letter = o->letter, .help = o->help, .value_name = o->value};
    if (o->value)
        row.value =
            strcmp(o->value, "FILE") == 0 || strcmp(o->value, "PATH") == 0 ? ROW_FILE : ROW_WORD;
    return row;
}

/* -------------------------------------------------------------------------------- gathered --- */

static struct rows of_table(const struct option_table *table, enum option_place place)
{
    struct rows rows = {.count = 0};
    for (const struct option *o = table->rows; o < table->rows + table->count; o++)
        if (o->places & (int)place)
            rows_add(&rows, of_option(o, place == OPTION_ARGV));
    return rows;
}

static struct rows of_kread(void)
{
    struct rows rows = of_table(&daemon_options, OPTION_ARGV);
    rows.row[rows.count - 1].letter = 'h'; /* --help is the table's last, and -h the one letter */
    assert(strcmp(rows.row[rows.count - 1].name, "help") == 0);
    return rows;
}

static void add_cli(struct rows *rows, unsigned options)
{
    for (const struct cli_option_row *o = cli_option_rows; o->name; o++)
        if (options & o->option)
            rows_add(rows, of_cli(o));
}

static struct rows of_command(const struct command *command)
{
    struct rows rows = {.count = 0};
    for (int i = 0; command->fields && i < KR_FIELDS; i++)
        if (cli_takes_field(i))
            rows_add(&rows, of_field(&kr_fields[i], true));
    add_cli(&rows, command->options & ~(unsigned)CLI_EVERYWHERE);
    return rows;
}

struct rows rows_options(const char *program)
{
    struct rows rows = {.count = 0};
    if (strcmp(program, "kread") == 0)
        return of_kread();
    if (strcmp(program, "kread-http") == 0)
        return of_table(&http_options, OPTION_ARGV);
    if (strcmp(program, "kreactl") == 0)
        add_cli(&rows, CLI_EVERYWHERE);
    else
        rows = of_command(cli_command(program));
    return rows;
}

struct rows rows_settings(const char *section)
{
    struct rows rows = {.count = 0};
    if (strcmp(section, "http") == 0)
        return of_table(&http_options, OPTION_FILE);
    if (strcmp(section, "kread") == 0)
        return of_table(&daemon_options, OPTION_FILE);
    if (strcmp(section, "profile") == 0)
        return of_table(&profile_options, OPTION_FILE);
    if (strcmp(section, "generation") == 0)
        for (int i = 0; i < KR_FIELDS; i++)
            if (kr_fields[i].in_config)
                rows_add(&rows, of_field(&kr_fields[i], false));
    return rows;
}
