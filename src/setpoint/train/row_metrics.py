"""Row metrics other than a step's own: mean loss, norms, MFU, and what all ranks have logged."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from setpoint.config import SetpointError
from setpoint.model.build import count_parameters
from setpoint.model.config import TransformerConfig
from setpoint.model.parameters import FORMULAS, all_parameters, pair_size, training_flops
from setpoint.optim.clip import norms_of_sets
from setpoint.shapes.batch import ONE_SOURCE, BySource

if TYPE_CHECKING:
    from setpoint.parallel.world import World
    from setpoint.shapes.logged import MetricLog
    from setpoint.shapes.outcome import Routing
    from setpoint.track.config import Metrics
    from setpoint.train.build.components import Components
    from setpoint.train.config import Job

_N = TypeVar("_N", int, float)


def _sums(before: tuple[_N, ...], more: tuple[_N, ...]) -> tuple[_N, ...]:
    """Element-wise sums, source by source."""
    return tuple(a + b for a, b in zip(before, more, strict=False))


class LossMean:
    """Mean loss since the last row, sums by source, and the moving average of all losses.

    Checkpoints contain the sums, so that a resumed run writes the same rows.

    Arguments:
        smoothing: weight of the past in the moving average of losses; None: no average.
    """

    def __init__(self, smoothing: float | None = None) -> None:
        self.sum, self.steps = 0.0, 0
        # The mean of the last complete logging interval; and that of the last row of this session.
        self.before: tuple[float, int] = (0.0, 0)
        self.last: float | None = None
        self.by_source = BySource()
        # Routing of the last step; and the columns of one from an earlier session.
        self.routing: Routing | None = None
        self._experts: dict[str, float] = {}
        self.smoothing = smoothing
        # The average as if it had begun at 0, and the remaining weight of that start.
        self._average, self._weight = 0.0, 0.0

    def add(self, loss: float, by_source: BySource = ONE_SOURCE) -> None:
        """Add one step."""
        self.sum += loss
        self.steps += 1
        if self.smoothing is not None:
            self._average = self.smoothing * self._average + (1 - self.smoothing) * loss
            self._weight = self.smoothing * self._weight + 1 - self.smoothing
        before = self.by_source
        if self.steps == 1 or len(before.sequences) != len(by_source.sequences):
            self.by_source = by_source  # even if a resume accepted other sources
            return
        if by_source is ONE_SOURCE:
            return
        self.by_source = BySource(
            _sums(before.sequences, by_source.sequences),
            _sums(before.targets, by_source.targets),
            _sums(before.nats, by_source.nats),
        )

    @property
    def ema(self) -> float | None:
        """The moving average, bias-corrected (Kingma and Ba, 2015, section 3).

        NaN before the first finite loss; None without smoothing.
        """
        if self.smoothing is None:
            return None
        return self._average / self._weight if self._weight else math.nan

    @property
    def experts(self) -> dict[str, float]:
        """Columns of expert metrics; synchronizes with the device."""
        return self._experts if self.routing is None else self.routing.metrics()

    def take(self, due: bool = True) -> float:
        """Return the mean, or NaN without a finite loss, and reset.

        Arguments:
            due: whether a logging interval ends with this step; otherwise the run ends, and the
                mean includes the last complete interval.
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
        """Restore the sums, or reset them for an empty state."""
        self.sum, self.steps = float(state.get("sum", 0.0)), int(state.get("steps", 0))
        self.routing, self._experts = None, dict(state.get("experts", {}))
        total, steps = state.get("before", (0.0, 0))
        self.before = float(total), int(steps)
        keys = ("by_source", "targets", "nats")
        self.by_source = BySource(*(tuple(state.get(key, ())) for key in keys))
        self._average, self._weight = map(float, state.get("ema", (0.0, 0.0)))


def meet(metrics: MetricLog, world: World) -> None:
    """Merge all ranks' logged metrics on the main rank, and reset the other ranks.

    All ranks must call it at the same point; they communicate only if one of them has logged.
    """
    metrics.settle()
    if world.size == 1 or not (metrics.meets or metrics.always):
        return
    # Ranks of the axis `tensor` compute the same values.
    coordinates = tuple(i for axis, i in world.coordinates.items() if axis != "tensor")
    metrics.merge(world.all_of((coordinates, metrics.totals)))
    metrics.meets = False
    if not world.is_main:
        metrics.take()


@dataclass(frozen=True, slots=True)
class Utilization:
    """Formula and inputs of a run's model FLOPs utilization (MFU).

    Arguments:
        flops_per_token: FLOPs per token; None if unknown.
        peak: operations per second of one device; None if unknown.
    """

    formula: str
    text: str
    meaning: str
    flops_per_token: float | None
    unknown: str | None
    peak: float | None
    source: str | None
    ranks: int

    @property
    def total_peak(self) -> float | None:
        """Operations per second of all devices; None if unknown."""
        return None if self.peak is None else self.peak * self.ranks

    def record(self) -> dict[str, Any]:
        """The entry in the record of a run.

        Returns:
            a mapping of plain values; `mfu` in the rows is tokens_per_second * flops_per_token /
            (peak_flops * ranks), with the tokens of all ranks.
        """
        return {
            "formula": self.formula,
            "text": self.text,
            "meaning": self.meaning,
            "flops_per_token": self.flops_per_token,
            **({} if self.unknown is None else {"unknown": self.unknown}),
            "peak_flops": self.peak,
            "peak_source": self.source,
            "ranks": self.ranks,
        }


def utilization_of(
    job: Job, model: nn.Module, vocab_size: int, device: torch.device, parameters: int | None = None
) -> Utilization:
    """Find the inputs of the MFU formula.

    Arguments:
        parameters: number of parameters in the whole model, if `model` is only a part; None: count
            them.
    """
    name = job.tracking.flops
    text, meaning = FORMULAS[name]
    flops, unknown = None, None
    try:
        flops = _flops_of(job, model, vocab_size, parameters)
    except SetpointError as error:
        unknown = str(error)
    peak, source = _peak_of(job, device)
    ranks = job.parallel.world_size
    return Utilization(name, text, meaning, flops, unknown, peak, source, ranks)


def _flops_of(job: Job, model: nn.Module, vocab_size: int, parameters: int | None) -> float:
    section, formula, length = job.model, job.tracking.flops, job.batch.sequence_length
    if formula == "all_parameters":
        pairs = _pair_sizes(job, model)
        return all_parameters(parameters or count_parameters(model), pairs, length)
    if not isinstance(section, TransformerConfig):
        tag = type(section).__setpoint__.tag
        raise SetpointError(
            f"tracking.flops = {formula}: the parameters in matrix products of a model of type = "
            f"{tag} are unknown; --tracking.flops all_parameters counts all of them"
        )
    return training_flops(section, formula, vocab_size=vocab_size, sequence_length=length)


def _pair_sizes(job: Job, model: nn.Module) -> int:
    """L H (Q + V): number of elements in a query and a value, over all heads and layers."""
    if isinstance(job.model, TransformerConfig):
        return job.model.layers * pair_size(job.model)
    from setpoint.model.huggingface.language_model import HuggingFaceModel

    # A user's model may name its sizes as transformers does.
    inner = model.model if isinstance(model, HuggingFaceModel) else model
    keys = getattr(inner, "config", None)
    layers = getattr(keys, "num_hidden_layers", None)
    heads = getattr(keys, "num_attention_heads", None)
    width = getattr(keys, "hidden_size", None)
    if not (isinstance(layers, int) and isinstance(heads, int) and isinstance(width, int)):
        raise SetpointError(
            "tracking.flops = all_parameters: the model does not report the number of layers and "
            "heads of its attention"
        )
    size = getattr(keys, "head_dim", None) or width // heads
    return layers * heads * 2 * size


def _peak_of(job: Job, device: torch.device) -> tuple[float | None, str | None]:
    if job.tracking.peak_flops is not None:
        return job.tracking.peak_flops, "tracking.peak_flops"
    if device.type != "cuda":
        return None, None
    from setpoint.track.accelerators import peak_of

    peak = peak_of(torch.cuda.get_device_name(device))
    return (None, None) if peak is None else (peak.flops, peak.source)


KINDS = ("grad_norm", "param_norm", "update_ratio")
"""Prefixes of columns."""

Sets = dict[str, list[str]]
"""Parameter names by column suffix: empty, `_NAME` or, for layers, `_NAME.INDEX`."""


class NormMetrics:
    """Measures gradients, weights and updates of steps while it is on; a collective.

    Norms stay on the device until they are read.

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
        """Measure the gradients of a step before clipping, and keep the weights for comparison."""
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
            # Both are of the weights before the step, as in the definition of their ratio.
            self.norms["update_ratio"] /= self._norms("update_ratio", self.before)
            self.before = {}

    def drop_step(self) -> None:
        """Drop the measurements of a skipped update."""
        self.norms = {kind: norm for kind, norm in self.norms.items() if kind == "grad_norm"}
        self.before = {}

    def columns(self) -> dict[str, Any]:
        """The columns of a row, null if the step was not measured.

        Waits for the device. Layers are a list, in order.
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
    """Group parameters by layer: by the name up to its first number, else by module."""
    layers: Sets = {}
    for name in names:
        numbered = re.match(r"(.*?)\.(\d+)\.", name)
        module = name.rpartition(".")[0] or name
        end = f"_{numbered[1]}.{numbered[2]}" if numbered else f"_{module}"
        layers.setdefault(end, []).append(name)
    return layers
