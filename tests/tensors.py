"""The tensors of a checkpoint, for tests that compare all of them."""

from __future__ import annotations

from torch import Tensor

from setpoint.shapes.placed import Named, in_memory


def read(named: Named) -> dict[str, Tensor]:
    """All of them, in memory."""
    return {name: in_memory(each) for name, each in named.items()}
