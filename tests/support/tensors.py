"""Batches made by hand, the tensors of a checkpoint, and their comparison."""

from typing import Any

import torch
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


def same_tensors(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    """True if both have the same names and equal tensors."""
    return left.keys() == right.keys() and all(torch.equal(left[n], right[n]) for n in left)
