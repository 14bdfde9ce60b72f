/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/notice.h"

#include <string.h>

enum { PROMPT_SHOWN = 200 };

/* A point in time, nil while it has not come. */
static void put_time(struct kr_out *out, const char *key, double value)
{
    kr_out_key(out, key);
    if (value > 0)
        kr_out_real(out, value);
    else
        kr_out_nil(out);
}

/* ---------------------------------------------------------------------------- progress ------- */

static void put_progress(struct kr_out *out, const struct job *job)
{
    const struct engine_progress *p = &job->progress;
    kr_out_map(out, 10);
    kr_out_pair_int(out, "job", (int64_t)job->id);
    kr_out_pair_text(out, "state", job_state_name(job));
    kr_out_pair_int(out, "position", job->position);
    kr_out_pair_text(out, "stage", job->stage[0] ? job->stage : NULL);
    kr_out_pair_int(out, "step", p->step);
    kr_out_pair_int(out, "steps", p->steps);
    kr_out_pair_int(out, "image", p->image);
    kr_out_pair_int(out, "count", job->params.count);
    kr_out_pair_real(out, "elapsed", p->elapsed);
    kr_out_key(out, "remaining");
    if (job->stage[0] && p->remaining >= 0)
        kr_out_real(out, p->remaining);
    else
        kr_out_nil(out);
}

void notice_progress(struct kr_out *out, const struct job *job)
{
    kr_out_notice(out, "progress");
    put_progress(out, job);
}

/* ---------------------------------------------------------------------------- jobs ----------- */

/* The prompt's first bytes, cut between characters. */
static void put_prompt(struct kr_out *out, const char *prompt)
{
    char text[PROMPT_SHOWN + 1];
    size_t n = strnlen(prompt ? prompt : "", PROMPT_SHOWN + 1);
    if (n > PROMPT_SHOWN) {
        n = PROMPT_SHOWN;
        while (n > 0 && ((unsigned char)prompt[n] & 0xc0) == 0x80)
            n--;
    }
    memcpy(text, prompt ? prompt : "", n);
    text[n] = '\0';
    kr_out_pair_text(out, "prompt", text);
}

void notice_job(struct kr_out *out, const struct job *job)
{
    const struct kr_params *p = &job->params;
    kr_out_map(out, 17);
    kr_out_pair_int(out, "job", (int64_t)job->id);
    kr_out_pair_text(out, "state", job_state_name(job));
    kr_out_pair_int(out, "position", job_position(job));
    kr_out_pair_bool(out, "detach", job->detach);
    kr_out_pair_text(out, "client", job->client);
    put_prompt(out, p->prompt);
    kr_out_pair_int(out, "seed", p->seed);
    kr_out_pair_int(out, "width", p->width);
    kr_out_pair_int(out, "height", p->height);
    kr_out_pair_int(out, "steps", p->steps);
    kr_out_pair_int(out, "count", p->count);
    put_time(out, "submitted_at", job->submitted_at);
    put_time(out, "started_at", job->started_at);
    put_time(out, "finished_at", job->finished_at);
    kr_out_key(out, "progress");
    if (job->state == JOB_RUNNING)
        put_progress(out, job);
    else
        kr_out_nil(out);
    kr_out_pair_int(out, "images", job_kept(job));
    kr_out_key(out, "error");
    if (job->state == JOB_FAILED)
        kr_out_error_map(out, &job->error);
    else
        kr_out_nil(out);
}

/* ---------------------------------------------------------------------------- results -------- */

void notice_image(struct kr_out *out, const struct job *job, const struct image *image)
{
    kr_out_notice(out, "image");
    kr_out_map(out, 6);
    kr_out_pair_int(out, "job", (int64_t)job->id);
    kr_out_pair_int(out, "index", image->index);
    kr_out_pair_int(out, "seed", image->seed);
    kr_out_pair_int(out, "width", image->width);
    kr_out_pair_int(out, "height", image->height);
    kr_out_key(out, "png");
    kr_out_bytes(out, image->png, image->size);
}

static double seconds(uint64_t from, uint64_t to)
{
    return to > from ? (double)(to - from) / 1e9 : 0;
}

static void put_done(struct kr_out *out, const struct job *job)
{
    kr_out_map(out, 5);
    kr_out_pair_int(out, "job", (int64_t)job->id);
    kr_out_pair_int(out, "seed", job->params.seed);
    kr_out_pair_int(out, "count", job->params.count);
    kr_out_key(out, "times");
    kr_out_map(out, 6);
    kr_out_pair_real(out, "queued", seconds(job->submitted_ns, job->started_ns));
    kr_out_pair_real(out, "encode", job->times.encode);
    kr_out_pair_real(out, "denoise", job->times.denoise);
    kr_out_pair_real(out, "decode", job->times.decode);
    kr_out_pair_real(out, "png", job->times.png);
    kr_out_pair_real(out, "total", seconds(job->submitted_ns, job->finished_ns));
    kr_out_pair_int(out, "peak", (int64_t)job->times.peak);
}

void notice_end(struct kr_out *out, const struct job *job)
{
    kr_out_notice(out, job_state_name(job));
    if (job->state == JOB_DONE) {
        put_done(out, job);
        return;
    }
    kr_out_map(out, job->state == JOB_FAILED ? 2 : 1);
    kr_out_pair_int(out, "job", (int64_t)job->id);
    if (job->state == JOB_FAILED) {
        kr_out_key(out, "error");
        kr_out_error_map(out, &job->error);
    }
}
