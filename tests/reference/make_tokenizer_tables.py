# SPDX-License-Identifier: Apache-2.0
"""Prints daemon/model/tokenizer_unicode.h: where the reference tokenizer's Unicode differs.

    python tests/reference/make_tokenizer_tables.py > daemon/model/tokenizer_unicode.h

Needs Python 3.11 (its unicodedata is Unicode 14, as PCRE2 10.42 is), the `tokenizers` package (the
reference, which is asked about every code point) and `unicodedata2` (a newer Unicode, for what
normalization may meet in later libraries).
"""
import unicodedata

import unicodedata2
from tokenizers import Regex, normalizers, pre_tokenizers

CODE_POINTS = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
HEAD = """\
/* SPDX-License-Identifier: Apache-2.0
 *
 * Written by tests/reference/make_tokenizer_tables.py; do not edit. The reference tokenizer splits
 * text by Unicode 16 and normalizes it by Unicode 9, whatever the libraries here know.
 */
#ifndef KR_TOKENIZER_UNICODE_H
#define KR_TOKENIZER_UNICODE_H

#include <stdint.h>
"""


def ranges(chars):
    out = []
    for c in sorted(ord(c) for c in chars):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def reference_class(pattern):
    split = pre_tokenizers.Split(Regex(pattern), "removed")
    return {c for c in CODE_POINTS if not split.pre_tokenize_str(c)}


def category(letter):
    return {c for c in CODE_POINTS if unicodedata.category(c).startswith(letter)}


def macro(name, comment, chars):
    print(f"\n/* {comment} */\n#define {name} \\")
    parts = [f"\\\\x{{{a:X}}}" + (f"-\\\\x{{{b:X}}}" if b > a else "") for a, b in ranges(chars)]
    lines = ["".join(parts[i : i + 4]) for i in range(0, len(parts), 4)]
    print(" \\\n".join(f'    "{line}"' for line in lines))


def barriers():
    """Characters that move or compose in a newer Unicode but are inert in the reference."""
    nfd = normalizers.NFD().normalize_str
    old = "\u0334", "\u0345"  # combining classes 1 and 240: the lowest and the highest
    inert = {"\u11a7"}  # no trailing consonant, but utf8proc 2.8 composes it away behind a syllable
    for c in CODE_POINTS:
        if unicodedata2.combining(c) and nfd(c) == c and c not in old:
            moves = nfd(c + old[0]) == old[0] + c or nfd(old[1] + c) == c + old[1]
            if not moves:
                inert.add(c)
        elif unicodedata2.normalize("NFD", c) != nfd(c):
            parts = unicodedata2.decomposition(c).split()
            inert |= {c} | {chr(int(p, 16)) for p in parts if int(p, 16) > 0x10000}
    return inert


def main():
    letters, numbers, spaces = (reference_class(p) for p in (r"\p{L}", r"\p{N}", r"\s"))
    known_letters, known_numbers = category("L"), category("N")
    assert known_letters <= letters and known_numbers <= numbers
    print(HEAD, end="")
    macro("LETTERS_SINCE_14", "In \\p{L} since Unicode 14.", letters - known_letters)
    macro("NUMBERS_SINCE_14", "In \\p{N} since Unicode 14.", numbers - known_numbers)
    macro("BLANKS", "All of \\s but \\r and \\n.", spaces - {"\r", "\n"})
    print("\n/* First and last of what combines or decomposes in some Unicode after 9, ascending. */")
    print("static const int32_t normalization_barriers[][2] = {")
    for a, b in ranges(barriers()):
        print(f"    {{0x{a:05X}, 0x{b:05X}}},")
    print("};\n\n#endif")


main()
