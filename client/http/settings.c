/* SPDX-License-Identifier: Apache-2.0 */
#include "client/http/settings.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/utf8.h"

static const char *const levels[] = {"error", "warn", "info", "debug", NULL};

#define AT(member) offsetof(struct settings, member)
#define BOTH       (SETTING_ARGV | SETTING_FILE)

/* name, type, places, value name, min, max, choices, default, help, offset */
const struct setting http_settings[SETTINGS] = {
    [H_CONFIG] = {"config", SETTING_PATH, SETTING_ARGV, "FILE", 0, 0, NULL, NULL,
                  "settings; default: $XDG_CONFIG_HOME/kread/kread.ini, /etc/kread/kread.ini",
                  AT(config)},
    [H_SOCKET] = {"socket", SETTING_PATH, SETTING_ARGV, "PATH", 0, 0, NULL, NULL,
                  "the daemon's; default: $KREAD_SOCKET, socket of [kread], "
                  "$XDG_RUNTIME_DIR/kread.sock, /run/kread/kread.sock",
                  AT(socket)},
    [H_LISTEN] = {"listen", SETTING_LIST, BOTH, "ADDRESS:PORT", 0, 0, NULL,
                  "127.0.0.1:1234 [::1]:1234",
                  "where to listen; any address that is not loopback needs token_file", AT(listen)},
    [H_TOKEN_FILE] = {"token_file", SETTING_PATH, BOTH, "FILE", 0, 0, NULL, NULL,
                      "the first line of FILE is what clients must send, as Bearer token or as "
                      "password of Basic; without it nothing is asked",
                      AT(token_file)},
    [H_HOSTS] = {"hosts", SETTING_LIST, BOTH, "NAME", 0, 0, NULL, NULL,
                 "names beside localhost by which browsers may call this server", AT(hosts)},
    [H_CORS] = {"cors", SETTING_LIST, BOTH, "ORIGIN", 0, 0, NULL, NULL,
                "origins whose pages may use this server, such as https://ui.example; * for all; "
                "pages from loopback addresses always may",
                AT(cors)},
    [H_HONOUR_CLIENT_SAMPLING] =
        {"honour_client_sampling", SETTING_BOOL, BOTH, "yes|no", 0, 0, NULL, "no",
         "whether steps and cfg that AUTOMATIC1111 and OpenAI clients send by habit count with a "
         "turbo profile",
         AT(honour_client_sampling)},
    [H_MAX_COUNT] = {"max_count", SETTING_INT, SETTING_FILE, "N", 1, 64, NULL, "8",
                     "most pictures of a request", AT(max_count)},
    [H_MAX_STEPS] = {"max_steps", SETTING_INT, SETTING_FILE, "N", 1, 1000, NULL, "150",
                     "most steps of a request", AT(max_steps)},
    [H_MAX_PIXELS] = {"max_pixels", SETTING_INT, SETTING_FILE, "N", 256, 67108864, NULL, "4194304",
                      "largest width * height of a request", AT(max_pixels)},
    [H_MAX_BODY] = {"max_body", SETTING_INT, SETTING_FILE, "BYTES", 1024, 67108864, NULL, "1048576",
                    "largest body of a request", AT(max_body)},
    [H_MAX_CONNECTIONS] = {"max_connections", SETTING_INT, SETTING_FILE, "N", 8, 16384, NULL, "512",
                           "connections at a time", AT(max_connections)},
    [H_MAX_CONNECTIONS_PER_ADDRESS] = {"max_connections_per_address", SETTING_INT, SETTING_FILE,
                                       "N", 4, 16384, NULL, "256", "of these, from one address",
                                       AT(max_connections_per_address)},
    [H_REQUEST_TIMEOUT] = {"request_timeout", SETTING_INT, SETTING_FILE, "SECONDS", 1, 3600, NULL,
                           "30",
                           "how long a client may take to send a whole request, may take nothing "
                           "of its answer, and may be idle",
                           AT(request_timeout)},
    [H_RENDER_TIMEOUT] = {"render_timeout", SETTING_INT, SETTING_FILE, "SECONDS", 1, 604800, NULL,
                          "3600",
                          "how long a client may wait for its pictures before its job is "
                          "cancelled; jobs of /sdcpp/v1 have no limit",
                          AT(render_timeout)},
    [H_LOG_LEVEL] = {"log_level", SETTING_CHOICE, BOTH, "LEVEL", 0, 0, levels, "info",
                     "how much is logged; never a prompt, at debug each request", AT(log_level)},
    [H_CHECK_CONFIG] = {"check_config", SETTING_FLAG, SETTING_ARGV, NULL, 0, 0, NULL, NULL,
                        "check all settings, print the effective ones and exit", AT(check_config)},
    [H_VERSION] = {"version", SETTING_FLAG, SETTING_ARGV, NULL, 0, 0, NULL, NULL,
                   "print the version and exit", AT(version)},
    [H_HELP] = {"help", SETTING_FLAG, SETTING_ARGV, NULL, 0, 0, NULL, NULL, "print this and exit",
                AT(help)},
};

static bool is_text(const struct setting *row)
{
    return row->type == SETTING_TEXT || row->type == SETTING_PATH || row->type == SETTING_LIST;
}

static char **text_at(const struct setting *row, struct settings *s)
{
    return (char **)((char *)s + row->offset);
}

static int64_t *number_at(const struct setting *row, struct settings *s)
{
    return (int64_t *)((char *)s + row->offset);
}

/* ------------------------------------------------------------------------------ one setting --- */

static int set_int(const struct setting *row, struct settings *s, const char *text,
                   struct kr_err *err)
{
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || errno || value < row->min || value > row->max) {
        return kr_fail(err, KR_BAD_CONFIG,
                       "%s is \"%.80s\", want a whole number from %" PRId64 " to %" PRId64,
                       row->name, text, row->min, row->max);
    }
    *number_at(row, s) = value;
    return 0;
}

static int set_word(const struct setting *row, struct settings *s, const char *const *words,
                    const char *want, const char *text, struct kr_err *err)
{
    for (int i = 0; words[i] != NULL; i++) {
        if (strcmp(words[i], text) == 0) {
            *number_at(row, s) = row->type == SETTING_BOOL ? i & 1 : i;
            return 0;
        }
    }
    return kr_fail(err, KR_BAD_CONFIG, "%s is \"%.80s\", want %s", row->name, text, want);
}

static int set_text(const struct setting *row, struct settings *s, const char *text,
                    const char *folder, struct kr_err *err)
{
    char **slot = text_at(row, s), *value;
    bool more = row->type == SETTING_LIST && *slot != NULL;
    bool relative = row->type == SETTING_PATH && *text != '/' && folder != NULL;
    if (*text == 0) {
        return kr_fail(err, KR_BAD_CONFIG, "%s is empty, give it a value or leave it out",
                       row->name);
    }
    int n = more       ? asprintf(&value, "%s %s", *slot, text)
            : relative ? asprintf(&value, "%s/%s", folder, text)
                       : asprintf(&value, "%s", text);
    if (n < 0) {
        return kr_fail(err, KR_NO_MEMORY, "no memory for the settings");
    }
    free(*slot);
    *slot = value;
    return 0;
}

int settings_set(struct settings *s, enum setting_id id, const char *text, const char *folder,
                 struct kr_err *err)
{
    static const char *const truths[] = {"no", "yes", "false", "true", "off", "on", "0", "1", NULL};
    const struct setting *row = &http_settings[id];
    int rc = 0;
    if (is_text(row)) {
        rc = set_text(row, s, text, folder, err);
    } else if (row->type == SETTING_INT) {
        rc = set_int(row, s, text, err);
    } else if (row->type == SETTING_BOOL) {
        rc = set_word(row, s, truths, "yes or no", text, err);
    } else if (row->type == SETTING_CHOICE) {
        rc = set_word(row, s, row->choices, "error, warn, info or debug", text, err);
    } else {
        *number_at(row, s) = 1;
    }
    s->set |= UINT64_C(1) << id;
    return rc;
}

/* ------------------------------------------------------------------------------ command line ---
 */

static bool is_named(const struct setting *row, const char *word, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        if (row->name[i] != (word[i] == '-' ? '_' : word[i]) || word[i] == '_') {
            return false;
        }
    }
    return row->name[length] == 0;
}

static int find(const char *word, size_t length)
{
    int id = 0;
    while (id < SETTINGS && !((http_settings[id].places & SETTING_ARGV) &&
                              is_named(&http_settings[id], word, length))) {
        id++;
    }
    return id;
}

/* One argument and, where it takes one, its value; the number of arguments used or -1. */
static int take(char **arg, const char *folder, struct settings *s, struct kr_err *err)
{
    const char *word = strcmp(arg[0], "-h") == 0 ? "--help" : arg[0];
    if (strncmp(word, "--", 2) != 0 || word[2] == 0) {
        return kr_fail(err, KR_BAD_CONFIG, "\"%.80s\" is no option, see kread-http --help", arg[0]);
    }
    size_t length = strcspn(word + 2, "=");
    int id = find(word + 2, length), used = 1;
    const char *value = word[2 + length] ? word + 2 + length + 1 : NULL;
    if (id == SETTINGS) {
        return kr_fail(err, KR_BAD_CONFIG, "unknown option %.80s, see kread-http --help", arg[0]);
    }
    const struct setting *row = &http_settings[id];
    if (row->type == SETTING_FLAG && value != NULL) {
        return kr_fail(err, KR_BAD_CONFIG, "--%.*s takes no value", (int)length, word + 2);
    }
    if (row->type != SETTING_FLAG && value == NULL) {
        value = arg[1];
        used = 2;
        if (value == NULL) {
            return kr_fail(err, KR_BAD_CONFIG, "%s needs a value: %s %s", word, word,
                           row->value_name);
        }
    }
    if (value != NULL && !kr_utf8_valid(value, strlen(value))) {
        return kr_fail(err, KR_BAD_CONFIG, "the value of --%.*s is not UTF-8", (int)length,
                       word + 2);
    }
    return settings_set(s, (enum setting_id)id, value ? value : "", folder, err) == 0 ? used : -1;
}

/* The file that was named, else the user's own, else the machine's; *path stays NULL where there is
 * none. The caller frees. */
static int find_file(const char *named, char **path, struct kr_err *err)
{
    static const char machine_file[] = "/etc/kread/kread.ini";
    const char *xdg = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    const struct passwd *pw = home && *home ? NULL : getpwuid(geteuid());
    home = home && *home ? home : pw ? pw->pw_dir : "/";
    int n = named                ? asprintf(path, "%s", named)
            : xdg && *xdg == '/' ? asprintf(path, "%s/kread/kread.ini", xdg)
                                 : asprintf(path, "%s/.config/kread/kread.ini", home);
    if (n >= 0 && !named && access(*path, F_OK) != 0 && (errno == ENOENT || errno == ENOTDIR)) {
        free(*path);
        *path = NULL;
        n = access(machine_file, F_OK) == 0 ? asprintf(path, "%s", machine_file) : 0;
    }
    if (n < 0) {
        *path = NULL;
        return kr_fail(err, KR_NO_MEMORY, "no memory for the settings");
    }
    return 0;
}

static int fill_in(struct settings *s, struct kr_err *err)
{
    uint64_t given = s->set;
    for (int id = 0; id < SETTINGS; id++) {
        const char *fallback = http_settings[id].fallback;
        if (fallback != NULL && !settings_has(s, (enum setting_id)id) &&
            settings_set(s, (enum setting_id)id, fallback, NULL, err) != 0) {
            return -1;
        }
    }
    s->set = given;
    return 0;
}

int settings_read(int argc, char **argv, struct settings *s, bool *usage, struct kr_err *err)
{
    char folder[4096];
    *usage = true;
    if (getcwd(folder, sizeof folder) == NULL) {
        return kr_fail(err, KR_IO, "cannot tell the current folder: %s", strerror(errno));
    }
    for (int i = 1; i < argc;) {
        int used = take(argv + i, folder, s, err);
        if (used < 0) {
            return -1;
        }
        i += used;
    }
    *usage = false;
    if (s->help || s->version) {
        return 0;
    }
    char *path;
    int rc = find_file(s->config, &path, err);
    if (path != NULL) {
        rc = settings_load(path, s, err);
    }
    free(path);
    return rc == 0 ? fill_in(s, err) : -1;
}

void settings_fini(struct settings *s)
{
    for (int id = 0; id < SETTINGS; id++) {
        if (is_text(&http_settings[id])) {
            free(*text_at(&http_settings[id], s));
        }
    }
    memset(s, 0, sizeof *s);
}

/* ------------------------------------------------------------------------------ showing them ---
 */

enum { COLUMN = 30, WIDTH = 100 };

static void print_wrapped(FILE *out, const char *text)
{
    size_t column = COLUMN;
    while (*text) {
        size_t word = strcspn(text, " ");
        if (column + word > WIDTH && column > COLUMN) {
            fprintf(out, "\n%*s", COLUMN, "");
            column = COLUMN;
        }
        fprintf(out, "%s%.*s", column > COLUMN ? " " : "", (int)word, text);
        column += word + 1;
        text += word + strspn(text + word, " ");
    }
    fputc('\n', out);
}

static void print_setting(FILE *out, const struct setting *row, enum setting_place place)
{
    char left[80], help[400];
    size_t n =
        (size_t)snprintf(left, sizeof left, "  %s%s", place == SETTING_ARGV ? "--" : "", row->name);
    for (size_t i = 4; place == SETTING_ARGV && i < n; i++) {
        left[i] = left[i] == '_' ? '-' : left[i];
    }
    if (place == SETTING_ARGV && row->value_name != NULL) {
        snprintf(left + n, sizeof left - n, " %s", row->value_name);
    }
    fprintf(out, strlen(left) + 1 > COLUMN ? "%s\n%*s" : "%s%*s", left,
            (int)(strlen(left) + 1 > COLUMN ? COLUMN : COLUMN - strlen(left)), "");
    snprintf(help, sizeof help, "%s%s%s%s", row->help, row->fallback ? " (default: " : "",
             row->fallback ? row->fallback : "", row->fallback ? ")" : "");
    print_wrapped(out, help);
}

void settings_help(FILE *out)
{
    fputs("kread-http serves a web page and the HTTP dialects of stable-diffusion.cpp,\n"
          "AUTOMATIC1111 and OpenAI clients, and makes the pictures with the daemon kread.\n\n"
          "  kread-http [options]\n\n",
          out);
    for (int id = 0; id < SETTINGS; id++) {
        if (http_settings[id].places & SETTING_ARGV) {
            print_setting(out, &http_settings[id], SETTING_ARGV);
        }
    }
    fputs(
        "\n--listen, --hosts and --cors may be given more than once. The same names with '_' stand "
        "in\nkread.ini, section [http], and only there:\n",
        out);
    for (int id = 0; id < SETTINGS; id++) {
        if (http_settings[id].places == SETTING_FILE) {
            print_setting(out, &http_settings[id], SETTING_FILE);
        }
    }
    fputs("\nExit: 0 stopped cleanly, 1 could not start, 2 wrong usage\n", out);
}

void settings_print(const struct settings *s, FILE *out)
{
    struct settings copy = *s; /* borrows the texts */
    fputs("[http]\n", out);
    for (int id = 0; id < SETTINGS; id++) {
        const struct setting *row = &http_settings[id];
        if (!(row->places & SETTING_FILE)) {
            continue;
        }
        if (is_text(row)) {
            const char *text = *text_at(row, &copy);
            fprintf(out, "%s%s = %s\n", text ? "" : ";", row->name, text ? text : "");
        } else if (row->type == SETTING_CHOICE) {
            fprintf(out, "%s = %s\n", row->name, row->choices[*number_at(row, &copy)]);
        } else if (row->type == SETTING_BOOL) {
            fprintf(out, "%s = %s\n", row->name, *number_at(row, &copy) ? "yes" : "no");
        } else {
            fprintf(out, "%s = %" PRId64 "\n", row->name, *number_at(row, &copy));
        }
    }
}
