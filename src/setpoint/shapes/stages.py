"""What a model says of itself so that it can be cut into stages; no torch is needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable


class Part(NamedTuple):
    """A part of a model that a pipeline stage holds whole.

    Arguments:
        parameters: how many numbers it holds.
        flops: operations to train on one token; see `setpoint.model.size`.
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
