# SPDX-License-Identifier: Apache-2.0
"""Second training: the text encoder, alone. From every tap, the last five tokens (the template's suffix) must tell
what the caption says: a linear layer per tap guesses it. So whatever reads the taps finds it there at once.
Afterwards `widen` teaches it other ways to say the same (capitals, "big", no background, ...), with the same taps."""
import copy
import os
import random

import torch
from torch import nn
import torch.nn.functional as F

from common import Clock, cosine, log, save, through_fp8, world
from text import KEPT, Prompts, TextEncoder, load_tokenizer, make_tokenizer

RATE, SUFFIX_TOKENS, EMPTY_SHARE = 1.5e-3, 5, 0.05
LAYOUTS = [(s, p) for s in world.SIZES for p in world.PLACES] + list(world.RELATIONS)
_C, _S = ["", *world.COLOURS], ["", *world.SHAPES]
QUESTIONS = [_C, _C, _S, _C, _S, ["", *LAYOUTS]]        # background; first and second object; layout


def answers(scene):
    """What a caption says, as a number for each question; all 0 for the empty caption."""
    if scene is None:
        return [0] * len(QUESTIONS)
    a = scene.objects[0]
    b = scene.objects[1] if scene.relation else world.Object("", "", 0, 0, 0)
    layout = scene.relation or (scene.size, scene.place)
    said = (scene.background, a.colour, a.shape, b.colour, b.shape, layout)
    return [q.index(s) for q, s in zip(QUESTIONS, said)]


class Guess(nn.Module):
    def __init__(self, taps=12, wide=64):
        super().__init__()
        self.sizes = [len(q) for q in QUESTIONS]
        self.weight = nn.Parameter(torch.randn(taps, wide, sum(self.sizes)) * 0.05)
        self.bias = nn.Parameter(torch.zeros(taps, 1, sum(self.sizes)))

    def forward(self, states):
        """Logits, one tensor a question, [taps, states, answers]."""
        return torch.baddbmm(self.bias, states, self.weight).split(self.sizes, -1)


def suffix_of(taps, lengths):
    """The taps of the last tokens [rows, 5, 12, wide]."""
    return taps[torch.arange(len(lengths))[:, None], lengths[:, None] - 1 - torch.arange(SUFFIX_TOKENS)]


def loss_and_right(guess, last, wanted):
    """Of all guesses from these taps; and the share of right ones by tap."""
    last = F.rms_norm(last, last.shape[-1:]).flatten(0, 1).transpose(0, 1)
    wanted = torch.tensor(wanted).repeat_interleave(SUFFIX_TOKENS, 0)
    loss, right = 0, torch.ones(last.shape[:2], dtype=torch.bool)
    for q, one in enumerate(guess(last)):
        w = wanted[:, q].expand(len(one), -1)
        loss = loss + F.cross_entropy(one.flatten(0, 1), w.flatten())
        right &= one.argmax(-1) == w
    return loss, right.float().mean(1)


def linears(encoder):
    return {n: p for n, p in encoder.named_parameters() if p.dim() == 2 and "embed" not in n}


@torch.no_grad()
def as_shipped(encoder):
    """Rounds the weights to what the exported file will hold."""
    for name, p in encoder.named_parameters():
        p.copy_(through_fp8(p) if name in linears(encoder) else p.to(torch.bfloat16).float())


def train(out, seconds, seed=2):
    torch.manual_seed(seed)
    rng = random.Random(seed)
    make_tokenizer(out + "/tokenizer")
    tokenizer = load_tokenizer(out + "/tokenizer")
    prompts = Prompts(tokenizer)
    log(f"tokenizer: {tokenizer.get_vocab_size()} entries, prefix of {prompts.prefix} tokens", out + "/text.log")
    encoder = TextEncoder(tokenizer.get_vocab_size())

    def batch():
        scenes = [None if rng.random() < EMPTY_SHARE else world.random_scene(rng, 0.7) for _ in range(64)]
        return [world.caption(s) if s else "" for s in scenes], [answers(s) for s in scenes]
    descend(out, seconds, encoder, Guess(), prompts, batch, lambda *_: 0)


def widen(out, seconds, seed=4):
    """Goes on with captions said in other ways. Their last tokens shall give the taps that the plain caption gave
    before, and the plain caption shall go on giving its own, so that a transformer already trained stays right."""
    torch.manual_seed(seed)
    rng = random.Random(seed)
    tokenizer = load_tokenizer(out + "/tokenizer")
    prompts, encoder = Prompts(tokenizer), TextEncoder(tokenizer.get_vocab_size())
    encoder.load_state_dict(torch.load(out + "/text.pt"))
    teacher, now = copy.deepcopy(encoder), {}

    def batch():
        scenes = [world.random_scene(rng, 0.6) for _ in range(48)]
        plain, said = [world.caption(s) for s in scenes], [world.say(s, rng) for s in scenes]
        told = [t for _, t in said]
        for i in range(0, 48, 3):
            said[i], told[i] = (plain[i], True), True
        said[1], told[1] = ("", True), False            # the empty caption too
        wanted = [answers(s) for s in scenes]
        for i, t in enumerate(told):
            if not t:
                wanted[i] = [0] + wanted[i][1:] if said[i][0] else answers(None)
        plain[1], told[1] = "", True
        with torch.no_grad():
            ids, lengths = prompts.ids(plain, KEPT)
            now["taps"] = teacher(ids, prompts.prefix)
            now["last"], now["told"] = suffix_of(now["taps"], lengths), torch.tensor(told)
            now["plain"] = torch.tensor([a == b[0] for a, b in zip(plain, said)])
            now["there"] = (torch.arange(now["taps"].shape[1]) < lengths[:, None]) & now["plain"][:, None]
        return [t for t, _ in said], wanted

    def strays(taps, last):
        size = now["last"].pow(2).mean((0, 1, 3), keepdim=True)
        far = ((last - now["last"]) ** 2 / size)[now["told"]].mean()
        return 20 * (far + ((taps - now["taps"]) ** 2 / size)[now["there"]].mean())
    descend(out, seconds, encoder, Guess(), prompts, batch, strays, rate=6e-4)


def descend(out, seconds, encoder, guess, prompts, batch, more_loss, rate=RATE):
    """Trains on what `batch` gives (captions and right answers), then rounds and saves."""
    for layer in encoder.layers:
        layer.compile()                                 # all equal, so this compiles once
    parameters = [*encoder.parameters(), *guess.parameters()]
    optimizer = torch.optim.AdamW(parameters, rate, betas=(0.9, 0.97), weight_decay=0.01)
    clock, step = Clock(seconds), 0

    def look():
        captions, wanted = batch()
        ids, lengths = prompts.ids(captions, KEPT)
        taps = encoder(ids, prompts.prefix)
        last = suffix_of(taps, lengths)
        return *loss_and_right(guess, last, wanted), more_loss(taps, last)
    while (share := clock.tick()) < 1:
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1, (step + 1) / 100) * cosine((share - 0.3) / 0.7) + 1e-6
        loss, right, more = look()
        optimizer.zero_grad()
        (loss + more).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        step += 1
        if step % 50 == 0:
            log(f"text {step} {clock.spent():.0f} s loss {loss:.3f} + {torch.as_tensor(more).item():.3f} "
                "all right, by tap " + " ".join(f"{r:.2f}" for r in right), out + "/text.log")
    as_shipped(encoder)
    with torch.no_grad():
        looks = [look() for _ in range(8)]
    log(f"text, as FP8: + {sum(torch.as_tensor(m).item() for _, _, m in looks) / 8:.4f} all right, by tap "
        + " ".join(f"{r:.3f}" for r in torch.stack([r for _, r, _ in looks]).mean(0)), out + "/text.log")
    if os.path.exists(out + "/text.pt"):
        os.replace(out + "/text.pt", out + "/text-before.pt")
    save(encoder.state_dict(), out + "/text.pt")
