/* SPDX-License-Identifier: Apache-2.0
 *
 * The options of all programs in one form, gathered from the tables that the programs parse with.
 * The manual pages and the completions are made of these rows and of nothing else. The generator
 * runs at build time, single-threaded; what it allocates it keeps.
 */
#ifndef KR_MAN_ROWS_H
#define KR_MAN_ROWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum row_value { ROW_NOTHING, ROW_WORD, ROW_CHOICE, ROW_FILE, ROW_FOLDER };

struct row {
    const char *name; /* as it is written, without the dashes: "diffusion-model", "max_pixels" */
    char letter;      /* 0: none */
    enum row_value value;
    const char *value_name;     /* "FILE"; of a choice NULL */
    const char *const *choices; /* of ROW_CHOICE, NULL-terminated */
    const char *help;           /* no capital, no full stop */
    const char *range;          /* "1 to 1000 steps", "" */
    const char *fallback;       /* default, "" */
    bool live;                  /* of kread.ini: a reload applies it */
};

struct rows {
    struct row row[64];
    size_t count;
};

void rows_add(struct rows *rows, struct row row);

/* What `kread`, `kread-http`, `kreactl` (the options that all commands take), or a command of
 * kreactl ("generate") takes. */
struct rows rows_options(const char *program);

/* The settings of a section of kread.ini: "kread", "profile", "generation", "http". */
struct rows rows_settings(const char *section);

#endif
