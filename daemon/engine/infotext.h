/* SPDX-License-Identifier: Apache-2.0
 *
 * What a picture says about itself: the two texts in its PNG.
 */
#ifndef KR_ENGINE_INFOTEXT_H
#define KR_ENGINE_INFOTEXT_H

#include <stdint.h>

#include "daemon/engine/jsonout.h"
#include "proto/fields.h"

/* Where a picture comes from, names without folders. */
struct origin {
    const char *profile, *architecture, *variant;
    const char *diffusion_model, *text_encoder, *vae, *tokenizer;
};

/* The fields of p whose bit is not in `except`, each under its name, into an open object. */
void infotext_fields(struct jsonout *j, const struct kr_params *p, uint32_t except);

/* The chunk "kread": JSON with every value that made this one picture (its own seed, count 1). A
 * generate request with these values gives the same picture. The caller frees; NULL: no memory. */
char *infotext_kread(const struct origin *from, const struct kr_params *p, int64_t seed);

/* The chunk "parameters", as AUTOMATIC1111's tools read it. The caller frees; NULL: no memory. */
char *infotext_parameters(const struct origin *from, const struct kr_params *p, int64_t seed);

#endif
