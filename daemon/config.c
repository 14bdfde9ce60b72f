/* SPDX-License-Identifier: Apache-2.0
 *
 * What the sections of kread.ini mean. Everything goes into a fresh struct config that the caller
 * sees only if no line was refused; sections that repeat are refused, too.
 */
#include "daemon/config.h"

#include <stdlib.h>
#include <string.h>

#include "proto/settings/ini.h"

enum section { SECTION_KREAD, SECTION_GENERATION, SECTION_HTTP, SECTION_PROFILE };

struct parse {
    struct config *config;
    unsigned seen; /* 1 << enum section, to find sections that repeat */
    enum section section;
    struct profile *profile; /* in SECTION_PROFILE */
};

static bool good_name(const char *name)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                  "._-";
    return *name && name[strspn(name, letters)] == '\0';
}

static void begin_profile(struct ini *ini, struct parse *p, const char *name)
{
    struct config *config = p->config;
    if (!*name) {
        ini_refuse(ini, "the profile has no name, write [profile NAME]");
        return;
    }
    if (!good_name(name)) {
        ini_refuse(ini, "profile name \"%s\": use letters, digits, '.', '_' and '-'", name);
        return;
    }
    if (config_profile(config, name)) {
        ini_refuse(ini, "[profile %s] stands in line %d already", name,
                   config_profile(config, name)->line);
        return;
    }
    struct profile *grown =
        realloc(config->profiles, (config->profile_count + 1) * sizeof *config->profiles);
    if (!grown) {
        ini_refuse(ini, "out of memory");
        return;
    }
    config->profiles = grown;
    p->profile = &grown[config->profile_count];
    *p->profile = (struct profile){.name = strdup(name), .line = ini->line};
    if (p->profile->name)
        config->profile_count++;
    else
        ini_refuse(ini, "out of memory");
}

static void begin_section(struct ini *ini, const char *title)
{
    static const char *const names[] = {
        [SECTION_KREAD] = "kread", [SECTION_GENERATION] = "generation", [SECTION_HTTP] = "http"};
    struct parse *p = ini->reader->user;
    if (strncmp(title, "profile", 7) == 0 && (!title[7] || strchr(" \t", title[7]))) {
        p->section = SECTION_PROFILE;
        begin_profile(ini, p, title + 7 + strspn(title + 7, " \t"));
        return;
    }
    p->section = SECTION_KREAD;
    while (p->section < SECTION_PROFILE && strcmp(title, names[p->section]) != 0)
        p->section++;
    if (p->section == SECTION_PROFILE)
        ini_refuse(ini,
                   "unknown section [%s], want [kread], [generation], [http] or [profile NAME]",
                   title);
    else if (p->seen >> p->section & 1)
        ini_refuse(ini, "section [%s] stands in this file already", title);
    p->seen |= 1u << p->section;
}

/* A generation value in [generation] or in a profile. */
static void set_default(struct ini *ini, struct kr_params *params, const struct kr_field *field,
                        const char *value)
{
    enum kr_field_id id = (enum kr_field_id)(field - kr_fields);
    struct kr_err why;
    if (!field->in_config)
        ini_refuse(ini, "%s belongs to a request, it has no default in [%s]", field->name,
                   ini->title);
    else if (kr_has(params, id))
        ini_refuse(ini, "%s is set twice in [%s]", field->name, ini->title);
    else if (kr_params_parse(params, id, value, &why) < 0)
        ini_refuse(ini, "%s", why.text);
}

static void read_value(struct ini *ini, const char *name, const char *value)
{
    struct parse *p = ini->reader->user;
    size_t length = strlen(name);
    const struct option_table *table = p->section == SECTION_KREAD     ? &daemon_options
                                       : p->section == SECTION_PROFILE ? &profile_options
                                                                       : NULL;
    void *values = p->section == SECTION_KREAD ? (void *)&p->config->settings : p->profile;
    struct kr_params *defaults = p->section == SECTION_GENERATION ? &p->config->generation
                                 : p->section == SECTION_PROFILE  ? &p->profile->defaults
                                                                  : NULL;
    const struct option *option = table ? option_find(table, name, length, OPTION_FILE) : NULL;
    const struct kr_field *field = defaults ? kr_field_find(name, length) : NULL;
    if (p->section == SECTION_HTTP)
        return; /* kread-http's to read */
    if (option)
        ini_set(ini, table, option, values, value);
    else if (field)
        set_default(ini, defaults, field, value);
    else
        ini_refuse(ini, "unknown name %.60s in [%s]", name, ini->title);
}

int config_load(const char *path, struct config *config, struct kr_err *err)
{
    struct config fresh = {.file = strdup(path)};
    struct parse p = {.config = &fresh};
    const struct ini_reader reader = {.section = begin_section, .value = read_value, .user = &p};
    if (!fresh.file)
        return kr_fail(err, KR_NO_MEMORY, "no memory for the settings");
    int rc = ini_read(path, &reader, err);
    if (rc == 0)
        *config = fresh;
    else
        config_fini(&fresh);
    return rc;
}

void config_fini(struct config *config)
{
    for (size_t i = 0; i < config->profile_count; i++)
        profile_fini(&config->profiles[i]);
    free(config->profiles);
    free(config->file);
    options_fini(&daemon_options, &config->settings);
    kr_params_fini(&config->generation);
    *config = (struct config){0};
}

struct profile *config_profile(const struct config *config, const char *name)
{
    for (size_t i = 0; i < config->profile_count; i++)
        if (strcmp(config->profiles[i].name, name) == 0)
            return &config->profiles[i];
    return NULL;
}
