"""What all sides of `train.loops` have in common: model, data, optimizer, schedule, loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Dataset

from harness import adamw
from setpoint.config.composition import compose
from setpoint.data.order import shuffled
from setpoint.model.config import TransformerConfig
from setpoint.optim.config import AdamWConfig
from setpoint.optim.schedule.config import Cosine
from setpoint.train.build.components import Components, build_components
from setpoint.train.config import Job

FIXED = (
    "checkpoint.every=never",
    "evaluation=null",
    "tracking.every=10 steps",
    "optimizer.clip_norm=1.0",
)
MODELS: dict[str, tuple[str, ...]] = {
    "tiny": (),
    "18M": ("model.dim=512", "model.layers=6", "model.heads=8"),
    # Next to no arithmetic, so that a test can run it.
    "dust": ("model.dim=16", "model.layers=1", "model.heads=2", "batch.sequence_length=16"),
}
LOG_EVERY = 10


class Windows(Dataset[Tensor]):
    """The text in windows of S + 1 tokens, in the order in which Setpoint's loader draws them.

    Arguments:
        tokens: (T,) the training text.
        order: numbers of windows.
        length: S.
    """

    def __init__(self, tokens: Tensor, order: list[int], length: int) -> None:
        self.tokens, self.order, self.length = tokens, order, length

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> Tensor:
        start = self.order[index] * (self.length + 1)
        return self.tokens[start : start + self.length + 1]


class WithLoss(nn.Module):
    """A model that gives its loss, as frameworks like it.

    Arguments:
        model: maps (B, S) tokens to (B, S, V) logits.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.losses: list[Tensor] = []

    def forward(self, windows: Tensor) -> Tensor:
        """The mean cross-entropy of (B, S + 1) windows, which is kept for the check."""
        logits = self.model(windows[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), windows[:, 1:].flatten())
        self.losses.append(loss.detach())
        return loss


@dataclass
class Work:
    """One training job.

    Arguments:
        job: its configuration.
        components: what Setpoint builds of it.
        updates: how many there are.
        windows: the data of all updates in order.
    """

    job: Job
    components: Components
    updates: int
    windows: Windows

    @property
    def batch_size(self) -> int:
        """Sequences in an update."""
        return self.job.batch.global_size

    @property
    def device(self) -> torch.device:
        """Where the model lies."""
        return self.components.device

    @property
    def is_bf16(self) -> bool:
        """Whether it computes in bf16 by autocast."""
        return self.job.precision.compute == "bf16"

    @property
    def optimizer_options(self) -> AdamWConfig:
        """Of AdamW."""
        assert isinstance(self.job.optimizer, AdamWConfig)
        return self.job.optimizer

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Torch's AdamW with Setpoint's groups."""
        return adamw(parameters, self.optimizer_options)

    def factor(self, step: int) -> float:
        """Of the learning rate: a linear warm-up, then half a cosine."""
        schedule = self.job.schedule
        assert isinstance(schedule, Cosine)
        warmup, horizon = schedule.warmup.count, schedule.horizon.in_unit("steps")
        if step < warmup:
            return (step + 1) / warmup
        done = min(1.0, (step - warmup) / (horizon - warmup))
        cosine = 0.5 * (1 + math.cos(math.pi * done))
        return schedule.floor + (1 - schedule.floor) * cosine

    def scheduler(self, optimizer: torch.optim.Optimizer) -> LambdaLR:
        """The same as torch has it."""
        return LambdaLR(optimizer, self.factor)

    def autocast(self) -> torch.autocast:
        """The context that a forward pass runs in."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.is_bf16)


Side = Callable[[Work, Any], list[float]]


def make_work(model: str, precision: str, updates: int, device: str = "auto") -> Work:
    """Build what a side trains."""
    given = (
        *FIXED,
        *MODELS[model],
        f"duration={updates} steps",
        f"precision.compute={precision}",
        f"parallel.device={device}",
    )
    job = compose(Job, "tiny", flags=[f"--{flag}" for flag in given]).resolve()
    assert isinstance(job.model, TransformerConfig) and job.batch.accumulation == 1
    components = build_components(job)
    count = len(components.train_data)
    epochs = range(math.ceil(updates * job.batch.global_size / count))
    whole = numpy.arange(count)
    order = [w for e in epochs for w in shuffled(f"windows/{job.seed}/{e}", count, whole).tolist()]
    tokens = torch.from_numpy(components.train_data.corpus.tokens.astype("int64"))
    wanted = order[: updates * job.batch.global_size]
    return Work(job, components, updates, Windows(tokens, wanted, job.batch.sequence_length))
