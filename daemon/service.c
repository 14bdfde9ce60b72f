/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/service.h"

#include <string.h>
#include <sys/socket.h>
#include <systemd/sd-daemon.h>

int service_socket(struct kr_err *err)
{
    int count = sd_listen_fds(1);
    if (count < 0) {
        kr_fail(err, KR_BAD_CONFIG, "the sockets that systemd passed cannot be used: %s",
                strerror(-count));
        return SERVICE_WRONG_SOCKET;
    }
    if (count == 0)
        return SERVICE_NO_SOCKET;
    if (count > 1) {
        kr_fail(
            err, KR_BAD_CONFIG,
            "systemd passed %d sockets, kread takes one: keep one ListenStream= in kread.socket",
            count);
        return SERVICE_WRONG_SOCKET;
    }
    if (sd_is_socket_unix(SD_LISTEN_FDS_START, SOCK_STREAM, 1, NULL, 0) <= 0) {
        kr_fail(err, KR_BAD_CONFIG,
                "what systemd passed is no listening Unix stream socket: use ListenStream=/a/path");
        return SERVICE_WRONG_SOCKET;
    }
    return SD_LISTEN_FDS_START;
}

void service_ready(const char *status)
{
    sd_notifyf(0, "READY=1\nSTATUS=%s", status);
}

void service_status(const char *status)
{
    sd_notifyf(0, "STATUS=%s", status);
}

void service_stopping(void)
{
    sd_notify(0, "STOPPING=1\nSTATUS=stopping");
}
