/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the settings: the input is a kread.ini, read, merged and checked as a start does it, with
 * an environment that names nothing.
 *
 * A refusal must be one sentence that names the file, and of a bad line, the first one: the lines
 * before it are a file that is taken. What is taken must lie within the tables' ranges, and what
 * --check-config prints of it must be a config file that means the same.
 */
#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/setup.h"
#include "proto/utf8.h"

enum { LONGEST_LINE = 198 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Whether this machine has the device is no question of the file. */
int engine_check_device(enum engine_device device, struct kr_err *err)
{
    (void)device;
    (void)err;
    return 0;
}

static void write_file(int fd, const void *data, size_t size)
{
    assert(ftruncate(fd, 0) == 0);
    assert(pwrite(fd, data, size, 0) == (ssize_t)size);
}

static void check_sentence(const struct kr_err *err)
{
    assert(err->code == KR_BAD_CONFIG && err->text[0]);
    assert(kr_utf8_valid(err->text, strlen(err->text)));
    for (const unsigned char *c = (const unsigned char *)err->text; *c; c++)
        assert(*c >= 0x20 && *c != 0x7f);
}

static void check_refusal(const char *path, int fd, const uint8_t *data, size_t size,
                          const struct kr_err *err)
{
    struct config config;
    struct kr_err other;
    size_t before = 0;
    check_sentence(err);
    assert(strncmp(err->text, path, strlen(path)) == 0);
    int line = atoi(err->text + strlen(path) + 1);
    for (int i = 1; i < line; i++) {
        const uint8_t *end = memchr(data + before, '\n', size - before);
        assert(end != NULL);
        before = (size_t)(end - data) + 1;
    }
    assert(line >= 1 && before < size);
    write_file(fd, data, before);
    assert(config_load(path, &config, &other) == 0);
    config_fini(&config);
}

/* `all`: every value holds something, else only those that are set. */
static void check_values(const struct option_table *rows, const void *base, bool all)
{
    for (size_t i = 0; i < rows->count; i++) {
        const struct option *table = rows->rows;
        const void *at = (const char *)base + table[i].offset;
        bool is_set = option_given(base, (unsigned)i);
        assert(!is_set || table[i].places & OPTION_FILE);
        if (table[i].type == OPTION_TEXT || table[i].type == OPTION_PATH) {
            const char *text = *(char *const *)at;
            assert((text != NULL) == is_set && (!text || *text));
            assert(!text || kr_utf8_valid(text, strlen(text)));
            assert(!text || table[i].type == OPTION_TEXT || *text == '/');
        } else if (is_set || (all && table[i].fallback)) {
            int64_t value = *(const int64_t *)at, choices = 0;
            while (table[i].choices && table[i].choices[choices])
                choices++;
            int64_t max = table[i].type == OPTION_CHOICE ? choices - 1
                          : table[i].type == OPTION_INT  ? table[i].max
                                                         : 1;
            assert(value >= table[i].min && value <= max);
        }
    }
}

static void check_config(const struct config *config)
{
    for (size_t i = 0; i < config->profile_count; i++) {
        const struct profile *p = &config->profiles[i];
        assert(config_profile(config, p->name) == p && p->line > 0);
        check_values(&profile_options, p, false);
        for (int id = 0; id < KR_FIELDS; id++)
            assert(kr_fields[id].in_config ||
                   !(kr_has(&p->defaults, id) || kr_has(&config->generation, id)));
    }
}

/* What --check-config prints; the caller frees. */
static char *printed(const struct setup *setup, size_t *size)
{
    char *text;
    FILE *out = open_memstream(&text, size);
    assert(out);
    setup_print(setup, out);
    assert(fclose(out) == 0);
    return text;
}

static bool lines_fit(const char *text)
{
    size_t length;
    for (; *text; text += length + (text[length] != 0)) {
        length = strcspn(text, "\n");
        if (length > LONGEST_LINE && *text != ';')
            return false;
    }
    return true;
}

static void check_printed(char *path, int fd, const struct setup *setup)
{
    struct settings argv = {.config = path};
    struct setup again;
    struct kr_err err;
    size_t size, size_again;
    char *text = printed(setup, &size);
    write_file(fd, text, size);
    if (!lines_fit(text)) { /* a path got longer by its folder */
        assert(setup_open(&again, &argv, &err) < 0);
        check_sentence(&err);
    } else {
        assert(setup_open(&again, &argv, &err) == 0);
        char *text_again = printed(&again, &size_again);
        assert(size == size_again && memcmp(text, text_again, size) == 0);
        free(text_again);
        setup_close(&again);
    }
    free(text);
}

static void check_start(char *path, int fd, const struct setup *setup)
{
    struct kr_err err;
    char *notes;
    size_t size;
    assert(setup->socket && *setup->socket);
    check_values(&daemon_options, &setup->settings, true);
    FILE *out = open_memstream(&notes, &size);
    assert(out);
    int rc = setup_check(setup, out, &err);
    assert(fclose(out) == 0);
    free(notes);
    if (rc < 0)
        check_sentence(&err);
    else
        check_printed(path, fd, setup);
}

static int forget_environment(char *path, size_t size)
{
    static const char *const names[] = {"HOME", "KREAD_SOCKET", "STATE_DIRECTORY", "XDG_STATE_HOME",
                                        "XDG_RUNTIME_DIR"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unsetenv(names[i]);
    setenv("KREAD_DEMO_DIR", "/nonexistent", 1);
    int fd = memfd_create("kread.ini", 0);
    assert(fd >= 0);
    snprintf(path, size, "/proc/self/fd/%d", fd);
    return fd;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char path[64];
    static int fd = -1;
    struct setup setup;
    struct kr_err err;
    if (fd < 0)
        fd = forget_environment(path, sizeof path);
    struct settings argv = {.config = path};
    write_file(fd, data, size);
    if (setup_open(&setup, &argv, &err) < 0) {
        check_refusal(path, fd, data, size, &err);
        return 0;
    }
    check_config(&setup.config);
    check_start(path, fd, &setup);
    setup_close(&setup);
    return 0;
}
