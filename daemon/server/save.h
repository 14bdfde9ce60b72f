/* SPDX-License-Identifier: Apache-2.0
 *
 * The owner's folder of pictures (output_dir).
 */
#ifndef KR_SAVE_H
#define KR_SAVE_H

#include <stddef.h>
#include <stdint.h>

#include "proto/err.h"

/* Writes a picture as DIR/kread-DATE-TIME-JOB-INDEX.png. The name appears when the file is whole.
 */
int save_png(const char *dir, uint64_t job, int index, const void *png, size_t size,
             struct kr_err *err);

#endif
