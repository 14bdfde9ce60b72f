# SPDX-License-Identifier: Apache-2.0
"""Third training: the diffusion transformer, by flow matching, on latents and taps made beforehand."""
import os
import random
import re

import torch
import torch.nn.functional as F

from common import Clock, cosine, log, pictures, save, wait_while_paused, world
from dit import DiT, shifted
from muon import Muon
from text import KEPT, Prompts, TextEncoder, load_tokenizer
from vae import MEAN, STD, VAE

BATCH, SMALL_BATCHES = 24, 2                            # noisy pictures at once, two of each; as many times for a step
RATE, RATE_ADAM, WARM_UP, DECAY, AVERAGE = 3e-3, 1.5e-3, 100, 0.4, 0.998
EMPTY_SHARE, PAIR_SHARE, OBJECT_WEIGHT = 0.05, 0.6, 3.0
POOL, NEW, EVERY = 1536, 16, 10                         # pictures at first; so many more every so many batches
MOST = 25000
SIZES = {(128, 128): 0.6, (128, 192): 0.1, (192, 128): 0.1, (192, 192): 0.1, (256, 256): 0.1}   # of batches


def load_frozen(folder):
    tokenizer = load_tokenizer(folder + "/tokenizer")
    encoder, vae = TextEncoder(tokenizer.get_vocab_size()), VAE()
    encoder.load_state_dict(torch.load(folder + "/text.pt"))
    vae.load_state_dict(torch.load(folder + "/vae.pt"))
    return Prompts(tokenizer), encoder.eval(), vae.eval().to(memory_format=torch.channels_last)


class Conditions:
    """Taps of captions by the frozen encoder, each computed once and kept as bfloat16."""

    def __init__(self, prompts, encoder):
        self.prompts, self.encoder = prompts, encoder

    @torch.no_grad()
    def __call__(self, captions):
        taps, lengths = [], []
        for i in range(0, len(captions), 64):
            wait_while_paused()
            ids, n = self.prompts.ids(captions[i:i + 64], KEPT)
            taps.append(self.encoder(ids, self.prompts.prefix).to(torch.bfloat16))
            lengths.append(n)
        return torch.cat(taps), torch.cat(lengths)


class Pool:
    """Pictures of one size, ready for training: latents, weights of their latents, captions' taps and lengths."""

    def __init__(self, size, conditions, vae, rng):
        self.size, self.conditions, self.vae, self.rng, self.rows = size, conditions, vae, rng, None

    @torch.no_grad()
    def add(self, n):
        h, w = self.size
        scenes = [world.random_scene(self.rng, PAIR_SHARE) for _ in range(n)]
        captions = ["" if self.rng.random() < EMPTY_SHARE else world.caption(s) for s in scenes]
        latents = []
        with torch.autocast("cpu", torch.bfloat16):
            for i in range(0, n, 16):
                wait_while_paused()
                x = pictures(scenes[i:i + 16], h, w).contiguous(memory_format=torch.channels_last)
                latents.append(self.vae.encode(x)[0].float())
        latents = (torch.cat(latents) - MEAN.view(1, -1, 1, 1)) / STD.view(1, -1, 1, 1)
        objects = torch.stack([torch.from_numpy(sum(world.mask(o.shape, h, w, o.x, o.y, o.r) for o in s.objects))
                               for s in scenes]).float()
        near = F.max_pool2d(F.avg_pool2d(objects[:, None], 8), 3, 1, 1) > 0.02
        weight = 1 + OBJECT_WEIGHT * near.float()
        weight = weight / weight.mean(dim=(1, 2, 3), keepdim=True)
        new = (latents, weight.to(torch.bfloat16), *self.conditions(captions))
        if self.rows is None:
            self.rows = list(new)
        else:
            self.rows = [torch.cat((old, more))[-MOST:] for old, more in zip(self.rows, new)]

    def batch(self, n):
        pick = torch.randint(len(self.rows[0]), (n,))
        return [r[pick] for r in self.rows]


def split_parameters(dit):
    matrices, others = [], []
    for name, p in dit.named_parameters():
        inner = p.dim() == 2 and not name.startswith(("first", "last")) and not re.search("projector|mod", name)
        (matrices if inner else others).append(p)
    return matrices, others


def compiled(dit):
    for block in (*dit.blocks, *dit.txtfusion.layerwise_blocks, *dit.txtfusion.refiner_blocks, dit.last):
        block.compile(dynamic=False)
    return dit


def flat(tensors):
    return torch.cat([t.detach().flatten() for t in tensors])


def put(vector, tensors):
    for t, part in zip(tensors, vector.split([t.numel() for t in tensors])):
        t.copy_(part.view_as(t))


class Worker:
    """Pictures and a copy of the network; `gradient` works on one small batch, with one thread."""

    def __init__(self, out, seed):
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        prompts, encoder, self.vae = load_frozen(out)
        self.conditions, self.rng = Conditions(prompts, encoder), random.Random(seed)
        self.pools = {size: Pool(size, self.conditions, self.vae, self.rng) for size in SIZES}
        for size, share in SIZES.items():
            self.pools[size].add(int(POOL * share))
        self.dit, self.calls = compiled(DiT()), 0
        self.parameters = list(self.dit.parameters())

    def gradient(self):
        """Of the mean loss over a batch, as one vector; and that loss."""
        size = self.rng.choices(list(SIZES), SIZES.values())[0]
        self.calls += 1
        if self.calls % EVERY == 0:
            self.pools[size].add(NEW)
        x0, weight, taps, lengths = self.pools[size].batch(BATCH * 128 * 128 // (size[0] * size[1]) // 2)
        x0, weight = x0.repeat_interleave(2, 0), weight.repeat_interleave(2, 0)
        n = len(x0)
        t, noise = shifted((torch.randperm(n) + torch.rand(n)) / n), torch.randn_like(x0)
        tt = t.view(-1, 1, 1, 1)
        self.dit.zero_grad()
        # Compiling takes longer than the rarer sizes would save.
        with (torch.compiler.set_stance("default" if size == (128, 128) else "force_eager"),
              torch.autocast("cpu", torch.bfloat16)):
            v = self.dit((1 - tt) * x0 + tt * noise, taps, lengths, t)
        loss = ((v.float() - (noise - x0)) ** 2 * weight).mean()
        loss.backward()
        return flat([p.grad for p in self.parameters]), loss.item()


class Shared:
    """What the processes have in common: the weights, and the sum of the gradients not yet used."""

    def __init__(self, context, weights, seed):
        self.weights, self.gradients = weights.clone().share_memory_(), torch.zeros_like(weights).share_memory_()
        self.count, self.loss = context.Value("i", 0, lock=False), context.Value("d", 0.0, lock=False)
        self.lock, self.stop, self.seed = context.Lock(), context.Event(), seed

    def add(self, gradient, loss):
        self.gradients += gradient
        self.count.value += 1
        self.loss.value += loss


def help_out(shared, out, number):
    """A helping process: gradients of whatever weights there are. One that gets little time does no harm."""
    worker, parent = Worker(out, shared.seed * 1000 + number), os.getppid()
    while not shared.stop.is_set() and os.getppid() == parent:
        wait_while_paused()
        with shared.lock, torch.no_grad():
            put(shared.weights, worker.parameters)
        found = worker.gradient()
        with shared.lock:
            shared.add(*found)


def train(out, seconds, seed=3, processes=2, evaluate=None, checkpoint_every=240):
    path, logfile = out + "/dit.pt", out + "/dit.log"
    state = torch.load(path) if os.path.exists(path) else None
    step, spent = (state["step"], state["spent"]) if state else (0, 0.0)
    torch.manual_seed(seed)
    initial = DiT()
    if state:
        initial.load_state_dict(state["dit"])
        log(f"dit: resumed at step {step}", logfile)
    context = torch.multiprocessing.get_context("spawn")
    shared = Shared(context, flat(initial.parameters()), seed + step)
    helpers = [context.Process(target=help_out, args=(shared, out, n), daemon=True) for n in range(1, processes)]
    for helper in helpers:
        helper.start()
    worker = Worker(out, shared.seed * 1000)
    dit = worker.dit
    dit.load_state_dict(initial.state_dict())
    matrices, others = split_parameters(dit)
    muon, adam = Muon(matrices, RATE), torch.optim.AdamW(others, RATE_ADAM, betas=(0.9, 0.97), weight_decay=0.0)
    averaged = {n: p.detach().clone() for n, p in dit.named_parameters()}
    if state:
        muon.load_state_dict(state["muon"])
        adam.load_state_dict(state["adam"])
        averaged = state["averaged"]
    clock, mean_loss = Clock(seconds, spent), None
    saved = since = clock.spent()
    while (share := clock.tick()) < 1:
        found = worker.gradient()
        with shared.lock:
            shared.add(*found)
            if (n := shared.count.value) < SMALL_BATCHES:
                continue
            total, loss = shared.gradients / n, shared.loss.value / n
            shared.gradients.zero_()
            shared.count.value, shared.loss.value = 0, 0.0
        put(total, [p.grad for p in worker.parameters])
        rate = min(1, (step + 1) / WARM_UP) * cosine((share - 1 + DECAY) / DECAY) + 1e-3
        muon.param_groups[0]["lr"], adam.param_groups[0]["lr"] = RATE * rate, RATE_ADAM * rate
        torch.nn.utils.clip_grad_norm_(worker.parameters, 1.0)
        muon.step()
        adam.step()
        step += 1
        with shared.lock:
            shared.weights.copy_(flat(worker.parameters))
        with torch.no_grad():
            torch._foreach_lerp_(list(averaged.values()), [p.detach() for p in worker.parameters],
                                 1 - min(AVERAGE, (1 + step) / (10 + step)))
        mean_loss = loss if mean_loss is None else mean_loss + 0.02 * (loss - mean_loss)
        if step % 50 == 0:
            log(f"dit {step} {clock.spent():.0f} s loss {mean_loss:.4f} rate {rate:.3f} "
                f"{(clock.spent() - since) / 50:.2f} s/step", logfile)
            since = clock.spent()
        if clock.spent() - saved > checkpoint_every or clock.share() >= 1:
            save({"dit": dit.state_dict(), "averaged": averaged, "muon": muon.state_dict(), "adam": adam.state_dict(),
                  "step": step, "spent": clock.spent()}, path)
            if evaluate:
                log(f"dit {step} " + evaluate(averaged, worker.conditions, worker.vae), logfile)
            saved = since = clock.spent()
    shared.stop.set()
    for helper in helpers:
        helper.join()


def load_averaged(folder):
    dit = DiT()
    dit.load_state_dict(torch.load(folder + "/dit.pt")["averaged"])
    return dit.eval()
