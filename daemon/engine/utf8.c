/* SPDX-License-Identifier: Apache-2.0
 *
 * Prompts have been checked by the decoder of requests and are valid; file names need not be.
 */
#include "daemon/engine/utf8.h"

uint32_t utf8_next(const char **s)
{
    static const uint32_t least[] = {0, 0x80, 0x800, 0x10000};
    const unsigned char *p = (const unsigned char *)*s;
    int more = p[0] < 0x80 ? 0 : p[0] < 0xc0 ? -1 : p[0] < 0xe0 ? 1 : p[0] < 0xf0 ? 2 : 3;
    uint32_t c = more > 0 ? p[0] & (0x3fu >> more) : p[0];

    *s += 1;
    for (int i = 1; i <= more; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0xfffd;
        c = c << 6 | (p[i] & 0x3f);
    }
    if (more < 0 || p[0] >= 0xf8 || c < least[more] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
        return 0xfffd;
    *s += more;
    return c;
}
