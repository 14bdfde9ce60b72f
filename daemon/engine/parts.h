/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KR_ENGINE_PARTS_H
#define KR_ENGINE_PARTS_H

#include "daemon/engine/family.h"

extern const char *const part_names[PARTS]; /* "text encoder": in sentences */
extern const char *const part_keys[PARTS];  /* "text_encoder": in the config and in JSON */

const char *part_path(const struct engine_config *config, enum part part);

/* What can be said about a profile without touching a file. */
int parts_check(const struct engine_config *config, const struct family **family,
                const char **variant, struct kr_err *err);

/* Headers and tokenizer tables. On failure nothing stays open. */
int parts_open(struct parts *parts, const struct family *family, const struct engine_config *config,
               struct kr_err *err);
void parts_close(struct parts *parts);

#endif
