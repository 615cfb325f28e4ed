"""Expected time of a part of a model: embedding, layer, or output with loss.

The time of matrix products and attention is their FLOPs divided by the achieved fraction of a GPU's
peak; that of all other operators is their bytes divided by the memory bandwidth; times of
communication come from `setpoint.plan.gpus`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from setpoint.config import SetpointError
from setpoint.data.sources.config import Tokens
from setpoint.memory.config import CheckpointedParts, Operators
from setpoint.plan.gpus import FORMATS, GpuSpec, Links, Network, group_of
from setpoint.plan.pieces import COMPOSED
from setpoint.plan.topology import Recompute, Topology, tokens_of
from setpoint.plan.traffic import (
    context_rows,
    expert_rows,
    expert_weights,
    tensor_rows,
)
from setpoint.plan.workload import Kind, Workload

if TYPE_CHECKING:
    from setpoint.train.config import Job

ATTENTION_BACKWARD = 2.5
"""FLOPs of the backward pass of attention relative to the forward pass: it recomputes scores."""
BACKWARD_BYTES = 2.0
"""Bytes of other operators in the backward pass relative to the forward pass."""
UNFUSED = ("eager", "aot_eager")
"""torch.compile backends that fuse nothing."""
SAMPLE = 100_000
"""Documents per folder of prepared data whose lengths are read."""
UNKNOWN_SIZE = 4096
"""Assumed size of matrices of models with unknown parts."""


class Kernels(NamedTuple):
    """Kernel properties of a job that do not matter for memory.

    Arguments:
        compiled: whether torch.compile fuses memory-bound operators.
        document: mean length of a token's document if documents are isolated; 0: isolated, but of
            unknown length; None: rows are documents.
        float8_experts: whether packed experts compute in float8, which pads their rows.
    """

    compiled: bool = False
    document: float | None = None
    float8_experts: bool = False

    @classmethod
    def of(cls, job: Job) -> Kernels:
        """Kernels of a job."""
        compiles = job.compile is not None and job.compile.backend not in UNFUSED
        float8 = job.precision.float8
        return cls(compiles, document_length(job), float8 is not None and float8.experts)


def document_length(job: Job) -> float | None:
    """Mean length of a token's document; see `Kernels`.

    Known for prepared data, from the index of its first 100,000 documents.
    """
    if not job.data.packing.isolate:
        return None
    sources = job.data.sources
    paths = [
        Path(path) for source in sources if isinstance(source, Tokens) for path in source.paths
    ]
    if len(paths) < len(sources):
        return 0.0
    # Most plans do not need numpy.
    from setpoint.data.token_store import first_lengths, is_prepared

    folders = [path for path in paths if is_prepared(path)]
    if len(folders) < len(sources):
        return 0.0
    longest = job.batch.sequence_length
    lengths = [
        min(length, longest) for folder in folders for length in first_lengths(folder, SAMPLE)
    ]
    return sum(length * length for length in lengths) / max(1, sum(lengths))


class _Passes(NamedTuple):
    """Reads and writes per element and token of operators other than matrix products.

    Arguments:
        norm: norm with the residual sum, per element of the model dim, for each of two parts.
        rotary: rotation of queries and keys.
        gated, plain: activation in the inner width of feed-forward networks.
        scores: mask, softmax and dropout of attention that materializes scores.
        logits: bytes per logit up to its gradient, in the loss.
        launches: operators in the forward pass of a layer.
    """

    norm: float
    rotary: float
    gated: float
    plain: float
    scores: float
    logits: float
    launches: int


EAGER = _Passes(5, 8, 5, 2, 6, 28, 32)
"""One kernel per operator: a norm reads and writes once, a sum reads twice; rotation multiplies by
two tables and adds; SiLU and product read three times and write twice."""
COMPILED = _Passes(4, 2, 3, 2, 4, 12, 14)
"""Fused kernels, which read each input and write each output once."""


class TimeSpent(NamedTuple):
    """Seconds of one rank in one pass of one micro-batch, by category.

    Arguments:
        moving: memory-bound operators.
        messages: exposed communication of activations.
        host: waiting for operators to be launched.
    """

    products: float = 0.0
    attention: float = 0.0
    moving: float = 0.0
    messages: float = 0.0
    host: float = 0.0

    @property
    def total(self) -> float:
        """Total seconds."""
        return sum(self)

    def plus(self, other: TimeSpent, times: float = 1.0) -> TimeSpent:
        """The sum with a multiple of another instance."""
        return TimeSpent(
            *(first + times * second for first, second in zip(self, other, strict=True))
        )


class WeightMessages(NamedTuple):
    """Seconds of a layer's weight traffic: gathered, reduced, and summed over copies."""

    gather: float = 0.0
    reduce: float = 0.0
    copied: float = 0.0


class PartTime(NamedTuple):
    """Seconds of a part of a model per micro-batch.

    Arguments:
        again: recomputation in the backward pass.
        weight: seconds of `backward` spent on gradients of weights.
        beside: seconds of communication hidden by attention.
        experts: weight traffic of experts that are divided along their own axes.
    """

    is_layer: bool
    forward: TimeSpent
    backward: TimeSpent
    again: TimeSpent
    weight: float
    beside: float
    experts: WeightMessages

    @property
    def back(self) -> float:
        """Seconds of the backward pass, including recomputation."""
        return self.again.total + self.backward.total


@dataclass(eq=False)
class PartTimes:
    """Times of the parts of a model on a rank of a topology."""

    workload: Workload
    topology: Topology
    gpu: GpuSpec
    network: Network
    kernels: Kernels

    def __post_init__(self) -> None:
        gpu, kernels = self.gpu, self.kernels
        self.links = Links.of(gpu, self.network)
        self.tokens = tokens_of(self.workload, self.topology)
        self.passes = COMPILED if kernels.compiled else EAGER
        self.peak = peak_of(gpu, self.workload.computes)
        self.fast_peak = gpu.peak.fp8 or self.peak
        self._parts: dict[tuple[int, bool], PartTime] = {}

    def part(self, number: int, recomputed: bool) -> PartTime:
        """Time of a part; equal parts are computed once."""
        key = (self.workload.order[number], recomputed)
        part_time = self._parts.get(key)
        if part_time is None:
            part_time = self._parts[key] = self._part(self.workload.kinds[key[0]], recomputed)
        return part_time

    def _part(self, kind: Kind, recomputed: bool) -> PartTime:
        tensor = self.topology.tensor
        tokens, moved, trained = self.tokens, self._moved(kind), _trained_share(kind)
        bandwidth = self.gpu.bandwidth * self.gpu.assumed.memory
        products = self._products(kind)
        attention = 0.0
        if kind.pair:
            # If scores or a dense mask are stored, hidden pairs are computed as well.
            document = self.kernels.document or kind.length
            pairs = kind.length if self._is_dense(kind) else kind.reach_within(document)
            attention = 2 * kind.pair * pairs * tokens / tensor
            attention /= self.peak * self.gpu.assumed.attention
        calls, ring = self._messages(kind, 1)
        more = self._messages(kind, 2)[0] - calls if recomputed else 0.0
        beside = min(ring, attention * (1 + ATTENTION_BACKWARD))
        waited = calls + ring - beside
        forward = self._with_host(
            kind, TimeSpent(sum(products), attention, moved / bandwidth, waited / 2), 1.0
        )
        backward = self._with_host(
            kind,
            TimeSpent(
                (1 + trained) * sum(products),
                ATTENTION_BACKWARD * attention,
                BACKWARD_BYTES * moved / bandwidth,
                waited / 2,
            ),
            1.5,
        )
        again = TimeSpent()
        if recomputed:
            repeats = _again(self.topology.recompute)
            again = TimeSpent(
                repeats[0] * products[0] + repeats[1] * products[1],
                repeats[2] * attention,
                repeats[3] * moved / bandwidth,
                more,
            )
        is_layer = kind.name in ("layer", "model")
        experts = self._experts(kind)
        weight = trained * sum(products)
        return PartTime(is_layer, forward, backward, again, weight, beside, experts)

    def _with_host(self, kind: Kind, spent: TimeSpent, share: float) -> TimeSpent:
        if kind.name != "layer":
            return spent
        launching = self.passes.launches * share * self.gpu.assumed.launch
        return spent._replace(host=max(0.0, launching - spent.total))

    def _products(self, kind: Kind) -> tuple[float, float]:
        """Seconds of matrix products in the forward pass: in attention, and in the rest."""
        tensor, tokens = self.topology.tensor, self.tokens
        sizes_of: dict[str, int] = {}
        for piece in kind.pieces:
            sizes_of |= {f"{piece.role} {name}": size for name, size in piece.sizes}
        width = self.workload.dim or UNKNOWN_SIZE
        heads = sizes_of.get("attention H", 1) * (
            sizes_of.get("attention Q") or sizes_of.get("attention W", 0)
        )
        inner, rows = sizes_of.get("feed_forward F", 0), float(tokens)
        if experts := sizes_of.get("experts E"):
            inner = sizes_of["experts F"] * self.topology.tensor  # which divides no expert
            rows = tokens * sizes_of["experts U"] / experts
        if kind.name == "output":
            inner, rows = self.workload.rows, float(tokens)
            if self.workload.from_hidden:
                rows = min(rows, sizes_of.get("output C", tokens))
        sizes = (tokens, width, (heads or width) / tensor), (rows, width, (inner or width) / tensor)
        attention, other_seconds = (
            2 * tokens / tensor * (
                (total - fast) / self._rate(self.peak, *size)
                + fast / self._rate(self.fast_peak, *size)
            )
            for total, fast, size in zip(kind.products, kind.float8, sizes, strict=True)
        )  # fmt: skip
        return attention, other_seconds

    def _rate(self, peak: float, *sizes: float) -> float:
        """FLOPs per second for products of matrices of these sizes."""
        assumed = self.gpu.assumed
        size = 1 / sum(1 / max(1.0, rate) for rate in sizes)
        # Products that are twice as fast need twice the size.
        half = assumed.half_size * peak / self.peak
        return peak * assumed.matmul * size / (size + half)

    def _is_dense(self, kind: Kind) -> bool:
        """True if attention also computes masked pairs of positions."""
        return self._composed(kind) or not _words(kind).isdisjoint({"masked", "window"})

    def _composed(self, kind: Kind) -> bool:
        return not _words(kind).isdisjoint(COMPOSED.values())

    def _moved(self, kind: Kind) -> float:
        """Bytes moved by operators other than products in a micro-batch's forward pass."""
        w, t, p = self.workload, self.topology, self.passes
        tokens, inner, stream = self.tokens, w.formats.compute, w.formats.params
        divisor = t.tensor if t.sequence_parallel else 1
        if kind.name == "output":
            rows = w.rows / (t.tensor if w.takes_columns and t.loss_parallel else 1)
            # Forward and backward together: the factor of the backward pass is taken out.
            total = p.logits * rows / (1 + BACKWARD_BYTES)
            return tokens * (total + p.norm * w.dim * stream / divisor)
        numbers = sum(weight.numbers * weight.times for weight in kind.weights)
        if kind.name == "embedding":
            return 2.0 * tokens * w.dim * stream
        cast = numbers / t.tensor / t.expert * (stream + inner) if stream != inner else 0.0
        moved = cast
        for piece in kind.pieces:
            sizes = dict(piece.sizes)
            if piece.role == "norm":
                moved += tokens * p.norm * sizes["D"] * stream / divisor
            elif piece.role == "dropout":
                moved += tokens * 3 * sizes["D"] * stream / divisor
            elif piece.role == "attention":
                heads = sizes["H"] + sizes.get("K", sizes["H"])
                size = sizes.get("Q", sizes.get("R", 0))
                moved += tokens * p.rotary * heads * size * inner / t.tensor
                if self._composed(kind):
                    moved += tokens * p.scores * sizes["H"] * kind.length * 4 / t.tensor
                if "repeated" in piece.key.split():  # keys and values, written and read
                    moved += tokens * 4 * sizes["H"] * size * inner / t.tensor
            else:
                width = sizes["F"] * sizes.get("U", 1) + sizes.get("G", 0)
                times = p.gated if "silu" in piece.key or "glu" in piece.key else p.plain
                moved += tokens * times * width * inner / t.tensor
                if piece.role == "experts":  # gathered by expert and put back
                    moved += tokens * 6 * sizes["D"] * sizes["U"] * inner / t.tensor
                    if self.kernels.float8_experts:  # and padded: read and written once more
                        moved += tokens * sizes["U"] * 9 * (2 * sizes["D"] + sizes["F"]) / t.tensor
        if any(kind.float8):  # each input is read for its scale, read again and written
            moved += tokens * 5 * (4 * w.dim + 2 * w.dim) / t.tensor
        return moved

    def _messages(self, kind: Kind, again: int) -> tuple[float, float]:
        """Seconds of a micro-batch's activation traffic: without the ring, and of the ring."""
        once = self.topology._replace(accumulation=1)
        rows = [
            *tensor_rows(self.workload, once, kind, self.tokens, again),
            *expert_rows(self.workload, once, kind, self.tokens, again),
        ]
        if kind.name == "layer":
            rows += context_rows(self.workload, once, kind, self.tokens, again)
        waited = sum(self.seconds_of(*row) for row in rows if row[1] != "ring")
        return waited, sum(self.seconds_of(*row) for row in rows if row[1] == "ring")

    def seconds_of(self, kind: str, axes: str, ranks: int, calls: int, size: float) -> float:
        """Seconds for a row of `setpoint.plan.traffic`."""
        t, degrees = self.topology, self.topology.degrees
        if axes.startswith("expert"):
            degrees = {
                "pipeline": t.pipeline,
                "replicate": t.expert_replicas,
                "expert_shard": t.expert_shards,
                "expert": t.expert,
                "expert_tensor": t.expert_tensor,
            }
        group = group_of(degrees, axes, ranks, self.links.node)
        return self.links.seconds(kind, group, calls, size)

    def _experts(self, kind: Kind) -> WeightMessages:
        """Weight traffic of a layer's experts if they have their own axes."""
        t = self.topology
        gathered, trained = expert_weights(t, kind)
        if not gathered:
            return WeightMessages()
        summed = trained * self.workload.formats.reduce
        ranks = t.expert_shards
        return WeightMessages(
            self.seconds_of("all_gather", "expert_shard", ranks, 1, gathered),
            self.seconds_of("reduce_scatter", "expert_shard", ranks, 1, summed),
            self.seconds_of("all_reduce", "replicate", t.expert_replicas, 1, summed / ranks),
        )


def _words(kind: Kind) -> set[str]:
    """Words in the key of attention."""
    return {w for piece in kind.pieces if piece.role == "attention" for w in piece.key.split()}


def _trained_share(kind: Kind) -> float:
    """Fraction of matrix products whose weights need gradients."""
    matrices = [weight for weight in kind.weights if len(weight.shape) > 1]
    numbers = sum(matrix.numbers * matrix.times for matrix in matrices)
    trained = sum(matrix.numbers * matrix.times for matrix in matrices if matrix.is_trained)
    return trained / numbers if numbers else 1.0


def _again(policy: Recompute) -> tuple[float, float, float, float]:
    """Recomputed fractions of the forward pass: attention products, others, scores, the rest."""
    if policy.kind is CheckpointedParts:
        attention, feed_forward = map(float, map(policy.recomputes, ("attention", "feed_forward")))
        return attention, feed_forward, attention, (attention + feed_forward) / 2
    if policy.kind is Operators:
        products = 1 - 1 / policy.matmul_every if policy.saves("matmul") else 1.0
        return products, products, float(not policy.saves("attention")), 1.0
    return 1.0, 1.0, 1.0, 1.0


def peak_of(gpu: GpuSpec, computes: str) -> float:
    """FLOPs per second of a GPU in a format.

    Raises:
        SetpointError: the data sheet does not state a number for the format.
    """
    peak: float | None = getattr(gpu.peak, computes, None)
    if peak is None:
        has = [name for name in FORMATS if getattr(gpu.peak, name) is not None]
        raise SetpointError(
            f"precision.compute = {computes}: the GPU, {gpu.title or 'of --gpu'}, has no peak "
            f"for this format\nValid: {', '.join(has)}, or its number in --gpu-file FILE"
        )
    return peak
