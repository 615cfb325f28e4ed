"""Sequences divided among ranks: the groups of the axes `ring` and `ulysses`, and who uses them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from setpoint.config import SetpointError
from setpoint.shapes.batch import ContextGroups, SequenceParts
from setpoint.shapes.protocols import SequenceDivisible

if TYPE_CHECKING:
    from setpoint.parallel.config import Parallel
    from setpoint.parallel.world import World


def sequence_parts(config: Parallel, world: World) -> SequenceParts:
    """Find which places of sequences this rank has."""
    degrees, at = world.degrees, world.at
    return SequenceParts(
        degrees.get("ring", 1),
        degrees.get("ulysses", 1),
        at.get("ring", 0),
        at.get("ulysses", 0),
        config.ring_split,
    )


def divide_sequences(config: Parallel, world: World, model: nn.Module) -> None:
    """Let a model attend over the ranks that divide sequences, if any do.

    Raises:
        SetpointError: the model takes whole sequences only.
    """
    parts = sequence_parts(config, world)
    if parts.size == 1:
        return
    # Made by all ranks, whatever their models are.
    groups = ContextGroups(
        parts, world.group("ring"), world.group("ulysses"), world.group("ring", "ulysses")
    )
    if not isinstance(model, SequenceDivisible):
        axis = "ring" if parts.ring > 1 else "ulysses"
        raise SetpointError(
            f"parallel.{axis} = {world.degrees[axis]}: a {type(model).__name__} takes whole "
            f"sequences, which this axis divides\nValid: 1, or a model with use_context(groups)"
        )
    model.use_context(groups)
