/* SPDX-License-Identifier: Apache-2.0
 *
 * See work.h. Every result that control or the host will depend on is checked for NaN and infinity
 * here; the device remembers the first finding and the worker reads it at its next boundary.
 */
#include "daemon/engine/work.h"

int work_init(struct work *w, const struct family *family, void *model, struct kr_device *dev,
              const struct kr_params *p, struct kr_err *err)
{
    const char *text[SIDES] = {p->prompt, p->negative};

    *w = (struct work){
        .family = family, .model = model, .dev = dev, .p = p, .sides = p->cfg > 0 ? 2 : 1};
    family->dims(model, &w->dims);
    w->h = p->height / w->dims.scale;
    w->w = p->width / w->dims.scale;
    for (int side = 0; side < w->sides; side++)
        if (family->prompt(model, (enum kr_dialect)p->dialect, text[side], &w->prompt[side], err) <
            0)
            return -1;
    return 0;
}

void work_fini(struct work *w)
{
    for (int side = 0; side < SIDES; side++)
        prompt_fini(&w->prompt[side]);
}

size_t work_tokens(const struct work *w, int side)
{
    return w->prompt[side].count - w->prompt[side].skip;
}

void work_begin(struct work *w)
{
    for (int side = 0; side < w->sides; side++) {
        int64_t n = (int64_t)work_tokens(w, side);

        w->branch[side].text = kr_new(w->dev, KR_F32, n, w->dims.text_width, 0, 0);
        w->branch[side].rope = w->family->rope(w->model, w->dev, n, w->h, w->w);
    }
}

void work_encode(struct work *w, int side, float *taps)
{
    struct kr_mark mark = kr_arena_mark(w->dev);
    struct kr_tensor conditioning =
        kr_new(w->dev, KR_F32, (int64_t)work_tokens(w, side), w->dims.taps, w->dims.tap_width, 0);

    w->family->encode(w->model, w->dev, &w->prompt[side], conditioning);
    kr_check_finite(w->dev, conditioning, "the text encoder's output");
    if (taps)
        kr_download(w->dev, conditioning, taps); /* a fault is read by the caller */
    w->family->refine(w->model, w->dev, conditioning, w->branch[side].text);
    kr_check_finite(w->dev, w->branch[side].text, "the refined text");
    kr_arena_release(w->dev, mark);
}

void work_recall(struct work *w, int side, const float *text)
{
    kr_upload(w->dev, w->branch[side].text, text);
}

void work_picture(struct work *w)
{
    w->latent = kr_new(w->dev, KR_F32, w->dims.channels, w->h, w->w, 0);
    w->velocity = kr_new(w->dev, KR_F32, w->dims.channels, w->h, w->w, 0);
    if (w->sides > 1)
        w->uncond = kr_new(w->dev, KR_F32, w->dims.channels, w->h, w->w, 0);
}

static void predict(struct work *w, struct kr_tensor velocity, int side, float t)
{
    struct kr_mark mark = kr_arena_mark(w->dev);

    w->family->predict(w->model, w->dev, velocity, w->latent, &w->branch[side], t);
    kr_arena_release(w->dev, mark);
}

void work_step(struct work *w, float t, float dt)
{
    predict(w, w->velocity, 0, t);
    if (w->sides > 1) {
        predict(w, w->uncond, 1, t);
        kr_guide(w->dev, w->velocity, w->uncond, (float)w->p->cfg); /* v = c + g (c - u) */
    }
    kr_check_finite(w->dev, w->velocity, "the velocity");
    kr_add_scaled(w->dev, w->latent, dt, w->velocity);
    kr_check_finite(w->dev, w->latent, "the latent");
}

struct kr_tensor work_decode(struct work *w, int64_t rows)
{
    struct kr_tensor picture =
        kr_new(w->dev, KR_F32, 3, w->h * w->dims.scale, w->w * w->dims.scale, 0);
    struct kr_mark mark = kr_arena_mark(w->dev);

    w->family->decode(w->model, w->dev, picture, w->latent, rows);
    kr_arena_release(w->dev, mark);
    kr_check_finite(w->dev, picture, "the decoded picture");
    return picture;
}
