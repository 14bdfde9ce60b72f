/* SPDX-License-Identifier: Apache-2.0
 *
 * The CUDA device: opening, what goes wrong, waiting, and its table of operations.
 *
 * Every call of CUDA's is looked at. Out of memory is the job's fault and names what was to be
 * allocated; everything else means that the device, or our use of it, is broken, and the daemon
 * ends with it. Kernels report nothing but NaN, in a mark that sync() reads.
 */
#include "kernels/cuda/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const size_t workspace_size = (size_t)32 << 20; /* what cuBLASLt's fastest on sm_90 want */
static const double graph_ms = 25;                     /* see repeat.cu */

int cuda_ok(struct cuda_device *cuda, cudaError_t error, const char *call)
{
    if (error == cudaSuccess)
        return 1;
    (void)cudaGetLastError();
    if (error == cudaErrorMemoryAllocation)
        kr_fault_set(&cuda->base, KR_FAULT_NO_MEMORY, "out of memory on the GPU: %s", call);
    else
        kr_fault_set(&cuda->base, KR_FAULT_LOST, "the GPU failed: %s: %s (%s)", call,
                     cudaGetErrorName(error), cudaGetErrorString(error));
    return 0;
}

int cuda_blas_ok(struct cuda_device *cuda, cublasStatus_t status, const char *call)
{
    if (status == CUBLAS_STATUS_SUCCESS)
        return 1;
    (void)cudaGetLastError();
    kr_fault_set(&cuda->base,
                 status == CUBLAS_STATUS_ALLOC_FAILED ? KR_FAULT_NO_MEMORY : KR_FAULT_LOST,
                 "the GPU failed: %s: %s", call, cublasLtGetStatusString(status));
    return 0;
}

void cuda_enter(const struct cuda_device *cuda)
{
    (void)cudaSetDevice(cuda->ordinal); /* what fails here fails at the next call, too */
}

/* At most two batches are under way when the host goes on: enough to keep the device busy, and on
 * a slow card no more than a tenth of a second's work. */
void cuda_launched(struct cuda_device *cuda)
{
    cuda->launches++;
    cuda_recorded(cuda);
    if (cuda->launches / CUDA_BATCH == cuda->batches)
        return;
    cuda->batches = cuda->launches / CUDA_BATCH;
    if (!cuda_ok(cuda, cudaEventRecord(cuda->batch_end[cuda->turn], cuda->stream[0]),
                 "cudaEventRecord"))
        return;
    cuda->turn ^= 1;
    cuda_ok(cuda, cudaEventSynchronize(cuda->batch_end[cuda->turn]), "the GPU's work");
}

void *cuda_workspace(struct cuda_device *cuda)
{
    if (!cuda->workspace)
        cuda->workspace = cuda_take(cuda, cuda->workspace_size);
    if (!cuda->workspace)
        kr_fault_set(&cuda->base, KR_FAULT_NO_MEMORY,
                     "out of memory: the GPU has no %zu MiB left for cuBLASLt's workspace",
                     cuda->workspace_size >> 20);
    return cuda->workspace;
}

/* ------------------------------------------------------------------------- waiting ------ */

static void read_marks(struct cuda_device *cuda)
{
    int bad = cuda->checks > 0 ? *cuda->bad_host : 0;
    cuda->checks = 0;
    if (bad == 0)
        return;
    kr_fault_set(&cuda->base, KR_FAULT_NOT_FINITE, "%s has NaN or infinity",
                 cuda->check[CUDA_CHECKS - bad]);
    cuda_ok(cuda, cudaMemsetAsync(cuda->bad, 0, sizeof *cuda->bad, cuda->stream[0]), "cudaMemset");
}

static void cuda_sync(struct kr_device *dev)
{
    struct cuda_device *cuda = cuda_of(dev);
    cuda_enter(cuda);
    if (cuda->checks > 0 && !cuda_ok(cuda,
                                     cudaMemcpyAsync(cuda->bad_host, cuda->bad, sizeof *cuda->bad,
                                                     cudaMemcpyDeviceToHost, cuda->stream[0]),
                                     "a copy from the GPU"))
        return;
    if (cuda_ok(cuda, cudaStreamSynchronize(cuda->stream[0]), "the GPU's work"))
        read_marks(cuda);
}

/* A cancelled job has left work and marks behind; the next one begins with neither. */
static void cuda_job_end(struct kr_device *dev)
{
    struct cuda_device *cuda = cuda_of(dev);
    cuda_enter(cuda);
    if (cuda->checks > 0)
        cuda_ok(cuda, cudaMemsetAsync(cuda->bad, 0, sizeof *cuda->bad, cuda->stream[0]),
                "cudaMemset");
    cuda->checks = 0;
    cuda_ok(cuda, cudaStreamSynchronize(cuda->stream[0]), "the GPU's work");
    cuda_repeats_forget(cuda);
    cuda_stage_end(dev);
}

static void cuda_close(struct kr_device *dev)
{
    struct cuda_device *cuda = cuda_of(dev);
    cuda_enter(cuda);
    (void)cudaDeviceSynchronize();
    cuda_products_close(cuda);
    cuda_weights_close(cuda);
    cuda_repeats_close(cuda);
    if (cuda->blas)
        (void)cublasLtDestroy(cuda->blas);
    if (cuda->workspace)
        (void)cudaFree(cuda->workspace);
    cuda_memory_close(cuda);
    if (cuda->bad)
        (void)cudaFree(cuda->bad);
    if (cuda->bad_host)
        (void)cudaFreeHost(cuda->bad_host);
    for (int i = 0; i < 2; i++)
        if (cuda->batch_end[i])
            (void)cudaEventDestroy(cuda->batch_end[i]);
    if (cuda->copy)
        (void)cudaStreamDestroy(cuda->copy);
    if (cuda->stream[0])
        (void)cudaStreamDestroy(cuda->stream[0]);
    free(cuda);
}

/* FP8 where all of them are, and the sizes are what cuBLASLt takes. */
enum kr_dtype cuda_input_dtype(const struct kr_device *dev, const struct kr_weight *const *w,
                               int count)
{
    const struct cuda_device *cuda = cuda_of(dev);
    if (!cuda->fp8_rows || cuda->fp8 == KR_FP8_EXPAND)
        return dev->compute;
    for (int i = 0; i < count; i++)
        if (w[i]->dtype != KR_F8_E4M3 || w[i]->full_precision || w[i]->out % 16 || w[i]->in % 16)
            return dev->compute;
    return KR_F8_E4M3;
}

/* In the order of struct kr_backend's members. */
static struct kr_backend make_backend(void)
{
    struct kr_backend b = {};
    b.close = cuda_close;
    b.free_memory = cuda_free_memory;
    b.map = cuda_map;
    b.unmap = cuda_unmap;
    b.alloc = cuda_alloc;
    b.free = cuda_free;
    b.conv_fini = cuda_conv_fini;
    b.sync = cuda_sync;
    b.upload = cuda_upload;
    b.download = cuda_download;
    b.linear = cuda_linear;
    b.linear_add = cuda_linear_add;
    b.linear_many = cuda_linear_many;
    b.attention = cuda_attention;
    b.conv2d = cuda_conv2d;
    b.conv2d_add = cuda_conv2d_add;
    b.copy = cuda_copy;
    b.embed = cuda_embed;
    b.rms_norm = cuda_rms_norm;
    b.qk_norm_rope = cuda_qk_norm_rope;
    b.swiglu = cuda_swiglu;
    b.mul_sigmoid = cuda_mul_sigmoid;
    b.gelu_tanh = cuda_gelu_tanh;
    b.add = cuda_add;
    b.scale_rows = cuda_scale_rows;
    b.add_scaled = cuda_add_scaled;
    b.guide = cuda_guide;
    b.mix_taps = cuda_mix_taps;
    b.timestep = cuda_timestep;
    b.patchify = cuda_patchify;
    b.unpatchify = cuda_unpatchify;
    b.planes_to_pixels = cuda_planes_to_pixels;
    b.pixels_to_planes = cuda_pixels_to_planes;
    b.scale_shift = cuda_scale_shift;
    b.upsample2 = cuda_upsample2;
    b.check_finite = cuda_check_finite;
    b.input_dtype = cuda_input_dtype;
    b.residency = cuda_residency;
    b.plan_begin = cuda_plan_begin;
    b.plan_weights = cuda_plan_weights;
    b.stage_end = cuda_stage_end;
    b.weights_held = cuda_weights_held;
    b.repeat_begin = cuda_repeat_begin;
    b.repeat_end = cuda_repeat_end;
    b.job_end = cuda_job_end;
    return b;
}

/* -------------------------------------------------------------------------- opening ------ */

/* What the first call returns where CUDA is of no use, and the way out of that. */
static const struct {
    cudaError_t error;
    const char *why;
} failures[] = {
    {cudaErrorNoDevice,
     "the NVIDIA driver finds no GPU that this process may use; see that nvidia-smi lists one for "
     "the same user and that CUDA_VISIBLE_DEVICES does not hide it"},
    {cudaErrorMemoryAllocation,
     "the GPU has no memory left for one more program; nvidia-smi lists those that hold it"},
    {cudaErrorStubLibrary,
     "libcuda.so.1 is the CUDA toolkit's stub instead of a driver's; take its folder out of "
     "LD_LIBRARY_PATH, and install NVIDIA's driver 580 or newer where there is none"},
    {cudaErrorSystemDriverMismatch,
     "the NVIDIA driver's library and its kernel module are of different versions, as after an "
     "update; restart the machine"},
};

static void insufficient(char *why, size_t size)
{
    int driver = 0, runtime = 0;
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    if (driver == 0)
        snprintf(why, size,
                 "there is no NVIDIA driver (libcuda.so.1); install NVIDIA's driver 580 or newer");
    else
        snprintf(why, size,
                 "the NVIDIA driver is too old: it serves CUDA %d.%d and kread was built with CUDA "
                 "%d.%d; update the driver to 580 or newer",
                 driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
}

static int driver_fails(cudaError_t error, char *why, size_t size)
{
    (void)cudaGetLastError();
    if (error == cudaErrorInsufficientDriver) {
        insufficient(why, size);
        return -1;
    }
    snprintf(why, size,
             "CUDA can't start: %s (%s); see that nvidia-smi works for the same user and that "
             "/dev/nvidia-uvm is there, which nvidia-modprobe -u makes",
             cudaGetErrorName(error), cudaGetErrorString(error));
    for (size_t i = 0; i < sizeof failures / sizeof *failures; i++)
        if (failures[i].error == error)
            snprintf(why, size, "%s", failures[i].why);
    return -1;
}

static int look_at(struct cuda_device *cuda, char *why, size_t size)
{
    struct cudaDeviceProp prop;
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0)
        return driver_fails(error != cudaSuccess ? error : cudaErrorNoDevice, why, size);
    if (cuda->ordinal < 0 || cuda->ordinal >= count) {
        snprintf(why, size, "there is no GPU %d: this process may use %d, numbered from 0",
                 cuda->ordinal, count);
        return -1;
    }
    error = cudaGetDeviceProperties(&prop, cuda->ordinal);
    if (error == cudaSuccess)
        error = cudaSetDevice(cuda->ordinal);
    if (error != cudaSuccess)
        return driver_fails(error, why, size);
    cuda->capability = 10 * prop.major + prop.minor;
    if (cuda->capability < CUDA_CAPABILITY) {
        snprintf(why, size,
                 "%.60s has compute capability %d.%d and kread needs 8.0 or newer (GeForce RTX 30 "
                 "series and later)%s",
                 prop.name, prop.major, prop.minor,
                 count > 1 ? "; CUDA_VISIBLE_DEVICES chooses another GPU" : "");
        return -1;
    }
    cuda->processors = prop.multiProcessorCount;
    cuda->reads_mappings = prop.hostRegisterSupported && prop.hostRegisterReadOnlySupported;
    /* cuBLASLt has factors for rows ("outer vectors") on sm_90 alone, as its makers say
     * (NVIDIA/CUDALibrarySamples, issue 270). multiply.cu has them where mma is the best that tensor
     * cores can do (linear.cu). */
    cuda->fp8_rows = cuda->capability == 89 || cuda->capability == 90 || cuda->capability >= 120;
    snprintf(cuda->base.name, sizeof cuda->base.name, "cuda: %.38s, %u.%u, %s", prop.name,
             (unsigned)cuda->capability / 10 % 100, (unsigned)cuda->capability % 10,
             cuda->capability >= 89 && cuda->fp8 == KR_FP8_BEST ? "bf16+fp8" : "bf16");
    return 0;
}

static int open_parts(struct cuda_device *cuda)
{
    void *bad = NULL, *bad_host = NULL;
    if (!cuda_ok(cuda, cudaStreamCreateWithFlags(&cuda->stream[0], cudaStreamNonBlocking),
                 "cudaStreamCreate") ||
        !cuda_ok(cuda, cudaStreamCreateWithFlags(&cuda->copy, cudaStreamNonBlocking),
                 "cudaStreamCreate"))
        return -1;
    for (int i = 0; i < 2; i++)
        if (!cuda_ok(cuda, cudaEventCreateWithFlags(&cuda->batch_end[i], cudaEventDisableTiming),
                     "cudaEventCreate"))
            return -1;
    if (!cuda_ok(cuda, cudaMalloc(&bad, sizeof *cuda->bad), "a mark for NaN"))
        return -1;
    cuda->bad = (int *)bad;
    if (!cuda_ok(cuda, cudaMallocHost(&bad_host, sizeof *cuda->bad), "a mark for NaN") ||
        !cuda_ok(cuda, cudaMemsetAsync(bad, 0, sizeof *cuda->bad, cuda->stream[0]), "cudaMemset"))
        return -1;
    cuda->bad_host = (int *)bad_host;
    if (cuda_memory_open(cuda) || cuda_repeats_open(cuda) || cuda_weights_open(cuda))
        return -1;
    return cuda_blas_ok(cuda, cublasLtCreate(&cuda->blas), "cublasLtCreate") ? 0 : -1;
}

/* The module's one exported function; kernels/open.c looks it up. */
extern "C" __attribute__((visibility("default"))) struct kr_device *kr_cuda_open(
    const char *version, const struct kr_cuda_options *options, char *why, size_t size)
{
    static const struct kr_backend backend = make_backend();
    static const struct kr_cuda_options defaults = {0, KR_FP8_BEST};
    if (strcmp(version, KR_VERSION) != 0) {
        snprintf(why, size,
                 "kread is version %s and its kread-cuda.so is version %s; install both from one "
                 "build",
                 version, KR_VERSION);
        return NULL;
    }
    struct cuda_device *cuda = (struct cuda_device *)calloc(1, sizeof *cuda);
    if (!cuda) {
        snprintf(why, size, "out of memory");
        return NULL;
    }
    kr_device_init(&cuda->base, &backend);
    options = options ? options : &defaults;
    cuda->base.compute = KR_BF16;
    cuda->ordinal = options->device;
    cuda->fp8 = options->fp8;
    cuda->streams = 1;
    cuda->workspace_size = workspace_size;
    cuda->graph_ms = graph_ms;
    if (look_at(cuda, why, size)) {
        free(cuda);
        return NULL;
    }
    if (open_parts(cuda)) {
        snprintf(why, size, "%s", cuda->base.text);
        cuda_close(&cuda->base);
        return NULL;
    }
    return &cuda->base;
}
