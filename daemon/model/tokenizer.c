/* SPDX-License-Identifier: Apache-2.0
 *
 * Text to ids. The added tokens are found in the text as it was given, the leftmost first and of
 * those the longest; what lies between them is normalized, cut into pieces by the pattern, and each
 * piece becomes ids by merging its bytes. A tokenizer is immutable once built; a call of
 * tokenizer_encode keeps what it needs in a struct encoder of its own.
 */
#include "daemon/model/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/model/tokenizer_internal.h"
#include "proto/utf8.h"

/* -------------------------------------------------------------------------------- building ---- */

static int no_memory(struct kr_err *err)
{
    return kr_fail(err, KR_NO_MEMORY, "no memory for the tokenizer");
}

static int check_all_made(const struct vocab *vocab, const struct added *added, const bool *made,
                          struct kr_err *err)
{
    for (size_t id = 0; id < vocab->count; id++) {
        const struct vocab_entry *e = &vocab->entries[id];
        const struct added_token *token = made[id] ? NULL : added_match(added, e->name, e->length);

        if (!made[id] && (token == NULL || token->length != e->length))
            return kr_fail(err, KR_BAD_FILE,
                           "merges.txt: makes no \"%s\", which vocab.json has as %zu; it is cut "
                           "short or belongs to another tokenizer",
                           quote(e->name, e->length).text, id);
    }
    return 0;
}

static int build(struct tokenizer *t, struct tokenizer_files *files, struct vocab *vocab,
                 bool **made, struct kr_err *err)
{
    if (vocab_read(vocab, &files->vocab, err) < 0)
        return -1;
    *made = calloc(vocab->count, sizeof(**made));
    if (*made == NULL)
        return no_memory(err);
    if (merges_read(&t->bpe, vocab, &files->merges, *made, err) < 0 ||
        added_read(&t->added, vocab, &files->config, err) < 0 ||
        check_all_made(vocab, &t->added, *made, err) < 0)
        return -1;
    t->vocabulary = vocab->count;
    for (size_t i = 0; i < t->added.count; i++)
        if ((size_t)t->added.tokens[i].id >= t->vocabulary)
            t->vocabulary = (size_t)t->added.tokens[i].id + 1;
    t->splitter = splitter_new();
    return t->splitter ? 0 : no_memory(err);
}

int tokenizer_build(struct tokenizer_files *files, struct tokenizer **tokenizer, struct kr_err *err)
{
    struct vocab vocab = {0};
    bool *made = NULL;
    int rc;

    *tokenizer = calloc(1, sizeof(**tokenizer));
    if (*tokenizer == NULL)
        return no_memory(err);
    rc = build(*tokenizer, files, &vocab, &made, err);
    vocab_fini(&vocab);
    free(made);
    if (rc < 0) {
        tokenizer_close(*tokenizer);
        *tokenizer = NULL;
    }
    return rc;
}

int tokenizer_open(const char *folder, struct tokenizer **tokenizer, struct kr_err *err)
{
    struct tokenizer_files files;
    int rc;

    *tokenizer = NULL;
    if (tokenizer_files_read(folder, &files, err) < 0)
        return -1;
    rc = tokenizer_build(&files, tokenizer, err);
    tokenizer_files_free(&files);
    return rc;
}

void tokenizer_close(struct tokenizer *tokenizer)
{
    if (tokenizer == NULL)
        return;
    bpe_fini(&tokenizer->bpe);
    added_fini(&tokenizer->added);
    splitter_free(tokenizer->splitter);
    free(tokenizer);
}

size_t tokenizer_vocabulary(const struct tokenizer *tokenizer)
{
    return tokenizer->vocabulary;
}

int32_t tokenizer_added(const struct tokenizer *tokenizer, const char *content)
{
    size_t length = strlen(content);
    const struct added_token *token = added_match(&tokenizer->added, content, length);

    return token && token->length == length ? token->id : -1;
}

/* -------------------------------------------------------------------------------- encoding ---- */

struct encoder {
    const struct tokenizer *tokenizer;
    struct pieces *pieces;
    struct bpe_work work;
    struct ids ids;
    struct kr_err *err;
};

static int encode_pieces(struct encoder *e, const char *text, size_t length)
{
    size_t start = 0;

    while (start < length) {
        size_t end = pieces_end(e->pieces, text, length, start);

        if (end <= start)
            return kr_fail(e->err, KR_BAD_REQUEST,
                           "the text is too involved to be cut into words at its byte %zu", start);
        if (bpe_encode(&e->tokenizer->bpe, &e->work, text + start, end - start, &e->ids) < 0)
            return no_memory(e->err);
        start = end;
    }
    return 0;
}

/* A stretch of text without added tokens. */
static int encode_plain(struct encoder *e, const char *text, size_t length)
{
    char *normal;
    size_t normal_length;
    int rc;

    if (text_normalize(text, length, &normal, &normal_length) < 0)
        return no_memory(e->err);
    if (normal == NULL)
        return encode_pieces(e, text, length);
    rc = encode_pieces(e, normal, normal_length);
    free(normal);
    return rc;
}

static int encode_all(struct encoder *e, const char *text, size_t length)
{
    size_t plain = 0, at = 0; /* where the plain stretch began, and where it is now */

    while (at < length) {
        const struct added_token *token = added_match(&e->tokenizer->added, text + at, length - at);

        if (token == NULL) {
            at++;
            continue;
        }
        if (encode_plain(e, text + plain, at - plain) < 0)
            return -1;
        if (ids_push(&e->ids, token->id) < 0)
            return no_memory(e->err);
        at += token->length;
        plain = at;
    }
    return encode_plain(e, text + plain, at - plain);
}

int tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t length,
                     int32_t **ids, size_t *count, struct kr_err *err)
{
    struct encoder e = {.tokenizer = tokenizer, .err = err};
    int rc;

    *ids = NULL;
    *count = 0;
    if (length > TOKENIZER_MAX_TEXT)
        return kr_fail(err, KR_BAD_REQUEST, "the text is %zu bytes long, at most %d can be read",
                       length, TOKENIZER_MAX_TEXT);
    if (!kr_utf8_valid(text, length))
        return kr_fail(err, KR_BAD_REQUEST, "the text is no UTF-8 at its byte %zu",
                       kr_utf8_prefix(text, length));
    e.pieces = pieces_new(tokenizer->splitter);
    rc = e.pieces && ids_reserve(&e.ids, 64) == 0 ? encode_all(&e, text, length) : no_memory(err);
    pieces_free(e.pieces);
    bpe_work_fini(&e.work);
    if (rc < 0) {
        free(e.ids.id);
        return -1;
    }
    *ids = e.ids.id;
    *count = e.ids.count;
    return 0;
}
