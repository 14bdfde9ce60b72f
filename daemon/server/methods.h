/* SPDX-License-Identifier: Apache-2.0
 *
 * The methods of the protocol.
 */
#ifndef KR_METHODS_H
#define KR_METHODS_H

#include "proto/message.h"

struct conn;
struct job;

/* Carries out a request and sends its answer. */
void methods_handle(struct conn *conn, const struct kr_in *request);

/* The answer to a cancel that had to wait for the disk. */
void methods_answer_cancel(struct conn *conn, uint32_t id, const struct job *job);

#endif
