/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KR_ENGINE_UTF8_H
#define KR_ENGINE_UTF8_H

#include <stdint.h>

/* The code point at *s, which is moved past it; U+FFFD for a byte that starts no valid character.
 * Not to be called at the end of the text. */
uint32_t utf8_next(const char **s);

#endif
