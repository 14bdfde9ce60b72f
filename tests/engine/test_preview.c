/* SPDX-License-Identifier: Apache-2.0
 *
 * Previews: the map's numbers, when they come, that they change nothing, and that those of the demo
 * look like the picture they announce.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/engine/preview.h"
#include "tests/engine/files.h"
#include "tests/engine/png_read.h"
#include "tests/engine/rig.h"

#define SET "tests/golden/scaled"

/* --------------------------------------------------------------------------------- map ------ */

enum { CELLS = 6 };

/* Worked out in float64 with NumPy from the published table and the formulas below. */
static void test_published(void **state)
{
    static const uint8_t want[CELLS][3] = {{111, 168, 127}, {122, 193, 135}, {200, 178, 67},
                                           {163, 137, 53},  {8, 0, 5},       {53, 97, 198}};
    float x[PREVIEW_CHANNELS][CELLS], v[PREVIEW_CHANNELS][CELLS];
    uint8_t rgb[CELLS][3];

    (void)state;
    for (int k = 0; k < PREVIEW_CHANNELS; k++)
        for (int i = 0; i < CELLS; i++) {
            x[k][i] = (float)((k * 7 + i * 13) % 11 - 5) / 4;
            v[k][i] = (float)((k * 5 + i * 3) % 7 - 3) / 3;
        }
    preview_pixels(&preview_wan21, x[0], v[0], 0.25f, CELLS, rgb[0]);
    assert_memory_equal(rgb, want, sizeof(want));
}

/* Every cell is mapped for itself, wherever in a large latent it lies. */
static void test_large(void **state)
{
    enum { MANY = 1000, AT = 997 };
    static float x[PREVIEW_CHANNELS][MANY], v[PREVIEW_CHANNELS][MANY];
    struct preview_map map = {.bias = {-1, 0, 1}};
    static uint8_t rgb[MANY][3];

    (void)state;
    map.factor[15][0] = 0.5f;
    x[15][AT] = 1;
    v[15][AT] = -4;
    preview_pixels(&map, x[0], v[0], 0.25f, MANY, rgb[0]); /* red -1 + 0.5 (1 + 1) = 0 */
    for (int i = 0; i < MANY; i++) {
        assert_int_equal(rgb[i][0], i == AT ? 128 : 0);
        assert_int_equal(rgb[i][1], 128);
        assert_int_equal(rgb[i][2], 255);
    }
}

/* Finite values whose sums are not. */
static void test_huge(void **state)
{
    float x[PREVIEW_CHANNELS][1] = {{3e38f}, {3e38f}}, v[PREVIEW_CHANNELS][1] = {{0}};
    struct preview_map map = {.bias = {0}};
    uint8_t rgb[3];

    (void)state;
    map.factor[0][0] = 4; /* infinity */
    map.factor[0][1] = -4;
    map.factor[0][2] = 4; /* infinity - infinity */
    map.factor[1][2] = -4;
    preview_pixels(&map, x[0], v[0], 0, 1, rgb);
    assert_int_equal(rgb[0], 255);
    assert_int_equal(rgb[1], 0);
    assert_int_equal(rgb[2], 0);
}

static void test_reading(void **state)
{
    char text[1024] = "", bad[1024];
    struct preview_map map;
    struct kr_err err;
    size_t n = 0;

    (void)state;
    for (int i = 0; i < 51; i++)
        n += (size_t)snprintf(text + n, sizeof(text) - n, i ? " %d.5" : "%d.5", i - 20);
    assert_int_equal(preview_map_read(&map, text, "vae", &err), 0);
    assert_true(map.factor[0][0] == -20.5f && map.factor[0][2] == -18.5f);
    assert_true(map.factor[15][2] == 27.5f && map.bias[0] == 28.5f && map.bias[2] == 30.5f);
    for (int i = 0; i < 6; i++) {
        static const char *const ends[] = {"", " 1 2", " nan", " inf", " 1e99", " 0x"};

        snprintf(bad, sizeof(bad), "%.*s%s", (int)(strrchr(text, ' ') - text), text, ends[i]);
        assert_int_equal(preview_map_read(&map, bad, "my.vae", &err), -1);
        assert_int_equal(err.code, KR_BAD_FILE);
        assert_non_null(strstr(err.text, "my.vae: kread.latent_rgb"));
    }
    assert_int_equal(preview_map_read(&map, "", "vae", &err), -1);
}

/* A VAE whose own map is broken is refused when it is opened. */
static void test_broken_file(void **state)
{
    char folder[64], path[128], command[256];
    struct rig rig;
    struct kr_err err;

    (void)state;
    files_copy(SET, folder);
    snprintf(path, sizeof(path), "%s/vae.safetensors", folder);
    snprintf(command, sizeof(command), "cp demo/qwen_image_vae_demo.safetensors %s", path);
    assert_int_equal(system(command), 0);
    rig_init(&rig, folder);
    rig_open(&rig);
    rig_fini(&rig);
    files_replace(folder, "vae.safetensors", "latent_rgb\":\"0.", "latent_rgb\":\"x.");
    rig_init(&rig, folder);
    assert_int_equal(engine_open(&rig.config, &rig.engine, &err), -1);
    assert_int_equal(err.code, KR_BAD_FILE);
    assert_non_null(strstr(err.text, "vae.safetensors: kread.latent_rgb"));
    files_remove(folder);
}

/* -------------------------------------------------------------------------------- jobs ------ */

static struct kr_params request(int64_t steps, int64_t count, int64_t preview)
{
    struct kr_params p = params_of("tulips", 64, 48, steps);

    kr_params_set_int(&p, KR_F_COUNT, count, NULL);
    kr_params_set_int(&p, KR_F_PREVIEW, preview, NULL);
    return p;
}

static void run(struct client *client, struct engine *engine, struct kr_params *p)
{
    if (client_run(client, engine, p) < 0)
        fail_msg("%s", client->err.text);
    kr_params_fini(p);
}

/* Five steps, one after every second: after 2 and 4, just before the tick of that step. */
static void test_when(void **state)
{
    struct rig rig;
    struct client client = {0};
    struct kr_params p = request(5, 2, 2);

    (void)state;
    rig_init(&rig, SET);
    rig_open(&rig);
    run(&client, rig.engine, &p);
    assert_string_equal(client.warning, "");
    assert_int_equal(client.previews, 4);
    for (int i = 0; i < 4; i++) {
        const struct engine_progress *tick = &client.tick[client.preview[i].ticks];
        struct png_read png;

        assert_string_equal(tick->stage, "denoise");
        assert_int_equal(tick->step, i % 2 ? 4 : 2);
        assert_int_equal(tick->image, i / 2);
        assert_int_equal(client.preview[i].index, i / 2);
        assert_int_equal(client.preview[i].seed, 7 + i / 2);
        png_read_init(&png, client.preview[i].png, client.preview[i].size);
        assert_int_equal(png.width, 8);
        assert_int_equal(png.height, 6);
        assert_int_equal(png.count, 0);
        assert_int_equal(client.preview[i].width, 8);
        assert_int_equal(client.preview[i].height, 6);
        png_read_fini(&png);
    }
    client_fini(&client);
    rig_fini(&rig);
}

static void expect_previews(struct engine *engine, struct kr_params p, int no_preview, int want)
{
    struct client client = {.no_preview = no_preview};

    run(&client, engine, &p);
    assert_int_equal(client.previews, want);
    client_fini(&client);
}

static void test_how_many(void **state)
{
    struct rig rig;

    (void)state;
    rig_init(&rig, SET);
    rig_open(&rig);
    expect_previews(rig.engine, request(3, 1, 0), 0, 0);
    expect_previews(rig.engine, request(3, 1, 1), 0, 2);
    expect_previews(rig.engine, request(3, 1, 1), 1, 0); /* nobody listens */
    expect_previews(rig.engine, request(3, 1, 3), 0, 0); /* the picture follows at once */
    expect_previews(rig.engine, request(3, 1, 1000), 0, 0);
    expect_previews(rig.engine, request(1, 1, 1), 0, 0);
    rig_fini(&rig);
}

static void test_same_picture(void **state)
{
    struct rig rig;
    struct client with = {0}, without = {0};
    struct kr_params p = request(4, 2, 1), q = request(4, 2, 0);

    (void)state;
    rig_init(&rig, SET);
    rig_open(&rig);
    run(&with, rig.engine, &p);
    run(&without, rig.engine, &q);
    assert_int_equal(with.previews, 6);
    for (int i = 0; i < 2; i++)
        assert_same_image(&with, i, &without, i);
    client_fini(&with);
    client_fini(&without);
    rig_fini(&rig);
}

/* Mean distance, in levels, of a preview to the picture averaged over 8x8 pixels. */
static double distance(const struct client *client, int preview)
{
    struct png_read small, large;
    double sum = 0;

    png_read_init(&small, client->preview[preview].png, client->preview[preview].size);
    png_read_init(&large, client->image[0].png, client->image[0].size);
    for (int i = 0; i < small.height * small.width * 3; i++) {
        int c = i % 3, x = i / 3 % small.width * 8, y = i / 3 / small.width * 8;
        double mean = 0;

        for (int k = 0; k < 64; k++)
            mean += large.rgb[((y + k / 8) * large.width + x + k % 8) * 3 + c] / 64.0;
        sum += fabs(mean - small.rgb[i]);
    }
    sum /= small.height * small.width * 3;
    png_read_fini(&small);
    png_read_fini(&large);
    return sum;
}

/* After the first of eight steps there is something to see, before the last it is the picture. */
static void test_demo(void **state)
{
    struct rig rig;
    struct client client = {0};
    struct kr_params p =
        params_of("a red circle above a blue square on a white background", 128, 128, 8);
    double first, last;

    (void)state;
    kr_params_set_int(&p, KR_F_PREVIEW, 1, NULL);
    rig_init_demo(&rig);
    rig_open(&rig);
    run(&client, rig.engine, &p);
    assert_int_equal(client.previews, 7);
    first = distance(&client, 0);
    last = distance(&client, 6);
    print_message("levels off: %.1f after the first step, %.1f after the last but one\n", first,
                  last);
    assert_true(first < 20);
    assert_true(last < 20);
    client_fini(&client);
    rig_fini(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published),   cmocka_unit_test(test_large),
        cmocka_unit_test(test_huge),        cmocka_unit_test(test_reading),
        cmocka_unit_test(test_broken_file), cmocka_unit_test(test_when),
        cmocka_unit_test(test_how_many),    cmocka_unit_test(test_same_picture),
        cmocka_unit_test(test_demo),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
