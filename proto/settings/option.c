/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/settings/option.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/utf8.h"

enum { NAME_SIZE = 40, COLUMN = 30, LINE = 100 };

static bool is_text(const struct option *option)
{
    return option->type == OPTION_TEXT || option->type == OPTION_PATH ||
           option->type == OPTION_LIST;
}

static char **text_at(const struct option *option, void *values)
{
    assert(is_text(option));
    return (char **)((char *)values + option->offset);
}

static int64_t *number_at(const struct option *option, void *values)
{
    assert(!is_text(option));
    return (int64_t *)((char *)values + option->offset);
}

const struct option *option_find(const struct option_table *table, const char *name, size_t length,
                                 enum option_place place)
{
    for (const struct option *o = table->rows; o < table->rows + table->count; o++)
        if (o->places & (int)place && strlen(o->name) == length &&
            memcmp(o->name, name, length) == 0)
            return o;
    return NULL;
}

/* ---------------------------------------------------------------------------- one value ------ */

static int set_int(const struct option *option, void *values, const char *text, struct kr_err *err)
{
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    bool digits = *text == '-' || *text == '+' || (*text >= '0' && *text <= '9');
    if (!digits || end == text || *end || errno || value < option->min || value > option->max)
        return kr_fail(err, KR_BAD_CONFIG,
                       "%s is \"%.80s\", want a whole number from %" PRId64 " to %" PRId64,
                       option->name, text, option->min, option->max);
    *number_at(option, values) = value;
    return 0;
}

static int set_choice(const struct option *option, void *values, const char *text,
                      struct kr_err *err)
{
    char list[160] = "";
    for (int i = 0; option->choices[i]; i++) {
        if (strcmp(option->choices[i], text) == 0) {
            *number_at(option, values) = i;
            return 0;
        }
        size_t used = strlen(list);
        const char *joint = i == 0 ? "" : option->choices[i + 1] ? ", " : " or ";
        snprintf(list + used, sizeof list - used, "%s%s", joint, option->choices[i]);
    }
    return kr_fail(err, KR_BAD_CONFIG, "%s is \"%.80s\", want %s", option->name, text, list);
}

static int set_bool(const struct option *option, void *values, const char *text, struct kr_err *err)
{
    static const char *const words[] = {"no", "yes", "false", "true", "off", "on", "0", "1"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(words[i], text) == 0) {
            *number_at(option, values) = (int64_t)(i & 1);
            return 0;
        }
    return kr_fail(err, KR_BAD_CONFIG, "%s is \"%.80s\", want yes or no", option->name, text);
}

static int set_text(const struct option *option, void *values, const char *text, const char *folder,
                    struct kr_err *err)
{
    char **slot = text_at(option, values), *value;
    const char *before = "", *joint = "";
    if (!*text)
        return kr_fail(err, KR_BAD_CONFIG, "%s is empty, give it a value or leave it out",
                       option->name);
    if (option->type == OPTION_LIST && *slot) {
        before = *slot;
        joint = " ";
    } else if (option->type == OPTION_PATH && *text != '/' && folder) {
        before = folder;
        joint = folder[strlen(folder) - 1] == '/' ? "" : "/";
    }
    if (asprintf(&value, "%s%s%s", before, joint, text) < 0)
        return kr_fail(err, KR_NO_MEMORY, "no memory for the settings");
    free(*slot);
    *slot = value;
    return 0;
}

static int set_value(const struct option *option, void *values, const char *text,
                     const char *folder, struct kr_err *err)
{
    switch (option->type) {
    case OPTION_INT:
        return set_int(option, values, text, err);
    case OPTION_CHOICE:
        return set_choice(option, values, text, err);
    case OPTION_BOOL:
        return set_bool(option, values, text, err);
    case OPTION_FLAG:
        *number_at(option, values) = 1;
        return 0;
    case OPTION_TEXT:
    case OPTION_PATH:
    case OPTION_LIST:
        break;
    }
    return set_text(option, values, text, folder, err);
}

int option_set(const struct option_table *table, const struct option *option, void *values,
               const char *text, const char *folder, struct kr_err *err)
{
    if (set_value(option, values, text, folder, err) < 0)
        return -1;
    *(uint64_t *)values |= UINT64_C(1) << (option - table->rows);
    return 0;
}

void option_swap(const struct option *option, void *a, void *b)
{
    if (is_text(option)) {
        char *keep = *text_at(option, a);
        *text_at(option, a) = *text_at(option, b);
        *text_at(option, b) = keep;
    } else {
        int64_t keep = *number_at(option, a);
        *number_at(option, a) = *number_at(option, b);
        *number_at(option, b) = keep;
    }
}

void option_format(const struct option *option, const void *values, char *buf, size_t size)
{
    const void *at = (const char *)values + option->offset;
    if (is_text(option)) {
        const char *text = *(char *const *)at;
        snprintf(buf, size, "%s", text ? text : "");
        return;
    }
    int64_t value = *(const int64_t *)at;
    if (option->type == OPTION_CHOICE)
        snprintf(buf, size, "%s", option->choices[value]);
    else if (option->type == OPTION_INT)
        snprintf(buf, size, "%" PRId64, value);
    else
        snprintf(buf, size, "%s", value ? "yes" : "no");
}

/* ---------------------------------------------------------------------------- all of them ---- */

int options_defaults(const struct option_table *table, void *values, struct kr_err *err)
{
    for (size_t i = 0; i < table->count; i++) {
        const struct option *option = &table->rows[i];
        if (option->fallback && !option_given(values, (unsigned)i) &&
            set_value(option, values, option->fallback, NULL, err) < 0)
            return -1;
    }
    return 0;
}

void options_merge(const struct option_table *table, void *to, void *from)
{
    for (size_t i = 0; i < table->count; i++)
        if (option_given(from, (unsigned)i))
            option_swap(&table->rows[i], to, from);
    *(uint64_t *)to |= *(const uint64_t *)from;
}

void options_fini(const struct option_table *table, void *values)
{
    for (size_t i = 0; i < table->count; i++)
        if (is_text(&table->rows[i])) {
            free(*text_at(&table->rows[i], values));
            *text_at(&table->rows[i], values) = NULL;
        }
}

/* ---------------------------------------------------------------------------- command line --- */

/* The option behind "--diffusion-model" or "--diffusion-model=...", NULL if there is none. */
static const struct option *find(const struct option_table *table, const char *arg,
                                 const char **value)
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
    return option_find(table, name, length, OPTION_ARGV);
}

struct command_line {
    const struct option_table *table;
    const char *program, *folder;
    void *values;
};

/* One argument and, where it takes one, its value; the number of arguments used or -1. */
static int take(const struct command_line *line, char **arg, struct kr_err *err)
{
    const char *word = strcmp(arg[0], "-h") == 0 ? "--help" : arg[0], *value = NULL;
    if (strncmp(word, "--", 2) != 0 || !word[2])
        return kr_fail(err, KR_BAD_CONFIG, "\"%.80s\" is no option, see %s --help", arg[0],
                       line->program);
    const struct option *option = find(line->table, word, &value);
    if (!option)
        return kr_fail(err, KR_BAD_CONFIG, "unknown option %.80s, see %s --help", arg[0],
                       line->program);
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
    struct kr_err why;
    if (option_set(line->table, option, line->values, value, line->folder, &why) == 0)
        return used;
    return kr_fail(err, why.code, "command line: %s", why.text);
}

int options_parse(const struct option_table *table, const char *program, int argc, char **argv,
                  void *values, struct kr_err *err)
{
    char folder[4096];
    const struct command_line line = {table, program, folder, values};
    if (!getcwd(folder, sizeof folder))
        return kr_fail(err, KR_IO, "cannot tell the current folder: %s", strerror(errno));
    for (int i = 1; i < argc;) {
        int used = take(&line, argv + i, err);
        if (used < 0)
            return -1;
        i += used;
    }
    return 0;
}

/* ---------------------------------------------------------------------------- showing them --- */

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
static void spell(const struct option *option, enum option_place place, char *buf, size_t size)
{
    size_t n =
        (size_t)snprintf(buf, size, "  %s%s", place == OPTION_ARGV ? "--" : "", option->name);
    if (place != OPTION_ARGV)
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

void option_help(FILE *out, const struct option *option, enum option_place place)
{
    char left[80], help[400];
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

void option_print(FILE *out, const struct option *option, const void *values)
{
    char number[80];
    const char *value = number;
    if (is_text(option))
        value = *(char *const *)((const char *)values + option->offset);
    else
        option_format(option, values, number, sizeof number);
    if (value)
        fprintf(out, "%s = %s\n", option->name, value);
    else
        fprintf(out, "; %s is not set\n", option->name);
}
