/* SPDX-License-Identifier: Apache-2.0
 *
 * Binding: a model walks its list of tensors, the binder holds each against the file and marks it.
 * What is unmarked at the end is something the model does not know, and a file that says more than
 * the model understands is refused like one that says less.
 */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/weights/internal.h"

#define FLOATS "F32, BF16 or F16"

/* ------------------------------------------------------------------------------ helpers ------ */

__attribute__((format(printf, 3, 4))) static void refuse(struct binder *b, enum kr_code code,
                                                         const char *format, ...)
{
    char text[400];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    b->failed = true;
    kr_fail(b->err, code, "%s: %s", b->weights->st.shown, text);
}

static void mark(struct binder *b, const struct st_tensor *t)
{
    if (t)
        b->used[t - b->weights->st.tensors] = 1;
}

/* The marks of the manifest's layers stand behind those of the tensors. */
static unsigned char *layer_mark(const struct binder *b, const struct quant *q)
{
    return b->used + b->weights->st.count + (q - b->weights->manifest.quants);
}

static void format_name(char name[ST_MAX_NAME], const char *format, va_list args)
{
    int n = vsnprintf(name, ST_MAX_NAME, format, args);

    assert(n > 0 && n < ST_MAX_NAME - 32); /* room for a suffix; names in code are short */
}

static const struct st_tensor *need(struct binder *b, const char *layer, const char *suffix)
{
    const struct st_tensor *t = weights_sibling(b->weights, layer, suffix);
    const char *format = t ? NULL : manifest_foreign(b->weights, layer);

    if (t)
        mark(b, t);
    else if (format)
        refuse(b, KR_BAD_FILE,
               "%s%s is stored as %s, which kread does not read; take the fp8_scaled or bf16 file",
               layer, suffix, format);
    else
        refuse(b, KR_BAD_FILE, "%s%s%s is missing, so this is another model or not the whole of it",
               b->weights->prefix, layer, suffix);
    return t;
}

static void refuse_shape(struct binder *b, const struct st_tensor *t, const char *want)
{
    char is[160];

    st_describe(t, is, sizeof is);
    refuse(b, KR_BAD_FILE, "%s is %s, want %s; this is another model or of another size", t->full,
           is, want);
}

static void refuse_type(struct binder *b, const struct st_tensor *t, const char *want)
{
    char is[160];

    st_describe(t, is, sizeof is);
    refuse(b, KR_BAD_FILE, "%s is %s, want %s; take another file of the model", t->full, is, want);
}

/* The scale of a tensor, and a mark on all that may stand beside it. Static activation scales are
 * not used: in published files they are mostly the placeholder 1.0, which would saturate. */
static bool take_scale(struct binder *b, const struct st_tensor *t, float *scale)
{
    static const char *const suffixes[] = {".weight_scale", ".scale_weight", ".input_scale",
                                           ".scale_input", ".comfy_quant"};
    char layer[ST_MAX_NAME + 1];
    const struct quant *q;
    size_t i, n = strlen(t->name);

    if (manifest_scale(b->weights, t, scale, b->err) < 0) {
        b->failed = true;
        return false;
    }
    if (n <= 7 || strcmp(t->name + n - 7, ".weight"))
        return true;
    snprintf(layer, sizeof layer, "%.*s", (int)(n - 7), t->name);
    for (i = 0; i < sizeof suffixes / sizeof *suffixes; i++)
        mark(b, weights_sibling(b->weights, layer, suffixes[i]));
    q = manifest_find(&b->weights->manifest, layer);
    if (q)
        *layer_mark(b, q) = 1;
    return true;
}

/* ------------------------------------------------------------------------------ matrices ----- */

/* [out, in], with ones behind it where a file stores a 1x1 convolution. */
static bool is_matrix(const struct st_tensor *t, int64_t out, int64_t in)
{
    int i;

    for (i = 2; i < t->rank; i++)
        if (t->dim[i] != 1)
            return false;
    return t->rank >= 2 && t->dim[0] == out && t->dim[1] == in;
}

static void bind_matrix(struct binder *b, struct kr_weight *w, int64_t out, int64_t in,
                        const char *layer)
{
    const struct st_tensor *t = need(b, layer, ".weight");
    const struct quant *q = manifest_find(&b->weights->manifest, layer);
    char want[64];
    float scale;

    if (!t)
        return;
    snprintf(want, sizeof want, "[%" PRId64 ",%" PRId64 "]", out, in);
    if (!values_readable(t->dtype)) {
        refuse_type(b, t, "F32, BF16, F16, F8_E4M3 or F8_E5M2");
    } else if (!take_scale(b, t, &scale)) {
        return;
    } else if (!is_matrix(t, out, in)) {
        refuse_shape(b, t, want);
    } else {
        w->data = st_data(&b->weights->st, t);
        w->dtype = t->dtype;
        w->out = out;
        w->in = in;
        w->scale = scale;
        w->full_precision = (q && q->full_precision) || b->weights->manifest.full_precision;
    }
}

/* ------------------------------------------------------------------------------ vectors ------ */

/* Whether the tensor holds d0 x d1 values (d1 0: d0), in any shape that files give a vector. */
static bool is_vector(const struct st_tensor *t, int64_t d0, int64_t d1)
{
    int64_t dim[ST_MAX_RANK];
    int i, rank = 0;

    for (i = 0; i < t->rank; i++)
        if (t->dim[i] != 1)
            dim[rank++] = t->dim[i];
    if (st_elements(t) != (d1 ? d0 * d1 : d0))
        return false;
    return rank < 2 || (rank == 2 && (d1 == 0 || (dim[0] == d0 && dim[1] == d1)));
}

/* The values in device memory, that of *out if it has any. Reads the file, so only on the second
 * run. */
static void upload(struct binder *b, const struct st_tensor *t, struct kr_tensor *out, int64_t d0,
                   int64_t d1, float scale, float plus)
{
    size_t i, n = (size_t)st_elements(t);
    float *host = malloc(n * sizeof *host);

    if (!host) {
        refuse(b, KR_NO_MEMORY, "no memory for the %zu values of %s", n, t->full);
        return;
    }
    values_to_float(host, st_data(&b->weights->st, t), t->dtype, n);
    for (i = 0; i < n && isfinite(host[i]); i++)
        host[i] = host[i] * scale + plus;
    if (i < n) {
        refuse(b, KR_BAD_FILE,
               "value %zu of %s is NaN or infinite; the file is damaged, fetch it again", i,
               t->full);
    } else {
        if (out->data)
            kr_upload(b->dev, *out, host);
        else
            *out = kr_persist(b->dev, host, d0, d1);
        if (!out->data)
            refuse(b, KR_NO_MEMORY, "no device memory for %s", t->full);
    }
    free(host);
}

static void bind_values(struct binder *b, struct kr_tensor *out, int64_t d0, int64_t d1, float plus,
                        const struct st_tensor *t)
{
    char want[64];
    float scale;

    if (d1)
        snprintf(want, sizeof want, "[%" PRId64 ",%" PRId64 "]", d0, d1);
    else
        snprintf(want, sizeof want, "[%" PRId64 "]", d0);
    if (!values_readable(t->dtype))
        refuse_type(b, t, FLOATS);
    else if (!take_scale(b, t, &scale))
        return;
    else if (!is_vector(t, d0, d1))
        refuse_shape(b, t, want);
    else if (b->dev)
        upload(b, t, out, d0, d1, scale, plus);
}

static void bind_bias(struct binder *b, struct kr_tensor *bias, int64_t out, const char *layer)
{
    const struct st_tensor *t = b->failed ? NULL : need(b, layer, ".bias");

    if (t)
        bind_values(b, bias, out, 0, 0, t);
}

/* ------------------------------------------------------------------------------ the table ---- */

int binder_init(struct binder *b, const struct weights *weights, struct kr_device *dev,
                struct kr_err *err)
{
    memset(b, 0, sizeof *b);
    b->weights = weights;
    b->dev = dev;
    b->err = err;
    b->used = calloc(weights->st.count + weights->manifest.count + 1, 1);
    if (!b->used) {
        refuse(b, KR_NO_MEMORY, "no memory to bind its tensors");
        return -1;
    }
    mark(b, weights->manifest.marker);
    return 0;
}

void bind_linear(struct binder *b, struct kr_weight *w, int64_t out, int64_t in, const char *layer,
                 ...)
{
    char name[ST_MAX_NAME];
    va_list args;

    memset(w, 0, sizeof *w);
    if (b->failed)
        return;
    va_start(args, layer);
    format_name(name, layer, args);
    va_end(args);
    bind_matrix(b, w, out, in, name);
}

void bind_linear_bias(struct binder *b, struct kr_weight *w, int64_t out, int64_t in,
                      const char *layer, ...)
{
    char name[ST_MAX_NAME];
    va_list args;

    va_start(args, layer);
    format_name(name, layer, args);
    va_end(args);
    bind_linear(b, w, out, in, "%s", name);
    bind_bias(b, &w->bias, out, name);
}

static void bind_named(struct binder *b, struct kr_tensor *t, int64_t d0, int64_t d1, float plus,
                       const char *name, va_list args)
{
    char full[ST_MAX_NAME];
    const struct st_tensor *found;

    if (b->failed)
        return;
    format_name(full, name, args);
    found = need(b, full, "");
    if (found)
        bind_values(b, t, d0, d1, plus, found);
}

void bind_vector_into(struct binder *b, struct kr_tensor t, int64_t d0, int64_t d1, float plus,
                      const char *name, ...)
{
    va_list args;

    va_start(args, name);
    bind_named(b, &t, d0, d1, plus, name, args);
    va_end(args);
}

void bind_vector(struct binder *b, struct kr_tensor *t, int64_t d0, int64_t d1, float plus,
                 const char *name, ...)
{
    va_list args;

    memset(t, 0, sizeof *t);
    va_start(args, name);
    bind_named(b, t, d0, d1, plus, name, args);
    va_end(args);
}

/* [out, in, k, k] or, of a causal 3-D convolution, [out, in, kt, k, k]. */
static bool is_kernel(const struct st_tensor *t, int64_t out, int64_t in, int64_t k)
{
    return (t->rank == 4 || (t->rank == 5 && t->dim[2] > 0)) && t->dim[0] == out &&
           t->dim[1] == in && t->dim[t->rank - 2] == k && t->dim[t->rank - 1] == k;
}

static void bind_kernel(struct binder *b, struct kr_conv *conv, int64_t out, int64_t in, int64_t k,
                        const char *layer)
{
    const struct st_tensor *t = need(b, layer, ".weight");
    char want[96];
    float scale;

    if (!t)
        return;
    snprintf(want, sizeof want, "[%" PRId64 ",%" PRId64 ",(time,)%" PRId64 ",%" PRId64 "]", out, in,
             k, k);
    if (t->dtype != KR_F32 && t->dtype != KR_BF16 && t->dtype != KR_F16) {
        refuse_type(b, t, FLOATS);
    } else if (!take_scale(b, t, &scale)) {
        return;
    } else if (!is_kernel(t, out, in, k)) {
        refuse_shape(b, t, want);
    } else {
        conv->data = st_data(&b->weights->st, t);
        conv->dtype = t->dtype;
        conv->out = out;
        conv->in = in;
        conv->kt = t->rank == 5 ? t->dim[2] : 1;
        conv->kh = conv->kw = k;
    }
}

void bind_conv(struct binder *b, struct kr_conv *conv, int64_t out, int64_t in, int64_t k,
               const char *layer, ...)
{
    char name[ST_MAX_NAME];
    va_list args;

    memset(conv, 0, sizeof *conv);
    if (b->failed)
        return;
    va_start(args, layer);
    format_name(name, layer, args);
    va_end(args);
    bind_kernel(b, conv, out, in, k, name);
    bind_bias(b, &conv->bias, out, name);
}

/* ------------------------------------------------------------------------------ the rest ----- */

bool bind_ignore(struct binder *b, const char *start)
{
    const struct manifest *m = &b->weights->manifest;
    const struct st_tensor *first;
    size_t i, count;

    first = weights_range(b->weights, start, &count);
    if (!b->used)
        return count > 0;
    memset(b->used + (first - b->weights->st.tensors), 1, count);
    for (i = 0; i < m->count; i++)
        if (weights_starts(m->quants[i].layer, start))
            *layer_mark(b, &m->quants[i]) = 1;
    return count > 0;
}

static void check_tensors(struct binder *b)
{
    const struct safetensors *st = &b->weights->st;
    const struct st_tensor *first = NULL;
    size_t i, left = 0;

    for (i = 0; i < st->count; i++) {
        if (b->used[i] || weights_is_extra(st->tensors[i].name))
            continue;
        first = first ? first : &st->tensors[i];
        left++;
    }
    if (left > 1)
        refuse(b, KR_BAD_FILE,
               "%s and %zu more tensors are not part of this model; take another file", first->full,
               left - 1);
    else if (left)
        refuse(b, KR_BAD_FILE, "%s is not part of this model; take another file", first->full);
}

/* The header declares layers that the file does not have. */
static void check_layers(struct binder *b)
{
    const struct manifest *m = &b->weights->manifest;
    const struct quant *q;

    for (q = m->quants; q < m->quants + m->count && !b->failed; q++)
        if (!*layer_mark(b, q) && !q->present && !weights_is_extra(q->layer))
            refuse(b, KR_BAD_FILE,
                   "its header declares the quantization of %s, but %s.weight is missing; the file "
                   "is damaged",
                   q->layer, q->layer);
}

int binder_end(struct binder *b)
{
    if (!b->failed)
        check_tensors(b);
    if (!b->failed)
        check_layers(b);
    free(b->used);
    b->used = NULL;
    return b->failed ? -1 : 0;
}
