/* SPDX-License-Identifier: Apache-2.0
 *
 * From a user's text to the ids that the text encoder is given: Krea 2's chat template, and the
 * rule of each dialect for texts that are too long.
 */
#ifndef KR_ENGINE_PROMPT_H
#define KR_ENGINE_PROMPT_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/model/tokenizer.h"
#include "proto/err.h"
#include "proto/fields.h"

struct prompt {
    int32_t *ids; /* the whole template with the text in it */
    size_t count;
    size_t skip; /* leading ids whose hidden states are dropped */
    size_t cut;  /* ids at the end of the text that did not fit and are not among ids */
};

/* The template as a certain tokenizer sees it. Immutable; any thread. */
struct prompt_template {
    const struct tokenizer *tokenizer; /* borrowed */
    size_t prefix_count;               /* ids of the prefix */
    size_t user_turn;                  /* which of them opens the user's turn */
    int32_t prefix_end;                /* the last of them */
    int32_t *suffix;
    size_t suffix_count;
};

/* Refuses a tokenizer without the template's special tokens; `name` is its folder in messages. */
int prompt_template_init(struct prompt_template *t, const struct tokenizer *tokenizer,
                         const char *name, struct kr_err *err);
void prompt_template_fini(struct prompt_template *t);

/* How many ids a text may have. */
size_t prompt_limit(enum kr_dialect dialect);

int prompt_build(struct prompt *prompt, const struct prompt_template *t, enum kr_dialect dialect,
                 const char *text, struct kr_err *err);
void prompt_fini(struct prompt *prompt);

#endif
