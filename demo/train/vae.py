# SPDX-License-Identifier: Apache-2.0
"""Wan's VAE for single frames: its 3-D convolutions see zeros before the first frame, so 2-D ones do."""
import torch
from torch import nn
import torch.nn.functional as F

# What the model's code assumes of raw latents; sampling happens in (raw - MEAN) / STD.
MEAN = torch.tensor([-.7571, -.7089, -.9113, .1075, -.1745, .9653, -.1517, 1.5508,
                     .4134, -.0715, .5517, -.3632, -.1922, -.9497, .2503, -.2921])
STD = torch.tensor([2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743,
                    3.2687, 2.1526, 2.8652, 1.5579, 1.6382, 1.1253, 2.8251, 1.9160])


class RMSNorm(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(channels))

    def forward(self, x):
        y = F.normalize(x.float(), dim=1).to(x.dtype)
        return y * (x.shape[1] ** 0.5) * self.gamma.view(1, -1, 1, 1)


class Residual(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.residual = nn.Sequential(RMSNorm(i), nn.SiLU(), nn.Conv2d(i, o, 3, padding=1),
                                      RMSNorm(o), nn.SiLU(), nn.Identity(), nn.Conv2d(o, o, 3, padding=1))
        self.shortcut = nn.Conv2d(i, o, 1) if i != o else nn.Identity()
        self.residual[6].weight.data *= 0.1
        nn.init.zeros_(self.residual[6].bias)

    def forward(self, x):
        return self.residual(x) + self.shortcut(x)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm, self.to_qkv, self.proj = RMSNorm(c), nn.Conv2d(c, 3 * c, 1), nn.Conv2d(c, c, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.to_qkv(self.norm(x)).reshape(b, 3, c, h * w).transpose(2, 3).unbind(1)
        o = F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]
        return x + self.proj(o.transpose(1, 2).reshape(b, c, h, w))


class Resample(nn.Module):
    def __init__(self, *steps):
        super().__init__()
        self.resample = nn.Sequential(*steps)

    def forward(self, x):
        return self.resample(x)


def up(c):
    return Resample(nn.Upsample(scale_factor=2.0, mode="nearest-exact"), nn.Conv2d(c, c // 2, 3, padding=1))


def middle(c):
    return nn.Sequential(Residual(c, c), Attention(c), Residual(c, c))


def head(i, o):
    return nn.Sequential(RMSNorm(i), nn.SiLU(), nn.Conv2d(i, o, 3, padding=1))


class Encoder(nn.Module):
    """Ours, not Wan's: it is not exported, so it may be quick, with all its work at the latents' size."""

    def __init__(self, wide=128, blocks=4):
        super().__init__()
        self.patches = nn.Conv2d(3, wide, 8, stride=8)
        self.blocks = nn.Sequential(*(Residual(wide, wide) for _ in range(blocks)))
        self.head = head(wide, 32)

    def forward(self, x):
        return self.head(self.blocks(self.patches(x)))


class Decoder(nn.Module):
    def __init__(self, base):
        super().__init__()
        c, layers = 4 * base, []
        self.conv1, self.middle = nn.Conv2d(16, c, 3, padding=1), middle(c)
        for level, wide in enumerate((4 * base, 4 * base, 2 * base, base)):
            layers += [Residual(c, wide), Residual(wide, wide), Residual(wide, wide)]
            c = wide
            if level < 3:
                layers.append(up(c))
                c //= 2
        self.upsamples, self.head = nn.Sequential(*layers), head(c, 3)

    def forward(self, z):
        return self.head(self.upsamples(self.middle(self.conv1(z))))


class VAE(nn.Module):
    def __init__(self, base=16):
        super().__init__()
        self.encoder, self.conv1 = Encoder(), nn.Conv2d(32, 32, 1)
        self.conv2, self.decoder = nn.Conv2d(16, 16, 1), Decoder(base)

    def encode(self, x):
        """Mean and log-variance of the raw latents."""
        mean, log_variance = self.conv1(self.encoder(x)).chunk(2, 1)
        return mean, log_variance.clamp(-30, 20)

    def decode(self, z):
        return self.decoder(self.conv2(z))

    def decode_normal(self, z):
        return self.decode(z * STD.view(1, -1, 1, 1) + MEAN.view(1, -1, 1, 1))

    @torch.no_grad()
    def fold(self, mean, scale):
        """Move and scale the latents: what was `mean` becomes MEAN, what was `scale` from it becomes STD."""
        a = STD / scale                                 # new = a * old + b
        b = MEAN - a * mean
        both = torch.cat((a, torch.ones(16)))
        self.conv1.weight *= both.view(-1, 1, 1, 1)
        self.conv1.bias.mul_(both).add_(torch.cat((b, torch.zeros(16))))
        self.conv1.bias[16:] += 2 * a.abs().log()
        self.conv2.bias -= self.conv2.weight[:, :, 0, 0] @ (b / a)
        self.conv2.weight /= a.view(1, -1, 1, 1)
