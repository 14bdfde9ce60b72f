/* SPDX-License-Identifier: Apache-2.0
 *
 * The one error type that crosses rooms. A function that can fail because of something outside the
 * program (a file, a request, a full disk) returns -1 and fills a struct kr_err: a code that a
 * program can act on and one sentence that names the thing and the way out. Its caller owns the
 * struct; nothing in it needs freeing. Bugs are asserts, never errors.
 */
#ifndef KR_PROTO_ERR_H
#define KR_PROTO_ERR_H

#include <stdarg.h>

enum kr_code {
    KR_OK = 0,
    KR_BAD_REQUEST, /* a field is unknown, has the wrong type or lies out of range */
    KR_BAD_FRAME, /* the bytes are no message of this protocol; the connection is closed after it */
    KR_BAD_METHOD,  /* no such method */
    KR_BAD_VERSION, /* the other side speaks another version of the protocol */
    KR_BAD_FILE,    /* a model file, tokenizer or config file is damaged or not what it should be */
    KR_BAD_CONFIG,  /* the settings contradict themselves or name something that is not there */
    KR_NO_JOB,      /* no job of that name */
    KR_FORBIDDEN,   /* the caller may not do that */
    KR_BUSY,        /* the queue is full */
    KR_SHUTDOWN,    /* the daemon is stopping */
    KR_CANCELLED,   /* the job was cancelled */
    KR_NO_MEMORY,   /* host or device memory does not suffice for this job */
    KR_NOT_FINITE,  /* NaN or infinity in a latent or a picture */
    KR_DEVICE,      /* the device failed for good; the daemon ends after replying */
    KR_IO,          /* a system call failed */
    KR_NO_DAEMON,   /* nobody listens on the socket */
    KR_CODES
};

struct kr_err {
    enum kr_code code;
    char text[480];
};

/* Fills err (which may be NULL) and returns -1, so that `return kr_fail(err, ...)` reads well. The
 * text is cut where it does not fit, and control characters in it become '?'. */
int kr_fail(struct kr_err *err, enum kr_code code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The wire name of a code ("bad_request", "busy", ...); never NULL. */
const char *kr_code_name(enum kr_code code);

/* The code of a wire name; KR_CODES for a name that this version does not know. */
enum kr_code kr_code_from_name(const char *name);

#endif
