/* SPDX-License-Identifier: Apache-2.0
 *
 * The decoder: latent to picture, one frame. Pictures are [rows, columns, channels]; the residual
 * stream is F32, what enters a convolution is in the device's compute type.
 *
 * Up to the attention in the middle everything runs whole, at the latent's size. From there on only
 * 3x3 convolutions mix pixels, so a band of output rows depends on a band of the middle's rows and
 * a margin. decode_bands() walks backwards from a band's rows to the rows each stage has to have,
 * then runs the stages on just those. At a cut the convolutions see zeros instead of neighbours;
 * the row that this spoils moves inwards by one with each convolution, which is what the margins
 * are for. A whole picture is one band with every margin clipped away, so both entries share all
 * code.
 *
 * Shapes in comments: h and w the latent's, C the channels of a stage.
 */
#include "daemon/model/vae.h"

#include <assert.h>

/* The VAE's norm divides by the L2 norm, which is the RMS norm but for an epsilon that only keeps
 * zeros from becoming NaN. */
static const float norm_eps = 1e-30f;

enum { STAGE_REACH = 2 * VAE_BLOCKS /* rows that the convolutions of a stage reach */ };

/* -------------------------------------------------------------------------------- blocks ---- */

/* y += conv2(silu(norm2(conv1(silu(norm1(x)))))) */
static void add_branch(struct vae_residual *r, struct kr_device *dev, struct kr_tensor y,
                       struct kr_tensor x)
{
    enum kr_dtype cd = kr_compute_dtype(dev);
    struct kr_mark outer = kr_arena_mark(dev), inner;
    struct kr_tensor m = kr_new(dev, cd, x.dim[0], x.dim[1], r->conv1.out, 0), h;

    inner = kr_arena_mark(dev);
    h = kr_new(dev, cd, x.dim[0], x.dim[1], r->conv1.in, 0);
    kr_rms_norm(dev, h, x, r->norm1, norm_eps, KR_ACT_SILU);
    kr_conv2d(dev, m, h, &r->conv1);
    kr_arena_release(dev, inner);
    h = kr_new(dev, cd, x.dim[0], x.dim[1], r->conv1.out, 0);
    kr_rms_norm(dev, h, m, r->norm2, norm_eps, KR_ACT_SILU);
    kr_conv2d_add(dev, y, h, &r->conv2);
    kr_arena_release(dev, outer);
}

static struct kr_weight weight_rows(const struct kr_weight *w, int64_t first, int64_t count)
{
    struct kr_weight part = *w;

    part.data = (const char *)w->data + (size_t)(first * w->in) * kr_dtype_size(w->dtype);
    part.out = count;
    part.bias = kr_slice(w->bias, first, count);
    return part;
}

/* x += proj(attention(norm(x))), one head over all pixels; x [h, w, C] */
static void attend(const struct vae *vae, struct kr_device *dev, struct kr_tensor x)
{
    enum kr_dtype cd = kr_compute_dtype(dev);
    int64_t c = x.dim[2], n = x.dim[0] * x.dim[1];
    struct kr_tensor flat = kr_reshape(x, n, c, 0, 0), qkv[3];
    struct kr_mark mark = kr_arena_mark(dev);
    struct kr_tensor h = kr_new(dev, cd, n, c, 0, 0); /* [h w, C] */

    kr_rms_norm(dev, h, flat, vae->attn_norm, norm_eps, KR_ACT_NONE);
    for (int i = 0; i < 3; i++) {
        struct kr_weight part = weight_rows(&vae->attn_qkv, i * c, c);

        qkv[i] = kr_new(dev, cd, n, c, 0, 0);
        kr_linear(dev, qkv[i], h, &part, KR_ACT_NONE);
    }
    kr_attention(dev, h, &(struct kr_attention){qkv[0], qkv[1], qkv[2], 1, 1, KR_MASK_NONE, {0}});
    kr_linear_add(dev, flat, (struct kr_tensor){0}, h, &vae->attn_proj);
    kr_arena_release(dev, mark);
}

/* x F32 [h, w, 4 base] = the middle's output for a latent [channels, h, w] */
static void decode_middle(struct vae *vae, struct kr_device *dev, struct kr_tensor x,
                          struct kr_tensor latent)
{
    int64_t h = latent.dim[1], w = latent.dim[2];
    struct kr_mark mark = kr_arena_mark(dev);
    struct kr_tensor z = kr_new(dev, KR_F32, h, w, vae->channels, 0);
    struct kr_tensor z2 = kr_new(dev, KR_F32, h, w, vae->channels, 0);

    kr_planes_to_pixels(dev, z, latent);
    kr_scale_shift(dev, z, z, vae->latent_scale, vae->latent_shift);
    kr_conv2d(dev, z2, z, &vae->conv2);
    kr_conv2d(dev, x, z2, &vae->conv_in);
    add_branch(&vae->middle[0], dev, x, x);
    attend(vae, dev, x);
    add_branch(&vae->middle[1], dev, x, x);
    kr_arena_release(dev, mark);
}

/* -------------------------------------------------------------------------------- bands ----- */

struct rows {
    int64_t lo, hi; /* of the whole picture at a stage's scale */
};

static struct rows grow(struct rows r, int64_t by, int64_t limit)
{
    r.lo = r.lo > by ? r.lo - by : 0;
    r.hi = r.hi + by < limit ? r.hi + by : limit;
    return r;
}

/* keep[s]: rows that stage s must hand on (s > 0: of what comes into it before upsampling), so that
 * rows `out` of the picture come out right; h: rows of the latent. */
static void plan_rows(struct rows keep[VAE_STAGES], struct rows out, int64_t h)
{
    struct rows need = grow(out, 1, h * VAE_SCALE); /* conv_out */

    for (int s = VAE_STAGES - 1; s > 0; s--) {
        need = grow(need, STAGE_REACH + 1, h << s); /* the stage, and the upsampler's convolution */
        need.lo = need.lo / 2;
        need.hi = (need.hi + 1) / 2;
        keep[s] = need;
    }
    keep[0] = grow(need, STAGE_REACH, h);
}

/* What a stage works on: `in` is its input; `out` is the same tensor unless the channels change. */
struct stage {
    struct kr_tensor in, out;
};

static struct stage new_stage(const struct vae *vae, struct kr_device *dev, int s, struct rows keep,
                              int64_t w)
{
    const struct vae_residual *first = &vae->up[s][0];
    int64_t rows = (keep.hi - keep.lo) << (s > 0), columns = w << s;
    struct stage stage;

    stage.out = kr_new(dev, KR_F32, rows, columns, first->conv1.out, 0);
    stage.in = first->shortcut.data == NULL
                   ? stage.out
                   : kr_new(dev, KR_F32, rows, columns, first->conv1.in, 0);
    return stage;
}

static void run_stage(struct vae *vae, struct kr_device *dev, int s, struct stage stage)
{
    struct vae_residual *blocks = vae->up[s];

    if (blocks[0].shortcut.data != NULL)
        kr_conv2d(dev, stage.out, stage.in, &blocks[0].shortcut);
    add_branch(&blocks[0], dev, stage.out, stage.in);
    for (int i = 1; i < VAE_BLOCKS; i++)
        add_branch(&blocks[i], dev, stage.out, stage.out);
}

/* next [2 rows, 2 columns, C / 2] of x [rows, columns, C] */
static void upsample(struct kr_conv *conv, struct kr_device *dev, struct kr_tensor next,
                     struct kr_tensor x)
{
    struct kr_mark mark = kr_arena_mark(dev);
    struct kr_tensor u =
        kr_new(dev, kr_compute_dtype(dev), 2 * x.dim[0], 2 * x.dim[1], x.dim[2], 0);

    kr_upsample2(dev, u, x);
    kr_conv2d(dev, next, u, conv);
    kr_arena_release(dev, mark);
}

/* Rows `out` of the picture from the last stage's x, whose first row is row `base`. */
static void write_rows(struct vae *vae, struct kr_device *dev, struct kr_tensor picture,
                       struct kr_tensor x, struct rows out, int64_t base)
{
    int64_t height = picture.dim[1], width = picture.dim[2], count = out.hi - out.lo;
    struct kr_mark mark = kr_arena_mark(dev);
    struct kr_tensor rgb = kr_new(dev, KR_F32, x.dim[0], width, 3, 0);
    struct kr_tensor planes = kr_new(dev, KR_F32, 3, count, width, 0);
    struct kr_tensor lines = kr_reshape(picture, 3 * height, width, 0, 0);
    struct kr_tensor h = kr_new(dev, kr_compute_dtype(dev), x.dim[0], width, vae->base, 0);

    kr_rms_norm(dev, h, x, vae->out_norm, norm_eps, KR_ACT_SILU);
    kr_conv2d(dev, rgb, h, &vae->conv_out);
    kr_pixels_to_planes(dev, planes, kr_slice(rgb, out.lo - base, count));
    for (int64_t c = 0; c < 3; c++)
        kr_copy(dev, kr_slice(lines, c * height + out.lo, count),
                kr_reshape(kr_slice(planes, c, 1), count, width, 0, 0));
    kr_arena_release(dev, mark);
}

/* One band from the middle's output x [h, w, 4 base]. The largest tensors are taken first, so that
 * each stage's end frees all that the next one has no use for. */
static void decode_band(struct vae *vae, struct kr_device *dev, struct kr_tensor picture,
                        struct kr_tensor x, struct rows out)
{
    struct rows keep[VAE_STAGES];
    struct stage stages[VAE_STAGES];
    struct kr_mark marks[VAE_STAGES];
    int64_t base;

    plan_rows(keep, out, x.dim[0]);
    for (int s = VAE_STAGES - 1; s >= 0; s--) {
        marks[s] = kr_arena_mark(dev);
        stages[s] = new_stage(vae, dev, s, keep[s], x.dim[1]);
    }
    base = keep[0].lo;
    kr_copy(dev, stages[0].in, kr_slice(x, base, keep[0].hi - base));
    for (int s = 0; s < VAE_STAGES - 1; s++) {
        struct rows next = keep[s + 1];

        run_stage(vae, dev, s, stages[s]);
        upsample(&vae->upsample[s], dev, stages[s + 1].in,
                 kr_slice(stages[s].out, next.lo - base, next.hi - next.lo));
        base = 2 * next.lo;
        kr_arena_release(dev, marks[s]);
    }
    run_stage(vae, dev, VAE_STAGES - 1, stages[VAE_STAGES - 1]);
    write_rows(vae, dev, picture, stages[VAE_STAGES - 1].out, out, base);
    kr_arena_release(dev, marks[VAE_STAGES - 1]);
}

void vae_decode_tiled(struct vae *vae, struct kr_device *dev, struct kr_tensor picture,
                      struct kr_tensor latent, int64_t rows)
{
    int64_t h = latent.dim[1];
    struct kr_mark mark = kr_arena_mark(dev);
    struct kr_tensor x = kr_new(dev, KR_F32, h, latent.dim[2], 4 * vae->base, 0);

    assert(rows > 0);
    decode_middle(vae, dev, x, latent);
    for (int64_t lo = 0; lo < h; lo += rows) {
        int64_t hi = lo + rows < h ? lo + rows : h;

        decode_band(vae, dev, picture, x, (struct rows){lo * VAE_SCALE, hi * VAE_SCALE});
    }
    kr_arena_release(dev, mark);
}

void vae_decode(struct vae *vae, struct kr_device *dev, struct kr_tensor picture,
                struct kr_tensor latent)
{
    vae_decode_tiled(vae, dev, picture, latent, latent.dim[1]);
}
