/* SPDX-License-Identifier: Apache-2.0
 *
 * Planted faults around kernels: streams that don't wait, memory that is not freed, launches and
 * captures that a device refuses, host code that touches device memory; and what happens when
 * memory or the device is gone.
 */
#include "cuda_check.h"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = 1024, BYTES = N * sizeof(float) };

static __global__ void add(float *x, float what)
{
    int i = (int)(blockIdx.x * 256 + threadIdx.x);
    x[i] += what;
}

static __global__ void copy_to(float *out, const float *x)
{
    int i = (int)(blockIdx.x * 256 + threadIdx.x);
    out[i] = x[i];
}

template <typename... P, typename... A>
static cudaError_t run_on(cudaStream_t stream, void (*kernel)(P...), A... args)
{
    cudaLaunchConfig_t config = {dim3(N / 256), dim3(256), 0, stream, NULL, 0};
    return cudaLaunchKernelEx(&config, kernel, args...);
}

static void reported_only(enum emu_kind kind)
{
    for (int i = 0; emu_report_text(i); i++)
        if (emu_reports() != emu_reported(kind))
            print_error("%s\n", emu_report_text(i));
    assert_true(emu_reported(kind) > 0);
    assert_int_equal(emu_reports(), emu_reported(kind));
    emu_forget_reports();
}

/* ------------------------------------------------------------------------------- streams ----- */

/* A copy stream brings x, a compute stream adds to it; `waits` says whether the second waits. */
static float bring_and_add(unsigned seed, int waits)
{
    cudaStream_t bring, compute;
    cudaEvent_t there;
    float *x, *host;
    emu_seed(seed);
    CUDA(cudaStreamCreateWithFlags(&bring, cudaStreamNonBlocking));
    CUDA(cudaStreamCreateWithFlags(&compute, cudaStreamNonBlocking));
    CUDA(cudaEventCreateWithFlags(&there, cudaEventDisableTiming));
    CUDA(cudaMalloc(&x, BYTES));
    CUDA(cudaMallocHost(&host, BYTES));
    for (int i = 0; i < N; i++)
        host[i] = 5;
    CUDA(cudaMemset(x, 0, BYTES));
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaMemcpyAsync(x, host, BYTES, cudaMemcpyHostToDevice, bring));
    CUDA(cudaEventRecord(there, bring));
    if (waits)
        CUDA(cudaStreamWaitEvent(compute, there, 0));
    CUDA(run_on(compute, add, x, 1.0f));
    CUDA(cudaStreamSynchronize(bring));
    CUDA(cudaStreamSynchronize(compute));
    CUDA(cudaMemcpy(host, x, BYTES, cudaMemcpyDeviceToHost));
    float result = host[N - 1];
    CUDA(cudaFree(x));
    CUDA(cudaFreeHost(host));
    CUDA(cudaEventDestroy(there));
    CUDA(cudaStreamDestroy(bring));
    CUDA(cudaStreamDestroy(compute));
    return result;
}

static void test_dropped_stream_wait(void **)
{
    int wrong = 0;
    for (unsigned seed = 1; seed <= 20; seed++) {
        device_open(90);
        assert_true(bring_and_add(seed, 1) == 6);
        assert_int_equal(emu_reports(), 0);
        wrong += bring_and_add(seed, 0) != 6; /* the report comes whichever ran first */
        reported_only(EMU_RACE_STREAM);
        device_close();
    }
    assert_true(wrong > 0 && wrong < 20);
}

/* The legacy stream waits for blocking streams and they for it, for non-blocking ones not. */
static float through_the_legacy_stream(unsigned seed, unsigned flags)
{
    cudaStream_t s;
    float *x, *out, *host;
    emu_seed(seed);
    CUDA(cudaStreamCreateWithFlags(&s, flags));
    CUDA(cudaMalloc(&x, BYTES));
    CUDA(cudaMalloc(&out, BYTES));
    CUDA(cudaMallocHost(&host, BYTES));
    CUDA(cudaMemset(x, 0, BYTES));
    CUDA(cudaMemset(out, 0, BYTES));
    CUDA(cudaDeviceSynchronize());
    CUDA(run_on(s, add, x, 1.0f));
    CUDA(run_on(0, add, x, 1.0f));
    CUDA(run_on(s, copy_to, out, x));
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaMemcpy(host, out, BYTES, cudaMemcpyDeviceToHost));
    float result = host[0];
    CUDA(cudaFree(x));
    CUDA(cudaFree(out));
    CUDA(cudaFreeHost(host));
    CUDA(cudaStreamDestroy(s));
    return result;
}

static void test_rules_of_the_legacy_stream(void **)
{
    for (unsigned seed = 1; seed <= 10; seed++) {
        device_open(80);
        assert_true(through_the_legacy_stream(seed, cudaStreamDefault) == 2);
        assert_int_equal(emu_reports(), 0);
        through_the_legacy_stream(seed, cudaStreamNonBlocking);
        reported_only(EMU_RACE_STREAM);
        device_close();
    }
}

/* Pinned memory is read when the copy runs, pageable memory when it is queued. */
static void test_pinned_buffer_overwritten_under_a_copy(void **)
{
    float *pinned, *x, pageable[4] = {1, 1, 1, 1}, got[4];
    device_open(90);
    CUDA(cudaMalloc(&x, sizeof pageable));
    CUDA(cudaMallocHost(&pinned, sizeof pageable));
    for (int wrong = 0; wrong < 2; wrong++) {
        pinned[0] = pinned[1] = pinned[2] = pinned[3] = 1;
        CUDA(cudaMemcpyAsync(x, pinned, sizeof pageable, cudaMemcpyHostToDevice, 0));
        if (!wrong)
            CUDA(cudaStreamSynchronize(0));
        pinned[0] = 7;
        CUDA(cudaMemcpy(got, x, sizeof got, cudaMemcpyDeviceToHost));
        assert_int_equal((int)got[0], wrong ? 7 : 1);
    }
    CUDA(cudaMemcpyAsync(x, pageable, sizeof pageable, cudaMemcpyHostToDevice, 0));
    pageable[0] = 7;
    CUDA(cudaMemcpy(got, x, sizeof got, cudaMemcpyDeviceToHost));
    assert_int_equal((int)got[0], 1);
    CUDA(cudaFree(x));
    CUDA(cudaFreeHost(pinned));
    device_close();
}

static void test_result_read_before_the_stream_is_done(void **)
{
    float *pinned, *x;
    device_open(90);
    CUDA(cudaMalloc(&x, BYTES));
    CUDA(cudaMallocHost(&pinned, BYTES));
    CUDA(cudaMemset(x, 0, BYTES));
    memset(pinned, 0, BYTES);
    CUDA(run_on(0, add, x, 3.0f));
    CUDA(cudaMemcpyAsync(pinned, x, BYTES, cudaMemcpyDeviceToHost, 0));
    assert_true(pinned[5] == 0); /* not there yet */
    CUDA(cudaStreamSynchronize(0));
    assert_true(pinned[5] == 3);
    CUDA(cudaFree(x));
    CUDA(cudaFreeHost(pinned));
    device_close();
}

static void test_events(void **)
{
    cudaStream_t s;
    cudaEvent_t a, b, plain;
    float *x, ms = -1;
    device_open(90);
    CUDA(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    CUDA(cudaEventCreate(&a));
    CUDA(cudaEventCreate(&b));
    CUDA(cudaEventCreateWithFlags(&plain, cudaEventDisableTiming));
    CUDA(cudaMalloc(&x, BYTES));
    CUDA(cudaMemset(x, 0, BYTES));
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaEventRecord(a, s));
    CUDA(run_on(s, add, x, 1.0f));
    CUDA(cudaEventRecord(b, s));
    assert_int_equal(cudaEventElapsedTime(&ms, a, b), cudaErrorNotReady);
    int asked = 0;
    while (cudaEventQuery(b) == cudaErrorNotReady)
        assert_true(++asked < 1000);
    CUDA(cudaEventSynchronize(b));
    CUDA(cudaEventElapsedTime(&ms, a, b));
    assert_true(ms > 0 && ms < 60000);
    CUDA(cudaEventRecord(plain, s));
    CUDA(cudaEventSynchronize(plain));
    assert_int_equal(cudaEventElapsedTime(&ms, a, plain), cudaErrorInvalidResourceHandle);
    CUDA(cudaFree(x));
    CUDA(cudaEventDestroy(a));
    CUDA(cudaEventDestroy(b));
    CUDA(cudaEventDestroy(plain));
    CUDA(cudaStreamDestroy(s));
    device_close();
}

/* -------------------------------------------------------------------------------- graphs ----- */

static void test_graphs_replay(void **)
{
    cudaStream_t s, side;
    cudaEvent_t fork, joined;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    float *x, *y, got[N];
    device_open(90);
    CUDA(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    CUDA(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
    CUDA(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
    CUDA(cudaEventCreateWithFlags(&joined, cudaEventDisableTiming));
    CUDA(cudaMalloc(&x, BYTES));
    CUDA(cudaMalloc(&y, BYTES));
    CUDA(cudaMemset(x, 0, BYTES));
    CUDA(cudaMemset(y, 0, BYTES));
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    CUDA(run_on(s, add, x, 1.0f));
    CUDA(cudaEventRecord(fork, s));
    CUDA(cudaStreamWaitEvent(side, fork, 0));
    CUDA(run_on(side, add, y, 10.0f));
    CUDA(run_on(s, add, x, 2.0f));
    CUDA(cudaEventRecord(joined, side));
    CUDA(cudaStreamWaitEvent(s, joined, 0));
    CUDA(cudaStreamEndCapture(s, &graph));
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    CUDA(cudaGraphDestroy(graph));
    for (int i = 0; i < 3; i++)
        CUDA(cudaGraphLaunch(exec, s));
    CUDA(cudaStreamSynchronize(s));
    CUDA(cudaMemcpy(got, x, BYTES, cudaMemcpyDeviceToHost));
    assert_true(got[0] == 9 && got[N - 1] == 9);
    CUDA(cudaMemcpy(got, y, BYTES, cudaMemcpyDeviceToHost));
    assert_true(got[0] == 30 && got[N - 1] == 30);
    CUDA(cudaGraphExecDestroy(exec));
    CUDA(cudaFree(x));
    CUDA(cudaFree(y));
    CUDA(cudaEventDestroy(fork));
    CUDA(cudaEventDestroy(joined));
    CUDA(cudaStreamDestroy(s));
    CUDA(cudaStreamDestroy(side));
    device_close();
}

struct forbidden {
    cudaStream_t s;
    cudaEvent_t elsewhere;
    float *x;
};

static cudaError_t capture_malloc(struct forbidden *)
{
    float *y;
    return cudaMalloc(&y, 64);
}
static cudaError_t capture_synchronize(struct forbidden *f)
{
    return cudaStreamSynchronize(f->s);
}
static cudaError_t capture_device_synchronize(struct forbidden *)
{
    return cudaDeviceSynchronize();
}
static cudaError_t capture_query(struct forbidden *f)
{
    return cudaStreamQuery(f->s);
}
static cudaError_t capture_copy(struct forbidden *f)
{
    float host[4];
    return cudaMemcpy(host, f->x, sizeof host, cudaMemcpyDeviceToHost);
}
static cudaError_t capture_outside_wait(struct forbidden *f)
{
    return cudaStreamWaitEvent(f->s, f->elsewhere, 0);
}

static void capture_with(cudaError_t (*call)(struct forbidden *), cudaError_t want)
{
    struct forbidden f;
    cudaGraph_t graph;
    device_open(90);
    CUDA(cudaStreamCreateWithFlags(&f.s, cudaStreamNonBlocking));
    CUDA(cudaEventCreateWithFlags(&f.elsewhere, cudaEventDisableTiming));
    CUDA(cudaMalloc(&f.x, BYTES));
    CUDA(cudaMemset(f.x, 0, BYTES));
    CUDA(cudaEventRecord(f.elsewhere, 0));
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaStreamBeginCapture(f.s, cudaStreamCaptureModeGlobal));
    CUDA(run_on(f.s, add, f.x, 1.0f));
    if (call)
        assert_int_equal(call(&f), want);
    assert_int_equal(cudaStreamEndCapture(f.s, &graph),
                     call ? cudaErrorStreamCaptureInvalidated : cudaSuccess);
    if (call)
        reported_only(EMU_CAPTURE);
    else
        CUDA(cudaGraphDestroy(graph));
    CUDA(cudaFree(f.x));
    CUDA(cudaEventDestroy(f.elsewhere));
    CUDA(cudaStreamDestroy(f.s));
    device_close();
}

static void test_calls_that_are_not_allowed_while_capturing(void **)
{
    capture_with(NULL, cudaSuccess);
    capture_with(capture_malloc, cudaErrorStreamCaptureUnsupported);
    capture_with(capture_synchronize, cudaErrorStreamCaptureUnsupported);
    capture_with(capture_device_synchronize, cudaErrorStreamCaptureUnsupported);
    capture_with(capture_query, cudaErrorStreamCaptureUnsupported);
    capture_with(capture_copy, cudaErrorStreamCaptureUnsupported);
    capture_with(capture_outside_wait, cudaErrorStreamCaptureIsolation);
}

/* ------------------------------------------------------------------------------- launches ---- */

static __global__ void nothing(int)
{
}

static cudaError_t launch(dim3 grid, dim3 block, size_t dynamic)
{
    cudaLaunchConfig_t config = {grid, block, dynamic, 0, NULL, 0};
    return cudaLaunchKernelEx(&config, nothing, 1);
}

static void test_too_much_shared_memory(void **)
{
    const struct {
        int architecture, most;
    } all[] = {{80, 163}, {86, 99}, {89, 99}, {90, 227}, {100, 227}, {120, 99}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        int most = all[i].most * 1024;
        device_open(all[i].architecture);
        CUDA(cudaFuncSetAttribute(nothing, cudaFuncAttributeMaxDynamicSharedMemorySize, 48 << 10));
        CUDA(launch(1, 32, 48 << 10));
        assert_int_equal(launch(1, 32, (48 << 10) + 16), cudaErrorInvalidValue);
        reported_only(EMU_LAUNCH);
        CUDA(cudaFuncSetAttribute(nothing, cudaFuncAttributeMaxDynamicSharedMemorySize, most));
        CUDA(launch(1, 32, (size_t)most));
        assert_int_equal(
            cudaFuncSetAttribute(nothing, cudaFuncAttributeMaxDynamicSharedMemorySize, most + 1),
            cudaErrorInvalidValue);
        reported_only(EMU_LAUNCH);
        device_close();
    }
}

static void test_launches_that_no_device_takes(void **)
{
    device_open(90);
    CUDA(launch(dim3(3, 2, 1), dim3(32, 32, 1), 0));
    assert_int_equal(launch(1, dim3(33, 32, 1), 0), cudaErrorInvalidConfiguration);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidConfiguration);
    assert_int_equal(cudaGetLastError(), cudaSuccess); /* this one does not stick */
    assert_int_equal(launch(1, 0, 0), cudaErrorInvalidConfiguration);
    assert_int_equal(launch(0, 32, 0), cudaErrorInvalidConfiguration);
    assert_int_equal(launch(dim3(1, 65536, 1), 32, 0), cudaErrorInvalidConfiguration);
    assert_int_equal(launch(1, dim3(1, 1, 65), 0), cudaErrorInvalidConfiguration);
    assert_int_equal(emu_reported(EMU_LAUNCH), 5);
    reported_only(EMU_LAUNCH);
    device_close();
}

/* --------------------------------------------------------------------------------- memory ---- */

static void test_leaks(void **)
{
    float *x, *pinned;
    cudaStream_t s;
    device_open(90);
    assert_int_equal(emu_leaks(), 0);
    CUDA(cudaMalloc(&x, 100));
    CUDA(cudaMallocHost(&pinned, 100));
    CUDA(cudaStreamCreate(&s));
    assert_int_equal(emu_leaks(), 3);
    reported_only(EMU_LEAK);
    CUDA(cudaFree(x));
    CUDA(cudaFreeHost(pinned));
    CUDA(cudaStreamDestroy(s));
    device_close();
}

static void test_memory_is_counted_and_runs_out(void **)
{
    size_t available, total;
    char *a, *b;
    struct emu_options options = {};
    options.memory = 1 << 20;
    emu_open(&options);
    CUDA(cudaMalloc(&a, 700 << 10));
    CUDA(cudaMemGetInfo(&available, &total));
    assert_int_equal(total, 1 << 20);
    assert_int_equal(available, 324 << 10);
    assert_int_equal(cudaMalloc(&b, 325 << 10), cudaErrorMemoryAllocation);
    assert_null(b);
    CUDA(cudaMalloc(&b, 324 << 10));
    CUDA(cudaFree(a));
    CUDA(cudaFree(b));
    for (int n = 1; n <= 3; n++) {
        emu_fail_allocation(n);
        for (int i = 1; i <= 3; i++) {
            assert_int_equal(cudaMalloc(&a, 100), i == n ? cudaErrorMemoryAllocation : cudaSuccess);
            CUDA(cudaFree(a));
        }
    }
    device_close();
}

static void test_double_free(void **)
{
    float *x;
    device_open(90);
    CUDA(cudaMalloc(&x, 100));
    CUDA(cudaFree(x));
    assert_int_equal(cudaFree(x), cudaErrorInvalidValue);
    reported_only(EMU_FREED);
    assert_int_equal(cudaFree((char *)&x), cudaErrorInvalidValue);
    reported_only(EMU_MISUSE);
    device_close();
}

static void test_copies_that_leave_their_memory(void **)
{
    float *x, host[30] = {};
    device_open(90);
    CUDA(cudaMalloc(&x, 100));
    assert_int_equal(cudaMemcpy(x, host, 104, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    reported_only(EMU_BOUNDS);
    assert_int_equal(cudaMemset(x + 1, 0, 100), cudaErrorInvalidValue);
    reported_only(EMU_BOUNDS);
    assert_int_equal(cudaMemcpy(x, host, 100, cudaMemcpyDeviceToDevice), cudaErrorInvalidValue);
    reported_only(EMU_MISUSE);
    CUDA(cudaMemset(x, 0, 96));
    CUDA(cudaMemcpy(host, x, 96, cudaMemcpyDeviceToHost));
    assert_int_equal(emu_reports(), 0);
    CUDA(cudaMemcpy(host, x, 100, cudaMemcpyDeviceToHost));
    reported_only(EMU_UNWRITTEN);
    CUDA(cudaFree(x));
    device_close();
}

/* Runs `what` in a process of its own, which the emulation is expected to end. */
static void ends_with_a_report(void (*what)(void))
{
    pid_t child = fork();
    if (child == 0) {
        if (!freopen("/dev/null", "w", stderr))
            _exit(1);
        what();
        exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 97);
}

static void touch_device_memory(void)
{
    volatile float *x;
    cudaMalloc((void **)&x, 100);
    *x = 1;
}

static void leave_something(void)
{
    float *x;
    cudaMalloc(&x, 100);
}

static void test_host_code_that_touches_device_memory(void **)
{
    device_open(90);
    ends_with_a_report(touch_device_memory);
    device_close();
}

static void test_reports_left_at_the_end_fail_the_program(void **)
{
    device_open(90);
    ends_with_a_report(leave_something);
    device_close();
}

/* ---------------------------------------------------------------------------- the device ----- */

static void test_a_lost_device_stays_lost(void **)
{
    float *x, *y;
    device_open(90);
    CUDA(cudaMalloc(&x, BYTES));
    CUDA(cudaMemset(x, 0, BYTES));
    emu_lose_device(2);
    CUDA(run_on(0, add, x, 1.0f));
    assert_int_equal(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
    assert_int_equal(cudaMalloc(&y, 100), cudaErrorLaunchFailure);
    assert_int_equal(run_on(0, add, x, 1.0f), cudaErrorLaunchFailure);
    assert_int_equal(cudaGetLastError(), cudaErrorLaunchFailure);
    assert_int_equal(cudaGetLastError(), cudaErrorLaunchFailure);
    assert_string_equal(cudaGetErrorString(cudaErrorLaunchFailure), "unspecified launch failure");
    assert_int_equal(cudaFree(x), cudaErrorLaunchFailure);
    assert_int_equal(emu_reports(), 0);
}

static void test_a_machine_without_a_device(void **)
{
    struct emu_options options = {};
    int count = -1, version = -1;
    options.no_device = 1;
    emu_open(&options);
    assert_int_equal(cudaGetDeviceCount(&count), cudaErrorNoDevice);
    assert_int_equal(count, 0);
    CUDA(cudaDriverGetVersion(&version));
    assert_int_equal(version, CUDART_VERSION);
    options.no_device = 2;
    emu_open(&options);
    assert_int_equal(cudaGetDeviceCount(&count), cudaErrorInsufficientDriver);
    assert_int_equal(count, 0);
    CUDA(cudaDriverGetVersion(&version));
    assert_int_equal(version, 0);
}

static void test_properties_of_each_architecture(void **)
{
    const int all[] = {80, 86, 89, 90, 100, 120};
    for (int i = 0; i < 6; i++) {
        struct cudaDeviceProp p;
        int major, minor;
        device_open(all[i]);
        CUDA(cudaGetDeviceProperties(&p, 0));
        CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
        CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0));
        assert_int_equal(major * 10 + minor, all[i]);
        assert_int_equal(p.major * 10 + p.minor, all[i]);
        assert_int_equal(p.totalGlobalMem, 256 << 20);
        device_close();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dropped_stream_wait),
        cmocka_unit_test(test_rules_of_the_legacy_stream),
        cmocka_unit_test(test_pinned_buffer_overwritten_under_a_copy),
        cmocka_unit_test(test_result_read_before_the_stream_is_done),
        cmocka_unit_test(test_events),
        cmocka_unit_test(test_graphs_replay),
        cmocka_unit_test(test_calls_that_are_not_allowed_while_capturing),
        cmocka_unit_test(test_too_much_shared_memory),
        cmocka_unit_test(test_launches_that_no_device_takes),
        cmocka_unit_test(test_leaks),
        cmocka_unit_test(test_memory_is_counted_and_runs_out),
        cmocka_unit_test(test_double_free),
        cmocka_unit_test(test_copies_that_leave_their_memory),
        cmocka_unit_test(test_host_code_that_touches_device_memory),
        cmocka_unit_test(test_reports_left_at_the_end_fail_the_program),
        cmocka_unit_test(test_a_lost_device_stays_lost),
        cmocka_unit_test(test_a_machine_without_a_device),
        cmocka_unit_test(test_properties_of_each_architecture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
