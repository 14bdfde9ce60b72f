/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory: what a job will need, whether it fits, and what stays loaded between stages.
 *
 * A plan runs the job's own columns (work.c) on a device that only counts, so the number cannot
 * drift from the code. It is made twice: when a request comes in, to refuse at once what can never
 * fit, and when the job starts, because only then is it known what is free.
 *
 * Weights are mapped files. On the CPU their pages are the kernel's to keep or drop, so residency
 * says what this process asks of it: `resident` keeps every file mapped in, `cached` gives a
 * stage's pages back when the stage ends, `stream` gives the diffusion model's back after every
 * step as well. In all three the pages may stay in the page cache while nobody else wants them.
 *
 * A device with memory of its own has copies of the weights there: of all stages, of one at a time,
 * or of what a ring holds. Where the owner leaves the choice, each job takes the first of these
 * that it fits with.
 */
#include "daemon/engine/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

const char *bytes_text(size_t bytes, char buf[16])
{
    if (bytes >= 10 * (size_t)1000 * 1000 * 1000)
        snprintf(buf, 16, "%.1f GB", (double)bytes * 1e-9);
    else if (bytes >= (size_t)1000 * 1000 * 1000)
        snprintf(buf, 16, "%.2f GB", (double)bytes * 1e-9);
    else if (bytes >= 1000 * 1000)
        snprintf(buf, 16, "%.1f MB", (double)bytes * 1e-6);
    else
        snprintf(buf, 16, "%.1f kB", (double)bytes * 1e-3);
    return buf;
}

double seconds_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

const char *residency_name(enum engine_residency residency)
{
    static const char *const names[] = {"auto", "resident", "cached", "stream"};

    return names[residency];
}

/* ----------------------------------------------------------------------- planner ------ */

void planner_free(struct planner *planner, const struct family *family)
{
    if (!planner)
        return;
    if (planner->model) {
        kr_plan_begin(planner->dev);
        family->unbind(planner->model, planner->dev);
        kr_plan_end(planner->dev);
    }
    kr_device_close(planner->dev);
    pthread_mutex_destroy(&planner->lock);
    free(planner);
}

/* What a running job holds will be free again before the next one starts. Of a device's own memory
 * that is only known while none runs. */
size_t plan_free_memory(const struct engine *e)
{
    if (e->planner->pretend_free)
        return e->planner->pretend_free;
    if (kr_device_has_memory(e->planner->dev))
        return atomic_load(&e->idle_free);
    return kr_device_free_memory(e->planner->dev) + atomic_load(&e->in_use);
}

void plan_measure(struct engine *e)
{
    atomic_store(&e->idle_free, kr_device_free_memory(e->dev) + kr_weights_held(e->dev));
}

static const enum kr_residency residencies[RESIDENCIES] = {
    [ENGINE_RESIDENT] = KR_RESIDENT, [ENGINE_CACHED] = KR_CACHED, [ENGINE_STREAM] = KR_STREAM};

static void all_stages(struct work *w, int64_t rows)
{
    work_begin(w);
    for (int side = 0; side < w->sides; side++)
        work_encode(w, side, NULL);
    kr_stage_end(w->dev);
    work_picture(w);
    work_step(w, 1, -1);
    kr_stage_end(w->dev);
    work_decode(w, rows);
    kr_stage_end(w->dev);
}

/* The arena's peak of a whole job, decoded in bands of `rows`, and the weights of its stages. The
 * worker's device keeps what a job before has prepared. */
static int plan_rows(const struct engine *e, struct work *w, struct plan *plan, int64_t rows,
                     struct kr_err *err)
{
    size_t held = kr_prepared_bytes(e->dev), prepared;
    enum kr_fault fault;

    kr_plan_begin(w->dev);
    all_stages(w, rows);
    fault = kr_device_sync(w->dev);
    plan->rows = rows;
    plan->arena = kr_plan_end(w->dev);
    prepared = e->cuda ? 0 : kr_plan_prepared(w->dev); /* a GPU's count among the weights */
    plan->prepared = prepared > held ? prepared - held : 0;
    for (int r = ENGINE_RESIDENT; r <= ENGINE_STREAM; r++)
        plan->weights[r] = kr_plan_weights(w->dev, residencies[r]);
    if (fault == KR_FINE)
        return 0;
    return kr_fail(err, KR_BAD_FILE, "the model can't run this request: %s",
                   kr_device_fault_text(w->dev));
}

/* Pixels as floats, as bytes, and as a PNG that does not compress. */
static size_t host_bytes(const struct kr_params *p)
{
    return (size_t)(p->width * p->height) * 3 * (sizeof(float) + 1 + 2);
}

static size_t job_bytes(const struct engine *e, const struct plan *plan)
{
    /* of the memory that is planned */
    return plan->arena + (e->cuda ? 0 : plan->host + plan->prepared);
}

static int too_large(const struct engine *e, const struct work *w, const struct plan *plan,
                     size_t free, struct kr_err *err)
{
    char need[16], weights[16], have[16], model[96] = "the model";

    if (e->cuda)
        snprintf(model, sizeof(model), "%s for the model (residency %s)",
                 bytes_text(plan->weights[plan->residency], weights),
                 residency_name(plan->residency));
    return kr_fail(err, KR_NO_MEMORY,
                   "%" PRId64 "x%" PRId64 " with %zu prompt tokens needs %s of memory beside %s, "
                   "even decoded in bands, and %s are free; ask for fewer pixels",
                   w->p->width, w->p->height, work_tokens(w, 0),
                   bytes_text(job_bytes(e, plan), need), model, bytes_text(free, have));
}

/* Bands of fewer rows save next to nothing: they are mostly margin. */
enum { LEAST_ROWS = 8 };

/* Takes the first residency that leaves room, from the engine's on. */
static bool fits(const struct engine *e, struct plan *plan, size_t free)
{
    int last = e->residency_chosen ? ENGINE_STREAM : e->residency;

    for (int r = e->residency; r <= last; r++) {
        plan->residency = (enum engine_residency)r;
        if (job_bytes(e, plan) + plan->weights[r] <= free) {
            plan->ring = free - job_bytes(e, plan);
            return true;
        }
    }
    return false;
}

/* Whole if that fits, else the largest of ever smaller bands that does. The smallest is tried
 * before the others: if it is too large, all are, and that is said at once. */
int plan_job(const struct engine *e, struct work *w, struct plan *plan, struct kr_err *err)
{
    size_t free = plan_free_memory(e);
    int64_t rows = w->h;

    *plan = (struct plan){.host = host_bytes(w->p)};
    if (plan_rows(e, w, plan, 0, err) < 0)
        return -1;
    if (fits(e, plan, free))
        return 0;
    if (plan_rows(e, w, plan, LEAST_ROWS, err) < 0)
        return -1;
    if (!fits(e, plan, free))
        return too_large(e, w, plan, free, err);
    do {
        rows = (rows + 1) / 2 > LEAST_ROWS ? (rows + 1) / 2 : LEAST_ROWS;
        if (plan_rows(e, w, plan, rows, err) < 0)
            return -1;
    } while (!fits(e, plan, free));
    return 0;
}

int plan_request(const struct engine *e, const struct kr_params *p, struct plan *plan,
                 void (*look)(const struct work *w, void *user), void *user, struct kr_err *err)
{
    struct planner *planner = e->planner;
    struct work w;
    int rc;

    pthread_mutex_lock(&planner->lock);
    rc = work_init(&w, e->family, planner->model, planner->dev, p, err);
    if (rc == 0) {
        if (look)
            look(&w, user);
        rc = plan_job(e, &w, plan, err);
    }
    work_fini(&w);
    pthread_mutex_unlock(&planner->lock);
    return rc;
}

/* --------------------------------------------------------------------- residency ------ */

/* What is left beside the weights for pictures of a megapixel or two. */
#define JOB_ROOM ((size_t)2 << 30)

static void size_of_files(const struct engine *e, size_t *all, size_t *largest)
{
    *all = *largest = 0;
    for (int i = 0; i < PARTS; i++) {
        size_t bytes = weights_bytes(e->parts.file[i]);

        *all += bytes;
        *largest = bytes > *largest ? bytes : *largest;
    }
}

static void host_residency(struct engine *e, enum engine_residency asked)
{
    size_t all, largest, free = plan_free_memory(e);
    char a[16], b[16], c[16], d[16];

    size_of_files(e, &all, &largest);
    e->residency = asked != ENGINE_AUTO         ? asked
                   : all + JOB_ROOM <= free     ? ENGINE_RESIDENT
                   : largest + JOB_ROOM <= free ? ENGINE_CACHED
                                                : ENGINE_STREAM;
    snprintf(
        e->residency_why, sizeof(e->residency_why),
        "%s: the files take %s in all, the largest of them %s, and of %s free %s are left to jobs",
        asked == ENGINE_AUTO ? "chosen from free memory" : "set by the configuration",
        bytes_text(all, a), bytes_text(largest, b), bytes_text(free, c), bytes_text(JOB_ROOM, d));
}

/* What the default job gets; its plan has measured all three. */
static int device_residency(struct engine *e, enum engine_residency asked, struct kr_err *err)
{
    struct plan plan;
    char a[16], b[16], c[16], d[16], f[16];

    e->residency = asked != ENGINE_AUTO ? asked : ENGINE_RESIDENT;
    plan = plan_default(e);
    if (plan.arena == 0)
        return kr_fail(err, KR_NO_MEMORY, "the memory of a default picture can't be planned");
    if (asked == ENGINE_AUTO && fits(e, &plan, plan_free_memory(e)))
        e->residency = plan.residency;
    snprintf(
        e->residency_why, sizeof(e->residency_why),
        "%s: of %s free on the device a default picture takes %s, and the weights %s resident, "
        "%s cached, %s or more streamed",
        asked == ENGINE_AUTO ? "chosen from free memory" : "set by the configuration",
        bytes_text(plan_free_memory(e), a), bytes_text(plan.arena, b),
        bytes_text(plan.weights[ENGINE_RESIDENT], c), bytes_text(plan.weights[ENGINE_CACHED], d),
        bytes_text(plan.weights[ENGINE_STREAM], f));
    return 0;
}

int plan_residency(struct engine *e, enum engine_residency asked, struct kr_err *err)
{
    e->residency_chosen = asked == ENGINE_AUTO && e->cuda;
    if (e->cuda)
        return device_residency(e, asked, err);
    host_residency(e, asked);
    return 0;
}

/* Where the default size is too large, the numbers so far still say what it would take. */
static void find_default(const struct engine *e, struct plan *plan)
{
    struct kr_params p = {0};
    char warning[256];

    *plan = (struct plan){0};
    if (kr_params_set_text(&p, KR_F_PROMPT, "", 0, NULL) == 0)
        resolve_request(e, &p, warning, sizeof(warning), plan, NULL);
    kr_params_fini(&p);
}

struct plan plan_default(const struct engine *e)
{
    struct planner *planner = e->planner;
    struct plan plan;
    bool known;

    pthread_mutex_lock(&planner->lock);
    known = planner->default_known;
    plan = planner->default_plan;
    pthread_mutex_unlock(&planner->lock);
    if (known)
        return plan;
    find_default(e, &plan);
    pthread_mutex_lock(&planner->lock);
    planner->default_plan = plan;
    planner->default_known = true;
    pthread_mutex_unlock(&planner->lock);
    return plan;
}

void plan_stage_begin(const struct engine *e, enum part part)
{
    weights_want(e->parts.file[part]);
}

void plan_stage_end(const struct engine *e, enum part part)
{
    kr_stage_end(e->dev);
    if (!e->cuda && e->residency != ENGINE_RESIDENT)
        weights_release(e->parts.file[part]);
}

void plan_step_end(const struct engine *e)
{
    if (!e->cuda && e->residency == ENGINE_STREAM)
        weights_release(e->parts.file[PART_DIFFUSION_MODEL]);
}

/* Changing either gives all copies back, so what will do is left alone. */
void plan_apply(struct engine *e, const struct plan *plan)
{
    bool ring_fits = e->ring <= plan->ring && e->ring >= plan->weights[ENGINE_STREAM];

    if (e->applied == plan->residency && (e->applied != ENGINE_STREAM || ring_fits))
        return;
    e->applied = plan->residency;
    e->ring = plan->ring;
    kr_device_residency(e->dev, residencies[plan->residency], plan->ring);
}
