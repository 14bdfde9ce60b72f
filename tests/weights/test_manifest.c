/* SPDX-License-Identifier: Apache-2.0
 *
 * How files say that they are quantized: all spellings that are met, and the ways to contradict
 * oneself.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "tests/weights/model.h"

#define E4M3      "{\"format\": \"float8_e4m3fn\"}"
#define E4M3_FULL "{\"format\": \"float8_e4m3fn\", \"full_precision_matrix_mult\": true}"
#define E5M2      "{\"format\": \"float8_e5m2\"}"

/* The header's form, with `layers` as JSON (quotes are escaped here). */
static void declare(struct draft *d, const char *layers)
{
    char json[2000], *at = json;

    at += sprintf(at, "{\"_quantization_metadata\":\"{\\\"format_version\\\":\\\"1.0\\\","
                      "\\\"layers\\\":");
    for (; *layers; layers++) {
        if (*layers == '"' || *layers == '\\')
            *at++ = '\\';
        *at++ = *layers;
    }
    strcpy(at, "}\"}");
    draft_metadata(d, json);
}

static void expect(const struct model *m, float wq, int wq_full, float wo, int wo_full)
{
    assert_true(m->wq.scale == wq);
    assert_true(m->wo.scale == wo);
    assert_int_equal(m->wq.full_precision, wq_full);
    assert_int_equal(m->wo.full_precision, wo_full);
    assert_int_equal(m->wq.dtype, KR_F8_E4M3);
    assert_int_equal(m->wo.dtype, KR_F8_E5M2);
}

static void scales_alone(void **state)
{
    struct draft d = {0};
    struct model m;

    (void)state;
    model_draft_scaled(&d);
    accepted_by_model(&d, "f", &m);
    expect(&m, 0.5f, 0, 0.25f, 0);
    model_draft_scaled(&d);
    draft_set(&d, "blocks.0.wq.weight_scale", "F32", "[1]", &(float){3}, 4);
    draft_set(&d, "blocks.0.wo.weight_scale", "BF16", "[1,1]", "\x80\x3f", 2);
    draft_scale(&d, "blocks.0.wq.input_scale", 1);
    accepted_by_model(&d, "f", &m);
    expect(&m, 3, 0, 1, 0);
}

static void header_form(void **state)
{
    struct draft d = {0};
    struct model m;

    (void)state;
    model_draft_scaled(&d);
    declare(&d, "{\"blocks.0.wq\":" E4M3_FULL ",\"blocks.0.wo\":" E5M2 "}");
    accepted_by_model(&d, "f", &m);
    expect(&m, 0.5f, 1, 0.25f, 0);
}

/* Tensors with and without a prefix, names in the metadata with and without: all four. */
static void prefixes_are_independent(void **state)
{
    static const char *const prefixes[] = {"", "model.diffusion_model.", "diffusion_model.",
                                           "model.", "model.language_model."};
    size_t n = sizeof prefixes / sizeof *prefixes, tensors, names;

    (void)state;
    for (tensors = 0; tensors < n; tensors++) {
        for (names = 0; names < n; names++) {
            struct draft d = {0};
            struct model m;
            char layers[400];

            model_draft_scaled(&d);
            draft_prefix(&d, prefixes[tensors]);
            snprintf(layers, sizeof layers, "{\"%sblocks.0.wq\":" E4M3_FULL "}", prefixes[names]);
            declare(&d, layers);
            accepted_by_model(&d, "f", &m);
            expect(&m, 0.5f, 1, 0.25f, 0);
        }
    }
}

static void tensor_form(void **state)
{
    static const char padded[80] = E4M3_FULL;
    struct draft d = {0};
    struct model m;

    (void)state;
    model_draft_scaled(&d);
    draft_quant(&d, "blocks.0.wq.comfy_quant", E4M3);
    draft_quant(&d, "blocks.0.wo.comfy_quant", "{\"full_precision_matrix_mult\":true}");
    accepted_by_model(&d, "f", &m);
    expect(&m, 0.5f, 0, 0.25f, 1);
    model_draft_scaled(&d); /* padded with NULs, as some writers do */
    draft_set(&d, "blocks.0.wq.comfy_quant", "U8", "[80]", padded, 80);
    accepted_by_model(&d, "f", &m);
    expect(&m, 0.5f, 1, 0.25f, 0);
    model_draft_scaled(&d);
    draft_quant(&d, "blocks.0.wq.comfy_quant", E4M3_FULL);
    draft_prefix(&d, "model.diffusion_model.");
    accepted_by_model(&d, "f", &m);
    expect(&m, 0.5f, 1, 0.25f, 0);
}

static void old_spelling(struct draft *d)
{
    model_draft_scaled(d);
    draft_drop(d, "blocks.0.wq.weight_scale");
    draft_drop(d, "blocks.0.wo.weight_scale");
    draft_set(d, "blocks.0.wo.weight", "F8_E4M3", "[6,4]", NULL, 24);
    draft_scale(d, "blocks.0.wq.scale_weight", 0.5f);
    draft_scale(d, "blocks.0.wo.scale_weight", 0.25f);
    draft_scale(d, "blocks.0.wq.scale_input", 1);
}

static void marker_form(void **state)
{
    static const char *const names[] = {"scaled_fp8", "model.diffusion_model.scaled_fp8"};
    struct draft d = {0};
    struct model m;
    size_t i;

    (void)state;
    for (i = 0; i < 2; i++) {
        old_spelling(&d); /* the usual marker: no elements */
        draft_set(&d, names[i], "F8_E4M3", "[0]", NULL, 0);
        accepted_by_model(&d, "f", &m);
        assert_true(m.wq.scale == 0.5f && m.wo.scale == 0.25f);
        assert_int_equal(m.wq.full_precision, 0);
        old_spelling(&d);
        draft_prefix(&d, "model.diffusion_model.");
        draft_set(&d, names[i], "F8_E4M3", "[2]", NULL, 2);
        accepted_by_model(&d, "f", &m);
        assert_int_equal(m.wq.full_precision, 1);
        assert_int_equal(m.wo.full_precision, 1);
    }
    old_spelling(&d); /* F32 says nothing about the kind of FP8 */
    draft_set(&d, "scaled_fp8", "F32", "[1]", NULL, 4);
    accepted_by_model(&d, "f", &m);
    old_spelling(&d); /* no marker: the scales speak for themselves */
    accepted_by_model(&d, "f", &m);
    assert_true(m.wq.scale == 0.5f && m.wo.scale == 0.25f);
    old_spelling(&d);
    draft_set(&d, "blocks.0.wq.weight", "F8_E5M2", "[4,6]", NULL, 24);
    draft_set(&d, "blocks.0.wo.weight", "F8_E5M2", "[6,4]", NULL, 24);
    draft_set(&d, "scaled_fp8", "F8_E5M2", "[0]", NULL, 0);
    accepted_by_model(&d, "f", &m);
}

static void bad_marker(void **state)
{
    struct draft d = {0};

    (void)state;
    old_spelling(&d);
    draft_set(&d, "scaled_fp8", "F8_E5M2", "[0]", NULL, 0);
    refused_by_model(&d, "f", "blocks.0.wq.weight", "scaled_fp8 declares F8_E5M2");
    old_spelling(&d);
    draft_set(&d, "scaled_fp8", "I8", "[2]", NULL, 2);
    draft_write(&d, "f");
    refused("f", KR_BAD_FILE, "scaled_fp8", "I8", NULL);
    old_spelling(&d);
    draft_set(&d, "scaled_fp8", "F8_E4M3", "[3]", NULL, 3);
    draft_write(&d, "f");
    refused("f", KR_BAD_FILE, "scaled_fp8", NULL);
    old_spelling(&d);
    draft_drop(&d, "blocks.0.wq.scale_weight");
    draft_set(&d, "scaled_fp8", "F8_E4M3", "[0]", NULL, 0);
    refused_by_model(&d, "f", "blocks.0.wq.weight is unscaled", ".scale_weight");
}

static void two_forms(void **state)
{
    struct draft d = {0};
    struct model m;

    (void)state;
    model_draft_scaled(&d);
    declare(&d, "{\"blocks.0.wq\":" E4M3_FULL "}");
    draft_quant(&d, "blocks.0.wq.comfy_quant", E4M3_FULL);
    draft_quant(&d, "blocks.0.wo.comfy_quant", E5M2);
    accepted_by_model(&d, "f", &m);
    expect(&m, 0.5f, 1, 0.25f, 0);
    model_draft_scaled(&d);
    declare(&d, "{\"blocks.0.wq\":" E4M3_FULL "}");
    draft_quant(&d, "blocks.0.wq.comfy_quant", E4M3);
    draft_write(&d, "f");
    refused("f", KR_BAD_FILE, "blocks.0.wq", "twice", NULL);
    model_draft_scaled(&d);
    declare(&d, "{\"blocks.0.wq\":" E5M2 "}");
    draft_quant(&d, "blocks.0.wq.comfy_quant", E4M3);
    draft_write(&d, "f");
    refused("f", KR_BAD_FILE, "blocks.0.wq", "float8_e5m2", "float8_e4m3fn", NULL);
    model_draft_scaled(&d); /* one layer under two names in the header */
    declare(&d, "{\"blocks.0.wq\":" E4M3 ",\"model.blocks.0.wq\":" E4M3_FULL "}");
    draft_write(&d, "f");
    refused("f", KR_BAD_FILE, "blocks.0.wq", "twice", NULL);
}

static void contradictions(void **state)
{
    struct draft d = {0};

    (void)state;
    model_draft_scaled(&d);
    declare(&d, "{\"blocks.0.wq\":" E5M2 "}");
    refused_by_model(&d, "f", "blocks.0.wq.weight is [4,6] F8_E4M3", "want F8_E5M2");
    model_draft_scaled(&d);
    draft_quant(&d, "blocks.0.wo.comfy_quant", E4M3);
    refused_by_model(&d, "f", "blocks.0.wo.weight is [6,4] F8_E5M2", "want F8_E4M3");
    model_draft(&d);
    declare(&d, "{\"blocks.0.wq\":" E4M3 "}");
    refused_by_model(&d, "f", "blocks.0.wq.weight is [4,6] BF16", "want F8_E4M3");
    model_draft(&d);
    draft_quant(&d, "blocks.0.wq.comfy_quant", "{}");
    refused_by_model(&d, "f", "blocks.0.wq.weight is [4,6] BF16", "want F8_E4M3 or F8_E5M2");
    model_draft_scaled(&d);
    declare(&d, "{\"blocks.7.wq\":" E4M3 "}");
    refused_by_model(&d, "f", "blocks.7.wq", "missing");
    model_draft_scaled(&d);
    draft_quant(&d, "blocks.7.wq.comfy_quant", E4M3);
    refused_by_model(&d, "f", "blocks.7.wq.comfy_quant", "not part");
    model_draft(&d);
    draft_quant(&d, "conv.comfy_quant", E4M3);
    refused_by_model(&d, "f", "conv.weight is [2,3,3,3] BF16", "want F8_E4M3");
}

static void bad_metadata(void **state)
{
    static const char *const texts[] = {
        "{\"_quantization_metadata\":\"\"}",
        "{\"_quantization_metadata\":\"nonsense\"}",
        "{\"_quantization_metadata\":\"[]\"}",
        "{\"_quantization_metadata\":\"{}\"}",
        "{\"_quantization_metadata\":\"{\\\"layers\\\":[]}\"}",
        "{\"_quantization_metadata\":\"{\\\"layers\\\":{\\\"a\\\":1}}\"}",
        "{\"_quantization_metadata\":\"{\\\"layers\\\":{\\\"a\\\":{},\\\"a\\\":{}}}\"}",
        "{\"_quantization_metadata\":\"{\\\"layers\\\":{\\\"a\\\":{\\\"format\\\":8}}}\"}",
        "{\"_quantization_metadata\":\"{\\\"layers\\\":{\\\"a\\\\u001bb\\\":{}}}\"}",
        "{\"_quantization_metadata\":\"[[[[[[[[[[[[1]]]]]]]]]]]]\"}",
    };
    struct draft d = {0};
    size_t i;

    (void)state;
    for (i = 0; i < sizeof texts / sizeof *texts; i++) {
        model_draft_scaled(&d);
        draft_metadata(&d, texts[i]);
        draft_write(&d, "f");
        refused("f", KR_BAD_FILE, i == 5 || i == 7 ? "of a" : "_quantization_metadata", NULL);
    }
}

static void bad_comfy_quant(void **state)
{
    static const char *const texts[] = {
        "nonsense",
        "\"float8_e4m3fn\"",
        "[]",
        "{\"format\":1}",
        "{\"format\":\"a\",\"format\":\"a\"}",
        "{\"format\":\"float8_e4m3fn\",\"full_precision_matrix_mult\":1}",
        "{\"format\":\"\xff\"}",
    };
    struct draft d = {0};
    char deep[3000];
    size_t i;

    (void)state;
    for (i = 0; i < sizeof texts / sizeof *texts; i++) {
        model_draft_scaled(&d);
        draft_quant(&d, "blocks.0.wq.comfy_quant", texts[i]);
        draft_write(&d, "f");
        refused("f", KR_BAD_FILE, "blocks.0.wq.comfy_quant", NULL);
    }
    memset(deep, '[', sizeof deep);
    deep[sizeof deep - 1] = '\0';
    model_draft_scaled(&d);
    draft_quant(&d, "blocks.0.wq.comfy_quant", deep);
    draft_write(&d, "f");
    refused("f", KR_BAD_FILE, "blocks.0.wq.comfy_quant", "nested", NULL);
    model_draft_scaled(&d); /* empty, all NULs, another type, too long */
    draft_set(&d, "blocks.0.wq.comfy_quant", "U8", "[0]", NULL, 0);
    draft_write(&d, "f");
    refused("f", KR_BAD_FILE, "blocks.0.wq.comfy_quant", NULL);
    model_draft_scaled(&d);
    draft_set(&d, "blocks.0.wq.comfy_quant", "U8", "[9]", NULL, 9);
    draft_write(&d, "f");
    refused("f", KR_BAD_FILE, "blocks.0.wq.comfy_quant", NULL);
    model_draft_scaled(&d);
    draft_set(&d, "blocks.0.wq.comfy_quant", "I8", "[2]", "{}", 2);
    draft_write(&d, "f");
    refused("f", KR_BAD_FILE, "blocks.0.wq.comfy_quant", "U8", NULL);
    model_draft_scaled(&d);
    draft_set(&d, "blocks.0.wq.comfy_quant", "U8", "[65537]", NULL, 65537);
    draft_write(&d, "f");
    refused("f", KR_BAD_FILE, "blocks.0.wq.comfy_quant", "short", NULL);
}

static void bad_scales(void **state)
{
    const float values[] = {NAN, INFINITY, -INFINITY, 0, -0.0f, -1};
    struct draft d = {0};
    size_t i;

    (void)state;
    for (i = 0; i < sizeof values / sizeof *values; i++) {
        model_draft_scaled(&d);
        draft_scale(&d, "blocks.0.wq.weight_scale", values[i]);
        refused_by_model(&d, "f", "blocks.0.wq.weight_scale", "above 0");
    }
    model_draft_scaled(&d); /* one a row: another format, or a damaged file */
    draft_set(&d, "blocks.0.wq.weight_scale", "F32", "[4,1]", NULL, 16);
    refused_by_model(&d, "f", "blocks.0.wq.weight_scale", "[4,1] F32");
    model_draft_scaled(&d);
    draft_set(&d, "blocks.0.wq.weight_scale", "F32", "[0]", NULL, 0);
    refused_by_model(&d, "f", "blocks.0.wq.weight_scale", "[0] F32");
    model_draft_scaled(&d);
    draft_set(&d, "blocks.0.wq.weight_scale", "F64", "[]", NULL, 8);
    draft_write(&d, "f");
    refused("f", KR_BAD_FILE, "blocks.0.wq.weight", NULL);
    model_draft_scaled(&d);
    draft_scale(&d, "blocks.0.wq.scale_weight", 0.5f);
    refused_by_model(&d, "f", "blocks.0.wq.weight", "two scales");
}

static void missing_scale(void **state)
{
    struct draft d = {0};
    struct model m;

    (void)state;
    model_draft_scaled(&d);
    draft_drop(&d, "blocks.0.wo.weight_scale");
    refused_by_model(&d, "f", "blocks.0.wo.weight is unscaled", ".weight_scale");
    model_draft_scaled(&d);
    draft_drop(&d, "blocks.0.wq.weight_scale");
    draft_drop(&d, "blocks.0.wo.weight_scale");
    declare(&d, "{\"blocks.0.wq\":" E4M3 "}");
    refused_by_model(&d, "f", "blocks.0.wq.weight is unscaled", ".weight_scale");
    model_draft_scaled(&d); /* a plain cast: no scale anywhere */
    draft_drop(&d, "blocks.0.wq.weight_scale");
    draft_drop(&d, "blocks.0.wo.weight_scale");
    draft_set(&d, "norm.weight", "F8_E4M3", "[4]", NULL, 4);
    draft_set(&d, "gamma", "F8_E5M2", "[4]", NULL, 4);
    accepted_by_model(&d, "f", &m);
    expect(&m, 1, 0, 1, 0);
    model_draft_scaled(&d); /* not so in a scaled file */
    draft_set(&d, "gamma", "F8_E5M2", "[4]", NULL, 4);
    refused_by_model(&d, "f", "gamma is unscaled", "F8_E5M2");
}

static void scale_without_quantization(void **state)
{
    struct draft d = {0};

    (void)state;
    model_draft(&d);
    draft_scale(&d, "blocks.0.wq.weight_scale", 1);
    refused_by_model(&d, "f", "blocks.0.wq.weight is BF16", "blocks.0.wq.weight_scale");
    model_draft(&d);
    draft_scale(&d, "blocks.0.wo.scale_weight", 1);
    refused_by_model(&d, "f", "blocks.0.wo.weight is F16", "blocks.0.wo.scale_weight");
    model_draft(&d);
    draft_scale(&d, "norm.weight_scale", 1);
    refused_by_model(&d, "f", "norm.weight is F32", "norm.weight_scale");
    model_draft(&d);
    draft_scale(&d, "nobody.weight_scale", 1);
    refused_by_model(&d, "f", "nobody.weight_scale", "not part");
}

static void foreign_formats(void **state)
{
    static const char *const formats[] = {"mxfp8",        "nvfp4",          "int8_tensorwise",
                                          "convrot_w4a4", "asym_w4a8_int8", "something_new",
                                          "FLOAT8_E4M3FN"};
    struct draft d = {0};
    char json[200];
    size_t i;

    (void)state;
    for (i = 0; i < sizeof formats / sizeof *formats; i++) {
        snprintf(json, sizeof json, "{\"blocks.0.wq\":{\"format\":\"%s\"}}", formats[i]);
        model_draft_scaled(&d);
        declare(&d, json);
        draft_write(&d, "f");
        refused("f", KR_BAD_FILE, "blocks.0.wq", formats[i], "bf16", NULL);
        snprintf(json, sizeof json, "{\"format\":\"%s\",\"params\":{\"group_size\":256}}",
                 formats[i]);
        model_draft_scaled(&d);
        draft_quant(&d, "blocks.0.wq.comfy_quant", json);
        draft_write(&d, "f");
        refused("f", KR_BAD_FILE, "blocks.0.wq", formats[i], "bf16", NULL);
    }
}

/* Formats that show only by what is stored. */
static void foreign_by_storage(void **state)
{
    static const struct {
        const char *name, *dtype, *format;
    } tensors[] = {
        {"blocks.0.wq.weight_scale_2", "F32", "nvfp4"},
        {"blocks.0.wq.weight.absmax", "U8", "bitsandbytes"},
        {"blocks.0.wq.weight.quant_state.bitsandbytes__nf4", "U8", "bitsandbytes NF4"},
        {"blocks.0.wq.SCB", "F32", "bitsandbytes"},
        {"blocks.0.wq.qweight", "I8", "SVDQuant"},
        {"blocks.0.wq.wscales", "BF16", "Nunchaku"},
        {"blocks.0.wq.weight_s_rel", "U8", "asym_w4a8_int8"},
    };
    struct draft d = {0};
    size_t i;

    (void)state;
    for (i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        model_draft(&d);
        draft_set(&d, tensors[i].name, tensors[i].dtype, "[4]", NULL,
                  !strcmp(tensors[i].dtype, "F32")    ? 16
                  : !strcmp(tensors[i].dtype, "BF16") ? 8
                                                      : 4);
        draft_write(&d, "f");
        refused("f", KR_BAD_FILE, tensors[i].name, tensors[i].format, "bf16", NULL);
    }
    model_draft(&d); /* INT8-Fast: no format, but I8 and a scale a row */
    draft_set(&d, "blocks.0.wq.weight", "I8", "[4,6]", NULL, 24);
    draft_set(&d, "blocks.0.wq.weight_scale", "F32", "[4,1]", NULL, 16);
    draft_quant(&d, "blocks.0.wq.comfy_quant", "{\"convrot\":true,\"per_row\":true}");
    draft_write(&d, "f");
    refused("f", KR_BAD_FILE, "blocks.0.wq.weight", "int8_tensorwise", NULL);
    model_draft(&d);
    draft_set(&d, "blocks.0.wq.weight", "U8", "[4,3]", NULL, 12);
    draft_write(&d, "f");
    refused("f", KR_BAD_FILE, "blocks.0.wq.weight", "packed integers", NULL);
    model_draft(&d); /* ModelOpt's NVFP4 has no declaration */
    draft_set(&d, "blocks.0.wq.weight", "U8", "[4,3]", NULL, 12);
    draft_set(&d, "blocks.0.wq.weight_scale", "F8_E4M3", "[4]", NULL, 4);
    draft_set(&d, "blocks.0.wq.weight_scale_2", "F32", "[]", NULL, 4);
    draft_write(&d, "f");
    refused("f", KR_BAD_FILE, "blocks.0.wq.weight", "nvfp4", NULL);
    model_draft_scaled(&d);
    draft_set(&d, "blocks.0.wq.weight_scale", "F8_E8M0", "[4,1]", NULL, 4);
    draft_write(&d, "f");
    refused("f", KR_BAD_FILE, "blocks.0.wq.weight", "mxfp8", NULL);
}

/* On a tensor that nobody needs, no format matters. */
static void foreign_extras(void **state)
{
    struct draft d = {0};
    struct model m;

    (void)state;
    model_draft(&d);
    draft_set(&d, "last.down.weight", "I8", "[4,4]", NULL, 16);
    draft_set(&d, "last.down.weight_scale", "F32", "[4,1]", NULL, 16);
    draft_quant(&d, "last.down.comfy_quant", "{\"format\":\"int8_tensorwise\",\"convrot\":true}");
    draft_set(&d, "last.up.weight", "F8_E4M3", "[4,4]", NULL, 16);
    draft_scale(&d, "last.up.weight_scale", NAN);
    draft_set(&d, "model.visual.x.weight", "F9_NEW", "[4,4]", NULL, 5);
    draft_set(&d, "lm_head.weight", "U8", "[4]", NULL, 4);
    declare(&d, "{\"last.up\":{\"format\":\"nvfp4\"},\"last.gone\":{\"format\":\"float8_e4m3fn\"},"
                "\"model.visual.gone\":{\"format\":\"float8_e4m3fn\"}}");
    draft_drop(&d, "probe");
    draft_scale(&d, "probe", 1);
    draft_write(&d, "f");
    {
        struct weights *w = draft_open("f");
        struct kr_err err;

        assert_int_equal(model_bind(&m, w, NULL, &err), -1);
        sentence("f", &err, KR_BAD_FILE, "last.gone", "missing", NULL);
        weights_close(w);
    }
    model_draft(&d);
    draft_set(&d, "last.down.weight", "I8", "[4,4]", NULL, 16);
    draft_quant(&d, "last.down.comfy_quant", "this is no JSON");
    declare(&d, "{\"last.up\":{\"format\":\"nvfp4\"},"
                "\"model.visual.gone\":{\"format\":\"float8_e4m3fn\"}}");
    draft_set(&d, "encoder.x.weight", "BF16", "[1]", NULL, 2);
    accepted_by_model(&d, "f", &m);
}

static void summary(void **state)
{
    struct draft d = {0};
    struct weights *w;
    char text[200], little[8];
    int length;

    (void)state;
    model_draft_scaled(&d);
    draft_set(&d, "blocks.0.wo.weight", "F8_E4M3", "[24]", NULL, 24);
    declare(&d, "{\"blocks.0.wo\":" E4M3_FULL "}");
    draft_set(&d, "last.up.weight", "BF16", "[2]", NULL, 4);
    draft_write(&d, "f");
    w = draft_open("f");
    length = weights_summary(w, text, sizeof text);
    assert_string_equal(text,
                        "5 BF16, 6 F32, 2 F8_E4M3 scaled (1 full precision), 2 F16, 1 unused");
    assert_int_equal(length, strlen(text));
    assert_int_equal(weights_summary(w, little, sizeof little), length);
    assert_string_equal(little, "5 BF16,");
    assert_int_equal(weights_summary(w, NULL, 0), length);
    weights_close(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scales_alone),
        cmocka_unit_test(header_form),
        cmocka_unit_test(prefixes_are_independent),
        cmocka_unit_test(tensor_form),
        cmocka_unit_test(marker_form),
        cmocka_unit_test(bad_marker),
        cmocka_unit_test(two_forms),
        cmocka_unit_test(contradictions),
        cmocka_unit_test(bad_metadata),
        cmocka_unit_test(bad_comfy_quant),
        cmocka_unit_test(bad_scales),
        cmocka_unit_test(missing_scale),
        cmocka_unit_test(scale_without_quantization),
        cmocka_unit_test(foreign_formats),
        cmocka_unit_test(foreign_by_storage),
        cmocka_unit_test(foreign_extras),
        cmocka_unit_test(summary),
    };

    return cmocka_run_group_tests(tests, draft_setup, draft_teardown);
}
