/* SPDX-License-Identifier: Apache-2.0
 *
 * A libcuda.so.1 for test_driver.py: a driver of $STUB_VERSION (12040 is CUDA 12.4) whose start
 * fails with $STUB_ERROR. That is all that the CUDA runtime asks of one that is of no use; whatever
 * else it looks up is there and fails.
 */
#include <stdlib.h>
#include <string.h>

static int number(const char *name)
{
    const char *text = getenv(name);
    return text ? atoi(text) : 0;
}

int cuInit(unsigned flags)
{
    (void)flags;
    return number("STUB_ERROR");
}

int cuDriverGetVersion(int *version)
{
    *version = number("STUB_VERSION");
    return 0;
}

static int fails(void)
{
    return 999;
}

int cuGetProcAddress_v2(const char *name, void **function, int version, unsigned long flags,
                        int *found)
{
    (void)version, (void)flags;
    *function = !strcmp(name, "cuInit")               ? (void *)cuInit
                : !strcmp(name, "cuDriverGetVersion") ? (void *)cuDriverGetVersion
                : !strcmp(name, "cuGetProcAddress")   ? (void *)cuGetProcAddress_v2
                                                      : (void *)fails;
    if (found)
        *found = 0;
    return 0;
}
