"""Expected step time, and its parts, on a GPU that need not be present.

The time of a part of the model comes from `setpoint.plan.part_time`. Communication of weights
overlaps computation as in FSDP2: the weights of a layer are gathered while the layer before is
computed, and gradients are reduced during the backward pass; only the excess adds waiting time.
Communication of activations along `tensor` and `ulysses` is exposed, that of `ring` overlaps
attention. Pipeline stages follow their schedule action by action.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil
from typing import NamedTuple

from setpoint.plan.gpus import GpuSpec, Network, group_of
from setpoint.plan.part_time import Kernels, PartTime, PartTimes, TimeSpent, WeightMessages
from setpoint.plan.schedules import StageTimes, pipeline_seconds, simulate
from setpoint.plan.topology import Place, Shards, Topology, Unit, shards_of, stages_of, stride
from setpoint.plan.traffic import expert_turns, weight_turns
from setpoint.plan.workload import Workload

NOTHING = 1e-12
"""Seconds below which a time counts as rounding error."""
SLOWED = "slowed by concurrent messages"
"""Part of a step: computation slowed by communication on the same device."""
KINDS = {"F": "forward", "B": "backward", "I": "backward", "W": "weight"}
"""Names of schedule actions in a drawing."""


class StepEvent(NamedTuple):
    """Event of a rank, with start and end in seconds.

    Arguments:
        critical: whether the event is on the critical path.
    """

    row: str
    kind: str
    label: str
    start: float
    end: float
    critical: bool = False


@dataclass(slots=True, frozen=True)
class StepTime:
    """Expected time of a step.

    Arguments:
        parts: seconds of the slowest rank by category; they add up to `seconds`.
        hidden: seconds of overlapped communication by category.
        tokens: tokens per step.
        flops: FLOPs per step by the formula `palm`, over all ranks.
        peak: FLOPs per second of all ranks, in the format of matrix products.
        draw: function that makes the events of the step.
    """

    seconds: float
    parts: Mapping[str, float]
    hidden: Mapping[str, float]
    tokens: int
    ranks: int
    flops: float
    peak: float
    assumptions: Sequence[str]
    draw: Callable[[], list[StepEvent]] = field(repr=False, compare=False)

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second over all ranks."""
        return self.tokens / self.seconds

    @property
    def mfu(self) -> float:
        """Model FLOPs utilization by the formula `palm`."""
        return self.flops / self.seconds / self.peak


def step_time(
    workload: Workload,
    topology: Topology,
    gpu: GpuSpec,
    network: Network,
    kernels: Kernels = Kernels(),  # noqa: B008 - a value
) -> StepTime:
    """Compute the expected time of a step.

    Raises:
        SetpointError: the GPU has no peak for the format of matrix products.
    """
    return _Step(workload, topology, gpu, network, kernels).result()


def seconds_of_passes(
    workload: Workload,
    topology: Topology,
    gpu: GpuSpec,
    network: Network,
    kernels: Kernels = Kernels(),  # noqa: B008 - a value
) -> float:
    """Seconds of a micro-batch through all parts, forward and backward, without weight traffic.

    Raises:
        SetpointError: see `step_time`.
    """
    step = _Step(workload, topology, gpu, network, kernels)
    stages = (parts for rank in step.stages for parts in rank)
    return sum(part.forward.total + part.back for parts in stages for part in parts)


@lru_cache(maxsize=4096)
def _passes(
    schedule: str, times: tuple[StageTimes, ...], ranks: int, count: int, hop: float
) -> float:
    """Cached `pipeline_seconds`, shared by layouts that differ only in sharding."""
    return pipeline_seconds(schedule, times, ranks, count, hop)


class _Step(PartTimes):
    """Step of one topology on one GPU."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._sent: dict[Unit, WeightMessages] = {}
        self.stages = [self._stage(number) for number in range(self.topology.pipeline)]

    def _stage(self, rank: int) -> list[list[PartTime]]:
        """Parts of each stage on a pipeline rank."""
        topology, stages = self.topology, []
        for stage in stages_of(self.workload, topology)[rank]:
            parts, layer = [], 0
            for number in stage:
                is_layer = self.workload.kinds[self.workload.order[number]].name == "layer"
                again = is_layer and bool(topology.recompute) and layer % topology.every == 0
                layer += is_layer
                parts.append(self.part(number, again))
            stages.append(parts)
        return stages

    # Communication of weights.

    def _units(self, shards: Shards) -> tuple[list[WeightMessages], dict[Place, WeightMessages]]:
        """Weight communication of each layer, and of other units by place."""
        per_unit = self.topology.layers_per_unit
        messages: list[WeightMessages] = []
        around: dict[Place, WeightMessages] = {}
        for unit in shards.units:
            messages_of_unit = self._sent.get(unit)
            if messages_of_unit is None:
                messages_of_unit = self._sent[unit] = self._unit(unit)
            if unit.place == "layer":
                messages += [
                    messages_of_unit
                    if per_unit == 1
                    else WeightMessages(*(value / per_unit for value in messages_of_unit))
                ] * per_unit
            else:
                around[unit.place] = _sum(
                    messages_of_unit, around.get(unit.place, WeightMessages())
                )
        return messages, around

    def _unit(self, unit: Unit) -> WeightMessages:
        """Communication of weights that are gathered together."""
        t = self.topology
        summed = unit.trained * self.workload.formats.reduce
        across = "+".join(axis for axis in t.copying_axes if t.degrees[axis] > 1)
        if not t.uses_fsdp:
            if t.copies == 1:
                return WeightMessages()
            calls = max(1, ceil(summed / t.bucket))
            return WeightMessages(
                0.0, 0.0, self.seconds_of("all_reduce", across, t.copies, calls, summed)
            )
        axes = "+".join(axis for axis in t.sharding_axes if t.degrees[axis] > 1)
        copied = 0.0
        if t.copies > 1:
            copied = self.seconds_of("all_reduce", across, t.copies, 1, summed / t.shards)
        return WeightMessages(
            self.seconds_of("all_gather", axes, t.shards, 1, unit.gathered),
            self.seconds_of("reduce_scatter", axes, t.shards, 1, summed),
            copied,
        )

    def _optimizer(self, shards: Shards) -> float:
        """Seconds of gradient clipping and the optimizer update, which are memory-bound."""
        formats = self.workload.formats
        stored = formats.master or formats.params
        per_number = 2 * stored + 4 * formats.gradient + (formats.params if formats.master else 0)
        moved = shards.numbers * per_number + 2 * shards.state
        return moved / (self.gpu.bandwidth * self.gpu.assumed.memory)

    # The step.

    def result(self) -> StepTime:
        """The result for the step."""
        t = self.topology
        seconds, parts, hidden = self._flat() if t.pipeline == 1 else self._piped()
        world = [axis for axis in t.degrees if t.degrees[axis] > 1]
        if world:  # the norm of gradients, and the sums of the loss
            small = 3 * self.seconds_of("all_reduce", "+".join(world), t.world_size, 1, 64)
            parts["sums over all ranks"] = small
            seconds += small
        beside = sum(hidden.values())
        slowed = beside * self.gpu.assumed.contention
        parts[SLOWED] = slowed
        return StepTime(
            seconds + slowed,
            {name: seconds for name, seconds in parts.items() if seconds > NOTHING},
            {name: seconds for name, seconds in hidden.items() if seconds > NOTHING},
            self.workload.tokens,
            t.world_size,
            palm_flops(self.workload) * self.workload.tokens,
            self.peak * t.world_size,
            self._assumptions(),
            self.events,
        )

    def _spent(self, parts: Sequence[PartTime], times: int) -> dict[str, float]:
        """Seconds of all passes through some parts, by category."""
        total, again = TimeSpent(), 0.0
        for part in parts:
            total = total.plus(part.forward, times).plus(part.backward, times)
            again += part.again.total * times
        return {
            "matrix products": total.products,
            "attention": total.attention,
            "other operators": total.moving,
            "recomputation": again,
            "messages of activations": total.messages,
            "launching operators": total.host,
        }

    def _flat(self) -> tuple[float, dict[str, float], dict[str, float]]:
        """Step without a pipeline: micro-batches one after another."""
        (stage,) = self.stages[0]
        shards = shards_of(self.workload, self.topology)
        count = self.topology.accumulation
        parts = self._spent(stage, count)
        computing = sum(parts.values())
        flows = self._flows(stage, shards)
        seconds = sum(flow.seconds * times for flow, times in flows)
        sent = sum(flow.sent * times for flow, times in flows)
        parts["messages of weights"] = max(0.0, seconds - computing)
        update = parts["optimizer"] = self._optimizer(shards)
        hidden = {
            "messages of weights": max(0.0, sent - parts["messages of weights"]),
            "ring attention": count * sum(part.beside for part in stage),
        }
        return seconds + update, parts, hidden

    def _flows(self, stage: Sequence[PartTime], shards: Shards) -> list[tuple[_Flow, int]]:
        """Distinct micro-batches with their counts: the first, the middle ones, and the last."""
        count = self.topology.accumulation
        kinds = {}
        for number in sorted({0, min(1, count - 1), count - 1}):
            kinds[number] = self._flow(stage, shards, number == 0, number == count - 1)
        times = dict.fromkeys(kinds, 1)
        if count > 2:
            times[1] = count - 2
        return [(kinds[number], times[number]) for number in kinds]

    def _flow(self, stage: Sequence[PartTime], shards: Shards, first: bool, last: bool) -> _Flow:
        units, others = self._units(shards)
        around, begins, ends = (
            others.get(place, WeightMessages()) for place in ("around", "first", "last")
        )
        t = self.topology
        layer, expert = weight_turns(t, "layer"), expert_turns(t)
        outer, last_turns = weight_turns(t, "around"), weight_turns(t, "last")
        embedding = weight_turns(t, "first")
        first_layer = weight_turns(t, "layer", is_first_layer="first" in others)
        reduces = layer.sums == t.accumulation or last

        def in_this(turns: int) -> bool:
            """True if an event with this many turns per step occurs in this micro-batch."""
            return turns == t.accumulation or (turns > 0 and first)

        flow = _Flow()
        if in_this(outer.forwards):
            flow.wait("gather", "around the layers", around.gather)
        if in_this(embedding.forwards):
            flow.wait("gather", "embedding", begins.gather)
        forth, back = iter(units), iter(reversed(units))
        steps: list[tuple[float, float, float]] = []
        for number, part in enumerate(stage):
            unit = next(forth, WeightMessages()) if part.is_layer else WeightMessages()
            turns = layer if number > t.layers_per_unit else first_layer
            gather = unit.gather * in_this(turns.forwards)
            gather += part.experts.gather * in_this(expert.forwards)
            if part is stage[-1]:
                gather += ends.gather * in_this(last_turns.forwards)
            steps.append((part.forward.total, gather, 0.0))
        flow.run(steps, "forward")
        steps = []
        for number, part in enumerate(reversed(stage)):
            unit = next(back, WeightMessages()) if part.is_layer else WeightMessages()
            gather = unit.gather * in_this(layer.backwards)
            gather += part.experts.gather * in_this(expert.backwards)
            reduce = (unit.reduce + part.experts.reduce) * reduces
            reduce += (unit.copied + part.experts.copied) * last
            if number == 0:
                gather += ends.gather * in_this(last_turns.backwards)
                reduce += ends.reduce * reduces + ends.copied * last
            elif number == len(stage) - 1 and embedding.backwards and not last:
                gather += begins.gather  # for the next micro-batch
            steps.append((part.back, gather, reduce))
        flow.run(steps, "backward")
        outer_sum = _sum(around, begins)
        tail = outer_sum.reduce * reduces + outer_sum.copied * last
        flow.message("reduce", "around the layers", tail, flow.now)
        flow.finish()
        return flow

    def _stage_times(self) -> list[StageTimes]:
        """Times of all stages, in model order."""
        t = self.topology
        order = stages_of(self.workload, t)
        stage_times: dict[int, StageTimes] = {}
        freed = expert_turns(t).backwards > 0
        for rank, stages in enumerate(self.stages):
            for numbers, parts in zip(order[rank], stages, strict=True):
                # Experts that are freed are gathered for each pass, behind the part before.
                stage_times[numbers[0]] = StageTimes(
                    sum(max(part.forward.total, part.experts.gather * freed) for part in parts),
                    sum(max(part.back, part.experts.gather * freed) for part in parts),
                    sum(part.weight for part in parts),
                )
        return [stage_times[first] for first in sorted(stage_times)]

    @property
    def _hop(self) -> float:
        """Seconds to send a micro-batch to the next pipeline rank."""
        w, t = self.workload, self.topology
        tokens = self.tokens // (t.tensor if t.sequence_parallel else 1)
        size = tokens * w.dim * w.formats.transfer
        far = stride(t.degrees, "pipeline") >= self.links.node
        group = group_of(t.degrees, "pipeline", t.pipeline, self.links.node)
        return self.links.seconds("send", group._replace(local=1) if far else group, 1, size)

    def _slowest(self) -> int:
        """Pipeline rank with the longest computation."""
        sums = [
            sum(part.forward.total + part.back for stage in stage_parts for part in stage)
            for stage_parts in self.stages
        ]
        return max(range(len(sums)), key=lambda rank: sums[rank])

    def _piped(self) -> tuple[float, dict[str, float], dict[str, float]]:
        """Step of a pipeline."""
        t = self.topology
        count, slowest = t.accumulation, self._slowest()
        stage_parts = [part for stage in self.stages[slowest] for part in stage]
        parts = self._spent(stage_parts, count)
        busy = sum(parts.values())
        passes = _passes(t.schedule, tuple(self._stage_times()), t.pipeline, count, self._hop)
        passes = max(passes, busy)  # of which the steady state may fall short
        parts["pipeline bubble"] = passes - busy
        around = [self._around_passes(rank) for rank in range(t.pipeline)]
        waited = parts["messages of weights"] = _longest(around, 0) + _longest(around, 1)
        update = parts["optimizer"] = max(self._optimizer_of(rank) for rank in range(t.pipeline))
        hidden = {
            "messages of weights": max(0.0, _longest(around, 2) - waited),
            "ring attention": count * sum(part.beside for part in stage_parts),
        }
        return passes + waited + update, parts, hidden

    def _optimizer_of(self, rank: int) -> float:
        """Seconds of the update on a pipeline rank."""
        place = rank * stride(self.topology.degrees, "pipeline")
        return self._optimizer(shards_of(self.workload, self.topology, place))

    def _around_passes(self, rank: int) -> tuple[float, float, float]:
        """Weight communication of a pipeline rank: before passes, after them, and in total.

        Weights are gathered when the first micro-batch needs them; gradients are reduced after the
        backward pass of the last one.
        """
        t = self.topology
        shards = shards_of(self.workload, t, rank * stride(t.degrees, "pipeline"))
        units, outer = self._units(shards)
        around = WeightMessages()
        for unit_messages in outer.values():
            around = _sum(around, unit_messages)
        turns = weight_turns(t, "layer")
        stage_parts = [part for stage in self.stages[rank] for part in stage]
        first = units[0].gather if units else around.gather
        gathered = sum(unit.gather for unit in units) + around.gather
        forward = sum(part.forward.total for part in stage_parts)
        before = max(first, gathered - forward) if turns.forwards else 0.0
        sent = turns.forwards * gathered
        again = turns.backwards * gathered
        if turns.backwards:  # gathered for each pass: behind it, as far as there is room
            backward = sum(part.back for part in stage_parts)
            before += (t.accumulation - 1) * max(0.0, gathered - forward)
            before += t.accumulation * max(0.0, gathered - backward)
        after = around.reduce + around.copied
        for unit in (*units, *(part.experts for part in stage_parts)):
            after += unit.reduce + unit.copied
        return before, after, sent + again + after

    def events(self) -> list[StepEvent]:
        """Events with their times, for a drawing."""
        events = list(self._events())
        drawn = max(event.end for event in events)
        slowed = self.result().parts.get(SLOWED, 0.0)
        times = (drawn + slowed) / drawn  # evenly, wherever the messages are
        return [
            event._replace(start=event.start * times, end=event.end * times) for event in events
        ]

    def _events(self) -> Iterator[StepEvent]:
        t = self.topology
        if t.pipeline == 1:
            yield from self._flat_events()
            return
        simulation = simulate(
            t.schedule, self._stage_times(), t.pipeline, t.accumulation, self._hop
        )
        around = [self._around_passes(rank) for rank in range(t.pipeline)]
        begins = _longest(around, 0)
        critical = {event for _, event in simulation.critical()}
        end = begins + simulation.seconds + _longest(around, 1)
        for rank, row in enumerate(simulation.ranks):
            name = f"pipeline {rank}"
            before, after, _ = around[rank]
            if before:
                yield StepEvent(
                    name, "gather", "weights", begins - before, begins, before == begins
                )
            for event in row:
                kind = KINDS[event.action.kind]
                label = f"stage {event.action.stage}, micro-batch {event.action.microbatch}"
                start, stop = begins + event.start, begins + event.end
                yield StepEvent(name, kind, label, start, stop, event in critical)
            last = begins + (row[-1].end if row else 0.0)
            if after:
                is_last = last + after >= end
                yield StepEvent(name, "reduce", "gradients", last, last + after, is_last)
            yield StepEvent(name, "optimizer", "update", end, end + self._optimizer_of(rank), True)

    def _flat_events(self) -> Iterator[StepEvent]:
        (stage,) = self.stages[0]
        shards = shards_of(self.workload, self.topology)
        start, number = 0.0, 0
        for flow, times in self._flows(stage, shards):
            for _ in range(times):
                for event in sorted(flow.events, key=lambda event: event.row):
                    yield event._replace(
                        label=f"{event.label}, micro-batch {number}",
                        start=start + event.start,
                        end=start + event.end,
                    )
                start += flow.seconds
                number += 1
        end = start + self._optimizer(shards)
        yield StepEvent("compute", "optimizer", "update", start, end, True)

    def _assumptions(self) -> list[str]:
        m, n, a = self.gpu, self.network, self.gpu.assumed
        t = self.topology
        assumptions = [
            f"{m.title or 'the GPU'}: {self.peak / 1e12:,.0f} TFLOP/s, of which large matrix "
            f"products reach {a.matmul:.0%} (half of that at a size of {a.half_size:g}) and "
            f"attention {a.attention:.0%}",
            f"memory: {m.bandwidth / 1e12:.2f} TB/s, of which operators reach {a.memory:.0%}; "
            f"{'fused by torch.compile' if self.kernels.compiled else 'one kernel each (eager)'}",
        ]
        document = self.kernels.document
        if document is not None:
            known = f"{document:,.0f} tokens on average, weighted by length, in the prepared data"
            assumptions.append(
                f"documents: {known if document else 'one per row, as no data is prepared'}"
            )
        if t.world_size > 1:
            assumptions.append(
                f"links: {m.node.ranks} ranks per node at {m.node.bandwidth / 1e9:g} GB/s, "
                f"{m.node.achieved:.0%} reached"
                + (
                    f"; between nodes {n.bandwidth / 1e9:g} GB/s per rank, {n.achieved:.0%} reached"
                    if t.world_size > m.node.ranks
                    else ""
                )
            )
            assumptions.append(
                "gathers of weights and reductions of gradients overlap computation, which each "
                f"second of them slows by {a.contention:g} s; tensor and Ulysses communication "
                "is exposed"
            )
        if t.pipeline > 1:
            assumptions.append(
                f"schedule {t.schedule}, simulated action by action; gradients are reduced after "
                "the last micro-batch"
            )
        if self.workload.kinds[0].name == "model":
            assumptions.append(
                "the parts of this model are unknown: each weight is counted as a product with "
                "all tokens, which overestimates the step"
            )
        if self.workload.optimizer == "muon":
            assumptions.append("without the matrix products of Muon's orthogonalization")
        if self.workload.weights_on_host:
            assumptions.append("without copies to and from host memory")
        return assumptions


def _longest(around: Sequence[tuple[float, float, float]], column: int) -> float:
    return max(event[column] for event in around)


def _sum(one: WeightMessages, other: WeightMessages) -> WeightMessages:
    return WeightMessages(*(a + b for a, b in zip(one, other, strict=True)))


class _Flow:
    """One micro-batch on a rank: computation, and overlapped communication of weights."""

    def __init__(self) -> None:
        self.events: list[StepEvent] = []
        self.now = self.link = self.sent = 0.0

    def wait(self, kind: str, label: str, seconds: float) -> None:
        """Communicate while computation waits."""
        self.message(kind, label, seconds)
        self.finish()

    def message(self, kind: str, label: str, seconds: float, after: float = 0.0) -> float:
        """Communicate in parallel to computation, once the link is free.

        Returns:
            time of arrival.
        """
        if not seconds:
            return after
        start = max(self.link, after)
        self.link = start + seconds
        self.sent += seconds
        self.events.append(StepEvent("messages", kind, label, start, self.link))
        return self.link

    def run(self, steps: Sequence[tuple[float, float, float]], kind: str) -> None:
        """Compute parts once their weights arrive."""
        arrived = [0.0] * len(steps)
        began = self.now
        if steps:
            arrived[0] = self.message("gather", f"{kind} 0", steps[0][1], began)
        for number, (seconds, _, reduce) in enumerate(steps):
            before, start = self.now, max(self.now, arrived[number])
            if number + 1 < len(steps):
                # Asked for when the part before it begins, before its own gradients are reduced.
                gather = steps[number + 1][1]
                arrived[number + 1] = self.message("gather", f"{kind} {number + 1}", gather, start)
            self.now = start + seconds
            if start > before:
                self._mark(before, start)
            self.events.append(
                StepEvent("compute", kind, f"{kind} {number}", start, self.now, True)
            )
            self.message("reduce", f"{kind} {number}", reduce, self.now)

    def finish(self) -> None:
        """Wait for pending communication."""
        self._mark(self.now, self.link)
        self.now = max(self.now, self.link)

    def _mark(self, start: float, end: float) -> None:
        """Mark communication as critical while nothing is computed."""
        for number, event in enumerate(self.events):
            if event.row == "messages" and event.start < end and event.end > start:
                self.events[number] = event._replace(critical=True)

    @property
    def seconds(self) -> float:
        """Seconds of the micro-batch."""
        return self.now


def palm_flops(workload: Workload) -> float:
    """FLOPs per trained token by the formula `palm`, which treats attention as non-causal."""
    return 6 * sum(
        sum(kind.products) + kind.pair * kind.window
        for kind in (workload.kinds[number] for number in workload.order)
    )
