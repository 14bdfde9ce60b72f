/* SPDX-License-Identifier: Apache-2.0
 *
 * The methods of the protocol.
 */
#ifndef KR_METHODS_H
#define KR_METHODS_H

#include "proto/message.h"

struct conn;

/* Carries out a request and sends its answer. */
void methods_handle(struct conn *conn, const struct kr_in *request);

#endif
