/* SPDX-License-Identifier: Apache-2.0
 *
 * The template is Qwen-Image's: a system turn that asks for a description, the user's turn with the
 * text, the opening of the assistant's turn. The hidden states of everything before the text are
 * dropped afterwards, so the encoder sees the instruction and the diffusion model does not.
 *
 * Prefix and text are tokenized as one string, because a text that begins with line ends merges
 * with the prefix's own; the suffix begins with a special token and can't merge.
 *
 * Dialect krea (the official program and diffusers): prefix and text are cut to 512 - 5 ids beyond
 * the prefix, then the suffix follows whole, and exactly the prefix's number of ids is dropped.
 * (The official program also pads to that length and masks the pads, which changes nothing.)
 *
 * Dialect comfyui: that program cuts nothing. A bound of ours keeps the memory of a job within
 * reason: 4096 ids. It drops the prefix by looking for the user's turn, and does not find its line
 * end when that has merged with the text's; then the opening of the turn stays. It also treats
 * backslashes, "embedding:" and a text that opens its own turn specially, which we do not: here a
 * prompt is always just the text.
 */
#include "daemon/engine/prompt.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static const char prefix[] =
    "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, "
    "quantity, "
    "text, spatial relationships of the objects and background:<|im_end|>\n<|im_start|>user\n";
static const char suffix[] = "<|im_end|>\n<|im_start|>assistant\n";

enum { KREA_LENGTH = 512, KREA_SUFFIX = 5, COMFYUI_LENGTH = 4096 };

size_t prompt_limit(enum kr_dialect dialect)
{
    return dialect == KR_DIALECT_KREA ? KREA_LENGTH - KREA_SUFFIX : COMFYUI_LENGTH;
}

static int require_tokens(const struct tokenizer *tokenizer, const char *name, struct kr_err *err)
{
    static const char *const tokens[] = {"<|im_start|>", "<|im_end|>"};

    for (int i = 0; i < 2; i++)
        if (tokenizer_added(tokenizer, tokens[i]) < 0)
            return kr_fail(err, KR_BAD_FILE,
                           "%s/tokenizer_config.json: %s is not among the added tokens, and the "
                           "prompt template needs it; use the tokenizer of Qwen2.5 or Qwen3",
                           name, tokens[i]);
    return 0;
}

/* What is kept of the prefix's ids. */
static void read_prefix(struct prompt_template *t, const int32_t *ids, size_t count)
{
    int32_t start = tokenizer_added(t->tokenizer, "<|im_start|>");

    assert(count > 0);
    t->prefix_count = count;
    t->prefix_end = ids[count - 1];
    for (size_t i = 0; i < count; i++)
        if (ids[i] == start)
            t->user_turn = i; /* the last one */
}

int prompt_template_init(struct prompt_template *t, const struct tokenizer *tokenizer,
                         const char *name, struct kr_err *err)
{
    int32_t *ids;
    size_t count;

    *t = (struct prompt_template){.tokenizer = tokenizer};
    if (require_tokens(tokenizer, name, err) < 0 ||
        tokenizer_encode(tokenizer, prefix, strlen(prefix), &ids, &count, err) < 0)
        return -1;
    read_prefix(t, ids, count);
    free(ids);
    return tokenizer_encode(tokenizer, suffix, strlen(suffix), &t->suffix, &t->suffix_count, err);
}

void prompt_template_fini(struct prompt_template *t)
{
    free(t->suffix);
    t->suffix = NULL;
}

static size_t skipped(const struct prompt_template *t, enum kr_dialect dialect, const int32_t *ids)
{
    if (dialect == KR_DIALECT_COMFYUI && ids[t->prefix_count - 1] != t->prefix_end)
        return t->user_turn;
    return t->prefix_count;
}

/* ids[count] of prefix and text, with room for the suffix behind them, becomes the prompt's. */
static void finish(struct prompt *prompt, const struct prompt_template *t, enum kr_dialect dialect,
                   int32_t *ids, size_t count)
{
    size_t most = t->prefix_count + prompt_limit(dialect);

    assert(count >= t->prefix_count);
    prompt->cut = count > most ? count - most : 0;
    prompt->skip = skipped(t, dialect, ids);
    prompt->count = count - prompt->cut;
    memcpy(ids + prompt->count, t->suffix, t->suffix_count * sizeof(*ids));
    prompt->count += t->suffix_count;
    prompt->ids = ids;
}

int prompt_build(struct prompt *prompt, const struct prompt_template *t, enum kr_dialect dialect,
                 const char *text, struct kr_err *err)
{
    size_t length = strlen(prefix) + strlen(text), count;
    char *whole = malloc(length + 1);
    int32_t *ids, *grown;

    *prompt = (struct prompt){0};
    if (!whole)
        return kr_fail(err, KR_NO_MEMORY, "no memory for the prompt");
    strcpy(stpcpy(whole, prefix), text);
    if (tokenizer_encode(t->tokenizer, whole, length, &ids, &count, err) < 0) {
        free(whole);
        return -1;
    }
    free(whole);
    grown = realloc(ids, (count + t->suffix_count) * sizeof(*ids));
    if (!grown) {
        free(ids);
        return kr_fail(err, KR_NO_MEMORY, "no memory for the prompt");
    }
    finish(prompt, t, dialect, grown, count);
    return 0;
}

void prompt_fini(struct prompt *prompt)
{
    free(prompt->ids);
    *prompt = (struct prompt){0};
}
