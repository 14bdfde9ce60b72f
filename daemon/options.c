/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/options.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

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
const struct option daemon_options[SETTINGS] = {
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

const struct option profile_options[PROFILE_KEYS] = {
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

const struct option *option_find(const struct option *table, size_t count, const char *name,
                                 size_t length)
{
    for (size_t i = 0; i < count; i++)
        if (strlen(table[i].name) == length && memcmp(table[i].name, name, length) == 0)
            return &table[i];
    return NULL;
}

static bool is_text(const struct option *option)
{
    return option->type == OPTION_TEXT || option->type == OPTION_PATH;
}

static char **text_at(const struct option *option, void *base)
{
    assert(is_text(option));
    return (char **)((char *)base + option->offset);
}

static int64_t *number_at(const struct option *option, void *base)
{
    assert(!is_text(option));
    return (int64_t *)((char *)base + option->offset);
}

static int set_int(const struct option *option, void *base, const char *text, struct kr_err *err)
{
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    bool digits = *text == '-' || *text == '+' || (*text >= '0' && *text <= '9');
    if (!digits || end == text || *end || errno || value < option->min || value > option->max)
        return kr_fail(err, KR_BAD_CONFIG,
                       "%s is \"%.80s\", want a whole number from %" PRId64 " to %" PRId64,
                       option->name, text, option->min, option->max);
    *number_at(option, base) = value;
    return 0;
}

static int set_choice(const struct option *option, void *base, const char *text, struct kr_err *err)
{
    char list[160] = "";
    for (int i = 0; option->choices[i]; i++) {
        if (strcmp(option->choices[i], text) == 0) {
            *number_at(option, base) = i;
            return 0;
        }
        size_t used = strlen(list);
        const char *joint = i == 0 ? "" : option->choices[i + 1] ? ", " : " or ";
        snprintf(list + used, sizeof list - used, "%s%s", joint, option->choices[i]);
    }
    return kr_fail(err, KR_BAD_CONFIG, "%s is \"%.80s\", want %s", option->name, text, list);
}

static int set_bool(const struct option *option, void *base, const char *text, struct kr_err *err)
{
    static const char *const words[] = {"no", "yes", "false", "true", "off", "on", "0", "1"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(words[i], text) == 0) {
            *number_at(option, base) = (int64_t)(i & 1);
            return 0;
        }
    return kr_fail(err, KR_BAD_CONFIG, "%s is \"%.80s\", want yes or no", option->name, text);
}

static int set_text(const struct option *option, void *base, const char *text, const char *folder,
                    struct kr_err *err)
{
    char *value = NULL;
    if (!*text)
        return kr_fail(err, KR_BAD_CONFIG, "%s is empty, give it a value or leave it out",
                       option->name);
    if (option->type == OPTION_PATH && *text != '/' && folder) {
        const char *joint = folder[strlen(folder) - 1] == '/' ? "" : "/";
        if (asprintf(&value, "%s%s%s", folder, joint, text) < 0)
            value = NULL;
    } else {
        value = strdup(text);
    }
    if (!value)
        return kr_fail(err, KR_NO_MEMORY, "out of memory");
    char **slot = text_at(option, base);
    free(*slot);
    *slot = value;
    return 0;
}

int option_set(const struct option *option, void *base, const char *text, const char *folder,
               struct kr_err *err)
{
    switch (option->type) {
    case OPTION_INT:
        return set_int(option, base, text, err);
    case OPTION_CHOICE:
        return set_choice(option, base, text, err);
    case OPTION_BOOL:
        return set_bool(option, base, text, err);
    case OPTION_FLAG:
        *number_at(option, base) = 1;
        return 0;
    case OPTION_TEXT:
    case OPTION_PATH:
        break;
    }
    return set_text(option, base, text, folder, err);
}

void option_format(const struct option *option, const void *base, char *buf, size_t size)
{
    const void *at = (const char *)base + option->offset;
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

void settings_defaults(struct settings *s)
{
    *s = (struct settings){0};
    for (size_t i = 0; i < SETTINGS; i++) {
        const struct option *option = &daemon_options[i];
        if (!option->fallback)
            continue;
        int failed = option_set(option, s, option->fallback, NULL, NULL);
        assert(!failed);
        (void)failed;
    }
}

static void free_texts(const struct option *table, size_t count, void *base)
{
    for (size_t i = 0; i < count; i++)
        if (is_text(&table[i])) {
            free(*text_at(&table[i], base));
            *text_at(&table[i], base) = NULL;
        }
}

void settings_fini(struct settings *s)
{
    free_texts(daemon_options, SETTINGS, s);
}

void settings_merge(struct settings *to, struct settings *from)
{
    for (size_t i = 0; i < SETTINGS; i++) {
        const struct option *option = &daemon_options[i];
        if (!settings_has(from, (enum setting_id)i))
            continue;
        if (is_text(option)) {
            free(*text_at(option, to));
            *text_at(option, to) = *text_at(option, from);
            *text_at(option, from) = NULL;
        } else {
            *number_at(option, to) = *number_at(option, from);
        }
        to->set |= UINT64_C(1) << i;
    }
}

void profile_fini(struct profile *p)
{
    free_texts(profile_options, PROFILE_KEYS, p);
    free(p->name);
    p->name = NULL;
    kr_params_fini(&p->defaults);
}
