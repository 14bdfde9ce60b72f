/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/engine/png_read.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <png.h>

struct source {
    const char *data;
    size_t size, at;
};

static void on_read(png_structp png, png_bytep bytes, size_t n)
{
    struct source *s = png_get_io_ptr(png);

    if (n > s->size - s->at)
        png_error(png, "the data ends early");
    memcpy(bytes, s->data + s->at, n);
    s->at += n;
}

static void on_error(png_structp png, png_const_charp message)
{
    (void)png;
    fail_msg("libpng: %s", message);
    abort();
}

static void on_warning(png_structp png, png_const_charp message)
{
    (void)png;
    fail_msg("libpng warns: %s", message);
}

static char *from_latin1(const char *text)
{
    char *utf8 = malloc(2 * strlen(text) + 1), *to = utf8;

    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if (*c >= 0x80)
            *to++ = (char)(0xc0 | *c >> 6);
        *to++ = (char)(*c < 0x80 ? *c : 0x80 | (*c & 0x3f));
    }
    *to = '\0';
    return utf8;
}

static void read_texts(struct png_read *read, png_structp png, png_infop info)
{
    png_textp texts;

    png_get_text(png, info, &texts, &read->count);
    assert_in_range(read->count, 0, 8);
    for (int i = 0; i < read->count; i++) {
        int latin1 = texts[i].compression <= PNG_TEXT_COMPRESSION_zTXt;

        read->keyword[i] = strdup(texts[i].key);
        read->text[i] = latin1 ? from_latin1(texts[i].text) : strdup(texts[i].text);
        read->chunk[i] = !latin1                                             ? "iTXt"
                         : texts[i].compression == PNG_TEXT_COMPRESSION_NONE ? "tEXt"
                                                                             : "zTXt";
    }
}

void png_read_init(struct png_read *read, const void *data, size_t size)
{
    struct source source = {data, size, 0};
    png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, NULL, on_error, on_warning);
    png_infop info = png_create_info_struct(png);

    memset(read, 0, sizeof(*read));
    png_set_read_fn(png, &source, on_read);
    png_read_info(png, info);
    read->width = (int)png_get_image_width(png, info);
    read->height = (int)png_get_image_height(png, info);
    assert_int_equal(png_get_bit_depth(png, info), 8);
    assert_int_equal(png_get_color_type(png, info), PNG_COLOR_TYPE_RGB);
    read_texts(read, png, info); /* they stand before the pixels */
    read->rgb = malloc((size_t)read->width * (size_t)read->height * 3);
    for (int y = 0; y < read->height; y++)
        png_read_row(png, read->rgb + (size_t)y * (size_t)read->width * 3, NULL);
    png_read_end(png, NULL);
    assert_int_equal(source.at, size);
    png_destroy_read_struct(&png, &info, NULL);
}

void png_read_fini(struct png_read *read)
{
    for (int i = 0; i < read->count; i++) {
        free(read->keyword[i]);
        free(read->text[i]);
    }
    free(read->rgb);
}

static int find(const struct png_read *read, const char *keyword)
{
    for (int i = 0; i < read->count; i++)
        if (strcmp(read->keyword[i], keyword) == 0)
            return i;
    fail_msg("the PNG has no text %s", keyword);
    return 0;
}

const char *png_read_text(const struct png_read *read, const char *keyword)
{
    return read->text[find(read, keyword)];
}

const char *png_read_chunk(const struct png_read *read, const char *keyword)
{
    return read->chunk[find(read, keyword)];
}
