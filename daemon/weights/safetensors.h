/* SPDX-License-Identifier: Apache-2.0
 *
 * A safetensors file: 8 bytes of header length, a JSON header, then the tensors' bytes without
 * holes. Private to this room.
 */
#ifndef KR_SAFETENSORS_H
#define KR_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "kernels/kernels.h"
#include "proto/err.h"

enum {
    ST_MAX_RANK = 8,
    ST_MAX_NAME = 200,        /* bytes of a tensor's name */
    ST_MAX_TENSORS = 1 << 16, /* Krea 2 has about 900 with all scales */
    ST_MAX_HEADER =
        16 << 20 /* bytes; real headers have 0.1 MB, plus a workflow that someone saved */
};

struct st_tensor {
    const char *full;    /* as the file spells it */
    const char *name;    /* the same without the file's prefix; points into full */
    const char *type;    /* dtype as the file spells it */
    enum kr_dtype dtype; /* KR_DTYPES: one that kernels do not know */
    int rank;
    int64_t dim[ST_MAX_RANK];
    uint64_t begin, bytes; /* in the data section */
};

struct safetensors {
    int fd;
    struct stat stat;          /* when it was opened */
    unsigned char *map;        /* the whole file, read-only */
    size_t size;               /* of the file */
    size_t data;               /* where the data section begins */
    struct st_tensor *tensors; /* sorted by place in the file */
    size_t count;
    char *pool;         /* the strings that the tensors point to */
    char *quantization; /* __metadata__._quantization_metadata, NULL: none */
    char *preview;      /* __metadata__."kread.latent_rgb", likewise */
    char name[256];     /* of the file, without its folder, printable */
    char shown[84];     /* its beginning, for messages */
};

/* `what` names the kind of file in messages. On failure nothing needs closing. */
int st_open(struct safetensors *st, const char *path, const char *what, struct kr_err *err);
void st_close(struct safetensors *st);

const void *st_data(const struct safetensors *st, const struct st_tensor *t);

int64_t st_elements(const struct st_tensor *t);

/* "[6144,64] BF16" */
void st_describe(const struct st_tensor *t, char *buf, size_t size);

#endif
