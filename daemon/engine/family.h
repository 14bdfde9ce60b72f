/* SPDX-License-Identifier: Apache-2.0
 *
 * What differs from one architecture to the next: a const struct of functions. There is one sampler
 * loop, one job, one memory plan and one report, and they know a family by this header only.
 *
 * Functions that take a device are columns of operations: they return nothing, work the same while
 * planning, and leave errors to the device. All others are pure.
 */
#ifndef KR_ENGINE_FAMILY_H
#define KR_ENGINE_FAMILY_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/engine/engine.h"
#include "daemon/engine/preview.h"
#include "daemon/engine/prompt.h"
#include "daemon/model/tokenizer.h"
#include "daemon/weights/weights.h"
#include "kernels/kernels.h"

enum part { PART_TEXT_ENCODER, PART_DIFFUSION_MODEL, PART_VAE, PARTS };

/* The opened files of a profile. */
struct parts {
    struct weights *file[PARTS];
    struct tokenizer *tokenizer;
    char tokenizer_name[64]; /* the folder's last component */
};

/* A number worth reporting about a part: {"layers", 36}. */
struct fact {
    const char *name;
    int64_t value;
};
enum { MAX_FACTS = 12 };

/* Sizes that the rest of the engine needs. */
struct family_dims {
    int64_t channels;        /* of the latent, which is [channels, h, w] */
    int64_t scale;           /* pixels of the picture to one cell of the latent, each way */
    int64_t grid;            /* width and height in pixels are multiples of this */
    int64_t taps, tap_width; /* conditioning is F32 [n, taps, tap_width] */
    int64_t text_width;      /* text is F32 [n, text_width] */
};

/* One side of guidance, in the job's arena: what the prompt became, and the rotation tables that
 * go with so many text tokens and the picture's size. */
struct branch {
    struct kr_tensor text; /* F32 [n, text_width] */
    struct kr_rope rope;
};

struct family {
    const char *architecture;
    const char *const *variants; /* NULL-terminated */

    /* The two lowest layers of the precedence: variant and architecture. Sets whatever p does not;
     * p->dialect is set. */
    void (*defaults)(const char *variant, struct kr_params *p);
    int64_t (*prompt_limit)(enum kr_dialect dialect);

    /* Opens one part, reading its header. */
    int (*open)(enum part part, const char *path, struct weights **file, struct kr_err *err);

    /* All parts to a model (heap). dev NULL: only checks, each part and that they fit together, and
     * makes a model that knows its dims and facts. */
    int (*bind)(const struct parts *parts, const struct engine_config *config,
                struct kr_device *dev, void **model, struct kr_err *err);
    void (*unbind)(void *model, struct kr_device *dev);
    void (*dims)(const void *model, struct family_dims *dims);
    int (*facts)(const void *model, enum part part, struct fact facts[MAX_FACTS]); /* how many */
    const struct preview_map *(*preview)(const void *model);

    int (*prompt)(const void *model, enum kr_dialect dialect, const char *text,
                  struct prompt *prompt, struct kr_err *err);

    /* conditioning [count - skip, taps, tap_width] of a prompt, then text [n, text_width] of that.
     */
    void (*encode)(const void *model, struct kr_device *dev, const struct prompt *prompt,
                   struct kr_tensor conditioning);
    void (*refine)(const void *model, struct kr_device *dev, struct kr_tensor conditioning,
                   struct kr_tensor text);
    struct kr_rope (*rope)(const void *model, struct kr_device *dev, int64_t n, int64_t h,
                           int64_t w);

    /* n starting values of the picture with this seed, on the host. */
    void (*noise)(const struct kr_params *p, uint64_t seed, float *out, size_t n);
    /* steps + 1 times from 1 to 0, and a time as the network is to be given it. */
    void (*schedule)(const struct kr_params *p, float *sigmas);
    float (*time)(const struct kr_params *p, float sigma);

    /* velocity = noise - picture, both F32 [channels, h, w]. */
    void (*predict)(const void *model, struct kr_device *dev, struct kr_tensor velocity,
                    struct kr_tensor latent, const struct branch *branch, float t);
    /* picture F32 [3, scale h, scale w]; rows of the latent at a time, 0: all at once. */
    void (*decode)(void *model, struct kr_device *dev, struct kr_tensor picture,
                   struct kr_tensor latent, int64_t rows); /* prepares convolutions at first use */
    double (*mu)(const struct kr_params *p, int64_t tokens); /* where p has none */
};

extern const struct family krea2;

/* The family of an architecture, or NULL with err saying which there are. */
const struct family *family_find(const char *architecture, struct kr_err *err);

#endif
