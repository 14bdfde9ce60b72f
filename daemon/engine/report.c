/* SPDX-License-Identifier: Apache-2.0
 *
 * The answer to "what exactly did it find?": for each part the file, its size, how many tensors in
 * which formats, and the sizes that were derived from their shapes; then what the parts take in
 * memory under each residency. For kread --inspect (before anything is opened) and for clients.
 */
#include "daemon/engine/report.h"

#include <inttypes.h>

#include "daemon/engine/internal.h"
#include "daemon/engine/parts.h"

struct sizes {
    size_t all, largest;
};

static struct sizes add_up(const struct report *r)
{
    struct sizes s = {0, 0};

    for (int i = 0; i < PARTS; i++) {
        size_t bytes = weights_bytes(r->parts->file[i]);

        s.all += bytes;
        s.largest = bytes > s.largest ? bytes : s.largest;
    }
    return s;
}

/* -------------------------------------------------------------------------- JSON ------ */

static void part_json(const struct report *r, enum part part, struct jsonout *j)
{
    const struct weights *file = r->parts->file[part];
    struct fact facts[MAX_FACTS];
    int count = r->family->facts(r->model, part, facts);
    char formats[256];

    weights_summary(file, formats, sizeof(formats));
    jsonout_open(j, part_keys[part], '{');
    jsonout_text(j, "file", weights_name(file));
    if (r->config)
        jsonout_text(j, "path", part_path(r->config, part));
    jsonout_int(j, "bytes", (int64_t)weights_bytes(file));
    jsonout_int(j, "tensors", (int64_t)weights_count(file, ""));
    jsonout_text(j, "formats", formats);
    jsonout_open(j, "dims", '{');
    for (int i = 0; i < count; i++)
        jsonout_int(j, facts[i].name, facts[i].value);
    jsonout_close(j, '}');
    jsonout_close(j, '}');
}

static void tokenizer_json(const struct report *r, struct jsonout *j)
{
    jsonout_open(j, "tokenizer", '{');
    jsonout_text(j, "folder", r->parts->tokenizer_name);
    if (r->config)
        jsonout_text(j, "path", r->config->tokenizer);
    jsonout_int(j, "vocabulary", (int64_t)tokenizer_vocabulary(r->parts->tokenizer));
    jsonout_close(j, '}');
}

void report_json(const struct report *r, struct jsonout *j)
{
    struct sizes sizes = add_up(r);

    jsonout_open(j, NULL, '{');
    jsonout_text(j, "profile", r->profile);
    jsonout_text(j, "architecture", r->family->architecture);
    jsonout_text(j, "variant", r->variant);
    for (int i = 0; i < PARTS; i++)
        part_json(r, i, j);
    tokenizer_json(r, j);
    jsonout_open(j, "weights", '{');
    jsonout_int(j, "resident", (int64_t)sizes.all);
    jsonout_int(j, "cached", (int64_t)sizes.largest);
    jsonout_close(j, '}');
    jsonout_close(j, '}');
}

/* -------------------------------------------------------------------------- text ------ */

static void part_text(const struct report *r, enum part part, FILE *out)
{
    const struct weights *file = r->parts->file[part];
    struct fact facts[MAX_FACTS];
    int count = r->family->facts(r->model, part, facts);
    char formats[256], bytes[16];

    weights_summary(file, formats, sizeof(formats));
    fprintf(out, "%-16s %s\n", part_names[part],
            r->config ? part_path(r->config, part) : weights_name(file));
    fprintf(out, "%-16s %s, %zu tensors: %s\n", "", bytes_text(weights_bytes(file), bytes),
            weights_count(file, ""), formats);
    fprintf(out, "%-16s ", "");
    for (int i = 0; i < count; i++)
        fprintf(out, "%s%s %" PRId64, i ? ", " : "", facts[i].name, facts[i].value);
    fprintf(out, "\n");
}

void report_text(const struct report *r, FILE *out)
{
    struct sizes sizes = add_up(r);
    char all[16], largest[16];

    fprintf(out, "%-16s %s (%s, %s)\n", "profile", r->profile, r->family->architecture, r->variant);
    for (int i = 0; i < PARTS; i++)
        part_text(r, i, out);
    fprintf(out, "%-16s %s\n", "tokenizer",
            r->config ? r->config->tokenizer : r->parts->tokenizer_name);
    fprintf(out, "%-16s vocabulary %zu\n", "", tokenizer_vocabulary(r->parts->tokenizer));
    fprintf(out,
            "%-16s %s of weights with residency resident, %s with cached (one part at a time), "
            "less with stream; a job's own memory is planned when it comes in\n",
            "memory", bytes_text(sizes.all, all), bytes_text(sizes.largest, largest));
}

/* ----------------------------------------------------------------------- inspect ------ */

int engine_inspect(const struct engine_config *config, FILE *out, bool json, struct kr_err *err)
{
    struct report r = {.config = config, .profile = config->profile};
    struct parts parts;
    struct jsonout j;
    void *model;
    int rc;

    if (parts_check(config, &r.family, &r.variant, err) < 0 ||
        parts_open(&parts, r.family, config, err) < 0)
        return -1;
    rc = r.family->bind(&parts, config, NULL, &model, err);
    if (rc == 0) {
        r.parts = &parts;
        r.model = model;
        jsonout_begin(&j, out);
        if (json) {
            report_json(&r, &j);
            fputc('\n', out);
        } else {
            report_text(&r, out);
        }
        r.family->unbind(model, NULL);
    }
    parts_close(&parts);
    return rc;
}
