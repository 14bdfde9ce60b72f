/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens a model file: finds the prefix of its names, sorts its tensors by name, reads its manifest.
 * Look-ups are binary searches in that order, which also makes "all names that start so" one range.
 */
#include "daemon/weights/weights.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/weights/foreign.h"
#include "daemon/weights/internal.h"

/* Tensors that published files have and no model uses. Kinds of files do not matter: the names are
 * telling enough, and a quantization that kread can't read does no harm there. What a model itself
 * leaves out (the encoder half of a VAE) its own code names with bind_ignore(). */
static const struct {
    const char *start, *why;
} extras[] = {
    {"last.down.",
     "Krea 2, early releases and files made from them: a low-rank pair that was dropped"},
    {"last.up.", "the other half of it"},
    {"lm_head.", "Qwen3-VL: the output layer of the language model; prompts are only encoded"},
    {"visual.", "Qwen3-VL, Comfy's names (model.visual.): the vision tower; no pictures are read"},
    {"model.visual.", "the same in files with Hugging Face's names"},
};

bool weights_starts(const char *name, const char *start)
{
    size_t n = strlen(start), m = strlen(name);

    return !strncmp(name, start, n) || (n == m + 1 && start[m] == '.' && !strncmp(name, start, m));
}

bool weights_is_extra(const char *name)
{
    size_t i;

    for (i = 0; i < sizeof extras / sizeof *extras; i++)
        if (weights_starts(name, extras[i].start))
            return true;
    return false;
}

/* ------------------------------------------------------------------------------ index -------- */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct st_tensor *)a)->name, ((const struct st_tensor *)b)->name);
}

/* The first tensor whose name is not before `name`, looking at its first n bytes only. */
static const struct st_tensor *lower_bound(const struct weights *w, const char *name, size_t n)
{
    size_t low = 0, high = w->st.count, middle;

    while (low < high) {
        middle = low + (high - low) / 2;
        if (strncmp(w->st.tensors[middle].name, name, n) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return w->st.tensors + low;
}

const struct st_tensor *weights_find(const struct weights *weights, const char *name)
{
    const struct st_tensor *t = lower_bound(weights, name, strlen(name) + 1);

    return t < weights->st.tensors + weights->st.count && !strcmp(t->name, name) ? t : NULL;
}

const struct st_tensor *weights_sibling(const struct weights *weights, const char *layer,
                                        const char *suffix)
{
    char name[ST_MAX_NAME + 1];
    int n = snprintf(name, sizeof name, "%s%s", layer, suffix);

    return n < (int)sizeof name ? weights_find(weights, name) : NULL;
}

const struct st_tensor *weights_range(const struct weights *weights, const char *start,
                                      size_t *count)
{
    const struct st_tensor *first = lower_bound(weights, start, strlen(start)), *t = first;

    while (t < weights->st.tensors + weights->st.count && !strncmp(t->name, start, strlen(start)))
        t++;
    *count = (size_t)(t - first);
    return first;
}

/* ------------------------------------------------------------------------------ prefix ------- */

static bool has_full(const struct safetensors *st, const char *prefix, const char *name)
{
    size_t i, n = strlen(prefix);

    for (i = 0; i < st->count; i++)
        if (!strncmp(st->tensors[i].full, prefix, n) && !strcmp(st->tensors[i].full + n, name))
            return true;
    return false;
}

/* No tensor that every file of this kind has: say what the file is instead, where it shows. */
static int fail_kind(const struct weights *w, const char *probe, struct kr_err *err)
{
    const char *tells = NULL;
    size_t i;

    for (i = 0; i < w->st.count && !tells; i++)
        tells = foreign_layout(w->st.tensors[i].full);
    if (!tells && strstr(w->st.name, "-of-0"))
        tells = "it seems to be one part of a split model; take the model as one file";
    return kr_fail(err, KR_BAD_FILE, "%s is no %s that kread can read: it has no tensor %s (%s)",
                   w->st.shown, w->what, probe,
                   tells ? tells
                         : "its names belong to another model; correct the path in the profile");
}

static int find_prefix(struct weights *w, const char *const *prefixes, const char *probe,
                       struct kr_err *err)
{
    const char *found = NULL;

    for (; *prefixes; prefixes++) {
        if (!has_full(&w->st, *prefixes, probe))
            continue;
        if (found)
            return kr_fail(err, KR_BAD_FILE,
                           "%s has two models in one: %s%s and %s%s; take a file with one",
                           w->st.shown, found, probe, *prefixes, probe);
        found = *prefixes;
    }
    if (!found)
        return fail_kind(w, probe, err);
    assert(strlen(found) < sizeof w->prefix);
    strcpy(w->prefix, found);
    return 0;
}

static int index_names(struct weights *w, struct kr_err *err)
{
    size_t i, n = strlen(w->prefix);
    struct st_tensor *t = w->st.tensors;

    for (i = 0; i < w->st.count; i++)
        if (!strncmp(t[i].full, w->prefix, n))
            t[i].name = t[i].full + n;
    qsort(t, w->st.count, sizeof *t, by_name);
    for (i = 1; i < w->st.count; i++)
        if (!strcmp(t[i].name, t[i - 1].name))
            return kr_fail(err, KR_BAD_FILE,
                           "%s has both %s and %s, which mean the same tensor; take another file",
                           w->st.shown, t[i - 1].full, t[i].full);
    return 0;
}

/* ------------------------------------------------------------------------------ open, ask ---- */

int weights_open(const char *path, const char *what, const char *const *prefixes, const char *probe,
                 struct weights **weights, struct kr_err *err)
{
    struct weights *w = calloc(1, sizeof *w);

    *weights = NULL;
    if (!w)
        return kr_fail(err, KR_NO_MEMORY, "no memory to open %s", path);
    snprintf(w->what, sizeof w->what, "%s", what);
    if (st_open(&w->st, path, what, err) < 0) {
        free(w);
        return -1;
    }
    if (find_prefix(w, prefixes, probe, err) < 0 || index_names(w, err) < 0 ||
        manifest_read(w, prefixes, err) < 0) {
        weights_close(w);
        return -1;
    }
    if (prefetch_new(&w->prefetch, w->st.map, w->st.size) < 0) {
        weights_close(w);
        return kr_fail(err, KR_NO_MEMORY, "no memory to open %s", path);
    }
    *weights = w;
    return 0;
}

void weights_close(struct weights *weights)
{
    if (!weights)
        return;
    prefetch_free(weights->prefetch);
    manifest_fini(&weights->manifest);
    st_close(&weights->st);
    free(weights);
}

const char *weights_name(const struct weights *weights)
{
    return weights->st.name;
}

size_t weights_bytes(const struct weights *weights)
{
    return weights->st.size;
}

const char *weights_preview(const struct weights *weights)
{
    return weights->st.preview;
}

int weights_unchanged(const struct weights *weights, struct kr_err *err)
{
    const struct stat *then = &weights->st.stat;
    struct stat now;

    if (fstat(weights->st.fd, &now) == 0 && now.st_size == then->st_size &&
        now.st_mtim.tv_sec == then->st_mtim.tv_sec && now.st_mtim.tv_nsec == then->st_mtim.tv_nsec)
        return 0;
    return kr_fail(err, KR_BAD_FILE,
                   "%s was changed after kread opened it; restart kread when it is complete",
                   weights->st.shown);
}

int weights_shape(const struct weights *weights, const char *name, int64_t dim[8])
{
    const struct st_tensor *t = weights_find(weights, name);

    if (!t)
        return -1;
    memcpy(dim, t->dim, sizeof t->dim);
    return t->rank;
}

size_t weights_count(const struct weights *weights, const char *start)
{
    size_t count;

    weights_range(weights, start, &count);
    return count;
}
