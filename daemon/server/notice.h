/* SPDX-License-Identifier: Apache-2.0
 *
 * What is said about jobs, as messages: the notifications and the maps of `jobs`.
 */
#ifndef KR_NOTICE_H
#define KR_NOTICE_H

#include "daemon/server/job.h"
#include "proto/message.h"

/* The job map of `jobs` and `watch`. */
void notice_job(struct kr_out *out, const struct job *job);

/* Whole notifications. */
void notice_progress(struct kr_out *out, const struct job *job);
void notice_image(struct kr_out *out, const struct job *job, const struct image *image);
void notice_end(struct kr_out *out, const struct job *job); /* done, failed or cancelled */

#endif
