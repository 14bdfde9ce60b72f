/* SPDX-License-Identifier: Apache-2.0
 *
 * A page of docs/ as the body of a manual page, so that the same facts are not written twice.
 */
#ifndef KR_MAN_MARKDOWN_H
#define KR_MAN_MARKDOWN_H

/* Writes the sections of `page`. It is taken apart. */
void markdown_print(char *page);

#endif
