/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/service.h"

#include <inttypes.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
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

/* A newer systemd (Type=notify-reload) tells by the time that this answers its own signal. */
void service_reloading(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    int64_t us = (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
    sd_notifyf(0, "RELOADING=1\nMONOTONIC_USEC=%" PRId64 "\nSTATUS=reloading", us);
}

void service_stopping(void)
{
    sd_notify(0, "STOPPING=1\nSTATUS=stopping");
}

int64_t service_watchdog_limit(void)
{
    uint64_t us;
    return sd_watchdog_enabled(0, &us) > 0 ? (int64_t)(us / 1000) : 0;
}

void service_alive(void)
{
    sd_notify(0, "WATCHDOG=1");
}
