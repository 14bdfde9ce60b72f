/* SPDX-License-Identifier: Apache-2.0
 *
 * The device itself: what it is, its errors, and what the test set about it.
 */
#include "internal.h"

#include <assert.h>
#include <pthread.h>

struct emu_figures figures;
uint64_t random_state;

static struct {
    struct emu_options options;
    int architecture, opened;
    cudaError_t last, sticky;
    int allocations_left, calls_left; /* before one fails; 0: never */
} device;

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

/* Of each architecture: the card that stands for it. */
struct architecture {
    int number;
    const char *name;
    int processors, threads, blocks; /* of a processor */
    int shared, optin;               /* KiB of a processor; of a block that asks for it */
    int l2, bus;                     /* MiB; bits */
};
static const struct architecture architectures[] = {
    {75, "RTX 2080", 46, 1024, 16, 64, 64, 4, 256}, /* too old for the product */
    {80, "A100", 108, 2048, 32, 164, 163, 40, 5120},
    {86, "RTX 3060", 28, 1536, 16, 100, 99, 3, 192},
    {89, "RTX 4090", 128, 1536, 24, 100, 99, 72, 384},
    {90, "H200", 132, 2048, 32, 228, 227, 50, 6144},
    {100, "B200", 148, 2048, 32, 228, 227, 126, 8192},
    {120, "RTX 5090", 170, 1536, 24, 100, 99, 96, 512},
};

static const struct architecture *the_architecture(void)
{
    for (size_t i = 0; i < sizeof architectures / sizeof architectures[0]; i++)
        if (architectures[i].number == device.architecture)
            return &architectures[i];
    assert(!"an architecture that the emulation knows");
    return NULL;
}

int architecture(void)
{
    return device.architecture;
}

int takes_alpha_vectors(void)
{
    return device.options.alpha_vectors;
}

int writes_rows_as_bf16(void)
{
    return device.options.rows_to_bf16;
}

size_t shared_limit_optin(void)
{
    return (size_t)the_architecture()->optin * 1024;
}

/* --------------------------------------------------------------------------- opening it ------ */

static uint64_t from_environment(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

void emu_open(const struct emu_options *given)
{
    struct emu_options o = given ? *given : (struct emu_options){};
    if (!given) {
        o.architecture = (int)from_environment("EMU_ARCHITECTURE", 0);
        o.memory = from_environment("EMU_MEMORY", 0);
        o.seed = from_environment("EMU_SEED", 0);
        o.fail_allocation = (int)from_environment("EMU_FAIL_ALLOCATION", 0);
        o.lose_device = (int)from_environment("EMU_LOSE_DEVICE", 0);
        o.no_device = (int)from_environment("EMU_NO_DEVICE", 0);
        o.alpha_vectors = (int)from_environment("EMU_ALPHA_VECTORS", 0);
    }
    emu_leaks();
    device.options = o;
    device.opened = 1;
    device.architecture = o.architecture ? o.architecture : 90;
    device.last = device.sticky = cudaSuccess;
    emu_seed(o.seed ? o.seed : 1);
    emu_fail_allocation(o.fail_allocation);
    emu_lose_device(o.lose_device);
    figures = {};
    memory_open(o.memory ? o.memory : (size_t)4 << 30);
    stream_open(o.eager);
    graph_open();
    blaslt_open();
    faults_watch();
    the_architecture();
}

void emu_fail_allocation(int nth)
{
    device.allocations_left = nth;
}

void emu_lose_device(int nth)
{
    device.calls_left = nth;
}

void emu_seed(uint64_t seed)
{
    random_state = seed * 0x9e3779b97f4a7c15u + 0x1234567u;
}

int fails_allocation(void)
{
    return device.allocations_left && --device.allocations_left == 0;
}

void emu_read_figures(struct emu_figures *read)
{
    figures.used = memory_used();
    figures.peak = memory_peak();
    *read = figures;
}

int emu_leaks(void)
{
    return memory_leaks(1) + stream_leaks(1) + graph_leaks(1) + blaslt_leaks(1);
}

/* ------------------------------------------------------------------------------- errors ------ */

entry::entry()
{
    pthread_mutex_lock(&lock);
    if (!device.opened)
        emu_open(NULL);
    figures.runtime_calls++;
    if (device.calls_left && --device.calls_left == 0)
        device.sticky = cudaErrorLaunchFailure;
    int no_device = device.options.no_device;
    error = no_device == 0   ? device.sticky
            : no_device == 1 ? cudaErrorNoDevice
            : no_device <= 3 ? cudaErrorInsufficientDriver
                             : (cudaError_t)no_device;
}

entry::~entry()
{
    pthread_mutex_unlock(&lock);
}

cudaError_t result(cudaError_t error)
{
    if (error)
        device.last = error;
    return error;
}

void stick(cudaError_t error)
{
    if (!device.sticky)
        device.sticky = error;
}

cudaError_t sticking(void)
{
    return device.sticky;
}

cudaError_t cudaGetLastError(void)
{
    entry call;
    cudaError_t last = call.error ? call.error : device.last;
    device.last = cudaSuccess;
    return last;
}

cudaError_t cudaPeekAtLastError(void)
{
    entry call;
    return call.error ? call.error : device.last;
}

struct error_text {
    cudaError_t error;
    const char *name, *text;
};
#define ERROR(name, text)                                                                          \
    {                                                                                              \
        name, #name, text                                                                          \
    }
static const struct error_text error_texts[] = {
    ERROR(cudaSuccess, "no error"),
    ERROR(cudaErrorInvalidValue, "invalid argument"),
    ERROR(cudaErrorMemoryAllocation, "out of memory"),
    ERROR(cudaErrorInitializationError, "initialization error"),
    ERROR(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    ERROR(cudaErrorInvalidDevicePointer, "invalid device pointer"),
    ERROR(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy"),
    ERROR(cudaErrorInsufficientDriver,
          "CUDA driver version is insufficient for CUDA runtime version"),
    ERROR(cudaErrorInvalidDeviceFunction, "invalid device function"),
    ERROR(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    ERROR(cudaErrorInvalidDevice, "invalid device ordinal"),
    ERROR(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    ERROR(cudaErrorIllegalState, "the operation cannot be performed in the present state"),
    ERROR(cudaErrorNotReady, "device not ready"),
    ERROR(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    ERROR(cudaErrorLaunchOutOfResources, "too many resources requested for launch"),
    ERROR(cudaErrorHostMemoryAlreadyRegistered,
          "part or all of the requested memory range is already mapped"),
    ERROR(cudaErrorHostMemoryNotRegistered,
          "pointer does not correspond to a registered memory region"),
    ERROR(cudaErrorMisalignedAddress, "misaligned address"),
    ERROR(cudaErrorLaunchFailure, "unspecified launch failure"),
    ERROR(cudaErrorNotPermitted, "operation not permitted"),
    ERROR(cudaErrorNotSupported, "operation not supported"),
    ERROR(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"),
    ERROR(cudaErrorStreamCaptureInvalidated,
          "operation failed due to a previous error during capture"),
    ERROR(cudaErrorStreamCaptureMerge,
          "operation would result in a merge of separate capture sequences"),
    ERROR(cudaErrorStreamCaptureUnmatched, "capture was not ended in the same stream as it began"),
    ERROR(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work"),
    ERROR(cudaErrorStreamCaptureIsolation,
          "dependency created on uncaptured work in another stream"),
    ERROR(cudaErrorStreamCaptureImplicit,
          "operation would make the legacy stream depend on a capturing blocking stream"),
    ERROR(cudaErrorCapturedEvent,
          "operation not permitted on an event last recorded in a capturing stream"),
    ERROR(cudaErrorUnknown, "unknown error"),
};

static const struct error_text *text_of(cudaError_t error)
{
    for (size_t i = 0; i < sizeof error_texts / sizeof error_texts[0]; i++)
        if (error_texts[i].error == error)
            return &error_texts[i];
    return NULL;
}

const char *cudaGetErrorName(cudaError_t error)
{
    const struct error_text *t = text_of(error);
    return t ? t->name : "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t error)
{
    const struct error_text *t = text_of(error);
    return t ? t->text : "unrecognized error code";
}

/* --------------------------------------------------------------------------- properties ------ */

cudaError_t cudaGetDeviceCount(int *count)
{
    entry call;
    *count = device.options.no_device ? 0 : 1;
    return result(call.error);
}

cudaError_t cudaSetDevice(int ordinal)
{
    entry call;
    return result(call.error ? call.error : ordinal ? cudaErrorInvalidDevice : cudaSuccess);
}

cudaError_t cudaInitDevice(int ordinal, unsigned, unsigned)
{
    return cudaSetDevice(ordinal);
}

cudaError_t cudaGetDevice(int *ordinal)
{
    entry call;
    *ordinal = 0;
    return result(call.error);
}

cudaError_t cudaDeviceReset(void)
{
    entry call;
    return result(stream_finish_all());
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    entry call;
    int no_device = device.options.no_device;
    *version = no_device == 2 ? 0 : no_device == 3 ? 12040 : CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int ordinal)
{
    entry call;
    size_t available;
    if (call.error || ordinal)
        return result(call.error ? call.error : cudaErrorInvalidDevice);
    const struct architecture *a = the_architecture();
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "%s (emulated)", a->name);
    cudaMemGetInfo(&available, &p->totalGlobalMem);
    p->major = a->number / 10;
    p->minor = a->number % 10;
    p->sharedMemPerBlock = 48 << 10;
    p->sharedMemPerBlockOptin = (size_t)a->optin << 10;
    p->sharedMemPerMultiprocessor = (size_t)a->shared << 10;
    p->reservedSharedMemPerBlock = 1 << 10;
    p->regsPerBlock = p->regsPerMultiprocessor = 65536;
    p->warpSize = WARP;
    p->maxThreadsPerBlock = MAX_THREADS;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 2147483647;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->totalConstMem = 65536;
    p->multiProcessorCount = a->processors;
    p->maxThreadsPerMultiProcessor = a->threads;
    p->maxBlocksPerMultiProcessor = a->blocks;
    p->l2CacheSize = a->l2 << 20;
    p->memoryBusWidth = a->bus;
    p->asyncEngineCount = 2;
    p->canMapHostMemory = p->concurrentKernels = p->unifiedAddressing = 1;
    p->hostRegisterSupported = p->hostRegisterReadOnlySupported = 1;
    return result(cudaSuccess);
}

static int attribute_of(const struct cudaDeviceProp *p, enum cudaDeviceAttr attr)
{
    switch (attr) {
    case cudaDevAttrMaxThreadsPerBlock:
        return p->maxThreadsPerBlock;
    case cudaDevAttrMaxSharedMemoryPerBlock:
        return (int)p->sharedMemPerBlock;
    case cudaDevAttrWarpSize:
        return p->warpSize;
    case cudaDevAttrMultiProcessorCount:
        return p->multiProcessorCount;
    case cudaDevAttrGlobalMemoryBusWidth:
        return p->memoryBusWidth;
    case cudaDevAttrL2CacheSize:
        return p->l2CacheSize;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
        return p->maxThreadsPerMultiProcessor;
    case cudaDevAttrAsyncEngineCount:
        return p->asyncEngineCount;
    case cudaDevAttrComputeCapabilityMajor:
        return p->major;
    case cudaDevAttrComputeCapabilityMinor:
        return p->minor;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
        return (int)p->sharedMemPerMultiprocessor;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        return (int)p->sharedMemPerBlockOptin;
    case cudaDevAttrReservedSharedMemoryPerBlock:
        return (int)p->reservedSharedMemPerBlock;
    case cudaDevAttrHostRegisterSupported:
    case cudaDevAttrHostRegisterReadOnlySupported:
        return 1;
    case cudaDevAttrClockRate:
        return 1800000;
    case cudaDevAttrMemoryClockRate:
        return 9000000;
    case cudaDevAttrIntegrated:
    case cudaDevAttrPageableMemoryAccess:
        return 0;
    }
    return -1;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int ordinal)
{
    struct cudaDeviceProp p;
    cudaError_t error = cudaGetDeviceProperties(&p, ordinal);
    if (error)
        return error;
    *value = attribute_of(&p, attr);
    return result(*value < 0 ? cudaErrorInvalidValue : cudaSuccess);
}
