/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside kernels/: what every device is made of, and what one has to supply.
 *
 * The C files of kernels/ are the half that all devices share: the sticky fault, planning, the
 * arena and the checks of shapes and types. Having checked, an operation calls the same-named
 * function of the device's const struct kr_backend. A backend's operation can therefore rely on
 * shapes; it has to care for three things only: take scratch with kr_scratch() (so that planning
 * counts it), do nothing else unless kr_live() says so, and report with kr_fault_set().
 *
 * A device of another kind embeds struct kr_device as its first member, fills `backend` and calls
 * kr_device_init(); nothing in here depends on which it is, so one can be opened at run time.
 */
#ifndef KR_KERNELS_BACKEND_H
#define KR_KERNELS_BACKEND_H

#include "kernels/kernels.h"

struct kr_backend {
    void (*close)(struct kr_device *dev);
    size_t (*free_memory)(const struct kr_device *dev);

    /* Memory of the device: the arena's one mapping, and persistent pieces. NULL: none left. */
    void *(*map)(struct kr_device *dev, size_t bytes);
    void (*unmap)(struct kr_device *dev, void *at, size_t bytes);
    void *(*alloc)(struct kr_device *dev, size_t bytes);
    void (*free)(struct kr_device *dev, void *at);
    void (*conv_fini)(struct kr_device *dev, struct kr_conv *conv);

    /* Waits for queued work and reports what went wrong in it with kr_fault_set(). */
    void (*sync)(struct kr_device *dev);
    void (*upload)(struct kr_device *dev, struct kr_tensor t, const float *host);
    void (*download)(struct kr_device *dev, struct kr_tensor t, float *host);

    /* These take scratch, so they are called while planning too. */
    void (*linear)(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x,
                   const struct kr_weight *w, enum kr_act act);
    void (*linear_add)(struct kr_device *dev, struct kr_tensor y, struct kr_tensor gate,
                       struct kr_tensor x, const struct kr_weight *w);
    /* NULL: one by one into columns of `out`. */
    void (*linear_many)(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x,
                        const struct kr_weight *const *w, int count);
    void (*attention)(struct kr_device *dev, struct kr_tensor out, const struct kr_attention *a);
    void (*conv2d)(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x,
                   struct kr_conv *conv);
    void (*conv2d_add)(struct kr_device *dev, struct kr_tensor y, struct kr_tensor x,
                       struct kr_conv *conv);

    /* These don't, and are called when there is something to compute. */
    void (*copy)(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x);
    void (*embed)(struct kr_device *dev, struct kr_tensor out, const struct kr_weight *w,
                  const int32_t *ids, int64_t n);
    /* scale.data NULL: no modulation */
    void (*rms_norm)(struct kr_device *dev, struct kr_tensor out, struct kr_tensor also,
                     struct kr_tensor x, struct kr_tensor weight, float eps, enum kr_act act,
                     struct kr_tensor scale, struct kr_tensor shift);
    void (*qk_norm_rope)(struct kr_device *dev, const struct kr_qk *qk, float eps,
                         const struct kr_rope *rope);
    void (*swiglu)(struct kr_device *dev, struct kr_tensor out, struct kr_tensor gate,
                   struct kr_tensor up);
    void (*mul_sigmoid)(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x,
                        struct kr_tensor gate);
    void (*gelu_tanh)(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x);
    void (*add)(struct kr_device *dev, struct kr_tensor out, struct kr_tensor a,
                struct kr_tensor b);
    void (*scale_rows)(struct kr_device *dev, struct kr_tensor y, struct kr_tensor factors);
    void (*add_scaled)(struct kr_device *dev, struct kr_tensor y, float a, struct kr_tensor x);
    void (*guide)(struct kr_device *dev, struct kr_tensor v, struct kr_tensor uncond,
                  float guidance);
    void (*mix_taps)(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x,
                     struct kr_tensor weight);
    void (*timestep)(struct kr_device *dev, struct kr_tensor out, float s, float period);
    void (*patchify)(struct kr_device *dev, struct kr_tensor out, struct kr_tensor z);
    void (*unpatchify)(struct kr_device *dev, struct kr_tensor z, struct kr_tensor tokens);
    void (*planes_to_pixels)(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x);
    void (*pixels_to_planes)(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x);
    void (*scale_shift)(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x,
                        struct kr_tensor scale, struct kr_tensor shift);
    void (*upsample2)(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x);
    void (*check_finite)(struct kr_device *dev, struct kr_tensor x, const char *what);

    /* Of devices with memory of their own; NULL where there is nothing to do. plan_begin is the
     * moment to forget which weights were planned; operations that take scratch tell of them. */
    enum kr_dtype (*input_dtype)(const struct kr_device *dev, const struct kr_weight *const *w,
                                 int count);
    void (*residency)(struct kr_device *dev, enum kr_residency residency, size_t ring);
    void (*plan_begin)(struct kr_device *dev);
    size_t (*plan_weights)(const struct kr_device *dev, enum kr_residency residency);
    void (*stage_end)(struct kr_device *dev); /* while planning, too */
    size_t (*weights_held)(const struct kr_device *dev);
    int (*repeat_begin)(struct kr_device *dev, struct kr_repeat key);
    void (*repeat_end)(struct kr_device *dev);
    void (*job_end)(struct kr_device *dev); /* before the arena goes */
};

/* One mapping, handed out upwards. While planning it has no memory and only counts. */
struct kr_arena {
    char *base;
    size_t size, used, peak;
};

struct kr_device {
    const struct kr_backend *backend;
    enum kr_dtype compute;
    char name[64];
    enum kr_fault fault;
    char text[320];
    const atomic_int *cancel; /* the one thing that another thread writes */
    int planning;
    struct kr_arena arena;
    struct kr_arena planned_over; /* the job's arena while planning */
    atomic_size_t prepared;       /* bytes of convolutions' kernels; another thread may read it */
    size_t plan_prepared;         /* the same of this plan, which is the plans-th */
    unsigned plans;
};

void kr_device_init(struct kr_device *dev, const struct kr_backend *backend);

/* The first fault stays; later ones are dropped. */
void kr_fault_set(struct kr_device *dev, enum kr_fault fault, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

int kr_cancelled(const struct kr_device *dev); /* the flag alone; any thread of the backend */

/* Something to compute: no fault, not planning, not cancelled (which becomes the fault). */
int kr_live(struct kr_device *dev);

/* Told at each use of `conv`, when it is prepared or planned: what the prepared form takes. */
void kr_prepared_set(struct kr_device *dev, struct kr_conv *conv, size_t bytes);

/* Bytes of the arena, 64-aligned, until the caller releases the mark it took before. NULL while
 * planning or after a fault. */
void *kr_scratch(struct kr_device *dev, size_t bytes);

/* arena.c */
enum { KR_ALIGNMENT = 64 };
int kr_arena_open(struct kr_device *dev, size_t bytes);
void kr_arena_close(struct kr_device *dev);
void *kr_arena_take(struct kr_device *dev, size_t bytes);

/* A tensor of an operation's message. */
struct kr_arg {
    const char *name;
    const struct kr_tensor *tensor;
};

/* Whether the operation may go on: `fits` is its rule, spelled out in `rule`. When it is broken
 * the fault's text names the operation, the rule and what came. */
int kr_fits(struct kr_device *dev, const char *op, int fits, const char *rule,
            const struct kr_arg *args, int count);

#define KR_FITS(dev, op, fits, rule, ...)                                                          \
    kr_fits(dev, op, fits, rule, (const struct kr_arg[]){__VA_ARGS__},                             \
            (int)(sizeof((const struct kr_arg[]){__VA_ARGS__}) / sizeof(struct kr_arg)))

#endif
