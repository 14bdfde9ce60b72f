/* SPDX-License-Identifier: Apache-2.0
 *
 * kread.ini as the daemon and its clients read it: which file it is, its lines, its sections. What
 * the sections mean is their readers' business.
 */
#ifndef KR_INI_H
#define KR_INI_H

#include "proto/settings/option.h"

enum { INI_MAX_TITLE = 49 };

/* One reading of a file. */
struct ini {
    const struct ini_reader *reader;
    const char *path, *folder;     /* the folder is absolute: relative paths start there */
    int line;                      /* the one being read, from 1 */
    char title[INI_MAX_TITLE + 1]; /* of its section; "" before the first */
    const char *at, *end;          /* what is left of the file */
    bool pending;                  /* a setting is on its way through inih */
    bool failed;
    struct kr_err *err;
};

struct ini_reader {
    bool lenient;                                        /* passes over lines that are wrong */
    void (*section)(struct ini *ini, const char *title); /* begins; NULL: not asked for */
    void (*value)(struct ini *ini, const char *name, const char *value);
    void *user;
};

/* The file to read: `named` if given, else the first that exists of the user's own
 * ($XDG_CONFIG_HOME/kread/kread.ini, ~/.config/kread/kread.ini) and /etc/kread/kread.ini; *path is
 * NULL where there is none, and the caller frees it. */
int ini_find(const char *named, char **path, struct kr_err *err);

/* Hands the file's values to the reader, in their order, until one is refused. */
int ini_read(const char *path, const struct ini_reader *reader, struct kr_err *err);

/* For the reader: the line is wrong. The first such sentence is the file's error, behind
 * PATH:LINE:.
 */
__attribute__((format(printf, 2, 3))) void ini_refuse(struct ini *ini, const char *format, ...);

/* For the reader: the line's value as one of `values`, which may be given once. */
void ini_set(struct ini *ini, const struct option_table *table, const struct option *option,
             void *values, const char *value);

#endif
