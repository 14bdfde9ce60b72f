/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads a PNG back with libpng, for tests of the engine. Fails the test on anything that is wrong.
 */
#ifndef KR_TESTS_ENGINE_PNG_READ_H
#define KR_TESTS_ENGINE_PNG_READ_H

#include <stddef.h>
#include <stdint.h>

struct png_read {
    int width, height;
    uint8_t *rgb;
    int count;                  /* texts */
    char *keyword[8], *text[8]; /* UTF-8 */
    const char *chunk[8];       /* "tEXt", "zTXt" or "iTXt" */
};

void png_read_init(struct png_read *read, const void *data, size_t size);
void png_read_fini(struct png_read *read);
const char *png_read_text(const struct png_read *read, const char *keyword);
const char *png_read_chunk(const struct png_read *read, const char *keyword);

#endif
