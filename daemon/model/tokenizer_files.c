/* SPDX-License-Identifier: Apache-2.0
 *
 * The three files of a tokenizer's folder into memory. A folder is named by whoever configures the
 * daemon, so what it may be instead (a file, a folder with the other form of tokenizer, a pipe) is
 * told apart here.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/model/tokenizer_internal.h"

enum { MAX_FILE = 32 << 20 };

#define WANTED "vocab.json, merges.txt and tokenizer_config.json"

/* Says what is wrong with a folder that lacks a file. */
static int missing(const char *folder, const char *name, struct kr_err *err)
{
    char other[PATH_MAX];
    struct stat st;

    if (stat(folder, &st) < 0)
        return kr_fail(err, KR_BAD_FILE, "%s: no such folder; a tokenizer is a folder with " WANTED,
                       folder);
    if (!S_ISDIR(st.st_mode))
        return kr_fail(err, KR_BAD_FILE, "%s is a file; a tokenizer is the folder with " WANTED,
                       folder);
    snprintf(other, sizeof(other), "%s/tokenizer.json", folder);
    if (strcmp(name, "tokenizer_config.json") != 0 && access(other, F_OK) == 0)
        return kr_fail(err, KR_BAD_FILE,
                       "%s: has tokenizer.json but no %s; wanted is the older form of the same "
                       "tokenizer, " WANTED,
                       folder, name);
    return kr_fail(err, KR_BAD_FILE, "%s: has no %s; a tokenizer is a folder with " WANTED, folder,
                   name);
}

static int read_open_file(int fd, const char *path, struct file_text *file, struct kr_err *err)
{
    struct stat st;
    size_t size;
    ssize_t n = 1;

    if (fstat(fd, &st) < 0)
        return kr_fail(err, KR_BAD_FILE, "%s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return kr_fail(err, KR_BAD_FILE, "%s is no regular file", path);
    if (st.st_size == 0 || st.st_size > MAX_FILE)
        return kr_fail(err, KR_BAD_FILE, "%s has %lld bytes, want 1 to %d", path,
                       (long long)st.st_size, MAX_FILE);
    size = (size_t)st.st_size;
    file->text = malloc(size + 1);
    if (file->text == NULL)
        return kr_fail(err, KR_NO_MEMORY, "%s: no memory for its %zu bytes", path, size);
    while (file->length < size && n > 0) {
        n = read(fd, file->text + file->length, size - file->length);
        if (n < 0)
            return kr_fail(err, KR_BAD_FILE, "%s: %s", path, strerror(errno));
        file->length += (size_t)n;
    }
    file->text[file->length] = '\0';
    return 0;
}

static int read_file(const char *folder, const char *name, struct file_text *file,
                     struct kr_err *err)
{
    char path[PATH_MAX];
    int fd, rc;

    if (snprintf(path, sizeof(path), "%s/%s", folder, name) >= (int)sizeof(path))
        return kr_fail(err, KR_BAD_FILE, "the tokenizer folder's name is over %zu bytes long",
                       sizeof(path));
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR))
        return missing(folder, name, err);
    if (fd < 0)
        return kr_fail(err, KR_BAD_FILE, "%s: %s", path, strerror(errno));
    rc = read_open_file(fd, path, file, err);
    close(fd);
    return rc;
}

int tokenizer_files_read(const char *folder, struct tokenizer_files *files, struct kr_err *err)
{
    memset(files, 0, sizeof(*files));
    if (read_file(folder, "vocab.json", &files->vocab, err) == 0 &&
        read_file(folder, "merges.txt", &files->merges, err) == 0 &&
        read_file(folder, "tokenizer_config.json", &files->config, err) == 0)
        return 0;
    tokenizer_files_free(files);
    return -1;
}

void tokenizer_files_free(struct tokenizer_files *files)
{
    free(files->vocab.text);
    free(files->merges.text);
    free(files->config.text);
    memset(files, 0, sizeof(*files));
}

struct quoted quote(const char *string, size_t length)
{
    struct quoted q;
    size_t n = length > 40 ? 40 : length;

    while (n < length && n > 0 && ((unsigned char)string[n] & 0xC0) == 0x80)
        n--; /* not within a character */
    for (size_t i = 0; i < n; i++)
        q.text[i] = (unsigned char)string[i] < 0x20 || string[i] == 0x7F ? '?' : string[i];
    strcpy(q.text + n, n < length ? "..." : "");
    return q;
}
