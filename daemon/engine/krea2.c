/* SPDX-License-Identifier: Apache-2.0
 *
 * The family Krea 2: Qwen3-VL's text model, the single-stream MMDiT, the Qwen-Image VAE, and the
 * two variants of the checkpoint. Turbo is distilled: few steps, no guidance, and a schedule of its
 * own for every size. Raw wants guidance, and a schedule that shifts with the size.
 *
 * Where reference programs differ, the dialect decides. krea: the time that the network is given
 * is rounded to bfloat16, noise comes from CUDA's generator and is rounded too, Raw's mu follows
 * the size. comfyui: neither is rounded, noise comes from the CPU's generator, mu is 1.15 for both
 * variants, the grid is picked from a table. The guidance formulas are the same but for how the
 * number is counted, and cfg always counts as the official program does.
 */
#include "daemon/engine/family.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/engine/noise.h"
#include "daemon/engine/rounding.h"
#include "daemon/engine/schedule.h"
#include "daemon/model/mmdit.h"
#include "daemon/model/text_encoder.h"
#include "daemon/model/vae.h"

struct model {
    struct text_encoder text;
    struct mmdit mmdit;
    struct vae vae;
    struct prompt_template template;
    struct preview_map preview;
};

/* Rows of the embedding that no token has: published files pad the matrix by a few hundred. */
enum { SPARE_ROWS = 2048 };

static const char *const variants[] = {"turbo", "raw", NULL};

/* ------------------------------------------------------------------------ values ------ */

static void set_int(struct kr_params *p, enum kr_field_id id, int64_t *at, int64_t value)
{
    if (!kr_has(p, id)) {
        *at = value;
        p->set |= kr_bit(id);
    }
}

static void set_real(struct kr_params *p, enum kr_field_id id, double *at, double value)
{
    if (!kr_has(p, id)) {
        *at = value;
        p->set |= kr_bit(id);
    }
}

/* The ends of mu's line are defaults only where the line is used; someone who sets one of them
 * wants the line, also where the variant would fix mu. */
static void default_mu(bool fixed, struct kr_params *p)
{
    bool line = kr_has(p, KR_F_SHIFT_Y1) || kr_has(p, KR_F_SHIFT_Y2);

    if (fixed && !line)
        set_real(p, KR_F_MU, &p->mu, 1.15);
    if (!kr_has(p, KR_F_MU)) {
        set_real(p, KR_F_SHIFT_Y1, &p->shift_y1, 0.5);
        set_real(p, KR_F_SHIFT_Y2, &p->shift_y2, 1.15);
    }
}

static void defaults(const char *variant, struct kr_params *p)
{
    bool turbo = strcmp(variant, "turbo") == 0;
    bool comfyui = p->dialect == KR_DIALECT_COMFYUI;

    set_int(p, KR_F_STEPS, &p->steps, turbo ? 8 : 52);
    set_real(p, KR_F_CFG, &p->cfg, turbo ? 0 : 3.5);
    default_mu(turbo || comfyui, p);
    set_int(p, KR_F_WIDTH, &p->width, 1024);
    set_int(p, KR_F_HEIGHT, &p->height, 1024);
    set_int(p, KR_F_COUNT, &p->count, 1);
    set_int(p, KR_F_RNG, &p->rng, comfyui ? KR_RNG_CPU : KR_RNG_CUDA);
    set_int(p, KR_F_PREVIEW, &p->preview, 0);
    set_int(p, KR_F_DETACH, &p->detach, 0);
}

static int64_t limit(enum kr_dialect dialect)
{
    return (int64_t)prompt_limit(dialect);
}

static double mu(const struct kr_params *p, int64_t tokens)
{
    return schedule_mu(p->shift_y1, p->shift_y2, tokens);
}

static void noise(const struct kr_params *p, uint64_t seed, float *out, size_t n)
{
    if (p->rng == KR_RNG_CPU) {
        noise_cpu(seed, out, n);
        return;
    }
    noise_cuda(seed, out, n);
    if (p->dialect == KR_DIALECT_KREA)
        for (size_t i = 0; i < n; i++)
            out[i] = round_bf16(out[i]);
}

static void schedule(const struct kr_params *p, float *sigmas)
{
    if (p->dialect == KR_DIALECT_KREA)
        schedule_krea(p->mu, p->steps, sigmas);
    else
        schedule_comfyui(p->mu, p->steps, sigmas);
}

static float time_given(const struct kr_params *p, float sigma)
{
    return p->dialect == KR_DIALECT_KREA ? round_bf16(sigma) : sigma;
}

/* ------------------------------------------------------------------------- files ------ */

static int open_part(enum part part, const char *path, struct weights **file, struct kr_err *err)
{
    switch (part) {
    case PART_TEXT_ENCODER:
        return text_encoder_open(path, file, err);
    case PART_DIFFUSION_MODEL:
        return mmdit_open(path, file, err);
    default:
        return vae_open(path, file, err);
    }
}

static int check_text(const struct model *m, const char *text, const char *diffusion,
                      struct kr_err *err)
{
    if (m->mmdit.taps != TEXT_TAPS)
        return kr_fail(err, KR_BAD_FILE,
                       "%s: txtfusion.projector.weight mixes %" PRId64
                       " layers of the text encoder, "
                       "and %d are tapped; this is no diffusion model of Krea 2",
                       diffusion, m->mmdit.taps, TEXT_TAPS);
    if (m->text.width != m->mmdit.text_width)
        return kr_fail(err, KR_BAD_FILE,
                       "%s: embed_tokens.weight is %" PRId64 " wide, but %s was made for %" PRId64
                       " (txtmlp.0.scale); use the text encoder that belongs to it, for Krea 2 the "
                       "4B one of Qwen3-VL",
                       text, m->text.width, diffusion, m->mmdit.text_width);
    return 0;
}

static int check_vae(const struct model *m, const char *vae, const char *diffusion,
                     struct kr_err *err)
{
    if (m->vae.channels != m->mmdit.channels)
        return kr_fail(err, KR_BAD_FILE,
                       "%s: conv2.weight takes %" PRId64 " latent channels, but last.linear.weight "
                       "of %s makes %" PRId64 "; use the Qwen-Image VAE",
                       vae, m->vae.channels, diffusion, m->mmdit.channels);
    return 0;
}

static int check_tokenizer(const struct model *m, const struct parts *parts, struct kr_err *err)
{
    size_t vocabulary = tokenizer_vocabulary(parts->tokenizer);
    size_t rows = (size_t)m->text.vocabulary;

    if (vocabulary > rows || vocabulary + SPARE_ROWS < rows)
        return kr_fail(
            err, KR_BAD_FILE,
            "%s/vocab.json and its added tokens go up to id %zu, but embed_tokens.weight "
            "of %s has %zu rows; use the tokenizer that belongs to it",
            parts->tokenizer_name, vocabulary - 1, weights_name(parts->file[PART_TEXT_ENCODER]),
            rows);
    return 0;
}

static int check_together(const struct model *m, const struct parts *parts, struct kr_err *err)
{
    const char *diffusion = weights_name(parts->file[PART_DIFFUSION_MODEL]);

    if (check_text(m, weights_name(parts->file[PART_TEXT_ENCODER]), diffusion, err) < 0 ||
        check_vae(m, weights_name(parts->file[PART_VAE]), diffusion, err) < 0)
        return -1;
    return check_tokenizer(m, parts, err);
}

static void unbind(void *model, struct kr_device *dev)
{
    struct model *m = model;

    if (!m)
        return;
    prompt_template_fini(&m->template);
    text_encoder_fini(&m->text, dev);
    mmdit_fini(&m->mmdit, dev);
    vae_fini(&m->vae, dev);
    free(m);
}

static int read_preview(struct model *m, const struct weights *vae, struct kr_err *err)
{
    const char *text = weights_preview(vae);

    assert(m->vae.channels == PREVIEW_CHANNELS);
    m->preview = preview_wan21;
    return text ? preview_map_read(&m->preview, text, weights_name(vae), err) : 0;
}

static int bind_parts(struct model *m, const struct parts *parts,
                      const struct engine_config *config, struct kr_device *dev, struct kr_err *err)
{
    if (text_encoder_bind(&m->text, parts->file[PART_TEXT_ENCODER],
                          config->text_encoder_without_vision, dev, err) < 0 ||
        mmdit_bind(&m->mmdit, parts->file[PART_DIFFUSION_MODEL], dev, err) < 0 ||
        vae_bind(&m->vae, parts->file[PART_VAE], dev, err) < 0)
        return -1;
    if (check_together(m, parts, err) < 0 || read_preview(m, parts->file[PART_VAE], err) < 0)
        return -1;
    return prompt_template_init(&m->template, parts->tokenizer, parts->tokenizer_name, err);
}

static int bind(const struct parts *parts, const struct engine_config *config,
                struct kr_device *dev, void **model, struct kr_err *err)
{
    struct model *m = calloc(1, sizeof(*m));

    *model = NULL;
    if (!m)
        return kr_fail(err, KR_NO_MEMORY, "no memory for the model");
    if (bind_parts(m, parts, config, dev, err) < 0) {
        unbind(m, dev);
        return -1;
    }
    *model = m;
    return 0;
}

static void dims(const void *model, struct family_dims *d)
{
    const struct model *m = model;

    *d = (struct family_dims){.channels = m->mmdit.channels,
                              .scale = VAE_SCALE,
                              .grid = VAE_SCALE * m->mmdit.patch,
                              .taps = m->mmdit.taps,
                              .tap_width = m->mmdit.text_width,
                              .text_width = m->mmdit.width};
}

static int text_facts(const struct text_encoder *t, struct fact *f)
{
    const struct fact facts[] = {{"vocabulary", t->vocabulary}, {"width", t->width},
                                 {"layers", t->layer_count},    {"heads", t->heads},
                                 {"kv_heads", t->kv_heads},     {"head", t->head},
                                 {"hidden", t->hidden}};

    memcpy(f, facts, sizeof(facts));
    return sizeof(facts) / sizeof(*facts);
}

static int mmdit_facts(const struct mmdit *m, struct fact *f)
{
    const struct fact facts[] = {{"width", m->width},
                                 {"blocks", m->block_count},
                                 {"heads", m->heads},
                                 {"kv_heads", m->kv_heads},
                                 {"head", m->head},
                                 {"hidden", m->hidden},
                                 {"text_width", m->text_width},
                                 {"taps", m->taps},
                                 {"channels", m->channels},
                                 {"patch", m->patch}};

    memcpy(f, facts, sizeof(facts));
    return sizeof(facts) / sizeof(*facts);
}

static int facts(const void *model, enum part part, struct fact f[MAX_FACTS])
{
    const struct model *m = model;

    if (part == PART_TEXT_ENCODER)
        return text_facts(&m->text, f);
    if (part == PART_DIFFUSION_MODEL)
        return mmdit_facts(&m->mmdit, f);
    f[0] = (struct fact){"channels", m->vae.channels};
    f[1] = (struct fact){"base", m->vae.base};
    return 2;
}

static const struct preview_map *preview(const void *model)
{
    const struct model *m = model;

    return &m->preview;
}

/* ----------------------------------------------------------------------- columns ------ */

static int prompt(const void *model, enum kr_dialect dialect, const char *text,
                  struct prompt *prompt, struct kr_err *err)
{
    const struct model *m = model;

    return prompt_build(prompt, &m->template, dialect, text, err);
}

static void encode(const void *model, struct kr_device *dev, const struct prompt *prompt,
                   struct kr_tensor conditioning)
{
    const struct model *m = model;

    text_encoder_forward(&m->text, dev, prompt->ids, (int64_t)prompt->count, (int64_t)prompt->skip,
                         conditioning);
}

static void refine(const void *model, struct kr_device *dev, struct kr_tensor conditioning,
                   struct kr_tensor text)
{
    const struct model *m = model;

    mmdit_text(&m->mmdit, dev, text, conditioning);
}

static struct kr_rope rope(const void *model, struct kr_device *dev, int64_t n, int64_t h,
                           int64_t w)
{
    const struct model *m = model;

    return mmdit_rope(&m->mmdit, dev, n, h, w);
}

static void predict(const void *model, struct kr_device *dev, struct kr_tensor velocity,
                    struct kr_tensor latent, const struct branch *branch, float t)
{
    const struct model *m = model;

    mmdit_forward(&m->mmdit, dev, velocity, latent, branch->text, &branch->rope, t);
}

static void decode(void *model, struct kr_device *dev, struct kr_tensor picture,
                   struct kr_tensor latent, int64_t rows)
{
    struct model *m = model;

    if (rows > 0)
        vae_decode_tiled(&m->vae, dev, picture, latent, rows);
    else
        vae_decode(&m->vae, dev, picture, latent);
}

const struct family krea2 = {
    .architecture = "krea2",
    .variants = variants,
    .defaults = defaults,
    .prompt_limit = limit,
    .open = open_part,
    .bind = bind,
    .unbind = unbind,
    .dims = dims,
    .facts = facts,
    .preview = preview,
    .prompt = prompt,
    .encode = encode,
    .refine = refine,
    .rope = rope,
    .noise = noise,
    .schedule = schedule,
    .time = time_given,
    .predict = predict,
    .decode = decode,
    .mu = mu,
};
