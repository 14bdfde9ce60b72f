# SPDX-License-Identifier: Apache-2.0
"""Trains a small tokenizer of Qwen's kind on the text below and records what transformers makes of
hard strings with it.

    python tests/reference/make_tokenizer_golden.py [tests/golden/tokenizer]

Writes vocab.json, merges.txt, tokenizer_config.json and cases.json: "texts" is [[text, ids], ...],
"blocks" is [[first code point, how many, how many ids, hash of the ids], ...] over probe(). Needs
`tokenizers` and `transformers`; the test that reads the files needs neither.
"""
import json
import os
import sys

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

CORPUS = """\
a red circle above a blue square on a white background
a small green triangle to the left of a large yellow star
two orange dots below a purple line, drawn with a thick brush
the old harbour at night, rain on the stones, lamps in the windows
portrait of a woman with grey hair who looks out of the train's window
I'll paint it again; you've seen that it's not what they're after, I'd say we don't mind, I'm sure
detailed photograph, natural light, 35 mm, f/2.8, 1/250 s, no text, no watermark
def main(argv):\n    return len(argv) == 2 and run(argv[1])\n
ein kleines grünes Dreieck über dem großen roten Kreis, daneben ein weißer Stern
un cercle rouge au-dessus d'un carré bleu, à côté d'une étoile dorée
маленький зелёный треугольник над большим красным кругом, белый фон
ένα μικρό πράσινο τρίγωνο πάνω από έναν μεγάλο κόκκινο κύκλο
白い背景の上に赤い円と青い四角、緑の三角
白色背景上的红色圆形和蓝色正方形，旁边有一颗星
하얀 배경 위의 빨간 원과 파란 사각형
दो नीले वर्ग और एक लाल वृत्त
دائرة حمراء فوق مربع أزرق
"""

ADDED = [  # content, special; the odd ones are there for the search
    ("<|endoftext|>", True),
    ("<|im_start|>", True),
    ("<|im_end|>", True),
    ("<tool>", False),
    ("<tool><|im", False),
    ("tool>x", False),
    (" padded ", False),
    ("e\u0301t\u00e9", False),
    ("\u2603", True),
]

PREFIX = ("<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, "
          "quantity, text, spatial relationships of the objects and background:<|im_end|>\n"
          "<|im_start|>user\n")
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n"


def letters():
    """GPT-2's letters for bytes."""
    own = set(range(0x21, 0x7F)) | set(range(0xA1, 0x100)) - {0xAD}
    others = iter(range(0x100, 0x200))
    return [chr(b if b in own else next(others)) for b in range(256)]


def probing_merges():
    """Merges that make visible how the pattern classes a code point (see probe()), where it ends a
    contraction ("it'spaint"), and which of equal pairs merges first ("zzz")."""
    byte = letters()
    for lead in range(0xC2, 0xF5):
        yield "a", byte[lead]
        yield "!", byte[lead]
    for last in range(0x80, 0xC0):
        yield byte[last], byte[0x0A]
    for last in "sStTeEmMlLdD" + byte[0xBF]:
        yield last, "p"
    yield from [("z", "z"), ("zz", "zz")]


def probe(code_points):
    """'a' merges into a letter only, '!!' into what is no letter, number or space, a line end
    into what is no letter or number; and marks move if the code point combines."""
    return "".join(f"a{c}!!{c}\n{c}\u0334{c}\u0316\u0301{c} " for c in map(chr, code_points))


def train():
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.NFC()
    trained.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    trained.decoder = decoders.ByteLevel()
    trained.train_from_iterator(CORPUS.splitlines(keepends=True) + [PREFIX, SUFFIX], trainers.BpeTrainer(
        vocab_size=700, min_frequency=2, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    merges = [tuple(m) for m in json.loads(trained.to_str())["model"]["merges"]]
    merges = list(dict.fromkeys(list(probing_merges()) + merges))
    names = list(dict.fromkeys(letters() + [a + b for a, b in merges]))
    return {name: i for i, name in enumerate(names)}, merges


def write_tokenizer(folder):
    vocab, merges = train()
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    config = {
        "add_bos_token": False, "add_prefix_space": False,
        "added_tokens_decoder": {str(len(vocab) + i): {"content": content, **flags, "special": special}
                                 for i, (content, special) in enumerate(ADDED)},
        "bos_token": None, "eos_token": "<|im_end|>", "extra_special_tokens": ["<|im_start|>"],
        "model_max_length": 131072, "pad_token": "<|endoftext|>", "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer", "unk_token": None}
    with open(f"{folder}/vocab.json", "w", encoding="utf-8") as f:
        json.dump(vocab, f, ensure_ascii=False, separators=(",", ":"))
        f.write("\n")
    with open(f"{folder}/merges.txt", "w", encoding="utf-8") as f:
        f.write("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges))
    with open(f"{folder}/tokenizer_config.json", "w", encoding="utf-8") as f:
        json.dump(config, f, ensure_ascii=False, indent=1)
        f.write("\n")


def texts():
    yield from ["", " ", "  ", "a", "\0", "a\0b\0\0c", "\n", "\r\n", "\r\n\r\n x", PREFIX + SUFFIX,
                PREFIX + "a red circle above a blue square" + SUFFIX]
    yield from CORPUS.splitlines()
    # White space: the run before a word gives it its last blank; line ends gather what is before them.
    for run in ["  ", "    ", "\t", " \t ", "\n", "\n\n", " \n", "\n ", " \n \n  ", "\r", "\t\r\n\t",
                "\u00a0", "\u3000\u3000", "\u2028", "\u0085\u0085", "\u180e", "\u200b", "\x0b\x0c", "\x1c",
                "\ufeff"]:
        yield from [f"a{run}b", f"a{run}", f"{run}b", f"1{run}2", f"!{run}!\n"]
    # Contractions, whose letters match by Unicode's case folding.
    for c in ["'s", "'S", "'\u017f", "'t", "'T", "'re", "'RE", "'rE", "'ve", "'VE", "'m", "'M", "'ll",
              "'LL", "'lL", "'d", "'D", "\u2019s", "''s", "'sx", "'x", "'l", "'r", "'\u00df", "'\ufb06",
              "'\u017f\u017f", "'r\u017f", "\u02bcs"]:
        yield from [f"it{c}", f"it{c}paint", f" {c} 1{c}"]
    # Numbers one by one; letters and marks of several scripts.
    yield from ["1234567890", "3.14e-5", "\u0661\u0662\u0663", "\u2167\u00bd\u00b2", "x2y3", "\u4e00\u4e8c 12",
                "f/2.8, 35mm", "a_b-c/d\\e", "...!?", "\u2026\u2014\u201equoted\u201c", "#hash @at $5 50%",
                "\U0001f600\U0001f469\u200d\U0001f680\ufe0f", "\u0928\u092e\u0938\u094d\u0924\u0947", "e\u0489x",
                "\u0e01\u0e33\u0e49", "\U0001d400\U0001d7ce", "\U000e0041", "\U0010ffff", "\uffff", "\ufdd0"]
    # NFC: composing, reordering, exclusions, Hangul, and marks that are younger than its Unicode.
    yield from ["e\u0301", "\u00e9", "a\u0323\u0302", "a\u0302\u0323", "\u1e69", "s\u0307\u0323", "q\u0307\u0323",
                "\u212b\u2126\u212a", "\u0340\u0341\u0343\u0344", "\u0958\u0915\u093c", "\u2adc\u2add\u0338",
                "\u1100\u1161\u11a8", "\u1100\u1161\u11a7", "\uac00\u11a7\u11a8", "\uac00\u11a8", "\u1100\u1161",
                "\u09c7\u09be\u09c7\u09d7", "\U0001d15e\U0001d1bb", "\ufb1d\u05b4\u05d9", "\uf900\U0002f800",
                "a\u08d3\u0301\u0316", "a\u0301\u0316\u08d3\u0316\u0301", "\U00011935\U00011930", "\U00011938",
                "\U000105d2\u0307", "x\u0c3c\u0334", "a\u0301\U0001e4ee\u0316", "\u0301a\u0316\u0301",
                "e" + "\u0301\u0316" * 20, "\u1fb7 \u03b1\u0345\u0342", "\u0f71\u0f72\u0f73\u0f74\u0f75"]
    # Added tokens, the leftmost and of those the longest, in the text as it was given.
    yield from ["<|im_start|>", "a<|im_end|>b", "a <|im_end|> b", "<|im_end|><|im_end|>\n", "<|im_end|", "<|im_end >",
                "<<|im_end|>>", "<tool>", "<tool><|im_start|>", "<tool><|im", "<tool>x", "<tool><|i", "tool>x",
                "<tool><tool><|im<tool>x", "a padded b", "a  padded  b", " padded padded ", " padded", "e\u0301t\u00e9",
                "\u00e9t\u00e9", "e\u0301te\u0301", "xe\u0301t\u00e9\u0301", "\u2603\u0301", "a\u2603e\u0301", "<|IM_START|>",
                "  <|im_start|>  ", "it'<|im_end|>s", "\n<|im_end|>\n", "1<|endoftext|>2", "e<|im_end|>\u0301"]
    yield from ["z" * n for n in range(2, 20)]
    yield "azzzbzzzzzzzc" + "z" * 301
    yield "a" * 300 + " " * 300 + "!" * 300 + "\n" * 300 + "1" * 30


def fnv(ids):
    value = 0xCBF29CE484222325
    for i in ids:
        for byte in i.to_bytes(4, "little"):
            value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{value:016x}"


def blocks():
    """The planes where something is assigned in full, and the corners of the others."""
    for first in range(0, 0x110000, 0x1000):
        if first < 0x34000 or first % 0x10000 in (0, 0xF000):
            yield [c for c in range(first, first + 0x1000) if not 0xD800 <= c < 0xE000]


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else "tests/golden/tokenizer"
    os.makedirs(folder, exist_ok=True)
    write_tokenizer(folder)
    reference = AutoTokenizer.from_pretrained(folder)
    lines = {"texts": [], "blocks": []}
    for text in dict.fromkeys(texts()):
        lines["texts"].append(json.dumps([text, reference.encode(text)], separators=(",", ":")))
    for chars in filter(None, blocks()):
        ids = reference.encode(probe(chars))
        lines["blocks"].append(json.dumps([chars[0], len(chars), len(ids), fnv(ids)], separators=(",", ":")))
    with open(f"{folder}/cases.json", "w") as f:
        f.write('{"texts":[\n' + ",\n".join(lines["texts"]) + '\n],"blocks":[\n' + ",\n".join(lines["blocks"]) + "\n]}\n")


main()
