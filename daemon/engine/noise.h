/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KR_ENGINE_NOISE_H
#define KR_ENGINE_NOISE_H

#include <stddef.h>
#include <stdint.h>

/* n standard normal values in the order of torch.randn(). n is a multiple of 16. */
void noise_cpu(uint64_t seed, float *out, size_t n);

/* The same as torch.randn() on a CUDA device with at least n resident threads. */
void noise_cuda(uint64_t seed, float *out, size_t n);

#endif
