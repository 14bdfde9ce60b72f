/* SPDX-License-Identifier: Apache-2.0
 *
 * The order of checks: OPTIONS is answered to anybody, because clients ping with it before they
 * know a password; then Host, Origin, token, and only then whether there is such a path.
 */
#include "client/http/routes.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "client/http/guard.h"
#include "client/http/handlers.h"

#define GET(path, family, handle)                                                                  \
    {                                                                                              \
        path, ROUTE_GET, family, false, handle, NULL                                               \
    }
#define POST(path, family, handle)                                                                 \
    {                                                                                              \
        path, ROUTE_POST, family, false, handle, NULL                                              \
    }
#define OPEN(path, handle)                                                                         \
    {                                                                                              \
        path, ROUTE_GET, FAMILY_KREAD, true, handle, NULL                                          \
    }
#define TEXT(path, family, text)                                                                   \
    {                                                                                              \
        path, ROUTE_GET, family, false, handle_text, text                                          \
    }
#define NOTHING(path)                                                                              \
    {                                                                                              \
        path, ROUTE_POST, FAMILY_SDAPI, false, handle_text, "null"                                 \
    }
#define UNSUPPORTED(path, family, text)                                                            \
    {                                                                                              \
        path, ROUTE_POST, family, false, handle_unsupported, text                                  \
    }

static const char no_images[] = "kread makes pictures from text only; use txt2img";

static const struct route routes[] = {
    OPEN("/", handle_page),
    OPEN("/health", handle_health),
    GET("/metrics", FAMILY_KREAD, handle_metrics),
    GET("/kread/v1/status", FAMILY_KREAD, handle_status),
    GET("/kread/v1/jobs/*/preview.png", FAMILY_KREAD, handle_job_preview),
    GET("/kread/v1/jobs/*/images/*", FAMILY_KREAD, handle_job_image),

    GET("/v1/models", FAMILY_OPENAI, handle_models),
    POST("/v1/images/generations", FAMILY_OPENAI, handle_generations),
    UNSUPPORTED("/v1/images/edits", FAMILY_OPENAI,
                "kread makes pictures from text only; use /v1/images/generations"),
    UNSUPPORTED("/v1/images/variations", FAMILY_OPENAI,
                "kread makes pictures from text only; use /v1/images/generations"),

    GET("/sdcpp/v1/capabilities", FAMILY_SDCPP, handle_capabilities),
    POST("/sdcpp/v1/img_gen", FAMILY_SDCPP, handle_img_gen),
    POST("/sdcpp/v1/vid_gen", FAMILY_SDCPP, handle_vid_gen),
    GET("/sdcpp/v1/jobs/*", FAMILY_SDCPP, handle_job),
    POST("/sdcpp/v1/jobs/*/cancel", FAMILY_SDCPP, handle_job_cancel),

    POST("/sdapi/v1/txt2img", FAMILY_SDAPI, handle_txt2img),
    UNSUPPORTED("/sdapi/v1/img2img", FAMILY_SDAPI, no_images),
    UNSUPPORTED("/sdapi/v1/extra-single-image", FAMILY_SDAPI, no_images),
    UNSUPPORTED("/sdapi/v1/extra-batch-images", FAMILY_SDAPI, no_images),
    UNSUPPORTED("/sdapi/v1/interrogate", FAMILY_SDAPI, no_images),
    GET("/sdapi/v1/progress", FAMILY_SDAPI, handle_progress),
    POST("/sdapi/v1/interrupt", FAMILY_SDAPI, handle_interrupt),
    GET("/sdapi/v1/options", FAMILY_SDAPI, handle_options),
    POST("/sdapi/v1/options", FAMILY_SDAPI, handle_set_options),
    GET("/sdapi/v1/sd-models", FAMILY_SDAPI, handle_sd_models),
    POST("/sdapi/v1/png-info", FAMILY_SDAPI, handle_png_info),
    GET("/sdapi/v1/memory", FAMILY_SDAPI, handle_memory),
    GET("/sdapi/v1/cmd-flags", FAMILY_SDAPI, handle_cmd_flags),
    TEXT("/sdapi/v1/samplers", FAMILY_SDAPI,
         "[{\"name\":\"Euler\",\"aliases\":[\"euler\",\"k_euler\"],\"options\":{}},"
         "{\"name\":\"default\",\"aliases\":[\"default\"],\"options\":{}}]"),
    TEXT("/sdapi/v1/schedulers", FAMILY_SDAPI,
         "[{\"name\":\"simple\",\"label\":\"Simple\",\"aliases\":null,\"default_rho\":-1,"
         "\"need_inner_model\":false},{\"name\":\"default\",\"label\":\"default\",\"aliases\":null,"
         "\"default_rho\":-1,\"need_inner_model\":false}]"),
    TEXT("/sdapi/v1/upscalers", FAMILY_SDAPI,
         "[{\"name\":\"None\",\"model_name\":null,\"model_path\":null,\"model_url\":null,"
         "\"scale\":4}]"),
    TEXT("/sdapi/v1/latent-upscale-modes", FAMILY_SDAPI, "[]"),
    TEXT("/sdapi/v1/sd-vae", FAMILY_SDAPI, "[]"),
    TEXT("/sdapi/v1/sd-modules", FAMILY_SDAPI, "[]"),
    TEXT("/sdapi/v1/loras", FAMILY_SDAPI, "[]"),
    TEXT("/sdapi/v1/hypernetworks", FAMILY_SDAPI, "[]"),
    TEXT("/sdapi/v1/prompt-styles", FAMILY_SDAPI, "[]"),
    TEXT("/sdapi/v1/face-restorers", FAMILY_SDAPI, "[]"),
    TEXT("/sdapi/v1/realesrgan-models", FAMILY_SDAPI, "[]"),
    TEXT("/sdapi/v1/script-info", FAMILY_SDAPI, "[]"),
    TEXT("/sdapi/v1/extensions", FAMILY_SDAPI, "[]"),
    TEXT("/sdapi/v1/scripts", FAMILY_SDAPI, "{\"txt2img\":[],\"img2img\":[]}"),
    TEXT("/sdapi/v1/embeddings", FAMILY_SDAPI, "{\"loaded\":{},\"skipped\":{}}"),
    NOTHING("/sdapi/v1/skip"),
    NOTHING("/sdapi/v1/refresh-checkpoints"),
    NOTHING("/sdapi/v1/refresh-vae"),
    NOTHING("/sdapi/v1/refresh-loras"),
    NOTHING("/sdapi/v1/refresh-embeddings"),
    NOTHING("/sdapi/v1/unload-checkpoint"),
    NOTHING("/sdapi/v1/reload-checkpoint"),

    OPEN("/*", handle_page), /* the page's other files; last */
};

enum { ROUTES = sizeof routes / sizeof *routes, MAX_PATH = 200 };

/* ---------------------------------------------------------------------------------- matching ---
 */

/* What proxies are sent, "http://host/path", is the same as "/path". */
static const char *without_origin(const char *url)
{
    size_t scheme = strncasecmp(url, "http://", 7) == 0    ? 7
                    : strncasecmp(url, "https://", 8) == 0 ? 8
                                                           : 0;
    url += scheme ? scheme + strcspn(url + scheme, "/") : 0;
    return *url ? url : "/";
}

/* Slashes that repeat count as one, and one at the end as none: some clients join carelessly. */
static bool tidy(const char *url, char path[MAX_PATH])
{
    size_t n = 0;
    for (; *url; url++) {
        if (*url == '/' && url[1] == '/') {
            continue;
        }
        if (n == MAX_PATH - 1) {
            path[n] = 0;
            return false;
        }
        path[n++] = *url;
    }
    n -= n > 1 && path[n - 1] == '/';
    path[n] = 0;
    return true;
}

static size_t part(const char *s)
{
    size_t n = 0;
    while (isalnum((unsigned char)s[n]) || (s[n] && strchr("_-.", s[n]))) {
        n++;
    }
    return n;
}

/* Fills in what stands for '*'. */
static bool matches(const char *pattern, const char *path, struct request *r)
{
    char *into = r->id;
    size_t size = sizeof r->id;
    r->id[0] = r->last[0] = 0;
    for (; *pattern && *pattern != '*' ? *pattern == *path : *pattern; pattern++) {
        if (*pattern != '*') {
            path++;
            continue;
        }
        size_t n = part(path);
        if (n == 0 || n >= size) {
            return false;
        }
        memcpy(into, path, n);
        into[n] = 0;
        path += n;
        into = r->last;
        size = sizeof r->last;
    }
    return *pattern == 0 && *path == 0;
}

static enum family family_of(const char *path)
{
    return strncmp(path, "/sdapi/", 7) == 0   ? FAMILY_SDAPI
           : strncmp(path, "/sdcpp/", 7) == 0 ? FAMILY_SDCPP
           : strncmp(path, "/v1/", 4) == 0    ? FAMILY_OPENAI
                                              : FAMILY_KREAD;
}

/* The route, or NULL and the methods that its path has. */
static const struct route *find(struct request *r, const char *path, int method, int *methods)
{
    *methods = 0;
    for (size_t i = 0; i < ROUTES; i++) {
        if (matches(routes[i].path, path, r)) {
            if (routes[i].methods & method) {
                return &routes[i];
            }
            *methods |= routes[i].methods;
        }
    }
    return NULL;
}

/* ---------------------------------------------------------------------------------- refusing ---
 */

static void allow(struct answer *answer, int methods)
{
    static const char *const lists[] = {"GET, HEAD, POST, OPTIONS", "GET, HEAD, OPTIONS",
                                        "POST, OPTIONS", "GET, HEAD, POST, OPTIONS"};
    answer_header(answer, MHD_HTTP_HEADER_ALLOW, lists[methods & 3]);
}

static void answer_options(struct request *r, int methods)
{
    struct answer *a = answer_new(MHD_HTTP_NO_CONTENT, "text/plain");
    allow(a, methods);
    request_answer(r, a);
}

static void refuse_token(struct request *r)
{
    struct answer *a = error_answer(
        r->family, MHD_HTTP_UNAUTHORIZED, "unauthorized", NULL,
        "this server wants its token: as Authorization: Bearer, or as the password of Basic");
    answer_header(a, MHD_HTTP_HEADER_WWW_AUTHENTICATE,
                  r->family == FAMILY_SDAPI ? "Basic realm=\"kread\"" : "Bearer realm=\"kread\"");
    request_answer(r, a);
}

/* true: it may not. */
static bool refuse_caller(struct request *r, bool open, int method)
{
    const struct shim *shim = r->shim;
    const char *host = request_header(r, MHD_HTTP_HEADER_HOST);
    if (shim->token == NULL && !guard_host(host, shim->settings.hosts)) {
        request_fail(
            r, MHD_HTTP_FORBIDDEN, "forbidden host",
            "this server does not go by that name; its owner can add it to hosts in [http] "
            "of kread.ini");
        return true;
    }
    if (method != ROUTE_GET && guard_origin(request_header(r, MHD_HTTP_HEADER_ORIGIN), host,
                                            shim->settings.cors) == GUARD_FOREIGN) {
        request_fail(
            r, MHD_HTTP_FORBIDDEN, "forbidden origin",
            "pages of that origin may not use this server; its owner can add it to cors in "
            "[http] of kread.ini");
        return true;
    }
    if (shim->token != NULL && !open &&
        !guard_token(request_header(r, MHD_HTTP_HEADER_AUTHORIZATION), shim->token)) {
        refuse_token(r);
        return true;
    }
    return false;
}

static int method_of(const char *method)
{
    return strcmp(method, MHD_HTTP_METHOD_GET) == 0 || strcmp(method, MHD_HTTP_METHOD_HEAD) == 0
               ? ROUTE_GET
           : strcmp(method, MHD_HTTP_METHOD_POST) == 0 ? ROUTE_POST
                                                       : 0;
}

void routes_find(struct request *r, const char *method, const char *url)
{
    char path[MAX_PATH];
    int methods = 0, number = method_of(method);
    bool good = tidy(without_origin(url), path);
    r->family = family_of(path);
    r->route = good ? find(r, path, number, &methods) : NULL;
    if (strcmp(method, MHD_HTTP_METHOD_OPTIONS) == 0) {
        answer_options(r, methods);
    } else if (refuse_caller(r, r->route != NULL && r->route->open, number)) {
        return;
    } else if (r->route == NULL && methods != 0) {
        struct answer *a = error_answer(r->family, MHD_HTTP_METHOD_NOT_ALLOWED,
                                        "Method Not Allowed", NULL, "Method Not Allowed");
        allow(a, methods);
        request_answer(r, a);
    } else if (r->route == NULL) {
        request_fail(r, MHD_HTTP_NOT_FOUND, "Not Found", "Not Found");
    }
}

void routes_decorate(struct request *r, struct answer *answer)
{
    const char *origin = request_header(r, MHD_HTTP_HEADER_ORIGIN);
    enum guard_origin kind =
        guard_origin(origin, request_header(r, MHD_HTTP_HEADER_HOST), r->shim->settings.cors);
    answer_header(answer, "X-Content-Type-Options", "nosniff");
    answer_header(answer, "Cross-Origin-Resource-Policy", "same-origin");
    if (r->route == NULL || !r->route->open) {
        answer_header(answer, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    }
    if (origin == NULL) {
        return;
    }
    answer_header(answer, MHD_HTTP_HEADER_VARY, "Origin");
    if (kind == GUARD_ALLOWED || kind == GUARD_ANY) {
        answer_header(answer, MHD_HTTP_HEADER_ACCESS_CONTROL_ALLOW_ORIGIN,
                      kind == GUARD_ANY ? "*" : origin);
        answer_header(answer, MHD_HTTP_HEADER_ACCESS_CONTROL_ALLOW_METHODS, "GET, POST, OPTIONS");
        answer_header(answer, MHD_HTTP_HEADER_ACCESS_CONTROL_ALLOW_HEADERS,
                      "Authorization, Content-Type");
        answer_header(answer, "Access-Control-Max-Age", "600");
    }
}
