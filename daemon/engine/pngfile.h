/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KR_ENGINE_PNGFILE_H
#define KR_ENGINE_PNGFILE_H

#include <stddef.h>
#include <stdint.h>

#include "proto/err.h"

struct pngfile_text {
    const char *keyword;
    const char *text; /* UTF-8 */
};

/* A complete PNG of 8-bit RGB pixels with text chunks before the pixels. The same input gives the
 * same bytes. The caller frees *data. */
int pngfile_encode(const uint8_t *rgb, int64_t width, int64_t height,
                   const struct pngfile_text *texts, size_t count, void **data, size_t *size,
                   struct kr_err *err);

#endif
