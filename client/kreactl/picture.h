/* SPDX-License-Identifier: Apache-2.0
 *
 * Where pictures go: files under the names that -o asks for, standard output, or a device.
 */
#ifndef KR_CLIENT_PICTURE_H
#define KR_CLIENT_PICTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/err.h"

struct picture_output {
    const char *named;                   /* what -o said, NULL: nothing */
    bool many;                           /* the job makes more than one */
    int wake;                            /* interrupts writing to a pipe */
    bool to_stdout, to_device, invented; /* invented: the name is ours, and overwrites nothing */
    char *folder, *base;                 /* of the files */
    char *temp;                          /* path of the temporary file, NULL while there is none */
    int fd;                              /* of the temporary file or the device, -1: none */
    char *path;                          /* of the last picture written, NULL on standard output */
};

/* Checks what can be checked before the work is done: the folder is there and takes a file. */
int picture_open(struct picture_output *o, const char *named, bool many, int wake,
                 struct kr_err *err);

/* Writes one picture whole or not at all; o->path is its name afterwards. */
int picture_write(struct picture_output *o, const void *png, size_t size, int64_t index,
                  int64_t seed, struct kr_err *err);

/* The newest preview: a file beside the picture's, FILE.preview.png, that each new one replaces and
 * preview_close() removes. */
struct preview_output {
    char *path, *temp; /* NULL: none is written */
    bool written;
};
int preview_open(struct preview_output *o, const char *named, struct kr_err *err);
int preview_write(struct preview_output *o, const void *png, size_t size, struct kr_err *err);
void preview_close(struct preview_output *o);

void picture_close(struct picture_output *o); /* removes what is unfinished */

#endif
