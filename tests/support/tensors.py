"""Batches made by hand, and the tensors of a checkpoint."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from setpoint.shapes.batch import IGNORE_INDEX, Batch
from setpoint.shapes.placed import Named, in_memory


def make_batch(inputs: Tensor, targets: Tensor, **rest: Any) -> Batch:
    """A batch without padding, whose targets are all bytes; `rest` are other fields."""
    valid = int((targets != IGNORE_INDEX).sum())
    return Batch(inputs, targets, inputs.numel(), valid, valid, **rest)


def read(named: Named) -> dict[str, Tensor]:
    """All of them, in memory."""
    return {name: in_memory(each) for name, each in named.items()}
