/* SPDX-License-Identifier: Apache-2.0
 *
 * Which paths there are, and what is checked before any of them is served.
 */
#ifndef KR_HTTP_ROUTES_H
#define KR_HTTP_ROUTES_H

#include "client/http/shim.h"

enum route_method { ROUTE_GET = 1, ROUTE_POST = 2 }; /* HEAD is GET to us */

struct route {
    const char *path; /* '*' stands for one part of the path, of letters, digits, '_', '-', '.' */
    int methods;
    enum family family;
    bool open; /* needs no token */
    void (*handle)(struct request *r);
    const char *text; /* of handle_text(): a constant answer */
};

/* Sets route and family of a request, or its answer: a refusal, or what OPTIONS gets. */
void routes_find(struct request *r, const char *method, const char *url);

/* The headers that every answer has, and those for pages of other origins. */
void routes_decorate(struct request *r, struct answer *answer);

#endif
