"""Batches made by hand."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from setpoint.shapes.batch import IGNORE_INDEX, Batch


def make_batch(inputs: Tensor, targets: Tensor, **rest: Any) -> Batch:
    """A batch without padding, whose targets are all bytes; `rest` are other fields."""
    valid = int((targets != IGNORE_INDEX).sum())
    return Batch(inputs, targets, inputs.numel(), valid, valid, **rest)
