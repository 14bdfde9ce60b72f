/* SPDX-License-Identifier: Apache-2.0
 *
 * Parity with the public implementations. Each golden case (see tests/reference) is sampled from
 * its token ids and its noise to the decoded picture with nothing but the forwards of daemon/model,
 * and every tensor on the way is held against the reference: in the device's best compute type
 * against the error that the reference itself makes in bfloat16, in F32 against a bound that only
 * rounding explains. The sets of $KREAD_SHARED/data/golden are used too, where they are.
 */
#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>
#include <jansson.h>

#include "daemon/model/tokenizer.h"
#include "tests/common/golden.h"
#include "tests/common/npy.h"
#include "tests/model/set.h"

enum { MAX_STEPS = 16, MAX_TENSORS = 64 };

/* One case: what goes in, and everything that has to come out. */
struct golden_case {
    struct set *set;
    const char *folder, *name;
    struct npy tokens, noise, sigmas, conditioning;
    int32_t *negative; /* ids; NULL: no guidance */
    int64_t negative_count, skip, steps;
    double cfg;
    bool round_time;
    /* results */
    struct result {
        char name[64];
        float *data;
        size_t count;
    } results[MAX_TENSORS];
    int result_count;
};

/* ------------------------------------------------------------------------------------ input --- */

static struct npy load(const struct golden_case *c, const char *name)
{
    char path[512], message[600];
    struct npy a;

    snprintf(path, sizeof(path), "%s/%s/%s.npy", c->folder, c->name, name);
    if (npy_read(path, &a, message, sizeof(message)))
        fail_msg("%s", message);
    return a;
}

static float *room(struct golden_case *c, const char *name, size_t count)
{
    struct result *r = NULL;

    for (int i = 0; i < c->result_count; i++)
        if (strcmp(c->results[i].name, name) == 0)
            r = &c->results[i];
    if (r == NULL) { /* the planning run has come by before the real one */
        assert_true(c->result_count < MAX_TENSORS);
        r = &c->results[c->result_count++];
        snprintf(r->name, sizeof(r->name), "%s", name);
        r->data = calloc(count, sizeof(float));
        r->count = count;
    }
    assert_int_equal(r->count, count);
    return r->data;
}

static void keep(struct golden_case *c, struct kr_device *dev, struct kr_tensor t,
                 const char *format, int64_t step)
{
    char name[64];

    snprintf(name, sizeof(name), format, (int)step);
    kr_download(dev, t, room(c, name, (size_t)kr_count(&t)));
}

/* The ids of the template around the negative prompt: the case's own prefix and suffix. */
static void make_negative(struct golden_case *c, const char *text)
{
    enum { SUFFIX = 5 };
    char folder[512];
    struct tokenizer *tokenizer;
    struct kr_err err;
    int32_t *ids;
    size_t count;

    snprintf(folder, sizeof(folder), "%s/tokenizer", c->folder);
    if (tokenizer_open(folder, &tokenizer, &err) ||
        tokenizer_encode(tokenizer, text, strlen(text), &ids, &count, &err))
        fail_msg("%s", err.text);
    c->negative_count = c->skip + (int64_t)count + SUFFIX;
    c->negative = calloc((size_t)c->negative_count, sizeof(*c->negative));
    memcpy(c->negative, c->tokens.i32, (size_t)c->skip * sizeof(*ids));
    memcpy(c->negative + c->skip, ids, count * sizeof(*ids));
    memcpy(c->negative + c->skip + count, c->tokens.i32 + c->tokens.count - SUFFIX,
           SUFFIX * sizeof(*ids));
    free(ids);
    tokenizer_close(tokenizer);
}

static void read_case(struct golden_case *c)
{
    char path[512];
    json_t *request;
    const char *dialect, *negative;

    snprintf(path, sizeof(path), "%s/%s/request.json", c->folder, c->name);
    request = json_load_file(path, 0, NULL);
    assert_non_null(request);
    dialect = json_string_value(json_object_get(request, "dialect"));
    negative = json_string_value(json_object_get(request, "negative"));
    c->cfg = json_number_value(json_object_get(request, "cfg"));
    c->round_time = dialect == NULL || strcmp(dialect, "krea") == 0;
    c->tokens = load(c, "tokens");
    c->noise = load(c, "noise");
    c->sigmas = load(c, "sigmas");
    c->conditioning = load(c, "conditioning");
    c->skip = (int64_t)c->tokens.count - c->conditioning.dim[0];
    c->steps = (int64_t)c->sigmas.count - 1;
    if (c->cfg > 0)
        make_negative(c, negative != NULL ? negative : "");
    json_decref(request);
}

static void free_case(struct golden_case *c)
{
    npy_free(&c->tokens);
    npy_free(&c->noise);
    npy_free(&c->sigmas);
    npy_free(&c->conditioning);
    free(c->negative);
    for (int i = 0; i < c->result_count; i++)
        free(c->results[i].data);
}

/* --------------------------------------------------------------------------------- sampling --- */

static float to_bf16(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    bits += 0x7fff + (bits >> 16 & 1);
    bits &= 0xffff0000;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* text F32 [kept, width] of ids; the taps on the way are kept as a result. */
static struct kr_tensor encode(struct golden_case *c, struct kr_device *dev, const int32_t *ids,
                               int64_t n, const char *name)
{
    const struct set *set = c->set;
    struct kr_tensor text = kr_new(dev, KR_F32, n - c->skip, set->dit.width, 0, 0);
    struct kr_mark mark = kr_arena_mark(dev);
    struct kr_tensor taps = kr_new(dev, KR_F32, n - c->skip, TEXT_TAPS, set->te.width, 0);

    text_encoder_forward(&set->te, dev, ids, n, c->skip, taps);
    keep(c, dev, taps, name, 0);
    mmdit_text(&set->dit, dev, text, taps);
    kr_arena_release(dev, mark);
    return text;
}

static void step(struct golden_case *c, struct kr_device *dev, struct kr_tensor v,
                 struct kr_tensor latent, struct kr_tensor text, int64_t i)
{
    const struct mmdit *dit = &c->set->dit;
    struct kr_mark mark = kr_arena_mark(dev);
    struct kr_rope rope = mmdit_rope(dit, dev, text.dim[0], latent.dim[1], latent.dim[2]);
    float t = c->sigmas.f32[i];

    mmdit_forward(dit, dev, v, latent, text, &rope, c->round_time ? to_bf16(t) : t);
    kr_arena_release(dev, mark);
}

static void sample(struct kr_device *dev, void *user)
{
    struct golden_case *c = user;
    int64_t h = c->noise.dim[1], w = c->noise.dim[2];
    struct kr_tensor latent = set_upload(dev, c->noise.f32, c->noise.dim[0], h, w);
    struct kr_tensor v = kr_new(dev, KR_F32, c->noise.dim[0], h, w, 0);
    struct kr_tensor u = kr_new(dev, KR_F32, c->noise.dim[0], h, w, 0);
    struct kr_tensor picture = kr_new(dev, KR_F32, 3, VAE_SCALE * h, VAE_SCALE * w, 0);
    struct kr_tensor text, other = {0};

    text = encode(c, dev, c->tokens.i32, (int64_t)c->tokens.count, "conditioning");
    if (c->negative != NULL)
        other = encode(c, dev, c->negative, c->negative_count, "conditioning_negative");
    for (int64_t i = 0; i < c->steps; i++) {
        step(c, dev, v, latent, text, i);
        if (c->negative != NULL) {
            step(c, dev, u, latent, other, i);
            kr_guide(dev, v, u, (float)c->cfg);
        }
        keep(c, dev, v, "velocity_%02d", i);
        kr_add_scaled(dev, latent, c->sigmas.f32[i + 1] - c->sigmas.f32[i], v);
        keep(c, dev, latent, "latent_%02d", i);
    }
    vae_decode(&c->set->vae, dev, picture, latent);
    keep(c, dev, picture, "decoded", 0);
}

/* ------------------------------------------------------------------------------- comparison --- */

/* A run of the reference in bfloat16 that also rounded the time, which this dialect does not do,
 * has figures that hide errors: the guided case beside it has the honest ones. */
static const char *figures_of(const struct golden_case *c)
{
    return strcmp(c->name, "comfyui") == 0 && strstr(c->folder, "/g1") != NULL ? "raw" : c->name;
}

static void compare(struct golden_case *c, bool exact)
{
    struct golden_figure *figures;
    char path[512], message[600], line[900] = "";
    double logs = 0, worst = 0;
    int n, tensors = 0;

    snprintf(path, sizeof(path), "%s/%s/bf16-error.json", c->folder, figures_of(c));
    n = golden_figures(path, &figures, message, sizeof(message));
    if (n < 0)
        fail_msg("%s", message);
    for (int i = 0; i < c->result_count; i++) {
        struct result *r = &c->results[i];
        struct npy want;
        double ratio;

        if (strcmp(r->name, "conditioning_negative") == 0 &&
            isnan(golden_figure(figures, n, r->name)))
            continue; /* an older golden without it */
        want = load(c, r->name);
        assert_int_equal(want.count, r->count);
        for (size_t k = 0; strcmp(r->name, "decoded") == 0 && k < r->count; k++)
            r->data[k] = fminf(fmaxf(r->data[k], -1), 1); /* as the reference does itself */
        ratio = golden_rms(r->data, want.f32, r->count) / golden_figure(figures, n, r->name);
        snprintf(line + strlen(line), sizeof(line) - strlen(line), " %s %.3f", r->name, ratio);
        npy_free(&want);
        worst = fmax(worst, ratio);
        logs += log(fmax(ratio, 1e-9));
        tensors++;
    }
    free(figures);
    print_message("%s/%s%s: mean %.3f:%s\n", c->folder, c->name, exact ? " in F32" : "",
                  exp(logs / tensors), line);
    assert_true(isfinite(logs)); /* a name without a figure */
    if (worst > (exact ? 0.01 : 1) || exp(logs / tensors) > (exact ? 0.005 : 0.6))
        fail_msg("%s/%s is too far from the reference (shares of its own bfloat16 error):%s",
                 c->folder, c->name, line);
}

static void check_case(struct set *set, const char *folder, const char *name, bool exact)
{
    struct golden_case *c = calloc(1, sizeof(*c));

    c->set = set;
    c->folder = folder;
    c->name = name;
    read_case(c);
    set_run(set->dev, sample, c);
    compare(c, exact);
    free_case(c);
    free(c);
}

static int is_case(const struct dirent *entry)
{
    return entry->d_name[0] != '.' && strchr(entry->d_name, '.') == NULL &&
           strcmp(entry->d_name, "tokenizer") != 0;
}

static void check_set(const char *folder, enum kr_compute compute, bool exact)
{
    struct dirent **entries;
    struct set set;
    int n = scandir(folder, &entries, is_case, alphasort);

    if (n <= 0)
        fail_msg("%s has no golden cases", folder);
    set_open(&set, folder, compute);
    for (int i = 0; i < n; i++) {
        check_case(&set, folder, entries[i]->d_name, exact);
        free(entries[i]);
    }
    free(entries);
    set_close(&set);
}

/* ------------------------------------------------------------------------------------ tests --- */

static void test_set(void **state)
{
    check_set(*state, KR_COMPUTE_BEST, false);
}

static void test_set_f32(void **state)
{
    check_set(*state, KR_COMPUTE_F32, true);
}

static void test_shared(void **state)
{
    const char *shared = getenv("KREAD_SHARED");
    char folder[512];
    struct stat st;

    (void)state;
    snprintf(folder, sizeof(folder), "%s/data/golden/g1", shared != NULL ? shared : "../shared");
    if (stat(folder, &st) != 0)
        skip();
    check_set(folder, KR_COMPUTE_BEST, false);
}

int main(void)
{
    static char scaled[] = "tests/golden/scaled", prefixed[] = "tests/golden/prefixed",
                plain[] = "tests/golden/plain", halves[] = "tests/golden/halves";
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(test_set, scaled),
        cmocka_unit_test_prestate(test_set, prefixed),
        cmocka_unit_test_prestate(test_set, plain),
        cmocka_unit_test_prestate(test_set, halves),
        cmocka_unit_test_prestate(test_set_f32, scaled),
        cmocka_unit_test_prestate(test_set_f32, prefixed),
        cmocka_unit_test_prestate(test_set_f32, plain),
        cmocka_unit_test_prestate(test_set_f32, halves),
        cmocka_unit_test(test_shared),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
