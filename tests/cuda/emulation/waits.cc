/* SPDX-License-Identifier: Apache-2.0
 *
 * Faults planted while running: each place where something waits (a barrier, __syncwarp, the wait
 * for asynchronous copies, cudaStreamWaitEvent) is remembered when it is first reached, and a test
 * can have one of them do nothing. So the product's own kernels are seen without each of their
 * waits, with no other source.
 */
#include "internal.h"

#include <assert.h>

enum { MAX_WAITS = 256 };

static struct emu_wait waits[MAX_WAITS];
static int count, skipped = -1;

static int find(enum emu_wait_kind kind, const char *file, int line, const void *site)
{
    static int last;
    struct emu_wait *w = &waits[last];
    if (last < count && w->line == line && w->site == site && w->kind == kind && w->file == file)
        return last;
    for (int i = 0; i < count; i++) {
        w = &waits[i];
        if (w->kind == kind && w->line == line && w->site == site &&
            (w->file == file || (file && w->file && !strcmp(w->file, file))))
            return last = i;
    }
    assert(count < MAX_WAITS);
    waits[count] = {kind, file, line, site, 0};
    return last = count++;
}

int wait_skipped(enum emu_wait_kind kind, const char *file, int line, const void *site)
{
    int i = find(kind, file, line, site);
    waits[i].count++;
    return i == skipped;
}

int emu_waits(const struct emu_wait **list)
{
    *list = waits;
    return count;
}

void emu_skip_wait(int index)
{
    skipped = index;
}
