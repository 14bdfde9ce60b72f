/* SPDX-License-Identifier: Apache-2.0
 *
 * kread.ini is the daemon's file too. Here only [http] is checked; what stands in the other
 * sections is for the daemon to judge. Nothing is applied before the whole file was read.
 */
#include "client/http/settings.h"

#include <stdlib.h>
#include <string.h>

#include "proto/settings/ini.h"

static const char *const levels[] = {"error", "warn", "info", "debug", NULL};

#define AT(member) offsetof(struct http_settings, member)
#define BOTH       (OPTION_ARGV | OPTION_FILE)

/* name, type, places, value name, min, max, choices, default, help, offset */
static const struct option rows[HTTP_SETTINGS] = {
    [H_CONFIG] = {"config", OPTION_PATH, OPTION_ARGV, "FILE", 0, 0, NULL, NULL,
                  "settings; default: $XDG_CONFIG_HOME/kread/kread.ini, /etc/kread/kread.ini",
                  AT(config)},
    [H_SOCKET] = {"socket", OPTION_PATH, OPTION_ARGV, "PATH", 0, 0, NULL, NULL,
                  "the daemon's; default: $KREAD_SOCKET, socket of [kread], "
                  "$XDG_RUNTIME_DIR/kread.sock, /run/kread/kread.sock",
                  AT(socket)},
    [H_LISTEN] = {"listen", OPTION_LIST, BOTH, "ADDRESS:PORT", 0, 0, NULL,
                  "127.0.0.1:1234 [::1]:1234",
                  "where to listen; any address that is not loopback needs token_file", AT(listen)},
    [H_TOKEN_FILE] = {"token_file", OPTION_PATH, BOTH, "FILE", 0, 0, NULL, NULL,
                      "the first line of FILE is what clients must send, as Bearer token or as "
                      "password of Basic; without it nothing is asked",
                      AT(token_file)},
    [H_HOSTS] = {"hosts", OPTION_LIST, BOTH, "NAME", 0, 0, NULL, NULL,
                 "names beside localhost by which browsers may call this server", AT(hosts)},
    [H_CORS] = {"cors", OPTION_LIST, BOTH, "ORIGIN", 0, 0, NULL, NULL,
                "origins whose pages may use this server, such as https://ui.example; * for all; "
                "pages from loopback addresses always may",
                AT(cors)},
    [H_HONOUR_CLIENT_SAMPLING] =
        {"honour_client_sampling", OPTION_BOOL, BOTH, "yes|no", 0, 0, NULL, "no",
         "whether steps and cfg that AUTOMATIC1111 and OpenAI clients send by habit count with a "
         "turbo profile",
         AT(honour_client_sampling)},
    [H_MAX_COUNT] = {"max_count", OPTION_INT, OPTION_FILE, "N", 1, 64, NULL, "8",
                     "most pictures of a request", AT(max_count)},
    [H_MAX_STEPS] = {"max_steps", OPTION_INT, OPTION_FILE, "N", 1, 1000, NULL, "150",
                     "most steps of a request", AT(max_steps)},
    [H_MAX_PIXELS] = {"max_pixels", OPTION_INT, OPTION_FILE, "N", 256, 67108864, NULL, "4194304",
                      "largest width * height of a request", AT(max_pixels)},
    [H_MAX_BODY] = {"max_body", OPTION_INT, OPTION_FILE, "BYTES", 1024, 67108864, NULL, "1048576",
                    "largest body of a request", AT(max_body)},
    [H_MAX_CONNECTIONS] = {"max_connections", OPTION_INT, OPTION_FILE, "N", 8, 16384, NULL, "512",
                           "connections at a time", AT(max_connections)},
    [H_MAX_CONNECTIONS_PER_ADDRESS] = {"max_connections_per_address", OPTION_INT, OPTION_FILE, "N",
                                       4, 16384, NULL, "256", "of these, from one address",
                                       AT(max_connections_per_address)},
    [H_REQUEST_TIMEOUT] = {"request_timeout", OPTION_INT, OPTION_FILE, "SECONDS", 1, 3600, NULL,
                           "30",
                           "how long a client may take to send a whole request, may take nothing "
                           "of its answer, and may be idle",
                           AT(request_timeout)},
    [H_RENDER_TIMEOUT] = {"render_timeout", OPTION_INT, OPTION_FILE, "SECONDS", 1, 604800, NULL,
                          "3600",
                          "how long a client may wait for its pictures before its job is "
                          "cancelled; jobs of /sdcpp/v1 have no limit",
                          AT(render_timeout)},
    [H_LOG_LEVEL] = {"log_level", OPTION_CHOICE, BOTH, "LEVEL", 0, 0, levels, "info",
                     "how much is logged; never a prompt, at debug each request", AT(log_level)},
    [H_CHECK_CONFIG] = {"check_config", OPTION_FLAG, OPTION_ARGV, NULL, 0, 0, NULL, NULL,
                        "check all settings, print the effective ones and exit", AT(check_config)},
    [H_VERSION] = {"version", OPTION_FLAG, OPTION_ARGV, NULL, 0, 0, NULL, NULL,
                   "print the version and exit", AT(version)},
    [H_HELP] = {"help", OPTION_FLAG, OPTION_ARGV, NULL, 0, 0, NULL, NULL, "print this and exit",
                AT(help)},
};

const struct option_table http_options = {rows, HTTP_SETTINGS};

static void read_value(struct ini *ini, const char *name, const char *value)
{
    const struct option *option = option_find(&http_options, name, strlen(name), OPTION_FILE);
    if (strcmp(ini->title, "http") != 0) {
        return;
    }
    if (option != NULL) {
        ini_set(ini, &http_options, option, ini->reader->user, value);
    } else {
        ini_refuse(ini, "unknown name %.60s in [http]", name);
    }
}

static int read_file(const char *named, struct http_settings *s, struct kr_err *err)
{
    const struct ini_reader reader = {.value = read_value, .user = s};
    char *path;
    if (ini_find(named, &path, err) != 0) {
        return -1;
    }
    int rc = path ? ini_read(path, &reader, err) : 0;
    free(path);
    return rc;
}

int http_settings_read(int argc, char **argv, struct http_settings *s, bool *usage,
                       struct kr_err *err)
{
    struct http_settings asked = {0};
    int rc = options_parse(&http_options, "kread-http", argc, argv, &asked, err);
    *usage = rc != 0 && err->code == KR_BAD_CONFIG;
    if (rc == 0 && !asked.help && !asked.version) {
        rc = read_file(asked.config, s, err);
    }
    if (rc == 0) {
        options_merge(&http_options, s, &asked);
        rc = options_defaults(&http_options, s, err);
    }
    options_fini(&http_options, &asked);
    return rc;
}

/* ------------------------------------------------------------------------------ showing them ---
 */

void http_settings_help(FILE *out)
{
    fputs("kread-http serves a web page and the HTTP dialects of stable-diffusion.cpp,\n"
          "AUTOMATIC1111 and OpenAI clients, and makes the pictures with the daemon kread.\n\n"
          "  kread-http [options]\n\n",
          out);
    for (int id = 0; id < HTTP_SETTINGS; id++) {
        if (rows[id].places & OPTION_ARGV) {
            option_help(out, &rows[id], OPTION_ARGV);
        }
    }
    fputs(
        "\n--listen, --hosts and --cors may be given more than once. The same names with '_' stand "
        "in\nkread.ini, section [http], and only there:\n",
        out);
    for (int id = 0; id < HTTP_SETTINGS; id++) {
        if (rows[id].places == OPTION_FILE) {
            option_help(out, &rows[id], OPTION_FILE);
        }
    }
    fputs("\nExit: 0 stopped cleanly, 1 could not start, 2 wrong usage\n", out);
}

void http_settings_print(const struct http_settings *s, FILE *out)
{
    fputs("[http]\n", out);
    for (int id = 0; id < HTTP_SETTINGS; id++) {
        if (rows[id].places & OPTION_FILE) {
            option_print(out, &rows[id], s);
        }
    }
}
