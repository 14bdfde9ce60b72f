/* SPDX-License-Identifier: Apache-2.0
 *
 * Binding a model to a file: every tensor held against what is asked, strict accounting, prefixes,
 * and the values that arrive on the device.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "tests/weights/model.h"

static void complete(void **state)
{
    static const char *const prefixes[] = {"", "model.diffusion_model.", "diffusion_model.",
                                           "model.", "model.language_model."};
    size_t i;

    (void)state;
    for (i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        struct draft d = {0};
        struct model m;

        model_draft(&d);
        draft_prefix(&d, prefixes[i]);
        accepted_by_model(&d, "f", &m);
        assert_int_equal(m.wq.dtype, KR_BF16);
        assert_int_equal(m.wo.dtype, KR_F16);
        assert_true(m.wq.scale == 1 && m.wq.out == 4 && m.wq.in == 6 && !m.wq.full_precision);
        assert_true(m.qkv.out == 12 && m.qkv.in == 4 && m.qkv.dtype == KR_BF16);
        assert_int_equal(m.conv.kt, 1);
        assert_int_equal(m.conv.kh, 3);
        assert_int_equal(m.conv3d.kt, 3);
        assert_int_equal(m.conv3d.kw, 1);
        assert_null(m.first.bias.data); /* check only: nothing is made */
        assert_null(m.norm.data);
    }
}

/* Each tensor of the model, left out. */
static void missing(void **state)
{
    struct draft names = {0};
    int i;

    (void)state;
    model_draft(&names);
    for (i = 0; i < names.count; i++) {
        struct draft d = {0};

        if (!strcmp(names.tensors[i].name, "probe"))
            continue;
        model_draft(&d);
        draft_drop(&d, names.tensors[i].name);
        refused_by_model(&d, "f", names.tensors[i].name, "missing");
        model_draft(&d);
        draft_drop(&d, names.tensors[i].name);
        draft_prefix(&d, "model.diffusion_model.");
        refused_by_model(&d, "f", names.tensors[i].name, "model.diffusion_model.");
    }
    draft_write(&names, "g");
}

static void extra(void **state)
{
    struct draft d = {0};

    (void)state;
    model_draft(&d);
    draft_set(&d, "blocks.1.wq.weight", "BF16", "[4,6]", NULL, 48);
    refused_by_model(&d, "f", "blocks.1.wq.weight is not part", "f");
    draft_set(&d, "blocks.1.wq.weight", "BF16", "[4,6]", NULL, 48);
    model_draft(&d);
    draft_set(&d, "zeros", "I64", "[0]", NULL, 0);
    refused_by_model(&d, "f", "blocks.1.wq.weight and 1 more", "not part");
    model_draft(&d);
    draft_set(&d, "blocks.0.wq.bias", "BF16", "[4]", NULL, 8);
    refused_by_model(&d, "f", "blocks.0.wq.bias", "not part");
    model_draft(&d); /* a tensor beside the prefix */
    draft_prefix(&d, "model.diffusion_model.");
    draft_set(&d, "first_stage_model.x", "BF16", "[4]", NULL, 8);
    refused_by_model(&d, "f", "first_stage_model.x", "not part");
}

static void wrong_shape(void **state)
{
    static const struct {
        const char *name, *dtype, *shape;
        size_t bytes;
        const char *got, *want;
    } cases[] = {
        {"blocks.0.wq.weight", "BF16", "[6,4]", 48, "[6,4] BF16", "want [4,6]"},
        {"blocks.0.wq.weight", "BF16", "[24]", 48, "[24] BF16", "want [4,6]"},
        {"blocks.0.wq.weight", "BF16", "[4,6,2]", 96, "[4,6,2] BF16", "want [4,6]"},
        {"blocks.0.wq.weight", "BF16", "[1,4,6]", 48, "[1,4,6] BF16", "want [4,6]"},
        {"blocks.0.wq.weight", "BF16", "[]", 2, "[] BF16", "want [4,6]"},
        {"blocks.0.wq.weight", "BF16", "[4,0]", 0, "[4,0] BF16", "want [4,6]"},
        {"blocks.0.wo.weight", "F32", "[6,5]", 120, "[6,5] F32", "want [6,4]"},
        {"first.bias", "F32", "[5]", 20, "[5] F32", "want [4]"},
        {"norm.weight", "F32", "[0]", 0, "[0] F32", "want [4]"},
        {"modulation", "F32", "[4,3]", 48, "[4,3] F32", "want [3,4]"},
        {"modulation", "F32", "[2,6]", 48, "[2,6] F32", "want [3,4]"},
        {"modulation", "F32", "[3,2,2]", 48, "[3,2,2] F32", "want [3,4]"},
        {"gamma", "F16", "[2,2,1]", 8, NULL, NULL}, /* flat enough for a vector */
        {"gamma", "F16", "[2,2,2]", 16, "[2,2,2] F16", "want [4]"},
        {"modulation", "F32", "[1,3,1,4]", 48, NULL, NULL},
        {"modulation", "F32", "[3,4]", 48, NULL, NULL},
        {"conv.weight", "BF16", "[2,3,3,1]", 36, "[2,3,3,1] BF16", "want [2,3,(time,)3,3]"},
        {"conv.weight", "BF16", "[3,2,3,3]", 108, "[3,2,3,3] BF16", "want [2,3,(time,)3,3]"},
        {"conv.weight", "BF16", "[2,3,0,3,3]", 0, "[2,3,0,3,3] BF16", "want [2,3,(time,)3,3]"},
        {"conv.weight", "BF16", "[2,27]", 108, "[2,27] BF16", "want [2,3,(time,)3,3]"},
        {"conv3d.weight", "F32", "[2,3]", 24, "[2,3] F32", "want [2,3,(time,)1,1]"},
    };
    size_t i;

    (void)state;
    for (i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct draft d = {0};
        struct model m;
        char got[100];

        model_draft(&d);
        draft_set(&d, cases[i].name, cases[i].dtype, cases[i].shape, NULL, cases[i].bytes);
        if (!cases[i].got) {
            accepted_by_model(&d, "f", &m);
            continue;
        }
        snprintf(got, sizeof got, "%s is %s", cases[i].name, cases[i].got);
        refused_by_model(&d, "f", got, cases[i].want);
    }
}

static void wrong_type(void **state)
{
    static const struct {
        const char *name, *dtype, *shape;
        size_t bytes;
        const char *want;
    } cases[] = {
        {"blocks.0.wq.weight", "F64", "[4,6]", 192, "want F32, BF16"},
        {"blocks.0.wq.weight", "I32", "[4,6]", 96, "want F32, BF16"},
        {"blocks.0.wq.weight", "F8_E4M3FNUZ", "[4,6]", 24, "want F32, BF16"},
        {"blocks.0.wq.weight", "F9_NEW", "[4,6]", 24, "want F32, BF16"},
        {"blocks.0.wq.weight", "BOOL", "[4,6]", 24, "want F32, BF16"},
        {"first.bias", "F64", "[4]", 32, "want F32, BF16 or F16"},
        {"first.bias", "I8", "[4]", 4, "want F32, BF16 or F16"},
        {"norm.weight", "I16", "[4]", 8, "want F32, BF16 or F16"},
        {"conv.weight", "F8_E4M3", "[2,3,3,3]", 54, "want F32, BF16 or F16"},
        {"conv.weight", "F64", "[2,3,3,3]", 432, "want F32, BF16 or F16"},
    };
    size_t i;

    (void)state;
    for (i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct draft d = {0};
        char got[100];

        model_draft(&d);
        draft_set(&d, cases[i].name, cases[i].dtype, cases[i].shape, NULL, cases[i].bytes);
        snprintf(got, sizeof got, "%s is %s %s", cases[i].name, cases[i].shape, cases[i].dtype);
        refused_by_model(&d, "f", got, cases[i].want);
    }
}

static void no_probe(void **state)
{
    struct draft d = {0};

    (void)state;
    model_draft(&d);
    draft_drop(&d, "probe");
    draft_write(&d, "f");
    refused("f", KR_BAD_FILE, "no tensor probe", "diffusion model", NULL);
    model_draft(&d);
    draft_prefix(&d, "net.");
    draft_write(&d, "f");
    refused("f", KR_BAD_FILE, "no tensor probe", NULL);
    model_draft(&d);
    draft_set(&d, "model.diffusion_model.probe", "F32", "[]", NULL, 4);
    draft_write(&d, "f");
    refused("f", KR_BAD_FILE, "two models", "model.diffusion_model.probe", NULL);
    model_draft(&d); /* the same tensor with the prefix and without */
    draft_prefix(&d, "model.");
    draft_set(&d, "norm.weight", "F32", "[4]", NULL, 16);
    draft_write(&d, "f");
    refused("f", KR_BAD_FILE, "model.norm.weight", "same tensor", NULL);
}

static void other_models(void **state)
{
    static const struct {
        const char *file, *tensor, *word;
    } cases[] = {
        {"f", "transformer_blocks.0.attn.to_q.weight", "diffusers"},
        {"f", "model.diffusion_model.transformer_blocks.0.attn.to_q.weight", "diffusers"},
        {"f", "decoder.up_blocks.0.resnets.0.conv1.weight", "qwen_image_vae"},
        {"f", "diffusion_model.blocks.0.attn.wq.lora_A.weight", "LoRA"},
        {"f", "lora_unet_blocks_6_attn_wv.lora_down.weight", "LoRA"},
        {"f", "noise_refiner.0.attention.qkv.weight", "Z-Image"},
        {"f", "double_blocks.0.img_attn.qkv.weight", "FLUX"},
        {"f", "model.language_model.layers.0.mlp.up_proj.weight", "language model"},
        {"f", "decoder.upsamples.0.residual.0.gamma", "VAE"},
        {"f", "something.else", "another model"},
        {"m-00001-of-00002.safetensors", "something.else", "split"},
    };
    size_t i;

    (void)state;
    for (i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct draft d = {0};

        draft_set(&d, cases[i].tensor, "BF16", "[2]", NULL, 4);
        draft_write(&d, cases[i].file);
        refused(cases[i].file, KR_BAD_FILE, cases[i].word, NULL);
    }
}

/* Names in messages are cut rather than the sentence. */
static void long_names(void **state)
{
    struct draft d = {0};
    struct weights *w;
    struct model m;
    struct kr_err err;
    char file[200], tensor[201];

    (void)state;
    memset(file, 'f', sizeof file);
    file[199] = '\0';
    memset(tensor, 't', sizeof tensor);
    tensor[200] = '\0';
    model_draft(&d);
    draft_set(&d, tensor, "BF16", "[2]", NULL, 4);
    draft_write(&d, file);
    w = draft_open(file);
    assert_string_equal(weights_name(w), file);
    assert_int_equal(model_bind(&m, w, NULL, &err), -1);
    assert_non_null(strstr(err.text, tensor));
    assert_non_null(strstr(err.text, "take another file"));
    weights_close(w);
}

static void first_failure_stays(void **state)
{
    struct draft d = {0};
    struct weights *w;
    struct kr_weight wq, wo;
    struct kr_tensor norm;
    struct kr_conv conv;
    struct kr_err err;
    struct binder b;

    (void)state;
    model_draft(&d);
    draft_write(&d, "f");
    w = draft_open("f");
    assert_int_equal(binder_init(&b, w, NULL, &err), 0);
    assert_false(bind_ignore(&b, "nothing."));
    assert_true(bind_ignore(&b, "conv"));
    bind_linear(&b, &wq, 5, 6, "blocks.0.wq");
    assert_true(b.failed);
    assert_null(wq.data);
    bind_linear_bias(&b, &wo, 1, 1, "nothing");
    bind_vector(&b, &norm, 1, 0, 0, "nothing");
    bind_conv(&b, &conv, 1, 1, 1, "nothing");
    assert_null(wo.data);
    assert_null(conv.data);
    assert_true(bind_ignore(&b, "first."));
    assert_int_equal(binder_end(&b), -1);
    sentence("f", &err, KR_BAD_FILE, "blocks.0.wq.weight", "want [5,6]", NULL);
    assert_null(b.used);
    assert_int_equal(binder_init(&b, w, NULL, NULL), 0); /* nobody wants to know why */
    bind_linear(&b, &wq, 5, 6, "blocks.0.wq");
    assert_int_equal(binder_end(&b), -1);
    weights_close(w);
}

/* ------------------------------------------------------------------------------ values ------- */

static struct kr_device *device(void)
{
    const struct kr_device_options options = {.threads = 1};
    char why[200] = "";
    struct kr_device *dev = kr_device_open_cpu(&options, why, sizeof why);

    if (!dev)
        fail_msg("%s", why);
    return dev;
}

static void expect_values(struct kr_device *dev, struct kr_tensor *t, int rank, const float *want,
                          size_t n)
{
    float got[64];
    size_t i;

    assert_int_equal(t->rank, rank);
    assert_int_equal(kr_download(dev, *t, got), 0);
    for (i = 0; i < n; i++)
        if (got[i] != want[i])
            fail_msg("value %zu is %.9g, want %.9g", i, (double)got[i], (double)want[i]);
    kr_persist_free(dev, t);
}

static void values_arrive(void **state)
{
    const float halves[4] = {1, -2, 0.5f, 65504}, norm[4] = {1, 1.5f, 0.75f, 3};
    const float brains[12] = {1, -2, 0.5f, 4, 1, -2, 0.5f, 4, 1, -2, 0.5f, 4};
    struct kr_device *dev = device();
    struct draft d = {0};
    struct weights *w;
    struct model m;
    struct kr_err err;
    float qkv[12] = {0};

    (void)state;
    draft_set(&d, "encoder.odd", "U8", "[1]", NULL, 1); /* all that follows is unaligned */
    model_draft(&d);
    draft_write(&d, "f");
    w = draft_open("f");
    if (model_bind(&m, w, dev, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal((uintptr_t)m.wq.data % 2, ((uintptr_t)m.first.data) % 2);
    expect_values(dev, &m.first.bias, 1, halves, 4);
    expect_values(dev, &m.qkv.bias, 1, qkv, 12);
    expect_values(dev, &m.norm, 1, norm, 4);
    expect_values(dev, &m.modulation, 2, brains, 12);
    expect_values(dev, &m.mix, 1, brains, 4);
    expect_values(dev, &m.small, 1, halves, 4);
    expect_values(dev, &m.conv.bias, 1, brains, 2);
    kr_persist_free(dev, &m.conv3d.bias);
    weights_close(w);
    kr_device_close(dev);
}

/* Every value of the small types, against arithmetic on their fields. */
static void all_small_floats(void **state)
{
    struct kr_device *dev = device();
    struct draft d = {0};
    struct weights *w;
    struct binder b;
    struct kr_tensor t;
    struct kr_err err;
    unsigned char bytes[256];
    float e4m3[256], e5m2[256];
    int i, n = 0, m = 0;
    char shape[16];

    (void)state;
    for (i = 0; i < 256; i++) {
        double sign = i & 128 ? -1 : 1, x;

        if ((i & 127) == 127)
            continue;
        x = i >> 3 & 15 ? (1 + (i & 7) / 8.0) * pow(2, (i >> 3 & 15) - 7) : (i & 7) / 512.0;
        e4m3[n] = (float)(sign * x);
        bytes[n++] = (unsigned char)i;
    }
    snprintf(shape, sizeof shape, "[%d]", n);
    draft_set(&d, "probe", "F8_E4M3", shape, bytes, (size_t)n);
    for (i = 0; i < 256; i++) {
        double sign = i & 128 ? -1 : 1, x;

        if ((i >> 2 & 31) == 31)
            continue;
        x = i >> 2 & 31 ? (1 + (i & 3) / 4.0) * pow(2, (i >> 2 & 31) - 15) : (i & 3) / 65536.0;
        e5m2[m] = (float)(sign * x);
        bytes[m++] = (unsigned char)i;
    }
    snprintf(shape, sizeof shape, "[%d]", m);
    draft_set(&d, "e5m2", "F8_E5M2", shape, bytes, (size_t)m);
    draft_set(&d, "f16", "F16", "[3]", "\1\0\xff\3\0\x84", 6); /* subnormal */
    draft_write(&d, "f");
    w = draft_open("f");
    assert_int_equal(binder_init(&b, w, dev, &err), 0);
    bind_vector(&b, &t, n, 0, 0, "probe");
    assert_false(b.failed);
    {
        float got[256];

        kr_download(dev, t, got);
        for (i = 0; i < n; i++)
            assert_true(got[i] == e4m3[i]);
        kr_persist_free(dev, &t);
        bind_vector(&b, &t, m, 0, 0, "e5m2");
        kr_download(dev, t, got);
        for (i = 0; i < m; i++)
            assert_true(got[i] == e5m2[i]);
        kr_persist_free(dev, &t);
        bind_vector(&b, &t, 3, 0, 0, "f16");
        kr_download(dev, t, got);
        assert_true(got[0] == ldexpf(1, -24) && got[1] == ldexpf(1023, -24));
        assert_true(got[2] == ldexpf(-1, -14));
        kr_persist_free(dev, &t);
    }
    assert_int_equal(binder_end(&b), 0);
    weights_close(w);
    kr_device_close(dev);
}

static void not_finite(void **state)
{
    static const struct {
        const char *dtype, *bytes;
        size_t size;
    } values[] = {
        {"F32", "\0\0\0\0\0\0\xc0\x7f\0\0\0\0\0\0\0\0", 16},
        {"F32", "\0\0\0\0\0\0\x80\xff\0\0\0\0\0\0\0\0", 16},
        {"BF16", "\0\0\xc0\x7f\0\0\0\0", 8},
        {"F16", "\0\0\0\x7c\0\0\0\0", 8},
        {"F8_E4M3", "\0\xff\0\0", 4},
        {"F8_E5M2", "\0\x7c\0\0", 4},
    };
    struct kr_device *dev = device();
    size_t i;

    (void)state;
    for (i = 0; i < sizeof values / sizeof *values; i++) {
        struct draft d = {0};
        struct weights *w;
        struct binder b;
        struct kr_tensor t;
        struct kr_err err;

        draft_set(&d, "probe", values[i].dtype, "[4]", values[i].bytes, values[i].size);
        draft_write(&d, "f");
        w = draft_open("f");
        assert_int_equal(binder_init(&b, w, dev, &err), 0);
        bind_vector(&b, &t, 4, 0, 1, "probe");
        assert_null(t.data);
        assert_int_equal(binder_end(&b), -1);
        sentence("f", &err, KR_BAD_FILE, "value 1 of probe", "NaN", NULL);
        weights_close(w);
    }
    kr_device_close(dev);
}

/* A vector that is FP8 with a scale comes out multiplied. */
static void scaled_vector(void **state)
{
    const float want[2] = {1.25f, 0.5f};
    struct kr_device *dev = device();
    struct draft d = {0};
    struct weights *w;
    struct binder b;
    struct kr_tensor t, probe;
    struct kr_err err;

    (void)state;
    draft_scale(&d, "probe", 1);
    draft_set(&d, "x.weight", "F8_E4M3", "[2]", "\x38\x00", 2);
    draft_scale(&d, "x.weight_scale", 0.75f);
    draft_write(&d, "f");
    w = draft_open("f");
    assert_int_equal(binder_init(&b, w, dev, &err), 0);
    bind_vector(&b, &probe, 1, 0, 0, "probe");
    bind_vector(&b, &t, 2, 0, 0.5f, "x.weight");
    if (binder_end(&b) < 0)
        fail_msg("%s", err.text);
    expect_values(dev, &t, 1, want, 2);
    kr_persist_free(dev, &probe);
    weights_close(w);
    kr_device_close(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(complete),
        cmocka_unit_test(missing),
        cmocka_unit_test(extra),
        cmocka_unit_test(wrong_shape),
        cmocka_unit_test(wrong_type),
        cmocka_unit_test(no_probe),
        cmocka_unit_test(other_models),
        cmocka_unit_test(long_names),
        cmocka_unit_test(first_failure_stays),
        cmocka_unit_test(values_arrive),
        cmocka_unit_test(all_small_floats),
        cmocka_unit_test(not_finite),
        cmocka_unit_test(scaled_vector),
    };

    return cmocka_run_group_tests(tests, draft_setup, draft_teardown);
}
