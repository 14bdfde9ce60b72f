/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/model/set.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

struct kr_device *set_device(enum kr_compute compute)
{
    struct kr_device_options options = {.threads = 2, .compute = compute};
    char why[200] = "";
    struct kr_device *dev = kr_device_open_cpu(&options, why, sizeof(why));

    if (dev == NULL)
        fail_msg("no device: %s", why);
    return dev;
}

static void path_of(char path[512], const char *folder, const char *file)
{
    snprintf(path, 512, "%s/%s.safetensors", folder, file);
}

void set_open(struct set *set, const char *folder, enum kr_compute compute)
{
    struct kr_err err = {KR_OK, ""};
    char path[512];

    *set = (struct set){.dev = set_device(compute)};
    path_of(path, folder, "dit");
    if (mmdit_open(path, &set->dit_file, &err) ||
        mmdit_bind(&set->dit, set->dit_file, set->dev, &err))
        fail_msg("%s: %s", path, err.text);
    path_of(path, folder, "te");
    if (text_encoder_open(path, &set->te_file, &err) ||
        text_encoder_bind(&set->te, set->te_file, false, set->dev, &err))
        fail_msg("%s: %s", path, err.text);
    path_of(path, folder, "vae");
    if (vae_open(path, &set->vae_file, &err) || vae_bind(&set->vae, set->vae_file, set->dev, &err))
        fail_msg("%s: %s", path, err.text);
}

void set_close(struct set *set)
{
    mmdit_fini(&set->dit, set->dev);
    text_encoder_fini(&set->te, set->dev);
    vae_fini(&set->vae, set->dev);
    weights_close(set->dit_file);
    weights_close(set->te_file);
    weights_close(set->vae_file);
    kr_device_close(set->dev);
}

size_t set_run(struct kr_device *dev, void (*job)(struct kr_device *dev, void *user), void *user)
{
    char why[200];
    size_t bytes;

    kr_plan_begin(dev);
    job(dev, user);
    if (kr_device_sync(dev) != KR_FINE)
        fail_msg("planning: %s", kr_device_fault_text(dev));
    bytes = kr_plan_end(dev);
    if (kr_job_begin(dev, NULL, bytes, why, sizeof(why)))
        fail_msg("%s", why);
    job(dev, user);
    if (kr_device_sync(dev) != KR_FINE)
        fail_msg("running: %s", kr_device_fault_text(dev));
    assert_int_equal(kr_job_peak(dev), bytes);
    kr_job_end(dev);
    return bytes;
}

void set_noise(float *out, size_t n, uint32_t seed)
{
    uint32_t x = seed * 2654435761u + 12345;

    for (size_t i = 0; i < n; i++) {
        float sum = 0;

        for (int k = 0; k < 12; k++) { /* twelve uniforms less six: variance 1 */
            x = x * 1664525u + 1013904223u;
            sum += (float)(x >> 8) / 16777216.0f;
        }
        out[i] = sum - 6;
    }
}

struct kr_tensor set_upload(struct kr_device *dev, const float *host, int64_t d0, int64_t d1,
                            int64_t d2)
{
    struct kr_tensor t = kr_new(dev, KR_F32, d0, d1, d2, 0);

    kr_upload(dev, t, host);
    return t;
}
