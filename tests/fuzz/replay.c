/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs a fuzzer's entry point over committed inputs: files named on the command line and all files
 * of folders. What a fuzzer once found stays found, without clang.
 */
#include <assert.h>
#include <dirent.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (f == NULL) {
        perror(path);
        return 1;
    }
    struct stat st;
    assert(fstat(fileno(f), &st) == 0);
    size_t size = (size_t)st.st_size;
    uint8_t *data = malloc(size + !size); /* exact, so that a sanitizer sees a read beyond it */
    assert(data != NULL && fread(data, 1, size, f) == size);
    fclose(f);
    LLVMFuzzerTestOneInput(data, size);
    free(data);
    return 0;
}

static int replay(const char *path)
{
    DIR *folder = opendir(path);
    if (folder == NULL)
        return replay_file(path);
    int failed = 0, files = 0;
    for (struct dirent *e; (e = readdir(folder)) != NULL;) {
        char name[PATH_MAX];
        if (e->d_name[0] == '.')
            continue;
        snprintf(name, sizeof name, "%s/%s", path, e->d_name);
        failed |= replay_file(name);
        files++;
    }
    closedir(folder);
    if (files == 0)
        fprintf(stderr, "%s: no inputs\n", path);
    return failed || files == 0;
}

int main(int argc, char **argv)
{
    int failed = argc < 2;
    for (int i = 1; i < argc; i++)
        failed |= replay(argv[i]);
    return failed;
}
