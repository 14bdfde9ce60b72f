/* SPDX-License-Identifier: Apache-2.0
 *
 * Every setting of the daemon stands once in a table: its name in kread.ini, its option on the
 * command line, type, range, default and help. The command line parser, the config file parser,
 * --help, --check-config and the manual read these tables.
 *
 * A struct settings is one layer of values (the config file's, or the command line's); `set` says
 * which of them were given. Texts are owned.
 */
#ifndef KR_OPTIONS_H
#define KR_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "proto/err.h"
#include "proto/fields.h"

enum option_type {
    OPTION_TEXT,
    OPTION_PATH, /* made absolute against the folder of whoever named it */
    OPTION_INT,
    OPTION_BOOL,
    OPTION_CHOICE,
    OPTION_FLAG /* command line only: present or not */
};

/* Where a setting may stand, and whether a reload applies it to the running daemon. */
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

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };
enum socket_access { ACCESS_AUTO, ACCESS_OWNER, ACCESS_GROUP, ACCESS_EVERYONE };

/* In the order of daemon_options[]. */
enum setting_id {
    S_CONFIG,
    S_PROFILE,
    S_DEFAULT_PROFILE,
    S_SOCKET,
    S_SOCKET_ACCESS,
    S_DEVICE,
    S_RESIDENCY,
    S_FP8_PRODUCTS,
    S_DIFFUSION_MODEL,
    S_TEXT_ENCODER,
    S_VAE,
    S_TOKENIZER,
    S_THREADS,
    S_TRACE,
    S_LOG_LEVEL,
    S_LOG_PROMPTS,
    S_ALLOW_USERS,
    S_ALLOW_GROUPS,
    S_QUEUE_LIMIT,
    S_USER_QUEUE_LIMIT,
    S_CLIENT_QUEUE_LIMIT,
    S_MAX_PIXELS,
    S_MAX_STEPS,
    S_MAX_COUNT,
    S_OUTPUT_DIR,
    S_STATE_DIR,
    S_KEEP_IMAGES,
    S_KEEP_MEGABYTES,
    S_KEEP_DAYS,
    S_MAX_CLIENTS,
    S_USER_CLIENTS,
    S_CLIENT_TIMEOUT,
    S_STOP_TIMEOUT,
    S_WORKER_TIMEOUT,
    S_INSPECT,
    S_CHECK_CONFIG,
    S_JSON,
    S_VERSION,
    S_HELP,
    SETTINGS
};

struct settings {
    uint64_t set; /* 1 << enum setting_id */
    char *config, *profile, *default_profile, *socket;
    char *diffusion_model, *text_encoder, *vae, *tokenizer, *trace, *output_dir;
    char *state_dir, *allow_users, *allow_groups;
    int64_t socket_access, device, residency, fp8_products, threads, log_level, log_prompts;
    int64_t queue_limit, max_pixels, max_steps, max_count;
    int64_t user_queue_limit, client_queue_limit;
    int64_t keep_images, keep_megabytes, keep_days;
    int64_t max_clients, user_clients, client_timeout, stop_timeout, worker_timeout;
    int64_t inspect, check_config, json, version, help;
};

extern const struct option daemon_options[SETTINGS];

/* The keys of a [profile NAME] section beside the generation defaults. */
enum profile_key {
    P_ARCHITECTURE,
    P_VARIANT,
    P_DIFFUSION_MODEL,
    P_TEXT_ENCODER,
    P_VAE,
    P_TOKENIZER,
    P_WITHOUT_VISION,
    PROFILE_KEYS
};

struct profile {
    char *name;
    int line;     /* of its section in the file */
    uint64_t set; /* 1 << enum profile_key */
    int64_t architecture, variant;
    char *diffusion_model, *text_encoder, *vae, *tokenizer;
    int64_t without_vision;
    struct kr_params defaults;
};

extern const struct option profile_options[PROFILE_KEYS];

/* The option of that name among `count`, or NULL. `length` bytes of name count. */
const struct option *option_find(const struct option *table, size_t count, const char *name,
                                 size_t length);

/* Puts text into the struct at base. A relative path is taken from `folder`. The error's sentence
 * starts with what the value is and says what is allowed; the caller prefixes where it stood. */
int option_set(const struct option *option, void *base, const char *text, const char *folder,
               struct kr_err *err);

/* The value as the text that option_set() reads back; "" for a text that is not set. */
void option_format(const struct option *option, const void *base, char *buf, size_t size);

void settings_defaults(struct settings *s); /* values of the fallbacks, nothing marked as set */
void settings_fini(struct settings *s);

/* Moves what `from` has set over what `to` has. */
void settings_merge(struct settings *to, struct settings *from);

void profile_fini(struct profile *p);

static inline bool settings_has(const struct settings *s, enum setting_id id)
{
    return s->set >> id & 1;
}

#endif
