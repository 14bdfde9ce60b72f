/* SPDX-License-Identifier: Apache-2.0 */
#include "client/http/listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

union address {
    struct sockaddr sa;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

static bool is_loopback(const union address *a)
{
    return a->sa.sa_family == AF_INET ? ntohl(a->v4.sin_addr.s_addr) >> 24 == 127
                                      : IN6_IS_ADDR_LOOPBACK(&a->v6.sin6_addr);
}

static void write_name(const union address *a, char *name, size_t size)
{
    char text[INET6_ADDRSTRLEN];
    if (a->sa.sa_family == AF_INET) {
        inet_ntop(AF_INET, &a->v4.sin_addr, text, sizeof text);
        snprintf(name, size, "http://%s:%d/", text, ntohs(a->v4.sin_port));
    } else {
        inet_ntop(AF_INET6, &a->v6.sin6_addr, text, sizeof text);
        snprintf(name, size, "http://[%s]:%d/", text, ntohs(a->v6.sin6_port));
    }
}

/* "127.0.0.1:1234", "[::1]:1234", "localhost:1234" (which is 127.0.0.1). */
static int parse(const char *word, size_t length, union address *a, struct kr_err *err)
{
    char text[80] = "", *end = text;
    if (length < sizeof text) {
        memcpy(text, word, length);
        text[length] = 0;
    }
    char *colon = strrchr(text, ':');
    unsigned long port = colon ? strtoul(colon + 1, &end, 10) : 0;
    bool good = colon != NULL && colon[1] >= '0' && colon[1] <= '9' && *end == 0 && port < 65536;
    memset(a, 0, sizeof *a);
    if (good) {
        *colon = 0;
        size_t host = strlen(text);
        if (text[0] == '[' && text[host - 1] == ']') {
            text[host - 1] = 0;
            a->v6.sin6_family = AF_INET6;
            a->v6.sin6_port = htons((uint16_t)port);
            good = inet_pton(AF_INET6, text + 1, &a->v6.sin6_addr) == 1;
        } else {
            a->v4.sin_family = AF_INET;
            a->v4.sin_port = htons((uint16_t)port);
            good = inet_pton(AF_INET, strcmp(text, "localhost") == 0 ? "127.0.0.1" : text,
                             &a->v4.sin_addr) == 1;
        }
    }
    return good ? 0
                : kr_fail(err, KR_BAD_CONFIG,
                          "listen is \"%.*s\", want ADDRESS:PORT such as 127.0.0.1:1234 or "
                          "[::1]:1234",
                          (int)(length < 60 ? length : 60), word);
}

static int check(const union address *a, const char *name, bool has_token, struct kr_err *err)
{
    if (has_token || is_loopback(a)) {
        return 0;
    }
    return kr_fail(err, KR_BAD_CONFIG,
                   "%s can be reached from other machines, and everybody there could use it: set "
                   "token_file, or listen on 127.0.0.1 only",
                   name);
}

static int open_one(const union address *a, const char *name, struct kr_err *err)
{
    int on = 1, fd = socket(a->sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    socklen_t length = a->sa.sa_family == AF_INET ? sizeof a->v4 : sizeof a->v6;
    if (fd >= 0) {
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (a->sa.sa_family == AF_INET6) {
            setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
        }
    }
    if (fd >= 0 && bind(fd, &a->sa, length) == 0 && listen(fd, 512) == 0) {
        return fd;
    }
    int error = errno;
    if (fd >= 0) {
        close(fd);
    }
    errno = error;
    return kr_fail(err, error == EADDRNOTAVAIL || error == EAFNOSUPPORT ? KR_NO_JOB : KR_IO,
                   error == EADDRINUSE
                       ? "%s is taken by another program; choose another port with --listen (%s)"
                       : "cannot listen on %s: %s",
                   name, strerror(error));
}

static void keep(struct listen_set *set, int fd)
{
    union address bound;
    socklen_t length = sizeof bound;
    set->fds[set->count] = fd;
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK); /* systemd's may block */
    if (getsockname(fd, &bound.sa, &length) == 0) {      /* the port of :0 */
        write_name(&bound, set->names[set->count], sizeof set->names[0]);
    }
    set->count++;
}

static int adopt(struct listen_set *set, int count, bool has_token, struct kr_err *err)
{
    for (int fd = SD_LISTEN_FDS_START; fd < SD_LISTEN_FDS_START + count; fd++) {
        union address a;
        char name[64];
        socklen_t length = sizeof a;
        if (set->count == LISTEN_MAX || sd_is_socket_inet(fd, AF_UNSPEC, SOCK_STREAM, 1, 0) <= 0 ||
            getsockname(fd, &a.sa, &length) != 0) {
            return kr_fail(err, KR_BAD_CONFIG,
                           "systemd passed what is no listening TCP socket, or more than %d: use "
                           "ListenStream=127.0.0.1:1234",
                           LISTEN_MAX);
        }
        write_name(&a, name, sizeof name);
        if (check(&a, name, has_token, err) != 0) {
            return -1;
        }
        keep(set, fd);
    }
    return 0;
}

int listen_open(struct listen_set *set, const char *words, bool optional, bool has_token,
                bool probe, struct kr_err *err)
{
    struct kr_err why;
    int passed = probe ? 0 : sd_listen_fds(1);
    *set = (struct listen_set){.count = 0};
    if (passed > 0) {
        return adopt(set, passed, has_token, err);
    }
    kr_fail(&why, KR_BAD_CONFIG, "listen names no address");
    for (const char *at = words + strspn(words, " \t,"); *at; at += strspn(at, " \t,")) {
        union address a;
        char name[64];
        size_t length = strcspn(at, " \t,");
        if (parse(at, length, &a, err) != 0) {
            return -1;
        }
        write_name(&a, name, sizeof name);
        at += length;
        if (check(&a, name, has_token, err) != 0) {
            return -1;
        }
        if (set->count == LISTEN_MAX) {
            return kr_fail(err, KR_BAD_CONFIG, "listen names more than %d addresses", LISTEN_MAX);
        }
        int fd = probe ? -1 : open_one(&a, name, &why);
        if (fd >= 0) {
            keep(set, fd);
        } else if (probe) {
            set->count++;
        } else if (!optional || why.code != KR_NO_JOB) {
            *err = why;
            return -1;
        }
    }
    if (set->count == 0) {
        *err = why;
        return -1;
    }
    return 0;
}
