/* SPDX-License-Identifier: Apache-2.0
 *
 * What a shell needs to complete command lines of kread, kreactl and kread-http.
 */
#ifndef KR_MAN_COMPLETE_H
#define KR_MAN_COMPLETE_H

/* 0, or -1 for a shell or a program that is not known. */
int complete(const char *shell, const char *program);

#endif
