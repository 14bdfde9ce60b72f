/* SPDX-License-Identifier: Apache-2.0
 *
 * Small model files for tests: made well, then spoilt one thing at a time.
 */
#ifndef KR_TESTS_DRAFT_H
#define KR_TESTS_DRAFT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/weights/weights.h"

enum { DRAFT_MAX = 64 };

struct draft {
    struct draft_tensor {
        char *name, *dtype, *shape; /* shape: "[2,3]" */
        void *data;
        size_t bytes;
    } tensors[DRAFT_MAX];
    int count;
    char *metadata; /* the JSON of __metadata__, or NULL */
};

/* Adds a tensor or replaces the one of this name. data NULL: zeros. */
void draft_set(struct draft *d, const char *name, const char *dtype, const char *shape,
               const void *data, size_t bytes);
void draft_drop(struct draft *d, const char *name);
void draft_prefix(struct draft *d, const char *prefix); /* before all names so far */
void draft_metadata(struct draft *d, const char *json);

/* Some common cases of draft_set(). */
void draft_scale(struct draft *d, const char *name, float value);      /* F32 [] */
void draft_quant(struct draft *d, const char *name, const char *json); /* U8, as long as the text */

/* Writes FOLDER/FILE and empties the draft. */
void draft_write(struct draft *d, const char *file);

/* The path of a file in this program's folder, in one of a few static buffers. */
const char *draft_path(const char *file);
void draft_bytes(const char *file, const void *bytes, size_t size);
/* A header of this text with the right length before it, and `data` zeros behind. */
void draft_header(const char *file, const char *json, size_t data);
/* Another length before it, and no data. */
void draft_header_length(const char *file, const char *json, uint64_t length);

/* cmocka group fixtures: make and remove the folder. */
int draft_setup(void **state);
int draft_teardown(void **state);

/* Opens FILE with the prefixes in use; the probe is "probe". Fails the test when it does not open.
 */
struct weights *draft_open(const char *file);

/* Fails the test unless opening is refused with this code by one sentence that has the file's name
 * and all words (NULL ends them). */
void refused(const char *file, enum kr_code code, ...) __attribute__((sentinel));

void open_refused(const char *file, struct kr_err *err);

/* The same for an error that is there already. */
void sentence(const char *file, const struct kr_err *err, enum kr_code code, ...)
    __attribute__((sentinel));

#endif
