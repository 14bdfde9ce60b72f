/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KR_ENGINE_PIXELS_H
#define KR_ENGINE_PIXELS_H

#include <stdint.h>

#include "proto/fields.h"

/* The decoder's planes [3, count], -1 black and 1 white, to count RGB pixels of 8 bits. */
void pixels_from_planes(enum kr_dialect dialect, const float *planes, int64_t count, uint8_t *rgb);

#endif
