/* SPDX-License-Identifier: Apache-2.0
 *
 * The intermediate results of a job as NumPy files, for comparing with reference programs. Used by
 * the worker, only when a trace folder is configured.
 */
#ifndef KR_ENGINE_TRACE_H
#define KR_ENGINE_TRACE_H

#include <stdint.h>

#include "proto/err.h"

struct trace {
    char *dir; /* NULL: no trace */
};

/* Makes ROOT/JOB, or ROOT/JOB/IMAGE where image >= 0, and forgets the files of an earlier job of
 * that number that this one won't overwrite (`steps` says which it will). */
int trace_open(struct trace *trace, const char *root, uint64_t job, int image, int64_t steps,
               struct kr_err *err);
void trace_close(struct trace *trace);

/* DIR/NAME.npy; dim[] ends with 0. Does nothing where there is no trace. */
int trace_floats(const struct trace *trace, const char *name, const float *data, const int64_t *dim,
                 struct kr_err *err);
int trace_ints(const struct trace *trace, const char *name, const int32_t *data, const int64_t *dim,
               struct kr_err *err);

/* The same under NAME_07.npy. */
int trace_step(const struct trace *trace, const char *name, int64_t step, const float *data,
               const int64_t *dim, struct kr_err *err);

#endif
