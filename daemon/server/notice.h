/* SPDX-License-Identifier: Apache-2.0
 *
 * What is said about jobs, as messages: the notifications and the maps of `jobs`.
 */
#ifndef KR_NOTICE_H
#define KR_NOTICE_H

#include "daemon/server/job.h"
#include "proto/message.h"

/* The job map of `jobs` and `watch`. own: for somebody who may have the job; others are not told
 * its prompt and its client. preview: with the newest one, if there is any. */
struct notice_view {
    bool own, preview;
};
void notice_job(struct kr_out *out, const struct job *job, struct notice_view view);

void notice_wait(struct kr_out *out, const struct job *job); /* the pair `wait` */

/* Whole notifications. */
void notice_progress(struct kr_out *out, const struct job *job, bool preview);
void notice_image(struct kr_out *out, const struct job *job, const struct image *image);
void notice_end(struct kr_out *out, const struct job *job); /* done, failed or cancelled */

/* The log's one line about a job that has ended. */
void notice_log(const struct job *job);

#endif
