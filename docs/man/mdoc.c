/* SPDX-License-Identifier: Apache-2.0 */
#include "docs/man/mdoc.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { LINE = 70 }; /* a word that would end beyond begins a new line of the page */

static int column; /* bytes in this line of the page */

/* One byte of text; what roff would turn into something typographical stays what it is when it is
 * copied from the page. */
static void put(char c)
{
    static const char special[] = "\\-^~`'", *const escapes[] = {"\\e",   "\\-",   "\\(ha",
                                                                 "\\(ti", "\\(ga", "\\(aq"};
    const char *at = c ? strchr(special, c) : NULL;
    column += at ? (int)strlen(escapes[at - special]) : 1;
    if (at)
        fputs(escapes[at - special], stdout);
    else
        putchar(c);
}

/* Bytes up to the next blank, with the marks of fonts as long as they will be. */
static int word_length(const char *text)
{
    int length = 0;
    for (; *text && *text != ' '; text++)
        length += *text == '`' ? 3 : 1;
    return length;
}

/* A blank of running text, which may become a new line of the page. */
static void put_blank(const char *next, bool new_line)
{
    if (!new_line && column + word_length(next) < LINE) {
        put(' ');
        return;
    }
    putchar('\n');
    column = 0;
    if (strchr(".'", *next))
        fputs("\\&", stdout);
}

static void put_all(const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++)
        put(text[i]);
}

/* Running text without marks. */
static void put_words(const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (text[i] == ' ')
            put_blank(text + i + 1, false);
        else
            put(text[i]);
}

static size_t until(const char *text, const char *end)
{
    const char *stop = strstr(text, end);
    return stop ? (size_t)(stop - text) : strlen(text);
}

static const char *put_bold(const char *text, const char *mark)
{
    size_t n = until(text, mark);
    column += 6; /* of the two marks */
    fputs("\\fB", stdout);
    put_words(text, n);
    fputs("\\fP", stdout);
    return text + n + (text[n] ? strlen(mark) : 0);
}

/* Behind the opening bracket. */
static const char *put_link(const char *text)
{
    size_t words = until(text, "](");
    const char *address = text + words + 2;
    size_t length = until(address, ")");
    put_words(text, words);
    if (strncmp(address, "http", 4) == 0) {
        put_blank(address, false);
        put('(');
        put_all(address, length);
        putchar(')');
    }
    return address + length + 1;
}

/* Whether the blank at `at` lies between two sentences. */
static bool between_sentences(const char *text, const char *at)
{
    return at - text > 2 && at[-1] == '.' && !strchr(" .", at[-2]) && at[1] &&
           ((at[1] >= 'A' && at[1] <= 'Z') || strchr("`\"[(", at[1]));
}

void mdoc_text(const char *text)
{
    const char *at = text;
    column = 0;
    if (strchr(".'", *at))
        fputs("\\&", stdout);
    while (*at) {
        if (*at == '`')
            at = put_bold(at + 1, "`");
        else if (strncmp(at, "**", 2) == 0)
            at = put_bold(at + 2, "**");
        else if (*at == '[' && strstr(at, "]("))
            at = put_link(at + 1);
        else if (*at == ' ')
            put_blank(at + 1, between_sentences(text, at)), at++;
        else
            put(*at++);
    }
    putchar('\n');
}

void mdoc_argument(const char *text)
{
    putchar('"');
    if (strlen(text) <= 3) /* it might be the name of a macro, or punctuation that moves */
        fputs("\\&", stdout);
    for (; *text; text++)
        if (*text == '"')
            fputs("\\(dq", stdout);
        else
            put(*text);
    putchar('"');
}

void mdoc_literal(const char *text)
{
    if (strchr(".'", *text))
        fputs("\\&", stdout);
    put_all(text, strlen(text));
    putchar('\n');
}
