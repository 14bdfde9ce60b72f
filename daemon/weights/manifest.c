/* SPDX-License-Identifier: Apache-2.0
 *
 * Which layers of a file are quantized, and how. Files say it in three ways:
 *
 * - The header: __metadata__._quantization_metadata is a text in JSON,
 *   {"layers": {LAYER: {"format": ...}}}.
 * - A tensor beside the layer: LAYER.comfy_quant, U8, has the same {"format": ...} as bytes,
 *   sometimes padded with NULs.
 * - The older spelling, by a marker: one tensor scaled_fp8 (its type says which FP8, two elements
 *   ask for full precision everywhere), and LAYER.scale_weight instead of LAYER.weight_scale.
 *
 * Layer names in the header carry the prefix of the tensors or not, whatever the tensors do. Two
 * declarations of one layer must agree. Formats that kread does not read are refused here, before a
 * model looks at shapes (those of packed tensors would mislead it), except on known extras.
 *
 * A file that scales anything scales all of its FP8 matrices: one without a scale is damaged,
 * because its values would be wrong by orders of magnitude. FP8 files without any scale are plain
 * casts.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/weights/foreign.h"
#include "daemon/weights/internal.h"
#include "daemon/weights/strict_json.h"

enum { DEPTH = 8, MAX_DECLARATION = 64 << 10 };

#define INSTEAD "take the fp8_scaled or bf16 file of the same model"

static bool ends_with(const char *name, const char *suffix)
{
    size_t n = strlen(name), m = strlen(suffix);

    return n > m && !strcmp(name + n - m, suffix);
}

/* The layer of a tensor LAYER.SUFFIX. */
static void layer_of(const struct st_tensor *t, const char *suffix, char layer[ST_MAX_NAME + 1])
{
    snprintf(layer, ST_MAX_NAME + 1, "%.*s", (int)(strlen(t->name) - strlen(suffix)), t->name);
}

static bool is_fp8(const struct st_tensor *t)
{
    return t->dtype == KR_F8_E4M3 || t->dtype == KR_F8_E5M2;
}

/* ------------------------------------------------------------------------------ reading ------ */

/* Reads {"format": ..., "full_precision_matrix_mult": ...}; `where` names it in messages. */
static int read_declaration(const struct weights *w, const char *where, json_t *value,
                            struct quant *q, struct kr_err *err)
{
    json_t *format = json_object_get(value, "format");
    json_t *full = json_object_get(value, "full_precision_matrix_mult");

    if (!json_is_object(value))
        return kr_fail(err, KR_BAD_FILE,
                       "%s: the quantization of %s is no JSON object; the file is damaged",
                       w->st.shown, where);
    if (format && !json_is_string(format))
        return kr_fail(err, KR_BAD_FILE,
                       "%s: the quantization format of %s is no string; the file is damaged",
                       w->st.shown, where);
    if (full && !json_is_boolean(full))
        return kr_fail(
            err, KR_BAD_FILE,
            "%s: full_precision_matrix_mult of %s is neither true nor false; the file is damaged",
            w->st.shown, where);
    if (format)
        strict_json_printable(q->format, sizeof q->format, json_string_value(format),
                              json_string_length(format));
    q->full_precision = json_is_true(full);
    return 0;
}

static int add(struct weights *w, const char *layer, const char *where, json_t *value,
               bool from_tensor, struct kr_err *err)
{
    struct quant *q = &w->manifest.quants[w->manifest.count];

    q->layer = strdup(layer);
    if (!q->layer)
        return kr_fail(err, KR_NO_MEMORY, "no memory for the header of %s", w->st.shown);
    w->manifest.count++;
    q->from_tensor = from_tensor;
    q->present = weights_sibling(w, layer, ".weight") != NULL;
    return read_declaration(w, where, value, q, err);
}

/* A name from the header without the prefix that it has or has not. */
static const char *resolve(const struct weights *w, const char *const *prefixes, const char *layer)
{
    size_t n = strlen(w->prefix);
    const char *bare = strncmp(layer, w->prefix, n) ? layer : layer + n;

    if (weights_sibling(w, bare, ".weight"))
        return bare;
    if (weights_sibling(w, layer, ".weight"))
        return layer;
    for (; *prefixes; prefixes++) {
        n = strlen(*prefixes);
        if (n && !strncmp(layer, *prefixes, n) && weights_sibling(w, layer + n, ".weight"))
            return layer + n;
    }
    return bare;
}

static int read_layers(struct weights *w, const char *const *prefixes, json_t *layers,
                       struct kr_err *err)
{
    const char *layer;
    char shown[ST_MAX_NAME];
    json_t *value;

    if (!json_is_object(layers))
        return kr_fail(
            err, KR_BAD_FILE,
            "%s: _quantization_metadata of its header has no layers; the file is damaged",
            w->st.shown);
    if (json_object_size(layers) > ST_MAX_TENSORS)
        return kr_fail(
            err, KR_BAD_FILE,
            "%s: _quantization_metadata of its header lists over %d layers; the file is damaged",
            w->st.shown, ST_MAX_TENSORS);
    w->manifest.quants = calloc(json_object_size(layers) + w->st.count, sizeof(struct quant));
    if (!w->manifest.quants)
        return kr_fail(err, KR_NO_MEMORY, "no memory for the header of %s", w->st.shown);
    json_object_foreach(layers, layer, value)
    {
        strict_json_printable(shown, sizeof shown, layer, strlen(layer));
        if (strlen(layer) >= sizeof shown || strcmp(shown, layer))
            return kr_fail(err, KR_BAD_FILE,
                           "%s: _quantization_metadata of its header names no possible layer: %s",
                           w->st.shown, shown);
        if (add(w, resolve(w, prefixes, layer), layer, value, false, err) < 0)
            return -1;
    }
    return 0;
}

static int read_header_form(struct weights *w, const char *const *prefixes, struct kr_err *err)
{
    char why[280];
    json_t *root;
    int result;

    if (w->st.quantization)
        root = strict_json_load(w->st.quantization, strlen(w->st.quantization), DEPTH, why,
                                sizeof why);
    else
        root = json_pack("{s:{}}", "layers");
    if (!root && (!w->st.quantization || errno == ENOMEM))
        return kr_fail(err, KR_NO_MEMORY, "%s: no memory to read its header", w->st.shown);
    if (!root)
        return kr_fail(
            err, KR_BAD_FILE,
            "%s: _quantization_metadata of its header is no valid JSON (%s); the file is damaged",
            w->st.shown, why);
    result = read_layers(w, prefixes, json_object_get(root, "layers"), err);
    json_decref(root);
    return result;
}

static int read_comfy_quant(struct weights *w, const struct st_tensor *t, struct kr_err *err)
{
    const char *text = st_data(&w->st, t);
    size_t size = (size_t)t->bytes;
    char layer[ST_MAX_NAME + 1], why[280];
    json_t *root;
    int result;

    if (t->dtype != KR_U8 || size > MAX_DECLARATION)
        return kr_fail(err, KR_BAD_FILE,
                       "%s: %s should be a short JSON text of type U8; the file is damaged",
                       w->st.shown, t->full);
    while (size && text[size - 1] == '\0')
        size--;
    root = strict_json_load(text, size, DEPTH, why, sizeof why);
    if (!root && errno == ENOMEM)
        return kr_fail(err, KR_NO_MEMORY, "%s: no memory to read %s", w->st.shown, t->full);
    if (!root)
        return kr_fail(err, KR_BAD_FILE, "%s: %s is no valid JSON (%s); the file is damaged",
                       w->st.shown, t->full, why);
    layer_of(t, ".comfy_quant", layer);
    result = add(w, layer, t->full, root, true, err);
    json_decref(root);
    return result;
}

static int read_tensor_form(struct weights *w, struct kr_err *err)
{
    const struct st_tensor *t;

    for (t = w->st.tensors; t < w->st.tensors + w->st.count; t++)
        if (ends_with(t->name, ".comfy_quant") && !weights_is_extra(t->name) &&
            read_comfy_quant(w, t, err) < 0)
            return -1;
    return 0;
}

static int read_marker(struct weights *w, const char *const *prefixes, struct kr_err *err)
{
    const struct st_tensor *t = weights_find(w, "scaled_fp8");
    char name[ST_MAX_NAME];

    for (; *prefixes && !t; prefixes++) {
        snprintf(name, sizeof name, "%sscaled_fp8", *prefixes);
        t = weights_find(w, name);
    }
    if (!t)
        return 0;
    if (!values_readable(t->dtype) || st_elements(t) > 2)
        return kr_fail(err, KR_BAD_FILE,
                       "%s: %s is %s, which is no mark of scaled FP8; the file is damaged",
                       w->st.shown, t->full, t->type);
    w->manifest.marker = t;
    w->manifest.full_precision = st_elements(t) == 2;
    return 0;
}

/* ------------------------------------------------------------------------------ checking ----- */

static int by_layer(const void *a, const void *b)
{
    return strcmp(((const struct quant *)a)->layer, ((const struct quant *)b)->layer);
}

/* Sorts; two declarations that agree become one. */
static int merge(struct weights *w, struct kr_err *err)
{
    struct manifest *m = &w->manifest;
    size_t i, n = 0;

    qsort(m->quants, m->count, sizeof *m->quants, by_layer);
    for (i = 0; i < m->count; i++) {
        struct quant *last = n ? &m->quants[n - 1] : NULL, *q = &m->quants[i];

        if (!last || strcmp(last->layer, q->layer)) {
            if (i != n) {
                m->quants[n] = *q;
                q->layer = NULL;
            }
            n++;
            continue;
        }
        if (strcmp(last->format, q->format) || last->full_precision != q->full_precision)
            return kr_fail(err, KR_BAD_FILE,
                           "%s declares the quantization of %s twice and differently (%s and %s); "
                           "take another file",
                           w->st.shown, q->layer, last->format, q->format);
        free(q->layer);
        q->layer = NULL;
    }
    m->count = n;
    return 0;
}

static bool readable_format(const char *format)
{
    return !*format || !strcmp(format, "float8_e4m3fn") || !strcmp(format, "float8_e5m2");
}

static int fail_format(const struct weights *w, const char *tensor, const char *format,
                       struct kr_err *err)
{
    return kr_fail(err, KR_BAD_FILE, "%s: %s is stored as %s, which kread does not read; " INSTEAD,
                   w->st.shown, tensor, format);
}

/* A format that shows by the type of the weight and of its scale. */
static const char *foreign_types(const struct weights *w, const char *layer,
                                 const struct st_tensor *weight)
{
    const struct st_tensor *scale;
    const char *format;

    if (weight->dtype == KR_F32 || weight->dtype == KR_BF16 || weight->dtype == KR_F16)
        return NULL;
    format = manifest_foreign(w, layer);
    if (format)
        return format;
    scale = weights_sibling(w, layer, ".weight_scale");
    if (weight->dtype == KR_I8 || weight->dtype == KR_U8)
        return weight->dtype == KR_I8 && (scale || manifest_find(&w->manifest, layer))
                   ? "int8_tensorwise"
                   : "packed integers";
    return is_fp8(weight) && scale && !values_readable(scale->dtype) ? "mxfp8" : NULL;
}

/* A matrix in a format that shows by its type or by what stands beside it. */
static int check_stored(const struct weights *w, const struct st_tensor *t, struct kr_err *err)
{
    char layer[ST_MAX_NAME + 1];
    const char *suffix, *format;
    size_t i;

    if (weights_is_extra(t->name))
        return 0;
    for (i = 0; (format = foreign_sibling(i, &suffix)); i++)
        if (ends_with(t->name, suffix))
            return fail_format(w, t->full, format, err);
    if (!ends_with(t->name, ".weight"))
        return 0;
    layer_of(t, ".weight", layer);
    format = foreign_types(w, layer, t);
    return format ? fail_format(w, t->full, format, err) : 0;
}

static int check_formats(struct weights *w, struct kr_err *err)
{
    const struct quant *q = w->manifest.quants;
    size_t i;

    for (i = 0; i < w->manifest.count; i++)
        if (!readable_format(q[i].format) && !weights_is_extra(q[i].layer))
            return fail_format(w, q[i].layer, q[i].format, err);
    for (i = 0; i < w->st.count; i++)
        if (check_stored(w, &w->st.tensors[i], err) < 0)
            return -1;
    return 0;
}

static bool is_scaled(const struct weights *w)
{
    const struct st_tensor *t;

    if (w->manifest.marker || w->manifest.count)
        return true;
    for (t = w->st.tensors; t < w->st.tensors + w->st.count; t++)
        if ((ends_with(t->name, ".weight_scale") || ends_with(t->name, ".scale_weight")) &&
            !weights_is_extra(t->name))
            return true;
    return false;
}

int manifest_read(struct weights *weights, const char *const *prefixes, struct kr_err *err)
{
    if (read_header_form(weights, prefixes, err) < 0 || read_tensor_form(weights, err) < 0 ||
        read_marker(weights, prefixes, err) < 0 || merge(weights, err) < 0 ||
        check_formats(weights, err) < 0)
        return -1;
    weights->manifest.scaled = is_scaled(weights);
    return 0;
}

void manifest_fini(struct manifest *manifest)
{
    size_t i;

    for (i = 0; i < manifest->count; i++)
        free(manifest->quants[i].layer);
    free(manifest->quants);
    manifest->quants = NULL;
    manifest->count = 0;
}

/* ------------------------------------------------------------------------------ asking ------- */

const struct quant *manifest_find(const struct manifest *manifest, const char *layer)
{
    struct quant key = {.layer = (char *)layer};

    return manifest->count ? bsearch(&key, manifest->quants, manifest->count, sizeof key, by_layer)
                           : NULL;
}

const char *manifest_foreign(const struct weights *weights, const char *layer)
{
    const struct quant *q = manifest_find(&weights->manifest, layer);
    const char *suffix, *format;
    size_t i;

    if (q && !readable_format(q->format))
        return q->format;
    for (i = 0; (format = foreign_sibling(i, &suffix)); i++)
        if (weights_sibling(weights, layer, suffix))
            return format;
    return NULL;
}

static int read_scale(const struct weights *w, const struct st_tensor *t, float *scale,
                      struct kr_err *err)
{
    char is[160];

    st_describe(t, is, sizeof is);
    if (!values_readable(t->dtype) || is_fp8(t))
        return kr_fail(err, KR_BAD_FILE, "%s: %s is %s, want one F32; the file is damaged",
                       w->st.shown, t->full, is);
    if (st_elements(t) != 1)
        return kr_fail(err, KR_BAD_FILE,
                       "%s: %s is %s, but kread takes one scale for a whole matrix; " INSTEAD,
                       w->st.shown, t->full, is);
    values_to_float(scale, st_data(&w->st, t), t->dtype, 1);
    if (!isfinite(*scale) || *scale <= 0)
        return kr_fail(
            err, KR_BAD_FILE,
            "%s: %s is %g, want a finite number above 0; the file is damaged, fetch it again",
            w->st.shown, t->full, (double)*scale);
    return 0;
}

/* What the file declares must be what it stores. */
static int check_declared(const struct weights *w, const struct st_tensor *t, const char *layer,
                          struct kr_err *err)
{
    const struct quant *q = manifest_find(&w->manifest, layer);
    const struct st_tensor *marker = w->manifest.marker;
    const char *want = "F8_E4M3 or F8_E5M2";
    bool fits = is_fp8(t);
    char is[160];

    if (q && *q->format) {
        want = !strcmp(q->format, "float8_e5m2") ? "F8_E5M2" : "F8_E4M3";
        fits = !strcmp(t->type, want);
    }
    st_describe(t, is, sizeof is);
    if (q && !fits)
        return kr_fail(
            err, KR_BAD_FILE,
            "%s: %s is %s, but the file declares it quantized as %s, want %s; the file is damaged",
            w->st.shown, t->full, is, *q->format ? q->format : "FP8", want);
    if (marker && is_fp8(marker) && is_fp8(t) && marker->dtype != t->dtype)
        return kr_fail(err, KR_BAD_FILE, "%s: %s is %s, but %s declares %s; the file is damaged",
                       w->st.shown, t->full, is, marker->full, marker->type);
    return 0;
}

int manifest_scale(const struct weights *weights, const struct st_tensor *t, float *scale,
                   struct kr_err *err)
{
    const struct st_tensor *now = NULL, *old = NULL;
    char layer[ST_MAX_NAME + 1] = "";

    *scale = 1;
    if (ends_with(t->name, ".weight")) {
        layer_of(t, ".weight", layer);
        now = weights_sibling(weights, layer, ".weight_scale");
        old = weights_sibling(weights, layer, ".scale_weight");
    }
    if (check_declared(weights, t, layer, err) < 0)
        return -1;
    if (now && old)
        return kr_fail(err, KR_BAD_FILE, "%s has two scales for %s: %s and %s; take another file",
                       weights->st.shown, t->full, now->full, old->full);
    if ((now || old) && !is_fp8(t))
        return kr_fail(err, KR_BAD_FILE,
                       "%s: %s is %s and not quantized, but has a scale, %s; the file is damaged",
                       weights->st.shown, t->full, t->type, now ? now->full : old->full);
    if (now || old)
        return read_scale(weights, now ? now : old, scale, err);
    if (is_fp8(t) && weights->manifest.scaled)
        return kr_fail(err, KR_BAD_FILE,
                       "%s: %s is unscaled: it is %s in a file of scaled FP8, want a %s beside it; "
                       "the file is damaged",
                       weights->st.shown, t->full, t->type,
                       weights->manifest.marker ? ".scale_weight" : ".weight_scale");
    return 0;
}
