/* SPDX-License-Identifier: Apache-2.0 */
#include "client/http/guard.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "client/http/base64.h"

enum { MAX_NAME = 256 };

/* The name of "name:port" or "[address]:port" without brackets and port, lower case; "" if odd. */
static void host_name(const char *host, char *name, size_t size)
{
    bool bracket = host[0] == '[';
    size_t length = strcspn(host + bracket, bracket ? "]" : ":");
    name[0] = 0;
    if (length >= size) {
        return;
    }
    for (size_t i = 0; i <= length; i++) {
        char c = i < length ? host[bracket + i] : 0;
        name[i] = (char)(c >= 'A' && c <= 'Z' ? c + 32 : c);
    }
    if (length > 0 && name[length - 1] == '.') {
        name[length - 1] = 0; /* a name's root */
    }
}

static bool is_loopback(const char *name)
{
    struct in_addr v4;
    struct in6_addr v6;
    if (strcmp(name, "localhost") == 0) {
        return true;
    }
    if (inet_pton(AF_INET, name, &v4) == 1) {
        return ntohl(v4.s_addr) >> 24 == 127;
    }
    return inet_pton(AF_INET6, name, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

static bool is_address(const char *name)
{
    unsigned char buf[16];
    return inet_pton(AF_INET, name, buf) == 1 || inet_pton(AF_INET6, name, buf) == 1;
}

/* Whether one of the blank-separated words is text, without regard to case. */
static bool listed(const char *words, const char *text)
{
    size_t wanted = strlen(text);
    for (const char *at = words ? words : ""; *at; at += strspn(at, " \t")) {
        size_t length = strcspn(at, " \t");
        size_t plain = length > 1 && at[length - 1] == '/' ? length - 1 : length;
        if (plain == wanted && strncasecmp(at, text, wanted) == 0) {
            return true;
        }
        at += length;
    }
    return false;
}

bool guard_host(const char *host, const char *hosts)
{
    char name[MAX_NAME];
    if (host == NULL) {
        return true;
    }
    host_name(host, name, sizeof name);
    return is_loopback(name) || is_address(name) || (name[0] && listed(hosts, name));
}

enum guard_origin guard_origin(const char *origin, const char *host, const char *cors)
{
    char name[MAX_NAME];
    const char *rest = origin == NULL                            ? NULL
                       : strncasecmp(origin, "http://", 7) == 0  ? origin + 7
                       : strncasecmp(origin, "https://", 8) == 0 ? origin + 8
                                                                 : "";
    if (rest == NULL || (host != NULL && rest[0] && strcasecmp(rest, host) == 0)) {
        return GUARD_SAME;
    }
    if (listed(cors, origin)) {
        return GUARD_ALLOWED;
    }
    host_name(rest, name, sizeof name);
    if (is_loopback(name)) {
        return GUARD_ALLOWED;
    }
    return listed(cors, "*") ? GUARD_ANY : GUARD_FOREIGN;
}

/* ----------------------------------------------------------------------------------- the token ---
 */

static bool same(const char *given, size_t length, const char *token)
{
    size_t wanted = strlen(token);
    unsigned char other = length != wanted;
    for (size_t i = 0; i < wanted; i++) {
        other |= (unsigned char)(token[i] ^ (length > 0 ? given[i % length] : 0));
    }
    return other == 0;
}

static bool same_basic(const char *text, const char *token)
{
    char pair[GUARD_MAX_TOKEN * 2];
    size_t length = strlen(text), size;
    if (length > sizeof pair || !base64_decode(text, length, pair, &size)) {
        return false;
    }
    const char *colon = memchr(pair, ':', size);
    const char *password = colon ? colon + 1 : pair;
    bool whole = same(pair, size, token); /* clients with one field for both */
    return same(password, size - (size_t)(password - pair), token) | whole;
}

bool guard_token(const char *authorization, const char *token)
{
    if (authorization == NULL) {
        return false;
    }
    size_t scheme = strcspn(authorization, " ");
    const char *value = authorization + scheme + strspn(authorization + scheme, " ");
    if (scheme == 6 && strncasecmp(authorization, "Bearer", 6) == 0) {
        return same(value, strlen(value), token);
    }
    return scheme == 5 && strncasecmp(authorization, "Basic", 5) == 0 && same_basic(value, token);
}
