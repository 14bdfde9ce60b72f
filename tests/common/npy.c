/* SPDX-License-Identifier: Apache-2.0
 *
 * A .npy file is a magic number, a version, the header's length and a Python dictionary literal
 * with three keys in any order, padded with spaces, then the raw array. The dictionary is always
 * written by numpy.save, so a key is looked for by its quoted name; whatever does not read as
 * numpy writes it is an error.
 */
#include "tests/common/npy.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_HEADER = 4096 };

struct reader {
    const char *path;
    FILE *file;
    char *message;
    size_t size;
};

__attribute__((format(printf, 2, 3))) static int fail(const struct reader *r, const char *format,
                                                      ...)
{
    char why[256];
    va_list args;

    va_start(args, format);
    vsnprintf(why, sizeof(why), format, args);
    va_end(args);
    snprintf(r->message, r->size, "%s: %s", r->path, why);
    return -1;
}

/* Reads the text of the dictionary, NUL-terminated. */
static int read_header(const struct reader *r, char header[MAX_HEADER + 1])
{
    unsigned char start[8], len[4] = {0};
    size_t len_bytes, length;

    if (fread(start, 1, 8, r->file) != 8 || memcmp(start, "\x93NUMPY", 6) != 0)
        return fail(r, "is no .npy file");
    if (start[6] < 1 || start[6] > 3)
        return fail(r, "has .npy version %d, want 1 to 3", start[6]);
    len_bytes = start[6] == 1 ? 2 : 4;
    if (fread(len, 1, len_bytes, r->file) != len_bytes)
        return fail(r, "ends within its header");
    length = len[0] | (size_t)len[1] << 8 | (size_t)len[2] << 16 | (size_t)len[3] << 24;
    if (length > MAX_HEADER)
        return fail(r, "has a header of %zu bytes, want %d or fewer", length, MAX_HEADER);
    if (fread(header, 1, length, r->file) != length)
        return fail(r, "ends within its header");
    header[length] = '\0';
    return 0;
}

/* What follows 'key': in the dictionary, NULL if it is not there. */
static const char *value_of(const char *header, const char *key)
{
    char quoted[32];
    const char *at;

    snprintf(quoted, sizeof(quoted), "'%s':", key);
    at = strstr(header, quoted);
    return at ? at + strlen(quoted) + strspn(at + strlen(quoted), " ") : NULL;
}

static int read_shape(const struct reader *r, const char *at, struct npy *a)
{
    a->count = 1;
    if (*at++ != '(')
        return fail(r, "has a shape that is no tuple");
    while (*(at += strspn(at, " ,")) != ')') {
        char *end;
        int64_t dim;

        if (a->rank == NPY_MAX_RANK)
            return fail(r, "has more than %d dimensions", NPY_MAX_RANK);
        errno = 0;
        dim = strtoll(at, &end, 10);
        if (end == at || errno != 0 || dim < 0 ||
            (dim > 0 && a->count > SIZE_MAX / 8 / (size_t)dim))
            return fail(r, "has a bad shape");
        a->dim[a->rank++] = dim;
        a->count *= (size_t)dim;
        at = end;
    }
    return 0;
}

static int read_data(const struct reader *r, bool is_float, struct npy *a)
{
    void *data = malloc(a->count ? a->count * 4 : 1);

    if (data == NULL)
        return fail(r, "needs %zu bytes, which are not free", a->count * 4);
    if (is_float)
        a->f32 = data;
    else
        a->i32 = data;
    if (fread(data, 4, a->count, r->file) != a->count)
        return fail(r, "ends within its data");
    if (fgetc(r->file) != EOF)
        return fail(r, "goes on after its data");
    return 0;
}

static int read_file(const struct reader *r, struct npy *a)
{
    char header[MAX_HEADER + 1];
    const char *descr, *order, *shape;
    bool is_float;

    if (read_header(r, header) < 0)
        return -1;
    descr = value_of(header, "descr");
    order = value_of(header, "fortran_order");
    shape = value_of(header, "shape");
    if (descr == NULL || order == NULL || shape == NULL)
        return fail(r, "lacks descr, fortran_order or shape in its header");
    is_float = strncmp(descr, "'<f4'", 5) == 0;
    if (!is_float && strncmp(descr, "'<i4'", 5) != 0)
        return fail(r, "holds %.8s, want '<f4' or '<i4'", descr);
    if (read_shape(r, shape, a) < 0)
        return -1;
    if (strncmp(order, "False", 5) != 0 && a->rank > 1)
        return fail(r, "is in Fortran order, want C order");
    return read_data(r, is_float, a);
}

int npy_read(const char *path, struct npy *a, char *message, size_t size)
{
    struct reader r = {path, fopen(path, "rb"), message, size};
    int rc;

    memset(a, 0, sizeof(*a));
    if (r.file == NULL)
        return fail(&r, "%s", strerror(errno));
    rc = read_file(&r, a);
    fclose(r.file);
    if (rc < 0)
        npy_free(a);
    return rc;
}

void npy_free(struct npy *a)
{
    if (a == NULL)
        return;
    free(a->f32);
    free(a->i32);
    memset(a, 0, sizeof(*a));
}
