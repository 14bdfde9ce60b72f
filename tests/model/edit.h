/* SPDX-License-Identifier: Apache-2.0
 *
 * Model files for tests: taken from a golden set or made of noise, changed in one place, and
 * written to a folder that goes when the program ends.
 */
#ifndef KR_TESTS_MODEL_EDIT_H
#define KR_TESTS_MODEL_EDIT_H

#include <stddef.h>
#include <stdint.h>

struct edit;

struct edit *edit_new(void);
struct edit *edit_load(const char *path); /* fails the test if it can't be read */
void edit_free(struct edit *e);

/* Each fails the test if the tensor isn't there (or, for add, is there). shape: "[2,3]". */
void edit_drop(struct edit *e, const char *name);
void edit_rename(struct edit *e, const char *name, const char *to);
void edit_reshape(struct edit *e, const char *name, const char *shape); /* keeps its bytes */
void edit_resize(struct edit *e, const char *name, const char *shape);  /* to zeros of this shape */
void edit_zero(struct edit *e, const char *name);
/* BF16 values of noise / divisor, or zeros that take no room on disk where divisor is 0. */
void edit_add(struct edit *e, const char *name, const char *shape, float divisor);
void edit_add_norm(struct edit *e, const char *name, const char *shape); /* BF16 about 1 */
void edit_drop_all(struct edit *e, const char *start);
void edit_prefix_all(struct edit *e, const char *from, const char *to); /* of names that start so */

/* Writes the file and returns its path, good until the next write. */
const char *edit_write(struct edit *e, const char *file);

#endif
