/* SPDX-License-Identifier: Apache-2.0
 *
 * The texts in a PNG: what the daemon wrote beside the pixels ("parameters", "kread").
 */
#ifndef KR_HTTP_PNGTEXT_H
#define KR_HTTP_PNGTEXT_H

#include <stddef.h>

/* The text of the first tEXt or uncompressed iTXt chunk of that keyword, as UTF-8, which the caller
 * frees. NULL: there is none, it is no PNG, or there is no memory. Checksums are not looked at. */
char *pngtext_get(const void *png, size_t size, const char *keyword);

#endif
