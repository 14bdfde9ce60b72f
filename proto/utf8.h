/* SPDX-License-Identifier: Apache-2.0
 *
 * UTF-8 as RFC 3629 has it: no overlong forms, no surrogates, nothing above U+10FFFF. U+0000 is a
 * character like any other.
 */
#ifndef KR_PROTO_UTF8_H
#define KR_PROTO_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of the character at s, of whose text length >= 1 bytes are left; its code point in *code,
 * which may be NULL. 0: no valid character starts here. A byte is looked at only if all those
 * before it fit. */
size_t kr_utf8_decode(const char *s, size_t length, uint32_t *code);

/* Of NUL-terminated text, not at its end: the code point at *s, which is moved past it, or U+FFFD
 * for one byte that starts no valid character. */
uint32_t kr_utf8_next(const char **s);

size_t kr_utf8_prefix(const char *s, size_t length); /* bytes before the first that is no UTF-8 */
bool kr_utf8_valid(const char *s, size_t length);

/* Writes a code point that is no surrogate and returns its bytes. */
size_t kr_utf8_encode(uint32_t code, char out[4]);

/* The escape of a JSON string at s, which is a backslash in NUL-terminated text: its bytes; out[]
 * gets the *n bytes of what it stands for, and may overlap s. 0: there is no such escape, or it
 * is one half of a pair of surrogates, or U+0000, which kread takes in no text. */
size_t kr_utf8_unescape(const char *s, char *out, size_t *n);

#endif
