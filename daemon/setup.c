/* SPDX-License-Identifier: Apache-2.0
 *
 * The demo profile is the embedded default: where no config file was named or found, and wherever
 * `demo` is asked for by name and the user's file has no profile of that name. It is an ordinary
 * config file, demo.ini, that lies beside the demo's model files, so nothing in the program knows
 * its size or steps. It is looked for in $KREAD_DEMO_DIR and nowhere else if that is set; else, as
 * seen from the executable, in ../share/kread/demo, where `make install` puts it, and in ../demo,
 * where it is in a build tree.
 */
#include "daemon/setup.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/server/access.h"
#include "daemon/server/server.h"
#include "proto/settings/ini.h"

static const char demo_name[] = "demo";

/* --------------------------------------------------------------------------------- the demo --- */

/* FOLDER/NAME in new memory. */
static int below(const char *folder, const char *name, char **path, struct kr_err *err)
{
    if (asprintf(path, "%s/%s", folder, name) >= 0)
        return 0;
    *path = NULL;
    return kr_fail(err, KR_NO_MEMORY, "no memory for the settings");
}

/* FOLDER/demo.ini; *path stays NULL where it is not. */
static int demo_in(const char *folder, char **path, struct kr_err *err)
{
    if (below(folder, "demo.ini", path, err) < 0)
        return -1;
    if (access(*path, R_OK) < 0) {
        free(*path);
        *path = NULL;
    }
    return 0;
}

static int demo_find(char **path, struct kr_err *err)
{
    static const char *const places[] = {"/../share/kread/demo", "/../demo"};
    const char *named = getenv("KREAD_DEMO_DIR");
    if (named && *named)
        return demo_in(named, path, err);
    char folder[4096];
    ssize_t n = readlink("/proc/self/exe", folder, sizeof folder - sizeof "/../share/kread/demo");
    char *slash = n > 0 ? memrchr(folder, '/', (size_t)n) : NULL;
    int rc = 0;
    for (size_t i = 0; rc == 0 && slash && !*path && i < sizeof places / sizeof *places; i++) {
        strcpy(slash, places[i]);
        rc = demo_in(folder, path, err);
    }
    return rc;
}

/* -1: there is a demo but its file is bad. Without a demo nothing happens. */
static int demo_load(struct setup *setup, struct kr_err *err)
{
    char *path = NULL;
    int rc = demo_find(&path, err);
    if (!path)
        return rc;
    rc = config_load(path, &setup->demo, err);
    free(path);
    if (rc == 0)
        setup->profile = config_profile(&setup->demo, demo_name);
    return rc;
}

/* --------------------------------------------------------------------------------- choosing --- */

static const char how_to[] =
    "write a kread.ini with a [profile NAME] and default_profile = NAME (see kread.ini in kread's "
    "documentation), or install the demo model";

/* Says in setup->missing why there is no profile `name` (NULL: none was asked for). */
static void explain_missing(struct setup *setup, const char *name)
{
    const struct config *config = &setup->config;
    char list[200] = "";
    for (size_t i = 0; i < config->profile_count; i++) {
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s%.60s", i ? ", " : "",
                 config->profiles[i].name);
    }
    struct kr_err *err = &setup->missing;
    const char *demo = getenv("KREAD_DEMO_DIR");
    bool demo_wanted = name ? strcmp(name, demo_name) == 0 : !config->file;
    if (demo_wanted && demo && *demo)
        kr_fail(err, KR_BAD_CONFIG,
                "KREAD_DEMO_DIR is %.160s, but there is no demo.ini in it: correct or unset it",
                demo);
    else if (!config->file && !name)
        kr_fail(err, KR_BAD_CONFIG, "no profile is configured: %s", how_to);
    else if (!config->file)
        kr_fail(err, KR_BAD_CONFIG, "no config file was found, so there is no profile %.60s: %s",
                name, how_to);
    else if (name)
        kr_fail(err, KR_BAD_CONFIG, "%.120s has no profile %.60s%s%s", config->file, name,
                *list ? ", only " : " nor any other", list);
    else if (!*list)
        kr_fail(err, KR_BAD_CONFIG, "%.120s has no [profile NAME]: %s", config->file, how_to);
    else
        kr_fail(err, KR_BAD_CONFIG,
                "no profile is chosen: give --profile, or default_profile in %.120s (it has %s)",
                config->file, list);
}

static int choose_profile(struct setup *setup, struct kr_err *err)
{
    const struct settings *s = &setup->settings;
    const char *name = s->profile ? s->profile : s->default_profile;
    if (name)
        setup->profile = config_profile(&setup->config, name);
    bool demo = name ? strcmp(name, demo_name) == 0 : !setup->config.file;
    if (!setup->profile && demo && demo_load(setup, err) < 0)
        return -1;
    if (!setup->profile)
        explain_missing(setup, name);
    return 0;
}

static int copy(const char *text, size_t length, char **result, struct kr_err *err)
{
    *result = strndup(text, length);
    return *result ? 0 : kr_fail(err, KR_NO_MEMORY, "no memory for the settings");
}

/* Where to listen. $KREAD_SOCKET stands between the command line and the file. */
static int choose_socket(struct setup *setup, const char *on_argv, struct kr_err *err)
{
    const char *variable = getenv("KREAD_SOCKET"), *runtime = getenv("XDG_RUNTIME_DIR");
    const char *named = on_argv                 ? on_argv
                        : variable && *variable ? variable
                                                : setup->config.settings.socket;
    if (!named && runtime && *runtime == '/')
        return below(runtime, "kread.sock", &setup->socket, err);
    named = named ? named : "/run/kread/kread.sock";
    return copy(named, strlen(named), &setup->socket, err);
}

/* Where detached jobs are kept; it stays NULL where nothing tells. */
static int choose_state_dir(struct setup *setup, struct kr_err *err)
{
    const char *named = setup->settings.state_dir, *systemd = getenv("STATE_DIRECTORY");
    const char *xdg = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    setup->state_dir_named = named || (systemd && *systemd == '/');
    if (setup->state_dir_named) /* the first of systemd's list */
        return copy(named ? named : systemd, named ? strlen(named) : strcspn(systemd, ":"),
                    &setup->state_dir, err);
    if (xdg && *xdg == '/')
        return below(xdg, "kread", &setup->state_dir, err);
    return home && *home == '/' ? below(home, ".local/state/kread", &setup->state_dir, err) : 0;
}

int setup_open(struct setup *setup, struct settings *argv, struct kr_err *err)
{
    *setup = (struct setup){0};
    char *file = NULL;
    if (options_defaults(&daemon_options, &setup->settings, err) < 0 ||
        ini_find(argv->config, &file, err) < 0 ||
        (file && config_load(file, &setup->config, err) < 0)) {
        free(file);
        setup_close(setup);
        return -1;
    }
    free(file);
    int rc = choose_socket(setup, argv->socket, err);
    options_merge(&daemon_options, &setup->settings, &setup->config.settings);
    options_merge(&daemon_options, &setup->settings, argv);
    if (rc < 0 || choose_state_dir(setup, err) < 0 || choose_profile(setup, err) < 0) {
        setup_close(setup);
        return -1;
    }
    return 0;
}

void setup_close(struct setup *setup)
{
    options_fini(&daemon_options, &setup->settings);
    config_fini(&setup->config);
    config_fini(&setup->demo);
    free(setup->socket);
    free(setup->state_dir);
    setup->socket = setup->state_dir = NULL;
}

/* The file that the chosen profile stands in. */
static const struct config *profile_file(const struct setup *setup)
{
    return config_profile(&setup->config, setup->profile->name) == setup->profile ? &setup->config
                                                                                  : &setup->demo;
}

/* Says what a profile lacks; `also` marks keys that the command line gave. */
static int complete(const char *file, const struct profile *p, uint64_t also, struct kr_err *err)
{
    for (int key = 0; key < PROFILE_KEYS; key++)
        if (!profile_options.rows[key].fallback && !((p->set | also) >> key & 1))
            return kr_fail(err, KR_BAD_CONFIG, "%.200s:%d: [profile %.60s] has no %s", file,
                           p->line, p->name, profile_options.rows[key].name);
    return 0;
}

static uint64_t overridden(const struct settings *s)
{
    return (s->diffusion_model ? 1u << P_DIFFUSION_MODEL : 0u) |
           (s->text_encoder ? 1u << P_TEXT_ENCODER : 0u) | (s->vae ? 1u << P_VAE : 0u) |
           (s->tokenizer ? 1u << P_TOKENIZER : 0u);
}

int setup_profile(const struct setup *setup, struct engine_config *engine, struct kr_err *err)
{
    const struct settings *s = &setup->settings;
    const struct profile *p = setup->profile;
    if (!p) {
        *err = setup->missing;
        return -1;
    }
    if (complete(profile_file(setup)->file, p, overridden(s), err) < 0)
        return -1;
    *engine = (struct engine_config){
        .profile = p->name,
        .architecture = profile_options.rows[P_ARCHITECTURE].choices[p->architecture],
        .variant = profile_options.rows[P_VARIANT].choices[p->variant],
        .diffusion_model = s->diffusion_model ? s->diffusion_model : p->diffusion_model,
        .text_encoder = s->text_encoder ? s->text_encoder : p->text_encoder,
        .vae = s->vae ? s->vae : p->vae,
        .tokenizer = s->tokenizer ? s->tokenizer : p->tokenizer,
        .text_encoder_without_vision = p->without_vision != 0,
        .profile_defaults = p->defaults,
        .generation_defaults = setup->config.generation,
        .device = (enum engine_device)s->device,
        .residency = (enum engine_residency)s->residency,
        .no_fp8_products = !s->fp8_products,
        .threads = (int)s->threads,
        .trace = s->trace,
        .max_pixels = s->max_pixels,
        .max_steps = s->max_steps,
        .max_count = s->max_count,
    };
    return 0;
}

/* --------------------------------------------------------------------------- --check-config --- */

static void note_missing(FILE *notes, const char *what, const char *path)
{
    if (path && access(path, R_OK) != 0)
        fprintf(notes, "kread: note: %s %s: %s\n", what, path, strerror(errno));
}

int setup_check(const struct setup *setup, FILE *notes, struct kr_err *err)
{
    const struct config *config = &setup->config;
    const struct settings *s = &setup->settings;
    struct engine_config engine;
    struct access access;
    if (setup_profile(setup, &engine, err) < 0 || engine_check_device(engine.device, err) < 0 ||
        listener_check(setup->socket, err) < 0 ||
        access_init(&access, s->allow_users, s->allow_groups, err) < 0)
        return -1;
    access_fini(&access);
    for (size_t i = 0; i < config->profile_count; i++)
        if (&config->profiles[i] != setup->profile &&
            complete(config->file, &config->profiles[i], 0, err) < 0)
            return -1;
    note_missing(notes, "diffusion_model", engine.diffusion_model);
    note_missing(notes, "text_encoder", engine.text_encoder);
    note_missing(notes, "vae", engine.vae);
    note_missing(notes, "tokenizer", engine.tokenizer);
    note_missing(notes, "output_dir", s->output_dir);
    return 0;
}

/* A generation value as the profile and [generation] give it, in this order. */
static void print_field(FILE *out, enum kr_field_id id, const struct kr_params *first,
                        const struct kr_params *second)
{
    char value[512];
    const struct kr_params *p = kr_has(first, id) ? first : second;
    if (!kr_has(p, id))
        fprintf(out, "; %s is not set: %s\n", kr_fields[id].name, kr_fields[id].fallback);
    else if (kr_params_format(p, id, value, sizeof value) < (int)sizeof value)
        fprintf(out, "%s = %s\n", kr_fields[id].name, value);
    else
        fprintf(out, "; %s is set, to a longer text than fits here\n", kr_fields[id].name);
}

void setup_print_profile(const struct setup *setup, FILE *out)
{
    struct engine_config e;
    if (setup_profile(setup, &e, &(struct kr_err){0}) < 0)
        return;
    fprintf(out, "[profile %s]\n", e.profile);
    fprintf(out, "architecture = %s\nvariant = %s\n", e.architecture, e.variant);
    fprintf(out, "diffusion_model = %s\ntext_encoder = %s\n", e.diffusion_model, e.text_encoder);
    fprintf(out, "vae = %s\ntokenizer = %s\n", e.vae, e.tokenizer);
    option_print(out, &profile_options.rows[P_WITHOUT_VISION], setup->profile);
    for (int id = 0; id < KR_FIELDS; id++)
        if (kr_fields[id].in_config)
            print_field(out, (enum kr_field_id)id, &e.profile_defaults, &e.generation_defaults);
}

void setup_print(const struct setup *setup, FILE *out)
{
    const struct settings *s = &setup->settings;
    const struct config *config = &setup->config;
    fprintf(out, "; config file: %s\n[kread]\n", config->file ? config->file : "none");
    for (int i = 0; i < SETTINGS; i++)
        if (i == S_SOCKET)
            fprintf(out, "socket = %s\n", setup->socket);
        else if (i == S_STATE_DIR && setup->state_dir)
            fprintf(out, "state_dir = %s\n", setup->state_dir);
        else if (i == S_DEFAULT_PROFILE)
            fprintf(out, "default_profile = %s\n", setup->profile ? setup->profile->name : "");
        else if (daemon_options.rows[i].places & OPTION_FILE)
            option_print(out, &daemon_options.rows[i], s);
    if (!setup->profile)
        return;
    fprintf(out, "\n; from %s\n", profile_file(setup)->file);
    setup_print_profile(setup, out);
}
