/* SPDX-License-Identifier: Apache-2.0
 *
 * Text for mdoc(7): what people wrote without thinking of it, with what roff would take for
 * commands made harmless, and a new line after each sentence, as the pages' checkers want it.
 */
#ifndef KR_MAN_MDOC_H
#define KR_MAN_MDOC_H

/* Running text, ended by a new line. `code` and **words** become bold; [words](address) keep their
 * words, and the address where it is not one within the page. */
void mdoc_text(const char *text);

/* One argument of a macro, in quotes. */
void mdoc_argument(const char *text);

/* A line as it is, in a block of unfilled text. */
void mdoc_literal(const char *text);

#endif
