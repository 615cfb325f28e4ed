"""Steps of few layers and micro-batches, from which a step of many that are alike follows exactly.

What a layer holds, sends and computes does not depend on how many stand beside it. A step is
parted into windows, such as the backward pass of a layer. Within one all moments hold equally many
layers' weights, gradients and activations, so that its peak is an affine function of the number of
layers; between two layers in the middle it goes from one to the other in equal steps, and is
highest at the ends. Two steps that differ by one period of layers give each function, and the peak
is the highest of them. Traffic and FLOPs are affine, too. Of micro-batches that only add up their
gradients, all between the first and the last are alike.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from math import lcm
from typing import Any, NamedTuple

from setpoint.config import draft_of, resolve
from setpoint.dry_run.meter import Window, sorted_rows
from setpoint.model.config import Transformer
from setpoint.optim.config import Muon
from setpoint.optim.grouping import gather
from setpoint.plan.traffic import Traffic
from setpoint.train.build.parameters import adapted, trained
from setpoint.train.config import Job

MICRO_BATCHES = 3
"""The first one of a step makes its gradients, the last one sends them, and one is between."""
_LAYER = re.compile(r"(?:.*\.)?layers\.(\d+)\.(.*)")
_WORTH = 0.75
"""Two steps of few layers are taken where they have fewer than this share of all layers."""


class Measured(NamedTuple):
    """What a step took, in parts that can be extended.

    Arguments:
        fixed: bytes of what is there between steps, by part.
    """

    held: int
    fixed: dict[str, int]
    windows: list[Window]
    flops: int
    traffic: list[Traffic]


class Few(NamedTuple):
    """Two jobs that are a job but for their number of layers.

    Arguments:
        jobs: the one with fewer layers first.
        layers: of each of them.
        ends: layers at the beginning, and at the end, whose windows are told apart.
        times: the differences between them that lie between the first and the whole job.
    """

    jobs: tuple[Job, Job]
    layers: tuple[int, int]
    ends: tuple[int, int]
    times: int


def few_layers(job: Job, vocabulary: int) -> Few | None:
    """Find jobs of few layers from which a job follows; None where all are to be planned.

    Those are jobs whose stages, buckets of gradients or units of FSDP2 are not made layer by layer,
    those whose ranks deal the matrices of all layers among them (Muon), and jobs without enough
    layers that are alike.
    """
    model, parallel = job.model, job.parallel
    if not isinstance(model, Transformer) or not model.parameters_known:
        return None
    degrees = parallel.degrees
    sums_in_buckets = parallel.copies > 1 and not parallel.uses_fsdp
    sharding = parallel.sharding
    ahead = max(sharding.forward_prefetch or 1, sharding.backward_prefetch or 1)
    if degrees["pipeline"] > 1 or sums_in_buckets or sharding.units or ahead > 1:
        return None
    if isinstance(job.optimizer, Muon) and parallel.world_size > 1:
        return None
    policy = job.memory.activation_checkpointing
    period = lcm(
        len(model.attention_pattern) if len(set(model.attention_pattern)) > 1 else 1,
        1 if model.moe is None else model.moe.every,
        1 if policy is None else policy.every,
        sharding.layers_per_unit,
    )
    dense = 0 if model.moe is None else model.moe.first_dense
    end = max(2, period)
    first = -(-dense // period) * period + end
    fewer = first + end + (model.layers - first - end) % period
    more = fewer + period
    if model.layers < more or fewer + more > _WORTH * model.layers:
        return None
    if not _are_alike(job, vocabulary, first - end, period):
        return None
    ends = first, fewer - first
    jobs = _with_layers(job, fewer), _with_layers(job, more)
    return Few(jobs, (fewer, more), ends, (model.layers - fewer) // period)


def _with_layers(job: Job, layers: int) -> Job:
    draft: Any = draft_of(job)
    draft.model.layers = layers
    return resolve(draft)


def _are_alike(job: Job, vocabulary: int, first: int, period: int) -> bool:
    """Whether layers from one on are trained alike, whatever patterns of names say."""
    layers: dict[int, set[Any]] = defaultdict(set)
    for group in gather(job.optimizer, trained(job, vocabulary)):
        for each in group.parameters:
            if found := _LAYER.fullmatch(each.name):
                layers[int(found[1])].add((found[2], each.shape, group.name))
    described = adapted(job, vocabulary)
    for name, size in ({} if described is None else described.quantized).items():
        if found := _LAYER.fullmatch(name):
            layers[int(found[1])].add((found[2], size))
    assert isinstance(job.model, Transformer)
    count = job.model.layers
    return all(layers[one] == layers[one + period] for one in range(first, count - period))


def extended(few: Few, fewer: Measured, more: Measured) -> Measured | None:
    """What a step of all layers takes; None where two steps do not differ by layers alone."""
    windows = [
        _told_apart(step.windows, few.ends, layers)
        for step, layers in zip((fewer, more), few.layers, strict=True)
    ]
    if [label for label, _ in windows[0]] != [label for label, _ in windows[1]]:
        return None
    rows = [{row[:3]: row for row in step.traffic} for step in (fewer, more)]
    highest = max(window.peak for _, window in windows[1])
    if rows[0].keys() != rows[1].keys() or any(w.peak > highest for w in more.windows):
        return None

    def line(a: int, b: int) -> int:
        return a + few.times * (b - a)

    traffic = (
        Traffic(*key, line(row.calls, rows[1][key].calls), line(row.bytes, rows[1][key].bytes))
        for key, row in rows[0].items()
    )
    return Measured(
        line(fewer.held, more.held),
        {name: line(size, more.fixed[name]) for name, size in fewer.fixed.items()},
        [
            Window(one.label, line(one.peak, two.peak), line(one.gradients, two.gradients))
            for (_, one), (_, two) in zip(*windows, strict=True)
        ],
        line(fewer.flops, more.flops),
        sorted_rows(traffic),
    )


def _told_apart(
    windows: Sequence[Window], ends: tuple[int, int], layers: int
) -> list[tuple[tuple[str, int], Window]]:
    """Windows of the first and the last layers, these counted from the end, and of none."""
    found: list[tuple[tuple[str, int], Window]] = []
    for window in windows:
        what, layer = window.label
        if layer >= layers - ends[1]:
            found.append(((f"{what}, from the end", layers - layer), window))
        elif layer < ends[0]:
            found.append((window.label, window))
    return found


class Marked(list[Any]):
    """Micro-batches of which each says when it begins."""

    def __init__(self, given: Sequence[Any], begins: Callable[[], None]) -> None:
        super().__init__(given)
        self._begins = begins

    def __iter__(self) -> Iterator[Any]:
        for each in super().__iter__():
            self._begins()
            yield each


class Counts(NamedTuple):
    """What was computed and sent until some moment of a step."""

    flops: int
    rows: dict[tuple[str, str, int], tuple[int, int]]

    @classmethod
    def of(cls, flops: int, traffic: Sequence[Traffic]) -> Counts:
        """Those that a meter has at the moment."""
        return cls(flops, {row[:3]: (row.calls, row.bytes) for row in traffic})

    def repeated(self, first: Counts, second: Counts, times: int) -> tuple[int, list[Traffic]]:
        """All of them, and what lies between two others so many times more."""
        none = (0, 0)
        rows: list[Traffic] = []
        for key, (calls, size) in self.rows.items():
            after, before = second.rows.get(key, none), first.rows.get(key, none)
            more = [times * (b - a) for a, b in zip(before, after, strict=True)]
            rows.append(Traffic(*key, calls + more[0], size + more[1]))
        return self.flops + times * (second.flops - first.flops), sorted_rows(rows)
