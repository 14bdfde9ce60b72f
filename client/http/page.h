/* SPDX-License-Identifier: Apache-2.0
 *
 * The page's files, which stand in the program (page.S). A file that comes to client/page/ is a
 * line there and one in page_files.c.
 */
#ifndef KR_HTTP_PAGE_H
#define KR_HTTP_PAGE_H

#include <stddef.h>

struct page_file {
    const char *path; /* "/page.css"; the page itself is "/" */
    const char *type;
    const char *start, *end;
};

extern const struct page_file page_files[];
extern const size_t page_file_count;

#endif
