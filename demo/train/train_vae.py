# SPDX-License-Identifier: Apache-2.0
"""First training: the VAE. Its decoder also learns to bear inexact latents, as those of a sampler are."""
import random

import torch
import torch.nn.functional as F

from common import Clock, log, pictures, save, world
from vae import VAE

RATE = 7e-4


def gradients(x):
    return x[..., 1:] - x[..., :-1], x[..., 1:, :] - x[..., :-1, :]


def train(out, seconds, base=16, seed=1):
    torch.manual_seed(seed)
    rng = random.Random(seed)
    vae = VAE(base).to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(vae.parameters(), RATE, betas=(0.9, 0.99), weight_decay=1e-4)
    pool = {size: pictures([world.random_scene(rng) for _ in range(n)], size, size).to(torch.bfloat16)
            for size, n in ((64, 3000), (96, 1500), (128, 1500))}
    clock, step = Clock(seconds), 0
    while (share := clock.tick()) < 1:
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1, (step + 1) / 50) * (1 - share) ** 0.7 + 1e-5
        size = rng.choice((64, 64, 96)) if share < 0.55 else 128
        rows = torch.randint(len(pool[size]), ({64: 16, 96: 8, 128: 6}[size],))
        x = pool[size][rows].float().contiguous(memory_format=torch.channels_last)
        with torch.autocast("cpu", torch.bfloat16):
            mean, log_variance = vae.encode(x)
            z = mean + torch.randn_like(mean) * (log_variance * 0.5).exp()
            if rng.random() < 0.5:
                z = z + torch.randn_like(z) * rng.uniform(0, 0.25) * mean.detach().std()
            if rng.random() < 0.25:                     # latents shall scale as pictures do
                z, x = F.avg_pool2d(z, 2), F.avg_pool2d(x, 2)
            y = vae.decode(z).float()
        kl = 0.5 * (mean.float() ** 2 + log_variance.float().exp() - log_variance.float() - 1).mean()
        error = y - x
        edges = sum((a - b).abs().mean() for a, b in zip(gradients(y), gradients(x)))
        loss = error.abs().mean() + error.pow(2).mean() + 0.5 * edges + 5e-4 * kl
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
        optimizer.step()
        step += 1
        if step % 100 == 0:
            psnr = -10 * torch.log10(error.pow(2).mean() / 4)
            log(f"vae {step} {clock.spent():.0f} s size {size} psnr {psnr:.2f} kl {kl:.2f}", out + "/vae.log")
    normalize(vae, rng)
    save(vae.state_dict(), out + "/vae.pt")


@torch.no_grad()
def normalize(vae, rng):
    x = pictures([world.random_scene(rng) for _ in range(256)], 128, 128)
    z = torch.cat([vae.encode(part)[0] for part in x.split(32)]).transpose(0, 1).flatten(1)
    log(f"latents before: std {[round(v, 2) for v in z.std(1).tolist()]}")
    # Channels that hardly vary hold hardly anything: scaling them up would only make the sampler's task harder.
    vae.fold(z.mean(1), z.std(1).clamp(min=float(z.std(1).median())))


if __name__ == "__main__":
    import sys
    torch.set_num_threads(int(sys.argv[3]) if len(sys.argv) > 3 else 2)
    train(sys.argv[1], float(sys.argv[2]))
