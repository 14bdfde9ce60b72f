/* SPDX-License-Identifier: Apache-2.0
 *
 * Columns of operations that come again: replayed they give the same bytes, nothing is replayed
 * that must not be, and a block of a diffusion transformer takes no more launches than it should.
 */
#include "tests/cuda/devices.h"

#include <stdlib.h>
#include <string.h>

static const size_t mib = (size_t)1 << 20;

enum { ROWS = 40, HEADS = 2, HEAD = 32, WIDTH = HEADS * HEAD, HIDDEN = 96 };

/* The weights of a block, on the host and on both devices. */
struct block {
    uint16_t *bytes; /* bfloat16 */
    struct kr_weight wq, wk, wv, gate, wo, mlp_gate, mlp_up, mlp_down;
    struct both norm, head_norm, modulation; /* modulation [6, WIDTH] */
    struct both cos, sin;
};

static void new_weight(struct block *b, struct kr_weight *w, int64_t out, int64_t in, size_t *at)
{
    w->data = b->bytes + *at;
    w->dtype = KR_BF16;
    w->out = out;
    w->in = in;
    w->scale = 1;
    *at += (size_t)(out * in);
}

/* Vectors live in the arenas, at their beginning. */
static struct block new_block(const struct devices *d)
{
    struct block b = {};
    size_t count = 5 * WIDTH * WIDTH + 3 * HIDDEN * WIDTH, at = 0;
    b.bytes = (uint16_t *)malloc(count * sizeof *b.bytes);
    assert_non_null(b.bytes);
    for (size_t i = 0; i < count; i++) {
        float f = number_between(-0.2f, 0.2f);
        cuda_to_bf16(b.bytes + i, &f, 1);
    }
    new_weight(&b, &b.wq, WIDTH, WIDTH, &at);
    new_weight(&b, &b.wk, WIDTH, WIDTH, &at);
    new_weight(&b, &b.wv, WIDTH, WIDTH, &at);
    new_weight(&b, &b.gate, WIDTH, WIDTH, &at);
    new_weight(&b, &b.wo, WIDTH, WIDTH, &at);
    new_weight(&b, &b.mlp_gate, HIDDEN, WIDTH, &at);
    new_weight(&b, &b.mlp_up, HIDDEN, WIDTH, &at);
    new_weight(&b, &b.mlp_down, WIDTH, HIDDEN, &at);
    b.norm = both_filled(d, KR_F32, WIDTH, 0, 0, 0.5f, 1.5f);
    b.head_norm = both_filled(d, KR_F32, HEAD, 0, 0, 0.5f, 1.5f);
    b.modulation = both_filled(d, KR_F32, 6, WIDTH, 0, -0.5f, 0.5f);
    b.cos = both_filled(d, KR_F32, ROWS, HEAD / 2, 0, -1, 1);
    b.sin = both_filled(d, KR_F32, ROWS, HEAD / 2, 0, -1, 1);
    return b;
}

static void attend(struct kr_device *dev, const struct block *b, struct kr_tensor x, int side)
{
    const struct kr_weight *in[] = {&b->wq, &b->wk, &b->wv, &b->gate};
    struct kr_tensor mod = b->modulation.at[side];
    struct kr_tensor h = kr_new(dev, kr_compute_dtype(dev), ROWS, WIDTH, 0, 0),
                     all = kr_new(dev, kr_compute_dtype(dev), ROWS, 4 * WIDTH, 0, 0);
    struct kr_qk qk = {kr_columns(all, 0, WIDTH), kr_columns(all, WIDTH, WIDTH),
                       b->head_norm.at[side], b->head_norm.at[side]};
    struct kr_attention a = {qk.q,  qk.k,         kr_columns(all, 2 * WIDTH, WIDTH), HEADS,
                             HEADS, KR_MASK_NONE, kr_columns(all, 3 * WIDTH, WIDTH)};
    struct kr_rope rope = {b->cos.at[side], b->sin.at[side], KR_ROPE_INTERLEAVED};
    kr_rms_norm_modulate(dev, h, {}, x, b->norm.at[side], 1e-5f, kr_slice(mod, 0, 1),
                         kr_slice(mod, 1, 1));
    kr_linear_many(dev, all, h, in, 4);
    kr_qk_norm_rope(dev, &qk, 1e-5f, &rope);
    kr_attention(dev, h, &a);
    kr_linear_add(dev, x, kr_slice(mod, 2, 1), h, &b->wo);
}

static void feed_forward(struct kr_device *dev, const struct block *b, struct kr_tensor x, int side)
{
    const struct kr_weight *in[] = {&b->mlp_gate, &b->mlp_up};
    struct kr_tensor mod = b->modulation.at[side];
    struct kr_tensor h = kr_new(dev, kr_compute_dtype(dev), ROWS, WIDTH, 0, 0),
                     both = kr_new(dev, kr_compute_dtype(dev), ROWS, 2 * HIDDEN, 0, 0),
                     g = kr_new(dev, kr_compute_dtype(dev), ROWS, HIDDEN, 0, 0);
    kr_rms_norm_modulate(dev, h, {}, x, b->norm.at[side], 1e-5f, kr_slice(mod, 3, 1),
                         kr_slice(mod, 4, 1));
    kr_linear_many(dev, both, h, in, 2);
    kr_swiglu(dev, g, kr_columns(both, 0, HIDDEN), kr_columns(both, HIDDEN, HIDDEN));
    kr_linear_add(dev, x, kr_slice(mod, 5, 1), g, &b->mlp_down);
}

static void run_block(struct kr_device *dev, const struct block *b, struct kr_tensor x, int side)
{
    struct kr_mark mark = kr_arena_mark(dev);
    attend(dev, b, x, side);
    feed_forward(dev, b, x, side);
    kr_arena_release(dev, mark);
}

static struct devices open_devices(uint64_t seed)
{
    struct emu_options options = {};
    options.architecture = 90;
    options.memory = 128 * mib;
    options.seed = seed;
    numbers_seed(seed);
    struct devices d = devices_open(&options, 4 * mib);
    devices_cuda(&d)->graph_ms = 1e9; /* the emulation is slow, and not to be measured */
    return d;
}

static uint64_t graph_launches(void)
{
    struct emu_figures figures;
    emu_read_figures(&figures);
    return figures.graph_launches;
}

/* ------------------------------------------------------------------------- launches ------ */

static void test_a_block_takes_twelve_launches(void **)
{
    struct devices d = open_devices(70);
    struct cuda_device *cuda = devices_cuda(&d);
    struct block b = new_block(&d);
    struct both x = both_filled(&d, KR_F32, ROWS, WIDTH, 0, -1, 1);
    int64_t before = cuda->launches;
    for (int s = 0; s < SIDES; s++)
        run_block(d.dev[s], &b, x.at[s], s);
    assert_int_equal(kr_device_sync(d.dev[GPU]), KR_FINE);
    assert_true(cuda->launches > before);
    if (cuda->launches - before > 12)
        fail_msg("it took %d launches", (int)(cuda->launches - before));
    both_near(&d, x, 0.03f, 0.03f); /* bfloat16 products, in another order */
    free(b.bytes);
    devices_close(&d);
}

/* The device counts what is queued, the emulation what runs. */
static void test_every_launch_is_counted(void **)
{
    struct devices d = open_devices(71);
    struct cuda_device *cuda = devices_cuda(&d);
    struct block b = new_block(&d);
    struct both x = both_filled(&d, KR_F32, ROWS, WIDTH, 0, -1, 1);
    struct emu_figures before, after;
    assert_int_equal(kr_device_sync(d.dev[GPU]), KR_FINE);
    emu_read_figures(&before);
    int64_t counted = cuda->launches;
    run_block(d.dev[GPU], &b, x.at[GPU], GPU);
    assert_int_equal(kr_device_sync(d.dev[GPU]), KR_FINE);
    emu_read_figures(&after);
    assert_int_equal(after.launches + after.products - before.launches - before.products,
                     cuda->launches - counted);
    free(b.bytes);
    devices_close(&d);
}

/* --------------------------------------------------------------------------- replaying ------ */

static void run_blocks(struct kr_device *dev, const struct block *b, struct kr_tensor x)
{
    struct kr_repeat key = {b->cos.at[GPU].data, ROWS};
    if (!kr_repeat_begin(dev, key))
        return;
    for (int i = 0; i < 3; i++)
        run_block(dev, b, x, GPU);
    kr_repeat_end(dev);
}

/* Five rounds with other numbers each time, plainly and with what is replayed. */
static void test_what_is_replayed_is_the_same(void **)
{
    enum { ROUNDS = 5 };
    static const enum kr_residency residencies[] = {KR_RESIDENT, KR_CACHED, KR_STREAM};
    for (size_t r = 0; r < 3; r++) {
        struct devices d = open_devices(72);
        struct kr_device *dev = d.dev[GPU];
        struct block b = new_block(&d);
        kr_device_residency(dev, residencies[r], mib);
        struct both x = both_new(&d, KR_F32, ROWS, WIDTH, 0);
        for (int round = 0; round < ROUNDS; round++) {
            struct kr_mark mark = kr_arena_mark(dev);
            struct both y = both_filled(&d, KR_F32, ROWS, WIDTH, 0, -1, 1);
            kr_copy(dev, x.at[GPU], y.at[GPU]);
            for (int i = 0; i < 3; i++)
                run_block(dev, &b, x.at[GPU], GPU);
            float *plain = floats_of(dev, x.at[GPU]);
            kr_copy(dev, x.at[GPU], y.at[GPU]);
            kr_arena_release(dev, mark);
            run_blocks(dev, &b, x.at[GPU]);
            float *replayed = floats_of(dev, x.at[GPU]);
            assert_memory_equal(plain, replayed, ROWS * WIDTH * sizeof *plain);
            free(plain);
            free(replayed);
        }
        assert_int_equal(graph_launches(), residencies[r] == KR_STREAM ? 0 : ROUNDS - 2);
        free(b.bytes);
        devices_close(&d);
    }
}

/* A stage's end moves weights, and a job's the rest: what was recorded is gone with them. */
static void test_nothing_is_replayed_at_old_addresses(void **)
{
    struct devices d = open_devices(73);
    struct kr_device *dev = d.dev[GPU];
    struct block b = new_block(&d);
    char why[200];
    kr_device_residency(dev, KR_CACHED, 0);
    struct both x = both_filled(&d, KR_F32, ROWS, WIDTH, 0, -1, 1);
    for (int i = 0; i < 3; i++)
        run_blocks(dev, &b, x.at[GPU]);
    assert_int_equal(graph_launches(), 1);
    kr_stage_end(dev);
    for (int i = 0; i < 2; i++)
        run_blocks(dev, &b, x.at[GPU]);
    assert_int_equal(graph_launches(), 1);
    run_blocks(dev, &b, x.at[GPU]);
    assert_int_equal(kr_device_sync(dev), KR_FINE);
    assert_int_equal(graph_launches(), 2);
    kr_job_end(dev);
    free(b.bytes);
    assert_int_equal(kr_job_begin(dev, NULL, 4 * mib, why, sizeof why), 0);
    kr_device_residency(dev, KR_CACHED, 0);
    b = new_block(&d);
    x = both_filled(&d, KR_F32, ROWS, WIDTH, 0, -1, 1);
    for (int i = 0; i < 2; i++)
        run_blocks(dev, &b, x.at[GPU]);
    assert_int_equal(kr_device_sync(dev), KR_FINE);
    assert_int_equal(graph_launches(), 2);
    free(b.bytes);
    devices_close(&d);
}

/* Graphs are cut, so that a cancelled job need not wait for all of one. */
static void test_graphs_are_cut_by_time(void **)
{
    struct devices d = open_devices(74);
    struct kr_device *dev = d.dev[GPU];
    struct block b = new_block(&d);
    devices_cuda(&d)->graph_ms = 0; /* a launch each, which gains nothing */
    struct both x = both_filled(&d, KR_F32, ROWS, WIDTH, 0, -1, 1);
    for (int i = 0; i < 4; i++)
        run_blocks(dev, &b, x.at[GPU]);
    assert_int_equal(kr_device_sync(dev), KR_FINE);
    assert_int_equal(graph_launches(), 0);
    free(b.bytes);
    devices_close(&d);
}

/* What the host decides anew each time can't be part of a graph. */
static void test_what_can_not_be_replayed_is_run(void **)
{
    struct devices d = open_devices(75);
    struct kr_device *dev = d.dev[GPU];
    struct both x = both_filled(&d, KR_F32, ROWS, WIDTH, 0, -1, 1);
    struct both wave = both_new(&d, KR_F32, 1, WIDTH, 0);
    for (int i = 0; i < 5; i++) {
        struct kr_repeat key = {x.at[GPU].data, ROWS};
        assert_int_equal(kr_repeat_begin(dev, key), 1);
        kr_timestep(dev, wave.at[GPU], (float)i, 100);
        kr_add(dev, x.at[GPU], x.at[GPU], wave.at[GPU]);
        kr_repeat_end(dev);
        kr_timestep(d.dev[CPU], wave.at[CPU], (float)i, 100);
        kr_add(d.dev[CPU], x.at[CPU], x.at[CPU], wave.at[CPU]);
        key.address = wave.at[GPU].data;
        assert_int_equal(kr_repeat_begin(dev, key), 1);
        kr_check_finite(dev, x.at[GPU], "x");
        kr_repeat_end(dev);
    }
    both_near(&d, x, 1e-6f, 1e-6f);
    assert_int_equal(graph_launches(), 0);
    devices_close(&d);
}

/* ------------------------------------------------------------------------- cancelling ------ */

/* However much is asked for, what a cancelled job leaves to wait for is a few launches. */
static void test_the_host_does_not_run_far_ahead(void **)
{
    struct devices d = open_devices(77);
    struct cuda_device *cuda = devices_cuda(&d);
    struct both x = both_filled(&d, KR_F32, ROWS, WIDTH, 0, -1, 1);
    struct emu_figures before, after;
    assert_int_equal(kr_device_sync(d.dev[GPU]), KR_FINE);
    emu_read_figures(&before);
    int64_t counted = cuda->launches;
    for (int i = 0; i < 101; i++)
        kr_gelu_tanh(d.dev[GPU], x.at[GPU], x.at[GPU]);
    emu_read_figures(&after);
    assert_int_equal(cuda->launches - counted, 101);
    assert_true((int64_t)(after.launches - before.launches) >= 101 - 2 * CUDA_BATCH);
    devices_close(&d);
}

/* Cancelled before, in, and after what is recorded: the next job runs as if there had been none. */
static void test_a_cancelled_job_leaves_nothing(void **)
{
    struct devices d = open_devices(76);
    struct kr_device *dev = d.dev[GPU];
    for (int when = 0; when < 4; when++) {
        atomic_int cancel(0);
        char why[200];
        assert_int_equal(kr_job_begin(dev, &cancel, 4 * mib, why, sizeof why), 0);
        kr_arena_release(d.dev[CPU], (struct kr_mark){0});
        struct block b = new_block(&d);
        struct both x = both_filled(&d, KR_F32, ROWS, WIDTH, 0, -1, 1);
        for (int i = 0; i < 4; i++) {
            struct kr_repeat key = {b.cos.at[GPU].data, ROWS};
            if (kr_repeat_begin(dev, key)) {
                run_block(dev, &b, x.at[GPU], GPU);
                if (i == when)
                    cancel = 1;
                run_block(dev, &b, x.at[GPU], GPU);
                kr_repeat_end(dev);
            }
            if (i == when)
                cancel = 1;
        }
        assert_int_equal(kr_device_sync(dev), KR_FAULT_CANCELLED);
        assert_int_equal(kr_job_begin(dev, NULL, 4 * mib, why, sizeof why), 0);
        kr_device_residency(dev, KR_RESIDENT, 0);
        free(b.bytes);
        kr_arena_release(d.dev[CPU], (struct kr_mark){0});
        b = new_block(&d);
        x = both_filled(&d, KR_F32, ROWS, WIDTH, 0, -1, 1);
        for (int s = 0; s < SIDES; s++)
            run_block(d.dev[s], &b, x.at[s], s);
        both_near(&d, x, 0.03f, 0.03f);
        kr_job_end(dev);
        free(b.bytes);
    }
    devices_close(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_block_takes_twelve_launches),
        cmocka_unit_test(test_every_launch_is_counted),
        cmocka_unit_test(test_what_is_replayed_is_the_same),
        cmocka_unit_test(test_nothing_is_replayed_at_old_addresses),
        cmocka_unit_test(test_graphs_are_cut_by_time),
        cmocka_unit_test(test_what_can_not_be_replayed_is_run),
        cmocka_unit_test(test_the_host_does_not_run_far_ahead),
        cmocka_unit_test(test_a_cancelled_job_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
