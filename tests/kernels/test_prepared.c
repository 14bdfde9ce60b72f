/* SPDX-License-Identifier: Apache-2.0
 *
 * What convolutions keep beside the arena: a plan says how much before anything is computed, each
 * kernel once however often it is used, and the device then holds exactly that until they are gone.
 */
#include "tests/kernels/harness.h"

enum { SIDE = 24, C = 48, CONVS = 2 };

static void use(struct kr_device *dev, struct kr_conv *c, const float *host)
{
    struct kr_mark mark = kr_arena_mark(dev);
    struct kr_tensor x = kr_new(dev, KR_F32, SIDE, SIDE, C, 0),
                     y = kr_new(dev, KR_F32, SIDE, SIDE, C, 0);
    kr_upload(dev, x, host);
    for (int i = 0; i < CONVS; i++)
        kr_conv2d(dev, y, x, &c[i]);
    kr_conv2d(dev, y, x, &c[0]);
    kr_arena_release(dev, mark);
}

static size_t planned(struct kr_device *dev, struct kr_conv *c, const float *host)
{
    kr_plan_begin(dev);
    use(dev, c, host);
    kr_plan_end(dev);
    return kr_plan_prepared(dev);
}

static void body(struct kr_device *dev)
{
    float *kernel = random_floats(CONVS * C * C * 9), *host = random_floats(SIDE * SIDE * C);
    struct kr_conv c[CONVS];
    for (int i = 0; i < CONVS; i++)
        c[i] = (struct kr_conv){.data = kernel + (size_t)i * C * C * 9,
                                .dtype = KR_F32,
                                .out = C,
                                .in = C,
                                .kt = 1,
                                .kh = 3,
                                .kw = 3};
    size_t bytes = planned(dev, c, host);
    assert_true(bytes >= (size_t)CONVS * C * C * 9 * kr_dtype_size(kr_compute_dtype(dev)));
    assert_int_equal(kr_prepared_bytes(dev), 0);
    assert_int_equal(planned(dev, c, host), bytes);
    use(dev, c, host);
    assert_int_equal(kr_device_sync(dev), KR_FINE);
    assert_int_equal(kr_prepared_bytes(dev), bytes);
    assert_int_equal(planned(dev, c, host), bytes);
    kr_conv_fini(dev, &c[0]);
    assert_int_equal(kr_prepared_bytes(dev), bytes / CONVS);
    kr_conv_fini(dev, &c[1]);
    assert_int_equal(kr_prepared_bytes(dev), 0);
    free(host);
    free(kernel);
}

static void test_prepared(void **state)
{
    (void)state;
    on_every_device(body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_prepared)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
