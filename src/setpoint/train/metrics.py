"""Metrics of a row: mean losses, experts, and norms of gradients, weights and updates."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor

from setpoint.model.moe.losses import expert_metrics
from setpoint.optim.clip import norms_of_sets
from setpoint.shapes.batch import ONE_SOURCE, BySource

if TYPE_CHECKING:
    from setpoint.shapes.outcome import Routing
    from setpoint.track.config import Metrics
    from setpoint.train.build.components import Components


_N = TypeVar("_N", int, float)


class LossMean:
    """Mean loss since the last row, sums by source, and the moving average of all losses.

    A checkpoint keeps the sums, so that a resumed run writes the same rows.

    Arguments:
        smoothing: weight of the past in the moving average of losses; None: there is none.
    """

    def __init__(self, smoothing: float | None = None) -> None:
        self.sum, self.steps = 0.0, 0
        # Of the last whole logging interval; and the mean of the last row of this session.
        self.before: tuple[float, int] = (0.0, 0)
        self.last: float | None = None
        self.by_source = BySource()
        # Choice of experts in the last step that was taken; and the columns of one by an earlier
        # session.
        self.routing: Routing | None = None
        self._experts: dict[str, float] = {}
        self.smoothing = smoothing
        # The average as if it had begun at 0, and how far it is from having forgotten that.
        self._average, self._weight = 0.0, 0.0

    def add(self, loss: float, by_source: BySource = ONE_SOURCE) -> None:
        """Take one more step."""
        self.sum += loss
        self.steps += 1
        if self.smoothing is not None:
            self._average = self.smoothing * self._average + (1 - self.smoothing) * loss
            self._weight = self.smoothing * self._weight + 1 - self.smoothing
        before = self.by_source
        if self.steps == 1 or len(before.sequences) != len(by_source.sequences):
            self.by_source = by_source  # also where a resume accepted other sources
            return
        self.by_source = BySource(
            _sums(before.sequences, by_source.sequences),
            _sums(before.targets, by_source.targets),
            _sums(before.nats, by_source.nats),
        )

    @property
    def ema(self) -> float | None:
        """The moving average, without the bias of its beginning (Kingma and Ba, 2015, section 3).

        NaN before the first finite loss; None where there is none.
        """
        if self.smoothing is None:
            return None
        return self._average / self._weight if self._weight else math.nan

    @property
    def experts(self) -> dict[str, float]:
        """The figures of experts; waits for the device."""
        return self._experts if self.routing is None else expert_metrics(self.routing)

    def take(self, due: bool = True) -> float:
        """Return the mean, NaN where no step had a finite loss, and begin anew.

        Arguments:
            due: a logging interval ends with this step; else the run does, maybe one step after an
                interval, and the mean is over that interval as well.
        """
        total, steps = self.sum, self.steps
        if due:
            self.before = total, steps
        else:
            total, steps = total + self.before[0], steps + self.before[1]
        self.sum, self.steps, self.by_source = 0.0, 0, BySource()
        self.last = total / steps if steps else math.nan
        return self.last

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint."""
        names = (("by_source", "sequences"), ("targets", "targets"), ("nats", "nats"))
        of_sources = {key: list(getattr(self.by_source, name)) for key, name in names}
        several = {key: numbers for key, numbers in of_sources.items() if numbers}
        smooth = {} if self.smoothing is None else {"ema": [self._average, self._weight]}
        before = {"before": [*self.before]} if self.before[1] else {}
        experts = {"experts": known} if (known := self.experts) else {}
        return {"sum": self.sum, "steps": self.steps, **before, **several, **smooth, **experts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with a sum; a run that loads weights begins with none."""
        self.sum, self.steps = float(state.get("sum", 0.0)), int(state.get("steps", 0))
        self.routing, self._experts = None, dict(state.get("experts", {}))
        total, steps = state.get("before", (0.0, 0))
        self.before = float(total), int(steps)
        keys = ("by_source", "targets", "nats")
        self.by_source = BySource(*(tuple(state.get(key, ())) for key in keys))
        self._average, self._weight = map(float, state.get("ema", (0.0, 0.0)))


def _sums(before: tuple[_N, ...], more: tuple[_N, ...]) -> tuple[_N, ...]:
    """Source by source."""
    return tuple(a + b for a, b in zip(before, more, strict=False))


KINDS = ("grad_norm", "param_norm", "update_ratio")
"""First words of columns."""

Sets = dict[str, list[str]]
"""Names of parameters by how a column ends: nothing, `_NAME` or, in layers, `_NAME.INDEX`."""


class NormMetrics:
    """Measures the steps that it is on for, on all ranks alike.

    The norms stay on their device until they are read.

    Arguments:
        elsewhere: parameters that another rank counts.
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
        """Measure the weights after the step, and how far it moved them."""
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

    def pass_over(self) -> None:
        """Drop the measures of an update that was not made."""
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
