/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens a safetensors file and proves its header before anything uses it: after st_open() every
 * tensor lies inside the mapping, has the size that its shape and type say, overlaps no other, and
 * its name is short, printable UTF-8. As the format demands, the tensors fill the data section
 * without holes, so a byte more or less than described is a damaged file.
 *
 * The header is read into memory of our own, so that nobody can change it between two looks; the
 * tensors stay in a private read-only mapping. Shrinking the file while it is mapped is beyond what
 * a process can defend against: touching a page that is gone raises SIGBUS and the daemon dies (and
 * is restarted by its supervisor). weights_unchanged() finds the change before a job where it can.
 * Replacing a file by rename is safe: the mapping keeps the old one.
 */
#include "daemon/weights/safetensors.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/weights/foreign.h"
#include "daemon/weights/strict_json.h"

enum { PREAMBLE = 8, HEADER_DEPTH = 8, MAX_TYPE = 24 };

/* All that safetensors defines. Types without a kr_dtype may stand in a file that is otherwise
 * good; nothing can be bound to them. Of a type that is not here (a newer one) the size is not
 * known. */
static const struct {
    const char *name;
    enum kr_dtype dtype;
    int bits;
} types[] = {
    {"F32", KR_F32, 32},
    {"BF16", KR_BF16, 16},
    {"F16", KR_F16, 16},
    {"F8_E4M3", KR_F8_E4M3, 8},
    {"F8_E5M2", KR_F8_E5M2, 8},
    {"I8", KR_I8, 8},
    {"U8", KR_U8, 8},
    {"I16", KR_I16, 16},
    {"I32", KR_I32, 32},
    {"I64", KR_I64, 64},
    {"F64", KR_F64, 64},
    {"BOOL", KR_BOOL, 8},
    {"U16", KR_DTYPES, 16},
    {"U32", KR_DTYPES, 32},
    {"U64", KR_DTYPES, 64},
    {"C64", KR_DTYPES, 64},
    {"F8_E8M0", KR_DTYPES, 8},
    {"F8_E4M3FNUZ", KR_DTYPES, 8},
    {"F8_E5M2FNUZ", KR_DTYPES, 8},
    {"F6_E2M3", KR_DTYPES, 6},
    {"F6_E3M2", KR_DTYPES, 6},
    {"F4", KR_DTYPES, 4},
};

/* ------------------------------------------------------------------------------ one tensor --- */

struct parse {
    struct safetensors *st;
    struct kr_err *err;
    char *pool; /* where the next string goes */
};

static const char *keep(struct parse *p, const char *text)
{
    size_t size = strlen(text) + 1;
    char *at = memcpy(p->pool, text, size);

    p->pool += size;
    return at;
}

static bool has_controls(const char *name)
{
    const unsigned char *c = (const unsigned char *)name;

    while (*c >= 0x20 && *c != 0x7f && !(c[0] == 0xc2 && c[1] < 0xa0))
        c++;
    return *c != '\0';
}

/* jansson has checked the UTF-8; what is left to refuse are names that would garble a message. */
static int check_name(struct parse *p, const char *name)
{
    char shown[64];

    if (!*name)
        return kr_fail(p->err, KR_BAD_FILE,
                       "%s: a tensor of its header has an empty name; the file is damaged",
                       p->st->shown);
    strict_json_printable(shown, sizeof shown, name, strlen(name));
    if (strlen(name) > ST_MAX_NAME)
        return kr_fail(p->err, KR_BAD_FILE,
                       "%s: the name of tensor %s has %zu bytes, at most %d are allowed",
                       p->st->shown, shown, strlen(name), ST_MAX_NAME);
    if (has_controls(name))
        return kr_fail(p->err, KR_BAD_FILE,
                       "%s: the name of tensor %s has control characters; the file is damaged",
                       p->st->shown, shown);
    return 0;
}

/* Fills type and dtype; *bits 0: unknown type. */
static int read_type(struct parse *p, const json_t *value, struct st_tensor *t, int *bits)
{
    const char *text = json_string_value(value);
    const char *c;
    size_t i;

    if (!text)
        return kr_fail(p->err, KR_BAD_FILE,
                       "%s: %s has no dtype in the header; the file is damaged", p->st->shown,
                       t->full);
    t->dtype = KR_DTYPES;
    *bits = 0;
    for (i = 0; i < sizeof types / sizeof *types; i++) {
        if (strcmp(text, types[i].name))
            continue;
        t->type = types[i].name;
        t->dtype = types[i].dtype;
        *bits = types[i].bits;
        return 0;
    }
    for (c = text; isupper((unsigned char)*c) || isdigit((unsigned char)*c) || *c == '_'; c++)
        ;
    if (*c || c == text || c - text > MAX_TYPE)
        return kr_fail(p->err, KR_BAD_FILE,
                       "%s: %s has a dtype that is no type's name; the file is damaged",
                       p->st->shown, t->full);
    t->type = keep(p, text);
    return 0;
}

/* Fills rank and dim; *elements is their product. */
static int read_shape(struct parse *p, const json_t *value, struct st_tensor *t, uint64_t *elements)
{
    const json_t *dim;
    size_t i;

    if (!json_is_array(value) || json_array_size(value) > ST_MAX_RANK)
        return kr_fail(
            p->err, KR_BAD_FILE,
            "%s: %s has no shape of at most %d dimensions in the header; the file is damaged",
            p->st->shown, t->full, ST_MAX_RANK);
    t->rank = (int)json_array_size(value);
    *elements = 1;
    for (i = 0; i < json_array_size(value); i++) {
        dim = json_array_get(value, i);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return kr_fail(
                p->err, KR_BAD_FILE,
                "%s: dimension %zu of %s is no whole number from 0 on; the file is damaged",
                p->st->shown, i, t->full);
        t->dim[i] = json_integer_value(dim);
        if (__builtin_mul_overflow(*elements, (uint64_t)t->dim[i], elements) ||
            *elements > INT64_MAX)
            return kr_fail(
                p->err, KR_BAD_FILE,
                "%s: the shape of %s has more elements than can exist; the file is damaged",
                p->st->shown, t->full);
    }
    return 0;
}

static int read_offsets(struct parse *p, const json_t *value, struct st_tensor *t)
{
    const json_t *begin = json_array_get(value, 0), *end = json_array_get(value, 1);

    if (!json_is_array(value) || json_array_size(value) != 2 || !json_is_integer(begin) ||
        !json_is_integer(end) || json_integer_value(begin) < 0)
        return kr_fail(p->err, KR_BAD_FILE,
                       "%s: %s has no pair of data_offsets in the header; the file is damaged",
                       p->st->shown, t->full);
    if (json_integer_value(end) < json_integer_value(begin))
        return kr_fail(p->err, KR_BAD_FILE,
                       "%s: the data_offsets of %s run backwards, from %" PRId64 " to %" PRId64
                       "; the file is damaged",
                       p->st->shown, t->full, (int64_t)json_integer_value(begin),
                       (int64_t)json_integer_value(end));
    t->begin = (uint64_t)json_integer_value(begin);
    t->bytes = (uint64_t)json_integer_value(end) - t->begin;
    return 0;
}

static int check_size(struct parse *p, const struct st_tensor *t, int bits, uint64_t elements)
{
    uint64_t all;
    char is[160];

    if (!bits)
        return 0;
    st_describe(t, is, sizeof is);
    if (__builtin_mul_overflow(elements, (uint64_t)bits, &all) || all % 8)
        return kr_fail(p->err, KR_BAD_FILE,
                       "%s: %s is %s, which is no whole number of bytes; the file is damaged",
                       p->st->shown, t->full, is);
    if (all / 8 != t->bytes)
        return kr_fail(p->err, KR_BAD_FILE,
                       "%s: %s is %s, which takes %" PRIu64
                       " bytes, but its data_offsets span %" PRIu64 "; the file is damaged",
                       p->st->shown, t->full, is, all / 8, t->bytes);
    return 0;
}

static int read_tensor(struct parse *p, const char *name, const json_t *value, struct st_tensor *t)
{
    uint64_t elements = 0;
    int bits;

    if (check_name(p, name) < 0)
        return -1;
    t->full = t->name = keep(p, name);
    if (read_type(p, json_object_get(value, "dtype"), t, &bits) < 0 ||
        read_shape(p, json_object_get(value, "shape"), t, &elements) < 0 ||
        read_offsets(p, json_object_get(value, "data_offsets"), t) < 0)
        return -1;
    return check_size(p, t, bits, elements);
}

/* ------------------------------------------------------------------------------ header ------- */

/* A copy of one text of __metadata__, NULL: there is none. */
static int keep_text(struct safetensors *st, json_t *metadata, const char *key, char **text,
                     struct kr_err *err)
{
    json_t *value = json_object_get(metadata, key);

    if (value && !(*text = strdup(json_string_value(value))))
        return kr_fail(err, KR_NO_MEMORY, "no memory for the header of %s", st->shown);
    return 0;
}

/* Strings to strings. Of what stands there only the quantization and the map for previews concern
 * us. */
static int read_metadata(struct safetensors *st, json_t *metadata, struct kr_err *err)
{
    const char *key;
    char shown[64];
    json_t *value;

    if (!json_is_object(metadata))
        return kr_fail(err, KR_BAD_FILE,
                       "%s: __metadata__ of its header is no JSON object; the file is damaged",
                       st->shown);
    json_object_foreach(metadata, key, value)
    {
        if (json_is_string(value))
            continue;
        strict_json_printable(shown, sizeof shown, key, strlen(key));
        return kr_fail(err, KR_BAD_FILE,
                       "%s: %s in __metadata__ of its header is no string; the file is damaged",
                       st->shown, shown);
    }
    if (keep_text(st, metadata, "_quantization_metadata", &st->quantization, err) < 0)
        return -1;
    return keep_text(st, metadata, "kread.latent_rgb", &st->preview, err);
}

/* Room for all tensors and their strings in two blocks. */
static int allocate(struct safetensors *st, json_t *root, char **pool, struct kr_err *err)
{
    size_t count = json_object_size(root), bytes = 0;
    const char *key;
    json_t *value;

    if (count > ST_MAX_TENSORS)
        return kr_fail(err, KR_BAD_FILE, "%s: its header lists %zu tensors, at most %d are allowed",
                       st->shown, count, ST_MAX_TENSORS);
    json_object_foreach(root, key, value) bytes += strlen(key) + 1 + MAX_TYPE + 1;
    st->tensors = calloc(count + 1, sizeof *st->tensors);
    st->pool = *pool = malloc(bytes + 1);
    if (!st->tensors || !st->pool)
        return kr_fail(err, KR_NO_MEMORY, "no memory for the header of %s", st->shown);
    return 0;
}

static int read_root(struct safetensors *st, json_t *root, struct kr_err *err)
{
    struct parse p = {.st = st, .err = err};
    const char *key;
    json_t *value;

    if (allocate(st, root, &p.pool, err) < 0)
        return -1;
    json_object_foreach(root, key, value)
    {
        if (!strcmp(key, "__metadata__")) {
            if (read_metadata(st, value, err) < 0)
                return -1;
            continue;
        }
        if (read_tensor(&p, key, value, &st->tensors[st->count]) < 0)
            return -1;
        st->count++;
    }
    if (!st->count)
        return kr_fail(err, KR_BAD_FILE, "%s: its header lists no tensor; take another file",
                       st->shown);
    return 0;
}

static int by_place(const void *a, const void *b)
{
    const struct st_tensor *x = a, *y = b;

    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* All that the header says is consistent, but the end is missing: an unfinished download. */
static int fail_truncated(const struct safetensors *st, uint64_t described, struct kr_err *err)
{
    uint64_t there = st->size - st->data;
    const struct st_tensor *t = st->tensors;

    while (t->begin + t->bytes <= there)
        t++;
    return kr_fail(err, KR_BAD_FILE,
                   "%s: the file is truncated: it ends inside %s after %zu of %" PRIu64
                   " bytes, so its download is not finished; fetch it again",
                   st->shown, t->full, st->size, st->data + described);
}

static int check_layout(struct safetensors *st, struct kr_err *err)
{
    uint64_t at = 0;
    const struct st_tensor *t;

    qsort(st->tensors, st->count, sizeof *st->tensors, by_place);
    for (t = st->tensors; t < st->tensors + st->count; t++) {
        if (t->begin < at)
            return kr_fail(err, KR_BAD_FILE,
                           "%s: %s and %s overlap in the file; the file is damaged", st->shown,
                           t[-1].full, t->full);
        if (t->begin > at)
            return kr_fail(err, KR_BAD_FILE,
                           "%s: %" PRIu64
                           " bytes before %s belong to no tensor; the file is damaged",
                           st->shown, t->begin - at, t->full);
        at += t->bytes;
    }
    if (at > st->size - st->data)
        return fail_truncated(st, at, err);
    if (at < st->size - st->data)
        return kr_fail(err, KR_BAD_FILE,
                       "%s: %" PRIu64
                       " bytes after its last tensor, %s, belong to no tensor; the file is damaged",
                       st->shown, st->size - st->data - at, t[-1].full);
    return 0;
}

static int read_header(struct safetensors *st, const char *text, size_t length, struct kr_err *err)
{
    char why[280];
    json_t *root;
    int result;

    if (length < 2 || *text != '{')
        return kr_fail(
            err, KR_BAD_FILE,
            "%s: its header is no JSON, so it is no safetensors file or damaged; fetch it again",
            st->shown);
    root = strict_json_load(text, length, HEADER_DEPTH, why, sizeof why);
    if (!root && errno == ENOMEM)
        return kr_fail(err, KR_NO_MEMORY, "%s: no memory to read its header", st->shown);
    if (!root)
        return kr_fail(err, KR_BAD_FILE,
                       "%s: its header is no valid JSON (%s); the file is damaged", st->shown, why);
    result = read_root(st, root, err);
    json_decref(root);
    return result < 0 ? -1 : check_layout(st, err);
}

/* ------------------------------------------------------------------------------ file --------- */

/* Names for people: valid UTF-8 without control characters, whatever the file system says. */
static void set_name(struct safetensors *st, const char *path)
{
    const char *slash = strrchr(path, '/');
    const char *base = slash && slash[1] ? slash + 1 : path;
    size_t n = strnlen(base, sizeof st->name - 1);
    json_t *utf8 = json_stringn(base, n); /* NULL for what is no UTF-8 */

    if (utf8 && !has_controls(base))
        memcpy(st->name, base, n);
    else
        strict_json_printable(st->name, sizeof st->name, base, n);
    json_decref(utf8);
    if (n >= sizeof st->shown)
        for (n = sizeof st->shown - 1; (st->name[n] & 0xc0) == 0x80; n--)
            ;
    memcpy(st->shown, st->name, n);
}

static int open_file(struct safetensors *st, const char *path, const char *what, struct kr_err *err)
{
    /* Without O_NONBLOCK opening a FIFO that somebody named by mistake would wait for ever. */
    st->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (st->fd < 0 && (errno == ENOENT || errno == ENOTDIR))
        return kr_fail(err, KR_BAD_CONFIG,
                       "the %s %s does not exist; correct its path in the profile", what, path);
    if (st->fd < 0 || fstat(st->fd, &st->stat) < 0)
        return kr_fail(err, KR_IO, "can't open the %s %s: %s", what, path, strerror(errno));
    if (!S_ISREG(st->stat.st_mode))
        return kr_fail(err, KR_BAD_FILE, "the %s %s is %s; name a .safetensors file", what, path,
                       S_ISDIR(st->stat.st_mode) ? "a folder" : "no regular file");
    st->size = (size_t)st->stat.st_size;
    return 0;
}

static int read_at(struct safetensors *st, void *buf, size_t size, size_t at, struct kr_err *err)
{
    ssize_t n;

    while (size) {
        n = pread(st->fd, buf, size, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return kr_fail(err, KR_IO, "can't read %s: %s", st->shown,
                           n < 0 ? strerror(errno) : "it shrank meanwhile");
        buf = (char *)buf + n;
        size -= (size_t)n;
        at += (size_t)n;
    }
    return 0;
}

/* The first bytes as the length of the header. They are looked at as a sign of another kind of file
 * only when they make no good length: 640 is also how a pickle starts. */
static int read_length(struct safetensors *st, uint64_t *length, struct kr_err *err)
{
    unsigned char head[32] = {0};
    size_t n = st->size < sizeof head ? st->size : sizeof head;
    const char *is;
    int i;

    if (n == 0)
        return kr_fail(err, KR_BAD_FILE,
                       "%s: the file is empty (0 bytes), so its download failed; fetch it again",
                       st->shown);
    if (read_at(st, head, n, 0, err) < 0)
        return -1;
    for (*length = 0, i = PREAMBLE - 1; i >= 0; i--)
        *length = *length << 8 | head[i];
    if (n >= PREAMBLE && *length >= 2 && *length <= ST_MAX_HEADER &&
        (n == PREAMBLE || head[PREAMBLE] == '{'))
        return 0;
    is = foreign_container(head, n);
    if (is)
        return kr_fail(err, KR_BAD_FILE, "%s %s", st->shown, is);
    if (n < PREAMBLE)
        return kr_fail(err, KR_BAD_FILE,
                       "%s: the file is truncated: it has %zu bytes, not even the 8 before its "
                       "header; fetch it again",
                       st->shown, n);
    return kr_fail(err, KR_BAD_FILE,
                   "%s is no safetensors file: its header would have %" PRIu64
                   " bytes (2 to %d are allowed)%s; take another file",
                   st->shown, *length, ST_MAX_HEADER,
                   n > PREAMBLE && head[PREAMBLE] != '{' ? " and is no JSON" : "");
}

static int load_header(struct safetensors *st, struct kr_err *err)
{
    uint64_t length = 0;
    char *text;
    int result;

    if (read_length(st, &length, err) < 0)
        return -1;
    if (length > st->size - PREAMBLE)
        return kr_fail(
            err, KR_BAD_FILE,
            "%s: the file is truncated: it has %zu bytes, its header alone takes %" PRIu64
            ", so its download is not finished; fetch it again",
            st->shown, st->size, length + PREAMBLE);
    st->data = PREAMBLE + (size_t)length;
    text = malloc((size_t)length);
    if (!text)
        return kr_fail(err, KR_NO_MEMORY, "no memory for the header of %s", st->shown);
    result = read_at(st, text, (size_t)length, PREAMBLE, err);
    if (result == 0)
        result = read_header(st, text, (size_t)length, err);
    free(text);
    return result;
}

static int map_file(struct safetensors *st, struct kr_err *err)
{
    void *map = mmap(NULL, st->size, PROT_READ, MAP_PRIVATE, st->fd, 0);

    if (map == MAP_FAILED)
        return kr_fail(err, KR_IO,
                       "can't map the %zu bytes of %s: %s (is the address space limited?)",
                       st->size, st->shown, strerror(errno));
    st->map = map;
    return 0;
}

int st_open(struct safetensors *st, const char *path, const char *what, struct kr_err *err)
{
    memset(st, 0, sizeof *st);
    st->fd = -1;
    set_name(st, path);
    if (open_file(st, path, what, err) < 0 || load_header(st, err) < 0 || map_file(st, err) < 0) {
        st_close(st);
        return -1;
    }
    return 0;
}

void st_close(struct safetensors *st)
{
    if (st->map)
        munmap(st->map, st->size);
    if (st->fd >= 0)
        close(st->fd);
    free(st->tensors);
    free(st->pool);
    free(st->quantization);
    free(st->preview);
    memset(st, 0, sizeof *st);
    st->fd = -1;
}

const void *st_data(const struct safetensors *st, const struct st_tensor *t)
{
    return st->map + st->data + t->begin;
}

int64_t st_elements(const struct st_tensor *t)
{
    int64_t n = 1;
    int i;

    for (i = 0; i < t->rank; i++)
        n *= t->dim[i];
    return n;
}

void st_describe(const struct st_tensor *t, char *buf, size_t size)
{
    size_t at = 0;
    int i;

    for (i = 0; i < t->rank && at < size; i++)
        at += (size_t)snprintf(buf + at, size - at, "%s%" PRId64, i ? "," : "[", t->dim[i]);
    if (at < size)
        snprintf(buf + at, size - at, "%s] %s", t->rank ? "" : "[", t->type);
}
