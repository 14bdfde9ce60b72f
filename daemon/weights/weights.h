/* SPDX-License-Identifier: Apache-2.0
 *
 * Files to weights. A struct weights is one opened model file: its header checked, its data mapped,
 * its quantization manifest read. A model binds its tensors by name, strictly: whatever is missing,
 * extra, of the wrong shape or type, or without the scale it needs is an error that names file and
 * tensor. All dimensions come from the shapes.
 *
 * Binding runs twice over the same code: with dev NULL it only checks (for --inspect and for start,
 * so that nothing is allocated for files that do not fit), then with a device it also makes the
 * small vectors. Matrices and convolution kernels stay in the mapping in their stored format.
 *
 * Threads: an opened file is immutable; a binder belongs to one thread.
 */
#ifndef KR_WEIGHTS_H
#define KR_WEIGHTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"
#include "proto/err.h"

struct weights;

/* Opens and checks a safetensors file and its quantization manifest. prefixes[] (NULL-terminated,
 * "" among them) lists what may stand before the model's own names; the one that fits `probe` (a
 * tensor that every file of this kind has) is stripped from tensors and metadata alike. A file that
 * has the probe under none, or under two of them, is refused. `what` names the kind of file in
 * messages: "diffusion model". */
int weights_open(const char *path, const char *what, const char *const *prefixes, const char *probe,
                 struct weights **weights, struct kr_err *err);
void weights_close(struct weights *weights); /* NULL is fine; bound matrices die with it */

const char *weights_name(const struct weights *weights); /* file name without folder, printable */
size_t weights_bytes(const struct weights *weights);     /* of the file */

/* -1 when the file was written to or shrank since it was opened. Cheap; ask before each job: a page
 * of the mapping that is gone is fatal to the process (SIGBUS), so a changed file must not be used.
 * A file that was replaced by rename does not count as changed. */
int weights_unchanged(const struct weights *weights, struct kr_err *err);

/* How the header says that latents map to colours (its kread.latent_rgb), NULL: not at all. */
const char *weights_preview(const struct weights *weights);

/* Shape of one tensor (after prefix stripping): its rank with dim[] filled, -1 if there is none. */
int weights_shape(const struct weights *weights, const char *name, int64_t dim[8]);

/* How many tensors there are with names that start so (for counting layers: "blocks.3."). */
size_t weights_count(const struct weights *weights, const char *start);

/* "256 F8_E4M3 scaled, 174 BF16", for reports; snprintf-like. */
int weights_summary(const struct weights *weights, char *buf, size_t size);

/* Advice to the kernel about the mapping of the file: wanted soon (read ahead by a thread of the
 * lowest priority; returns at once), or not for now (pages stay in the page cache but leave this
 * process). Called by the thread that uses the file. */
void weights_want(const struct weights *weights);
void weights_release(const struct weights *weights);

/* ------------------------------------------------------------------------------ binding ------ */

/* The first failure is kept and later calls do nothing: a model's tensors read as a table. */
struct binder {
    const struct weights *weights;
    struct kr_device *dev; /* NULL: check only */
    struct kr_err *err;
    bool failed;
    unsigned char *used; /* a mark for each tensor of the file */
};

int binder_init(struct binder *b, const struct weights *weights, struct kr_device *dev,
                struct kr_err *err);

/* A linear map LAYER.weight [out, in] (a 1x1 convolution [out, in, 1, 1] is one too) with its scale
 * and manifest entry; and LAYER.bias [out]. */
void bind_linear(struct binder *b, struct kr_weight *w, int64_t out, int64_t in, const char *layer,
                 ...) __attribute__((format(printf, 5, 6)));
void bind_linear_bias(struct binder *b, struct kr_weight *w, int64_t out, int64_t in,
                      const char *layer, ...) __attribute__((format(printf, 5, 6)));

/* A small tensor as F32 in device memory, `plus` added to each value (RMS norms that multiply by
 * 1 + scale). d1 0: rank 1. Any shape with the right number of elements is taken when the ones
 * are dropped ([n,1,1,1] for [n]), and flat for [d0, d1] and the other way round. */
void bind_vector(struct binder *b, struct kr_tensor *t, int64_t d0, int64_t d1, float plus,
                 const char *name, ...) __attribute__((format(printf, 6, 7)));

/* The same values into `t`, which is memory of the device already; data NULL while checking. */
void bind_vector_into(struct binder *b, struct kr_tensor t, int64_t d0, int64_t d1, float plus,
                      const char *name, ...) __attribute__((format(printf, 6, 7)));

/* A convolution LAYER.weight [out, in, k, k] or [out, in, kt, k, k] with LAYER.bias. */
void bind_conv(struct binder *b, struct kr_conv *conv, int64_t out, int64_t in, int64_t k,
               const char *layer, ...) __attribute__((format(printf, 6, 7)));

/* Tensors that the file may have and nobody needs (encoder halves, vision towers): names that start
 * so count as used. Whether one of them is there is said by the return value. */
bool bind_ignore(struct binder *b, const char *start);

/* -1 if anything failed or a tensor is left over that nobody asked for. Frees the marks. */
int binder_end(struct binder *b);

#endif
