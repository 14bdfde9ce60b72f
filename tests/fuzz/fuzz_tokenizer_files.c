/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the reading of a tokenizer's files. The first byte says which of the three (v, m, c) the
 * rest of the input is; the other two are the small golden tokenizer's. With any other first byte,
 * the rest is all three with a NUL between them. What is accepted must be able to encode; what is
 * refused must be so with one sentence.
 */
#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/tokenizer_internal.h"

#define GOLDEN "tests/golden/tokenizer/"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct file_text copy(const void *text, size_t length)
{
    struct file_text file = {malloc(length + 1), length};

    assert(file.text);
    memcpy(file.text, text, length);
    file.text[length] = '\0';
    return file;
}

static struct file_text golden(const char *path)
{
    char text[16384];
    FILE *f = fopen(path, "rb");
    size_t length;

    assert(f);
    length = fread(text, 1, sizeof(text), f);
    assert(length < sizeof(text));
    fclose(f);
    return copy(text, length);
}

/* Takes one text off the input, up to a NUL or its end. */
static struct file_text take(const uint8_t **data, size_t *size)
{
    const uint8_t *nul = *size ? memchr(*data, 0, *size) : NULL;
    size_t length = nul ? (size_t)(nul - *data) : *size;
    struct file_text file = copy(*data, length);

    *data += length + (nul != NULL);
    *size -= length + (nul != NULL);
    return file;
}

static struct tokenizer_files read_input(const uint8_t *data, size_t size)
{
    char which = size ? (char)*data : 'v';
    struct tokenizer_files files;

    data += size > 0;
    size -= size > 0;
    if (which != 'v' && which != 'm' && which != 'c') {
        files.vocab = take(&data, &size);
        files.merges = take(&data, &size);
        files.config = copy(data, size);
        return files;
    }
    files.vocab = which == 'v' ? copy(data, size) : golden(GOLDEN "vocab.json");
    files.merges = which == 'm' ? copy(data, size) : golden(GOLDEN "merges.txt");
    files.config = which == 'c' ? copy(data, size) : golden(GOLDEN "tokenizer_config.json");
    return files;
}

static void encode(const struct tokenizer *tokenizer)
{
    static const char text[] = "it's a r\u00e9d <|im_start|> circle, 12\n\n above <tool><|im_end|>";
    struct kr_err err;
    int32_t *ids;
    size_t count;

    assert(tokenizer_encode(tokenizer, text, sizeof(text) - 1, &ids, &count, &err) == 0);
    assert(count > 0 && count < sizeof(text));
    for (size_t i = 0; i < count; i++)
        assert(ids[i] >= 0 && (size_t)ids[i] < tokenizer_vocabulary(tokenizer));
    free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tokenizer_files files = read_input(data, size);
    struct tokenizer *tokenizer;
    struct kr_err err = {0};

    if (tokenizer_build(&files, &tokenizer, &err) == 0) {
        tokenizer_files_free(&files);
        encode(tokenizer);
        tokenizer_close(tokenizer);
        return 0;
    }
    assert(tokenizer == NULL && err.code == KR_BAD_FILE);
    assert(err.text[0] && strchr(err.text, '\n') == NULL);
    tokenizer_files_free(&files);
    return 0;
}
