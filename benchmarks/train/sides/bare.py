"""What a careful engineer writes in plain PyTorch; it logs nothing but keeps the losses."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from train.turns import Turns
from train.work import Work


def run(work: Work, turns: Turns) -> list[float]:
    """Train."""
    model, device = work.components.model, work.device
    parameters = list(model.parameters())
    optimizer = work.optimizer(parameters)
    windows, size, peak = work.windows, work.batch_size, work.optimizer_options.lr
    losses: list[float] = []
    model.train()
    turns.begin()
    for step in range(work.updates):
        chosen = range(step * size, (step + 1) * size)
        batch = torch.stack([windows[index] for index in chosen]).to(device)
        for group in optimizer.param_groups:
            group["lr"] = peak * work.factor(step)
        with work.autocast():
            logits = model(batch[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        turns.after_step()
    return losses
