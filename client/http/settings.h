/* SPDX-License-Identifier: Apache-2.0
 *
 * The settings of kread-http: [http] of kread.ini and the command line, which comes before it.
 */
#ifndef KR_HTTP_SETTINGS_H
#define KR_HTTP_SETTINGS_H

#include "proto/settings/option.h"

/* In the order of http_options. */
enum http_setting {
    H_CONFIG,
    H_SOCKET,
    H_LISTEN,
    H_TOKEN_FILE,
    H_HOSTS,
    H_CORS,
    H_HONOUR_CLIENT_SAMPLING,
    H_MAX_COUNT,
    H_MAX_STEPS,
    H_MAX_PIXELS,
    H_MAX_BODY,
    H_MAX_CONNECTIONS,
    H_MAX_CONNECTIONS_PER_ADDRESS,
    H_REQUEST_TIMEOUT,
    H_RENDER_TIMEOUT,
    H_LOG_LEVEL,
    H_CHECK_CONFIG,
    H_VERSION,
    H_HELP,
    HTTP_SETTINGS
};

struct http_settings {
    uint64_t set; /* 1 << enum http_setting: given by file or command line */
    char *config, *socket, *listen, *token_file, *hosts, *cors;
    int64_t honour_client_sampling, max_count, max_steps, max_pixels, max_body;
    int64_t max_connections, max_connections_per_address, request_timeout, render_timeout;
    int64_t log_level, check_config, version, help;
};

extern const struct option_table http_options;

/* Reads the command line, then the file that it names or that is found, and fills in defaults.
 * *s is all zero before. -1: one sentence; *usage says whether the command line was at fault. */
int http_settings_read(int argc, char **argv, struct http_settings *s, bool *usage,
                       struct kr_err *err);

void http_settings_help(FILE *out);
void http_settings_print(const struct http_settings *s, FILE *out); /* as in kread.ini */

#endif
