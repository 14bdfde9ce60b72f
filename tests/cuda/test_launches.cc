/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches that a block of the diffusion model takes where no graph makes one of all: counted over
 * daemon/model's own forward, with weights as the released FP8 file has them (gate and output of
 * the attention in full precision, every layer with a scale of its own), in FP8 throughout, and in
 * bfloat16.
 */
#include "tests/cuda/devices.h"

#include <stdlib.h>
#include <string.h>

extern "C" {
#include "daemon/model/mmdit.h"
}

enum { WIDTH = 128, HEAD = 64, KV = 64, HIDDEN = 256, TIME = 32, BLOCKS = 3, TEXT = 5 };
enum { MOST = WIDTH * WIDTH * 6 * 4, ALL = 4 << 20 }; /* bytes of the largest weight, and of all */

enum file { RELEASED, FP8, BF16 };

struct model {
    struct mmdit m;
    struct mmdit_block blocks[BLOCKS];
    char *zeros;
    int64_t used; /* of them: each weight has its own */
    enum file file;
    float scale; /* of the last weight */
};

static struct kr_weight weight(struct model *of, enum kr_dtype dtype, int64_t out, int64_t in)
{
    struct kr_weight w = {};
    w.data = of->zeros + of->used;
    of->used += out * in * (int64_t)kr_dtype_size(dtype);
    assert_true(of->used <= ALL);
    w.dtype = dtype;
    w.out = out;
    w.in = in;
    w.scale = dtype == KR_BF16 ? 1 : of->scale += 0.25f;
    return w;
}

static struct kr_weight in_block(struct model *of, int64_t out, int64_t in, int full_precision)
{
    struct kr_weight w = weight(of, of->file == BF16 ? KR_BF16 : KR_F8_E4M3, out, in);
    w.full_precision = of->file == RELEASED && full_precision;
    return w;
}

static struct kr_tensor vector(struct kr_device *dev, const struct model *of, int64_t n)
{
    return kr_persist(dev, (const float *)(const void *)of->zeros, n, 0);
}

static void make_block(struct model *of, struct kr_device *dev, struct mmdit_block *b)
{
    b->pre_norm = vector(dev, of, WIDTH);
    b->post_norm = vector(dev, of, WIDTH);
    b->attn.wq = in_block(of, WIDTH, WIDTH, 0);
    b->attn.wk = in_block(of, KV, WIDTH, 0);
    b->attn.wv = in_block(of, KV, WIDTH, 0);
    b->attn.gate = in_block(of, WIDTH, WIDTH, 1);
    b->attn.wo = in_block(of, WIDTH, WIDTH, 1);
    b->attn.q_norm = vector(dev, of, HEAD);
    b->attn.k_norm = vector(dev, of, HEAD);
    b->mlp.gate = in_block(of, HIDDEN, WIDTH, 0);
    b->mlp.up = in_block(of, HIDDEN, WIDTH, 0);
    b->mlp.down = in_block(of, WIDTH, HIDDEN, 0);
}

static void make_model(struct model *of, struct kr_device *dev, enum file file)
{
    struct mmdit *m = &of->m;
    *of = {};
    of->file = file;
    of->zeros = (char *)calloc(1, ALL);
    assert_non_null(of->zeros);
    m->channels = 16, m->patch = 2;
    m->width = WIDTH, m->time_width = TIME, m->block_count = BLOCKS;
    m->first = weight(of, KR_BF16, WIDTH, 64);
    m->time_in = weight(of, KR_BF16, WIDTH, TIME);
    m->time_out = weight(of, KR_BF16, WIDTH, WIDTH);
    m->time_modulation = weight(of, KR_BF16, 6 * WIDTH, WIDTH);
    m->last = weight(of, KR_BF16, 64, WIDTH);
    m->last_norm = vector(dev, of, WIDTH);
    m->last_modulation = kr_persist(dev, (const float *)(const void *)of->zeros, 2, WIDTH);
    m->modulations = kr_persist(dev, (const float *)(const void *)of->zeros, 6 * BLOCKS, WIDTH);
    m->gate_scales = vector(dev, of, 6 * BLOCKS);
    m->blocks = of->blocks;
    for (int i = 0; i < BLOCKS; i++)
        make_block(of, dev, &of->blocks[i]);
}

static void free_model(struct model *of, struct kr_device *dev)
{
    for (int i = 0; i < BLOCKS; i++) {
        struct mmdit_block *b = &of->blocks[i];
        kr_persist_free(dev, &b->pre_norm);
        kr_persist_free(dev, &b->post_norm);
        kr_persist_free(dev, &b->attn.q_norm);
        kr_persist_free(dev, &b->attn.k_norm);
    }
    kr_persist_free(dev, &of->m.last_norm);
    kr_persist_free(dev, &of->m.last_modulation);
    kr_persist_free(dev, &of->m.modulations);
    kr_persist_free(dev, &of->m.gate_scales);
    free(of->zeros);
}

/* Launches of a forward with so many blocks, of side x side tokens and the text's. The angles lie
 * elsewhere each time, so that nothing is replayed. */
static int64_t launches(struct devices *d, struct model *of, int64_t blocks, int64_t side)
{
    struct kr_device *dev = d->dev[GPU];
    struct kr_mark mark = kr_arena_mark(dev);
    int64_t tokens = TEXT + side * side;
    const float *zeros = (const float *)(const void *)of->zeros;
    static int64_t calls;
    (void)kr_new(dev, KR_F32, 16 * ++calls, 0, 0, 0);
    struct kr_tensor latent = kr_new(dev, KR_F32, 16, 2 * side, 2 * side, 0);
    struct kr_tensor velocity = kr_new(dev, KR_F32, 16, 2 * side, 2 * side, 0);
    struct kr_tensor text = kr_new(dev, KR_F32, TEXT, WIDTH, 0, 0);
    struct kr_tensor angles = kr_new(dev, KR_F32, tokens, HEAD / 2, 0, 0);
    struct kr_rope rope = {angles, angles, KR_ROPE_INTERLEAVED};
    assert_true(kr_count(&angles) * 4 <= MOST && kr_count(&latent) * 4 <= MOST);
    kr_upload(dev, latent, zeros);
    kr_upload(dev, text, zeros);
    kr_upload(dev, angles, zeros);
    of->m.block_count = blocks;
    of->m.modulations.dim[0] = of->m.gate_scales.dim[0] = 6 * blocks;
    int64_t before = devices_cuda(d)->launches;
    mmdit_forward(&of->m, dev, velocity, latent, text, &rope, 0.5f);
    int64_t count = devices_cuda(d)->launches - before;
    kr_device_sync(dev);
    assert_string_equal(kr_device_fault_text(dev), "");
    kr_arena_release(dev, mark);
    return count;
}

static void count_launches(int architecture, enum file file, int64_t side)
{
    static const char *const names[] = {"as released", "FP8", "bfloat16"};
    struct emu_options options = {};
    struct model of;
    options.architecture = architecture;
    options.memory = (size_t)256 << 20;
    struct devices d = devices_open(&options, (size_t)64 << 20);
    make_model(&of, d.dev[GPU], file);
    (void)launches(&d, &of, BLOCKS, side); /* makes what is made once */
    int64_t one = launches(&d, &of, 1, side), all = launches(&d, &of, BLOCKS, side);
    print_message("sm_%d, %d tokens, %s: %d launches a block\n", architecture,
                  (int)(TEXT + side * side), names[file], (int)(all - one) / (BLOCKS - 1));
    if (all - one > 12 * (BLOCKS - 1))
        fail_msg("more than 12");
    free_model(&of, d.dev[GPU]);
    devices_close(&d);
}

static void test_at_most_12(void **)
{
    static const int architectures[] = {80, 86, 89, 90, 120};
    for (int a : architectures)
        for (int file = RELEASED; file <= BF16; file++)
            count_launches(a, (enum file)file, 4);
    for (int file = RELEASED; file <= BF16; file++)
        count_launches(90, (enum file)file, 32);
}

int main()
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_at_most_12)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
