/* SPDX-License-Identifier: Apache-2.0
 *
 * A handler can do little more than write a byte to a pipe; every wait of the program polls the
 * other end, so no signal is lost between a check and a wait. The handler is installed without
 * SA_RESTART: a read or write that blocks returns, and its caller looks at the pipe.
 */
#include "client/signals.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

static int ends[2] = {-1, -1};

static void on_signal(int number)
{
    int saved = errno;
    char byte = (char)number;
    ssize_t n = write(ends[1], &byte, 1); /* a full pipe wakes as well */
    (void)n;
    errno = saved;
}

int signals_open(int *wake, struct kr_err *err)
{
    static const int caught[] = {SIGINT, SIGTERM, SIGHUP}, ignored[] = {SIGPIPE, SIGXFSZ};
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
        return kr_fail(err, KR_IO, "cannot make a pipe: %s", strerror(errno));
    }
    struct sigaction action = {.sa_handler = on_signal}, before;
    for (int i = 0; i < 3; i++) {
        if (sigaction(caught[i], NULL, &before) == 0 && before.sa_handler == SIG_IGN) {
            continue; /* nohup, or a shell's background job */
        }
        sigaction(caught[i], &action, NULL);
    }
    action.sa_handler = SIG_IGN;
    for (int i = 0; i < 2; i++) {
        sigaction(ignored[i], &action, NULL);
    }
    *wake = ends[0];
    return 0;
}

void signals_clear(void)
{
    char bytes[64];
    while (read(ends[0], bytes, sizeof bytes) > 0) {
    }
}
