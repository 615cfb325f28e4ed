"""A parameter as far as it decides how it is trained; torch-free."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

Kind = Literal["matrix", "vector", "tensor", "bias", "norm", "embedding", "output", "router"]
"""The role of a parameter. Without another one it is a `vector`, a `matrix` or, with more than two
dimensions, a `tensor`; Setpoint's packed experts, whose tensors are batches of matrices, are
`matrix`."""


class Parameter(NamedTuple):
    """One parameter of a model.

    Arguments:
        shape: on all ranks together.
        rate: multiplier of its learning rate.
        inputs_first: whether it is a matrix (inputs, outputs), unlike torch.nn.Linear's.
        packed: order of the matrices of transformers' experts in a `tensor`; "": none.
        tensor: None where only the configuration describes it.
    """

    name: str
    shape: tuple[int, ...]
    kind: Kind
    rate: float = 1.0
    inputs_first: bool = False
    packed: Literal["", "inputs_first", "outputs_first"] = ""
    tensor: Tensor | None = None
