/* SPDX-License-Identifier: Apache-2.0
 *
 * How models learn their sizes: from the shapes of a file's tensors. Private to this room.
 */
#ifndef KR_MODEL_SHAPES_H
#define KR_MODEL_SHAPES_H

#include <stdint.h>

#include "daemon/weights/weights.h"

/* *size = dimension `axis` of tensor NAME. -1: there is no such tensor or dimension, or it is 0. */
int model_size(const struct weights *weights, const char *name, int axis, int64_t *size,
               struct kr_err *err);

/* How many of START0. START1. START2. ... the file has from 0 on without a gap. */
int64_t model_layers(const struct weights *weights, const char *start);

/* Reads the heads of an attention from the length of its query norm and the rows of its projections
 * to queries and keys, and refuses what can't be: rows that aren't whole heads, query heads that
 * don't share the key heads evenly, heads of an odd or absurd size. */
struct model_heads {
    int64_t heads, kv_heads, head;
};
int model_heads(const struct weights *weights, const char *norm, const char *query, const char *key,
                struct model_heads *heads, struct kr_err *err);

#endif
