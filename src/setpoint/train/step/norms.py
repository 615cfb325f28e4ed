"""Norms of gradients, weights and updates: of the model, by group and by layer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from setpoint.optim.clip import norms_of_sets

if TYPE_CHECKING:
    from setpoint.track.config import Metrics
    from setpoint.train.build.components import Components

KINDS = ("grad_norm", "param_norm", "update_ratio")
"""What a column begins with."""

Sets = dict[str, list[str]]
"""Names of parameters by how a column ends: nothing, `_NAME` or, in layers, `_NAME.INDEX`."""


class NormMetrics:
    """Measures the steps that it is on for, on all ranks alike.

    The norms stay on their device until they are read.

    Arguments:
        elsewhere: parameters that another rank counts.
    """

    def __init__(
        self, section: Metrics, parts: Components, elsewhere: frozenset[Tensor] = frozenset()
    ) -> None:
        self.is_on = False
        self.stages = parts.world.group("pipeline")
        held = dict(parts.weights.named_parameters())
        groups = {
            f"_{group.get('name', number)}": list[str]()
            for number, group in enumerate(parts.optimizer.param_groups)
        }
        for name, group in zip(groups, parts.optimizer.param_groups, strict=False):
            groups[name] += group["param_names"]
        if parts.described is None:
            known = [name for name, each in held.items() if each.requires_grad]
        else:
            known = [each.name for each in parts.described]
        by: dict[str, Sets] = {"model": {"": known}, "groups": groups, "layers": _layers(known)}
        wanted = (section.grad_norms, section.param_norms, section.update_ratios)
        self.sets: dict[str, Sets] = {
            kind: {end: names for each in what for end, names in by[each].items()}
            for kind, what in zip(KINDS, wanted, strict=True)
            if what
        }
        self.held = {
            name: each
            for name, each in held.items()
            if each.requires_grad and each not in elsewhere
        }
        self.before: dict[str, Tensor] = {}
        self.found: dict[str, Tensor] = {}

    def gradients(self) -> None:
        """Measure the gradients of a step, before they are clipped, and what they will change."""
        self.found = {}
        if not self.is_on:
            return
        given = {name: each.grad for name, each in self.held.items() if each.grad is not None}
        self._measure("grad_norm", given)
        if "update_ratio" in self.sets:
            self.before = {name: each.detach().clone() for name, each in self.held.items()}

    def updated(self) -> None:
        """Measure the weights after the step, and how far it moved them."""
        if not self.is_on:
            return
        now = {name: each.detach() for name, each in self.held.items()}
        self._measure("param_norm", now)
        if "update_ratio" in self.sets:
            moved = {name: now[name] - before for name, before in self.before.items()}
            self._measure("update_ratio", moved)
            # Both of the weights before the step, by which their ratio is defined.
            self.found["update_ratio"] /= self._norms("update_ratio", self.before)
            self.before = {}

    def pass_over(self) -> None:
        """Forget what was measured of an update that was not made."""
        self.found = {kind: each for kind, each in self.found.items() if kind == "grad_norm"}
        self.before = {}

    def columns(self) -> dict[str, Any]:
        """The columns of a row, null where the step was not measured.

        Waits for the device. Layers make a list, in their order.
        """
        columns: dict[str, Any] = {}
        for kind, sets in self.sets.items():
            found = self.found.get(kind)
            values = [None] * len(sets) if found is None else found.tolist()
            for end, value in zip(sets, values, strict=True):
                name, _, index = end.rpartition(".")
                if index.isdigit():
                    columns.setdefault(f"{kind}{name}", []).append(value)
                else:
                    columns[f"{kind}{end}"] = value
        self.found = {}
        return columns

    def _measure(self, kind: str, tensors: dict[str, Tensor]) -> None:
        if kind in self.sets:
            self.found[kind] = self._norms(kind, tensors)

    def _norms(self, kind: str, tensors: dict[str, Tensor]) -> Tensor:
        sets: list[Sequence[Tensor]] = [
            [tensors[name] for name in names if name in tensors]
            for names in self.sets[kind].values()
        ]
        device = next(iter(self.held.values())).device
        return norms_of_sets(sets, device, self.stages)


def _layers(names: Sequence[str]) -> Sets:
    """Parameters by layer: what a name has up to its first number, else its first word."""
    found: Sets = {}
    for name in names:
        numbered = re.match(r"(.*?)\.(\d+)\.", name)
        module = name.rpartition(".")[0] or name
        end = f"_{numbered[1]}.{numbered[2]}" if numbered else f"_{module}"
        found.setdefault(end, []).append(name)
    return found
