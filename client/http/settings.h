/* SPDX-License-Identifier: Apache-2.0
 *
 * The settings of kread-http: each stands once in a table, with its name in [http] of kread.ini,
 * its option on the command line, type, range, default and help. The command line, the file, --help
 * and the manual are read from or written from it. The command line comes before the file.
 */
#ifndef KR_HTTP_SETTINGS_H
#define KR_HTTP_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "proto/err.h"

enum setting_type {
    SETTING_TEXT,
    SETTING_PATH, /* made absolute against the folder of whoever named it */
    SETTING_LIST, /* words; on the command line the option repeats, in the file blanks divide */
    SETTING_INT,
    SETTING_BOOL,
    SETTING_CHOICE,
    SETTING_FLAG /* command line only: present or not */
};

enum setting_place { SETTING_ARGV = 1, SETTING_FILE = 2 };

struct setting {
    const char *name; /* as in kread.ini; on the command line '-' stands for '_' */
    enum setting_type type;
    int places;             /* enum setting_place */
    const char *value_name; /* "FILE", for --help */
    int64_t min, max;       /* SETTING_INT */
    const char *const *choices;
    const char *fallback; /* default as text; NULL: none, or the help says what */
    const char *help;
    size_t offset; /* of the value: char * or int64_t */
};

enum setting_id {
    H_CONFIG,
    H_SOCKET,
    H_LISTEN,
    H_TOKEN_FILE,
    H_HOSTS,
    H_CORS,
    H_HONOUR_CLIENT_SAMPLING,
    H_MAX_COUNT,
    H_MAX_STEPS,
    H_MAX_PIXELS,
    H_MAX_BODY,
    H_MAX_CONNECTIONS,
    H_MAX_CONNECTIONS_PER_ADDRESS,
    H_REQUEST_TIMEOUT,
    H_RENDER_TIMEOUT,
    H_LOG_LEVEL,
    H_CHECK_CONFIG,
    H_VERSION,
    H_HELP,
    SETTINGS
};

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

struct settings {
    uint64_t set; /* 1 << enum setting_id: given by file or command line */
    char *config, *socket, *listen, *token_file, *hosts, *cors;
    int64_t honour_client_sampling, max_count, max_steps, max_pixels, max_body;
    int64_t max_connections, max_connections_per_address, request_timeout, render_timeout;
    int64_t log_level, check_config, version, help;
};

extern const struct setting http_settings[SETTINGS];

/* Reads the command line, then the file that it names or that is found, and fills in defaults. -1:
 * one sentence; *usage says whether the command line was at fault. */
int settings_read(int argc, char **argv, struct settings *s, bool *usage, struct kr_err *err);
void settings_fini(struct settings *s);

void settings_help(FILE *out);
void settings_print(const struct settings *s, FILE *out); /* the effective ones, as in kread.ini */

static inline bool settings_has(const struct settings *s, enum setting_id id)
{
    return s->set >> id & 1;
}

/* For settings_file.c: puts text into the struct; a relative path is taken from `folder`. */
int settings_set(struct settings *s, enum setting_id id, const char *text, const char *folder,
                 struct kr_err *err);

/* [http], and `socket` of [kread], of the file at `path`, into what s does not have yet. */
int settings_load(const char *path, struct settings *s, struct kr_err *err);

#endif
