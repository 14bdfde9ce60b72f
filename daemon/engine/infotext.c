/* SPDX-License-Identifier: Apache-2.0
 *
 * See infotext.h. Both texts depend only on values that determine the picture, never on how it was
 * asked for (as third of a series, detached, with previews), so that asking again for one picture
 * of a series gives the same file.
 */
#include "daemon/engine/infotext.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

void infotext_fields(struct jsonout *j, const struct kr_params *p, uint32_t except)
{
    for (int id = 0; id < KR_FIELDS; id++) {
        const struct kr_field *f = &kr_fields[id];

        if (!kr_has(p, id) || (except & kr_bit(id)))
            continue;
        if (f->type == KR_T_TEXT || f->type == KR_T_CHOICE)
            jsonout_text(j, f->name, kr_params_text(p, id));
        else if (f->type == KR_T_REAL)
            jsonout_real(j, f->name, kr_params_real(p, id));
        else if (f->type == KR_T_BOOL)
            jsonout_bool(j, f->name, kr_params_int(p, id) != 0);
        else
            jsonout_int(j, f->name, kr_params_int(p, id));
    }
}

/* A mu that was computed from the size may lie beyond what a request may say; the line's ends that
 * stand beside it give it again. */
static bool out_of_range(const struct kr_params *p)
{
    return p->mu < kr_fields[KR_F_MU].min || p->mu > kr_fields[KR_F_MU].max;
}

char *infotext_kread(const struct origin *from, const struct kr_params *p, int64_t seed)
{
    uint32_t except = kr_bit(KR_F_PREVIEW) | kr_bit(KR_F_DETACH);
    struct kr_params one = *p; /* borrows the texts */
    char *text = NULL;
    size_t size;
    struct jsonout j;
    FILE *out = open_memstream(&text, &size);

    if (!out)
        return NULL;
    one.seed = seed;
    one.count = 1;
    one.set |= kr_bit(KR_F_SEED) | kr_bit(KR_F_COUNT);
    jsonout_begin(&j, out);
    jsonout_open(&j, NULL, '{');
    infotext_fields(&j, &one, out_of_range(p) ? except | kr_bit(KR_F_MU) : except);
    jsonout_text(&j, "profile", from->profile);
    jsonout_text(&j, "architecture", from->architecture);
    jsonout_text(&j, "variant", from->variant);
    jsonout_text(&j, "diffusion_model", from->diffusion_model);
    jsonout_text(&j, "text_encoder", from->text_encoder);
    jsonout_text(&j, "vae", from->vae);
    jsonout_text(&j, "tokenizer", from->tokenizer);
    jsonout_text(&j, "version", KR_VERSION);
    jsonout_close(&j, '}');
    if (fclose(out) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

/* The file's name without its suffix and without the characters that the line's readers split at.
 */
static void put_model(FILE *out, const char *name)
{
    const char *suffix = strstr(name, ".safetensors");
    size_t length = suffix && suffix[12] == '\0' ? (size_t)(suffix - name) : strlen(name);

    for (size_t i = 0; i < length; i++)
        if (name[i] != ',' && name[i] != ':')
            fputc(name[i], out);
}

char *infotext_parameters(const struct origin *from, const struct kr_params *p, int64_t seed)
{
    char cfg[40], *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);

    if (!out)
        return NULL;
    kr_params_format(p, KR_F_CFG, cfg, sizeof(cfg));
    fprintf(out, "%s\n", p->prompt);
    if (p->negative && p->negative[0])
        fprintf(out, "Negative prompt: %s\n", p->negative);
    fprintf(out,
            "Steps: %" PRId64
            ", Sampler: Euler, Schedule type: Simple, CFG scale: %s, Seed: %" PRId64
            ", Size: %" PRId64 "x%" PRId64 ", Model: ",
            p->steps, cfg, seed, p->width, p->height);
    put_model(out, from->diffusion_model);
    fprintf(out, ", Version: kread %s", KR_VERSION);
    if (fclose(out) != 0) {
        free(text);
        return NULL;
    }
    return text;
}
