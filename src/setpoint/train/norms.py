"""Metrics of gradient, weight and update norms, by group and layer."""

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
"""Prefixes of columns."""

Sets = dict[str, list[str]]
"""Parameter names by column suffix: empty, `_NAME` or, for layers, `_NAME.INDEX`."""


class NormMetrics:
    """Measures steps while it is on; a collective.

    The norms stay on their device until they are read.

    Arguments:
        elsewhere: parameters counted on another rank.
    """

    def __init__(
        self, section: Metrics, components: Components, elsewhere: frozenset[Tensor] = frozenset()
    ) -> None:
        self.is_on = False
        self.stages = components.world.group("pipeline")
        params = dict(components.weights.named_parameters())
        groups = {
            f"_{group.get('name', number)}": list[str]()
            for number, group in enumerate(components.optimizer.param_groups)
        }
        for name, group in zip(groups, components.optimizer.param_groups, strict=False):
            groups[name] += group["param_names"]
        if components.all_trained is None:
            trained = [name for name, param in params.items() if param.requires_grad]
        else:
            trained = [param.name for param in components.all_trained]
        by: dict[str, Sets] = {"model": {"": trained}, "groups": groups}
        by["layers"] = _layers(trained)
        divisions = (section.grad_norms, section.param_norms, section.update_ratios)
        self.sets: dict[str, Sets] = {
            kind: {end: names for division in chosen for end, names in by[division].items()}
            for kind, chosen in zip(KINDS, divisions, strict=True)
            if chosen
        }
        self.params = {
            name: param
            for name, param in params.items()
            if param.requires_grad and param not in elsewhere
        }
        self.before: dict[str, Tensor] = {}
        self.norms: dict[str, Tensor] = {}

    def gradients(self) -> None:
        """Measure the gradients of a step before clipping, and keep the weights to compare."""
        self.norms = {}
        if not self.is_on:
            return
        grads = {name: p.grad for name, p in self.params.items() if p.grad is not None}
        self._measure("grad_norm", grads)
        if "update_ratio" in self.sets:
            self.before = {name: param.detach().clone() for name, param in self.params.items()}

    def updated(self) -> None:
        """Measure the weights after the step, and their change."""
        if not self.is_on:
            return
        now = {name: param.detach() for name, param in self.params.items()}
        self._measure("param_norm", now)
        if "update_ratio" in self.sets:
            moved = {name: now[name] - before for name, before in self.before.items()}
            self._measure("update_ratio", moved)
            # Both of the weights before the step, by which their ratio is defined.
            self.norms["update_ratio"] /= self._norms("update_ratio", self.before)
            self.before = {}

    def drop_step(self) -> None:
        """Drop the measurements of a skipped update."""
        self.norms = {kind: norm for kind, norm in self.norms.items() if kind == "grad_norm"}
        self.before = {}

    def columns(self) -> dict[str, Any]:
        """The columns of a row, null where the step was not measured.

        Waits for the device. Layers make a list, in their order.
        """
        columns: dict[str, Any] = {}
        for kind, sets in self.sets.items():
            norms = self.norms.get(kind)
            values = [None] * len(sets) if norms is None else norms.tolist()
            for end, value in zip(sets, values, strict=True):
                name, _, index = end.rpartition(".")
                if index.isdigit():
                    columns.setdefault(f"{kind}{name}", []).append(value)
                else:
                    columns[f"{kind}{end}"] = value
        self.norms = {}
        return columns

    def _measure(self, kind: str, tensors: dict[str, Tensor]) -> None:
        if kind in self.sets:
            self.norms[kind] = self._norms(kind, tensors)

    def _norms(self, kind: str, tensors: dict[str, Tensor]) -> Tensor:
        sets: list[Sequence[Tensor]] = [
            [tensors[name] for name in names if name in tensors]
            for names in self.sets[kind].values()
        ]
        device = next(iter(self.params.values())).device
        return norms_of_sets(sets, device, self.stages)


def _layers(names: Sequence[str]) -> Sets:
    """Parameters by layer: the part of a name up to its first number, else its module."""
    layers: Sets = {}
    for name in names:
        numbered = re.match(r"(.*?)\.(\d+)\.", name)
        module = name.rpartition(".")[0] or name
        end = f"_{numbered[1]}.{numbered[2]}" if numbered else f"_{module}"
        layers.setdefault(end, []).append(name)
    return layers
