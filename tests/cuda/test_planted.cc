/* SPDX-License-Identifier: Apache-2.0
 *
 * The product's own kernels once more, each time with one thing taken out of their source that
 * holds them together: the barriers, or the waits for copies. The emulation has to say so.
 */
#include "tests/cuda/planned.h"

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/products.cuh"
#include "kernels/cuda/tiles.cuh"

#include <cuda_fp16.h>

static inline void no_barrier()
{
}

template <int N> static inline void no_wait()
{
}

#define __syncthreads no_barrier
namespace without_barriers
{
#include "kernels/cuda/attention.cu"
#include "kernels/cuda/conv.cu"
#include "kernels/cuda/multiply.cu"
} // namespace without_barriers
#undef __syncthreads

#define cp_async_wait no_wait
namespace without_waits
{
#include "kernels/cuda/attention.cu"
#include "kernels/cuda/conv.cu"
#include "kernels/cuda/multiply.cu"
} // namespace without_waits
#undef cp_async_wait

typedef void attention(struct kr_device *dev, struct kr_tensor out, const struct kr_attention *a);
typedef void convolution(struct kr_device *dev, struct kr_tensor out, struct kr_tensor x,
                         struct kr_conv *conv);
typedef void product(struct cuda_device *cuda, const struct cuda_multiply *m);

static struct kr_device *begin(const struct devices *d)
{
    char why[200] = "";
    emu_forget_reports();
    if (kr_job_begin(d->dev[GPU], NULL, (size_t)8 << 20, why, sizeof why))
        fail_msg("%s", why);
    return d->dev[GPU];
}

/* How often a kind was reported; what came with it is forgotten. */
static int end(struct kr_device *dev, enum emu_kind kind)
{
    (void)kr_device_sync(dev);
    int times = emu_reported(kind);
    kr_job_end(dev);
    emu_forget_reports();
    return times;
}

static int attends(attention *run, int64_t d, enum emu_kind kind)
{
    struct devices *devices = devices_of(90);
    struct kr_device *dev = begin(devices);
    float *x = numbers(150 * d, -1, 1);
    struct kr_attention a = {};
    struct kr_tensor *const to[] = {&a.q, &a.k, &a.v};
    a.heads = a.kv_heads = 1;
    for (int i = 0; i < 3; i++)
        *to[i] = with_values(dev, KR_BF16, 150, d, 0, x);
    run(dev, kr_new(dev, KR_F32, 150, d, 0, 0), &a);
    free(x);
    return end(dev, kind);
}

static int convolves(convolution *run, enum emu_kind kind)
{
    struct devices *devices = devices_of(90);
    struct kr_device *dev = begin(devices);
    float *x = numbers(96 * 96 * 9, -1, 1);
    struct kr_conv conv = {x, KR_F32, 96, 96, 1, 3, 3, {}, NULL, 0, 0};
    run(dev, kr_new(dev, KR_F32, 9, 9, 96, 0), with_values(dev, KR_BF16, 9, 9, 96, x), &conv);
    int times = end(dev, kind);
    kr_conv_fini(dev, &conv);
    free(x);
    return times;
}

/* Small tiles, then large ones. */
static int multiplies(product *run, int fp8, int large, enum emu_kind kind)
{
    struct devices *devices = devices_of(89);
    struct kr_device *dev = begin(devices);
    struct kr_weight w = {};
    const struct kr_weight *const weights[] = {&w};
    float *x = numbers(130 * 512, -1, 1);
    struct cuda_multiply m = {};
    struct kr_tensor plain = with_values(dev, KR_BF16, 130, 512, 0, x);
    w.dtype = KR_F8_E4M3;
    w.out = 40;
    w.in = 512;
    w.scale = 1;
    m.x = fp8 ? kr_new(dev, KR_F8_E4M3, 130, 512, 0, 0) : plain;
    if (fp8)
        cuda_quantize_rows(cuda_of(dev), m.x, plain);
    m.out = kr_new(dev, KR_F32, 130, 40, 0, 0);
    m.w = with_values(dev, KR_BF16, 20, 512, 0, x).data; /* any bytes are */
    m.weights = weights;
    m.count = 1;
    devices_cuda(devices)->processors = large ? 1 : 1000;
    run(cuda_of(dev), &m);
    free(x);
    return end(dev, kind);
}

static void test_product(void **)
{
    for (int i = 0; i < 4; i++) {
        for (int kind = 0; kind < EMU_KINDS; kind++)
            assert_int_equal(multiplies(cuda_multiply, i % 2, i / 2, (enum emu_kind)kind), 0);
        assert_true(multiplies(without_barriers::cuda_multiply, i % 2, i / 2, EMU_RACE_SHARED) > 0);
        assert_true(multiplies(without_waits::cuda_multiply, i % 2, i / 2, EMU_ASYNC_COPY) > 0);
    }
}

static void test_attention(void **)
{
    static const int64_t heads[] = {32, 64, 128, 384};
    for (int i = 0; i < 4; i++) {
        for (int kind = 0; kind < EMU_KINDS; kind++)
            assert_int_equal(attends(cuda_attention, heads[i], (enum emu_kind)kind), 0);
        assert_true(attends(without_barriers::cuda_attention, heads[i], EMU_RACE_SHARED) > 0);
        assert_true(attends(without_waits::cuda_attention, heads[i], EMU_ASYNC_COPY) > 0);
    }
}

static void test_convolution(void **)
{
    for (int kind = 0; kind < EMU_KINDS; kind++)
        assert_int_equal(convolves(cuda_conv2d, (enum emu_kind)kind), 0);
    assert_true(convolves(without_barriers::cuda_conv2d, EMU_RACE_SHARED) > 0);
    assert_true(convolves(without_waits::cuda_conv2d, EMU_ASYNC_COPY) > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_convolution),
        cmocka_unit_test(test_product),
    };
    return cmocka_run_group_tests(tests, NULL, close_devices);
}
