/* SPDX-License-Identifier: Apache-2.0
 *
 * Whole jobs on a device with memory of its own, which is the emulated CUDA device
 * ($KREAD_CUDA_MODULE, tests/cuda; without it these tests are skipped): every residency gives the
 * same bytes, a job that does not fit is refused with the numbers or made to fit, planning takes
 * nothing and finds what is taken, running out of memory at any allocation fails that job alone,
 * and a lost device is said to be lost.
 */
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/engine/internal.h"
#include "tests/cuda/emulation/emu.h"
#include "tests/engine/rig.h"

#define SET "tests/golden/scaled"

/* What the module has of emu.h. */
static struct {
    void (*fail_allocation)(int nth);
    void (*lose_device)(int nth);
    void (*read_figures)(struct emu_figures *read);
} emu;

static int is_there(void **state)
{
    const char *path = getenv("KREAD_CUDA_MODULE");
    void *module = path ? dlopen(path, RTLD_NOW) : NULL;

    (void)state;
    if (!module)
        return 0;
    *(void **)&emu.fail_allocation = dlsym(module, "emu_fail_allocation");
    *(void **)&emu.lose_device = dlsym(module, "emu_lose_device");
    *(void **)&emu.read_figures = dlsym(module, "emu_read_figures");
    return 0;
}

static void need_module(void)
{
    if (!emu.fail_allocation)
        skip();
}

static size_t used(void)
{
    struct emu_figures figures;

    emu.read_figures(&figures);
    return figures.used;
}

static struct kr_params request(int64_t size)
{
    struct kr_params p = params_of("a small red boat", size, size, 2);

    kr_params_set_real(&p, KR_F_CFG, 2, NULL);
    kr_params_set_int(&p, KR_F_SEED, 5, NULL);
    return p;
}

/* 0, or -1 with client->err. */
static int run(struct client *client, struct rig *rig, int64_t size)
{
    struct kr_params p = request(size);
    int rc = client_run(client, rig->engine, &p);

    kr_params_fini(&p);
    return rc;
}

static void open_with(struct rig *rig, enum engine_residency residency)
{
    rig_init(rig, SET);
    rig->config.residency = residency;
    rig_open(rig);
}

static void test_residencies(void **state)
{
    struct client first = {0};
    struct rig rig;

    (void)state;
    need_module();
    for (int r = ENGINE_AUTO; r <= ENGINE_STREAM; r++) {
        struct client client = {0}, again = {0};

        open_with(&rig, (enum engine_residency)r);
        if (run(r == ENGINE_AUTO ? &first : &client, &rig, 32) < 0 || run(&again, &rig, 32) < 0)
            fail_msg("residency %d: %s%s", r, client.err.text, again.err.text);
        assert_same_image(&first, 0, &again, 0); /* recorded columns, weights that are there */
        if (r != ENGINE_AUTO)
            assert_same_image(&first, 0, &client, 0);
        rig_fini(&rig);
        assert_int_equal(used(), 0);
        client_fini(&client);
        client_fini(&again);
    }
    client_fini(&first);
}

/* With ever less memory a job goes from resident to cached to stream and then is refused. */
static void test_less_and_less_memory(void **state)
{
    int seen[RESIDENCIES + 1] = {0}, last = ENGINE_RESIDENT;
    struct client first = {0};
    struct kr_params p;
    struct plan plan;
    struct kr_err err;
    struct rig rig;
    char warning[256];

    (void)state;
    need_module();
    p = request(32);
    rig_init_demo(&rig);
    rig_open(&rig);
    assert_int_equal(run(&first, &rig, 32), 0);
    assert_int_equal(engine_resolve(rig.engine, &p, warning, sizeof warning, &err), 0);
    assert_int_equal(plan_request(rig.engine, &p, &plan, NULL, NULL, &err), 0);
    for (size_t free = plan.arena + plan.weights[ENGINE_RESIDENT]; last < RESIDENCIES;
         free -= free / 16) {
        struct client client = {0};

        rig.engine->planner->pretend_free = free;
        if (plan_request(rig.engine, &p, &plan, NULL, NULL, &err) < 0) {
            assert_int_equal(err.code, KR_NO_MEMORY);
            assert_non_null(strstr(err.text, "residency stream"));
            last = RESIDENCIES;
        } else {
            assert_true((int)plan.residency >= last);
            assert_true(plan.arena + plan.weights[plan.residency] <= free);
            if (!seen[plan.residency]) {
                assert_int_equal(run(&client, &rig, 32), 0);
                assert_same_image(&first, 0, &client, 0);
            }
            last = (int)plan.residency;
        }
        seen[last]++;
        client_fini(&client);
    }
    kr_params_fini(&p);
    client_fini(&first);
    rig_fini(&rig);
    assert_true(seen[ENGINE_RESIDENT] && seen[ENGINE_STREAM] && seen[RESIDENCIES]);
}

/* The planner's device has nothing of the model but a mark, and knows what the worker's prepares.
 */
static void test_planning(void **state)
{
    struct client client = {0};
    struct rig rig;
    size_t all, planned;

    (void)state;
    need_module();
    open_with(&rig, ENGINE_RESIDENT);
    planned = kr_plan_prepared(rig.engine->planner->dev);
    assert_int_equal(kr_prepared_bytes(rig.engine->dev), 0);
    assert_int_equal(run(&client, &rig, 32), 0);
    assert_true(planned > 0);
    assert_int_equal(kr_prepared_bytes(rig.engine->dev), planned);
    all = used();
    planner_free(rig.engine->planner, rig.engine->family);
    rig.engine->planner = NULL;
    assert_true(all - used() < 1024);
    rig_fini(&rig);
    assert_int_equal(used(), 0);
    client_fini(&client);
}

/* The nth allocation of a job fails, for every n there is: that job ends with a sentence, and the
 * next one is what it would have been. */
static void out_of_memory(enum engine_residency residency)
{
    struct client first = {0};
    struct rig rig;
    int failed = 0;

    open_with(&rig, residency);
    assert_int_equal(run(&first, &rig, 32), 0);
    rig_fini(&rig);
    for (int n = 1, rc = -1; rc < 0; n++) {
        struct client broken = {0}, next = {0};

        open_with(&rig, residency);
        emu.fail_allocation(n);
        rc = run(&broken, &rig, 32);
        emu.fail_allocation(0);
        failed += rc < 0;
        if (rc < 0) {
            assert_int_equal(broken.err.code, KR_NO_MEMORY);
            assert_true(strstr(broken.err.text, "encode") || strstr(broken.err.text, "denoise") ||
                        strstr(broken.err.text, "decode") || strstr(broken.err.text, "the job"));
        }
        if (run(&next, &rig, 32) < 0)
            fail_msg("after allocation %d failed: %s", n, next.err.text);
        assert_same_image(&first, 0, &next, 0);
        rig_fini(&rig);
        assert_int_equal(used(), 0);
        client_fini(&broken);
        client_fini(&next);
    }
    print_message("%d allocations failed in turn\n", failed);
    assert_true(failed > 0);
    client_fini(&first);
}

static void test_out_of_memory(void **state)
{
    (void)state;
    need_module();
    out_of_memory(ENGINE_RESIDENT);
    out_of_memory(ENGINE_CACHED);
    out_of_memory(ENGINE_STREAM);
}

/* A context that breaks in the middle: the job says that the device is gone, and no other one runs.
 * It stays so for the process, so this is the last test. */
static void test_lost(void **state)
{
    struct client broken = {0}, next = {0};
    struct rig rig;

    (void)state;
    need_module();
    open_with(&rig, ENGINE_RESIDENT);
    emu.lose_device(100);
    assert_int_equal(run(&broken, &rig, 32), -1);
    assert_int_equal(broken.err.code, KR_DEVICE);
    assert_int_equal(run(&next, &rig, 32), -1);
    rig_fini(&rig);
    client_fini(&broken);
    client_fini(&next);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_residencies), cmocka_unit_test(test_less_and_less_memory),
        cmocka_unit_test(test_planning),    cmocka_unit_test(test_out_of_memory),
        cmocka_unit_test(test_lost),
    };

    return cmocka_run_group_tests(tests, is_there, NULL);
}
