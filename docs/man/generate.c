/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes the manual pages and the completions while kread is built, out of the tables that the
 * programs themselves parse with: what a page says of an option is what the program does. Prints to
 * standard output.
 *
 *     generate page TEMPLATE [MARKDOWN]     a page of mdoc(7); @markdown stands for the other file
 *     generate bash|zsh|fish PROGRAM        completions of kread, kreactl or kread-http
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "docs/man/complete.h"
#include "docs/man/markdown.h"
#include "docs/man/pages.h"

static int fail(const char *what, const char *why)
{
    fprintf(stderr, "generate: %s: %s\n", what, why);
    return 1;
}

/* The whole file with a NUL behind it; NULL and a message if it cannot be had. */
static char *slurp(const char *path)
{
    FILE *file = fopen(path, "r");
    char *text = NULL;
    size_t size = 0;
    if (!file || getdelim(&text, &size, 0, file) < 0) {
        fail(path, strerror(errno));
        text = NULL;
    }
    if (file)
        fclose(file);
    return text;
}

static int expand(const char *template, char *text, char *markdown)
{
    char *line;
    while ((line = strsep(&text, "\n"))) {
        if (strcmp(line, "@markdown") == 0 && markdown)
            markdown_print(markdown);
        else if (line[0] == '@' && page_request(line) < 0)
            return fail(template, line);
        else if (line[0] != '@' && (*line || text))
            puts(line);
    }
    return 0;
}

static int page(const char *template, const char *markdown)
{
    char *text = slurp(template), *body = markdown ? slurp(markdown) : NULL;
    int status = text && (body || !markdown) ? expand(template, text, body) : 1;
    free(text);
    free(body);
    return status;
}

int main(int argc, char **argv)
{
    int status = 2;
    if (argc >= 3 && argc <= 4 && strcmp(argv[1], "page") == 0)
        status = page(argv[2], argv[3]);
    else if (argc == 3)
        status = complete(argv[1], argv[2]) == 0 ? 0 : fail(argv[1], argv[2]);
    if (fflush(stdout) != 0 || ferror(stdout))
        return fail("standard output", strerror(errno));
    return status;
}
