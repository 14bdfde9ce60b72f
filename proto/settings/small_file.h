/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KR_SMALL_FILE_H
#define KR_SMALL_FILE_H

#include <stddef.h>

#include "proto/err.h"

/* A small file that an owner names, a megabyte at most, with a NUL behind it, which *size does not
 * count. Never waits: a pipe is refused. The error's sentence starts with the path; KR_NO_MEMORY,
 * or KR_BAD_CONFIG. The caller frees *text. */
int small_file_read(const char *path, char **text, size_t *size, struct kr_err *err);

#endif
