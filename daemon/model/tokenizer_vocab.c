/* SPDX-License-Identifier: Apache-2.0
 *
 * vocab.json and merges.txt. Names are spelled in 256 "byte letters": printable bytes stand for
 * themselves (as Latin-1), the others for the code points from U+0100 on. The letters themselves
 * must be in the vocabulary, for every text is made of them. Merges are lines of two names; each
 * name, and the two together, must be in the vocabulary, and every other name must come from a
 * merge: a merges.txt that was cut short or belongs to another tokenizer is found by that.
 *
 * The real vocabulary asks for 600,000 look-ups while the daemon starts, nearly all of them in
 * memory that no cache holds. Hence slots that hold short names themselves, batches whose slots are
 * fetched ahead, and the guess that the next merge makes the next id, which is nearly always so.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/model/tokenizer_internal.h"
#include "daemon/weights/json_flat.h"

enum { BATCH = 32 }; /* names or lines that are fetched ahead */

/* A slot holds a name of up to eight bytes itself, so that finding it touches one cache line. */
struct vocab_slot {
    uint64_t word; /* those bytes, or the hash of a longer name */
    uint32_t length;
    uint32_t entry; /* index + 1; 0: empty */
};

/* ------------------------------------------------------------------------------- vocab.json --- */

static uint64_t name_word(const char *name, size_t length)
{
    uint64_t word, hash = 0;

    for (; length > 8; name += 8, length -= 8) {
        memcpy(&word, name, 8);
        hash = (hash + word + 1) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 32;
    }
    word = 0;
    for (size_t i = 0; i < length; i++)
        word = word << 8 | (unsigned char)name[i];
    return hash ? (hash ^ word) * 0x9E3779B97F4A7C15u : word;
}

/* Where the search for a name begins. */
static uint32_t first_slot(const struct vocab *vocab, uint64_t word, size_t length)
{
    uint64_t hash = (word ^ length) * 0xD6E8FEB86659FD93u;

    return (uint32_t)((hash ^ hash >> 32) * 0x9E3779B97F4A7C15u >> 32) & vocab->mask;
}

static void fetch_slot(const struct vocab *vocab, uint64_t word, size_t length)
{
    __builtin_prefetch(&vocab->slots[first_slot(vocab, word, length)]);
}

/* The slot that has this name, or the empty one where it would go. */
static struct vocab_slot *find_slot(const struct vocab *vocab, const char *name, size_t length,
                                    uint64_t word)
{
    uint32_t at = first_slot(vocab, word, length);

    for (; vocab->slots[at].entry != 0; at = (at + 1) & vocab->mask) {
        const struct vocab_slot *slot = &vocab->slots[at];

        if (slot->word == word && slot->length == length &&
            (length <= 8 || memcmp(vocab->entries[slot->entry - 1].name, name, length) == 0))
            break;
    }
    return &vocab->slots[at];
}

int32_t vocab_find(const struct vocab *vocab, const char *name, size_t length)
{
    return (int32_t)find_slot(vocab, name, length, name_word(name, length))->entry - 1;
}

static int no_memory(struct kr_err *err)
{
    return kr_fail(err, KR_NO_MEMORY, "no memory for the tokenizer");
}

static int append(struct vocab *vocab, struct vocab_entry entry, struct kr_err *err)
{
    if (vocab->count == vocab->room) {
        size_t room = vocab->room ? vocab->room * 2 : 4096;
        struct vocab_entry *grown = realloc(vocab->entries, room * sizeof(*grown));

        if (grown == NULL)
            return no_memory(err);
        vocab->entries = grown;
        vocab->room = room;
    }
    vocab->entries[vocab->count++] = entry;
    return 0;
}

static int read_entries(struct vocab *vocab, struct file_text *text, struct kr_err *err)
{
    struct json_flat flat;
    const char *name;
    size_t length;
    int64_t id;
    int rc;

    json_flat_init(&flat, "vocab.json", text->text, text->length);
    while ((rc = json_flat_next(&flat, &name, &length, &id, err)) == 1) {
        if (id < 0 || id > INT32_MAX)
            return kr_fail(err, KR_BAD_FILE, "vocab.json: \"%s\" has the id %lld, want 0 to %d",
                           quote(name, length).text, (long long)id, INT32_MAX);
        if (append(vocab, (struct vocab_entry){name, (uint32_t)length, (int32_t)id}, err) < 0)
            return -1;
    }
    if (rc == 0 && vocab->count == 0)
        return kr_fail(err, KR_BAD_FILE, "vocab.json has no entries");
    return rc;
}

/* Brings the entries into the order of their ids, which must be 0 to count - 1, each once. */
static int order_entries(struct vocab *vocab, struct kr_err *err)
{
    struct vocab_entry *entries = vocab->entries;

    for (size_t i = 0; i < vocab->count; i++) {
        while ((size_t)entries[i].id != i) {
            struct vocab_entry e = entries[i];

            if ((size_t)e.id >= vocab->count)
                return kr_fail(
                    err, KR_BAD_FILE,
                    "vocab.json: \"%s\" has the id %d, but its %zu entries want 0 to %zu",
                    quote(e.name, e.length).text, e.id, vocab->count, vocab->count - 1);
            if (entries[e.id].id == e.id)
                return kr_fail(err, KR_BAD_FILE,
                               "vocab.json: \"%s\" and \"%s\" have the same id %d",
                               quote(entries[e.id].name, entries[e.id].length).text,
                               quote(e.name, e.length).text, e.id);
            entries[i] = entries[e.id];
            entries[e.id] = e;
        }
    }
    return 0;
}

static int index_batch(struct vocab *vocab, size_t from, size_t n, struct kr_err *err)
{
    const struct vocab_entry *entries = &vocab->entries[from];
    uint64_t words[BATCH];

    for (size_t i = 0; i < n; i++) {
        words[i] = name_word(entries[i].name, entries[i].length);
        fetch_slot(vocab, words[i], entries[i].length);
    }
    for (size_t i = 0; i < n; i++) {
        const struct vocab_entry *e = &entries[i];
        struct vocab_slot *slot = find_slot(vocab, e->name, e->length, words[i]);

        if (slot->entry != 0)
            return kr_fail(err, KR_BAD_FILE, "vocab.json: \"%s\" stands there twice",
                           quote(e->name, e->length).text);
        *slot = (struct vocab_slot){words[i], e->length, (uint32_t)(from + i + 1)};
    }
    return 0;
}

static int index_entries(struct vocab *vocab, struct kr_err *err)
{
    size_t slots = 1024;

    while (slots < vocab->count + vocab->count / 2)
        slots *= 2;
    vocab->mask = (uint32_t)slots - 1;
    vocab->slots = calloc(slots, sizeof(*vocab->slots));
    if (vocab->slots == NULL)
        return no_memory(err);
    for (size_t i = 0; i < vocab->count; i += BATCH)
        if (index_batch(vocab, i, vocab->count - i < BATCH ? vocab->count - i : BATCH, err) < 0)
            return -1;
    return 0;
}

int vocab_read(struct vocab *vocab, struct file_text *text, struct kr_err *err)
{
    memset(vocab, 0, sizeof(*vocab));
    if (read_entries(vocab, text, err) == 0 && order_entries(vocab, err) == 0 &&
        index_entries(vocab, err) == 0)
        return 0;
    vocab_fini(vocab);
    return -1;
}

void vocab_fini(struct vocab *vocab)
{
    free(vocab->entries);
    free(vocab->slots);
    memset(vocab, 0, sizeof(*vocab));
}

/* ------------------------------------------------------------------------------ merges.txt ---- */

static bool is_printable(int byte)
{
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
}

static int read_byte_letters(struct bpe *bpe, const struct vocab *vocab, bool *made,
                             struct kr_err *err)
{
    int next = 0x100;

    for (int byte = 0; byte < 256; byte++) {
        int c = is_printable(byte) ? byte : next++;
        char letter[2] = {(char)c, 0};
        size_t length = 1;

        if (c >= 0x80) {
            letter[0] = (char)(0xC0 | c >> 6);
            letter[1] = (char)(0x80 | (c & 0x3F));
            length = 2;
        }
        bpe->byte_id[byte] = vocab_find(vocab, letter, length);
        if (bpe->byte_id[byte] < 0)
            return kr_fail(err, KR_BAD_FILE, "vocab.json: lacks \"%.*s\", the letter of byte %d",
                           (int)length, letter, byte);
        made[bpe->byte_id[byte]] = true;
    }
    return 0;
}

struct name {
    const char *text;
    size_t length;
    uint64_t word;
};

/* A line of merges.txt. */
struct line {
    const char *text;
    size_t length;
    size_t number; /* from 1 */
    struct name left, right;
};

/* Steps to the next line that is a merge; false at the end. *at is the rest of the file. */
static bool next_line(struct line *line, size_t *number, const char **at, const char *end)
{
    static const char version[] = "#version";

    while (*at < end) {
        const char *stop = memchr(*at, '\n', (size_t)(end - *at));

        line->text = *at;
        line->length = (size_t)((stop ? stop : end) - *at);
        line->number = ++*number;
        *at = stop ? stop + 1 : end;
        if (stop && line->length > 0 && line->text[line->length - 1] == '\r')
            line->length--;
        if (line->length < sizeof(version) - 1 ||
            memcmp(line->text, version, sizeof(version) - 1) != 0)
            return true;
    }
    return false;
}

static int split_line(struct line *line, const struct vocab *vocab, struct kr_err *err)
{
    const char *space = memchr(line->text, ' ', line->length);
    size_t left = space ? (size_t)(space - line->text) : 0;
    size_t right = space ? line->length - left - 1 : 0;

    if (left == 0 || right == 0 || memchr(space + 1, ' ', right))
        return kr_fail(err, KR_BAD_FILE,
                       "merges.txt: line %zu: want two names with one space between them",
                       line->number);
    line->left = (struct name){line->text, left, name_word(line->text, left)};
    line->right = (struct name){space + 1, right, name_word(space + 1, right)};
    fetch_slot(vocab, line->left.word, left);
    fetch_slot(vocab, line->right.word, right);
    return 0;
}

static int not_there(const struct line *line, const char *name, size_t length, struct kr_err *err)
{
    return kr_fail(err, KR_BAD_FILE, "merges.txt: line %zu: \"%s\" is not in vocab.json",
                   line->number, quote(name, length).text);
}

static int find_part(const struct vocab *vocab, const struct line *line, const struct name *part,
                     int32_t *id, struct kr_err *err)
{
    *id = (int32_t)find_slot(vocab, part->text, part->length, part->word)->entry - 1;
    return *id < 0 ? not_there(line, part->text, part->length, err) : 0;
}

/* Finds the id of both parts written together; scratch has room for the line. */
static int find_result(const struct vocab *vocab, const struct line *line, char *scratch,
                       int32_t guess, int32_t *id, struct kr_err *err)
{
    size_t length = line->left.length + line->right.length;

    memcpy(scratch, line->left.text, line->left.length);
    memcpy(scratch + line->left.length, line->right.text, line->right.length);
    *id = guess;
    if ((size_t)guess < vocab->count && vocab->entries[guess].length == length &&
        memcmp(vocab->entries[guess].name, scratch, length) == 0)
        return 0;
    *id = vocab_find(vocab, scratch, length);
    return *id < 0 ? not_there(line, scratch, length, err) : 0;
}

/* How many merges the file may have at most; a line of one takes four bytes. */
static size_t most_merges(const struct file_text *text)
{
    const char *at = text->text, *end = at + text->length;
    size_t lines = 1;

    while ((at = memchr(at, '\n', (size_t)(end - at))) != NULL) {
        lines++;
        at++;
    }
    return lines < text->length / 4 + 1 ? lines : text->length / 4 + 1;
}

struct merge_reader {
    const struct vocab *vocab;
    struct bpe *bpe;
    bool *made;
    char *scratch;
    int32_t guess; /* of the next merge's result */
    struct kr_err *err;
};

static int read_batch(struct merge_reader *r, struct line *lines, size_t n)
{
    struct bpe_merge merges[BATCH];

    for (size_t i = 0; i < n; i++)
        if (split_line(&lines[i], r->vocab, r->err) < 0)
            return -1;
    for (size_t i = 0; i < n; i++) {
        struct bpe_merge *m = &merges[i];

        if (find_part(r->vocab, &lines[i], &lines[i].left, &m->left, r->err) < 0 ||
            find_part(r->vocab, &lines[i], &lines[i].right, &m->right, r->err) < 0 ||
            find_result(r->vocab, &lines[i], r->scratch, r->guess, &m->result, r->err) < 0)
            return -1;
        r->guess = m->result + 1;
        bpe_fetch(r->bpe, m);
    }
    for (size_t i = 0; i < n; i++) {
        if (bpe_add(r->bpe, merges[i]) < 0)
            return kr_fail(r->err, KR_BAD_FILE, "merges.txt: line %zu repeats an earlier merge",
                           lines[i].number);
        r->made[merges[i].result] = true;
    }
    return 0;
}

static int read_merges(struct merge_reader *r, const struct file_text *text)
{
    const char *at = text->text, *end = at + text->length;
    struct line lines[BATCH];
    size_t number = 0, n;

    do {
        for (n = 0; n < BATCH && next_line(&lines[n], &number, &at, end);)
            n++;
        if (read_batch(r, lines, n) < 0)
            return -1;
    } while (n == BATCH);
    if (r->bpe->count == 0)
        return kr_fail(r->err, KR_BAD_FILE, "merges.txt has no merges");
    return 0;
}

int merges_read(struct bpe *bpe, const struct vocab *vocab, const struct file_text *text,
                bool *made, struct kr_err *err)
{
    struct merge_reader r = {.vocab = vocab, .bpe = bpe, .made = made, .err = err};
    int rc;

    if (bpe_init(bpe, most_merges(text)) < 0)
        return no_memory(err);
    if (read_byte_letters(bpe, vocab, made, err) < 0)
        return -1;
    r.scratch = malloc(text->length + 1);
    rc = r.scratch ? read_merges(&r, text) : no_memory(err);
    free(r.scratch);
    return rc;
}
