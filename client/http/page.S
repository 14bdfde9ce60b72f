/* SPDX-License-Identifier: Apache-2.0
 *
 * The files of client/page/ as bytes of the program, see page.h. The build runs in the top folder.
 */
    .section .rodata
    .macro page name, file
    .global kr_page_\name
    .global kr_page_\name\()_end
kr_page_\name:
    .incbin "\file"
kr_page_\name\()_end:
    .byte 0
    .endm

    page html, "client/page/page.html"
    page css, "client/page/page.css"
    page icon, "client/page/icon.svg"
    page js, "client/page/page.js"
    page api_js, "client/page/api.js"
    page form_js, "client/page/form.js"
    page history_js, "client/page/history.js"
    page jobs_js, "client/page/jobs.js"
    page png_js, "client/page/png.js"
    page stage_js, "client/page/stage.js"
    page words_js, "client/page/words.js"

    .section .note.GNU-stack, "", %progbits
