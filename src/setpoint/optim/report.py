"""Which parameter fell into which group, as rows."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from setpoint.optim.grouping import Gathered

FIRST = 3


class GroupRow(NamedTuple):
    """One group of parameters.

    Arguments:
        options: what else differs from the optimizer's own settings.
        parameters: how many numbers they hold together.
    """

    name: str
    lr: float
    weight_decay: float
    options: dict[str, Any]
    tensors: int
    parameters: int
    names: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The row for machines."""
        options = {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in self.options.items()
        }
        return {**self._asdict(), "options": options, "names": list(self.names)}


def group_rows(groups: Sequence[Gathered], lr: float) -> list[GroupRow]:
    """Tell of each group what it is trained with, and what it holds."""
    return [
        GroupRow(
            group.name,
            lr * group.lr_multiplier,
            group.weight_decay,
            group.options,
            len(group.parameters),
            sum(prod(each.shape) for each in group.parameters),
            tuple(each.name for each in group.parameters[:FIRST]),
        )
        for group in groups
    ]
