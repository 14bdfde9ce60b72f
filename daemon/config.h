/* SPDX-License-Identifier: Apache-2.0
 *
 * kread.ini. A file is read as a whole or not at all: config_load() fills its result only when
 * every line of the file was understood, and else says FILE:LINE and what is wrong there.
 */
#ifndef KR_CONFIG_H
#define KR_CONFIG_H

#include "daemon/options.h"

struct config {
    char *file;               /* NULL: no file was read */
    struct settings settings; /* [kread]; only what is marked as set counts */
    struct kr_params generation;
    struct profile *profiles;
    size_t profile_count;
};

int config_load(const char *path, struct config *config, struct kr_err *err);
void config_fini(struct config *config);

struct profile *config_profile(const struct config *config, const char *name); /* NULL: none */

#endif
