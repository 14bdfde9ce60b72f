/* SPDX-License-Identifier: Apache-2.0
 *
 * The line is drawn with a carriage return and blanks only, so it works on every terminal. Between
 * two reports a step may take long; the time left then runs on by our own clock.
 */
#include "client/kreactl/progress.h"

#include <inttypes.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "client/client.h"
#include "client/kreactl/text.h"

enum { BAR = 24 };

void progress_init(struct progress *p, FILE *out, bool wanted)
{
    *p = (struct progress){.out = wanted && isatty(fileno(out)) ? out : NULL, .remaining = -1};
}

int progress_tick(const struct progress *p)
{
    return p->out ? PROGRESS_TICK : -1;
}

void progress_report(struct progress *p, const struct kr_value *map)
{
    p->heard = client_now();
    map_text(map, "state", p->state, sizeof p->state);
    map_text(map, "stage", p->stage, sizeof p->stage);
    p->job = map_int(map, "job", 0);
    p->position = map_int(map, "position", 0);
    p->step = map_int(map, "step", 0);
    p->steps = map_int(map, "steps", 0);
    p->image = map_int(map, "image", 0);
    p->count = map_int(map, "count", 1);
    p->remaining = map_real(map, "remaining", -1);
    p->wait = map_real(map, "wait", -1);
    progress_draw(p);
}

static int columns_of(FILE *out)
{
    struct winsize size;
    return ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1 : 79;
}

static void queued_text(const struct progress *p, char *buf, size_t size)
{
    char duration[32], when[64] = "";
    if (p->wait >= 0) {
        text_duration(duration, sizeof duration,
                      p->wait - (double)(client_now() - p->heard) / 1000);
        snprintf(when, sizeof when, ", it starts in about %s", duration);
    }
    if (p->position > 0) {
        snprintf(buf, size, "waiting: %" PRId64 " job%s before this one%s", p->position,
                 p->position == 1 ? "" : "s", when);
    } else {
        snprintf(buf, size, "waiting to start");
    }
}

static void running_text(const struct progress *p, char *buf, size_t size)
{
    char bar[BAR + 1], left[48] = "", duration[32], which[64] = "", steps[64] = "";
    bool known = p->steps > 0 && p->step >= 0 && p->step <= p->steps;
    int full = known ? (int)((double)p->step / (double)p->steps * BAR) : 0;
    for (int i = 0; i < BAR; i++) {
        bar[i] = i < full ? '#' : '-';
    }
    bar[BAR] = 0;
    if (p->remaining >= 0) {
        text_duration(duration, sizeof duration,
                      p->remaining - (double)(client_now() - p->heard) / 1000);
        snprintf(left, sizeof left, ", %s left", duration);
    }
    if (p->count > 1) {
        snprintf(which, sizeof which, "picture %" PRId64 " of %" PRId64 ", ", p->image + 1,
                 p->count);
    }
    if (known && p->steps > 1) {
        snprintf(steps, sizeof steps, " %" PRId64 "/%" PRId64, p->step, p->steps);
    }
    snprintf(buf, size, "[%s] %s%s%s%s", bar, which, p->stage, steps, left);
}

void progress_draw(struct progress *p)
{
    char text[256], shown[512];
    if (p->out == NULL || p->state[0] == 0) {
        return;
    }
    if (strcmp(p->state, "queued") == 0) {
        queued_text(p, text, sizeof text);
    } else {
        running_text(p, text, sizeof text);
    }
    text_cut(shown, sizeof shown, text, strlen(text), columns_of(p->out));
    int length = (int)strlen(shown);
    fprintf(p->out, "\r%s%*s", shown, p->shown > length ? p->shown - length : 0, "");
    p->shown = length;
    fflush(p->out);
}

void progress_clear(struct progress *p)
{
    if (p->out != NULL && p->shown > 0) {
        fprintf(p->out, "\r%*s\r", p->shown, "");
        fflush(p->out);
        p->shown = 0;
    }
}
