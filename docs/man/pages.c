/* SPDX-License-Identifier: Apache-2.0
 *
 *     @options PROGRAM     the program's options, as a list
 *     @settings SECTION    the settings of a section of kread.ini
 *     @commands            kreactl's commands, each with its own options
 */
#include "docs/man/pages.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "client/kreactl/cli.h"
#include "docs/man/mdoc.h"
#include "docs/man/rows.h"

/* A sentence of its own: capital, full stop. */
static void sentence(const char *text)
{
    char copy[600];
    snprintf(copy, sizeof copy, "%s%s", text, text[strlen(text) - 1] == '.' ? "" : ".");
    copy[0] = (char)toupper((unsigned char)copy[0]);
    mdoc_text(copy);
}

static void put_value(const struct row *row)
{
    if (row->value == ROW_CHOICE)
        for (int i = 0; row->choices[i]; i++)
            printf("%sCm %s", i ? " | " : " ", row->choices[i]);
    else if (row->value != ROW_NOTHING)
        printf(" Ar %s", row->value_name);
}

static void put_help(const struct row *row)
{
    char text[200];
    sentence(row->help);
    if (row->range[0]) {
        snprintf(text, sizeof text, "%s%s", isdigit((unsigned char)row->range[0]) ? "From " : "",
                 row->range);
        sentence(text);
    }
    if (row->fallback[0]) {
        snprintf(text, sizeof text, "The default is %s", row->fallback);
        sentence(text);
    }
}

static void put_options(const struct rows *rows)
{
    puts(".Bl -tag -width Ds");
    for (size_t i = 0; i < rows->count; i++) {
        const struct row *row = &rows->row[i];
        fputs(".It", stdout);
        if (row->letter) {
            printf(" Fl %c", row->letter);
            put_value(row);
            fputs(" ,", stdout);
        }
        printf(" Fl -%s", row->name);
        put_value(row);
        putchar('\n');
        put_help(row);
    }
    puts(".El");
}

static void put_settings(const struct rows *rows)
{
    puts(".Bl -tag -width Ds");
    for (size_t i = 0; i < rows->count; i++) {
        printf(".It Ic %s =", rows->row[i].name);
        if (rows->row[i].value == ROW_NOTHING)
            fputs(" Cm yes | no", stdout);
        put_value(&rows->row[i]);
        putchar('\n');
        put_help(&rows->row[i]);
        if (rows->row[i].live)
            sentence("A reload applies it");
    }
    puts(".El");
}

static void put_commands(void)
{
    puts(".Bl -tag -width Ds");
    for (const struct command *c = cli_commands; c->name; c++) {
        struct rows own = rows_options(c->name);
        printf(".It Ic %s", c->name);
        if (c->usage[0]) {
            fputs(" ", stdout);
            mdoc_argument(c->usage);
        }
        putchar('\n');
        sentence(c->brief);
        if (c->help[0])
            sentence(c->help);
        if (own.count > 0)
            put_options(&own);
    }
    puts(".El");
}

int page_request(const char *line)
{
    char word[32] = "", argument[32] = "";
    struct rows rows;
    sscanf(line, "@%31s %31s", word, argument);
    if (strcmp(word, "options") == 0) {
        rows = rows_options(argument);
        put_options(&rows);
    } else if (strcmp(word, "settings") == 0) {
        rows = rows_settings(argument);
        put_settings(&rows);
    } else if (strcmp(word, "commands") == 0) {
        put_commands();
    } else {
        return -1;
    }
    return 0;
}
