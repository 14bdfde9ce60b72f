/* SPDX-License-Identifier: Apache-2.0
 *
 * kread and kread-http have options alone. kreactl has commands, which have options of their own,
 * and some take the number of a job: the shells ask kreactl itself for these.
 */
#include "docs/man/complete.h"

#include <stdio.h>
#include <string.h>

#include "client/kreactl/cli.h"
#include "docs/man/rows.h"

static const char jobs[] = "kreactl jobs 2>/dev/null | awk \"NR > 1 { print \\$1 }\"";

static bool has_commands(const char *program)
{
    return strcmp(program, "kreactl") == 0;
}

static bool takes_job(const struct command *c)
{
    return c->argument == CLI_JOB || c->argument == CLI_MAYBE_JOB;
}

/* The options that may stand behind a command, or all of a program without commands. */
static struct rows options_of(const char *program, const struct command *c)
{
    struct rows rows = rows_options(program), own = {.count = 0};
    if (c)
        own = rows_options(c->name);
    for (size_t i = 0; i < own.count; i++)
        rows_add(&rows, own.row[i]);
    return rows;
}

static void put_choices(const struct row *row)
{
    for (int i = 0; row->choices[i]; i++)
        printf("%s%s", i ? " " : "", row->choices[i]);
}

/* The help's first sentence, for a line beside the option. */
static void put_help(const char *help, const char *special, const char *escape)
{
    size_t n = strcspn(help, ";(");
    while (n > 0 && help[n - 1] == ' ')
        n--;
    for (size_t i = 0; i < n && !(help[i] == '.' && help[i + 1] == ' '); i++) {
        if (help[i] == '\'')
            fputs("'\\'", stdout); /* inside single quotes: out, an escaped one, in again */
        else if (strchr(special, help[i]))
            fputs(escape, stdout);
        putchar(help[i]);
    }
}

/* ----------------------------------------------------------------------------------- bash ---- */

/* A pattern of a case for the option's spellings. */
static void bash_pattern(const struct row *row)
{
    if (row->letter)
        printf("-%c | ", row->letter);
    printf("--%s", row->name);
}

static void bash_values(const struct rows *rows)
{
    for (size_t i = 0; i < rows->count; i++) {
        const struct row *row = &rows->row[i];
        if (row->value == ROW_NOTHING)
            continue;
        fputs("        ", stdout);
        bash_pattern(row);
        fputs(") ", stdout);
        if (row->value == ROW_CHOICE) {
            fputs("words='", stdout);
            put_choices(row);
            fputs("' ;;\n", stdout);
        } else {
            printf("%s ;;\n", row->value == ROW_FILE     ? "files=-f"
                              : row->value == ROW_FOLDER ? "files=-d"
                                                         : "return");
        }
    }
}

static void bash_words(const struct rows *rows)
{
    for (size_t i = 0; i < rows->count; i++) {
        if (rows->row[i].letter)
            printf(" -%c", rows->row[i].letter);
        printf(" --%s", rows->row[i].name);
    }
}

static void bash_commands(void)
{
    fputs("    case $command in\n        '') words='", stdout);
    for (const struct command *c = cli_commands; c->name; c++)
        printf("%s ", c->name);
    struct rows rows = rows_options("kreactl");
    bash_words(&rows);
    puts("' ;;");
    for (const struct command *c = cli_commands; c->name; c++) {
        rows = options_of("kreactl", c);
        printf("        %s) words='", c->name);
        bash_words(&rows);
        fputs("'\n", stdout);
        if (takes_job(c))
            printf("            [[ $cur == -* ]] || words=$(%s)\n", jobs);
        if (c->argument == CLI_MAYBE_COMMAND) {
            fputs("            [[ $cur == -* ]] || words='", stdout);
            for (const struct command *other = cli_commands; other->name; other++)
                printf("%s%s", other == cli_commands ? "" : " ", other->name);
            puts("'");
        }
        puts("            ;;");
    }
    puts("    esac");
}

/* Which word is the command depends on which options take a value. */
static void bash_find_command(const struct rows *rows)
{
    fputs("    for ((i = 1; i < COMP_CWORD && ${#command} == 0; i++)); do\n"
          "        case ${COMP_WORDS[i]} in\n            ",
          stdout);
    const char *joint = "";
    for (size_t i = 0; i < rows->count; i++)
        if (rows->row[i].value != ROW_NOTHING) {
            fputs(joint, stdout);
            bash_pattern(&rows->row[i]);
            joint = " | ";
        }
    fputs(")\n"
          "                [[ ${COMP_WORDS[i + 1]} == = ]] && ((i++))\n"
          "                ((i++)) ;;\n"
          "            -*) ;;\n"
          "            *) command=${COMP_WORDS[i]} ;;\n"
          "        esac\n"
          "    done\n",
          stdout);
}

/* All options of a program and its commands, each once. */
static struct rows every_option(const char *program)
{
    struct rows rows = rows_options(program);
    for (const struct command *c = cli_commands; has_commands(program) && c->name; c++) {
        struct rows own = rows_options(c->name);
        for (size_t i = 0; i < own.count; i++) {
            size_t k = 0;
            while (k < rows.count && strcmp(rows.row[k].name, own.row[i].name) != 0)
                k++;
            if (k == rows.count)
                rows_add(&rows, own.row[i]);
        }
    }
    return rows;
}

static void bash_begin(const char *program, const char *function)
{
    printf("# bash completion for %s\n_%s()\n{\n"
           "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}\n"
           "    local words= files= command= i\n"
           "    COMPREPLY=()\n"
           "    # bash takes --name=value apart\n"
           "    if [[ $cur == = ]]; then\n"
           "        cur=\n"
           "    elif [[ $prev == = ]]; then\n"
           "        prev=${COMP_WORDS[COMP_CWORD - 2]}\n"
           "    fi\n",
           program, function);
}

static void bash(const char *program)
{
    struct rows rows = every_option(program);
    const char *function = strcmp(program, "kread-http") == 0 ? "kread_http" : program;
    bash_begin(program, function);
    puts("    case $prev in");
    bash_values(&rows);
    puts("    esac\n"
         "    if [[ $files ]]; then\n"
         "        compopt -o filenames\n"
         "        mapfile -t COMPREPLY < <(compgen $files -- \"$cur\")\n"
         "        return\n"
         "    fi");
    if (has_commands(program)) {
        bash_find_command(&rows);
        puts("    [[ ! $words ]] &&");
        bash_commands();
    } else {
        fputs("    [[ $words ]] || words='", stdout);
        bash_words(&rows);
        puts("'");
    }
    printf("    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\")\n}\n"
           "complete -F _%s %s\n",
           function, program);
}

/* ------------------------------------------------------------------------------------ zsh ---- */

static void zsh_spec(const struct row *row, const char *spelling, const char *equals)
{
    printf(" \\\n        '%s%s[", spelling, row->value == ROW_NOTHING ? "" : equals);
    put_help(row->help, "[]\\", "\\");
    putchar(']');
    if (row->value == ROW_CHOICE) {
        printf(":%s:(", row->name);
        put_choices(row);
        putchar(')');
    } else if (row->value != ROW_NOTHING) {
        printf(":%s:%s", row->value_name,
               row->value == ROW_FILE     ? "_files"
               : row->value == ROW_FOLDER ? "_files -/"
                                          : " ");
    }
    putchar('\'');
}

static void zsh_options(const struct rows *rows)
{
    char spelling[80];
    for (size_t i = 0; i < rows->count; i++) {
        const struct row *row = &rows->row[i];
        snprintf(spelling, sizeof spelling, "--%s", row->name);
        zsh_spec(row, spelling, "=");
        snprintf(spelling, sizeof spelling, "-%c", row->letter);
        if (row->letter)
            zsh_spec(row, spelling, "+");
    }
}

static void zsh_command(const struct command *c)
{
    struct rows rows = options_of("kreactl", c);
    printf("    %s)\n        _arguments", c->name);
    zsh_options(&rows);
    if (takes_job(c))
        printf(" \\\n        ':job:(${(f)\"$(%s)\"})'", jobs);
    else if (c->argument == CLI_MAYBE_COMMAND)
        fputs(" \\\n        ':command:(${commands%%:*})'", stdout);
    else if (c->argument == CLI_TEXT)
        fputs(" \\\n        ':text: '", stdout);
    puts(" ;;");
}

static void zsh(const char *program)
{
    struct rows rows = rows_options(program);
    printf("#compdef %s\n", program);
    if (!has_commands(program)) {
        fputs("_arguments", stdout);
        zsh_options(&rows);
        putchar('\n');
        return;
    }
    puts("local context state state_descr line\ntypeset -A opt_args\nlocal -a commands=(");
    for (const struct command *c = cli_commands; c->name; c++) {
        printf("    '%s:", c->name);
        put_help(c->brief, ":\\", "\\");
        puts("'");
    }
    fputs(")\n_arguments -C", stdout);
    zsh_options(&rows);
    puts(" \\\n        '1:command:->command' '*::argument:->argument'");
    puts("if [[ $state == command ]]; then\n    _describe command commands\n    return\nfi\n"
         "[[ $state == argument ]] || return 0\ncase $words[1] in");
    for (const struct command *c = cli_commands; c->name; c++)
        zsh_command(c);
    puts("esac");
}

/* ----------------------------------------------------------------------------------- fish ---- */

static void fish_options(const char *program, const char *condition, const struct rows *rows)
{
    for (size_t i = 0; i < rows->count; i++) {
        const struct row *row = &rows->row[i];
        printf("complete -c %s%s", program, condition);
        if (row->letter)
            printf(" -s %c", row->letter);
        printf(" -l %s", row->name);
        if (row->value == ROW_CHOICE) {
            fputs(" -x -a '", stdout);
            put_choices(row);
            putchar('\'');
        } else if (row->value == ROW_FOLDER) {
            fputs(" -x -a '(__fish_complete_directories)'", stdout);
        } else if (row->value == ROW_FILE) {
            fputs(" -r -F", stdout);
        } else if (row->value == ROW_WORD) {
            fputs(" -x", stdout);
        }
        fputs(" -d '", stdout);
        put_help(row->help, "\\", "\\");
        puts("'");
    }
}

static void fish(const char *program)
{
    struct rows rows = rows_options(program);
    printf("complete -c %s -f\n", program);
    fish_options(program, "", &rows);
    for (const struct command *c = cli_commands; has_commands(program) && c->name; c++) {
        char condition[120];
        printf("complete -c kreactl -n __fish_use_subcommand -a %s -d '", c->name);
        put_help(c->brief, "\\", "\\");
        puts("'");
        snprintf(condition, sizeof condition, " -n '__fish_seen_subcommand_from %s'", c->name);
        rows = rows_options(c->name);
        fish_options(program, condition, &rows);
        if (takes_job(c))
            printf("complete -c kreactl%s -a '(%s)'\n", condition, jobs);
    }
}

int complete(const char *shell, const char *program)
{
    if (strcmp(program, "kread") != 0 && strcmp(program, "kread-http") != 0 &&
        strcmp(program, "kreactl") != 0)
        return -1;
    if (strcmp(shell, "bash") == 0)
        bash(program);
    else if (strcmp(shell, "zsh") == 0)
        zsh(program);
    else if (strcmp(shell, "fish") == 0)
        fish(program);
    else
        return -1;
    return 0;
}
