"""The expected time of a step on a machine that is not here, and what it is made of.

Matrix products and attention take their FLOPs over what of the peak a machine is assumed to reach,
all other operators the bytes that they move over the bandwidth of its memory, messages what
`setpoint.plan.links` says of them. Messages of weights go on beside computing as FSDP2 lets them:
the weights of a layer are gathered while the one before it is computed, and gradients are reduced
behind the backward pass; what does not fit behind is waited for. Messages of activations along
`tensor` and `ulysses` are waited for, those of `ring` go on beside attention. Stages of a pipeline
follow their schedule, action by action.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from setpoint.config import SetpointError
from setpoint.plan.links import Links, group_of
from setpoint.plan.machines import FORMATS, Machine, Network
from setpoint.plan.mesh import stride
from setpoint.plan.schedules import StageTimes, pipeline_seconds, simulate
from setpoint.plan.shards import Shards, Unit, shards_of
from setpoint.plan.traffic import (
    context_rows,
    expert_rows,
    expert_turns,
    expert_weights,
    tensor_rows,
    tokens_of,
    weight_turns,
)
from setpoint.plan.workload import Kind, Topology, Workload, stages_of

if TYPE_CHECKING:
    from setpoint.train.config import Job

ATTENTION_BACKWARD = 2.5
"""FLOPs of the backward pass of attention by those of its forward pass: it computes scores anew."""
BACKWARD_BYTES = 2.0
"""What other operators move in the backward pass, by what they move in the forward pass."""
UNFUSED = ("eager", "aot_eager")
"""Backends of torch.compile that fuse nothing."""
NOTHING = 1e-12
"""Seconds that rounding leaves."""
SLOWED = "slowed by messages beside it"
"""A part of a step: computing that shares the device with messages."""
UNKNOWN_SIZE = 4096
"""Size of matrices in models whose parts are not known."""


class Kernels(NamedTuple):
    """How operators are computed, which the arithmetic of memory need not know.

    Arguments:
        compiled: whether torch.compile fuses operators that move more than they compute.
        float8: whether linear layers of layers compute in 8 bits.
    """

    compiled: bool = False
    float8: bool = False

    @classmethod
    def of(cls, job: Job) -> Kernels:
        """Those of a job."""
        compiles = job.compile is not None and job.compile.backend not in UNFUSED
        return cls(compiles, job.precision.float8 is not None)


class _Passes(NamedTuple):
    """How often operators read or write an element of a token, beside matrix products.

    Arguments:
        norm: and the sum with the residual stream: of the model dim, for each of two parts.
        rotary: of queries and keys.
        gated, plain: of the inner width of feed-forward networks.
        scores: of attention that holds them: mask, softmax, dropout.
        logits: bytes of each logit until its gradient, in the loss.
        launches: operators of a layer's forward pass.
    """

    norm: float
    rotary: float
    gated: float
    plain: float
    scores: float
    logits: float
    launches: int


EAGER = _Passes(5, 8, 5, 2, 6, 28, 32)
"""A kernel of its own for each operator: a norm reads and writes once, a sum reads twice; rotation
multiplies by two tables and adds; SiLU and product read three times and write twice."""
COMPILED = _Passes(4, 2, 3, 2, 4, 12, 14)
"""Neighbours fused into one kernel, which reads each input and writes each output once."""


KINDS = {"F": "forward", "B": "backward", "I": "backward", "W": "weight"}
"""What the actions of a schedule are called in a drawing."""


class Spent(NamedTuple):
    """Seconds of one rank in one pass of one micro-batch, by what they are spent on.

    Arguments:
        moving: operators that move more than they compute.
        messages: of activations, which are waited for.
        host: what the device waits for operators to be launched.
    """

    products: float = 0.0
    attention: float = 0.0
    moving: float = 0.0
    messages: float = 0.0
    host: float = 0.0

    @property
    def total(self) -> float:
        """All of it."""
        return sum(self)

    def plus(self, other: Spent, times: float = 1.0) -> Spent:
        """The sum with another one that is spent so many times."""
        return Spent(*(own + times * each for own, each in zip(self, other, strict=True)))


class _Unit(NamedTuple):
    """Seconds of messages of the weights of a layer: gathered, reduced, and summed over copies."""

    gather: float = 0.0
    reduce: float = 0.0
    copied: float = 0.0


class Part(NamedTuple):
    """What a part of a model takes for a micro-batch.

    Arguments:
        again: recomputation in the backward pass.
        weight: seconds of `backward` for gradients of weights.
        beside: seconds of messages that attention hides.
        experts: messages of weights of experts that ranks divide by axes of their own.
    """

    is_layer: bool
    forward: Spent
    backward: Spent
    again: Spent
    weight: float
    beside: float
    experts: _Unit

    @property
    def back(self) -> float:
        """Seconds of the backward pass with what it recomputes."""
        return self.again.total + self.backward.total


class Event(NamedTuple):
    """Something that a rank does, from its beginning to its end in seconds.

    Arguments:
        critical: whether the step would be shorter if it were.
    """

    row: str
    kind: str
    label: str
    start: float
    end: float
    critical: bool = False


@dataclass(slots=True, frozen=True)
class StepTime:
    """How long a step takes.

    Arguments:
        parts: seconds by what the slowest rank spends them on; they add up to `seconds`.
        hidden: seconds of messages beside computing, by what they are.
        tokens: of a step.
        flops: of a step by the formula `palm`, over all ranks.
        peak: FLOPs per second of all ranks, in the format of matrix products.
        draw: makes the events of the step.
    """

    seconds: float
    parts: Mapping[str, float]
    hidden: Mapping[str, float]
    tokens: int
    ranks: int
    flops: float
    peak: float
    assumptions: Sequence[str]
    draw: Callable[[], list[Event]] = field(repr=False, compare=False)

    @property
    def tokens_per_second(self) -> float:
        """Of all ranks together."""
        return self.tokens / self.seconds

    @property
    def mfu(self) -> float:
        """Model FLOPs utilization, by the formula `palm`."""
        return self.flops / self.seconds / self.peak


def step_time(
    workload: Workload,
    topology: Topology,
    machine: Machine,
    network: Network,
    kernels: Kernels = Kernels(),  # noqa: B008 - a value
) -> StepTime:
    """Compute how long a step takes.

    Raises:
        SetpointError: the machine has no peak for the format of matrix products.
    """
    return _Step(workload, topology, machine, network, kernels).result()


class _Step:
    """One topology on one machine."""

    def __init__(
        self,
        workload: Workload,
        topology: Topology,
        machine: Machine,
        network: Network,
        kernels: Kernels,
    ) -> None:
        self.workload, self.topology, self.machine, self.kernels = (
            workload, topology, machine, kernels,
        )  # fmt: skip
        self.network = network
        self.links = Links.of(machine, network)
        self.tokens = tokens_of(workload, topology)
        self.passes = COMPILED if kernels.compiled else EAGER
        self.peak = peak_of(machine, workload.computes)
        self.fast_peak = machine.peak.fp8 or self.peak if kernels.float8 else self.peak
        self._parts: dict[tuple[int, bool], Part] = {}
        self._sent: dict[Unit, _Unit] = {}
        self.stages = [self._stage(number) for number in range(topology.pipeline)]

    # What the parts of the model take.

    def part(self, number: int, recomputed: bool) -> Part:
        """A part by its kind; alike ones are computed once."""
        key = (self.workload.order[number], recomputed)
        found = self._parts.get(key)
        if found is None:
            found = self._parts[key] = self._part(self.workload.kinds[key[0]], recomputed)
        return found

    def _stage(self, rank: int) -> list[list[Part]]:
        """The parts of each stage of a rank of the pipeline."""
        topology, stages = self.topology, []
        for stage in stages_of(self.workload, topology)[rank]:
            parts, layer = [], 0
            for number in stage:
                is_layer = self.workload.kinds[self.workload.order[number]].name == "layer"
                again = is_layer and topology.recompute != "none" and layer % topology.every == 0
                layer += is_layer
                parts.append(self.part(number, again))
            stages.append(parts)
        return stages

    def _part(self, kind: Kind, recomputed: bool) -> Part:
        tensor = self.topology.tensor
        tokens, moved, trained = self.tokens, self._moved(kind), _trained_share(kind)
        bandwidth = self.machine.bandwidth * self.machine.assumed.memory
        products = self._products(kind)
        attention = 0.0
        if kind.pair:
            # Where scores are held, those that a mask hides are computed as well.
            pairs = kind.window if self._composed(kind) else kind.reach
            attention = 2 * kind.pair * pairs * tokens / tensor
            attention /= self.peak * self.machine.assumed.attention
        calls, ring = self._messages(kind, 1)
        more = self._messages(kind, 2)[0] - calls if recomputed else 0.0
        beside = min(ring, attention * (1 + ATTENTION_BACKWARD))
        waited = calls + ring - beside
        forward = self._with_host(
            kind, Spent(sum(products), attention, moved / bandwidth, waited / 2), 1.0
        )
        backward = self._with_host(
            kind,
            Spent(
                (1 + trained) * sum(products),
                ATTENTION_BACKWARD * attention,
                BACKWARD_BYTES * moved / bandwidth,
                waited / 2,
            ),
            1.5,
        )
        again = Spent()
        if recomputed:
            which = _again(self.topology.recompute)
            again = Spent(
                which[0] * products[0] + which[1] * products[1],
                which[2] * attention,
                which[3] * moved / bandwidth,
                more,
            )
        is_layer = kind.name in ("layer", "model")
        experts = self._experts(kind)
        weight = trained * sum(products)
        return Part(is_layer, forward, backward, again, weight, beside, experts)

    def _with_host(self, kind: Kind, spent: Spent, share: float) -> Spent:
        if kind.name != "layer":
            return spent
        launching = self.passes.launches * share * self.machine.assumed.launch
        return spent._replace(host=max(0.0, launching - spent.total))

    def _products(self, kind: Kind) -> tuple[float, float]:
        """Seconds of matrix products in the forward pass: of attention, and of all else."""
        tensor, tokens = self.topology.tensor, self.tokens
        peak = self.fast_peak if kind.name == "layer" else self.peak
        attention, rest = (2 * each * tokens / tensor for each in kind.products)
        of: dict[str, int] = {}
        for piece in kind.pieces:
            of |= {f"{piece.role} {name}": size for name, size in piece.sizes}
        width = self.workload.dim or UNKNOWN_SIZE
        heads = of.get("attention H", 1) * (of.get("attention Q") or of.get("attention W", 0))
        inner, rows = of.get("feed_forward F", 0), float(tokens)
        if experts := of.get("experts E"):
            inner = of["experts F"] * self.topology.tensor  # which divides no expert
            rows = tokens * of["experts U"] / experts
        if kind.name == "output":
            inner, rows = self.workload.rows, float(tokens)
            if self.workload.from_hidden:
                rows = min(rows, of.get("output C", tokens))
        first = self._rate(peak, tokens, width, (heads or width) / tensor)
        second = self._rate(peak, rows, width, (inner or width) / tensor)
        return attention / first, rest / second

    def _rate(self, peak: float, *sizes: float) -> float:
        """FLOPs per second of products of matrices of these sizes."""
        assumed = self.machine.assumed
        size = 1 / sum(1 / max(1.0, each) for each in sizes)
        # Twice as fast products need twice the size.
        half = assumed.half_size * peak / self.peak
        return peak * assumed.matmul * size / (size + half)

    def _composed(self, kind: Kind) -> bool:
        return any(piece.role == "attention" and " composed" in piece.key for piece in kind.pieces)

    def _moved(self, kind: Kind) -> float:
        """Bytes that operators other than products move in the forward pass of a micro-batch."""
        w, t, p = self.workload, self.topology, self.passes
        tokens, inner, stream = self.tokens, w.formats.compute, w.formats.params
        along = t.tensor if t.sequence_parallel else 1
        if kind.name == "output":
            rows = w.rows / (t.tensor if w.takes_columns and t.loss_parallel else 1)
            # Forward and backward together: the factor of the backward pass is taken out.
            total = p.logits * rows / (1 + BACKWARD_BYTES)
            return tokens * (total + p.norm * w.dim * stream / along)
        numbers = sum(each.numbers * each.times for each in kind.weights)
        if kind.name == "embedding":
            return 2.0 * tokens * w.dim * stream
        cast = numbers / t.tensor / t.expert * (stream + inner) if stream != inner else 0.0
        found = cast
        for piece in kind.pieces:
            of = dict(piece.sizes)
            if piece.role == "norm":
                found += tokens * p.norm * of["D"] * stream / along
            elif piece.role == "dropout":
                found += tokens * 3 * of["D"] * stream / along
            elif piece.role == "attention":
                heads = of["H"] + of.get("K", of["H"])
                size = of.get("Q", of.get("R", 0))
                found += tokens * p.rotary * heads * size * inner / t.tensor
                if self._composed(kind):
                    found += tokens * p.scores * of["H"] * kind.window * 4 / t.tensor
            else:
                width = of["F"] * of.get("U", 1) + of.get("G", 0)
                times = p.gated if "silu" in piece.key or "glu" in piece.key else p.plain
                found += tokens * times * width * inner / t.tensor
                if piece.role == "experts":  # gathered by expert and put back
                    found += tokens * 6 * of["D"] * of["U"] * inner / t.tensor
        if self.kernels.float8:  # each input is read for its scale, read again and written
            found += tokens * 5 * (4 * w.dim + 2 * w.dim) / t.tensor
        return found

    def _messages(self, kind: Kind, again: int) -> tuple[float, float]:
        """Seconds of messages of activations of a micro-batch: all but the ring's, and its own."""
        once = self.topology._replace(accumulation=1)
        rows = [
            *tensor_rows(self.workload, once, kind, self.tokens, again),
            *expert_rows(self.workload, once, kind, self.tokens, again),
        ]
        if kind.name == "layer":
            rows += context_rows(self.workload, once, kind, self.tokens, again)
        waited = sum(self._seconds(*row) for row in rows if row[1] != "ring")
        return waited, sum(self._seconds(*row) for row in rows if row[1] == "ring")

    def _seconds(self, kind: str, axes: str, ranks: int, calls: int, size: float) -> float:
        t, degrees = self.topology, self.topology.degrees
        if axes.startswith("expert"):
            degrees = {
                "pipeline": t.pipeline,
                "replicate": t.replicate,
                "expert_shard": t.expert_shards,
                "expert": t.expert,
                "expert_tensor": t.expert_tensor,
            }
        group = group_of(degrees, axes, ranks, self.links.node)
        return self.links.seconds(kind, group, calls, size)

    # What weights take.

    def _units(self, shards: Shards) -> tuple[list[_Unit], _Unit]:
        """Messages of the weights of each layer, and of what lies around them."""
        each = self.topology.layers_per_unit
        found: list[_Unit] = []
        around = _Unit()
        for unit in shards.units:
            made = self._sent.get(unit)
            if made is None:
                made = self._sent[unit] = self._unit(unit)
            if unit.is_layer:
                found += [made if each == 1 else _Unit(*(value / each for value in made))] * each
            else:
                around = _Unit(*(a + b for a, b in zip(around, made, strict=True)))
        return found, around

    def _unit(self, unit: Unit) -> _Unit:
        """Messages of weights that are gathered together."""
        t = self.topology
        summed = unit.trained * self.workload.formats.reduce
        across = "+".join(axis for axis in t.copying_axes if t.degrees[axis] > 1)
        if not t.uses_fsdp:
            if t.copies == 1:
                return _Unit()
            calls = max(1, ceil(summed / t.bucket))
            return _Unit(0.0, 0.0, self._seconds("all_reduce", across, t.copies, calls, summed))
        axes = "+".join(axis for axis in t.sharding_axes if t.degrees[axis] > 1)
        copied = 0.0
        if t.copies > 1:
            copied = self._seconds("all_reduce", across, t.copies, 1, summed / t.shards)
        return _Unit(
            self._seconds("all_gather", axes, t.shards, 1, unit.gathered),
            self._seconds("reduce_scatter", axes, t.shards, 1, summed),
            copied,
        )

    def _experts(self, kind: Kind) -> _Unit:
        """Messages of the weights of experts of a layer that have axes of their own."""
        t = self.topology
        gathered, trained = expert_weights(self.workload, t, kind)
        if not gathered:
            return _Unit()
        summed = trained * self.workload.formats.reduce
        ranks = t.expert_shards
        return _Unit(
            self._seconds("all_gather", "expert_shard", ranks, 1, gathered),
            self._seconds("reduce_scatter", "expert_shard", ranks, 1, summed),
            self._seconds("all_reduce", "replicate", t.replicate, 1, summed / ranks),
        )

    def _optimizer(self, shards: Shards) -> float:
        """Seconds of clipping and of the update, which read and write what they need."""
        formats = self.workload.formats
        held = formats.master or formats.params
        each = 2 * held + 4 * formats.gradient + (formats.params if formats.master else 0)
        moved = shards.numbers * each + 2 * shards.state
        return moved / (self.machine.bandwidth * self.machine.assumed.memory)

    # The step.

    def result(self) -> StepTime:
        """The step."""
        t = self.topology
        seconds, parts, hidden = self._flat() if t.pipeline == 1 else self._piped()
        world = [axis for axis in t.degrees if t.degrees[axis] > 1]
        if world:  # the norm of gradients, and the sums of the loss
            small = 3 * self._seconds("all_reduce", "+".join(world), t.world_size, 1, 64)
            parts["sums over all ranks"] = small
            seconds += small
        beside = sum(hidden.values())
        slowed = beside * self.machine.assumed.contention
        parts[SLOWED] = slowed
        return StepTime(
            seconds + slowed,
            {name: each for name, each in parts.items() if each > NOTHING},
            {name: each for name, each in hidden.items() if each > NOTHING},
            self.workload.tokens,
            t.world_size,
            palm_flops(self.workload) * self.workload.tokens,
            self.peak * t.world_size,
            self._assumptions(),
            self.events,
        )

    def _spent(self, parts: Sequence[Part], times: int) -> dict[str, float]:
        """Seconds of all passes of parts, by what they are spent on."""
        total, again = Spent(), 0.0
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
        """A step without a pipeline: micro-batches one after another."""
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

    def _flows(self, stage: Sequence[Part], shards: Shards) -> list[tuple[_Flow, int]]:
        """Micro-batches, and how many are alike: the first, those between, and the last one."""
        count = self.topology.accumulation
        kinds = {}
        for number in sorted({0, min(1, count - 1), count - 1}):
            kinds[number] = self._flow(stage, shards, number == 0, number == count - 1)
        times = dict.fromkeys(kinds, 1)
        if count > 2:
            times[1] = count - 2
        return [(kinds[number], times[number]) for number in kinds]

    def _flow(self, stage: Sequence[Part], shards: Shards, first: bool, last: bool) -> _Flow:
        units, around = self._units(shards)
        t = self.topology
        layer, outer, expert = weight_turns(t, True), weight_turns(t, False), expert_turns(t)
        reduces = layer.sums == t.accumulation or last

        def in_this(turns: int) -> bool:
            """Whether what happens so often in a step happens in this micro-batch."""
            return turns == t.accumulation or (turns > 0 and first)

        flow = _Flow()
        if in_this(outer.forwards):
            flow.wait("gather", "around the layers", around.gather)
        there, back = iter(units), iter(reversed(units))
        steps: list[tuple[float, float, float]] = []
        for part in stage:
            unit = next(there, _Unit()) if part.is_layer else _Unit()
            gather = unit.gather * in_this(layer.forwards)
            gather += part.experts.gather * in_this(expert.forwards)
            steps.append((part.forward.total, gather, 0.0))
        flow.run(steps, "forward")
        steps = []
        for part in reversed(stage):
            unit = next(back, _Unit()) if part.is_layer else _Unit()
            gather = unit.gather * in_this(layer.backwards)
            gather += part.experts.gather * in_this(expert.backwards)
            reduce = (unit.reduce + part.experts.reduce) * reduces
            reduce += (unit.copied + part.experts.copied) * last
            steps.append((part.back, gather, reduce))
        flow.run(steps, "backward")
        tail = around.reduce * reduces + around.copied * last
        flow.message("reduce", "around the layers", tail, flow.now)
        flow.finish()
        return flow

    def _stage_times(self) -> list[StageTimes]:
        """Of all stages, in the order of the model."""
        t = self.topology
        order = stages_of(self.workload, t)
        found: dict[int, StageTimes] = {}
        freed = expert_turns(t).backwards > 0
        for rank, stages in enumerate(self.stages):
            for numbers, parts in zip(order[rank], stages, strict=True):
                # Experts that are freed are gathered for each pass, behind the part before.
                found[numbers[0]] = StageTimes(
                    sum(max(part.forward.total, part.experts.gather * freed) for part in parts),
                    sum(max(part.back, part.experts.gather * freed) for part in parts),
                    sum(part.weight for part in parts),
                )
        return [found[first] for first in sorted(found)]

    @property
    def _hop(self) -> float:
        """Seconds that a micro-batch takes from a rank of the pipeline to the next."""
        w, t = self.workload, self.topology
        tokens = self.tokens // (t.tensor if t.sequence_parallel else 1)
        size = tokens * w.dim * w.formats.params
        far = stride(t.degrees, "pipeline") >= self.links.node
        group = group_of(t.degrees, "pipeline", t.pipeline, self.links.node)
        return self.links.seconds("send", group._replace(local=1) if far else group, 1, size)

    def _slowest(self) -> int:
        """The rank of the pipeline that computes longest."""
        sums = [
            sum(part.forward.total + part.back for stage in each for part in stage)
            for each in self.stages
        ]
        return max(range(len(sums)), key=lambda rank: sums[rank])

    def _piped(self) -> tuple[float, dict[str, float], dict[str, float]]:
        """A step of a pipeline."""
        t = self.topology
        count, slowest = t.accumulation, self._slowest()
        held = [part for stage in self.stages[slowest] for part in stage]
        parts = self._spent(held, count)
        busy = sum(parts.values())
        passes = pipeline_seconds(t.schedule, self._stage_times(), t.pipeline, count, self._hop)
        passes = max(passes, busy)  # of which the steady state may fall short
        parts["pipeline bubble"] = passes - busy
        around = [self._around_passes(rank) for rank in range(t.pipeline)]
        waited = parts["messages of weights"] = _longest(around, 0) + _longest(around, 1)
        update = parts["optimizer"] = max(self._optimizer_of(rank) for rank in range(t.pipeline))
        hidden = {
            "messages of weights": max(0.0, _longest(around, 2) - waited),
            "ring attention": count * sum(part.beside for part in held),
        }
        return passes + waited + update, parts, hidden

    def _optimizer_of(self, rank: int) -> float:
        """Seconds of the update on a rank of the pipeline."""
        place = rank * stride(self.topology.degrees, "pipeline")
        return self._optimizer(shards_of(self.workload, self.topology, place))

    def _around_passes(self, rank: int) -> tuple[float, float, float]:
        """Messages of weights of a rank of a pipeline: before the passes, after, and all.

        Weights are gathered as the first micro-batch needs them; gradients go between ranks when
        the last micro-batch has gone back through a stage.
        """
        t = self.topology
        shards = shards_of(self.workload, t, rank * stride(t.degrees, "pipeline"))
        units, around = self._units(shards)
        turns = weight_turns(t, True)
        held = [part for stage in self.stages[rank] for part in stage]
        first = units[0].gather if units else around.gather
        gathered = sum(unit.gather for unit in units) + around.gather
        forward = sum(part.forward.total for part in held)
        before = max(first, gathered - forward) if turns.forwards else 0.0
        sent = turns.forwards * gathered
        again = turns.backwards * gathered
        if turns.backwards:  # gathered for each pass: behind it, as far as there is room
            backward = sum(part.back for part in held)
            before += (t.accumulation - 1) * max(0.0, gathered - forward)
            before += t.accumulation * max(0.0, gathered - backward)
        after = around.reduce + around.copied
        for unit in (*units, *(part.experts for part in held)):
            after += unit.reduce + unit.copied
        return before, after, sent + again + after

    def events(self) -> list[Event]:
        """What happens when, for a drawing."""
        found = list(self._events())
        drawn = max(event.end for event in found)
        slowed = self.result().parts.get(SLOWED, 0.0)
        times = (drawn + slowed) / drawn  # evenly, wherever the messages are
        return [event._replace(start=event.start * times, end=event.end * times) for event in found]

    def _events(self) -> Iterator[Event]:
        t = self.topology
        if t.pipeline == 1:
            yield from self._flat_events()
            return
        found = simulate(t.schedule, self._stage_times(), t.pipeline, t.accumulation, self._hop)
        around = [self._around_passes(rank) for rank in range(t.pipeline)]
        begins = _longest(around, 0)
        critical = {event for _, event in found.critical()}
        end = begins + found.seconds + _longest(around, 1)
        for rank, row in enumerate(found.ranks):
            name = f"pipeline {rank}"
            before, after, _ = around[rank]
            if before:
                yield Event(name, "gather", "weights", begins - before, begins, before == begins)
            for event in row:
                kind = KINDS[event.action.kind]
                label = f"stage {event.action.stage}, micro-batch {event.action.microbatch}"
                start, stop = begins + event.start, begins + event.end
                yield Event(name, kind, label, start, stop, event in critical)
            last = begins + (row[-1].end if row else 0.0)
            if after:
                is_last = last + after >= end
                yield Event(name, "reduce", "gradients", last, last + after, is_last)
            yield Event(name, "optimizer", "update", end, end + self._optimizer_of(rank), True)

    def _flat_events(self) -> Iterator[Event]:
        (stage,) = self.stages[0]
        shards = shards_of(self.workload, self.topology)
        start, number = 0.0, 0
        for flow, times in self._flows(stage, shards):
            for _ in range(times):
                for event in sorted(flow.events, key=lambda each: each.row):
                    yield event._replace(
                        label=f"{event.label}, micro-batch {number}",
                        start=start + event.start,
                        end=start + event.end,
                    )
                start += flow.seconds
                number += 1
        end = start + self._optimizer(shards)
        yield Event("compute", "optimizer", "update", start, end, True)

    def _assumptions(self) -> list[str]:
        m, n, a = self.machine, self.network, self.machine.assumed
        t = self.topology
        found = [
            f"{m.title or 'the machine'}: {self.peak / 1e12:,.0f} TFLOP/s, of which large matrix "
            f"products reach {a.matmul:.0%} (half of that at a size of {a.half_size:g}) and "
            f"attention {a.attention:.0%}",
            f"memory: {m.bandwidth / 1e12:.2f} TB/s, of which operators reach {a.memory:.0%}; "
            f"{'fused by torch.compile' if self.kernels.compiled else 'one kernel each (eager)'}",
        ]
        if t.world_size > 1:
            found.append(
                f"links: {m.node.ranks} ranks a node at {m.node.bandwidth / 1e9:g} GB/s, "
                f"{m.node.achieved:.0%} reached"
                + (
                    f"; between nodes {n.bandwidth / 1e9:g} GB/s a rank, {n.achieved:.0%} reached"
                    if t.world_size > m.node.ranks
                    else ""
                )
            )
            found.append(
                "weights are gathered and gradients reduced behind computing, which each second of "
                f"that slows by {a.contention:g} s; tensor and Ulysses messages are waited for"
            )
        if t.pipeline > 1:
            found.append(
                f"schedule {t.schedule}, simulated action by action; gradients are reduced after "
                f"the last micro-batch"
            )
        if self.workload.kinds[0].name == "model":
            found.append(
                "the parts of this model are known to its own code only: counted are its weights, "
                "each as a product with all tokens, so that a step takes longer"
            )
        if self.workload.optimizer == "Muon":
            found.append("without the matrix products of Muon's orthogonalization")
        if self.workload.weights_on_host or self.workload.state_on_device is not None:
            found.append("as if nothing were copied to and from host memory")
        return found


def _longest(around: Sequence[tuple[float, float, float]], which: int) -> float:
    return max(each[which] for each in around)


class _Flow:
    """One micro-batch on a rank: computing, and messages of weights beside it."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.now = self.link = self.sent = 0.0

    def wait(self, kind: str, label: str, seconds: float) -> None:
        """A message that computing waits for."""
        self.message(kind, label, seconds)
        self.finish()

    def message(self, kind: str, label: str, seconds: float, after: float = 0.0) -> float:
        """Send something beside computing, when the link is free.

        Returns:
            when it has arrived.
        """
        if not seconds:
            return after
        start = max(self.link, after)
        self.link = start + seconds
        self.sent += seconds
        self.events.append(Event("messages", kind, label, start, self.link))
        return self.link

    def run(self, steps: Sequence[tuple[float, float, float]], kind: str) -> None:
        """Compute parts, each behind its gathered weights: seconds, gather, reduce."""
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
            self.events.append(Event("compute", kind, f"{kind} {number}", start, self.now, True))
            self.message("reduce", f"{kind} {number}", reduce, self.now)

    def finish(self) -> None:
        """Wait for what is still on its way."""
        self._mark(self.now, self.link)
        self.now = max(self.now, self.link)

    def _mark(self, start: float, end: float) -> None:
        """Mark messages as critical that go on while nothing is computed."""
        for number, event in enumerate(self.events):
            if event.row == "messages" and event.start < end and event.end > start:
                self.events[number] = event._replace(critical=True)

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.now


def _trained_share(kind: Kind) -> float:
    """The share of matrix products whose weights need gradients."""
    matrices = [each for each in kind.weights if len(each.shape) > 1]
    numbers = sum(each.numbers * each.times for each in matrices)
    trained = sum(each.numbers * each.times for each in matrices if each.is_trained)
    return trained / numbers if numbers else 1.0


def _again(policy: str) -> tuple[float, float, float, float]:
    """Recomputed shares of the forward pass: attention's products, others, scores, the rest."""
    name, _, what = policy.partition(":")
    if name == "parts":
        attention, rest = float("attention" in what), float("feed_forward" in what)
        return attention, rest, attention, (attention + rest) / 2
    if name == "operators":
        saved, _, every = what.partition("/")
        products = 1.0
        if "matmul" in saved:
            products = 1 - 1 / int(every or 1)
        return products, products, float("attention" not in saved), 1.0
    return 1.0, 1.0, 1.0, 1.0


def peak_of(machine: Machine, computes: str) -> float:
    """FLOPs per second of a machine in a format.

    Raises:
        SetpointError: its maker names none.
    """
    peak: float | None = getattr(machine.peak, computes, None)
    if peak is None:
        has = [name for name in FORMATS if getattr(machine.peak, name) is not None]
        raise SetpointError(
            f"precision.compute = {computes}: the machine, {machine.title or 'of --gpu'}, has no "
            f"peak in this format\nValid: {', '.join(has)}, or its number in --machines FILE"
        )
    return peak


def palm_flops(workload: Workload) -> float:
    """FLOPs to train on a token by the formula `palm`, in which attention is not causal."""
    return 6 * sum(
        sum(kind.products) + kind.pair * kind.window
        for kind in (workload.kinds[each] for each in workload.order)
    )
