/* SPDX-License-Identifier: Apache-2.0
 *
 * What the models take and what they refuse. Each test spoils a golden file in one place and wants
 * one sentence that names it; both runs of the binder (check only, and with a device) have to
 * agree.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/model/edit.h"
#include "tests/model/set.h"

#define GOLDEN "tests/golden/"

enum kind { DIT, TE, BLIND_TE, VAE }; /* BLIND_TE: the owner vouches for a missing vision tower */

union model {
    struct mmdit dit;
    struct text_encoder te;
    struct vae vae;
};

static int open_file(enum kind kind, const char *path, struct weights **file, struct kr_err *err)
{
    if (kind == DIT)
        return mmdit_open(path, file, err);
    if (kind == VAE)
        return vae_open(path, file, err);
    return text_encoder_open(path, file, err);
}

static int bind(enum kind kind, union model *m, const struct weights *file, struct kr_device *dev,
                struct kr_err *err)
{
    int result;

    if (kind == DIT) {
        result = mmdit_bind(&m->dit, file, dev, err);
        mmdit_fini(&m->dit, dev);
    } else if (kind == VAE) {
        result = vae_bind(&m->vae, file, dev, err);
        vae_fini(&m->vae, dev);
    } else {
        result = text_encoder_bind(&m->te, file, kind == BLIND_TE, dev, err);
        text_encoder_fini(&m->te, dev);
    }
    return result;
}

/* 0: both runs take the file. -1: opening or both runs refuse it with the same sentence. */
static int try(enum kind kind, struct edit *e, struct kr_err *err)
{
    struct kr_err second = {KR_OK, ""};
    struct kr_device *dev = set_device(KR_COMPUTE_BEST);
    struct weights *file;
    union model model;
    int result;

    *err = second;
    result = open_file(kind, edit_write(e, "model.safetensors"), &file, err);
    if (result == 0) {
        result = bind(kind, &model, file, NULL, err);
        assert_int_equal(bind(kind, &model, file, dev, &second), result);
        assert_string_equal(second.text, err->text);
        weights_close(file);
    }
    kr_device_close(dev);
    edit_free(e);
    return result;
}

static void takes(enum kind kind, struct edit *e)
{
    struct kr_err err;

    if (try(kind, e, &err))
        fail_msg("refused: %s", err.text);
}

/* The sentence has the file's name and all words. */
static void refuses(enum kind kind, struct edit *e, ...)
{
    struct kr_err err;
    const char *word;
    va_list words;

    if (try(kind, e, &err) == 0)
        fail_msg("took a file that it should refuse");
    assert_int_equal(err.code, KR_BAD_FILE);
    assert_non_null(strstr(err.text, "model.safetensors"));
    va_start(words, e);
    while ((word = va_arg(words, const char *)) != NULL)
        if (strstr(err.text, word) == NULL)
            fail_msg("\"%s\" doesn't say \"%s\"", err.text, word);
    va_end(words);
}

/* -------------------------------------------------------------------------- diffusion model --- */

static struct edit *dit(void)
{
    return edit_load(GOLDEN "scaled/dit.safetensors");
}

static void test_dit_sizes(void **state)
{
    struct kr_err err = {KR_OK, ""};
    struct weights *file;
    struct mmdit m;

    (void)state;
    assert_int_equal(mmdit_open(GOLDEN "halves/dit.safetensors", &file, &err), 0);
    assert_int_equal(mmdit_bind(&m, file, NULL, &err), 0);
    assert_int_equal(m.channels, 16);
    assert_int_equal(m.width, 128);
    assert_int_equal(m.heads, 2);
    assert_int_equal(m.kv_heads, 2);
    assert_int_equal(m.head, 64);
    assert_int_equal(m.hidden, 96);
    assert_int_equal(m.text_width, 32);
    assert_int_equal(m.text_heads, 1);
    assert_int_equal(m.time_width, 32);
    assert_int_equal(m.block_count, 1);
    mmdit_fini(&m, NULL);
    weights_close(file);
}

static void test_dit_rope(void **state)
{
    static const struct {
        const char *path;
        int64_t frame, row;
    } sets[] = {{GOLDEN "scaled/dit.safetensors", 8, 12},
                {GOLDEN "halves/dit.safetensors", 16, 24},
                {GOLDEN "plain/dit.safetensors", 32, 48}};

    (void)state;
    for (size_t i = 0; i < sizeof(sets) / sizeof(*sets); i++) {
        struct kr_err err = {KR_OK, ""};
        struct weights *file;
        struct mmdit m;

        assert_int_equal(mmdit_open(sets[i].path, &file, &err), 0);
        assert_int_equal(mmdit_bind(&m, file, NULL, &err), 0);
        assert_int_equal(m.rope_axes[0], sets[i].frame);
        assert_int_equal(m.rope_axes[1], sets[i].row);
        assert_int_equal(m.rope_axes[2], sets[i].row);
        mmdit_fini(&m, NULL);
        weights_close(file);
    }
}

static void test_dit_takes(void **state)
{
    struct edit *e = dit();

    (void)state;
    edit_reshape(e, "blocks.0.mod.lin", "[6,128]");
    edit_reshape(e, "blocks.1.mod.lin", "[1,768]");
    edit_reshape(e, "last.modulation.lin", "[256]");
    takes(DIT, e);
    e = edit_load(GOLDEN "plain/dit.safetensors");
    edit_prefix_all(e, "", "model.diffusion_model.");
    edit_add(e, "model.diffusion_model.last.down.weight", "[8,128]", 1);
    edit_add(e, "model.diffusion_model.last.up.weight", "[64,8]", 1);
    takes(DIT, e);
}

static void test_dit_names(void **state)
{
    struct edit *e = dit();

    (void)state;
    edit_drop(e, "blocks.1.mlp.up.weight");
    refuses(DIT, e, "blocks.1.mlp.up.weight", "missing", NULL);
    e = dit();
    edit_drop(e, "first.weight");
    refuses(DIT, e, "first.weight", NULL);
    e = dit();
    edit_add(e, "blocks.0.attn.extra.weight", "[128,128]", 1);
    refuses(DIT, e, "blocks.0.attn.extra.weight", NULL);
    e = edit_load(GOLDEN "plain/dit.safetensors");
    edit_prefix_all(e, "blocks.", "transformer_blocks.");
    edit_prefix_all(e, "txtfusion.", "text_fusion.");
    refuses(DIT, e, "diffusers", NULL);
}

static void test_dit_blocks(void **state)
{
    struct edit *e = edit_load(GOLDEN "plain/dit.safetensors");

    (void)state;
    edit_drop_all(e, "blocks.");
    refuses(DIT, e, "blocks.0.", NULL);
    e = edit_load(GOLDEN "plain/dit.safetensors");
    edit_add(e, "blocks.2.mod.lin", "[768]", 1); /* a gap: 0, 2 */
    refuses(DIT, e, "blocks.2.mod.lin", NULL);
}

static void test_dit_shapes(void **state)
{
    struct edit *e = dit();

    (void)state;
    edit_resize(e, "blocks.1.attn.wk.weight", "[32,128]");
    refuses(DIT, e, "blocks.1.attn.wk.weight", "[32,128]", "[64,128]", NULL);
    e = dit();
    edit_resize(e, "blocks.0.attn.qknorm.qnorm.scale", "[48]");
    refuses(DIT, e, "blocks.0.attn.wq.weight", "128 rows", "heads of 48", NULL);
    e = dit();
    edit_resize(e, "blocks.0.attn.qknorm.qnorm.scale", "[8]");
    refuses(DIT, e, "heads of 8", NULL);
    e = dit();
    edit_resize(e, "blocks.0.attn.qknorm.qnorm.scale", "[1]");
    refuses(DIT, e, "even", NULL);
    e = dit();
    edit_resize(e, "blocks.0.attn.wk.weight", "[96,128]");
    refuses(DIT, e, "4 query heads", "3 key heads", NULL);
    e = dit();
    edit_resize(e, "blocks.0.attn.wq.weight", "[64,128]");
    refuses(DIT, e, "width of 128", NULL);
    e = dit();
    edit_resize(e, "txtfusion.layerwise_blocks.0.attn.wq.weight", "[64,32]");
    refuses(DIT, e, "text width of 32", NULL);
}

static void test_dit_odd_sizes(void **state)
{
    struct edit *e = dit();

    (void)state;
    edit_resize(e, "first.weight", "[128,66]");
    refuses(DIT, e, "first.weight", "66", NULL);
    e = dit();
    edit_resize(e, "tmlp.0.weight", "[128,255]");
    refuses(DIT, e, "tmlp.0.weight", "255", NULL);
    e = dit();
    edit_resize(e, "txtfusion.projector.weight", "[1,11]");
    refuses(DIT, e, "11 layers", "12", NULL);
    e = dit();
    edit_resize(e, "txtfusion.projector.weight", "[12]");
    refuses(DIT, e, "txtfusion.projector.weight", "rank 1", NULL);
}

/* ----------------------------------------------------------------------------- text encoder --- */

static struct edit *te(void)
{
    return edit_load(GOLDEN "plain/te.safetensors"); /* Hugging Face's names */
}

static void test_te_takes(void **state)
{
    struct edit *e = te();

    (void)state;
    edit_drop_all(e, "model.visual.");
    edit_drop(e, "lm_head.weight");
    takes(TE, e);
    e = te(); /* Comfy's */
    edit_prefix_all(e, "model.language_model.", "model.");
    takes(TE, e);
    e = te();
    edit_drop(e, "model.language_model.norm.weight"); /* never read */
    takes(TE, e);
}

static void test_te_layers(void **state)
{
    struct edit *e = te();

    (void)state;
    edit_drop_all(e, "model.language_model.layers.35.");
    refuses(TE, e, "35 layers", "36", NULL);
    e = te();
    edit_add(e, "model.language_model.layers.36.mlp.up_proj.weight", "[24,32]", 1);
    refuses(TE, e, "layers.36.", "missing", NULL);
    e = te();
    edit_drop(e, "model.language_model.layers.20.self_attn.k_norm.weight");
    refuses(TE, e, "layers.20.self_attn.k_norm.weight", "missing", NULL);
}

static void test_te_shapes(void **state)
{
    struct edit *e = te();

    (void)state;
    edit_add(e, "model.language_model.layers.0.self_attn.q_proj.bias", "[32]", 1); /* Qwen2.5 */
    refuses(TE, e, "layers.0.self_attn.q_proj.bias", NULL);
    e = te();
    edit_resize(e, "model.language_model.layers.0.self_attn.k_proj.weight", "[24,32]");
    refuses(TE, e, "k_proj.weight 24", "whole heads of 16", NULL);
    e = te();
    edit_resize(e, "model.language_model.layers.7.mlp.down_proj.weight", "[32,23]");
    refuses(TE, e, "layers.7.mlp.down_proj.weight", "[32,23]", "[32,24]", NULL);
}

/* Width 2560 as Qwen3-VL-4B's and Qwen3-4B's, everything else small and zero. */
static struct edit *full_width(void)
{
    static const struct {
        const char *name, *shape;
    } tensors[] = {{"input_layernorm", "[2560]"},     {"post_attention_layernorm", "[2560]"},
                   {"self_attn.q_norm", "[16]"},      {"self_attn.k_norm", "[16]"},
                   {"self_attn.q_proj", "[16,2560]"}, {"self_attn.k_proj", "[16,2560]"},
                   {"self_attn.v_proj", "[16,2560]"}, {"self_attn.o_proj", "[2560,16]"},
                   {"mlp.gate_proj", "[8,2560]"},     {"mlp.up_proj", "[8,2560]"},
                   {"mlp.down_proj", "[2560,8]"}};
    struct edit *e = edit_new();
    char name[120];

    for (int i = 0; i < 36; i++)
        for (size_t k = 0; k < sizeof(tensors) / sizeof(*tensors); k++) {
            snprintf(name, sizeof(name), "model.layers.%d.%s.weight", i, tensors[k].name);
            edit_add(e, name, tensors[k].shape, 0);
        }
    edit_add(e, "model.embed_tokens.weight", "[32,2560]", 0);
    edit_add(e, "model.norm.weight", "[2560]", 0);
    return e;
}

static void test_te_vision(void **state)
{
    struct edit *e = full_width();

    (void)state;
    refuses(TE, e, "model.visual", "Qwen3-4B", "text_encoder_without_vision", NULL);
    takes(BLIND_TE, full_width());
    e = full_width();
    edit_add(e, "model.visual.deepstack_merger_list.0.norm.weight", "[8]", 0);
    takes(TE, e);
}

/* -------------------------------------------------------------------------------------- VAE --- */

static struct edit *vae(void)
{
    return edit_load(GOLDEN "prefixed/vae.safetensors"); /* with its encoder */
}

static void test_vae_takes(void **state)
{
    struct edit *e = vae();

    (void)state;
    takes(VAE, e);
    e = vae();
    edit_drop_all(e, "encoder.");
    edit_drop_all(e, "conv1.");
    takes(VAE, e);
    e = vae();
    edit_drop_all(e, "decoder.upsamples.3.time_conv.");
    edit_drop_all(e, "encoder.downsamples.8.time_conv.");
    takes(VAE, e);
    e = vae();
    edit_reshape(e, "decoder.middle.0.residual.0.gamma", "[16]");
    edit_reshape(e, "decoder.middle.1.to_qkv.weight", "[48,16]");
    takes(VAE, e);
}

static void test_vae_halves(void **state)
{
    struct edit *e = vae();

    (void)state;
    edit_drop(e, "encoder.middle.1.proj.bias");
    refuses(VAE, e, "conv1.weight", "encoder.middle.1.proj.bias", NULL);
    e = vae();
    edit_drop_all(e, "encoder.");
    refuses(VAE, e, "conv1.weight", "encoder.conv1.weight", NULL);
    e = vae();
    edit_add(e, "encoder.middle.3.weight", "[4]", 1);
    refuses(VAE, e, "encoder.middle.3.weight", NULL);
    e = vae();
    edit_drop(e, "decoder.head.2.bias");
    refuses(VAE, e, "decoder.head.2.bias", "missing", NULL);
}

static void test_vae_extras(void **state)
{
    struct edit *e = vae();

    (void)state;
    edit_add(e, "decoder.upsamples.11.time_conv.weight", "[8,8,3,1,1]", 1);
    refuses(VAE, e, "decoder.upsamples.11.time_conv.weight", NULL);
    e = vae();
    edit_add(e, "decoder.upsamples.8.shortcut.weight", "[8,8,1,1,1]", 1);
    refuses(VAE, e, "decoder.upsamples.8.shortcut.weight", NULL);
    e = vae();
    edit_drop_all(e, "encoder.");
    edit_drop_all(e, "conv1.");
    edit_prefix_all(e, "decoder.conv1.", "decoder.conv_in.");
    edit_prefix_all(e, "decoder.middle.", "decoder.mid_block.");
    edit_prefix_all(e, "decoder.upsamples.", "decoder.up_blocks.");
    edit_prefix_all(e, "conv2.", "post_quant_conv.");
    refuses(VAE, e, "diffusers", "qwen_image_vae", NULL);
}

static void test_vae_values(void **state)
{
    struct edit *e = vae();

    (void)state;
    edit_zero(e, "conv2.weight");
    refuses(VAE, e, "conv2.weight", "zeros", NULL);
    e = vae();
    edit_drop(e, "conv2.weight");
    edit_add(e, "conv2.weight", "[16,16,1,1,1]", INFINITY); /* zeros of both signs */
    refuses(VAE, e, "conv2.weight", "zeros", NULL);
    e = vae();
    edit_resize(e, "decoder.head.2.weight", "[12,4,3,3,3]");
    edit_resize(e, "decoder.head.2.bias", "[12]");
    refuses(VAE, e, "12 channels", "want 3", NULL);
    e = vae();
    edit_resize(e, "conv2.weight", "[4,4,1,1,1]");
    edit_resize(e, "conv2.bias", "[4]");
    refuses(VAE, e, "latents have 4 channels", "16", NULL);
    e = vae();
    edit_resize(e, "decoder.upsamples.4.shortcut.weight", "[16,8,3,3,3]");
    refuses(VAE, e, "decoder.upsamples.4.shortcut.weight", NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dit_sizes),     cmocka_unit_test(test_dit_rope),
        cmocka_unit_test(test_dit_takes),     cmocka_unit_test(test_dit_names),
        cmocka_unit_test(test_dit_blocks),    cmocka_unit_test(test_dit_shapes),
        cmocka_unit_test(test_dit_odd_sizes), cmocka_unit_test(test_te_takes),
        cmocka_unit_test(test_te_layers),     cmocka_unit_test(test_te_shapes),
        cmocka_unit_test(test_te_vision),     cmocka_unit_test(test_vae_takes),
        cmocka_unit_test(test_vae_halves),    cmocka_unit_test(test_vae_extras),
        cmocka_unit_test(test_vae_values),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
