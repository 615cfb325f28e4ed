"""A parameter as far as it decides how it is trained; no torch is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

Kind = Literal["matrix", "vector", "tensor", "bias", "norm", "embedding", "output", "router"]
"""What a parameter is for. What no other word fits is a `vector`, a `matrix` or, with more than two
dimensions, a `tensor`; Setpoint's packed experts, whose tensors are batches of matrices, are
`matrix`."""


class Parameter(NamedTuple):
    """One parameter of a model, with its tensor or described without one.

    Arguments:
        shape: its whole shape, of all ranks together.
        rate: what its own model multiplies its learning rate by; 1 for most.
        inputs_first: whether it is a matrix (inputs, outputs), the other way round than
            torch.nn.Linear's.
        tensor: None where the configuration alone describes it.
    """

    name: str
    shape: tuple[int, ...]
    kind: Kind
    rate: float = 1.0
    inputs_first: bool = False
    tensor: Tensor | None = None
