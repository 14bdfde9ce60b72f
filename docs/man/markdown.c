/* SPDX-License-Identifier: Apache-2.0
 *
 * The part of Markdown that docs/protocol.md uses: headings, paragraphs, lists, tables, blocks of
 * code. Two things become something else: a table becomes a list, since terminals are too narrow
 * for it, with the first cell as the term and the name of a column before its cell; and the list of
 * contents, whose lines are links into the page, goes, because a manual page has none. tests/docs
 * holds the two texts against each other, word by word.
 */
#include "docs/man/markdown.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "docs/man/mdoc.h"

enum { MAX_CELLS = 8, BLOCK_SIZE = 8192 };

enum block { BLOCK_NONE, BLOCK_PARAGRAPH, BLOCK_ITEM, BLOCK_TABLE, BLOCK_CODE, BLOCK_FENCED };

struct page {
    enum block block;
    bool list;             /* inside .Bl */
    bool first;            /* nothing printed since the heading: .Pp would be too much */
    char text[BLOCK_SIZE]; /* of the paragraph or item, its lines joined */
    char column[MAX_CELLS][60];
    int row; /* of the table */
};

/* --------------------------------------------------------------------------------- blocks ---- */

static void end_list(struct page *p)
{
    if (p->list)
        puts(".El");
    p->list = false;
}

static void begin_list(struct page *p, const char *kind)
{
    if (!p->list)
        printf(".Bl %s\n", kind);
    p->list = true;
}

static void space(struct page *p)
{
    if (!p->first)
        puts(".Pp");
    p->first = false;
}

/* What was collected goes out. */
static void end_block(struct page *p)
{
    if (p->block == BLOCK_PARAGRAPH) {
        space(p);
        mdoc_text(p->text);
    } else if (p->block == BLOCK_ITEM) {
        puts(".It");
        mdoc_text(p->text);
    } else if (p->block == BLOCK_CODE || p->block == BLOCK_FENCED) {
        puts(".Ed");
    } else if (p->block == BLOCK_TABLE) {
        end_list(p);
    }
    p->text[0] = 0;
    p->block = BLOCK_NONE;
}

static void collect(struct page *p, const char *line)
{
    size_t used = strlen(p->text);
    snprintf(p->text + used, sizeof p->text - used, "%s%s", used ? " " : "", line);
}

static void heading(struct page *p, const char *line)
{
    bool top = line[2] == ' ';
    const char *title = line + (top ? 3 : 4);
    end_block(p);
    end_list(p);
    fputs(top ? ".Sh " : ".Ss ", stdout);
    if (strcmp(title, "Errors") == 0)
        title = "Errors of requests"; /* the bare word is a section of system calls' pages */
    for (; *title; title++)
        putchar(top ? toupper((unsigned char)*title) : *title);
    putchar('\n');
    p->first = true;
}

static void code(struct page *p, enum block kind, const char *line)
{
    if (p->block != kind) {
        end_block(p);
        end_list(p);
        puts(".Bd -literal -offset 2n");
        p->first = false;
    }
    p->block = kind;
    if (line)
        mdoc_literal(line);
}

/* ---------------------------------------------------------------------------------- tables --- */

static int split(char *line, char *cells[MAX_CELLS])
{
    int n = 0;
    for (char *at = line + 1; n < MAX_CELLS && strchr(at, '|'); n++) {
        char *end = strchr(at, '|');
        while (*at == ' ')
            at++;
        cells[n] = at;
        for (char *last = end; last > at && last[-1] == ' '; last--)
            last[-1] = 0;
        *end = 0;
        at = end + 1;
    }
    return n;
}

static void table_row(struct page *p, char *cells[MAX_CELLS], int n)
{
    char text[2048];
    int last = n - 1;
    fputs(".It ", stdout);
    mdoc_text(cells[0]);
    for (int i = 1; i < n; i++) {
        if (!cells[i][0])
            continue;
        if (p->column[i][0] && n > 2)
            snprintf(text, sizeof text, "%s: %s.", p->column[i], cells[i]);
        else
            snprintf(text, sizeof text, "%s%s", cells[i], i < last ? "." : "");
        mdoc_text(text);
    }
}

static void table_line(struct page *p, char *line)
{
    char *cells[MAX_CELLS];
    if (p->block != BLOCK_TABLE) {
        end_block(p);
        end_list(p);
        p->row = 0;
    }
    p->block = BLOCK_TABLE;
    int n = split(line, cells);
    if (p->row == 0)
        for (int i = 0; i < n; i++)
            snprintf(p->column[i], sizeof p->column[i], "%s", cells[i]);
    if (p->row == 1) /* the line of dashes */
        begin_list(p, "-tag -width Ds");
    if (p->row > 1)
        table_row(p, cells, n);
    p->row++;
    p->first = false;
}

/* ----------------------------------------------------------------------------------- lines --- */

static bool is_contents(const char *line)
{
    return strncmp(line, "- [", 3) == 0 && strstr(line, "](#");
}

static void text_line(struct page *p, const char *line)
{
    bool item = strncmp(line, "- ", 2) == 0;
    if (item) {
        end_block(p);
        begin_list(p, "-bullet");
        p->block = BLOCK_ITEM;
        p->first = false;
        line += 2;
    } else if (p->block != BLOCK_PARAGRAPH && p->block != BLOCK_ITEM) {
        end_block(p);
        end_list(p);
        p->block = BLOCK_PARAGRAPH;
    }
    collect(p, line + strspn(line, " "));
}

static void line(struct page *p, char *text)
{
    bool in_text = p->block == BLOCK_PARAGRAPH || p->block == BLOCK_ITEM;
    if (p->block == BLOCK_FENCED && strncmp(text, "```", 3) != 0)
        mdoc_literal(text);
    else if (strncmp(text, "```", 3) == 0 && p->block == BLOCK_FENCED)
        end_block(p);
    else if (strncmp(text, "```", 3) == 0)
        code(p, BLOCK_FENCED, NULL);
    else if (strncmp(text, "## ", 3) == 0 || strncmp(text, "### ", 4) == 0)
        heading(p, text);
    else if (strncmp(text, "    ", 4) == 0 && !in_text)
        code(p, BLOCK_CODE, text + 4);
    else if (text[0] == '|')
        table_line(p, text);
    else if (text[0])
        text_line(p, text);
    else
        end_block(p);
}

void markdown_print(char *page)
{
    struct page p = {.first = true};
    bool contents = false;
    char *text;
    while ((text = strsep(&page, "\n"))) {
        if (strncmp(text, "<!--", 4) == 0 || strncmp(text, "# ", 2) == 0)
            continue;
        contents = is_contents(text) || (contents && strncmp(text, "  ", 2) == 0);
        if (!contents)
            line(&p, text);
    }
    end_block(&p);
    end_list(&p);
}
