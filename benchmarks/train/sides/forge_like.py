"""A loop in the manner of KempnerForge, from public parts of PyTorch.

Written anew from how that project describes and arranges its loop (its README and
kempnerforge/training at github.com/KempnerInstitute/KempnerForge, 2026): the loss of each
micro-batch and the norm of each update are fetched from the device at once, gradients are divided
by the number of micro-batches, a scheduler object sets rates, each update's numbers are looked
at for NaN and go through a tracker with smoothed values, throughput and MFU, and a line is shown
every 10 updates. None of its code is here; model and loss are those of all sides.
"""

from __future__ import annotations

import logging
import math
import time

import torch
from torch.utils.data import DataLoader

from train.turns import Turns
from train.work import LOG_EVERY, WithLoss, Work

log = logging.getLogger("forge-like")
SMOOTHING = 0.1


class Tracker:
    """Keeps an update's numbers and their smoothed values.

    Arguments:
        tokens: of an update.
        flops: of a token.
    """

    def __init__(self, tokens: int, flops: float) -> None:
        self.tokens, self.flops = tokens, flops
        self.smoothed: dict[str, float] = {}
        self.seen = 0

    def start(self) -> None:
        """Note when an update begins."""
        self.began = time.perf_counter()

    def end(self, loss: float, norm: float, rate: float) -> None:
        """Take the numbers of an update in."""
        seconds = time.perf_counter() - self.began
        speed = self.tokens / seconds
        self.seen += self.tokens
        numbers = {
            "loss": loss,
            "grad_norm": norm,
            "lr": rate,
            "tokens_per_second": speed,
            "mfu": speed * self.flops / 1e12,
            "step_seconds": seconds,
        }
        for name, value in numbers.items():
            before = self.smoothed.get(name, value)
            self.smoothed[name] = SMOOTHING * value + (1 - SMOOTHING) * before


def run(work: Work, turns: Turns) -> list[float]:
    """Train.

    Arguments:
        work: the job.
        turns: with the other sides.

    Returns:
        the loss of each update.
    """
    model = WithLoss(work.components.model).train()
    parameters = list(model.parameters())
    optimizer = work.optimizer(parameters)
    scheduler = work.scheduler(optimizer)
    loader = iter(DataLoader(work.windows, batch_size=work.batch_size))
    tokens = work.batch_size * work.windows.length
    tracker = Tracker(tokens, 6.0 * sum(p.numel() for p in parameters))
    micro_batches = work.job.batch.accumulation
    losses: list[float] = []
    turns.begin()
    for step in range(work.updates):
        tracker.start()
        total = 0.0
        for _ in range(micro_batches):
            windows = next(loader).to(work.device)
            with work.autocast():
                loss = model(windows)
            (loss / micro_batches).backward()
            total += loss.item()
        norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0).item()
        if math.isnan(total) or math.isnan(norm):
            raise SystemExit("the loss is not a number")
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(total / micro_batches)
        tracker.end(losses[-1], norm, float(scheduler.get_last_lr()[0]))
        if (step + 1) % LOG_EVERY == 0:
            log.info("step %d %s", step + 1, tracker.smoothed)
        turns.after_step()
    return losses
