/* SPDX-License-Identifier: Apache-2.0
 *
 * What a request is answered with: a status, headers and a body made of pieces. Pictures stay as
 * they came from the daemon; where a dialect wants base64 it is made while the body is sent, so
 * that an answer with eight pictures takes no more memory than the pictures.
 */
#ifndef KR_HTTP_ANSWER_H
#define KR_HTTP_ANSWER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>
#include <microhttpd.h>

struct answer;

/* The bytes of a picture, owned by whoever has the struct. */
struct picture {
    void *data;
    size_t size;
};

struct answer *answer_new(unsigned status, const char *type); /* NULL: no memory */
void answer_free(struct answer *answer);                      /* NULL is fine */

/* Pieces of the body. Each takes NULL for an answer that could not be made, and remembers failure.
 */
void answer_text(struct answer *answer, const char *text); /* of the program: not copied */
void answer_bytes(struct answer *answer, const char *data, size_t size); /* likewise */
void answer_take(struct answer *answer, char *text);   /* frees it in the end; NULL: failed */
void answer_json(struct answer *answer, json_t *json); /* takes the reference; NULL: failed */
void answer_raw(struct answer *answer, struct picture *picture);    /* takes the bytes */
void answer_base64(struct answer *answer, struct picture *picture); /* takes the bytes */

void answer_header(struct answer *answer, const char *name, const char *value); /* copied */

unsigned answer_status(const struct answer *answer);
size_t answer_size(const struct answer *answer); /* of the body */

/* Hands the answer over to libmicrohttpd. NULL: there is no memory for it. Frees `answer`. *given
 * grows by the bytes of the body that are taken from it while they are sent; NULL: nobody asks. */
struct MHD_Response *answer_response(struct answer *answer, uint64_t *given);

/* A whole answer: a JSON value, whose reference it takes. */
struct answer *answer_value(unsigned status, json_t *json);

#endif
