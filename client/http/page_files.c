/* SPDX-License-Identifier: Apache-2.0 */
#include "client/http/page.h"

#define PAGE_FILES(X)                                                                              \
    X(html, "/", "text/html; charset=utf-8")                                                       \
    X(css, "/page.css", "text/css; charset=utf-8")                                                 \
    X(icon, "/icon.svg", "image/svg+xml")                                                          \
    X(js, "/page.js", "text/javascript; charset=utf-8")                                            \
    X(api_js, "/api.js", "text/javascript; charset=utf-8")                                         \
    X(form_js, "/form.js", "text/javascript; charset=utf-8")                                       \
    X(history_js, "/history.js", "text/javascript; charset=utf-8")                                 \
    X(jobs_js, "/jobs.js", "text/javascript; charset=utf-8")                                       \
    X(png_js, "/png.js", "text/javascript; charset=utf-8")                                         \
    X(stage_js, "/stage.js", "text/javascript; charset=utf-8")                                     \
    X(words_js, "/words.js", "text/javascript; charset=utf-8")

#define DECLARE(name, path, type) extern const char kr_page_##name[], kr_page_##name##_end[];
#define ROW(name, path, type)     {path, type, kr_page_##name, kr_page_##name##_end},

PAGE_FILES(DECLARE)

const struct page_file page_files[] = {PAGE_FILES(ROW)};
const size_t page_file_count = sizeof page_files / sizeof *page_files;
