/* SPDX-License-Identifier: Apache-2.0
 *
 * The time grid of flow matching: a uniform grid u from 1 to 0, shifted by mu so that larger
 * pictures spend more steps near the noise: t = e^mu / (e^mu + 1/u - 1).
 *
 * The references compute it in float32 with torch, and sampled pictures depend on the last bits
 * (times are rounded to bfloat16 afterwards, and a value next to a tie flips), so each operation
 * here is the one that torch does, in its order: linspace() fuses its multiply and add and fills
 * its second half from the end; a number divided by a tensor is the tensor's reciprocal times that
 * number.
 *
 * Pure functions; any thread.
 */
#include "daemon/engine/schedule.h"

#include <math.h>

double schedule_mu(double y1, double y2, int64_t tokens)
{
    const double x1 = 256, x2 = 6400;
    double slope = (y2 - y1) / (x2 - x1);

    return slope * (double)tokens + (y1 - slope * x1);
}

static float shift(double mu, float u)
{
    float e = (float)exp(mu);
    float x = 1.0f / u - 1.0f;

    return 1.0f / (e + x) * e;
}

void schedule_krea(double mu, int64_t steps, float *sigmas)
{
    float step = -1.0f / (float)steps;

    for (int64_t i = 0; i <= steps; i++) {
        float u = i < (steps + 1) / 2 ? fmaf(step, (float)i, 1.0f) : -step * (float)(steps - i);

        sigmas[i] = shift(mu, u);
    }
}

/* ComfyUI shifts a table of k / 10000 once and picks from it by truncated index, which differs from
 * the exact grid where the number of steps does not divide 10000. */
void schedule_comfyui(double mu, int64_t steps, float *sigmas)
{
    enum { TABLE = 10000 };
    double stride = TABLE / (double)steps;

    for (int64_t i = 0; i < steps; i++) {
        int64_t k = TABLE - (int64_t)((double)i * stride);

        sigmas[i] = shift(mu, (float)k / (float)TABLE);
    }
    sigmas[steps] = 0;
}
