# SPDX-License-Identifier: Apache-2.0
"""Muon (Keller Jordan et al., 2024): momentum whose matrices are made orthogonal, with updates as large as AdamW's
(Liu et al., 2025). Matrices of one shape are handled together, which is what makes it quick on a CPU."""
from collections import defaultdict

import torch


def orthogonal(g, rounds=5):
    """Newton-Schulz iteration towards the nearest semi-orthogonal matrices, [n, rows, columns]."""
    wide = g.shape[1] <= g.shape[2]
    x = (g if wide else g.mT).to(torch.bfloat16)
    x = x / (x.float().norm(dim=(1, 2), keepdim=True).to(x.dtype) + 1e-7)
    for _ in range(rounds):
        a = x @ x.mT
        b = torch.baddbmm(a, a, a, beta=-4.7750, alpha=2.0315)
        x = torch.baddbmm(x, b, x, beta=3.4445)
    return (x if wide else x.mT).float()


class Muon(torch.optim.Optimizer):
    def __init__(self, parameters, lr, momentum=0.95, weight_decay=0.0):
        super().__init__(list(parameters), {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            shapes = defaultdict(list)
            for p in group["params"]:
                shapes[p.shape].append(p)
            for shape, parameters in shapes.items():
                g = torch.stack([p.grad for p in parameters])
                state = self.state[parameters[0]]
                m = state.setdefault("momentum", torch.zeros_like(g))
                m.lerp_(g, 1 - group["momentum"])
                update = orthogonal(g.lerp(m, group["momentum"]))
                size = group["lr"] * 0.2 * max(shape) ** 0.5
                for p, u in zip(parameters, update):
                    p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(u, alpha=size)
