/* SPDX-License-Identifier: Apache-2.0
 *
 * An engine that only pretends, for tests of the server and its clients. What a job does is written
 * in its prompt, as words anywhere in it:
 *
 *   ms=N        each step takes N milliseconds (default 0)
 *   fail=CODE   the job fails with that code before its last picture ("no_memory", "device", ...)
 *   pad=N       each PNG gets a chunk of N more bytes
 *   deaf        the job does not look at its cancel flag
 *   toolarge    the request is refused as one that cannot fit
 *   die         the process is gone at once, as by a crash, when the job begins
 *   farmu       mu comes out of the size as more than a request may ask for
 *   left=N      each step's progress says that N seconds remain
 *
 * The picture is one colour made from the seed, a preview one made from seed and step.
 * $FAKE_ENGINE_OPEN, if set, is the sentence with
 * which opening fails.
 */
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/engine/engine.h"

/* For the thread sanitizer. libuv closes sockets by a bare system call, which it does not see; the
 * number, used again by another thread for a file, then looks like a race between what was done
 * with the socket (accept4() above all) and with the file. These calls touch no memory of ours;
 * write_all() (spool.c) is where the file's side was seen, once in 10,000 jobs. */
const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void)
{
    return "race:interceptor_accept4\nrace:interceptor_epoll_ctl\nrace:interceptor_close\n"
           "race:interceptor_open\nrace:write_all\n";
}

struct engine {
    struct kr_params profile, generation;
    int64_t max_pixels, max_steps, max_count;
    char *name, variant[16];
};

/* ------------------------------------------------------------------------------------ a PNG --- */

struct png {
    unsigned char *data;
    size_t size;
};

static void put_be32(unsigned char *at, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        at[i] = (unsigned char)(v >> (24 - 8 * i));
}

static uint32_t crc32_of(const unsigned char *p, size_t n)
{
    static const uint32_t nibble[16] = {0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac,
                                        0x76dc4190, 0x6b6b51f4, 0x4db26158, 0x5005713c,
                                        0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c,
                                        0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c};
    uint32_t crc = 0xffffffffu;
    for (; n > 0; n--, p++) {
        crc = crc >> 4 ^ nibble[(crc ^ *p) & 15];
        crc = crc >> 4 ^ nibble[(crc ^ *p >> 4) & 15];
    }
    return ~crc;
}

static void put_chunk(struct png *png, const char *type, const void *data, size_t size)
{
    unsigned char *at = png->data + png->size;
    put_be32(at, (uint32_t)size);
    memcpy(at + 4, type, 4);
    if (size > 0)
        memcpy(at + 8, data, size);
    put_be32(at + 8 + size, crc32_of(at + 4, size + 4));
    png->size += size + 12;
}

/* zlib's format with stored blocks only: every row of w pixels of one colour is a block. */
static size_t store_rows(unsigned char *out, int64_t w, int64_t h, const unsigned char rgb[3])
{
    uint32_t a = 1, b = 0;
    size_t n = 2, row = (size_t)w * 3 + 1;
    memcpy(out, "\x78\x01", 2);
    for (int64_t y = 0; y < h; y++) {
        unsigned char *block = out + n;
        block[0] = y == h - 1;
        block[1] = row & 255;
        block[2] = (unsigned char)(row >> 8);
        block[3] = (unsigned char)~block[1];
        block[4] = (unsigned char)~block[2];
        block[5] = 0;
        for (size_t i = 1; i < row; i++)
            block[5 + i] = rgb[(i - 1) % 3];
        for (size_t i = 0; i < row; i++) {
            a = (a + block[5 + i]) % 65521;
            b = (b + a) % 65521;
        }
        n += 5 + row;
    }
    put_be32(out + n, b << 16 | a);
    return n + 4;
}

static int make_png(int64_t w, int64_t h, int64_t seed, size_t pad, struct png *png)
{
    unsigned char head[13] = {0}, *rows = malloc((size_t)h * ((size_t)w * 3 + 6) + 16);
    const unsigned char rgb[3] = {seed & 255, seed >> 8 & 255, seed >> 16 & 255};
    void *padding = calloc(1, pad + 1);
    png->size = 8;
    png->data = malloc((size_t)h * ((size_t)w * 3 + 6) + pad + 256);
    if (!rows || !padding || !png->data)
        return -1;
    memcpy(png->data, "\x89PNG\r\n\x1a\n", 8);
    put_be32(head, (uint32_t)w);
    put_be32(head + 4, (uint32_t)h);
    head[8] = 8;
    head[9] = 2;
    put_chunk(png, "IHDR", head, sizeof head);
    put_chunk(png, "IDAT", rows, store_rows(rows, w, h, rgb));
    if (pad > 0)
        put_chunk(png, "paDd", padding, pad);
    put_chunk(png, "IEND", NULL, 0);
    free(rows);
    free(padding);
    return 0;
}

/* ---------------------------------------------------------------------------- open and tell --- */

int engine_check_device(enum engine_device device, struct kr_err *err)
{
    (void)device; /* it pretends on any */
    (void)err;
    return 0;
}

int engine_open(const struct engine_config *config, struct engine **engine, struct kr_err *err)
{
    const char *refusal = getenv("FAKE_ENGINE_OPEN");
    if (refusal)
        return kr_fail(err, KR_BAD_FILE, "%s", refusal);
    struct engine *e = calloc(1, sizeof *e);
    if (!e)
        return kr_fail(err, KR_NO_MEMORY, "out of memory");
    e->max_pixels = config->max_pixels;
    e->max_steps = config->max_steps;
    e->max_count = config->max_count;
    e->name = strdup(config->profile);
    snprintf(e->variant, sizeof e->variant, "%s", config->variant);
    if (e->name && kr_params_copy(&e->profile, &config->profile_defaults, err) == 0 &&
        kr_params_copy(&e->generation, &config->generation_defaults, err) == 0) {
        *engine = e;
        return 0;
    }
    engine_close(e);
    return kr_fail(err, KR_NO_MEMORY, "out of memory");
}

void engine_close(struct engine *engine)
{
    if (!engine)
        return;
    kr_params_fini(&engine->profile);
    kr_params_fini(&engine->generation);
    free(engine->name);
    free(engine);
}

int engine_inspect(const struct engine_config *config, FILE *out, bool json, struct kr_err *err)
{
    const char *refusal = getenv("FAKE_ENGINE_OPEN");
    if (refusal)
        return kr_fail(err, KR_BAD_FILE, "%s", refusal);
    if (json)
        fprintf(out, "{\"profile\": \"%s\"}\n", config->profile);
    else
        fprintf(out, "profile %s: %s\n", config->profile, config->diffusion_model);
    return 0;
}

/* A value that requests get, from the profile's settings or what engine_resolve() has. */
static double own_or(const struct engine *e, enum kr_field_id id, double basic)
{
    const struct kr_params *p = kr_has(&e->profile, id) ? &e->profile : &e->generation;
    return !kr_has(p, id)                    ? basic
           : kr_fields[id].type == KR_T_REAL ? kr_params_real(p, id)
                                             : (double)kr_params_int(p, id);
}

char *engine_describe(const struct engine *engine, enum engine_topic topic)
{
    static const char *const names[] = {
        [ENGINE_STATUS] = "status", [ENGINE_INSPECT] = "inspect", [ENGINE_PROFILE] = "profile"};
    const struct engine *e = engine;
    char *json;
    return asprintf(
               &json,
               "{\"profile\": \"%s\", \"what\": \"%s\", \"device\": \"fake\", "
               "\"architecture\": \"krea2\", \"variant\": \"%s\", \"defaults\": {\"width\": %g, "
               "\"height\": %g, \"steps\": %g, \"cfg\": %g, \"rng\": \"cuda\"}, \"limits\": "
               "{\"grid\": 16, \"max_pixels\": %" PRId64 ", \"max_steps\": %" PRId64
               ", \"max_count\": %" PRId64 "}}",
               e->name, names[topic], e->variant, own_or(e, KR_F_WIDTH, 32),
               own_or(e, KR_F_HEIGHT, 32), own_or(e, KR_F_STEPS, 4), own_or(e, KR_F_CFG, 0),
               e->max_pixels, e->max_steps, e->max_count) < 0
               ? NULL
               : json;
}

int engine_tokens(const struct engine *engine, const char *text, size_t length, int32_t **ids,
                  size_t *count, size_t *limit, struct kr_err *err)
{
    (void)engine;
    *ids = calloc(length + 1, sizeof **ids);
    if (!*ids)
        return kr_fail(err, KR_NO_MEMORY, "out of memory");
    for (size_t i = 0; i < length; i++)
        (*ids)[i] = (unsigned char)text[i];
    *count = length;
    *limit = 20;
    return 0;
}

/* --------------------------------------------------------------------------------- requests --- */

static int limit(const char *name, int64_t value, int64_t most, struct kr_err *err)
{
    if (most == 0 || value <= most)
        return 0;
    return kr_fail(err, KR_BAD_REQUEST, "%s is %" PRId64 ", this daemon allows %" PRId64, name,
                   value, most);
}

int engine_resolve(const struct engine *engine, struct kr_params *p, char *warning, size_t size,
                   struct kr_err *err)
{
    static const struct {
        enum kr_field_id id;
        const char *text;
    } basic[] = {{KR_F_WIDTH, "32"}, {KR_F_HEIGHT, "32"}, {KR_F_STEPS, "4"}, {KR_F_CFG, "0"},
                 {KR_F_COUNT, "1"},  {KR_F_SEED, "-1"},   {KR_F_RNG, "cuda"}};
    if (kr_params_default(p, &engine->profile, err) < 0 ||
        kr_params_default(p, &engine->generation, err) < 0)
        return -1;
    for (size_t i = 0; i < sizeof basic / sizeof *basic; i++)
        if (!kr_has(p, basic[i].id) && kr_params_parse(p, basic[i].id, basic[i].text, err) < 0)
            return -1;
    if (p->seed < 0)
        p->seed = (int64_t)(clock() * 7919 % 1000003);
    if (p->seed > INT64_MAX - (p->count - 1))
        return kr_fail(err, KR_BAD_REQUEST, "a picture would need a seed beyond 2^63 - 1");
    if (strstr(p->prompt, "farmu") && !kr_has(p, KR_F_MU)) {
        p->mu = 28.25;
        p->set |= kr_bit(KR_F_MU);
    }
    int64_t w = (p->width + 15) / 16 * 16, h = (p->height + 15) / 16 * 16;
    if (w != p->width || h != p->height)
        snprintf(warning, size, "rounded up to %" PRId64 "x%" PRId64, w, h);
    p->width = w;
    p->height = h;
    if (strstr(p->prompt, "toolarge"))
        return kr_fail(err, KR_NO_MEMORY, "this request needs more memory than there is");
    if (limit("width * height", w * h, engine->max_pixels, err) < 0 ||
        limit("steps", p->steps, engine->max_steps, err) < 0)
        return -1;
    return limit("count", p->count, engine->max_count, err);
}

/* ------------------------------------------------------------------------------------- jobs --- */

static int64_t number_in(const char *prompt, const char *key)
{
    const char *at = strstr(prompt, key);
    return at ? strtoll(at + strlen(key), NULL, 10) : 0;
}

static enum kr_code code_in(const char *prompt)
{
    char name[32] = "";
    const char *at = strstr(prompt, "fail=");
    return at && sscanf(at, "fail=%31s", name) == 1 ? kr_code_from_name(name) : KR_OK;
}

static bool cancelled(const struct engine_job *job)
{
    return !strstr(job->params->prompt, "deaf") && atomic_load(job->cancel);
}

/* Sleeps in slices, so that cancelling is quick. */
static void nap(const struct engine_job *job, int64_t ms)
{
    struct timespec slice = {0, 2000000};
    for (; ms > 0 && !cancelled(job); ms -= 2)
        nanosleep(&slice, NULL);
}

/* After every p->preview steps, but not after the last. */
static void make_preview(const struct engine_job *job, int i, int step)
{
    const struct kr_params *p = job->params;
    struct png png;
    if (!job->preview || p->preview <= 0 || step % p->preview != 0 || step == p->steps)
        return;
    if (make_png(p->width / 8, p->height / 8, p->seed + i + step, 0, &png) < 0)
        return;
    const struct engine_image preview = {.index = i,
                                         .seed = p->seed + i,
                                         .width = p->width / 8,
                                         .height = p->height / 8,
                                         .png = png.data,
                                         .png_size = png.size};
    job->preview(job->user, &preview);
    free(png.data);
}

static int make_image(const struct engine_job *job, int i, struct kr_err *err)
{
    const struct kr_params *p = job->params;
    const int64_t left = number_in(p->prompt, "left=");
    struct engine_progress at = {.stage = "denoise",
                                 .steps = (int)p->steps,
                                 .image = i,
                                 .count = (int)p->count,
                                 .remaining = left ? (double)left : -1};
    for (int step = 0; step < p->steps; step++) {
        nap(job, number_in(p->prompt, "ms="));
        if (cancelled(job))
            return kr_fail(err, KR_CANCELLED, "cancelled at step %d", step);
        at.step = step + 1;
        make_preview(job, i, at.step);
        job->progress(job->user, &at);
    }
    enum kr_code failure = i == p->count - 1 ? code_in(p->prompt) : KR_OK;
    if (failure != KR_OK)
        return kr_fail(err, failure, "the script says so");
    struct png png;
    if (make_png(p->width, p->height, p->seed + i, (size_t)number_in(p->prompt, "pad="), &png) < 0)
        return kr_fail(err, KR_NO_MEMORY, "out of memory");
    const struct engine_image image = {.index = i,
                                       .seed = p->seed + i,
                                       .width = p->width,
                                       .height = p->height,
                                       .png = png.data,
                                       .png_size = png.size};
    int rc = job->image(job->user, &image, err);
    free(png.data);
    return rc;
}

int engine_generate(struct engine *engine, const struct engine_job *job, struct engine_times *times,
                    struct kr_err *err)
{
    (void)engine;
    if (strstr(job->params->prompt, "die"))
        raise(SIGKILL);
    struct engine_progress encode = {.stage = "encode",
                                     .step = 1,
                                     .steps = 1,
                                     .count = (int)job->params->count,
                                     .remaining = -1};
    job->progress(job->user, &encode);
    *times = (struct engine_times){.encode = 0.25, .denoise = 0.5, .peak = 1 << 20};
    for (int i = 0; i < job->params->count; i++)
        if (make_image(job, i, err) < 0)
            return -1;
    return 0;
}
