/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tokenizer's files share. A tokenizer is built from the texts of three files; the
 * vocabulary is needed for that only, since encoding needs no more than the ids of the bytes, the
 * merges and the added tokens.
 */
#ifndef KR_TOKENIZER_INTERNAL_H
#define KR_TOKENIZER_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/model/tokenizer.h"
#include "daemon/model/tokenizer_bpe.h"
#include "daemon/model/tokenizer_text.h"

/* -------------------------------------------------------------------------------- the files --- */

struct file_text {
    char *text; /* length bytes and a NUL */
    size_t length;
};

struct tokenizer_files {
    struct file_text vocab, merges, config;
};

int tokenizer_files_read(const char *folder, struct tokenizer_files *files, struct kr_err *err);
void tokenizer_files_free(struct tokenizer_files *files);

/* A string of a file for a message: printable and short. */
struct quoted {
    char text[64];
};

struct quoted quote(const char *string, size_t length);

/* --------------------------------------------------------------------------- the vocabulary --- */

struct vocab_entry {
    const char *name; /* in the file's text, not terminated */
    uint32_t length;
    int32_t id;
};

struct vocab {
    struct vocab_entry *entries; /* by id: 0 to count - 1 */
    size_t count, room;
    struct vocab_slot *slots;
    uint32_t mask;
};

/* Reads vocab.json; text is changed and must outlive the vocabulary. */
int vocab_read(struct vocab *vocab, struct file_text *text, struct kr_err *err);
void vocab_fini(struct vocab *vocab);
int32_t vocab_find(const struct vocab *vocab, const char *name, size_t length); /* -1: none */

/* Fills bpe from the vocabulary's byte letters and merges.txt; marks in made[id] what they make. */
int merges_read(struct bpe *bpe, const struct vocab *vocab, const struct file_text *text,
                bool *made, struct kr_err *err);

/* ------------------------------------------------------------------------- the added tokens --- */

struct added_token {
    char *content;
    size_t length;
    int32_t id;
};

struct added {
    struct added_token *tokens; /* by the bytes of their content */
    size_t count;
    bool begins[256]; /* whether a token begins with that byte */
};

/* Reads tokenizer_config.json; refuses whatever else in it would change the ids. */
int added_read(struct added *added, const struct vocab *vocab, const struct file_text *text,
               struct kr_err *err);
void added_fini(struct added *added);

/* The longest added token that text[length] begins with, NULL if there is none. */
const struct added_token *added_match(const struct added *added, const char *text, size_t length);

/* -------------------------------------------------------------------------------- the whole --- */

struct tokenizer {
    struct bpe bpe;
    struct added added;
    struct splitter *splitter;
    size_t vocabulary;
};

/* Builds a tokenizer from texts, which it changes and needs no longer when it returns. */
int tokenizer_build(struct tokenizer_files *files, struct tokenizer **tokenizer,
                    struct kr_err *err);

#endif
