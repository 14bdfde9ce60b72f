/* SPDX-License-Identifier: Apache-2.0
 *
 * Decoding in bands: the same picture to the bit, in less memory. (That the picture is the right
 * one is test_golden's matter.)
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/model/edit.h"
#include "tests/model/set.h"

enum { CHANNELS = 16 };

/* --------------------------------------------------------------------------- a VAE of noise --- */

static void add_conv(struct edit *e, const char *layer, int64_t out, int64_t in, int64_t k)
{
    char name[96], shape[64];

    snprintf(name, sizeof(name), "%s.weight", layer);
    snprintf(shape, sizeof(shape), "[%d,%d,%d,%d]", (int)out, (int)in, (int)k, (int)k);
    edit_add(e, name, shape, sqrtf((float)(in * k * k)));
    snprintf(name, sizeof(name), "%s.bias", layer);
    snprintf(shape, sizeof(shape), "[%d]", (int)out);
    edit_add(e, name, shape, 10);
}

static void add_gamma(struct edit *e, const char *layer, int64_t n)
{
    char name[96], shape[64];

    snprintf(name, sizeof(name), "%s.gamma", layer);
    snprintf(shape, sizeof(shape), "[%d,1,1,1]", (int)n);
    edit_add_norm(e, name, shape);
}

static void add_residual(struct edit *e, const char *block, int64_t in, int64_t out)
{
    char layer[80];

    snprintf(layer, sizeof(layer), "%s.residual.0", block);
    add_gamma(e, layer, in);
    snprintf(layer, sizeof(layer), "%s.residual.2", block);
    add_conv(e, layer, out, in, 3);
    snprintf(layer, sizeof(layer), "%s.residual.3", block);
    add_gamma(e, layer, out);
    snprintf(layer, sizeof(layer), "%s.residual.6", block);
    add_conv(e, layer, out, out, 3);
    snprintf(layer, sizeof(layer), "%s.shortcut", block);
    if (in != out)
        add_conv(e, layer, out, in, 1);
}

static const char *write_vae(int64_t base)
{
    const int64_t out[VAE_STAGES] = {4 * base, 4 * base, 2 * base, base};
    struct edit *e = edit_new();
    char block[64];
    const char *path;

    add_conv(e, "conv2", CHANNELS, CHANNELS, 1);
    add_conv(e, "decoder.conv1", out[0], CHANNELS, 3);
    add_residual(e, "decoder.middle.0", out[0], out[0]);
    add_gamma(e, "decoder.middle.1.norm", out[0]);
    add_conv(e, "decoder.middle.1.to_qkv", 3 * out[0], out[0], 1);
    add_conv(e, "decoder.middle.1.proj", out[0], out[0], 1);
    add_residual(e, "decoder.middle.2", out[0], out[0]);
    for (int s = 0; s < VAE_STAGES; s++) {
        for (int i = 0; i < VAE_BLOCKS; i++) {
            int64_t in = i > 0 || s == 0 ? out[s] : out[s - 1] / 2;

            snprintf(block, sizeof(block), "decoder.upsamples.%d", 4 * s + i);
            add_residual(e, block, in, out[s]);
        }
        snprintf(block, sizeof(block), "decoder.upsamples.%d.resample.1", 4 * s + 3);
        if (s < VAE_STAGES - 1)
            add_conv(e, block, out[s] / 2, out[s], 3);
    }
    add_gamma(e, "decoder.head.0", base);
    add_conv(e, "decoder.head.2", 3, base, 3);
    snprintf(block, sizeof(block), "vae%d.safetensors", (int)base);
    path = edit_write(e, block);
    edit_free(e);
    return path;
}

/* --------------------------------------------------------------------------------- decoding --- */

struct decoding {
    struct vae *vae;
    int64_t h, w, rows;      /* rows 0: whole */
    float *latent, *picture; /* on the host; NULL: planning only */
};

static void decode(struct kr_device *dev, void *user)
{
    struct decoding *d = user;
    struct kr_tensor latent = kr_new(dev, KR_F32, CHANNELS, d->h, d->w, 0);
    struct kr_tensor picture = kr_new(dev, KR_F32, 3, d->h * VAE_SCALE, d->w * VAE_SCALE, 0);

    if (d->latent != NULL)
        kr_upload(dev, latent, d->latent);
    if (d->rows == 0)
        vae_decode(d->vae, dev, picture, latent);
    else
        vae_decode_tiled(d->vae, dev, picture, latent, d->rows);
    if (d->picture != NULL)
        kr_download(dev, picture, d->picture);
}

static void check_bands(struct kr_device *dev, struct vae *vae, int64_t h, int64_t w,
                        const int64_t *rows, size_t count)
{
    size_t values = (size_t)(3 * h * w) * VAE_SCALE * VAE_SCALE;
    float *latent = malloc((size_t)(CHANNELS * h * w) * sizeof(float));
    float *whole = calloc(values, sizeof(float)), *banded = calloc(values, sizeof(float));
    struct decoding d = {.vae = vae, .h = h, .w = w, .latent = latent, .picture = whole};
    size_t peak, peak_banded;

    set_noise(latent, (size_t)(CHANNELS * h * w), 5);
    peak = set_run(dev, decode, &d);
    assert_true(isfinite(whole[0]) && isfinite(whole[values - 1]));
    d.picture = banded;
    for (size_t i = 0; i < count; i++) {
        memset(banded, 0, values * sizeof(float));
        d.rows = rows[i];
        peak_banded = set_run(dev, decode, &d);
        if (memcmp(whole, banded, values * sizeof(float)) != 0)
            fail_msg("base %d, %d x %d: bands of %d rows give another picture", (int)vae->base,
                     (int)h, (int)w, (int)rows[i]);
        assert_true(peak_banded <= peak);
    }
    free(latent);
    free(whole);
    free(banded);
}

static void check_base(int64_t base, enum kr_compute compute, int64_t h, int64_t w,
                       const int64_t *rows, size_t count)
{
    struct kr_err err = {KR_OK, ""};
    struct kr_device *dev = set_device(compute);
    struct weights *file;
    struct vae vae;

    if (vae_open(write_vae(base), &file, &err) || vae_bind(&vae, file, dev, &err))
        fail_msg("%s", err.text);
    check_bands(dev, &vae, h, w, rows, count);
    vae_fini(&vae, dev);
    weights_close(file);
    kr_device_close(dev);
}

/* Tall enough that a band in the middle has its whole margin, 13 rows, on both sides. */
static void test_bands(void **state)
{
    const int64_t rows[] = {1, 3, 8, 16, 40, 100};

    (void)state;
    check_base(4, KR_COMPUTE_BEST, 40, 2, rows, 6);
    check_base(4, KR_COMPUTE_F32, 40, 2, rows + 1, 4);
}

static void test_bands_wider(void **state)
{
    const int64_t rows[] = {2, 5, 16};

    (void)state;
    check_base(16, KR_COMPUTE_BEST, 37, 4, rows, 3);
    check_base(24, KR_COMPUTE_BEST, 35, 2, rows, 3);
    check_base(32, KR_COMPUTE_BEST, 34, 3, rows, 3);
    check_base(32, KR_COMPUTE_F32, 33, 2, rows + 1, 2);
}

static void test_bands_full(void **state)
{
    const int64_t rows[] = {4, 15};

    (void)state;
    check_base(96, KR_COMPUTE_BEST, 32, 2, rows, 2);
}

/* ------------------------------------------------------------------------------------- plan --- */

static size_t plan(struct kr_device *dev, struct vae *vae, int64_t size, int64_t rows)
{
    struct decoding d = {.vae = vae, .h = size, .w = size, .rows = rows};

    kr_plan_begin(dev);
    decode(dev, &d);
    assert_int_equal(kr_device_sync(dev), KR_FINE);
    return kr_plan_end(dev);
}

/* The full VAE: what a picture of 1024 x 1024 takes whole and in bands of 128 rows. */
static void test_memory(void **state)
{
    struct kr_err err = {KR_OK, ""};
    struct kr_device *dev = set_device(KR_COMPUTE_BEST);
    struct weights *file;
    struct vae vae;
    size_t whole, banded;

    (void)state;
    if (vae_open(write_vae(96), &file, &err) || vae_bind(&vae, file, dev, &err))
        fail_msg("%s", err.text);
    whole = plan(dev, &vae, 128, 0);
    banded = plan(dev, &vae, 128, 16);
    print_message("1024 x 1024 whole: %zu MiB, in bands: %zu MiB\n", whole >> 20, banded >> 20);
    assert_true(whole < (size_t)1300 << 20);
    assert_true(banded < (size_t)450 << 20);
    vae_fini(&vae, dev);
    weights_close(file);
    kr_device_close(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bands),
        cmocka_unit_test(test_bands_wider),
        cmocka_unit_test(test_bands_full),
        cmocka_unit_test(test_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
