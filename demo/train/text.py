# SPDX-License-Identifier: Apache-2.0
"""The tokenizer (byte-level BPE in Qwen's format) and the text encoder (Qwen3's layout, very small)."""
import json
import math
import os
import random

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch import nn
import torch.nn.functional as F

from common import world

PREFIX = ("<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, "
          "spatial relationships of the objects and background:<|im_end|>\n<|im_start|>user\n")
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n"
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
           r"|\s*[\r\n]+|\s+(?!\S)|\s+")
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TAPS = (2, 5, 8, 11, 14, 17, 20, 23, 26, 29, 32, 35)


def _tokenizer(model):
    t = Tokenizer(model)
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    return t


def make_tokenizer(folder, size=480, seed=5):
    """Trains the tokenizer on captions and on the template; writes vocab.json, merges.txt, tokenizer_config.json."""
    os.makedirs(folder, exist_ok=True)
    t, rng = _tokenizer(models.BPE()), random.Random(seed)
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
                                  min_frequency=2, show_progress=False)
    captions = [world.caption(world.random_scene(rng)) for _ in range(4000)]
    t.train_from_iterator(captions + [PREFIX, SUFFIX] * 50, trainer)
    bpe = json.loads(t.to_str())["model"]
    n = len(bpe["vocab"])
    write = lambda name, text: open(os.path.join(folder, name), "w", encoding="utf-8").write(text)
    write("vocab.json", json.dumps(bpe["vocab"], ensure_ascii=False))
    write("merges.txt", "#version: 0.2\n" + "".join(" ".join(m) + "\n" for m in bpe["merges"]))
    write("tokenizer_config.json", json.dumps({
        "add_prefix_space": False,
        "added_tokens_decoder": {
            str(n + i): {"content": s, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
                         "special": True} for i, s in enumerate(SPECIAL)},
        "model_max_length": 131072, "pad_token": SPECIAL[0], "tokenizer_class": "Qwen2Tokenizer", "unk_token": None,
    }, indent=1) + "\n")


def load_tokenizer(folder):
    t = _tokenizer(models.BPE.from_file(os.path.join(folder, "vocab.json"), os.path.join(folder, "merges.txt")))
    t.add_special_tokens(list(SPECIAL))
    return t


KEPT = 26                                               # the longest caption of the world, and the suffix


class Prompts:
    """Prompts to token ids: every row is prefix + prompt + suffix, padded on the right with zeros."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.prefix = len(tokenizer.encode(PREFIX).ids)

    def ids(self, captions, length=0):
        """Ids and how many of each row are kept (prompt and suffix); `length`: at least so many columns are kept."""
        rows = [self.tokenizer.encode(PREFIX + c + SUFFIX).ids for c in captions]
        lengths = torch.tensor([len(r) for r in rows])
        ids = torch.zeros(len(rows), max(int(lengths.max()), self.prefix + length), dtype=torch.long)
        for row, r in zip(ids, rows):
            row[:len(r)] = torch.tensor(r)
        return ids, lengths - self.prefix


class Layer(nn.Module):
    def __init__(self, wide, heads, kv_heads, head, hidden):
        super().__init__()
        linear = lambda i, o: nn.Linear(i, o, bias=False)
        self.head, self.repeat = head, heads // kv_heads
        self.self_attn = nn.ModuleDict({
            "q_proj": linear(wide, heads * head), "k_proj": linear(wide, kv_heads * head),
            "v_proj": linear(wide, kv_heads * head), "o_proj": linear(heads * head, wide),
            "q_norm": nn.RMSNorm(head, 1e-6), "k_norm": nn.RMSNorm(head, 1e-6)})
        self.mlp = nn.ModuleDict({"gate_proj": linear(wide, hidden), "up_proj": linear(wide, hidden),
                                  "down_proj": linear(hidden, wide)})
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(wide, 1e-6), nn.RMSNorm(wide, 1e-6)

    def qkv(self, x, cos, sin):
        a, y, half = self.self_attn, self.input_layernorm(x), self.head // 2
        split = lambda z: z.view(*z.shape[:2], -1, self.head)

        def rotate(z):
            z1, z2 = z.transpose(1, 2).split(half, -1)
            return torch.cat((z1 * cos - z2 * sin, z2 * cos + z1 * sin), -1)
        q, k = rotate(a["q_norm"](split(a["q_proj"](y)))), rotate(a["k_norm"](split(a["k_proj"](y))))
        v = split(a["v_proj"](y)).transpose(1, 2)
        return q, k.repeat_interleave(self.repeat, 1), v.repeat_interleave(self.repeat, 1)

    def rest(self, x, o):
        x = x + self.self_attn["o_proj"](o.transpose(1, 2).flatten(2))
        y, m = self.post_attention_layernorm(x), self.mlp
        return x + m["down_proj"](F.silu(m["gate_proj"](y)) * m["up_proj"](y))

    def forward(self, prefix, x, cos, sin, mask):
        """The prefix (one row) is the same for all rows of x, so it is computed once."""
        p = prefix.shape[1]
        qp, kp, vp = self.qkv(prefix, cos[:p], sin[:p])
        q, k, v = self.qkv(x, cos[p:], sin[p:])
        join = lambda a, b: torch.cat((a.expand(len(x), -1, -1, -1), b), 2)
        return (self.rest(prefix, F.scaled_dot_product_attention(qp, kp, vp, is_causal=True)),
                self.rest(x, F.scaled_dot_product_attention(q, join(kp, k), join(vp, v), attn_mask=mask)))


class TextEncoder(nn.Module):
    def __init__(self, vocabulary, wide=64, heads=2, kv_heads=1, head=32, hidden=64, layers=36):
        super().__init__()
        self.head = head
        self.embed_tokens = nn.Embedding(vocabulary, wide)
        self.layers = nn.ModuleList(Layer(wide, heads, kv_heads, head, hidden) for _ in range(layers))
        self.norm = nn.RMSNorm(wide, 1e-6)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                nn.init.normal_(p, 0, 0.5 if "embed" in name else 0.7 / math.sqrt(p.shape[1]))
            if "o_proj" in name or "down_proj" in name:
                p.data /= math.sqrt(2 * layers) / 2

    def forward(self, ids, prefix):
        """The 12 taps [rows, tokens after the prefix, 12, wide]. Pads lie on the right, so causality hides them."""
        n = ids.shape[1]
        angles = torch.arange(n)[:, None] / 5e6 ** (torch.arange(0, self.head, 2) / self.head)
        cos, sin = angles.cos(), angles.sin()
        p, x = self.embed_tokens(ids[:1, :prefix]), self.embed_tokens(ids[:, prefix:])
        mask = torch.ones(n - prefix, n, dtype=torch.bool).tril(prefix)
        taps = []
        for i, layer in enumerate(self.layers[:TAPS[-1]]):
            p, x = layer(p, x, cos, sin, mask)
            if i + 1 in TAPS:
                taps.append(x)
        return torch.stack(taps, 2)
