/* SPDX-License-Identifier: Apache-2.0
 *
 * Who may ask. The socket itself is open to every program of this machine, and so to every web page
 * in its browsers: Host tells a page whose name was bent to this address (DNS rebinding), Origin
 * one that posts here from elsewhere. The token, where there is one, tells everybody else.
 */
#ifndef KR_HTTP_GUARD_H
#define KR_HTTP_GUARD_H

#include <stdbool.h>

enum { GUARD_MAX_TOKEN = 512 }; /* characters */

/* Whether the Host header (NULL: none) names this machine's loopback, a literal address, or a name
 * of `hosts` (blank-separated, NULL: none). A literal address cannot be bent. */
bool guard_host(const char *host, const char *hosts);

enum guard_origin {
    GUARD_SAME,    /* no other page's: none, or our own */
    GUARD_ALLOWED, /* of a loopback address, or of the list */
    GUARD_ANY,     /* the list has a star */
    GUARD_FOREIGN
};

enum guard_origin guard_origin(const char *origin, const char *host, const char *cors);

/* Whether an Authorization header (NULL: none) has the token, as Bearer or as Basic's password.
 * How long it takes does not depend on where they differ. */
bool guard_token(const char *authorization, const char *token);

#endif
