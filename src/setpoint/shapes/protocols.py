"""Protocols of models and modules, and the callback for the progress of work."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor, nn

    from setpoint.shapes.batch import ContextGroups
    from setpoint.shapes.parameter import Kind
    from setpoint.shapes.peers import Peers


@runtime_checkable
class Staged(Protocol):
    """Model that can be cut into pipeline stages.

    Only the (B, S, dim) residual stream passes between parts, and all parameters belong to modules.
    The model supports a head (`setpoint.shapes.outcome`) and accepts the residual stream in place
    of tokens; without its last part it returns an `Outcome` whose result is the residual stream.
    """

    stream_width: int
    """The size of the residual stream, dim."""

    def stage_parts(self) -> list[str]:
        """Names of the parts, in forward order."""
        ...

    def keep_parts(self, parts: Sequence[str]) -> None:
        """Remove all other parts.

        Lists and dictionaries of modules are replaced, not changed: others may share them. Parts
        keep their names, and thus their initialization and place in checkpoints.
        """


@runtime_checkable
class NamesParts(Protocol):
    """Staged model with parts that are not modules of the same name."""

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
        """Describe how modules are divided among ranks.

        Returns:
            words from `WORDS` by module path relative to this one, where `*` stands for one name
            and "" for the module itself; modules not listed are the same on all ranks. `column` may
            be followed by groups of heads, such as `column 8*64 + 2*64 shared`: 8 heads of 64
            outputs, then 2 heads that several ranks may share. With several groups, or fewer heads
            than ranks, each rank stores the whole matrix and computes with its own rows.
        """
        ...


@runtime_checkable
class VocabularyDivisible(Protocol):
    """Model whose output matrix can be divided along the vocabulary."""

    def divide_vocabulary(self, peers: Peers, gathers: bool) -> None:
        """Divide the rows of the output matrix among ranks, for `Projection`.

        Arguments:
            gathers: whether losses receive the logits of all rows.
        """


@runtime_checkable
class Embeds(Protocol):
    """Model whose token embedding takes noise in training (model.embedding_noise)."""

    @property
    def token_embedding(self) -> nn.Embedding | None:
        """Token embedding, called with (B, S) tokens; None in later pipeline stages."""
        ...


@runtime_checkable
class HasUnits(Protocol):
    """Model that defines FSDP2 units around its layers."""

    def units_around_layers(self) -> list[list[nn.Module]]:
        """Modules that are gathered together, in forward order.

        Each forward pass calls all modules of a unit, unit by unit; the first with tokens.
        """
        ...


@runtime_checkable
class SequenceDivisible(Protocol):
    """Model that accepts parts of sequences."""

    def use_context(self, groups: ContextGroups) -> None:
        """Compute with this rank's part of each sequence (context parallelism).

        Tokens are then those of this rank; positions and documents still cover full rows.
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
        widths: for each projection, the dimension of an expert's inner width; parameters divided in
            the same way are in modules of that name.
    """

    module: nn.Module
    widths: Mapping[str, int]


def side_to_shard(shape: Sequence[int], inner: int, ranks: int) -> int:
    """Choose the dimension along which ranks shard an expert tensor.

    The expert dimension if the number of experts is divisible, so that each rank has whole experts,
    as Muon requires; else another divisible dimension, the inner width last; if there is none, the
    expert dimension.

    Arguments:
        shape: shape of the tensor over all these ranks.
        inner: dimension of the inner width; 0 if there is none.
    """
    sides = sorted(range(len(shape)), key=lambda dim: dim > 0 and dim == inner)
    return next((dim for dim in sides if shape[dim] % ranks == 0), 0)


@runtime_checkable
class HasExperts(Protocol):
    """Model whose experts can be spread over several ranks."""

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
    """Module with a weight that an adapter changes."""

    def adapted_weight(self) -> Tensor:
        """The weight including the adapter's update; gradients reach the adapter through it."""
        ...


@runtime_checkable
class KnowsKinds(Protocol):
    """Module that declares the kinds of its own parameters."""

    def parameter_kinds(self) -> Mapping[str, Kind]:
        """The kind of each parameter, by name."""
        ...


Range = tuple[int, int]
"""First row and number of rows."""
DividedParameters = tuple[dict[str, int], tuple[str, ...]]
"""Dimensions of divided parameters by name, and names of parameters read in part."""


@runtime_checkable
class FollowsDivision(Protocol):
    """Module nested in another and divided in the same way."""

    def follow(self, word: str, rows: Sequence[Range], peers: Peers) -> DividedParameters:
        """Follow the tensor-parallel division of the enclosing module.

        Arguments:
            word: word of the enclosing module; see `WORDS`.
            rows: (first, number) row ranges of a whole matrix that this rank computes with; empty
                for an equal share, or for all rows.

        Returns:
            the dimension of each divided parameter, and the parameters of which only the given rows
            are read.
        """
        ...


class GroupedProducts(NamedTuple):
    """Grouped matrix products: rows times the matrix of their group; ends are (E,) int32.

    Arguments:
        product: (R, in) rows, (E, in, out) matrices and ends to (R, out); with gradients.
        gradient: gradient of the matrices, from the rows, the gradient of the product, and the
            ends.
    """

    product: Callable[[Tensor, Tensor, Tensor], Tensor]
    gradient: Callable[[Tensor, Tensor, Tensor], Tensor]


@runtime_checkable
class HasGroupedProducts(Protocol):
    """Module whose grouped products can be replaced."""

    grouped: GroupedProducts | None

    def size_here(self) -> tuple[int, int]:
        """(width, dim): the sides of the matrices multiplied on this rank."""
        ...


@runtime_checkable
class HasProducts(Protocol):
    """Module that lists its own parameters read only by matrix products."""

    def product_weights(self) -> Collection[str]:
        """Names of the parameters read only by matrix products."""
        ...


class Work(Protocol):
    """Callback for the progress of work; see `setpoint.track.progress.Progress.work`."""

    def __call__(self, label: str, done: int, total: int | None, now: bool = False) -> None:
        """See `setpoint.track.progress.Progress.work`."""
        ...


def no_work(label: str, done: int, total: int | None, now: bool = False) -> None:
    """Show no progress."""
