/* SPDX-License-Identifier: Apache-2.0
 *
 * The CUDA device is a module, kread-cuda.so, that is opened at run time, so that one program
 * serves machines with and without a graphics card. It is what $KREAD_CUDA_MODULE names, else
 * looked for beside the program, as a build leaves it, then in ../lib/kread of that, as an
 * installation does. It is never closed: CUDA does not like to go before the process does.
 */
#include "kernels/backend.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct kr_device *(*open_function)(const char *version,
                                           const struct kr_cuda_options *options, char *why,
                                           size_t size);

/* The folder of the running program. -1: unknown. */
static int program_folder(char folder[PATH_MAX])
{
    ssize_t n = readlink("/proc/self/exe", folder, PATH_MAX - 1);
    if (n <= 0)
        return -1;
    folder[n] = '\0';
    *strrchr(folder, '/') = '\0';
    return 0;
}

static int find_module(char path[PATH_MAX + 32])
{
    static const char *const places[] = {"kread-cuda.so", "../lib/kread/kread-cuda.so"};
    const char *named = getenv("KREAD_CUDA_MODULE");
    char folder[PATH_MAX];
    if (named && *named) {
        snprintf(path, PATH_MAX + 32, "%s", named);
        return 0;
    }
    for (int i = 0; i < 2 && !program_folder(folder); i++) {
        snprintf(path, PATH_MAX + 32, "%s/%s", folder, places[i]);
        if (!access(path, F_OK))
            return 0;
    }
    return -1;
}

/* Out of what the loader said. */
static const char *way_out(const char *error)
{
    if (strstr(error, "libcublas"))
        return "install cuBLAS of CUDA 13 (NVIDIA's package libcublas-13-0)";
    if (getenv("KREAD_CUDA_MODULE"))
        return "see what KREAD_CUDA_MODULE names";
    return "install it anew, from the same build as kread";
}

static void *open_module(char *why, size_t size)
{
    char path[PATH_MAX + 32];
    const char *error;
    void *module;
    if (find_module(path)) {
        snprintf(why, size,
                 "this installation has no CUDA module (kread-cuda.so); install the package "
                 "kread-cuda, or build kread where nvcc is");
        return NULL;
    }
    module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    error = module ? "" : dlerror();
    if (!module)
        snprintf(why, size, "the CUDA module can't be loaded: %.160s; %s", error, way_out(error));
    return module;
}

static open_function find_open(char *why, size_t size)
{
    void *module = open_module(why, size);
    void *symbol = module ? dlsym(module, "kr_cuda_open") : NULL;
    if (module && !symbol)
        snprintf(why, size, "the CUDA module is none of kread's, it has no kr_cuda_open; %s",
                 way_out(""));
    open_function open;
    memcpy(&open, &symbol, sizeof open); /* what POSIX allows and C has no cast for */
    return open;
}

int kr_cuda_check(char *why, size_t size)
{
    return find_open(why, size) ? 0 : -1;
}

struct kr_device *kr_device_open_cuda(const struct kr_cuda_options *options, char *why, size_t size)
{
    open_function open = find_open(why, size);
    return open ? open(KR_VERSION, options, why, size) : NULL;
}
