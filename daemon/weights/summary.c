/* SPDX-License-Identifier: Apache-2.0
 *
 * One line that says what a file holds: "256 F8_E4M3 scaled (64 full precision), 174 BF16, 2
 * unused".
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/weights/internal.h"

enum { MAX_KINDS = 64 };

struct tally {
    const char *type; /* NULL: tensors that no model uses */
    bool scaled;
    size_t count, full_precision;
    uint64_t bytes;
};

/* Tensors that only describe others are not counted. */
static bool is_companion(const char *name)
{
    static const char *const endings[] = {".weight_scale", ".scale_weight", ".input_scale",
                                          ".scale_input",  ".comfy_quant",  "scaled_fp8"};
    size_t i, n = strlen(name), m;

    for (i = 0; i < sizeof endings / sizeof *endings; i++) {
        m = strlen(endings[i]);
        if (n >= m && !strcmp(name + n - m, endings[i]))
            return true;
    }
    return false;
}

/* Whether the tensor is a matrix with a scale; if so, whether it asks for full precision. */
static bool is_scaled(const struct weights *w, const struct st_tensor *t, bool *full)
{
    size_t n = strlen(t->name);
    char layer[ST_MAX_NAME + 1];
    const struct quant *q;

    if (n < 8 || strcmp(t->name + n - 7, ".weight"))
        return false;
    snprintf(layer, sizeof layer, "%.*s", (int)(n - 7), t->name);
    q = manifest_find(&w->manifest, layer);
    *full = w->manifest.full_precision || (q && q->full_precision);
    return weights_sibling(w, layer, ".weight_scale") || weights_sibling(w, layer, ".scale_weight");
}

static void add(struct tally *tallies, size_t *kinds, const char *type, bool scaled, bool full,
                uint64_t bytes)
{
    struct tally *t = tallies;

    while (t < tallies + *kinds && (t->type != type || t->scaled != scaled))
        t++;
    if (t == tallies + MAX_KINDS)
        return;
    if (t == tallies + *kinds) {
        (*kinds)++;
        t->type = type;
        t->scaled = scaled;
    }
    t->count++;
    t->full_precision += full;
    t->bytes += bytes;
}

/* What weighs most comes first, what is unused last. */
static int by_weight(const void *a, const void *b)
{
    const struct tally *x = a, *y = b;

    if (!x->type != !y->type)
        return !x->type - !y->type;
    return (x->bytes < y->bytes) - (x->bytes > y->bytes);
}

int weights_summary(const struct weights *weights, char *buf, size_t size)
{
    struct tally tallies[MAX_KINDS] = {{0}}, *k;
    size_t kinds = 0, i;
    int at = 0;

    for (i = 0; i < weights->st.count; i++) {
        const struct st_tensor *t = &weights->st.tensors[i];
        bool extra = weights_is_extra(t->name), full = false, scaled;

        if (is_companion(t->name))
            continue;
        scaled = !extra && is_scaled(weights, t, &full);
        add(tallies, &kinds, extra ? NULL : t->type, scaled, scaled && full, t->bytes);
    }
    qsort(tallies, kinds, sizeof *tallies, by_weight);
    if (size)
        *buf = '\0';
    for (k = tallies; k < tallies + kinds; k++) {
        size_t left = (size_t)at < size ? size - (size_t)at : 0;

        at += snprintf(left ? buf + at : NULL, left, "%s%zu %s%s", k == tallies ? "" : ", ",
                       k->count, k->type ? k->type : "unused", k->scaled ? " scaled" : "");
        left = (size_t)at < size ? size - (size_t)at : 0;
        if (k->full_precision)
            at +=
                snprintf(left ? buf + at : NULL, left, " (%zu full precision)", k->full_precision);
    }
    return at;
}
