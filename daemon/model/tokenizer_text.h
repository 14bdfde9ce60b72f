/* SPDX-License-Identifier: Apache-2.0
 *
 * Text before it becomes ids: NFC and the pattern that cuts it into pieces. Private to the
 * tokenizer.
 */
#ifndef KR_TOKENIZER_TEXT_H
#define KR_TOKENIZER_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* The NFC of text[length], which is valid UTF-8. *out is NULL if it is the text itself, else the
 * caller frees it. -1 if there is no memory. */
int text_normalize(const char *text, size_t length, char **out, size_t *out_length);

struct splitter; /* the compiled pattern; for any number of threads */

struct splitter *splitter_new(void); /* NULL if there is no memory */
void splitter_free(struct splitter *splitter);

struct pieces; /* one thread's state for one splitter */

struct pieces *pieces_new(const struct splitter *splitter);
void pieces_free(struct pieces *pieces);

/* The end of the piece that starts at `start` of text[length], start < length; 0 if the pattern's
 * match needed more than its limits allow. The text is valid UTF-8 and a piece begins at start. */
size_t pieces_end(struct pieces *pieces, const char *text, size_t length, size_t start);

#endif
