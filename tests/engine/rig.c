/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/engine/rig.h"

#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "tests/engine/png_read.h"

void rig_init(struct rig *rig, const char *folder)
{
    static const char *const names[4] = {"dit.safetensors", "te.safetensors", "vae.safetensors",
                                         "tokenizer"};

    memset(rig, 0, sizeof(*rig));
    for (int i = 0; i < 4; i++)
        snprintf(rig->path[i], sizeof(rig->path[i]), "%s/%s", folder, names[i]);
    rig->config = (struct engine_config){.profile = "test",
                                         .architecture = "krea2",
                                         .variant = "turbo",
                                         .diffusion_model = rig->path[0],
                                         .text_encoder = rig->path[1],
                                         .vae = rig->path[2],
                                         .tokenizer = rig->path[3],
                                         .device = getenv("KREAD_CUDA_MODULE") ? ENGINE_DEVICE_CUDA
                                                                               : ENGINE_DEVICE_CPU,
                                         .no_fp8_products = !getenv("KREAD_TEST_FP8"),
                                         .threads = 2};
}

void rig_init_demo(struct rig *rig)
{
    static const char *const names[4] = {"krea2_demo_fp8_scaled.safetensors",
                                         "qwen3vl_demo_fp8_scaled.safetensors",
                                         "qwen_image_vae_demo.safetensors", "tokenizer"};

    rig_init(rig, "demo");
    for (int i = 0; i < 4; i++)
        snprintf(rig->path[i], sizeof(rig->path[i]), "demo/%s", names[i]);
}

void rig_trace(struct rig *rig)
{
    snprintf(rig->trace, sizeof(rig->trace), "/tmp/kread-trace-XXXXXX");
    assert_non_null(mkdtemp(rig->trace));
    rig->config.trace = rig->trace;
}

void rig_open(struct rig *rig)
{
    struct kr_err err;

    if (engine_open(&rig->config, &rig->engine, &err) < 0)
        fail_msg("%s", err.text);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

void rig_fini(struct rig *rig)
{
    engine_close(rig->engine);
    if (rig->trace[0])
        nftw(rig->trace, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    memset(rig, 0, sizeof(*rig));
}

static void on_progress(void *user, const struct engine_progress *p)
{
    struct client *client = user;

    assert_in_range(client->ticks, 0, RIG_MAX_TICKS - 1);
    client->tick[client->ticks++] = *p;
    if (client->cancel_stage && strcmp(p->stage, client->cancel_stage) == 0 &&
        p->step >= client->cancel_step)
        atomic_store(&client->cancel, 1);
}

static int on_image(void *user, const struct engine_image *image, struct kr_err *err)
{
    struct client *client = user;
    struct png_read png;

    if (client->refuse_image)
        return kr_fail(err, KR_IO, "the client is full");
    assert_int_equal(image->index, client->images);
    assert_in_range(client->images, 0, RIG_MAX_IMAGES - 1);
    client->image[client->images].png = malloc(image->png_size);
    memcpy(client->image[client->images].png, image->png, image->png_size);
    client->image[client->images].size = image->png_size;
    png_read_init(&png, image->png, image->png_size);
    client->image[client->images].kread = strdup(png_read_text(&png, "kread"));
    png_read_fini(&png);
    client->image[client->images].seed = image->seed;
    client->images++;
    return 0;
}

static void on_preview(void *user, const struct engine_image *image)
{
    struct client *client = user;
    int i = client->previews++;

    assert_in_range(i, 0, RIG_MAX_PREVIEWS - 1);
    client->preview[i].png = malloc(image->png_size);
    memcpy(client->preview[i].png, image->png, image->png_size);
    client->preview[i].size = image->png_size;
    client->preview[i].seed = image->seed;
    client->preview[i].width = image->width;
    client->preview[i].height = image->height;
    client->preview[i].index = image->index;
    client->preview[i].ticks = client->ticks;
}

int client_run(struct client *client, struct engine *engine, struct kr_params *p)
{
    const struct engine_job job = {.id = client->id ? client->id : 1,
                                   .params = p,
                                   .cancel = &client->cancel,
                                   .user = client,
                                   .progress = on_progress,
                                   .image = on_image,
                                   .preview = client->no_preview ? NULL : on_preview};

    if (engine_resolve(engine, p, client->warning, sizeof(client->warning), &client->err) < 0)
        return -1;
    return engine_generate(engine, &job, &client->times, &client->err);
}

void client_fini(struct client *client)
{
    for (int i = 0; i < client->images; i++) {
        free(client->image[i].png);
        free(client->image[i].kread);
    }
    for (int i = 0; i < client->previews; i++)
        free(client->preview[i].png);
    memset(client, 0, sizeof(*client));
}

static void set_from_json(struct kr_params *p, enum kr_field_id id, const json_t *value)
{
    struct kr_err err;
    int rc;

    if (json_is_string(value))
        rc = kr_params_set_text(p, id, json_string_value(value), json_string_length(value), &err);
    else if (json_is_integer(value))
        rc = kr_params_set_int(p, id, json_integer_value(value), &err);
    else
        rc = kr_params_set_real(p, id, json_number_value(value), &err);
    if (rc < 0)
        fail_msg("%s", err.text);
}

struct kr_params params_from_json(const char *text)
{
    struct kr_params p = {0};
    json_error_t error;
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, &error), *value;
    const char *key;

    if (!root)
        fail_msg("%s", error.text);
    json_object_foreach(root, key, value)
    {
        const struct kr_field *field = kr_field_find(key, strlen(key));

        if (field)
            set_from_json(&p, (enum kr_field_id)(field - kr_fields), value);
    }
    json_decref(root);
    return p;
}

struct kr_params params_of(const char *prompt, int64_t width, int64_t height, int64_t steps)
{
    struct kr_params p = {0};
    struct kr_err err;

    assert_int_equal(kr_params_set_text(&p, KR_F_PROMPT, prompt, strlen(prompt), &err), 0);
    assert_int_equal(kr_params_set_int(&p, KR_F_WIDTH, width, &err), 0);
    assert_int_equal(kr_params_set_int(&p, KR_F_HEIGHT, height, &err), 0);
    assert_int_equal(kr_params_set_int(&p, KR_F_STEPS, steps, &err), 0);
    assert_int_equal(kr_params_set_int(&p, KR_F_SEED, 7, &err), 0);
    return p;
}

void assert_same_image(const struct client *a, int i, const struct client *b, int k)
{
    assert_in_range(i, 0, a->images - 1);
    assert_in_range(k, 0, b->images - 1);
    assert_int_equal(a->image[i].size, b->image[k].size);
    assert_memory_equal(a->image[i].png, b->image[k].png, a->image[i].size);
}

char *read_file(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    char *data;

    if (!file)
        return NULL;
    fseek(file, 0, SEEK_END);
    *size = (size_t)ftell(file);
    rewind(file);
    data = calloc(*size + 1, 1);
    assert_int_equal(fread(data, 1, *size, file), *size);
    fclose(file);
    return data;
}
