/* SPDX-License-Identifier: Apache-2.0
 *
 * .npy version 1.0: a magic, the length of a Python dictionary that says type and shape, padded so
 * that the data starts at a multiple of 64, and the data. Little-endian, like every machine that
 * this runs on. Whoever turned the trace on wants all of it, so a file that can't be written fails
 * the job.
 */
#include "daemon/engine/trace.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int make_dir(const char *path, struct kr_err *err)
{
    if (mkdir(path, 0777) < 0 && errno != EEXIST)
        return kr_fail(err, KR_IO, "the trace folder %s can't be made: %s", path, strerror(errno));
    return 0;
}

static void forget_steps(const struct trace *trace, const char *name, int64_t from)
{
    char path[4096];

    do
        snprintf(path, sizeof(path), "%s/%s_%02lld.npy", trace->dir, name, (long long)from++);
    while (unlink(path) == 0);
}

static void forget_old(const struct trace *trace, int64_t steps)
{
    char path[4096];

    forget_steps(trace, "velocity", steps);
    forget_steps(trace, "latent", steps);
    snprintf(path, sizeof(path), "%s/conditioning_negative.npy", trace->dir);
    unlink(path);
}

int trace_open(struct trace *trace, const char *root, uint64_t job, int image, int64_t steps,
               struct kr_err *err)
{
    char path[4096];
    int n = snprintf(path, sizeof(path), "%s/%llu", root, (unsigned long long)job);

    trace->dir = NULL;
    if (n >= (int)sizeof(path) - 64)
        return kr_fail(err, KR_IO, "the trace folder's name %.100s... is too long", root);
    if (make_dir(root, err) < 0 || make_dir(path, err) < 0)
        return -1;
    if (image >= 0) {
        snprintf(path + n, sizeof(path) - (size_t)n, "/%d", image);
        if (make_dir(path, err) < 0)
            return -1;
    }
    trace->dir = strdup(path);
    if (!trace->dir)
        return kr_fail(err, KR_NO_MEMORY, "no memory for the trace");
    forget_old(trace, steps);
    return 0;
}

void trace_close(struct trace *trace)
{
    free(trace->dir);
    trace->dir = NULL;
}

/* Fills header[] and returns its length. */
static size_t make_header(char header[256], const char *type, const int64_t *dim)
{
    char shape[128] = "";
    size_t n = 0, length;

    for (int i = 0; dim[i]; i++)
        n += (size_t)snprintf(shape + n, sizeof(shape) - n, i ? ", %lld" : "%lld",
                              (long long)dim[i]);
    length = 10 + (size_t)snprintf(header + 10, 256 - 10,
                                   "{'descr': '%s', 'fortran_order': False, 'shape': (%s%s), }",
                                   type, shape, dim[1] ? "" : ",");
    while ((length + 1) % 64 != 0)
        header[length++] = ' ';
    header[length++] = '\n';
    memcpy(header, "\x93NUMPY\x01\x00", 8);
    header[8] = (char)((length - 10) & 0xff);
    header[9] = (char)((length - 10) >> 8);
    return length;
}

static int write_array(const struct trace *trace, const char *name, const char *type,
                       const void *data, const int64_t *dim, struct kr_err *err)
{
    char path[4096], header[256];
    size_t count = 1, length = make_header(header, type, dim);
    FILE *file;
    int failed;

    for (int i = 0; dim[i]; i++)
        count *= (size_t)dim[i];
    snprintf(path, sizeof(path), "%s/%s.npy", trace->dir, name);
    file = fopen(path, "wb");
    if (!file)
        return kr_fail(err, KR_IO, "the trace file %s can't be made: %s", path, strerror(errno));
    failed = fwrite(header, 1, length, file) != length || fwrite(data, 4, count, file) != count;
    failed |= fclose(file) != 0;
    if (failed)
        return kr_fail(err, KR_IO, "the trace file %s can't be written: %s", path, strerror(errno));
    return 0;
}

int trace_floats(const struct trace *trace, const char *name, const float *data, const int64_t *dim,
                 struct kr_err *err)
{
    return trace->dir ? write_array(trace, name, "<f4", data, dim, err) : 0;
}

int trace_ints(const struct trace *trace, const char *name, const int32_t *data, const int64_t *dim,
               struct kr_err *err)
{
    return trace->dir ? write_array(trace, name, "<i4", data, dim, err) : 0;
}

int trace_step(const struct trace *trace, const char *name, int64_t step, const float *data,
               const int64_t *dim, struct kr_err *err)
{
    char full[64];

    snprintf(full, sizeof(full), "%s_%02lld", name, (long long)step);
    return trace_floats(trace, full, data, dim, err);
}
