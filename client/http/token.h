/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KR_HTTP_TOKEN_H
#define KR_HTTP_TOKEN_H

#include "proto/err.h"

/* The first line of the file. The caller frees *token. */
int token_read(const char *path, char **token, struct kr_err *err);

#endif
