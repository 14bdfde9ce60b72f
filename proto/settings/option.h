/* SPDX-License-Identifier: Apache-2.0
 *
 * Every setting of a program stands once in a table: its name in kread.ini, its option on the
 * command line, type, range, default and help. The command line, the config file, --help,
 * --check-config, a reload, the manual and the completions are read from these tables.
 *
 * The values are a struct of the program's own, which begins with `uint64_t set`: a bit for each
 * row says whether it was given. Texts in it are owned.
 */
#ifndef KR_OPTION_H
#define KR_OPTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "proto/err.h"

enum option_type {
    OPTION_TEXT,
    OPTION_PATH, /* made absolute against the folder of whoever named it */
    OPTION_LIST, /* words; on the command line the option repeats, in the file blanks divide */
    OPTION_INT,
    OPTION_BOOL,
    OPTION_CHOICE,
    OPTION_FLAG /* command line only: present or not */
};

/* Where a setting may stand, and whether a reload applies it to the running program. */
enum option_place { OPTION_ARGV = 1, OPTION_FILE = 2, OPTION_LIVE = 4 };

struct option {
    const char *name; /* as in kread.ini; on the command line '-' stands for '_' */
    enum option_type type;
    int places;                 /* enum option_place */
    const char *value_name;     /* "FILE", for --help */
    int64_t min, max;           /* OPTION_INT */
    const char *const *choices; /* OPTION_CHOICE, NULL-terminated */
    const char *fallback;       /* default as text; NULL: depends, the help says on what */
    const char *help;
    size_t offset; /* of the value: char * or int64_t */
};

struct option_table {
    const struct option *rows;
    size_t count; /* at most 64 */
};

/* The row of that name that may stand in `place`, or NULL. `length` bytes of the name count. */
const struct option *option_find(const struct option_table *table, const char *name, size_t length,
                                 enum option_place place);

/* Puts text into the values and marks it as given. A relative path is taken from `folder`. The
 * error's sentence starts with what the value is and says what is allowed; the caller prefixes
 * where it stood. */
int option_set(const struct option_table *table, const struct option *option, void *values,
               const char *text, const char *folder, struct kr_err *err);

/* Exchanges one value of two structs. */
void option_swap(const struct option *option, void *a, void *b);

/* The value as the text that option_set() reads back; "" for a text that is not set. */
void option_format(const struct option *option, const void *values, char *buf, size_t size);

/* Gives what was not given its fallback, unmarked. */
int options_defaults(const struct option_table *table, void *values, struct kr_err *err);

/* Moves what `from` was given over what `to` has. */
void options_merge(const struct option_table *table, void *to, void *from);

void options_fini(const struct option_table *table, void *values);

/* The whole command line. Its error is KR_BAD_CONFIG where the user is at fault, and points to
 * `program` --help. */
int options_parse(const struct option_table *table, const char *program, int argc, char **argv,
                  void *values, struct kr_err *err);

/* A paragraph of --help. */
void option_help(FILE *out, const struct option *option, enum option_place place);

/* A line of --check-config, as kread.ini has it. */
void option_print(FILE *out, const struct option *option, const void *values);

static inline bool option_given(const void *values, unsigned row)
{
    return *(const uint64_t *)values >> row & 1;
}

#endif
