/* SPDX-License-Identifier: Apache-2.0
 *
 * What a template (docs/man/NAME.in) asks for by a line that begins with '@'.
 */
#ifndef KR_MAN_PAGES_H
#define KR_MAN_PAGES_H

/* 0, or -1 where there is no such request. */
int page_request(const char *line);

#endif
