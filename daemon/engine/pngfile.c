/* SPDX-License-Identifier: Apache-2.0
 *
 * RGB pixels to the bytes of a PNG, in memory. Text that Latin-1 can hold goes into tEXt, which
 * every reader knows; other text goes into iTXt, uncompressed UTF-8, as Pillow writes and reads it.
 *
 * Compression: one fixed filter and a low zlib level. Trying all filters for each row costs several
 * times as long and gains a few percent at most on pictures from a diffusion model.
 *
 * libpng reports failure by longjmp (png.h brings setjmp.h along); everything that must survive it
 * lives in struct encoder.
 */
#include "daemon/engine/pngfile.h"

#include <stdlib.h>
#include <string.h>

#include <png.h>
#include <zlib.h>

#include "proto/utf8.h"

enum { LEVEL = 2, QUICK_MEMORY = 7, FILTER = PNG_FILTER_AVG };

struct encoder {
    png_structp png;
    png_infop info;
    png_text *texts;
    size_t text_count;
    char *data;
    size_t size, capacity;
    bool cancelled;
    char why[200];
};

/* -------------------------------------------------------------------------- text ------ */

/* Whether Latin-1 holds the text in printable characters and line ends. */
static bool fits_latin1(const char *text)
{
    while (*text) {
        uint32_t c = kr_utf8_next(&text);

        if (c > 0xff || (c >= 0x7f && c < 0xa0) || (c < 0x20 && c != '\n'))
            return false;
    }
    return true;
}

static void to_latin1(char *out, const char *text)
{
    while (*text)
        *out++ = (char)kr_utf8_next(&text);
    *out = '\0';
}

/* The texts of t[] are on the heap and freed by encoder_fini(). */
static int add_text(struct encoder *e, const struct pngfile_text *from)
{
    png_text *t = &e->texts[e->text_count];
    bool latin1 = fits_latin1(from->text);

    t->key = strdup(from->keyword);
    t->text = strdup(from->text);
    e->text_count++;
    if (!t->key || !t->text)
        return -1;
    if (latin1)
        to_latin1(t->text, from->text);
    t->compression = latin1 ? PNG_TEXT_COMPRESSION_NONE : PNG_ITXT_COMPRESSION_NONE;
    return 0;
}

static int add_texts(struct encoder *e, const struct pngfile_text *texts, size_t count)
{
    e->texts = calloc(count + 1, sizeof(*e->texts));
    if (!e->texts)
        return -1;
    for (size_t i = 0; i < count; i++)
        if (add_text(e, &texts[i]) < 0)
            return -1;
    return 0;
}

/* ------------------------------------------------------------------------ libpng ------ */

static void on_error(png_structp png, png_const_charp message)
{
    struct encoder *e = png_get_error_ptr(png);

    strncpy(e->why, message, sizeof(e->why) - 1);
    png_longjmp(png, 1);
}

static void on_warning(png_structp png, png_const_charp message)
{
    (void)png;
    (void)message;
}

static void on_write(png_structp png, png_bytep bytes, size_t n)
{
    struct encoder *e = png_get_io_ptr(png);

    if (e->size + n > e->capacity) {
        size_t capacity = (e->size + n) * 3 / 2 + 65536;
        char *data = realloc(e->data, capacity);

        if (!data)
            png_error(png, "out of memory");
        e->data = data;
        e->capacity = capacity;
    }
    memcpy(e->data + e->size, bytes, n);
    e->size += n;
}

static void on_flush(png_structp png)
{
    (void)png;
}

static bool cancelled(const struct pngfile *p)
{
    return p->cancel && atomic_load(p->cancel);
}

/* Huffman codes alone take half the time of a search for repetitions, which finds hardly any in a
 * picture that is still noise. */
static void set_quick(png_structp png)
{
    png_set_compression_strategy(png, Z_HUFFMAN_ONLY);
    png_set_compression_mem_level(png, QUICK_MEMORY);
}

static int encode(struct encoder *e, const struct pngfile *p)
{
    if (setjmp(png_jmpbuf(e->png)))
        return -1;
    png_set_write_fn(e->png, e, on_write, on_flush);
    png_set_IHDR(e->png, e->info, (png_uint_32)p->width, (png_uint_32)p->height, 8,
                 PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
                 PNG_FILTER_TYPE_DEFAULT);
    if (p->quick)
        set_quick(e->png);
    else
        png_set_compression_level(e->png, LEVEL);
    png_set_filter(e->png, PNG_FILTER_TYPE_BASE, FILTER);
    png_set_text(e->png, e->info, e->texts, (int)e->text_count);
    png_write_info(e->png, e->info);
    for (int64_t y = 0; y < p->height; y++) {
        e->cancelled = cancelled(p);
        if (e->cancelled)
            return -1;
        png_write_row(e->png, p->rgb + y * p->width * 3);
    }
    png_write_end(e->png, NULL);
    return 0;
}

static int encoder_init(struct encoder *e, const struct pngfile *p)
{
    *e = (struct encoder){.why = "out of memory"};
    e->png = png_create_write_struct(PNG_LIBPNG_VER_STRING, e, on_error, on_warning);
    if (e->png)
        e->info = png_create_info_struct(e->png);
    return e->info && add_texts(e, p->texts, p->text_count) == 0 ? 0 : -1;
}

static void encoder_fini(struct encoder *e)
{
    png_destroy_write_struct(&e->png, &e->info);
    for (size_t i = 0; i < e->text_count; i++) {
        free(e->texts[i].key);
        free(e->texts[i].text);
    }
    free(e->texts);
    free(e->data);
}

static int fail(const struct encoder *e, const struct pngfile *p, struct kr_err *err)
{
    if (e->cancelled)
        return kr_fail(err, KR_CANCELLED, "the job was cancelled");
    return kr_fail(err, KR_NO_MEMORY, "the PNG of %lld x %lld pixels could not be written: %s",
                   (long long)p->width, (long long)p->height, e->why);
}

int pngfile_encode(const struct pngfile *picture, void **data, size_t *size, struct kr_err *err)
{
    struct encoder e;
    int rc = encoder_init(&e, picture);

    if (rc == 0)
        rc = encode(&e, picture);
    if (rc == 0) {
        *data = e.data;
        *size = e.size;
        e.data = NULL;
    } else {
        fail(&e, picture, err);
    }
    encoder_fini(&e);
    return rc;
}
