/* SPDX-License-Identifier: Apache-2.0
 *
 * tokenizer_config.json: the added tokens, and settings that would change what a text's ids are.
 * Of those, the values that Qwen's tokenizers have are supported; any other is refused by name,
 * since to ignore it would give other ids than the reference gives. What only other programs use
 * (chat templates, lists of special tokens, lengths) is not looked at.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/model/tokenizer_internal.h"
#include "daemon/weights/json_node.h"

#define FILE_NAME "tokenizer_config.json"

/* ------------------------------------------------------------------------------ settings ---- */

static int check_class(const struct json_node *config, struct kr_err *err)
{
    const struct json_node *node = json_node_member(config, "tokenizer_class");
    const char *name = json_node_string(node);

    if (json_node_kind(node) == JSON_NONE)
        return 0;
    if (name == NULL)
        return kr_fail(err, KR_BAD_FILE, FILE_NAME ": tokenizer_class is no string");
    if (strcmp(name, "Qwen2Tokenizer") != 0 && strcmp(name, "Qwen2TokenizerFast") != 0)
        return kr_fail(err, KR_BAD_FILE,
                       FILE_NAME ": tokenizer_class is \"%s\", want Qwen2Tokenizer",
                       quote(name, strlen(name)).text);
    return 0;
}

static int check_flags(const struct json_node *config, struct kr_err *err)
{
    static const char *const flags[] = {"add_prefix_space", "add_bos_token", "add_eos_token",
                                        "split_special_tokens"};

    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++) {
        const struct json_node *node = json_node_member(config, flags[i]);
        enum json_kind kind = json_node_kind(node);

        if (kind != JSON_NONE && kind != JSON_KIND_NULL && json_node_bool(node, true))
            return kr_fail(err, KR_BAD_FILE, FILE_NAME ": %s is not false, which is not supported",
                           flags[i]);
    }
    return 0;
}

static const struct added_token *find_content(const struct added *added, const char *content)
{
    for (size_t i = 0; i < added->count; i++)
        if (strcmp(added->tokens[i].content, content) == 0)
            return &added->tokens[i];
    return NULL;
}

/* The reference adds the named special tokens if they are not added tokens already, its defaults
 * among them, under ids that no model was trained with. */
static int check_named(const struct added *added, const struct json_node *config,
                       struct kr_err *err)
{
    static const struct {
        const char *name, *otherwise;
    } named[] = {{"bos_token", NULL},
                 {"eos_token", "<|endoftext|>"},
                 {"pad_token", "<|endoftext|>"},
                 {"unk_token", "<|endoftext|>"}};

    for (size_t i = 0; i < sizeof(named) / sizeof(named[0]); i++) {
        const struct json_node *node = json_node_member(config, named[i].name);
        const char *content = json_node_kind(node) == JSON_KIND_OBJECT
                                  ? json_node_string(json_node_member(node, "content"))
                                  : json_node_string(node);

        if (json_node_kind(node) == JSON_NONE)
            content = named[i].otherwise;
        else if (json_node_kind(node) != JSON_KIND_NULL && content == NULL)
            return kr_fail(err, KR_BAD_FILE, FILE_NAME ": %s is no token", named[i].name);
        if (content && find_content(added, content) == NULL)
            return kr_fail(err, KR_BAD_FILE,
                           FILE_NAME ": the %s \"%s\"%s is not in added_tokens_decoder",
                           named[i].name, quote(content, strlen(content)).text,
                           json_node_kind(node) == JSON_NONE ? " (the default)" : "");
    }
    return 0;
}

/* ------------------------------------------------------------------------- the added tokens --- */

/* The id that an object's name spells, in the one way that JSON spells it; -1 if it is none. */
static int32_t read_id(const char *name)
{
    int64_t id = 0;

    if (name[0] == '\0' || (name[0] == '0' && name[1] != '\0'))
        return -1;
    for (; *name; name++) {
        if (*name < '0' || *name > '9' || id > INT32_MAX)
            return -1;
        id = id * 10 + (*name - '0');
    }
    return id > INT32_MAX ? -1 : (int32_t)id;
}

/* A flag that is not a boolean counts as set, and so is refused. */
static bool is_set(const struct json_node *node, const char *flag, bool otherwise)
{
    node = json_node_member(node, flag);
    return json_node_bool(node, json_node_kind(node) == JSON_NONE ? otherwise : true);
}

static int check_token_flags(const char *id, const struct json_node *node, struct kr_err *err)
{
    static const char *const flags[] = {"lstrip", "rstrip", "single_word"};
    bool special = json_node_bool(json_node_member(node, "special"), false);

    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++)
        if (is_set(node, flags[i], false))
            return kr_fail(err, KR_BAD_FILE,
                           FILE_NAME ": added token %s has %s, which is not supported", id,
                           flags[i]);
    if (is_set(node, "normalized", !special))
        return kr_fail(err, KR_BAD_FILE,
                       FILE_NAME ": added token %s is \"normalized\", which is not supported", id);
    return 0;
}

static int read_token(struct added *added, const char *name, const struct json_node *node,
                      struct kr_err *err)
{
    const char *content = json_node_string(json_node_member(node, "content"));
    struct added_token *token = &added->tokens[added->count];
    struct quoted id = quote(name, strlen(name));

    token->id = read_id(name);
    if (token->id < 0)
        return kr_fail(err, KR_BAD_FILE, FILE_NAME ": \"%s\" in added_tokens_decoder is no id",
                       id.text);
    if (content == NULL || content[0] == '\0')
        return kr_fail(err, KR_BAD_FILE, FILE_NAME ": added token %s has %s content", id.text,
                       content ? "an empty" : "no");
    if (check_token_flags(id.text, node, err) < 0)
        return -1;
    token->length = strlen(content);
    token->content = strdup(content);
    if (token->content == NULL)
        return kr_fail(err, KR_NO_MEMORY, "no memory for the tokenizer");
    added->count++;
    return 0;
}

static int read_tokens(struct added *added, const struct json_node *config, struct kr_err *err)
{
    const struct json_node *tokens = json_node_member(config, "added_tokens_decoder"), *node;
    const char *name;
    void *place = NULL;
    size_t count = 0;

    if (json_node_kind(tokens) != JSON_KIND_OBJECT)
        return kr_fail(err, KR_BAD_FILE, FILE_NAME ": %s",
                       tokens ? "added_tokens_decoder is no object of ids and tokens"
                              : "lacks added_tokens_decoder, the ids of <|im_start|> and the like");
    while (json_node_each(tokens, &place, &name, &node))
        count++;
    added->tokens = calloc(count + 1, sizeof(*added->tokens));
    if (added->tokens == NULL)
        return kr_fail(err, KR_NO_MEMORY, "no memory for the tokenizer");
    for (place = NULL; json_node_each(tokens, &place, &name, &node);)
        if (read_token(added, name, node, err) < 0)
            return -1;
    return 0;
}

static int by_id(const void *a, const void *b)
{
    int32_t x = ((const struct added_token *)a)->id, y = ((const struct added_token *)b)->id;

    return (x > y) - (x < y);
}

static int by_content(const void *a, const void *b)
{
    return strcmp(((const struct added_token *)a)->content,
                  ((const struct added_token *)b)->content);
}

/* An added token has the id that the vocabulary gives it, or else the next one behind it: that is
 * how the reference numbers them. */
static int check_ids(const struct added *added, const struct vocab *vocab, struct kr_err *err)
{
    int32_t next = (int32_t)vocab->count;

    for (size_t i = 0; i < added->count; i++) {
        const struct added_token *t = &added->tokens[i];
        int32_t known = vocab_find(vocab, t->content, t->length);
        int32_t want = known >= 0 ? known : next++;

        if (t->id != want)
            return kr_fail(err, KR_BAD_FILE,
                           FILE_NAME ": added token \"%s\" has the id %d, but %s %d",
                           quote(t->content, t->length).text, t->id,
                           known >= 0 ? "vocab.json gives it"
                                      : "the next id behind vocab.json and the tokens before it is",
                           want);
    }
    return 0;
}

static int sort_tokens(struct added *added, struct kr_err *err)
{
    qsort(added->tokens, added->count, sizeof(*added->tokens), by_content);
    for (size_t i = 0; i < added->count; i++) {
        const struct added_token *t = &added->tokens[i];

        if (i > 0 && strcmp(t[-1].content, t->content) == 0)
            return kr_fail(err, KR_BAD_FILE, FILE_NAME ": added tokens %d and %d are both \"%s\"",
                           t[-1].id, t->id, quote(t->content, t->length).text);
        added->begins[(unsigned char)t->content[0]] = true;
    }
    return 0;
}

int added_read(struct added *added, const struct vocab *vocab, const struct file_text *text,
               struct kr_err *err)
{
    struct json_node *config;
    int rc;

    if (json_node_parse(FILE_NAME, text->text, text->length, &config, err) < 0)
        return -1;
    rc = check_class(config, err) < 0 || check_flags(config, err) < 0 ||
                 read_tokens(added, config, err) < 0 || sort_tokens(added, err) < 0 ||
                 check_named(added, config, err) < 0
             ? -1
             : 0;
    json_node_free(config);
    if (rc < 0)
        return -1;
    qsort(added->tokens, added->count, sizeof(*added->tokens), by_id);
    rc = check_ids(added, vocab, err);
    qsort(added->tokens, added->count, sizeof(*added->tokens), by_content);
    return rc;
}

void added_fini(struct added *added)
{
    for (size_t i = 0; i < added->count; i++)
        free(added->tokens[i].content);
    free(added->tokens);
    memset(added, 0, sizeof(*added));
}

/* The first of the tokens from low to high whose byte at `depth` is `byte` or more. */
static size_t first_from(const struct added *added, size_t low, size_t high, size_t depth, int byte)
{
    while (low < high) {
        size_t middle = (low + high) / 2;

        if ((unsigned char)added->tokens[middle].content[depth] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

const struct added_token *added_match(const struct added *added, const char *text, size_t length)
{
    const struct added_token *longest = NULL;
    size_t low = 0, high = added->count;

    if (length == 0 || !added->begins[(unsigned char)text[0]])
        return NULL;
    /* The tokens from low to high are those that begin with the first `depth` bytes of text. */
    for (size_t depth = 0; low < high; depth++) {
        int byte;

        if (added->tokens[low].length == depth)
            longest = &added->tokens[low++];
        if (depth == length)
            break;
        byte = (unsigned char)text[depth];
        low = first_from(added, low, high, depth, byte);
        high = first_from(added, low, high, depth, byte + 1);
    }
    return longest;
}
