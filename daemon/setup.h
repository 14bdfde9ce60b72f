/* SPDX-License-Identifier: Apache-2.0
 *
 * What the daemon runs with: the command line over the config file over the defaults, and the
 * profile that they choose.
 */
#ifndef KR_SETUP_H
#define KR_SETUP_H

#include "daemon/config.h"
#include "daemon/engine/engine.h"

struct setup {
    struct settings settings;      /* effective */
    struct config config, demo;    /* the user's file; the demo's, where the demo is asked for */
    const struct profile *profile; /* NULL: none chosen, and `missing` says why */
    struct kr_err missing;
    char *socket;         /* where to listen unless systemd passes a socket */
    char *state_dir;      /* NULL: nothing says where it could be */
    bool state_dir_named; /* by the settings or by systemd, not our own guess */
};

/* Reads the config file and merges. `argv` is emptied. A missing profile is no failure here: ask
 * setup_profile(). */
int setup_open(struct setup *setup, struct settings *argv, struct kr_err *err);
void setup_close(struct setup *setup);

/* The chosen profile as the engine wants it; texts stay the setup's. */
int setup_profile(const struct setup *setup, struct engine_config *engine, struct kr_err *err);

/* --check-config: what setup_open() does not refuse but a start would. Profiles that are not chosen
 * are looked at as well. Files that aren't there are told on `notes` and refused by nobody yet. */
int setup_check(const struct setup *setup, FILE *notes, struct kr_err *err);

/* The effective settings, in the form of a config file: first [kread], then the chosen profile. */
void setup_print(const struct setup *setup, FILE *out);

/* The profile alone: a line a value, the same lines in the same order for every profile. */
void setup_print_profile(const struct setup *setup, FILE *out);

#endif
