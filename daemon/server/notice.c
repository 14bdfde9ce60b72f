/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/notice.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "daemon/server/state.h"

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

void notice_wait(struct kr_out *out, const struct job *job)
{
    kr_out_key(out, "wait");
    if (job->waits && job->wait >= 0)
        kr_out_real(out, job->wait);
    else
        kr_out_nil(out);
}

static void put_progress(struct kr_out *out, const struct job *job, bool preview)
{
    const struct engine_progress *p = &job->progress;
    preview = preview && job->preview;
    kr_out_map(out, preview ? 12 : 11);
    kr_out_pair_int(out, "job", (int64_t)job->id);
    kr_out_pair_text(out, "state", job_state_name(job));
    kr_out_pair_int(out, "position", job->position);
    notice_wait(out, job);
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
    if (preview) {
        kr_out_key(out, "preview");
        kr_out_bytes(out, job->preview, job->preview_size);
    }
}

void notice_progress(struct kr_out *out, const struct job *job, bool preview)
{
    kr_out_notice(out, "progress");
    put_progress(out, job, preview);
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

void notice_job(struct kr_out *out, const struct job *job, struct notice_view view)
{
    const struct kr_params *p = &job->params;
    kr_out_map(out, 19);
    kr_out_pair_int(out, "job", (int64_t)job->id);
    kr_out_pair_text(out, "state", job_state_name(job));
    kr_out_pair_bool(out, "own", view.own);
    kr_out_pair_int(out, "position", job->position);
    notice_wait(out, job);
    kr_out_pair_bool(out, "detach", job->detach);
    kr_out_pair_text(out, "client", view.own ? job->client : NULL);
    if (view.own)
        put_prompt(out, p->prompt);
    else
        kr_out_pair_text(out, "prompt", NULL);
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
        put_progress(out, job, view.own && view.preview);
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
    return from && to > from ? (double)(to - from) / 1e9 : 0;
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

/* ---------------------------------------------------------------------------- the log -------- */

static void write_line(char *line, size_t size, const struct server_job_record *r,
                       const struct job *job)
{
    char error[600] = "";
    if (r->code)
        snprintf(error, sizeof error, " (%s: %s)", r->code, job->error.text);
    snprintf(line, size,
             "job %" PRIu64 " %s%s: uid %u, %" PRId64 "x%" PRId64 ", %" PRId64
             " steps, count %" PRId64 ", seed %" PRId64
             ", queued %.2f s, encode %.2f s, denoise %.2f s, decode %.2f s, png %.2f s, "
             "total %.2f s, peak %.1f MB",
             r->id, r->outcome, error, (unsigned)r->uid, r->width, r->height, r->steps, r->count,
             r->seed, r->queued, r->encode, r->denoise, r->decode, r->png, r->total,
             (double)r->peak / 1e6);
}

void notice_log(const struct job *job)
{
    const struct kr_params *p = &job->params;
    const struct engine_times *t = &job->times;
    const struct server_hooks *hooks = &job->server->options.hooks;
    char line[1600];
    struct server_job_record r = {
        .id = job->id,
        .uid = job->uid,
        .outcome = job_state_name(job),
        .code = job->state == JOB_FAILED ? kr_code_name(job->error.code) : NULL,
        .detach = job->detach,
        .width = p->width,
        .height = p->height,
        .steps = p->steps,
        .count = p->count,
        .seed = p->seed,
        .queued = seconds(job->submitted_ns, job->started_ns),
        .encode = t->encode,
        .denoise = t->denoise,
        .decode = t->decode,
        .png = t->png,
        .total = seconds(job->submitted_ns, job->finished_ns),
        .peak = t->peak,
        .level = job->state == JOB_FAILED ? SERVER_WARN : SERVER_INFO,
        .prompt = p->prompt,
        .line = line,
    };
    write_line(line, sizeof line, &r, job);
    if (hooks->job)
        hooks->job(&r);
    else
        hooks->log(r.level, line);
}
