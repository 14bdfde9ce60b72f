/* SPDX-License-Identifier: Apache-2.0
 *
 * One picture from request to PNG. The server opens one engine at start, then gives it one job at a
 * time from the worker thread. engine_open(), engine_generate() and engine_close() are called by
 * one thread at a time; engine_resolve(), engine_tokens() and engine_describe() may be called by
 * any thread, any time between open and close, also during engine_generate(). Tests of the server
 * link a fake with this same interface.
 */
#ifndef KR_ENGINE_H
#define KR_ENGINE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "proto/err.h"
#include "proto/fields.h"

enum engine_device { ENGINE_DEVICE_AUTO, ENGINE_DEVICE_CUDA, ENGINE_DEVICE_CPU };
enum engine_residency { ENGINE_AUTO, ENGINE_RESIDENT, ENGINE_CACHED, ENGINE_STREAM };

/* What a profile of the config comes to, with absolute paths. Borrowed by engine_open() only. */
struct engine_config {
    const char *profile;      /* name */
    const char *architecture; /* "krea2" */
    const char *variant;      /* "turbo", "raw" */
    const char *diffusion_model, *text_encoder, *vae, *tokenizer;
    bool text_encoder_without_vision; /* the owner vouches for a file without model.visual.* */
    struct kr_params profile_defaults, generation_defaults; /* layers 2 and 3 of the precedence */
    enum engine_device device;
    enum engine_residency residency;
    bool no_fp8_products;                     /* the GPU multiplies FP8 weights in BF16 */
    int threads;                              /* 0: all */
    const char *trace;                        /* directory or NULL */
    int64_t max_pixels, max_steps, max_count; /* the owner's limits; 0: only the field table's */
};

struct engine;

/* Reads headers, checks every tensor, opens the device. Nothing is allocated for a profile whose
 * files do not fit together. */
int engine_open(const struct engine_config *config, struct engine **engine, struct kr_err *err);
void engine_close(struct engine *engine);

/* Whether this build has that device at all; for --check-config, before anything is opened. */
int engine_check_device(enum engine_device device, struct kr_err *err);

/* A report on the profile's files for --inspect: opens no device, reads headers and metadata only.
 * Prints to `out`; json: one JSON object, else lines for people. */
int engine_inspect(const struct engine_config *config, FILE *out, bool json, struct kr_err *err);

/* Effective values: request, then profile, [generation], variant, architecture; then rounding to
 * the model's grid, the random seed, and the limits. Also says that a request can't fit. `warning`
 * gets a sentence or stays "". Called by the loop thread before a job is queued. */
int engine_resolve(const struct engine *engine, struct kr_params *p, char *warning, size_t size,
                   struct kr_err *err);

struct engine_progress {
    const char *stage; /* "encode", "denoise", "decode" */
    int step, steps;   /* of the stage; encode and decode have one */
    int image, count;
    double elapsed, remaining; /* seconds; remaining < 0: not known yet */
};

struct engine_image {
    int index; /* of count */
    int64_t seed, width, height;
    const void *png; /* valid during the call */
    size_t png_size;
};

/* One job's way out. All calls come on the worker thread, between engine_generate()'s start and
 * return. `cancel` may be set by any thread at any time. */
struct engine_job {
    uint64_t id;
    const struct kr_params *params; /* resolved */
    const atomic_int *cancel;
    void *user;
    void (*progress)(void *user, const struct engine_progress *p);
    int (*image)(void *user, const struct engine_image *image, struct kr_err *err);
    /* May be NULL. params->preview > 0 asks for one after every so many steps, but the last: a
     * small RGB PNG, 1/8 of the picture each way, of what the picture will probably be. `preview`
     * has the picture's index and seed and its own width and height. Comes just before the
     * progress() of the same step. */
    void (*preview)(void *user, const struct engine_image *preview);
};

/* What one job cost. */
struct engine_times {
    double encode, denoise, decode, png; /* seconds */
    size_t peak;                         /* bytes of the job's arena */
};

/* Runs a job to its end. -1: err has KR_CANCELLED, KR_NO_MEMORY, KR_NOT_FINITE, KR_DEVICE (the
 * daemon must end) or KR_IO. */
int engine_generate(struct engine *engine, const struct engine_job *job, struct engine_times *times,
                    struct kr_err *err);

/* The ids of `text` alone, without the template. ids[] is the caller's to free. `limit` is how many
 * a prompt may have; what is beyond it is cut. Pure computation; any thread. */
int engine_tokens(const struct engine *engine, const char *text, size_t length, int32_t **ids,
                  size_t *count, size_t *limit, struct kr_err *err);

enum engine_topic {
    ENGINE_STATUS,  /* device, memory plan */
    ENGINE_INSPECT, /* files */
    ENGINE_PROFILE  /* effective defaults */
};

/* Facts as JSON text, the caller frees it; NULL: no memory. */
char *engine_describe(const struct engine *engine, enum engine_topic topic);

#endif
