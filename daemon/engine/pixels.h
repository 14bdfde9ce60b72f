/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KR_ENGINE_PIXELS_H
#define KR_ENGINE_PIXELS_H

#include <stdint.h>

#include "proto/fields.h"

/* Pixels [first, first + count) of the decoder's planes [3, pixels], -1 black and 1 white, to 8-bit
 * RGB at the same place of rgb. */
void pixels_from_planes(enum kr_dialect dialect, const float *planes, int64_t pixels, int64_t first,
                        int64_t count, uint8_t *rgb);

#endif
