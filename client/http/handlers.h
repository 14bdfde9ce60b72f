/* SPDX-License-Identifier: Apache-2.0
 *
 * The handlers that the table of routes names, by file.
 */
#ifndef KR_HTTP_HANDLERS_H
#define KR_HTTP_HANDLERS_H

#include "client/http/shim.h"

/* own.c: the page and what belongs to no dialect */
void handle_page(struct request *r);
void handle_status(struct request *r);
void handle_health(struct request *r);
void handle_metrics(struct request *r); /* metrics.c */

/* own.c: asks for the daemon's status; `answer` gets the request as its user, unless -1 says that
 * the daemon is away or the request's client leaves. */
int ask_status(struct request *r, link_answer *answer);

/* jobs.c: jobs that outlive their request */
void handle_img_gen(struct request *r);
void handle_job(struct request *r);
void handle_job_cancel(struct request *r);
void handle_job_preview(struct request *r);
void handle_job_image(struct request *r);

/* render.c: requests that wait for their pictures */
void handle_txt2img(struct request *r);
void handle_generations(struct request *r);
void handle_progress(struct request *r);
void handle_interrupt(struct request *r);

/* discovery.c: what there is */
void handle_text(struct request *r);
void handle_unsupported(struct request *r);
void handle_vid_gen(struct request *r);
void handle_models(struct request *r);
void handle_options(struct request *r);
void handle_sd_models(struct request *r);
void handle_capabilities(struct request *r);
void handle_set_options(struct request *r);
void handle_memory(struct request *r);
void handle_cmd_flags(struct request *r);
void handle_png_info(struct request *r);

#endif
