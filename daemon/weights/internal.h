/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of this room share: an opened model file and its quantization manifest.
 */
#ifndef KR_WEIGHTS_INTERNAL_H
#define KR_WEIGHTS_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>

#include "daemon/weights/safetensors.h"
#include "daemon/weights/weights.h"

/* One layer that the file declares quantized, by the metadata of its header or by a tensor
 * LAYER.comfy_quant. */
struct quant {
    char *layer;         /* without the file's prefix */
    char format[32];     /* "float8_e4m3fn"; "" when the file does not say */
    bool full_precision; /* full_precision_matrix_mult */
    bool from_tensor;    /* comfy_quant, else header */
    bool present;        /* LAYER.weight is in the file */
};

struct manifest {
    struct quant *quants; /* sorted by layer */
    size_t count;
    const struct st_tensor *marker; /* the older spelling's `scaled_fp8`, or NULL */
    bool full_precision;            /* the marker asks it for all layers */
    bool scaled;                    /* some matrix of the file has a scale or a declared format */
};

struct prefetch;

struct weights {
    struct safetensors st; /* tensors sorted by name here */
    struct manifest manifest;
    struct prefetch *prefetch; /* the one thing that changes after opening: see advice.c */
    char what[32], prefix[64];
};

const struct st_tensor *weights_find(const struct weights *weights, const char *name);

/* LAYER + SUFFIX, or NULL. */
const struct st_tensor *weights_sibling(const struct weights *weights, const char *layer,
                                        const char *suffix);

/* The first tensor whose name starts so, in sorted order; *count of them follow each other. */
const struct st_tensor *weights_range(const struct weights *weights, const char *start,
                                      size_t *count);

/* Whether a tensor's or a layer's name starts so ("last.up" is the layer of "last.up."). */
bool weights_starts(const char *name, const char *start);

/* A known extra: part of some published files and of no model (the one table of them). */
bool weights_is_extra(const char *name);

int manifest_read(struct weights *weights, const char *const *prefixes, struct kr_err *err);
void manifest_fini(struct manifest *manifest);

/* The declaration of LAYER, or NULL. */
const struct quant *manifest_find(const struct manifest *manifest, const char *layer);

/* The scale of a tensor, 1 where it has none and needs none. -1: it has one that it must not have,
 * or none where it must, or a bad one, or its type is not the declared one. */
int manifest_scale(const struct weights *weights, const struct st_tensor *t, float *scale,
                   struct kr_err *err);

/* The name of a quantization that kread does not read and in which LAYER seems to be stored, or
 * NULL. */
const char *manifest_foreign(const struct weights *weights, const char *layer);

int prefetch_new(struct prefetch **prefetch, const void *data, size_t size);
void prefetch_free(struct prefetch *prefetch);

/* n values of F32, BF16, F16 or FP8 to float; src need not be aligned. */
bool values_readable(enum kr_dtype dtype);
void values_to_float(float *dst, const void *src, enum kr_dtype dtype, size_t n);

#endif
