/* SPDX-License-Identifier: Apache-2.0
 *
 * Who may do what. Whoever can open the socket may submit, unless allow_users or allow_groups name
 * those who may. A job is its submitter's: he, root and the daemon's own user may cancel, fetch and
 * watch it and see its prompt.
 */
#ifndef KR_ACCESS_H
#define KR_ACCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "proto/err.h"

struct access {
    uid_t *users;
    gid_t *groups;
    size_t user_count, group_count;
    bool everyone; /* neither list names anybody */
};

/* Names or numbers, separated by commas or blanks; NULL or "" for none. A name that the system does
 * not know is refused. Asks the system's user database, which may take its time: at start and at a
 * reload only. */
int access_init(struct access *a, const char *users, const char *groups, struct kr_err *err);
void access_fini(struct access *a);

/* Whether the process at the other end of the socket may use the daemon. */
bool access_allows(const struct access *a, int fd);

/* Whether a user may have the jobs of another. */
bool access_owns(uid_t caller, uid_t owner);

#endif
