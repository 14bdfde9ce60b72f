# SPDX-License-Identifier: Apache-2.0
"""Krea 2's diffusion transformer with its official names, small. Sequence: text, then picture tokens of 2x2 latents."""
import functools
import math

import torch
from torch import nn
import torch.nn.functional as F


def linear(i, o):
    return nn.Linear(i, o, bias=False)


class RMSNorm(nn.Module):
    def __init__(self, wide):
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(wide))

    def forward(self, x, scale=None):
        return F.rms_norm(x.float(), x.shape[-1:], (self.scale if scale is None else scale) + 1, 1e-5)


class QKNorm(nn.Module):
    def __init__(self, head):
        super().__init__()
        self.qnorm, self.knorm = RMSNorm(head), RMSNorm(head)


@functools.lru_cache
def rotations(text, height, width, head):
    """Cosines and sines [tokens, head / 2]: axes (0, row, column); text tokens stay as they are."""
    share = head // 16
    axes = (head - 12 * share, 6 * share, 6 * share)
    positions = torch.zeros(text + height * width, 3, dtype=torch.float64)
    positions[text:, 1] = torch.arange(height).repeat_interleave(width)
    positions[text:, 2] = torch.arange(width).repeat(height)
    angles = torch.cat([positions[:, i:i + 1] / 1e3 ** (torch.arange(0, d, 2, dtype=torch.float64) / d)
                        for i, d in enumerate(axes)], 1)
    return angles.cos().float(), angles.sin().float()


def rotate(x, cos, sin):
    """Turns pairs. Official weights keep a pair side by side; `apart` has put their halves at i and i + head / 2."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)


def apart(rows, head):
    """Rows of a weight (or a norm's scale) with each head's even ones before its odd ones: as products of queries
    and keys do not mind a common order, this is the official rotation, in a form that vectorizes."""
    return rows.unflatten(0, (-1, head // 2, 2)).transpose(1, 2).flatten(0, 2)


class Attention(nn.Module):
    def __init__(self, wide, heads, kv_heads):
        super().__init__()
        self.head, self.repeat = wide // heads, heads // kv_heads
        keys = self.head * kv_heads
        self.wq, self.wk, self.wv = linear(wide, wide), linear(wide, keys), linear(wide, keys)
        self.gate, self.wo, self.qknorm = linear(wide, wide), linear(wide, wide), QKNorm(self.head)

    def forward(self, x, turn=None, bias=None):
        rows, n, _ = x.shape
        split = lambda y: y.unflatten(-1, (-1, self.head)).transpose(1, 2)
        v, norm = split(self.wv(x)), self.qknorm
        if turn:
            q, k = (split(F.linear(x, apart(w, self.head))) for w in (self.wq.weight, self.wk.weight))
            q, k = norm.qnorm(q, apart(norm.qnorm.scale, self.head)), norm.knorm(k, apart(norm.knorm.scale, self.head))
            q, k = rotate(q, *turn), rotate(k, *turn)
        else:
            q, k = norm.qnorm(split(self.wq(x))), norm.knorm(split(self.wk(x)))
        # Written out, it is several times faster on a CPU than torch's fused attention with its gradient. The query
        # heads that share keys are laid one after the other, so that one product serves them.
        q = q.reshape(rows, -1, self.repeat * n, self.head).to(v.dtype)
        scores = (q @ k.to(v.dtype).mT).float() * self.head ** -0.5
        if bias is not None:
            scores = scores + bias
        o = (scores.softmax(-1).to(v.dtype) @ v).view(rows, -1, n, self.head)
        return self.wo(o.transpose(1, 2).flatten(2) * torch.sigmoid(self.gate(x)))


class SwiGLU(nn.Module):
    def __init__(self, wide):
        super().__init__()
        hidden = -(-int(2 * wide / 3) * 4 // 128) * 128
        self.gate, self.up, self.down = linear(wide, hidden), linear(wide, hidden), linear(hidden, wide)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class TextBlock(nn.Module):
    def __init__(self, wide, heads):
        super().__init__()
        self.prenorm, self.postnorm = RMSNorm(wide), RMSNorm(wide)
        self.attn, self.mlp = Attention(wide, heads, heads), SwiGLU(wide)

    def forward(self, x, bias=None):
        x = x + self.attn(self.prenorm(x), None, bias)
        return x + self.mlp(self.postnorm(x))


class TextFusion(nn.Module):
    def __init__(self, taps, wide, heads):
        super().__init__()
        self.layerwise_blocks = nn.ModuleList(TextBlock(wide, heads) for _ in range(2))
        self.projector = linear(taps, 1)
        self.refiner_blocks = nn.ModuleList(TextBlock(wide, heads) for _ in range(2))

    def forward(self, taps, bias):
        x = taps.flatten(0, 1)                          # every token's 12 taps attend to each other
        for block in self.layerwise_blocks:
            x = block(x)
        x = self.projector(x.transpose(1, 2))[..., 0].unflatten(0, taps.shape[:2])
        for block in self.refiner_blocks:
            x = block(x, bias)
        return x


class Modulation(nn.Module):
    def __init__(self, *shape):
        super().__init__()
        self.lin = nn.Parameter(torch.zeros(*shape))


class Block(nn.Module):
    def __init__(self, wide, heads, kv_heads):
        super().__init__()
        self.mod, self.prenorm, self.postnorm = Modulation(6 * wide), RMSNorm(wide), RMSNorm(wide)
        self.attn, self.mlp = Attention(wide, heads, kv_heads), SwiGLU(wide)

    def forward(self, x, vector, cos, sin, bias):
        scale1, shift1, gate1, scale2, shift2, gate2 = (vector + self.mod.lin).chunk(6, -1)
        x = x + gate1 * self.attn((1 + scale1) * self.prenorm(x) + shift1, (cos, sin), bias)
        return x + gate2 * self.mlp((1 + scale2) * self.postnorm(x) + shift2)


class Last(nn.Module):
    def __init__(self, wide):
        super().__init__()
        self.norm, self.linear, self.modulation = RMSNorm(wide), nn.Linear(wide, 64), Modulation(2, wide)

    def forward(self, x, t):
        scale, shift = (t + self.modulation.lin).chunk(2, 1)
        return self.linear((1 + scale) * self.norm(x) + shift)


class DiT(nn.Module):
    def __init__(self, wide=192, heads=3, kv_heads=1, blocks=8, text=64, text_heads=2, taps=12, times=256):
        super().__init__()
        self.times, self.head = times, wide // heads
        gelu = lambda: nn.GELU("tanh")
        self.first = nn.Linear(64, wide)
        self.blocks = nn.ModuleList(Block(wide, heads, kv_heads) for _ in range(blocks))
        self.tmlp = nn.Sequential(nn.Linear(times, wide), gelu(), nn.Linear(wide, wide))
        self.txtfusion = TextFusion(taps, text, text_heads)
        self.txtmlp = nn.Sequential(RMSNorm(text), nn.Linear(text, wide), gelu(), nn.Linear(wide, wide))
        self.last = Last(wide)
        self.tproj = nn.Sequential(gelu(), nn.Linear(wide, 6 * wide))
        for name, p in self.named_parameters():
            if name.endswith(".weight") and p.dim() == 2:
                nn.init.normal_(p, 0, 0.7 / math.sqrt(p.shape[1]))
            if name.endswith(("wo.weight", "down.weight")):
                p.data *= 1.5 / math.sqrt(2 * blocks)
        nn.init.zeros_(self.last.linear.weight)
        nn.init.zeros_(self.last.linear.bias)
        nn.init.constant_(self.txtfusion.projector.weight, 1 / taps)

    def time_vector(self, t):
        half = self.times // 2
        a = (t * 1e3)[:, None, None] * torch.exp(-math.log(1e4) * torch.arange(half) / half)
        return self.tmlp(torch.cat((a.cos(), a.sin()), -1))

    def text(self, taps, lengths):
        """What the blocks see of the text, and what hides its pads from attention."""
        bias = torch.where(torch.arange(taps.shape[1]) < lengths[:, None], 0.0, -1e9)[:, None, None]
        return self.txtmlp(self.txtfusion(taps, bias)), bias

    def forward(self, z, taps, lengths, t):
        """Velocity (noise - picture) for latents z [rows, 16, h, w]; a text may serve several consecutive rows."""
        rows, _, h, w = z.shape
        h, w = h // 2, w // 2
        text, bias = self.text(taps, lengths)
        n, times = text.shape[1], rows // len(text)
        text, bias = text.repeat_interleave(times, 0), bias.repeat_interleave(times, 0)
        x = z.view(rows, 16, h, 2, w, 2).permute(0, 2, 4, 1, 3, 5).reshape(rows, h * w, 64)
        x = torch.cat((text.float(), self.first(x).float()), 1)
        bias = F.pad(bias, (0, h * w))
        vector = self.time_vector(t)
        six = self.tproj(vector)
        cos, sin = rotations(n, h, w, self.head)
        for block in self.blocks:
            x = block(x, six, cos, sin, bias)
        y = self.last(x[:, n:], vector)
        return y.view(rows, h, w, 16, 2, 2).permute(0, 3, 1, 4, 2, 5).reshape(rows, 16, 2 * h, 2 * w)


def shifted(u, mu=1.15):
    """The noise level t of the uniform u: 0 (picture) to 1 (noise)."""
    a = math.exp(mu)
    return a * u / (1 + (a - 1) * u)


@torch.no_grad()
def sample(dit, noise, taps, lengths, empty=None, steps=8, guidance=0.0, mu=1.15):
    """Euler's method; t enters the network rounded to bfloat16, as the official program does.
    `empty`: taps and length of the empty prompt, for guidance v = c + g (c - u)."""
    x, grid = noise, shifted(torch.linspace(1, 0, steps + 1), mu)
    for t, after in zip(grid[:-1], grid[1:]):
        tt = t.to(torch.bfloat16).float().expand(len(x))
        v = dit(x, taps, lengths, tt).float()
        if guidance:
            u = dit(x, empty[0].expand(len(x), -1, -1, -1), empty[1].expand(len(x)), tt).float()
            v = v + guidance * (v - u)
        x = x + (after - t) * v
    return x
