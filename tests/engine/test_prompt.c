/* SPDX-License-Identifier: Apache-2.0
 *
 * The template: what stands before and behind a text, what is dropped, and what is cut. The golden
 * cases hold the ids against transformers; here are the rules themselves.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/engine/prompt.h"

#define FOLDER "tests/golden/scaled/tokenizer"

struct fixture {
    struct tokenizer *tokenizer;
    struct prompt_template template;
};

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    struct kr_err err;

    if (tokenizer_open(FOLDER, &f->tokenizer, &err) < 0 ||
        prompt_template_init(&f->template, f->tokenizer, "tokenizer", &err) < 0)
        fail_msg("%s", err.text);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;

    prompt_template_fini(&f->template);
    tokenizer_close(f->tokenizer);
    free(f);
    return 0;
}

static struct prompt build(const struct fixture *f, enum kr_dialect dialect, const char *text)
{
    struct prompt p;
    struct kr_err err;

    if (prompt_build(&p, &f->template, dialect, text, &err) < 0)
        fail_msg("%s", err.text);
    return p;
}

/* n times a word that is a known number of ids. */
static char *words(int n)
{
    char *text = calloc((size_t)n + 1, 2);

    for (int i = 0; i < n; i++)
        memcpy(text + 2 * i, "1 ",
               2); /* a digit is a token of its own; so is the blank behind it */
    return text;
}

static size_t count_of(const struct fixture *f, const char *text)
{
    struct kr_err err;
    int32_t *ids;
    size_t count;

    assert_int_equal(tokenizer_encode(f->tokenizer, text, strlen(text), &ids, &count, &err), 0);
    free(ids);
    return count;
}

static void assert_ends_with_suffix(const struct fixture *f, const struct prompt *p)
{
    const struct prompt_template *t = &f->template;

    assert_memory_equal(p->ids + p->count - t->suffix_count, t->suffix,
                        t->suffix_count * sizeof(*t->suffix));
}

static void test_short(void **state)
{
    const struct fixture *f = *state;
    static const char *const texts[] = {"", "a cat", "caf\xc3\xa9 \xf0\x9f\xa6\x8a", "  two  ",
                                        "(cat:1.3) <lora:x:0.8>"};

    for (int d = 0; d < 2; d++)
        for (int i = 0; i < 5; i++) {
            struct prompt p = build(f, d, texts[i]);

            assert_int_equal(p.cut, 0);
            assert_int_equal(p.skip, f->template.prefix_count);
            assert_true(p.count >= p.skip + f->template.suffix_count);
            assert_ends_with_suffix(f, &p);
            prompt_fini(&p);
        }
}

/* The opening of the assistant's turn has five ids with every vocabulary of this kind. */
static void test_suffix(void **state)
{
    const struct fixture *f = *state;
    int32_t start = tokenizer_added(f->tokenizer, "<|im_start|>");
    int32_t end = tokenizer_added(f->tokenizer, "<|im_end|>");

    assert_int_equal(f->template.suffix[0], end);
    assert_int_equal(f->template.suffix[2], start);
    assert_true(f->template.user_turn > 0 && f->template.user_turn < f->template.prefix_count);
}

static void test_limits(void **state)
{
    const struct fixture *f = *state;

    assert_int_equal(prompt_limit(KR_DIALECT_KREA), 507);
    assert_int_equal(prompt_limit(KR_DIALECT_COMFYUI), 4096);
    for (int d = 0; d < 2; d++)
        for (int n = 1; n < 12000; n += n < 600 ? 1 : 997) {
            char *text = words(n);
            size_t count = count_of(f, text), limit = prompt_limit(d);
            struct prompt p = build(f, d, text);
            size_t kept = count < limit ? count : limit;

            assert_int_equal(p.cut, count - kept);
            assert_int_equal(p.count, f->template.prefix_count + kept + f->template.suffix_count);
            assert_ends_with_suffix(f, &p);
            prompt_fini(&p);
            free(text);
        }
}

/* A text that begins with line ends merges with the prefix's own. ComfyUI then does not recognize
 * the end of the prefix; the official program drops the same number of ids as always. */
static void test_leading_line_ends(void **state)
{
    const struct fixture *f = *state;
    struct prompt krea = build(f, KR_DIALECT_KREA, "\n\na cat");
    struct prompt comfyui = build(f, KR_DIALECT_COMFYUI, "\n\na cat");
    bool merged = krea.ids[f->template.prefix_count - 1] != f->template.prefix_end;

    assert_int_equal(krea.count, comfyui.count);
    assert_memory_equal(krea.ids, comfyui.ids, krea.count * sizeof(*krea.ids));
    assert_int_equal(krea.skip, f->template.prefix_count);
    assert_int_equal(comfyui.skip, merged ? f->template.user_turn : f->template.prefix_count);
    prompt_fini(&krea);
    prompt_fini(&comfyui);
}

/* Special tokens in a user's text are tokens there too, as in the references, and do not move the
 * template's own. */
static void test_special_tokens_in_the_text(void **state)
{
    const struct fixture *f = *state;
    struct prompt p = build(f, KR_DIALECT_COMFYUI, "<|im_end|>\n<|im_start|>user\nx");
    int32_t start = tokenizer_added(f->tokenizer, "<|im_start|>");
    int starts = 0;

    for (size_t i = 0; i < p.count; i++)
        starts += p.ids[i] == start;
    assert_int_equal(starts, 4);
    assert_int_equal(p.skip, f->template.prefix_count);
    prompt_fini(&p);
}

static void test_real_vocabulary(void **state)
{
    const char *shared = getenv("KREAD_SHARED");
    char folder[512];
    struct fixture f;
    struct kr_err err;
    struct prompt p;

    (void)state;
    snprintf(folder, sizeof(folder), "%s/data/qwen25_tokenizer", shared ? shared : "../shared");
    if (tokenizer_open(folder, &f.tokenizer, &err) < 0)
        skip();
    assert_int_equal(prompt_template_init(&f.template, f.tokenizer, "tokenizer", &err), 0);
    assert_int_equal(f.template.prefix_count, 34);
    assert_int_equal(f.template.suffix_count, 5);
    p = build(&f, KR_DIALECT_COMFYUI, "\n\na cat"); /* the line ends merge: 3 tokens more */
    assert_int_equal(p.skip, 31);
    prompt_fini(&p);
    p = build(&f, KR_DIALECT_KREA, "");
    assert_int_equal(p.count, 39);
    prompt_fini(&p);
    prompt_template_fini(&f.template);
    tokenizer_close(f.tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_short),
        cmocka_unit_test(test_suffix),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_leading_line_ends),
        cmocka_unit_test(test_special_tokens_in_the_text),
        cmocka_unit_test(test_real_vocabulary),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
