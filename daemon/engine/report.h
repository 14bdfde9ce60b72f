/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KR_ENGINE_REPORT_H
#define KR_ENGINE_REPORT_H

#include <stdio.h>

#include "daemon/engine/family.h"
#include "daemon/engine/jsonout.h"

/* What was found in a profile's files. config NULL: without paths. */
struct report {
    const struct engine_config *config;
    const struct family *family;
    const char *profile, *variant;
    const struct parts *parts;
    const void *model;
};

void report_json(const struct report *r, struct jsonout *j); /* one object */
void report_text(const struct report *r, FILE *out);

#endif
