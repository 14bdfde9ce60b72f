/* SPDX-License-Identifier: Apache-2.0
 *
 * The daemon's settings: those of [kread] and the command line, and those of a [profile NAME]. A
 * struct settings is one layer of values, the config file's or the command line's.
 */
#ifndef KR_OPTIONS_H
#define KR_OPTIONS_H

#include "proto/fields.h"
#include "proto/settings/option.h"

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };
enum socket_access { ACCESS_AUTO, ACCESS_OWNER, ACCESS_GROUP, ACCESS_EVERYONE };

/* In the order of daemon_options. */
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

extern const struct option_table daemon_options;

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
    uint64_t set; /* 1 << enum profile_key */
    char *name;
    int line; /* of its section in the file */
    int64_t architecture, variant;
    char *diffusion_model, *text_encoder, *vae, *tokenizer;
    int64_t without_vision;
    struct kr_params defaults;
};

extern const struct option_table profile_options;

void profile_fini(struct profile *p);

#endif
