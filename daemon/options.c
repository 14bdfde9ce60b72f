/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/options.h"

#include <stdlib.h>

static const char *const devices[] = {"auto", "cuda", "cpu", NULL};
static const char *const residencies[] = {"auto", "resident", "cached", "stream", NULL};
static const char *const levels[] = {"error", "warn", "info", "debug", NULL};
static const char *const accesses[] = {"auto", "owner", "group", "everyone", NULL};
static const char *const architectures[] = {"krea2", NULL};
static const char *const variants[] = {"turbo", "raw", NULL};

#define AT(member) offsetof(struct settings, member)
#define BOTH       (OPTION_ARGV | OPTION_FILE)
#define LIVE       (OPTION_FILE | OPTION_LIVE)

/* name, type, places, value name, min, max, choices, default, help, offset */
static const struct option daemon_rows[SETTINGS] = {
    [S_CONFIG] = {"config", OPTION_PATH, OPTION_ARGV, "FILE", 0, 0, NULL, NULL,
                  "settings; default: $XDG_CONFIG_HOME/kread/kread.ini, /etc/kread/kread.ini",
                  AT(config)},
    [S_PROFILE] = {"profile", OPTION_TEXT, OPTION_ARGV, "NAME", 0, 0, NULL, NULL,
                   "the profile to serve; default: default_profile of the settings, or the demo",
                   AT(profile)},
    [S_DEFAULT_PROFILE] = {"default_profile", OPTION_TEXT, OPTION_FILE, "NAME", 0, 0, NULL, NULL,
                           "the profile to serve without --profile", AT(default_profile)},
    [S_SOCKET] = {"socket", OPTION_PATH, BOTH, "PATH", 0, 0, NULL, NULL,
                  "default: $KREAD_SOCKET, the settings, $XDG_RUNTIME_DIR/kread.sock, "
                  "/run/kread/kread.sock",
                  AT(socket)},
    [S_SOCKET_ACCESS] = {"socket_access", OPTION_CHOICE, OPTION_FILE, "WHO", 0, 0, accesses, "auto",
                         "who may connect; auto: the group under /run/kread, elsewhere the owner",
                         AT(socket_access)},
    [S_DEVICE] = {"device", OPTION_CHOICE, BOTH, "DEVICE", 0, 0, devices, "auto",
                  "where to compute", AT(device)},
    [S_RESIDENCY] = {"residency", OPTION_CHOICE, BOTH, "HOW", 0, 0, residencies, "auto",
                     "what stays in device memory between stages", AT(residency)},
    [S_FP8_PRODUCTS] =
        {"fp8_products", OPTION_BOOL, OPTION_FILE, NULL, 0, 0, NULL, "yes",
         "multiply FP8 weights in FP8 where the GPU can; no: in BF16, slower and closer "
         "to the reference",
         AT(fp8_products)},
    [S_DIFFUSION_MODEL] = {"diffusion_model", OPTION_PATH, OPTION_ARGV, "FILE", 0, 0, NULL, NULL,
                           "instead of the profile's", AT(diffusion_model)},
    [S_TEXT_ENCODER] = {"text_encoder", OPTION_PATH, OPTION_ARGV, "FILE", 0, 0, NULL, NULL,
                        "instead of the profile's", AT(text_encoder)},
    [S_VAE] = {"vae", OPTION_PATH, OPTION_ARGV, "FILE", 0, 0, NULL, NULL,
               "instead of the profile's", AT(vae)},
    [S_TOKENIZER] = {"tokenizer", OPTION_PATH, OPTION_ARGV, "DIR", 0, 0, NULL, NULL,
                     "instead of the profile's", AT(tokenizer)},
    [S_THREADS] = {"threads", OPTION_INT, BOTH, "N", 0, 1024, NULL, "0",
                   "processor cores to use; 0: all", AT(threads)},
    [S_TRACE] = {"trace", OPTION_PATH, OPTION_ARGV, "DIR", 0, 0, NULL, NULL,
                 "write each job's intermediate tensors into DIR/JOB/", AT(trace)},
    [S_LOG_LEVEL] = {"log_level", OPTION_CHOICE, OPTION_ARGV | LIVE, "LEVEL", 0, 0, levels, "info",
                     "how much is logged; prompts at debug only", AT(log_level)},
    [S_LOG_PROMPTS] = {"log_prompts", OPTION_BOOL, LIVE, NULL, 0, 0, NULL, "no",
                       "the line that is logged of every job quotes its prompt", AT(log_prompts)},
    [S_ALLOW_USERS] = {"allow_users", OPTION_TEXT, LIVE, "NAMES", 0, 0, NULL, NULL,
                       "users who may use the daemon; default, without allow_groups too: whoever "
                       "can open the socket",
                       AT(allow_users)},
    [S_ALLOW_GROUPS] = {"allow_groups", OPTION_TEXT, LIVE, "NAMES", 0, 0, NULL, NULL,
                        "groups whose members may", AT(allow_groups)},
    [S_QUEUE_LIMIT] = {"queue_limit", OPTION_INT, LIVE, "N", 0, 10000, NULL, "64",
                       "jobs that may wait beside the running one; more are refused as busy",
                       AT(queue_limit)},
    [S_USER_QUEUE_LIMIT] = {"user_queue_limit", OPTION_INT, LIVE, "N", 0, 10000, NULL, "32",
                            "of them, those of one user; 0: no limit of its own",
                            AT(user_queue_limit)},
    [S_CLIENT_QUEUE_LIMIT] = {"client_queue_limit", OPTION_INT, LIVE, "N", 0, 10000, NULL, "16",
                              "of them, those of one connection; 0: no limit of its own",
                              AT(client_queue_limit)},
    [S_MAX_PIXELS] = {"max_pixels", OPTION_INT, OPTION_FILE, "N", 0, INT32_MAX, NULL, "0",
                      "largest width * height of a request; 0: no limit", AT(max_pixels)},
    [S_MAX_STEPS] = {"max_steps", OPTION_INT, OPTION_FILE, "N", 0, 10000, NULL, "0",
                     "most steps of a request; 0: no limit", AT(max_steps)},
    [S_MAX_COUNT] = {"max_count", OPTION_INT, OPTION_FILE, "N", 0, 10000, NULL, "0",
                     "most pictures of a request; 0: no limit", AT(max_count)},
    [S_OUTPUT_DIR] = {"output_dir", OPTION_PATH, OPTION_FILE, "DIR", 0, 0, NULL, NULL,
                      "the daemon also writes every finished picture into this folder",
                      AT(output_dir)},
    [S_STATE_DIR] = {"state_dir", OPTION_PATH, OPTION_FILE, "DIR", 0, 0, NULL, NULL,
                     "where detached jobs are kept; default: $STATE_DIRECTORY of systemd, "
                     "$XDG_STATE_HOME/kread, ~/.local/state/kread",
                     AT(state_dir)},
    [S_KEEP_IMAGES] = {"keep_images", OPTION_INT, LIVE, "N", 0, 100000, NULL, "500",
                       "pictures of detached jobs kept for fetch", AT(keep_images)},
    [S_KEEP_MEGABYTES] = {"keep_megabytes", OPTION_INT, LIVE, "N", 0, 1 << 20, NULL, "1024",
                          "room for these pictures in state_dir", AT(keep_megabytes)},
    [S_KEEP_DAYS] = {"keep_days", OPTION_INT, LIVE, "N", 0, 36500, NULL, "30",
                     "how long they are kept; 0: for ever", AT(keep_days)},
    [S_MAX_CLIENTS] = {"max_clients", OPTION_INT, LIVE, "N", 1, 10000, NULL, "256",
                       "connections at a time", AT(max_clients)},
    [S_USER_CLIENTS] = {"user_clients", OPTION_INT, LIVE, "N", 0, 10000, NULL, "128",
                        "of them, those of one user; 0: no limit of its own", AT(user_clients)},
    [S_CLIENT_TIMEOUT] = {"client_timeout", OPTION_INT, LIVE, "SECONDS", 1, 3600, NULL, "30",
                          "how long a client may take to finish a message or to read on",
                          AT(client_timeout)},
    [S_STOP_TIMEOUT] = {"stop_timeout", OPTION_INT, LIVE, "SECONDS", 0, 86400, NULL, "30",
                        "how long the running job may go on when the daemon is told to stop",
                        AT(stop_timeout)},
    [S_WORKER_TIMEOUT] = {"worker_timeout", OPTION_INT, LIVE, "SECONDS", 1, 86400, NULL, "600",
                          "how long a job may show no progress before its worker counts as stuck; "
                          "never less than 20 of its steps take",
                          AT(worker_timeout)},
    [S_INSPECT] = {"inspect", OPTION_FLAG, OPTION_ARGV, NULL, 0, 0, NULL, NULL,
                   "report on the profile's files and exit; uses no device", AT(inspect)},
    [S_CHECK_CONFIG] = {"check_config", OPTION_FLAG, OPTION_ARGV, NULL, 0, 0, NULL, NULL,
                        "check all settings, print the effective ones and exit", AT(check_config)},
    [S_JSON] = {"json", OPTION_FLAG, OPTION_ARGV, NULL, 0, 0, NULL, NULL,
                "with --inspect: one JSON object", AT(json)},
    [S_VERSION] = {"version", OPTION_FLAG, OPTION_ARGV, NULL, 0, 0, NULL, NULL,
                   "print the version and exit", AT(version)},
    [S_HELP] = {"help", OPTION_FLAG, OPTION_ARGV, NULL, 0, 0, NULL, NULL, "print this and exit",
                AT(help)},
};

#undef AT
#define AT(member) offsetof(struct profile, member)

static const struct option profile_rows[PROFILE_KEYS] = {
    [P_ARCHITECTURE] = {"architecture", OPTION_CHOICE, OPTION_FILE, NULL, 0, 0, architectures, NULL,
                        "which model it is", AT(architecture)},
    [P_VARIANT] = {"variant", OPTION_CHOICE, OPTION_FILE, NULL, 0, 0, variants, NULL,
                   "its training, which decides steps, cfg and mu", AT(variant)},
    [P_DIFFUSION_MODEL] = {"diffusion_model", OPTION_PATH, OPTION_FILE, NULL, 0, 0, NULL, NULL,
                           "safetensors file", AT(diffusion_model)},
    [P_TEXT_ENCODER] = {"text_encoder", OPTION_PATH, OPTION_FILE, NULL, 0, 0, NULL, NULL,
                        "safetensors file", AT(text_encoder)},
    [P_VAE] = {"vae", OPTION_PATH, OPTION_FILE, NULL, 0, 0, NULL, NULL, "safetensors file",
               AT(vae)},
    [P_TOKENIZER] = {"tokenizer", OPTION_PATH, OPTION_FILE, NULL, 0, 0, NULL, NULL,
                     "folder with vocab.json, merges.txt, tokenizer_config.json", AT(tokenizer)},
    [P_WITHOUT_VISION] = {"text_encoder_without_vision", OPTION_BOOL, OPTION_FILE, NULL, 0, 0, NULL,
                          "no",
                          "the text encoder is a Qwen3-VL although its file lacks model.visual.*",
                          AT(without_vision)},
};

const struct option_table daemon_options = {daemon_rows, SETTINGS};
const struct option_table profile_options = {profile_rows, PROFILE_KEYS};

void profile_fini(struct profile *p)
{
    options_fini(&profile_options, p);
    free(p->name);
    p->name = NULL;
    kr_params_fini(&p->defaults);
}
