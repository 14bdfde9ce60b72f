/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes what turns a client's JSON into a job. The first byte says which dialect and whose policy,
 * the rest is the body. What is accepted must be what the daemon and the owner's limits accept;
 * what is refused must say why in a sentence that can be sent.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "client/http/ask.h"
#include "proto/message.h"
#include "proto/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_accepted(const struct ask *a, const struct policy *policy, enum family family)
{
    const struct kr_params *p = &a->params;
    struct kr_params again;
    struct kr_in in;
    struct kr_out out;
    struct kr_err err;
    assert(kr_has(p, KR_F_PROMPT) && kr_has(p, KR_F_SEED) && p->seed >= 0);
    assert(family == FAMILY_SDCPP || p->prompt[0]);
    assert(family == FAMILY_SDCPP || !strstr(p->prompt, "<sd_cpp_extra_args>"));
    assert(!kr_has(p, KR_F_COUNT) || (p->count >= 1 && p->count <= policy->max_count));
    assert(!kr_has(p, KR_F_STEPS) || (p->steps >= 1 && p->steps <= policy->max_steps));
    assert(!kr_has(p, KR_F_WIDTH) || !kr_has(p, KR_F_HEIGHT) ||
           p->width * p->height <= policy->max_pixels);
    assert(kr_has(p, KR_F_DETACH) == (family == FAMILY_SDCPP));
    assert((a->echo != NULL) == (family == FAMILY_SDAPI));
    kr_out_init(&out);
    kr_out_request(&out, 1, KR_M_GENERATE);
    kr_out_params(&out, p);
    assert(kr_in_init(&in, out.data, out.size, &err) == 0);
    assert(kr_value_params(in.params, &again, &err) == 0 && again.set == p->set);
    kr_params_fini(&again);
    kr_in_fini(&in);
    kr_out_fini(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const enum family families[] = {FAMILY_SDAPI, FAMILY_SDCPP, FAMILY_OPENAI};
    if (size == 0) {
        return 0;
    }
    const struct policy policy = {.keep_sampling = data[0] & 64,
                                  .max_count = data[0] & 32 ? 64 : 8,
                                  .max_steps = data[0] & 32 ? 1000 : 150,
                                  .max_pixels = 4194304,
                                  .width = 1024,
                                  .height = 1024};
    enum family family = families[data[0] % 3];
    struct refusal refusal = {.what = NULL};
    struct ask a;
    if (ask_read(&a, family, (const char *)data + 1, size - 1, &policy, &refusal) == 0) {
        check_accepted(&a, &policy, family);
        ask_fini(&a);
    } else {
        assert(refusal.what != NULL && refusal.err.text[0]);
        assert(kr_utf8_valid(refusal.err.text, strlen(refusal.err.text)));
        assert(a.params.prompt == NULL && a.params.negative == NULL && a.echo == NULL);
    }
    return 0;
}
