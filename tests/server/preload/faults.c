/* SPDX-License-Identifier: Apache-2.0
 *
 * A library for LD_PRELOAD that lets one system call of a program go wrong, or ends the program
 * there as a power cut would. test_faults.py builds it and walks over all calls of a kind.
 *
 *   KREAD_FAULT=CALL:N:WHAT[:ever][,CALL:N:WHAT[:ever]]
 *
 * CALL is open, read, write, fsync, close, rename, unlink, mkdir, accept, or alloc for malloc(),
 * calloc() and realloc(). The Nth one (from 1) goes wrong; with `ever` all later ones too. WHAT is
 * the number of an errno that it fails with, `kill` (the process is gone before the call), `after`
 * (it is gone when the call is done), or `short` (read and write: one byte). Only calls on files
 * below $KREAD_FAULT_DIR count, where that is set; of the kinds `accept` and `alloc` all do. When
 * a fault has happened, the file $KREAD_FAULT_MARK exists. Of two the one that kills counts from
 * the moment on when the other has happened.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum what { NOTHING, FAIL, KILL, AFTER, SHORT };

static struct plan {
    char call[16];
    long nth;
    int error;
    enum what what;
    bool ever;
    atomic_long count;
} plans[2]; /* no call: none */
static const char *dir, *mark;
static atomic_bool marked;
static _Thread_local bool inside_us;

static void read_plan(struct plan *plan, const char *text)
{
    char what[16] = "", ever[8] = "";
    if (sscanf(text, "%15[a-z]:%ld:%15[a-z0-9]:%7[a-z]", plan->call, &plan->nth, what, ever) < 3) {
        plan->call[0] = '\0';
        return;
    }
    plan->ever = strcmp(ever, "ever") == 0;
    plan->error = atoi(what);
    plan->what = strcmp(what, "kill") == 0    ? KILL
                 : strcmp(what, "after") == 0 ? AFTER
                 : strcmp(what, "short") == 0 ? SHORT
                                              : FAIL;
}

__attribute__((constructor)) static void read_plans(void)
{
    const char *text = getenv("KREAD_FAULT"), *second = text ? strchr(text, ',') : NULL;
    dir = getenv("KREAD_FAULT_DIR");
    mark = getenv("KREAD_FAULT_MARK");
    if (text)
        read_plan(&plans[0], text);
    if (second)
        read_plan(&plans[1], second + 1);
}

/* The fault that is meant for this call, NULL: none. */
static struct plan *plan_of(const char *call)
{
    for (int i = 0; i < 2; i++)
        if (strcmp(call, plans[i].call) == 0 && (i == 0 || marked))
            return &plans[i];
    return NULL;
}

static void leave_mark(void)
{
    marked = true;
    if (!mark)
        return;
    long fd = syscall(SYS_openat, AT_FDCWD, mark, O_WRONLY | O_CREAT, 0600);
    if (fd >= 0)
        syscall(SYS_close, fd);
}

static void die(void)
{
    syscall(SYS_kill, getpid(), SIGKILL);
}

/* Whether the file, or NAME in the folder, lies where faults are wanted. */
static bool counts(int fd, const char *name)
{
    char link[64], path[PATH_MAX];
    if (!dir || !*dir)
        return true;
    if (name && *name == '/')
        return strncmp(name, dir, strlen(dir)) == 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    if (n < 0)
        return false;
    path[n] = '\0';
    return strncmp(path, dir, strlen(dir)) == 0;
}

static enum what struck(struct plan *plan)
{
    if (!plan)
        return NOTHING;
    long n = atomic_fetch_add(&plan->count, 1) + 1;
    if (n != plan->nth && !(plan->ever && n > plan->nth))
        return NOTHING;
    leave_mark();
    if (plan->what == KILL)
        die();
    errno = plan->error;
    return plan->what;
}

static enum what struck_file(const char *call, int fd, const char *name)
{
    struct plan *plan = plan_of(call);
    if (!plan || inside_us)
        return NOTHING;
    inside_us = true;
    int before = errno;
    bool ours = counts(fd, name);
    inside_us = false;
    errno = before;
    return ours ? struck(plan) : NOTHING;
}

/* ---------------------------------------------------------------------------- files ---------- */

int openat(int folder, const char *name, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    int mode = va_arg(args, int);
    va_end(args);
    enum what w = struck_file("open", folder, name);
    if (w == FAIL)
        return -1;
    int fd = (int)syscall(SYS_openat, folder, name, flags, mode);
    if (w == AFTER)
        die();
    return fd;
}

int openat64(int folder, const char *name, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    int mode = va_arg(args, int);
    va_end(args);
    return openat(folder, name, flags, mode);
}

int open(const char *name, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    int mode = va_arg(args, int);
    va_end(args);
    return openat(AT_FDCWD, name, flags, mode);
}

int open64(const char *name, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    int mode = va_arg(args, int);
    va_end(args);
    return openat(AT_FDCWD, name, flags, mode);
}

ssize_t read(int fd, void *data, size_t size)
{
    enum what w = struck_file("read", fd, NULL);
    if (w == FAIL)
        return -1;
    ssize_t n = syscall(SYS_read, fd, data, w == SHORT && size > 1 ? 1 : size);
    if (w == AFTER)
        die();
    return n;
}

ssize_t write(int fd, const void *data, size_t size)
{
    enum what w = struck_file("write", fd, NULL);
    if (w == FAIL)
        return -1;
    ssize_t n = syscall(SYS_write, fd, data, w == SHORT && size > 1 ? 1 : size);
    if (w == AFTER)
        die();
    return n;
}

ssize_t writev(int fd, const struct iovec *parts, int n)
{
    enum what w = struck_file("write", fd, NULL);
    if (w == FAIL)
        return -1;
    if (w == SHORT && n > 0 && parts[0].iov_len > 1)
        return syscall(SYS_write, fd, parts[0].iov_base, 1);
    return syscall(SYS_writev, fd, parts, n);
}

int fsync(int fd)
{
    enum what w = struck_file("fsync", fd, NULL);
    if (w == FAIL)
        return -1;
    int rc = (int)syscall(SYS_fsync, fd);
    if (w == AFTER)
        die();
    return rc;
}

/* It closes even where it fails, as Linux does. */
int close(int fd)
{
    enum what w = struck_file("close", fd, NULL);
    int why = errno, rc = (int)syscall(SYS_close, fd);
    if (w == AFTER)
        die();
    if (w == FAIL) {
        errno = why;
        return -1;
    }
    return rc;
}

int renameat(int from, const char *old, int to, const char *new)
{
    enum what w = struck_file("rename", from, old);
    if (w == FAIL)
        return -1;
    int rc = (int)syscall(SYS_renameat2, from, old, to, new, 0);
    if (w == AFTER)
        die();
    return rc;
}

int unlinkat(int folder, const char *name, int flags)
{
    enum what w = struck_file("unlink", folder, name);
    if (w == FAIL)
        return -1;
    int rc = (int)syscall(SYS_unlinkat, folder, name, flags);
    if (w == AFTER)
        die();
    return rc;
}

int mkdirat(int folder, const char *name, mode_t mode)
{
    enum what w = struck_file("mkdir", folder, name);
    if (w == FAIL)
        return -1;
    int rc = (int)syscall(SYS_mkdirat, folder, name, mode);
    if (w == AFTER)
        die();
    return rc;
}

int mkdir(const char *name, mode_t mode)
{
    return mkdirat(AT_FDCWD, name, mode);
}

int accept4(int fd, struct sockaddr *address, socklen_t *length, int flags)
{
    if (struck(plan_of("accept")) == FAIL)
        return -1;
    return (int)syscall(SYS_accept4, fd, address, length, flags);
}

/* ---------------------------------------------------------------------------- memory --------- */

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *old, size_t size);

/* Where libuv and libc lie: libuv aborts where it cannot grow its own tables or start its threads,
 * and says so; the program's allocations are those that count. What libc allocates for it, strdup()
 * and the like, is asked for below. */
static struct range {
    uintptr_t from, to;
} others[32];
static int other_count;

__attribute__((constructor)) static void find_others(void)
{
    char line[512];
    inside_us = true;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        if ((strstr(line, "libuv") || strstr(line, "libc.so") || strstr(line, "ld-linux")) &&
            other_count < 32) {
            struct range *r = &others[other_count];
            other_count += sscanf(line, "%lx-%lx", &r->from, &r->to) == 2;
        }
    if (maps)
        fclose(maps);
    inside_us = false;
}

static bool no_memory(const void *caller)
{
    struct plan *plan = plan_of("alloc");
    if (!plan || inside_us)
        return false;
    for (int i = 0; i < other_count; i++)
        if ((uintptr_t)caller >= others[i].from && (uintptr_t)caller < others[i].to)
            return false;
    return struck(plan) == FAIL;
}

#define REFUSED no_memory(__builtin_return_address(0))

void *malloc(size_t size)
{
    return REFUSED ? NULL : __libc_malloc(size);
}

void *calloc(size_t n, size_t size)
{
    return REFUSED ? NULL : __libc_calloc(n, size);
}

void *realloc(void *old, size_t size)
{
    return REFUSED ? NULL : __libc_realloc(old, size);
}

char *strndup(const char *text, size_t most)
{
    size_t size = strnlen(text, most);
    char *copy = REFUSED ? NULL : __libc_malloc(size + 1);
    if (copy) {
        memcpy(copy, text, size);
        copy[size] = '\0';
    }
    return copy;
}

char *strdup(const char *text)
{
    size_t size = strlen(text) + 1;
    char *copy = REFUSED ? NULL : __libc_malloc(size);
    return copy ? memcpy(copy, text, size) : NULL;
}

static int format(char **text, const char *how, va_list args, bool refused)
{
    va_list again;
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, how, args);
    *text = refused || n < 0 ? NULL : __libc_malloc((size_t)n + 1);
    if (*text)
        vsnprintf(*text, (size_t)n + 1, how, again);
    va_end(again);
    return *text ? n : -1;
}

int vasprintf(char **text, const char *how, va_list args)
{
    return format(text, how, args, REFUSED);
}

int asprintf(char **text, const char *how, ...)
{
    va_list args;
    va_start(args, how);
    int n = format(text, how, args, REFUSED);
    va_end(args);
    return n;
}

/* With -D_FORTIFY_SOURCE asprintf() has this name. */
int __asprintf_chk(char **text, int flag, const char *how, ...)
{
    va_list args;
    (void)flag;
    va_start(args, how);
    int n = format(text, how, args, REFUSED);
    va_end(args);
    return n;
}
