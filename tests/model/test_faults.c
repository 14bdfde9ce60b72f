/* SPDX-License-Identifier: Apache-2.0
 *
 * A forward whose device has failed runs to its end without harm: with too little memory, cancelled
 * before it starts, or fed with what isn't finite. And a job that failed leaves nothing behind that
 * the next one would notice.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/model/set.h"

enum { H = 4, W = 6, TOKENS = 12, SKIP = 3, CHANNELS = 16, VALUES = 3 * H * W * 64 };

struct run {
    struct set set;
    float noise[CHANNELS * H * W];
    float picture[VALUES];
    int got; /* whether the picture came back */
};

/* Everything once: encode, text, one step, decode. */
static void run_all(struct kr_device *dev, void *user)
{
    const int32_t ids[TOKENS] = {1, 5, 9, 100, 200, 300, 7, 8, 9, 10, 11, 12};
    struct run *r = user;
    int64_t n = TOKENS - SKIP;
    struct kr_tensor taps = kr_new(dev, KR_F32, n, TEXT_TAPS, r->set.te.width, 0);
    struct kr_tensor text = kr_new(dev, KR_F32, n, r->set.dit.width, 0, 0);
    struct kr_tensor latent = set_upload(dev, r->noise, CHANNELS, H, W);
    struct kr_tensor v = kr_new(dev, KR_F32, CHANNELS, H, W, 0);
    struct kr_tensor picture = kr_new(dev, KR_F32, 3, H * VAE_SCALE, W * VAE_SCALE, 0);
    struct kr_rope rope = mmdit_rope(&r->set.dit, dev, n, H, W);

    text_encoder_forward(&r->set.te, dev, ids, TOKENS, SKIP, taps);
    mmdit_text(&r->set.dit, dev, text, taps);
    mmdit_forward(&r->set.dit, dev, v, latent, text, &rope, 0.5f);
    kr_check_finite(dev, v, "the velocity");
    vae_decode_tiled(&r->set.vae, dev, picture, v, 1);
    r->got = kr_download(dev, picture, r->picture) == 0;
}

static enum kr_fault begin_and_run(struct run *r, size_t bytes, const atomic_int *cancel)
{
    char why[200];
    enum kr_fault fault;

    assert_int_equal(kr_job_begin(r->set.dev, cancel, bytes, why, sizeof(why)), 0);
    run_all(r->set.dev, r);
    fault = kr_device_sync(r->set.dev);
    assert_int_equal(r->got, fault == KR_FINE);
    assert_int_equal(strlen(kr_device_fault_text(r->set.dev)) > 0, fault != KR_FINE);
    kr_job_end(r->set.dev);
    return fault;
}

static void test_faults(void **state)
{
    struct run *r = calloc(1, sizeof(*r));
    float first[VALUES];
    atomic_int cancel = 1;
    size_t bytes;

    (void)state;
    set_open(&r->set, "tests/golden/scaled", KR_COMPUTE_BEST);
    set_noise(r->noise, CHANNELS * H * W, 1);
    bytes = set_run(r->set.dev, run_all, r);
    memcpy(first, r->picture, sizeof(first));

    for (size_t part = 0; part < 16; part++) /* wherever the memory ends */
        assert_int_equal(begin_and_run(r, bytes * part / 16, NULL), KR_FAULT_NO_MEMORY);
    assert_int_equal(begin_and_run(r, bytes, &cancel), KR_FAULT_CANCELLED);
    r->noise[7] = NAN;
    assert_int_equal(begin_and_run(r, bytes, NULL), KR_FAULT_NOT_FINITE);

    set_noise(r->noise, CHANNELS * H * W, 1);
    assert_int_equal(begin_and_run(r, bytes, NULL), KR_FINE);
    assert_memory_equal(first, r->picture, sizeof(first));
    set_close(&r->set);
    free(r);
}

/* An id that the embedding doesn't have is a fault, not a read beyond it. */
static void test_bad_token(void **state)
{
    struct set set;
    char why[200];
    int32_t ids[2] = {1, 0};
    struct kr_tensor taps;

    (void)state;
    set_open(&set, "tests/golden/scaled", KR_COMPUTE_BEST);
    ids[1] = (int32_t)set.te.vocabulary;
    assert_int_equal(kr_job_begin(set.dev, NULL, 1 << 20, why, sizeof(why)), 0);
    taps = kr_new(set.dev, KR_F32, 2, TEXT_TAPS, set.te.width, 0);
    text_encoder_forward(&set.te, set.dev, ids, 2, 0, taps);
    assert_int_equal(kr_device_sync(set.dev), KR_FAULT_MISUSE);
    kr_job_end(set.dev);
    set_close(&set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_bad_token),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
