"""Parameters of a model as described by its configuration, and formats of quantized ones."""

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
        shape: shape over all ranks.
        rate: learning-rate multiplier.
        inputs_first: whether a matrix is (inputs, outputs), unlike in torch.nn.Linear.
        packed: order in which `tensor` packs the expert matrices of transformers; "": not packed.
        tensor: None if it is known only from the configuration.
    """

    name: str
    shape: tuple[int, ...]
    kind: Kind
    rate: float = 1.0
    inputs_first: bool = False
    packed: Literal["", "inputs_first", "outputs_first"] = ""
    tensor: Tensor | None = None


class StagePart(NamedTuple):
    """Part of a model that stays in one pipeline stage, with its parameters and FLOPs per token."""

    name: str
    parameters: int
    flops: int


class Form(NamedTuple):
    """Quantization format of a matrix.

    Arguments:
        numbers: `e4m3`, `e5m2`, `int8`, `int4`, `e2m1`, `nf4` or `fp4`.
        block: rows and columns that share a scale; for `nf4` and `fp4`, of the flattened matrix.
        scales: `float`, `exponent` (of two), or `e4m3` times one float per matrix.
        nested: number of scales that share a scale of their own; 0: scales are not quantized.
        zeros: whether blocks have zero points.
    """

    numbers: str
    block: tuple[int, int]
    scales: str = "float"
    nested: int = 0
    zeros: bool = False
