/* SPDX-License-Identifier: Apache-2.0
 *
 * What takes effect is decided by the table of settings (OPTION_LIVE). A setting that needs a
 * restart keeps its running value here, so that every later reload says so again until somebody
 * restarts the daemon. A profile is loaded at start: all of it needs a restart, and the comparison
 * is that of its two print-outs, line by line.
 */
#include "daemon/reload.h"

#include <stdlib.h>
#include <string.h>

enum { VALUE_SIZE = 300 };

/* 1: it differs and needs a restart. */
static int reload_option(const struct option *option, struct settings *running,
                         struct settings *fresh, void (*tell)(bool, const char *))
{
    char was[VALUE_SIZE], is[VALUE_SIZE], sentence[2 * VALUE_SIZE + 120];
    option_format(option, running, was, sizeof was);
    option_format(option, fresh, is, sizeof is);
    if (strcmp(was, is) == 0)
        return 0;
    bool live = option->places & OPTION_LIVE;
    const char *from = *was ? was : "not set", *to = *is ? is : "not set";
    if (live) {
        option_swap(option, running, fresh);
        snprintf(sentence, sizeof sentence, "%s is %s now; it was %s", option->name, to, from);
    } else {
        snprintf(sentence, sizeof sentence, "%s stays %s until kread is restarted; then it is %s",
                 option->name, from, to);
    }
    tell(live, sentence);
    return !live;
}

/* Takes the next line out of *text; NULL at the end. */
static char *next_line(char **text)
{
    return *text && **text ? strsep(text, "\n") : NULL;
}

static char *profile_text(const struct setup *setup)
{
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    if (!out)
        return NULL;
    setup_print_profile(setup, out);
    return fclose(out) == 0 ? text : NULL;
}

/* The number of lines in which the profiles differ. */
static int reload_profile(const struct setup *running, const struct setup *fresh,
                          void (*tell)(bool, const char *))
{
    char *old = profile_text(running), *new = profile_text(fresh), *a = old, *b = new;
    char sentence[2 * VALUE_SIZE];
    int changed = 0;
    for (char *was = next_line(&a), *is = next_line(&b); was && is;
         was = next_line(&a), is = next_line(&b)) {
        if (strcmp(was, is) == 0)
            continue;
        snprintf(sentence, sizeof sentence, "profile %.60s: \"%.*s\" needs a restart of kread",
                 running->profile->name, VALUE_SIZE, is + (strncmp(is, "; ", 2) == 0 ? 2 : 0));
        tell(false, sentence);
        changed++;
    }
    free(old);
    free(new);
    return changed;
}

int reload_settings(struct setup *running, struct setup *fresh,
                    void (*tell)(bool took_effect, const char *sentence))
{
    int restart = 0;
    for (const struct option *o = daemon_options.rows; o < daemon_options.rows + SETTINGS; o++)
        if (o != &daemon_options.rows[S_SOCKET] && o->places & OPTION_FILE)
            restart += reload_option(o, &running->settings, &fresh->settings, tell);
    if (strcmp(running->socket, fresh->socket) != 0) {
        char sentence[VALUE_SIZE];
        snprintf(sentence, sizeof sentence, "socket = %.200s needs a restart of kread",
                 fresh->socket);
        tell(false, sentence);
        restart++;
    }
    return restart + reload_profile(running, fresh, tell);
}
