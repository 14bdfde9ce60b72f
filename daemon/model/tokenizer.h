/* SPDX-License-Identifier: Apache-2.0
 *
 * Qwen's byte-level BPE tokenizer: added tokens are split off first, then NFC, the pattern, bytes
 * and merges by rank. Source of the behaviour: transformers' Qwen2Tokenizer.
 */
#ifndef KR_TOKENIZER_H
#define KR_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#include "proto/err.h"

struct tokenizer;

enum { TOKENIZER_MAX_TEXT = 4 << 20 }; /* bytes; far beyond any prompt */

/* Reads vocab.json, merges.txt and tokenizer_config.json of a folder. The result is immutable and
 * may be used by any number of threads. */
int tokenizer_open(const char *folder, struct tokenizer **tokenizer, struct kr_err *err);
void tokenizer_close(struct tokenizer *tokenizer);

/* The ids of text[length] (UTF-8; NULs are text like any other; no text, no ids). The caller frees
 * *ids. Refused is what is no UTF-8 or longer than TOKENIZER_MAX_TEXT. */
int tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t length,
                     int32_t **ids, size_t *count, struct kr_err *err);

size_t tokenizer_vocabulary(const struct tokenizer *tokenizer); /* largest id + 1 */

/* The id of an added token ("<|im_start|>"), -1 if there is none. */
int32_t tokenizer_added(const struct tokenizer *tokenizer, const char *content);

#endif
