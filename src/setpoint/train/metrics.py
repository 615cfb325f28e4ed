"""Metrics of a row: mean losses, experts, and norms of gradients, weights and updates."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor

from setpoint.model.moe.routing import expert_metrics
from setpoint.optim.clip import norms_of_sets
from setpoint.shapes.batch import ONE_SOURCE, BySource

if TYPE_CHECKING:
    from setpoint.shapes.outcome import Routing
    from setpoint.track.config import Metrics
    from setpoint.train.build.components import Components


_N = TypeVar("_N", int, float)


class LossMean:
    """Adds up losses, and what is known of each source; and smooths the losses of all steps.

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
        # How experts were chosen in the last step that was taken; and by a session before, as the
        # figures of a row.
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
        held = dict(components.weights.named_parameters())
        groups = {
            f"_{group.get('name', number)}": list[str]()
            for number, group in enumerate(components.optimizer.param_groups)
        }
        for name, group in zip(groups, components.optimizer.param_groups, strict=False):
            groups[name] += group["param_names"]
        if components.all_trained is None:
            known = [name for name, each in held.items() if each.requires_grad]
        else:
            known = [each.name for each in components.all_trained]
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
