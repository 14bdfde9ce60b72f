/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KR_ENGINE_SCHEDULE_H
#define KR_ENGINE_SCHEDULE_H

#include <stdint.h>

/* mu of a picture of so many tokens, on the line through y1 at 256 and y2 at 6400 tokens. */
double schedule_mu(double y1, double y2, int64_t tokens);

/* The grid of the official program, from 1 to 0: steps + 1 values. */
void schedule_krea(double mu, int64_t steps, float *sigmas);

/* The grid of ComfyUI's scheduler "simple". */
void schedule_comfyui(double mu, int64_t steps, float *sigmas);

#endif
