/* SPDX-License-Identifier: Apache-2.0
 *
 * What tests against goldens share: the measure of error, and the file of figures that says how
 * large it may be. No cmocka here; a test asserts on what it gets.
 */
#ifndef KR_TESTS_GOLDEN_H
#define KR_TESTS_GOLDEN_H

#include <stddef.h>

/* Relative RMS error: |got - want| / |want| over all n values. 0 for equal arrays, also when both
 * are zero or n is 0; infinity if a value is not finite or `want` is all zeros and `got` is not. */
double golden_rms(const float *got, const float *want, size_t n);

/* Largest |got - want|; infinity if a value is not finite. */
double golden_max(const float *got, const float *want, size_t n);

struct golden_figure {
    char name[64];
    double value;
};

/* A JSON object of name: number (bf16-error.json), in the file's order. Returns how many; the
 * caller frees *figures. -1 with one sentence in message if the file is anything else. */
int golden_figures(const char *path, struct golden_figure **figures, char *message, size_t size);

/* The value of a name; NAN if it is not among the n figures. */
double golden_figure(const struct golden_figure *figures, int n, const char *name);

#endif
