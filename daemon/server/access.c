/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/access.h"

#include <ctype.h>
#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const char separators[] = ", \t";

/* ---------------------------------------------------------------------------- the lists ------ */

/* Which of the two databases a list is about. */
struct kind {
    const char *setting, *noun;
    bool (*find)(const char *name, unsigned *id);
};

static bool find_user(const char *name, unsigned *id)
{
    const struct passwd *user = getpwnam(name);
    if (user)
        *id = user->pw_uid;
    return user != NULL;
}

static bool find_group(const char *name, unsigned *id)
{
    const struct group *group = getgrnam(name);
    if (group)
        *id = group->gr_gid;
    return group != NULL;
}

/* A number stands for itself. (unsigned)-1 is nobody's. */
static bool find_number(const char *text, unsigned *id)
{
    char *end;
    if (!isdigit((unsigned char)*text))
        return false;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    *id = (unsigned)number;
    return *end == '\0' && errno == 0 && number < (unsigned)-1;
}

static int resolve(const struct kind *kind, char *text, unsigned **ids, size_t *count,
                   struct kr_err *err)
{
    char *rest;
    for (const char *name = strtok_r(text, separators, &rest); name;
         name = strtok_r(NULL, separators, &rest)) {
        unsigned *grown = realloc(*ids, (*count + 1) * sizeof **ids);
        if (!grown)
            return kr_fail(err, KR_NO_MEMORY, "out of memory");
        *ids = grown;
        if (!find_number(name, &grown[*count]) && !kind->find(name, &grown[*count]))
            return kr_fail(err, KR_BAD_CONFIG,
                           "%s names %.60s, and the system knows no such %s; correct it or take it "
                           "out",
                           kind->setting, name, kind->noun);
        ++*count;
    }
    return 0;
}

static int read_list(const struct kind *kind, const char *text, unsigned **ids, size_t *count,
                     struct kr_err *err)
{
    if (!text)
        return 0;
    char *copy = strdup(text);
    if (!copy)
        return kr_fail(err, KR_NO_MEMORY, "out of memory");
    int rc = resolve(kind, copy, ids, count, err);
    free(copy);
    return rc;
}

int access_init(struct access *a, const char *users, const char *groups, struct kr_err *err)
{
    static const struct kind user = {"allow_users", "user", find_user},
                             group = {"allow_groups", "group", find_group};
    *a = (struct access){0};
    if (read_list(&user, users, &a->users, &a->user_count, err) == 0 &&
        read_list(&group, groups, &a->groups, &a->group_count, err) == 0) {
        a->everyone = a->user_count == 0 && a->group_count == 0;
        return 0;
    }
    access_fini(a);
    return -1;
}

void access_fini(struct access *a)
{
    free(a->users);
    free(a->groups);
    *a = (struct access){0};
}

/* ---------------------------------------------------------------------------- the question --- */

static bool has(const unsigned *ids, size_t count, unsigned id)
{
    for (size_t i = 0; i < count; i++)
        if (ids[i] == id)
            return true;
    return false;
}

/* Whether one of the peer's supplementary groups, as of its connect(), is on the list. */
static bool in_groups(const struct access *a, int fd)
{
    socklen_t size = 0;
    bool found = false;
    if (a->group_count == 0)
        return false;
    getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, NULL, &size); /* says how much room it takes */
    gid_t *groups = size ? malloc(size) : NULL;
    if (groups && getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups, &size) == 0)
        for (size_t i = 0; i < size / sizeof *groups && !found; i++)
            found = has(a->groups, a->group_count, groups[i]);
    free(groups);
    return found;
}

bool access_allows(const struct access *a, int fd)
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    if (a->everyone)
        return true;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0)
        return false;
    return access_owns(peer.uid, geteuid()) || has(a->users, a->user_count, peer.uid) ||
           has(a->groups, a->group_count, peer.gid) || in_groups(a, fd);
}

bool access_owns(uid_t caller, uid_t owner)
{
    return caller == owner || caller == 0 || caller == geteuid();
}
