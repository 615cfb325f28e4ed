"""What a model says of itself, so that ranks can divide it; users' own models can say it, too."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import nn

from setpoint.shapes.peers import Peers
from setpoint.shapes.sequence_parts import ContextGroups

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
