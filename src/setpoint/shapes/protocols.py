"""Protocols of models and modules: how ranks divide them, how adapters and precision use them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor, nn

    from setpoint.shapes.batch import ContextGroups
    from setpoint.shapes.parameter import Kind
    from setpoint.shapes.peers import Peers


class StagePart(NamedTuple):
    """A part of a model that a pipeline stage holds whole.

    Arguments:
        parameters: how many numbers it holds.
        flops: operations to train on one token; see `setpoint.model.parameters`.
    """

    name: str
    parameters: int
    flops: int


@runtime_checkable
class Staged(Protocol):
    """A model that can be cut into the stages of a pipeline.

    Only one (B, S, dim) tensor, the residual stream, passes from each part to the next, and the
    model owns no parameters but those of its modules. It supports a head; see
    `setpoint.shapes.outcome`. What is called with the residual stream in place of tokens goes on
    from there; without its last part it gives an `Outcome` with the residual stream as the result.
    """

    stream_width: int
    """The size of the residual stream, dim."""

    def stage_parts(self) -> list[str]:
        """Return the names of the parts, in the order in which tokens go through them."""
        ...

    def keep_parts(self, parts: Sequence[str]) -> None:
        """Take all other parts away.

        Lists and dictionaries of modules are replaced, not changed: others may share them. The
        parts that stay keep their names, and with them their initialization and place in
        checkpoints.
        """
        ...


@runtime_checkable
class NamesParts(Protocol):
    """A staged model whose parts are not modules of their names."""

    def part_modules(self, part: str) -> Sequence[Any]:
        """Return the modules of a part, by whose parameters stages are balanced."""
        ...


WORDS: dict[str, str] = {
    "shared_input": "its parts compute with the same input, and what it gives is their sum",
    "shared_output": "what follows computes in parts with what it gives",
    "column": "linear layer: each rank has some of its outputs",
    "column_gathered": "the same, and all outputs are put together",
    "vocabulary_columns": "linear layer: each rank has the logits of some tokens",
    "row": "linear layer: each rank has some of its inputs, and outputs are summed",
    "row_whole_input": "the same, of inputs that all ranks have",
    "part": "parameter: each rank has its share of the first dimension",
    "vocabulary_rows": "embedding: each rank has the vectors of some tokens",
    "sequence": "each rank keeps its part of the sequence of what it gives (sequence parallel)",
    "whole": "all ranks compute the same with the whole sequence",
    "sum_gradients": "its parameters are whole, and their gradients are summed over the ranks",
}
"""The words of a tensor plan."""


@runtime_checkable
class TensorDivisible(Protocol):
    """A module that says how tensor parallelism divides what is in it."""

    def tensor_plan(self) -> dict[str, str]:
        """Say how modules are divided.

        Returns:
            words of `WORDS` by the path of a module relative to this one, in which `*` stands for
            one name and "" for the module itself; what is not named is the same on all ranks.
            `column` may be followed by groups of heads, such as `column 8*64 + 2*64 shared` for 8
            heads of 64 outputs each above 2 others, each of which several ranks may compute with.
            Where there are several groups, or fewer heads than ranks, each rank holds the whole
            matrix and computes with its rows.
        """
        ...


@runtime_checkable
class VocabularyDivisible(Protocol):
    """A model whose output matrix can be divided by the rows of its vocabulary."""

    def divide_vocabulary(self, peers: Peers, gathers: bool) -> None:
        """Note that each rank has some of the rows of the output matrix, for its `Projection`.

        Arguments:
            gathers: whether losses get the logits of all rows.
        """
        ...


@runtime_checkable
class HasUnits(Protocol):
    """A model that says how a sharding engine (FSDP2) gathers what lies around its layers."""

    def units_around_layers(self) -> list[list[nn.Module]]:
        """Modules that are gathered together, in the order in which the forward pass calls them.

        All modules of a unit are called in each forward pass, after those of the unit before; the
        first unit is called with tokens.
        """
        ...


@runtime_checkable
class SequenceDivisible(Protocol):
    """A model that takes parts of sequences."""

    def use_context(self, groups: ContextGroups) -> None:
        """Take parts of sequences from now on, which other ranks have the rest of.

        Tokens are those of this rank's places then; positions and documents are of whole rows.
        """
        ...


def tensor_plan_of(model: nn.Module) -> dict[str, str]:
    """Collect what all modules of a model say, by patterns of qualified names."""
    return {
        ".".join(part for part in (path, name) if part): word
        for path, module in model.named_modules()
        if isinstance(module, TensorDivisible)
        for name, word in module.tensor_plan().items()
    }


class ExpertPart(NamedTuple):
    """The experts of one layer.

    Arguments:
        module: it is called with tokens, and owns parameters whose first dimension is the expert.
        widths: by the name of each projection, the dimension of the inner width of an expert.
            Parameters that follow its division lie in modules of that name.
    """

    module: nn.Module
    widths: Mapping[str, int]


def side_to_shard(shape: Sequence[int], inner: int, ranks: int) -> int:
    """Choose the dimension along which ranks shard a tensor of experts.

    It is that of the experts where that comes out even, so that each rank has whole ones, which
    Muon needs; else one that does, rather not the inner width, and the experts if none does.

    Arguments:
        shape: what these ranks have together.
        inner: the dimension of the inner width; 0: it has none.
    """
    sides = sorted(range(len(shape)), key=lambda dim: dim > 0 and dim == inner)
    return next((dim for dim in sides if shape[dim] % ranks == 0), 0)


@runtime_checkable
class HasExperts(Protocol):
    """A model whose experts can lie on several ranks."""

    def use_experts(self, exchange: Any) -> Sequence[ExpertPart]:
        """Take tokens to experts by an exchange from now on; see `setpoint.model.moe.dispatch`.

        Returns:
            the experts of each layer, in the order of the layers; their parameters become DTensors,
            of which each rank computes with its own part.

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
    """A module that says what its own parameters are for."""

    def parameter_kinds(self) -> Mapping[str, Kind]:
        """Kinds by the names of its parameters."""
        ...


@runtime_checkable
class FollowsDivision(Protocol):
    """A module within another one, whose parameters are divided as those of that one."""

    def follow(
        self, word: str, rows: Sequence[tuple[int, int]], peers: Peers
    ) -> tuple[dict[str, int], tuple[str, ...]]:
        """Learn how tensor parallelism divides the module around it.

        Arguments:
            word: of that module; see `WORDS`.
            rows: of a whole matrix that this rank computes with, (first, number) each; none where
                it has an equal share of them, or all.

        Returns:
            the dimension along which each divided parameter is divided; and the parameters of
            which it computes with the given rows.
        """
        ...


class GroupedProducts(NamedTuple):
    """Products of rows with the matrices of their groups, whose ends are int32 (E,).

    Arguments:
        product: of (R, in) rows, (E, in, out) matrices and ends, (R, out); with gradients.
        gradient: of the matrices: of rows, the gradient of the product, and ends.
    """

    product: Callable[[Tensor, Tensor, Tensor], Tensor]
    gradient: Callable[[Tensor, Tensor, Tensor], Tensor]


@runtime_checkable
class HasGroupedProducts(Protocol):
    """A module that takes other products than those that it chooses itself."""

    grouped: GroupedProducts | None

    def size_here(self) -> tuple[int, int]:
        """(width, dim): the sides of the matrices that this rank multiplies with."""
        ...


@runtime_checkable
class HasProducts(Protocol):
    """A module that says which of its own parameters are read by matrix products alone."""

    def product_weights(self) -> Collection[str]:
        """Names of these parameters."""
        ...
