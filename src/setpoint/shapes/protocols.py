"""Parameters, and protocols of models and modules for parallelism, adapters and precision."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor, nn

    from setpoint.shapes.batch import ContextGroups
    from setpoint.shapes.peers import Peers


Kind = Literal["matrix", "vector", "tensor", "bias", "norm", "embedding", "output", "router"]
"""The role of a parameter. Without another one it is a `vector`, a `matrix` or, with more than two
dimensions, a `tensor`; Setpoint's packed experts, whose tensors are batches of matrices, are
`matrix`."""


class Parameter(NamedTuple):
    """One parameter of a model.

    Arguments:
        shape: shape over all ranks.
        rate: multiplier of its learning rate.
        inputs_first: whether it is a matrix (inputs, outputs), unlike torch.nn.Linear's.
        packed: order of the matrices of transformers' experts in a `tensor`; "": none.
        tensor: None if only the configuration describes it.
    """

    name: str
    shape: tuple[int, ...]
    kind: Kind
    rate: float = 1.0
    inputs_first: bool = False
    packed: Literal["", "inputs_first", "outputs_first"] = ""
    tensor: Tensor | None = None


class StagePart(NamedTuple):
    """A part of a model that a pipeline stage holds whole, with parameters and FLOPs per token."""

    name: str
    parameters: int
    flops: int


@runtime_checkable
class Staged(Protocol):
    """A model that can be cut into the stages of a pipeline.

    Only the (B, S, dim) residual stream passes between parts, and all parameters belong to
    modules. It supports a head (`setpoint.shapes.outcome`) and takes the residual stream in place
    of tokens; without its last part it returns an `Outcome` with the residual stream as result.
    """

    stream_width: int
    """The size of the residual stream, dim."""

    def stage_parts(self) -> list[str]:
        """Names of the parts, in forward order."""
        ...

    def keep_parts(self, parts: Sequence[str]) -> None:
        """Remove all other parts.

        Lists and dictionaries of modules are replaced, not changed: others may share them. Parts
        keep their names, and with them initialization and place in checkpoints.
        """


@runtime_checkable
class NamesParts(Protocol):
    """A staged model whose parts are not modules of their names."""

    def part_modules(self, part: str) -> Sequence[Any]:
        """Modules of a part, for balancing stages by parameters."""
        ...


WORDS: dict[str, str] = {
    "shared_input": "submodules read the same input; their outputs are summed",
    "shared_output": "output that divided modules read",
    "column": "linear layer: each rank computes a slice of the outputs",
    "column_gathered": "as `column`, with the outputs gathered",
    "vocabulary_columns": "linear layer: each rank computes logits of a slice of the vocabulary",
    "row": "linear layer: each rank reads a slice of the inputs; outputs are summed",
    "row_whole_input": "as `row`, with the whole input on all ranks",
    "part": "parameter: each rank has a slice of the first dimension",
    "vocabulary_rows": "embedding: each rank has the vectors of a slice of the vocabulary",
    "sequence": "each rank keeps its part of the output sequence (sequence parallelism)",
    "whole": "all ranks compute the same on the whole sequence",
    "sum_gradients": "whole parameters whose gradients are summed over ranks",
}
"""The words of a tensor plan."""


@runtime_checkable
class TensorDivisible(Protocol):
    """A module with a tensor-parallel plan."""

    def tensor_plan(self) -> dict[str, str]:
        """Division of modules among ranks.

        Returns:
            words of `WORDS` by the path of a module relative to this one, in which `*` stands for
            one name and "" for the module itself; others are the same on all ranks. `column` may
            be followed by groups of heads, such as `column 8*64 + 2*64 shared`: 8 heads of 64
            outputs, then 2 heads that several ranks may share. With several groups, or fewer heads
            than ranks, each rank holds the whole matrix and computes with its rows.
        """
        ...


@runtime_checkable
class VocabularyDivisible(Protocol):
    """A model whose output matrix can be divided by the rows of its vocabulary."""

    def divide_vocabulary(self, peers: Peers, gathers: bool) -> None:
        """Divide the rows of the output matrix among ranks, for `Projection`.

        Arguments:
            gathers: whether losses get the logits of all rows.
        """


@runtime_checkable
class HasUnits(Protocol):
    """A model with units of FSDP2 around its layers."""

    def units_around_layers(self) -> list[list[nn.Module]]:
        """Modules gathered together, in forward order.

        Each forward pass calls all modules of a unit, unit by unit; the first with tokens.
        """
        ...


@runtime_checkable
class SequenceDivisible(Protocol):
    """A model that takes parts of sequences."""

    def use_context(self, groups: ContextGroups) -> None:
        """Compute with this rank's part of each sequence (context parallelism).

        Tokens are then this rank's; positions and documents are of full rows.
        """


def tensor_plan_of(model: nn.Module) -> dict[str, str]:
    """Collect the tensor plans of all modules, by patterns of qualified names."""
    return {
        ".".join(part for part in (path, name) if part): word
        for path, module in model.named_modules()
        if isinstance(module, TensorDivisible)
        for name, word in module.tensor_plan().items()
    }


class ExpertPart(NamedTuple):
    """The experts of one layer.

    Arguments:
        module: called with tokens; owns parameters whose first dimension is the expert.
        widths: dimension of an expert's inner width by projection; parameters that follow its
            division are in modules of that name.
    """

    module: nn.Module
    widths: Mapping[str, int]


def side_to_shard(shape: Sequence[int], inner: int, ranks: int) -> int:
    """Choose the dimension along which ranks shard a tensor of experts.

    The dimension of experts if their number divides, so that each rank has whole experts, which
    Muon needs; else another dimension that divides, the inner width last; the experts if none does.

    Arguments:
        shape: of the tensor on all these ranks.
        inner: dimension of the inner width; 0: none.
    """
    sides = sorted(range(len(shape)), key=lambda dim: dim > 0 and dim == inner)
    return next((dim for dim in sides if shape[dim] % ranks == 0), 0)


@runtime_checkable
class HasExperts(Protocol):
    """A model whose experts can lie on several ranks."""

    def use_experts(self, exchange: Any) -> Sequence[ExpertPart]:
        """Dispatch tokens to experts on other ranks; see `setpoint.model.moe.dispatch`.

        Returns:
            the experts of each layer, in order; their parameters become DTensors, and each rank
            computes with its part.

        Raises:
            SetpointError: the experts cannot be divided.
        """
        ...


@runtime_checkable
class Adapted(Protocol):
    """A module whose weight an adapter changes."""

    def adapted_weight(self) -> Tensor:
        """The weight with the update of the adapter, through which gradients reach that."""
        ...


@runtime_checkable
class KnowsKinds(Protocol):
    """A module that declares the kinds of its own parameters."""

    def parameter_kinds(self) -> Mapping[str, Kind]:
        """Kinds by the names of its parameters."""
        ...


@runtime_checkable
class FollowsDivision(Protocol):
    """A module inside another one, with parameters divided like that one's."""

    def follow(
        self, word: str, rows: Sequence[tuple[int, int]], peers: Peers
    ) -> tuple[dict[str, int], tuple[str, ...]]:
        """Follow the tensor-parallel division of the module around it.

        Arguments:
            word: of that module; see `WORDS`.
            rows: (first, number) ranges of a whole matrix that this rank computes with; empty for
                an equal share, or all.

        Returns:
            the dimension of each divided parameter; and the parameters read by the given rows.
        """
        ...


class GroupedProducts(NamedTuple):
    """Products of rows with the matrices of their groups; ends are (E,) int32.

    Arguments:
        product: (R, in) rows, (E, in, out) matrices and ends to (R, out); with gradients.
        gradient: of the matrices, from rows, the gradient of the product, and ends.
    """

    product: Callable[[Tensor, Tensor, Tensor], Tensor]
    gradient: Callable[[Tensor, Tensor, Tensor], Tensor]


@runtime_checkable
class HasGroupedProducts(Protocol):
    """A module whose grouped products can be replaced."""

    grouped: GroupedProducts | None

    def size_here(self) -> tuple[int, int]:
        """(width, dim): the sides of the matrices that this rank multiplies with."""
        ...


@runtime_checkable
class HasProducts(Protocol):
    """A module that names its own parameters read by matrix products alone."""

    def product_weights(self) -> Collection[str]:
        """Names of these parameters."""
        ...
