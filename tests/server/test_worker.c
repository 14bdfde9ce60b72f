/* SPDX-License-Identifier: Apache-2.0
 *
 * The worker thread and the lists between it and the loop, without any socket. The engine is the
 * pretending one.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/server/job.h"

struct bench {
    uv_loop_t loop;
    uv_async_t wake;
    struct engine *engine;
    struct worker worker;
    int ends, images, starts, progress;
    int last_step, last_count, previews;
    int index[16];
    int64_t seed[16];
    uint64_t order[16]; /* ids in the order of their ends */
};

static void on_wake(uv_async_t *wake)
{
    struct bench *b = wake->data;
    struct event *next, *event = worker_events(&b->worker);
    for (; event; event = next) {
        next = event->next;
        b->starts += event->kind == EVENT_START;
        if (event->kind == EVENT_IMAGE) {
            b->index[b->images] = event->image.index;
            b->seed[b->images++] = event->image.seed;
        }
        if (event->kind == EVENT_PROGRESS) {
            b->progress++;
            b->last_step = event->progress.step;
            b->last_count = event->progress.count;
            b->previews += event->image.png != NULL;
        }
        if (event->kind == EVENT_END)
            b->order[b->ends++] = event->job->id;
        event_free(event);
    }
}

static int set_up(void **state)
{
    struct bench *b = calloc(1, sizeof *b);
    const struct engine_config config = {.profile = "test"};
    struct kr_err err;
    assert_non_null(b);
    assert_int_equal(uv_loop_init(&b->loop), 0);
    assert_int_equal(uv_async_init(&b->loop, &b->wake, on_wake), 0);
    b->wake.data = b;
    assert_int_equal(engine_open(&config, &b->engine, &err), 0);
    assert_int_equal(worker_start(&b->worker, b->engine, NULL, NULL, &b->wake, &err), 0);
    *state = b;
    return 0;
}

static int tear_down(void **state)
{
    struct bench *b = *state;
    worker_stop(&b->worker);
    worker_stop(&b->worker); /* a second time does nothing */
    uv_close((uv_handle_t *)&b->wake, NULL);
    uv_run(&b->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&b->loop), 0);
    engine_close(b->engine);
    free(b);
    return 0;
}

static struct job *make_job(struct bench *b, uint64_t id, const char *prompt)
{
    struct job *job = calloc(1, sizeof *job);
    struct kr_err err;
    char warning[100];
    assert_non_null(job);
    job->id = id;
    atomic_init(&job->cancel, 0);
    assert_int_equal(kr_params_set_text(&job->params, KR_F_PROMPT, prompt, strlen(prompt), &err),
                     0);
    assert_int_equal(engine_resolve(b->engine, &job->params, warning, sizeof warning, &err), 0);
    return job;
}

static void free_job(struct job *job)
{
    kr_params_fini(&job->params);
    free(job);
}

static void wait_for_ends(struct bench *b, int ends)
{
    while (b->ends < ends)
        uv_run(&b->loop, UV_RUN_ONCE);
}

static void runs_one_after_the_other(void **state)
{
    struct bench *b = *state;
    struct job *jobs[5];
    for (int i = 0; i < 5; i++) {
        jobs[i] = make_job(b, (uint64_t)i + 1, "x");
        worker_give(&b->worker, jobs[i]);
        wait_for_ends(b, i + 1);
    }
    assert_int_equal(b->starts, 5);
    assert_int_equal(b->images, 5);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(b->order[i], i + 1);
        assert_int_equal(jobs[i]->end.err.code, KR_OK);
        assert_true(jobs[i]->end.times.encode > 0);
        free_job(jobs[i]);
    }
}

/* A job of five pictures of which two are there: the others keep their numbers and seeds. */
static void goes_on_behind_what_is_made(void **state)
{
    struct bench *b = *state;
    struct job *job = make_job(b, 1, "x");
    job->params.count = 5;
    job->params.seed = 100;
    job->first = 2;
    worker_give(&b->worker, job);
    wait_for_ends(b, 1);
    assert_int_equal(b->images, 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(b->index[i], 2 + i);
        assert_int_equal(b->seed[i], 102 + i);
    }
    assert_int_equal(b->last_count, 5);
    assert_int_equal(job->params.seed, 100);
    free_job(job);
}

static void hands_previews_on(void **state)
{
    struct bench *b = *state;
    struct job *job = make_job(b, 1, "ms=4");
    job->params.preview = 2;
    job->params.steps = 7;
    worker_give(&b->worker, job);
    wait_for_ends(b, 1);
    assert_true(b->previews >= 1 && b->previews <= 3); /* after steps 2, 4 and 6, if not merged */
    free_job(job);
}

static void keeps_only_the_newest_progress(void **state)
{
    struct bench *b = *state;
    struct kr_err err;
    struct job *job = make_job(b, 1, "x");
    assert_int_equal(kr_params_set_int(&job->params, KR_F_STEPS, 1000, &err), 0);
    worker_give(&b->worker, job);
    wait_for_ends(b, 1); /* the loop does not run until the job is over, or nearly */
    assert_int_equal(b->last_step, 1000);
    assert_true(b->progress <= 1001);
    free_job(job);
}

static void cancels_at_once(void **state)
{
    struct bench *b = *state;
    struct job *job = make_job(b, 1, "ms=60000"), *before = make_job(b, 2, "ms=60000");
    worker_give(&b->worker, job);
    while (b->starts == 0)
        uv_run(&b->loop, UV_RUN_ONCE);
    atomic_store(&job->cancel, 1);
    wait_for_ends(b, 1);
    atomic_store(&before->cancel, 1); /* even before it starts */
    worker_give(&b->worker, before);
    wait_for_ends(b, 2);
    assert_int_equal(job->end.err.code, KR_CANCELLED);
    assert_int_equal(before->end.err.code, KR_CANCELLED);
    assert_int_equal(b->images, 0);
    free_job(job);
    free_job(before);
}

static void starts_nothing_on_a_lost_device(void **state)
{
    struct bench *b = *state;
    struct job *bad = make_job(b, 1, "fail=device"), *next = make_job(b, 2, "x");
    worker_give(&b->worker, bad);
    wait_for_ends(b, 1);
    worker_give(&b->worker, next);
    assert_int_equal(bad->end.err.code, KR_DEVICE);
    worker_stop(&b->worker);
    assert_int_equal(b->starts, 1);
    free_job(bad);
    free_job(next);
}

static void stops_with_events_left(void **state)
{
    struct bench *b = *state;
    struct job *job = make_job(b, 1, "pad=1000 ms=2"), *never = make_job(b, 2, "x");
    job->params.preview = 1;
    worker_give(&b->worker, job);
    while (b->starts == 0)
        uv_run(&b->loop, UV_RUN_ONCE);
    worker_stop(&b->worker); /* waits for the job that runs; its pictures are freed */
    assert_true(b->ends <= 1);
    free_job(job);
    free_job(never);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(runs_one_after_the_other, set_up, tear_down),
        cmocka_unit_test_setup_teardown(goes_on_behind_what_is_made, set_up, tear_down),
        cmocka_unit_test_setup_teardown(hands_previews_on, set_up, tear_down),
        cmocka_unit_test_setup_teardown(keeps_only_the_newest_progress, set_up, tear_down),
        cmocka_unit_test_setup_teardown(cancels_at_once, set_up, tear_down),
        cmocka_unit_test_setup_teardown(starts_nothing_on_a_lost_device, set_up, tear_down),
        cmocka_unit_test_setup_teardown(stops_with_events_left, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("worker", tests, NULL, NULL);
}
