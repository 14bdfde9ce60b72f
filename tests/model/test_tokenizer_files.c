/* SPDX-License-Identifier: Apache-2.0
 *
 * A tokenizer's files when they lie: each damage is one edit of the small golden tokenizer, made in
 * memory, and must be refused with one sentence that names the file and the entry. And forms that
 * differ without being damaged must give the same ids.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "daemon/model/tokenizer_internal.h"
#include "tests/model/tokenizer_case.h"

#define GOLDEN "tests/golden/tokenizer"

enum file { VOCAB, MERGES, CONFIG };

static const char *const file_names[] = {"vocab.json", "merges.txt", "tokenizer_config.json"};

static struct file_text *file_of(struct tokenizer_files *files, enum file which)
{
    return which == VOCAB ? &files->vocab : which == MERGES ? &files->merges : &files->config;
}

static struct tokenizer_files read_golden(void)
{
    struct tokenizer_files files;

    for (int i = VOCAB; i <= CONFIG; i++) {
        struct file_text *file = file_of(&files, (enum file)i);

        file->text = case_read(GOLDEN, file_names[i], &file->length);
    }
    return files;
}

static void set_text(struct file_text *file, const char *text, size_t length)
{
    char *copy = malloc(length + 1);

    assert_non_null(copy);
    memcpy(copy, text, length);
    copy[length] = '\0';
    free(file->text);
    file->text = copy;
    file->length = length;
}

/* Replaces the first `from` (NULL: everything) by `to`. */
static void edit(struct file_text *file, const char *from, const char *to)
{
    const char *at = from ? strstr(file->text, from) : file->text;
    size_t before, skip, rest;
    char *text;

    if (at == NULL)
        fail_msg("no %s to replace", from);
    before = (size_t)(at - file->text);
    skip = from ? strlen(from) : file->length;
    rest = file->length - before - skip;
    text = malloc(before + strlen(to) + rest + 1);
    assert_non_null(text);
    memcpy(text, file->text, before);
    memcpy(text + before, to, strlen(to));
    memcpy(text + before + strlen(to), at + skip, rest);
    set_text(file, text, before + strlen(to) + rest);
    free(text);
}

static void refused(struct tokenizer_files *files, enum file which, const char *says)
{
    struct tokenizer *tokenizer = (struct tokenizer *)files;
    struct kr_err err = {0};

    if (tokenizer_build(files, &tokenizer, &err) == 0)
        fail_msg("%s was accepted, want \"%s\"", file_names[which], says);
    assert_null(tokenizer);
    assert_int_equal(err.code, KR_BAD_FILE);
    if (strncmp(err.text, file_names[which], strlen(file_names[which])) != 0 ||
        strstr(err.text, says) == NULL || strchr(err.text, '\n'))
        fail_msg("got \"%s\", want \"%s: ... %s ...\"", err.text, file_names[which], says);
    tokenizer_files_free(files);
}

struct damage {
    const char *from, *to, *says;
};

static void refuse_all(enum file which, const struct damage *damages, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct tokenizer_files files = read_golden();

        edit(file_of(&files, which), damages[i].from, damages[i].to);
        refused(&files, which, damages[i].says);
    }
}

#define REFUSE_ALL(which, damages) refuse_all(which, damages, sizeof(damages) / sizeof(damages[0]))

/* ------------------------------------------------------------------------------- vocab.json --- */

static void damaged_vocab(void **state)
{
    static const struct damage damages[] = {
        {"\"\u0120\":32", "\"\u0120\u0120\u0120\":32", "lacks \"\u0120\", the letter of byte 32"},
        {"\"\u00e9\":", "\"\u00e9\u00e9\u00e9\":", "the letter of byte 233"},
        {"\"b\":98", "\"a\":98", "\"a\" stands there twice"},
        {"\"b\":98", "\"b\":97", "\"a\" and \"b\" have the same id 97"},
        {"\"b\":98", "\"b\":-1", "\"b\" has the id -1"},
        {"\"b\":98", "\"b\":2147483648", "\"b\" has the id 2147483648"},
        {"\"b\":98", "\"b\":2147483647", "\"b\" has the id 2147483647"},
        {"\"b\":98", "\"b\":2000000000", "its 626 entries want 0 to 625"},
        {"\"b\":98", "\"b\":99999999999999999999", "at most 18 digits"},
        {"\"b\":98", "\"b\":98.0", "whole number"},
        {"\"b\":98", "\"b\":98e0", "whole number"},
        {"\"b\":98", "\"b\":098", "whole number"},
        {"\"b\":98", "\"b\":+98", "whole number"},
        {"\"b\":98", "\"b\":-", "whole number"},
        {"\"b\":98", "\"b\":\"98\"", "whole number"},
        {"\"b\":98", "\"b\":null", "whole number"},
        {"\"b\":98", "\"b\":[98]", "whole number"},
        {"\"b\":98", "\"b\":{\"b\":98}", "whole number"},
        {"\"b\":98", "\"b\" 98", "want a colon"},
        {"\"b\":98,", "\"b\":98", "want a comma"},
        {"\"b\":98", "b:98", "name in double quotes"},
        {"\"b\":98", "98", "name in double quotes"},
        {"\"b\":98", "", "name in double quotes"},
        {"\"b\":98", "\"b\n\":98", "control character"},
        {"\"b\":98", "\"\\x62\":98", "escape"},
        {"\"b\":98", "\"\\u006\":98", "escape"},
        {"\"b\":98", "\"\\u0000\":98", "NUL"},
        {"\"b\":98", "\"\\ud800\":98", "escape"},
        {"\"b\":98", "\"\\ud800\\u0062\":98", "escape"},
        {"\"b\":98", "\"\\udc00\\ud800\":98", "escape"},
        {"\"b\":98", "\"\xff\":98", "not UTF-8"},
        {"\"b\":98", "\"\xc3\":98", "not UTF-8"},
        {"\"b\":98", "\"\xed\xa0\x80\":98", "not UTF-8"},
        {"}\n", ",}\n", "name in double quotes"},
        {"}\n", "}}\n", "after the end"},
        {"}\n", "} 1\n", "after the end"},
        {"{", "[", "want an object"},
        {"{", "\xef\xbb\xbf{", "want an object"},
        {NULL, "", "want an object"},
        {NULL, " ", "want an object"},
        {NULL, "{", "name in double quotes"},
        {NULL, "{}", "has no entries"},
        {NULL, "null", "want an object"},
        {NULL, "{\"", "ends within a name"},
        {NULL, "{\"a\\", "escape"},
        {NULL, "{\"a\\u00", "escape"},
        {NULL, "{\"a\\ud800\\", "escape"},
        {NULL, "{\"a\"", "want a colon"},
        {NULL, "{\"a\":", "whole number"},
        {NULL, "{\"a\":1", "ends within its object"},
        {NULL, "{\"a\":0}", "lacks \"\u0100\", the letter of byte 0"},
    };

    (void)state;
    REFUSE_ALL(VOCAB, damages);
}

static void cut_files(void **state)
{
    (void)state;
    for (int which = VOCAB; which <= CONFIG; which++) {
        struct tokenizer_files files = read_golden();
        size_t length = file_of(&files, (enum file)which)->length;

        tokenizer_files_free(&files);
        for (size_t n = 0; n + 3 < length; n += n < 64 || n + 64 > length ? 1 : 37) {
            struct file_text *file;

            files = read_golden();
            file = file_of(&files, (enum file)which);
            set_text(file, file->text, n);
            refused(&files, (enum file)which, "");
        }
    }
}

/* A NUL within a file is no end of it. */
static void nul_in_files(void **state)
{
    (void)state;
    for (int which = VOCAB; which <= CONFIG; which++) {
        struct tokenizer_files files = read_golden();
        struct file_text *file = file_of(&files, (enum file)which);

        file->text[file->length / 2] = '\0';
        refused(&files, (enum file)which, "");
    }
}

/* ------------------------------------------------------------------------------- merges.txt --- */

static void damaged_merges(void **state)
{
    static const struct damage damages[] = {
        {"! \u00c3\n", "! \u00c3\n\n", "line 6: want two names"},
        {"! \u00c3\n", "!\n", "line 5: want two names"},
        {"! \u00c3\n", "! \u00c3 a\n", "line 5: want two names"},
        {"! \u00c3\n", "!  \u00c3\n", "line 5: want two names"},
        {"! \u00c3\n", " ! \u00c3\n", "line 5: want two names"},
        {"! \u00c3\n", "! \n", "line 5: want two names"},
        {"! \u00c3\n", "!\t\u00c3\n", "line 5: want two names"},
        {"! \u00c3\n", "! \u00c3\r\r\n", "line 5: \"\u00c3?\" is not in vocab.json"},
        {"! \u00c3\n", "! \u00c2\n", "line 5 repeats an earlier merge"},
        {"! \u00c3\n", "! zzz\n", "line 5: \"zzz\" is not in vocab.json"},
        {"! \u00c3\n", "zzz !\n", "line 5: \"zzz\" is not in vocab.json"},
        {"! \u00c3\n", "q q\n", "line 5: \"qq\" is not in vocab.json"},
        {"! \u00c3\n", "! \xff\n", "line 5"},
        {"! \u00c3\n", "", "makes no \"!\u00c3\""},
        {NULL, "", "has no merges"},
        {NULL, "\n", "line 1: want two names"},
        {NULL, "#version: 0.2\n", "has no merges"},
        {NULL, "a \u00c2\n", "is cut short or belongs to another tokenizer"},
    };

    (void)state;
    REFUSE_ALL(MERGES, damages);
}

/* -------------------------------------------------------------------- tokenizer_config.json --- */

#define TOKEN_3 "\"content\": \"<tool>\""

static void damaged_config(void **state)
{
    static const struct damage damages[] = {
        {NULL, "", "tokenizer_config.json"},
        {NULL, "[]", "no JSON object"},
        {NULL, "{}", "lacks added_tokens_decoder"},
        {"\"added_tokens_decoder\": {", "\"added\": {", "lacks added_tokens_decoder"},
        {"\"added_tokens_decoder\": {", "\"added_tokens_decoder\": [], \"x\": {",
         "added_tokens_decoder is no object"},
        {"\"added_tokens_decoder\": {", "\"added_tokens_decoder\": null, \"x\": {",
         "added_tokens_decoder is no object"},
        {"\"added_tokens_decoder\": {", "\"added_tokens_decoder\": {\"7\": 7, ",
         "7 has no content"},
        {TOKEN_3, "\"content\": \"\"", "added token 629 has an empty content"},
        {TOKEN_3, "\"content\": null", "added token 629 has no content"},
        {TOKEN_3, "\"content\": \"a\\u0000\"", "tokenizer_config.json"},
        {TOKEN_3, "\"content\": \"<|im_end|>\"", "tokens 628 and 629 are both \"<|im_end|>\""},
        {TOKEN_3, "\"content\": \"a\"", "\"a\" has the id 629, but vocab.json gives it 97"},
        {TOKEN_3, TOKEN_3 ", \"lstrip\": true, \"y\": 0", "tokenizer_config.json"},
        {"\"629\"", "\"900\"", "has the id 630, but the next id"},
        {"\"629\"", "\"0629\"", "\"0629\" in added_tokens_decoder is no id"},
        {"\"629\"", "\"-1\"", "\"-1\" in added_tokens_decoder is no id"},
        {"\"629\"", "\"x\"", "\"x\" in added_tokens_decoder is no id"},
        {"\"629\"", "\"\"", "\"\" in added_tokens_decoder is no id"},
        {"\"629\"", "\"4294967910\"", "\"4294967910\" in added_tokens_decoder is no id"},
        {"\"629\"", "\"2147483647\"", "has the id 630, but the next id"},
        {"\"629\"", "\"97\"", "added token \"<tool>\" has the id 97"},
        {"\"629\"", "\"628\"", "tokenizer_config.json"},
        {"\"lstrip\": false", "\"lstrip\": true", "added token 626 has lstrip"},
        {"\"rstrip\": false", "\"rstrip\": true", "added token 626 has rstrip"},
        {"\"single_word\": false", "\"single_word\": true", "added token 626 has single_word"},
        {"\"single_word\": false", "\"single_word\": 1", "added token 626 has single_word"},
        {"\"normalized\": false", "\"normalized\": true", "added token 626 is \"normalized\""},
        {TOKEN_3 ",\n   \"lstrip\": false,\n   \"normalized\": false", TOKEN_3,
         "added token 629 is \"normalized\""}, /* the default where special is false */
        {"\"add_bos_token\": false", "\"add_bos_token\": true", "add_bos_token is not false"},
        {"\"add_prefix_space\": false", "\"add_prefix_space\": true", "add_prefix_space"},
        {"\"add_prefix_space\": false", "\"add_prefix_space\": \"no\"", "add_prefix_space"},
        {"\"split_special_tokens\": false", "\"split_special_tokens\": true", "split_special"},
        {"\"tokenizer_class\": \"Qwen2Tokenizer\"", "\"tokenizer_class\": \"LlamaTokenizer\"",
         "tokenizer_class is \"LlamaTokenizer\", want Qwen2Tokenizer"},
        {"\"tokenizer_class\": \"Qwen2Tokenizer\"", "\"tokenizer_class\": 2", "is no string"},
        {"\"eos_token\": \"<|im_end|>\"", "\"eos_token\": \"</s>\"",
         "the eos_token \"</s>\" is not in added_tokens_decoder"},
        {"\"eos_token\": \"<|im_end|>\"", "\"eos_token\": {\"content\": \"</s>\"}",
         "the eos_token \"</s>\""},
        {"\"eos_token\": \"<|im_end|>\"", "\"eos_token\": {}", "eos_token is no token"},
        {"\"bos_token\": null", "\"bos_token\": 1", "bos_token is no token"},
        {"<|endoftext|>", "<|end|>", "the pad_token \"<|endoftext|>\" is not in"},
    };

    (void)state;
    REFUSE_ALL(CONFIG, damages);
}

static void deep_config(void **state)
{
    struct tokenizer_files files = read_golden();
    size_t n = 200000;
    char *text = malloc(n + 1);

    (void)state;
    assert_non_null(text);
    memset(text, '[', n);
    text[n] = '\0';
    edit(&files.config, "\"bos_token\": null", text);
    free(text);
    refused(&files, CONFIG, "");
}

/* --------------------------------------------------------------------- harmless differences --- */

static void same_ids(struct tokenizer_files *files)
{
    json_t *cases = case_load(GOLDEN "/cases.json"), *texts = json_object_get(cases, "texts");
    struct tokenizer *tokenizer;
    struct kr_err err;

    if (tokenizer_build(files, &tokenizer, &err) < 0)
        fail_msg("%s", err.text);
    tokenizer_files_free(files); /* nothing of them is needed any more */
    for (size_t i = 0; i < json_array_size(texts); i++)
        assert_int_equal(case_check(tokenizer, json_array_get(texts, i)), 0);
    tokenizer_close(tokenizer);
    json_decref(cases);
}

static void vocab_in_other_spellings(void **state)
{
    struct tokenizer_files files = read_golden();
    json_t *vocab = json_loads(files.vocab.text, 0, NULL);
    char *text;

    (void)state;
    text = json_dumps(vocab, JSON_ENSURE_ASCII | JSON_INDENT(2));
    set_text(&files.vocab, text, strlen(text));
    free(text);
    same_ids(&files);

    files = read_golden(); /* not in the order of the ids */
    text = json_dumps(vocab, JSON_SORT_KEYS);
    set_text(&files.vocab, text, strlen(text));
    free(text);
    same_ids(&files);

    files = read_golden();
    edit(&files.vocab, "\"/\":47", "\"\\/\":47");
    edit(&files.vocab, "{", " \t\r\n{\n");
    edit(&files.vocab, "}\n", "}\n \t");
    same_ids(&files);
    json_decref(vocab);
}

static void merges_in_other_spellings(void **state)
{
    struct tokenizer_files files = read_golden();
    struct file_text *merges = &files.merges;
    char *crlf = malloc(2 * merges->length);
    size_t n = 0;

    (void)state;
    assert_non_null(crlf);
    for (size_t i = 0; i < merges->length; i++) {
        if (merges->text[i] == '\n')
            crlf[n++] = '\r';
        crlf[n++] = merges->text[i];
    }
    set_text(merges, crlf, n);
    free(crlf);
    same_ids(&files);

    files = read_golden();
    edit(&files.merges, "#version: 0.2\n", "");
    set_text(&files.merges, files.merges.text, files.merges.length - 1); /* the last line's end */
    same_ids(&files);
}

static void config_in_other_spellings(void **state)
{
    static const struct damage harmless[] = {
        {"\"extra_special_tokens\": [", "\"extra_special_tokens\": {}, \"others\": [", NULL},
        {"\"add_prefix_space\": false", "\"add_prefix_space\": null", NULL},
        {"\"bos_token\": null,", "", NULL},
        {"\"pad_token\": \"<|endoftext|>\",", "", NULL},
        {"\"eos_token\": \"<|im_end|>\"", "\"eos_token\": {\"content\": \"<|im_end|>\"}", NULL},
        {"\"tokenizer_class\": \"Qwen2Tokenizer\"", "\"tokenizer_class\": \"Qwen2TokenizerFast\"",
         NULL},
        {"\"tokenizer_class\": \"Qwen2Tokenizer\",", "", NULL},
        {"\"lstrip\": false,", "", NULL},
        {"\"normalized\": false,", "", NULL}, /* the default of a special token */
    };

    (void)state;
    for (size_t i = 0; i < sizeof(harmless) / sizeof(harmless[0]); i++) {
        struct tokenizer_files files = read_golden();

        edit(&files.config, harmless[i].from, harmless[i].to);
        same_ids(&files);
    }
}

/* An added token may stand in the vocabulary too, under the same id. */
static void added_token_in_vocab(void **state)
{
    struct tokenizer_files files = read_golden();

    (void)state;
    edit(&files.vocab, "}\n", ",\"<|endoftext|>\":626}");
    same_ids(&files);
    files = read_golden();
    edit(&files.vocab, "}\n", ",\"<|im_end|>\":626}");
    refused(&files, CONFIG, "added token \"<|endoftext|>\" has the id 626, but");
}

/* ------------------------------------------------------------------------------- the folder --- */

static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/test_tokenizer_XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static const char *in_folder(const char *name)
{
    static char path[128];

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

static int remove_folder(void **state)
{
    (void)state;
    for (int i = VOCAB; i <= CONFIG; i++)
        remove(in_folder(file_names[i]));
    remove(in_folder("tokenizer.json"));
    return rmdir(folder);
}

static void write_file(const char *name, const char *text)
{
    FILE *f = fopen(in_folder(name), "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    assert_int_equal(fclose(f), 0);
}

static void open_refused(const char *path, const char *says)
{
    struct tokenizer *tokenizer = (struct tokenizer *)folder;
    struct kr_err err = {0};

    assert_int_equal(tokenizer_open(path, &tokenizer, &err), -1);
    assert_null(tokenizer);
    assert_int_equal(err.code, KR_BAD_FILE);
    if (strstr(err.text, says) == NULL || strchr(err.text, '\n'))
        fail_msg("got \"%s\", want \"... %s ...\"", err.text, says);
}

static void folders_that_are_none(void **state)
{
    char name[5000];

    (void)state;
    open_refused("/nonexistent/tokenizer",
                 "no such folder; a tokenizer is a folder with vocab.json");
    open_refused("", "no such folder");
    write_file("vocab.json", "{}");
    open_refused(in_folder("vocab.json"), "is a file; a tokenizer is the folder with vocab.json");
    memset(name, 'a', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    open_refused(name, "name is over 4096 bytes long");
}

static void missing_files(void **state)
{
    (void)state;
    open_refused(folder, "has no vocab.json");
    write_file("tokenizer.json", "{}");
    open_refused(folder,
                 "has tokenizer.json but no vocab.json; wanted is the older form of the same "
                 "tokenizer, vocab.json, merges.txt and tokenizer_config.json");
    write_file("vocab.json", "{}");
    open_refused(folder, "has tokenizer.json but no merges.txt");
    write_file("merges.txt", "a b\n");
    open_refused(folder, "has no tokenizer_config.json");
    write_file("tokenizer_config.json", "{}");
    open_refused(folder, "vocab.json has no entries");
}

static void files_that_are_none(void **state)
{
    (void)state;
    write_file("vocab.json", "");
    open_refused(folder, "vocab.json has 0 bytes");
    assert_int_equal(truncate(in_folder("vocab.json"), 1ll << 40), 0);
    open_refused(folder, "vocab.json has 1099511627776 bytes, want 1 to 33554432");
    remove(in_folder("vocab.json"));
    assert_int_equal(mkfifo(in_folder("vocab.json"), 0600), 0);
    open_refused(folder, "vocab.json is no regular file");
    remove(in_folder("vocab.json"));
    assert_int_equal(mkdir(in_folder("vocab.json"), 0700), 0);
    open_refused(folder, "vocab.json is no regular file");
    assert_int_equal(rmdir(in_folder("vocab.json")), 0);
    assert_int_equal(symlink("vocab.json", in_folder("vocab.json")), 0);
    open_refused(folder, "vocab.json: Too many levels of symbolic links");
}

/* Names from files are shown short and printable. */
static void names_in_messages(void **state)
{
    struct tokenizer_files files = read_golden();

    (void)state;
    edit(&files.vocab, "\"b\":98",
         "\"\\n\\u001b[31m\\u007f0123456789012345678901234567890\u4e00\u4e00\u4e00\":2000000000");
    refused(&files, VOCAB, "\"??[31m?0123456789012345678901234567890...\" has the id 2000000000");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(damaged_vocab),
        cmocka_unit_test(damaged_merges),
        cmocka_unit_test(damaged_config),
        cmocka_unit_test(deep_config),
        cmocka_unit_test(cut_files),
        cmocka_unit_test(nul_in_files),
        cmocka_unit_test(vocab_in_other_spellings),
        cmocka_unit_test(merges_in_other_spellings),
        cmocka_unit_test(config_in_other_spellings),
        cmocka_unit_test(added_token_in_vocab),
        cmocka_unit_test(names_in_messages),
        cmocka_unit_test_setup_teardown(folders_that_are_none, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(missing_files, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(files_that_are_none, make_folder, remove_folder),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
