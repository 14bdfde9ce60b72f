/* SPDX-License-Identifier: Apache-2.0
 *
 * The state directory: files of detached jobs, and the last number given to a job.
 *
 *   DIR/lock                 locked while a daemon uses DIR
 *   DIR/number               a decimal number: no job has had a higher one
 *   DIR/jobs/JOB.job         a job's record (proto/record.h)
 *   DIR/jobs/JOB.failed      its last one: it failed, and a full disk did not take that record;
 *   DIR/jobs/JOB.cancelled   it was cancelled likewise
 *   DIR/jobs/JOB-INDEX.png   a finished picture of it
 *   DIR/damaged/             what could not be read, under its name
 *
 * A file appears under its name whole or not at all, and stays through a power cut once the
 * function that wrote it has returned 0: it is written as NAME.part, synced, renamed, and the
 * folder synced. A job's pictures are removed before its record, so a picture always has one.
 *
 * Every function here waits for the disk. spool_open() and spool_close() belong to the loop's
 * thread, before and after the others; the others may be called by any thread, and two threads
 * must not write the same name at once: records and `number` are written by the loop's tasks, one
 * after the other (keep.c), and pictures by the worker.
 */
#ifndef KR_SPOOL_H
#define KR_SPOOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/err.h"

enum { SPOOL_NAME = 64 }; /* bytes that a file's name fits in */

/* What a file of a job is; from 0 on the picture of that index. */
enum { SPOOL_RECORD = -1, SPOOL_FAILED = -2, SPOOL_CANCELLED = -3 };

struct spool {
    char *dir;
    int lock_fd, dir_fd, jobs_fd; /* -1: not open */
};

/* Makes DIR where it is missing and locks it. -1: KR_BUSY another daemon has it, KR_IO it cannot be
 * used; the sentence says which folder and why. */
int spool_open(struct spool *s, const char *dir, struct kr_err *err);
void spool_close(struct spool *s); /* also of one that is not open */
bool spool_is_open(const struct spool *s);

void spool_name(char name[SPOOL_NAME], uint64_t job, int64_t what);
/* false: it is no file of a job. */
bool spool_parse_name(const char *name, uint64_t *job, int64_t *what);

/* A file in jobs/. Reading refuses what is longer than `most` or no plain file (KR_BAD_FILE); *data
 * is the caller's to free. Removing what is not there is no error. */
int spool_write(const struct spool *s, const char *name, const void *data, size_t size,
                struct kr_err *err);
int spool_read(const struct spool *s, const char *name, size_t most, void **data, size_t *size,
               struct kr_err *err);
int spool_remove(const struct spool *s, const char *name, struct kr_err *err);

/* Gives a file in jobs/ another name, which a full disk may still do. Whether that outlives a power
 * cut is for the disk to say. */
int spool_rename(const struct spool *s, const char *name, const char *to, struct kr_err *err);

/* Moves it from jobs/ to damaged/, next to what has that name already. */
int spool_set_aside(const struct spool *s, const char *name, struct kr_err *err);

/* Calls `each` for every job file; what an interrupted write left behind is removed. */
int spool_list(const struct spool *s,
               void (*each)(void *user, const char *name, uint64_t job, int64_t what, size_t size),
               void *user, struct kr_err *err);
int64_t spool_damaged(const struct spool *s); /* how many files lie in damaged/ */

/* *number is 0 where there is no file yet. */
int spool_number(const struct spool *s, uint64_t *number, struct kr_err *err);
int spool_set_number(const struct spool *s, uint64_t number, struct kr_err *err);

#endif
