/* SPDX-License-Identifier: Apache-2.0
 *
 * The files of a profile: opened in one place for start and for --inspect, so that both say the
 * same. The tokenizer's tables take longer to read than all headers together and are read by a
 * thread beside them.
 */
#include "daemon/engine/parts.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

const char *const part_names[PARTS] = {"text encoder", "diffusion model", "VAE"};
const char *const part_keys[PARTS] = {"text_encoder", "diffusion_model", "vae"};

const char *part_path(const struct engine_config *config, enum part part)
{
    return part == PART_TEXT_ENCODER      ? config->text_encoder
           : part == PART_DIFFUSION_MODEL ? config->diffusion_model
                                          : config->vae;
}

/* The last component of a path, without slashes at its end. */
static void base_name(const char *path, char *name, size_t size)
{
    size_t end = strlen(path), begin;

    while (end > 1 && path[end - 1] == '/')
        end--;
    for (begin = end; begin > 0 && path[begin - 1] != '/'; begin--)
        ;
    snprintf(name, size, "%.*s", (int)(end - begin), path + begin);
}

int parts_check(const struct engine_config *config, const struct family **family,
                const char **variant, struct kr_err *err)
{
    const char *const *v;

    *family = family_find(config->architecture, err);
    if (!*family)
        return -1;
    for (v = (*family)->variants; *v && strcmp(*v, config->variant) != 0; v++)
        ;
    *variant = *v;
    if (!*v)
        return kr_fail(err, KR_BAD_CONFIG,
                       "profile %s: there is no variant %.60s of %s; it is turbo or raw",
                       config->profile, config->variant, (*family)->architecture);
    for (int i = 0; i < PARTS; i++)
        if (!part_path(config, i) || !part_path(config, i)[0])
            return kr_fail(err, KR_BAD_CONFIG, "profile %s names no %s; set %s to its file",
                           config->profile, part_names[i], part_keys[i]);
    if (!config->tokenizer || !config->tokenizer[0])
        return kr_fail(err, KR_BAD_CONFIG,
                       "profile %s names no tokenizer; set tokenizer to a folder with vocab.json, "
                       "merges.txt and tokenizer_config.json",
                       config->profile);
    return 0;
}

struct tokenizer_job {
    const char *path;
    struct tokenizer *tokenizer;
    struct kr_err err;
    int rc;
};

static void *open_tokenizer(void *arg)
{
    struct tokenizer_job *job = arg;

    job->rc = tokenizer_open(job->path, &job->tokenizer, &job->err);
    return NULL;
}

static int open_files(struct parts *parts, const struct family *family,
                      const struct engine_config *config, struct kr_err *err)
{
    for (int i = 0; i < PARTS; i++)
        if (family->open(i, part_path(config, i), &parts->file[i], err) < 0)
            return -1;
    return 0;
}

int parts_open(struct parts *parts, const struct family *family, const struct engine_config *config,
               struct kr_err *err)
{
    struct tokenizer_job job = {.path = config->tokenizer};
    pthread_t thread;
    int beside, rc;

    memset(parts, 0, sizeof(*parts));
    base_name(config->tokenizer, parts->tokenizer_name, sizeof(parts->tokenizer_name));
    beside = pthread_create(&thread, NULL, open_tokenizer, &job) == 0;
    rc = open_files(parts, family, config, err);
    if (beside)
        pthread_join(thread, NULL);
    else if (rc == 0)
        open_tokenizer(&job);
    parts->tokenizer = job.tokenizer;
    if (rc == 0 && job.rc < 0)
        rc = kr_fail(err, job.err.code, "%s", job.err.text);
    if (rc < 0)
        parts_close(parts);
    return rc;
}

void parts_close(struct parts *parts)
{
    for (int i = 0; i < PARTS; i++)
        weights_close(parts->file[i]);
    if (parts->tokenizer)
        tokenizer_close(parts->tokenizer);
    memset(parts, 0, sizeof(*parts));
}
