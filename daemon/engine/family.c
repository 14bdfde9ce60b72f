/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/engine/family.h"

#include <string.h>

const struct family *family_find(const char *architecture, struct kr_err *err)
{
    if (strcmp(architecture, krea2.architecture) == 0)
        return &krea2;
    if (strcmp(architecture, "z-image") == 0)
        kr_fail(err, KR_BAD_CONFIG,
                "architecture z-image is not supported yet; this version runs krea2");
    else
        kr_fail(err, KR_BAD_CONFIG, "there is no architecture %.60s; this version runs krea2",
                architecture);
    return NULL;
}
