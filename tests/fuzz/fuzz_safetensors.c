/* SPDX-License-Identifier: Apache-2.0
 *
 * Arbitrary bytes as a model file: opened, asked, bound (check only). An input that starts with '{'
 * is a header up to its first NUL with the data behind that, so that mutations need not keep the
 * length right; anything else is the file itself.
 *
 * Whatever comes out must hold: a refusal is one printable sentence, and every tensor that is
 * handed out can be read to its last byte.
 */
#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/weights/weights.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const prefixes[] = {
    "model.diffusion_model.", "diffusion_model.", "model.language_model.", "model.", "", NULL};

static void check_sentence(const struct kr_err *err)
{
    const unsigned char *c = (const unsigned char *)err->text;

    assert(err->code > KR_OK && err->code < KR_CODES);
    assert(*c);
    for (; *c; c++)
        assert(*c >= 0x20 && *c != 0x7f);
}

static void touch(const void *data, size_t size)
{
    static volatile unsigned sum;
    const unsigned char *bytes = data;
    size_t i;

    for (i = 0; data && i < size; i++)
        sum = sum + bytes[i];
}

static void bind(const struct weights *w)
{
    struct kr_err err;
    struct kr_weight a = {0}, c = {0};
    struct kr_conv conv = {0};
    struct kr_tensor t;
    struct binder b;
    int64_t dim[8];
    int rank;

    if (binder_init(&b, w, NULL, &err) < 0)
        return;
    bind_vector(&b, &t, 1, 0, 0, "probe");
    rank = weights_shape(w, "a.weight", dim);
    if (rank >= 2)
        bind_linear(&b, &a, dim[0], dim[1], "a");
    if (weights_shape(w, "c.weight", dim) >= 0)
        bind_linear_bias(&b, &c, 2, 1, "c");
    rank = weights_shape(w, "conv.weight", dim);
    if (rank >= 4)
        bind_conv(&b, &conv, dim[0], dim[1], dim[rank - 1], "conv");
    if (weights_shape(w, "v", dim) >= 0)
        bind_vector(&b, &t, 1, 1, 1, "v");
    bind_ignore(&b, "encoder.");
    if (binder_end(&b) < 0)
        check_sentence(&err);
    touch(a.data, (size_t)(a.out * a.in) * kr_dtype_size(a.dtype));
    touch(c.data, (size_t)(c.out * c.in) * kr_dtype_size(c.dtype));
    touch(conv.data,
          (size_t)(conv.out * conv.in * conv.kt * conv.kh * conv.kw) * kr_dtype_size(conv.dtype));
}

static void write_all(int fd, const void *bytes, size_t size, off_t at)
{
    assert(pwrite(fd, bytes, size, at) == (ssize_t)size);
}

static void write_input(int fd, const uint8_t *data, size_t size)
{
    size_t header = size ? strnlen((const char *)data, size) : 0;
    uint64_t length = header;

    assert(ftruncate(fd, 0) == 0);
    if (size == 0 || data[0] != '{') {
        write_all(fd, data, size, 0);
        return;
    }
    write_all(fd, &length, sizeof length, 0);
    write_all(fd, data, header, sizeof length);
    if (header + 1 < size)
        write_all(fd, data + header + 1, size - header - 1, (off_t)(sizeof length + header));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int fd = -1;
    static char path[64];
    struct weights *w;
    struct kr_err err;
    char text[64];

    if (fd < 0) {
        fd = memfd_create("model", 0);
        assert(fd >= 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    write_input(fd, data, size);
    if (weights_open(path, "diffusion model", prefixes, "probe", &w, &err) < 0) {
        check_sentence(&err);
        return 0;
    }
    weights_summary(w, text, sizeof text);
    bind(w);
    weights_close(w);
    return 0;
}
