/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KR_ENGINE_PNGFILE_H
#define KR_ENGINE_PNGFILE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/err.h"

struct pngfile_text {
    const char *keyword;
    const char *text; /* UTF-8 */
};

/* What is to become a file. */
struct pngfile {
    const uint8_t *rgb; /* 8 bits each */
    int64_t width, height;
    const struct pngfile_text *texts; /* chunks before the pixels */
    size_t text_count;
    bool quick;               /* at the lowest level of compression */
    const atomic_int *cancel; /* looked at between rows; may be NULL */
};

/* A complete PNG. The same input gives the same bytes. The caller frees *data. -1: KR_CANCELLED or
 * KR_NO_MEMORY. */
int pngfile_encode(const struct pngfile *picture, void **data, size_t *size, struct kr_err *err);

#endif
