/* SPDX-License-Identifier: Apache-2.0
 *
 * Errors, each in its family's shape. OpenAI's clients start a request again on 408, 409, 429 and
 * 5xx: what would fail again must be another 4xx.
 */
#include <string.h>

#include "client/http/shim.h"

static json_t *openai_error(unsigned status, const char *what, const char *param,
                            const char *sentence)
{
    const char *type = status == MHD_HTTP_UNAUTHORIZED        ? "authentication_error"
                       : status == MHD_HTTP_FORBIDDEN         ? "permission_error"
                       : status == MHD_HTTP_TOO_MANY_REQUESTS ? "rate_limit_error"
                       : status >= 500                        ? "server_error"
                                                              : "invalid_request_error";
    char code[64];
    snprintf(code, sizeof code, "%s", what);
    for (char *c = code; *c; c++) {
        *c = *c == ' ' ? '_' : *c;
    }
    return json_pack("{s:{s:s, s:s, s:s?, s:s}}", "error", "message", sentence, "type", type,
                     "param", param, "code", code);
}

struct answer *error_answer(enum family family, unsigned status, const char *what,
                            const char *param, const char *sentence)
{
    json_t *json = family == FAMILY_OPENAI ? openai_error(status, what, param, sentence)
                   : family == FAMILY_SDAPI
                       ? json_pack("{s:s, s:s}", "error", what, "detail", sentence)
                       : json_pack("{s:s, s:s}", "error", what, "message", sentence);
    struct answer *a = answer_value(status, json);
    if (status == MHD_HTTP_SERVICE_UNAVAILABLE || status == MHD_HTTP_TOO_MANY_REQUESTS) {
        answer_header(a, MHD_HTTP_HEADER_RETRY_AFTER,
                      status == MHD_HTTP_TOO_MANY_REQUESTS ? "5" : "2");
    }
    return a;
}

void request_fail(struct request *r, unsigned status, const char *what, const char *sentence)
{
    request_answer(r, error_answer(r->family, status, what, NULL, sentence));
}

void request_refuse(struct request *r, const struct refusal *refusal)
{
    if (refusal->err.code != KR_BAD_REQUEST) { /* no memory, no random numbers: our own fault */
        request_fail(r, MHD_HTTP_INTERNAL_SERVER_ERROR, "server_error", refusal->err.text);
        return;
    }
    request_answer(r, error_answer(r->family, MHD_HTTP_BAD_REQUEST, refusal->what, refusal->param,
                                   refusal->err.text));
}

void request_fail_err(struct request *r, const struct kr_err *err, bool failed)
{
    static const struct {
        enum kr_code code;
        unsigned refused, failed; /* a request; a job */
        const char *what;
    } table[] = {
        {KR_BAD_REQUEST, 400, 500, "invalid params"},
        {KR_NO_MEMORY, 400, 500, "not enough memory"}, /* refused, it would be so again */
        {KR_BUSY, 429, 429, "job queue is full"},
        {KR_CANCELLED, 500, 500, "interrupted"},
        {KR_SHUTDOWN, 503, 503, "kread is stopping"},
        {KR_NO_DAEMON, 503, 503, "kread is away"},
        {KR_DEVICE, 503, 503, "device failed"}, /* the daemon starts again */
        {KR_FORBIDDEN, 403, 403, "forbidden"},
        {KR_NO_JOB, 404, 404, "job not found"},
        {KR_BAD_FRAME, 502, 502, "server_error"},
        {KR_BAD_VERSION, 502, 502, "server_error"},
        {KR_BAD_METHOD, 502, 502, "server_error"},
    };
    const char *what = "server_error", *sentence = err->text;
    unsigned status = MHD_HTTP_INTERNAL_SERVER_ERROR;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (table[i].code == err->code) {
            status = failed ? table[i].failed : table[i].refused;
            what = table[i].what;
        }
    }
    if (err->code == KR_IO || err->code == KR_BAD_FILE || err->code == KR_BAD_CONFIG) {
        sentence = "kread met a file that it cannot use; its log says which"; /* a local path */
    } else if (err->code == KR_NO_DAEMON && failed) {
        sentence = "kread ended while it made the picture; ask again when it is back";
    }
    request_fail(r, status, what, sentence);
}
