/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests on the emulated device have in common.
 */
#ifndef CUDA_CHECK_H
#define CUDA_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

extern "C" {
#include <cmocka.h>
}

#include <cuda_runtime.h>

#include "tests/cuda/emulation/emu.h"

/* A runtime call that has to succeed. */
#define CUDA(call) assert_string_equal(cudaGetErrorName(call), "cudaSuccess")

static inline void device_open(int architecture)
{
    struct emu_options options = {};
    options.architecture = architecture;
    options.memory = (size_t)256 << 20;
    emu_open(&options);
    emu_forget_reports(); /* of a test before that failed */
}

/* Nothing was reported and nothing is left. */
static inline void device_close(void)
{
    CUDA(cudaDeviceSynchronize());
    emu_leaks();
    for (int i = 0; emu_report_text(i); i++)
        print_error("%s\n", emu_report_text(i));
    assert_int_equal(emu_reports(), 0);
}

#endif
