/* SPDX-License-Identifier: Apache-2.0
 *
 * Standard base64 (RFC 4648, section 4).
 */
#ifndef KR_HTTP_BASE64_H
#define KR_HTTP_BASE64_H

#include <stdbool.h>
#include <stddef.h>

size_t base64_length(size_t size); /* with padding */

/* Encodes, with padding, and returns the length; no NUL. */
size_t base64_encode(const char *data, size_t size, char *out);

/* Decodes text[length] with or without padding into out, which has room for length * 3 / 4 bytes
 * and may be `text` itself. false: it is no base64. */
bool base64_decode(const char *text, size_t length, char *out, size_t *size);

#endif
