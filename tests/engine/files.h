/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies of model files with something wrong in them.
 */
#ifndef KR_TESTS_ENGINE_FILES_H
#define KR_TESTS_ENGINE_FILES_H

#include "tests/engine/rig.h"

/* Copies a set's four parts into a new folder below /tmp, whose name goes to folder[64]. */
void files_copy(const char *set, char folder[64]);
void files_remove(const char *folder);

/* Overwrites the last value of a tensor with NaN in its own type (of a causal convolution's kernel
 * only the last slice in time is used). */
void files_plant_nan(const char *folder, const char *file, const char *tensor);

/* Replaces the first `from` in a file by `to`. */
void files_replace(const char *folder, const char *file, const char *from, const char *to);

#endif
