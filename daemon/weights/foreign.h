/* SPDX-License-Identifier: Apache-2.0
 *
 * Recognises what people also have on their disks: other containers, other layouts of tensor names,
 * other quantizations. Only for messages. Private to this room.
 */
#ifndef KR_FOREIGN_H
#define KR_FOREIGN_H

#include <stddef.h>

/* What a file that starts with head[size] is instead of safetensors, as the rest of a sentence
 * ("is a GGUF file; ..."); NULL: unknown. */
const char *foreign_container(const unsigned char *head, size_t size);

/* What a name that starts so tells about its file ("its tensors have diffusers' names; ..."), or
 * NULL. */
const char *foreign_layout(const char *tensor);

/* The quantization that stores SUFFIX beside a layer ("blocks.0.attn.wq" + SUFFIX), or NULL. */
const char *foreign_sibling(size_t i, const char **suffix);

#endif
