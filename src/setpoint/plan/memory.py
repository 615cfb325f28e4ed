"""Peak memory of one rank in a step, by part.

Activations come from a table: for each kind of model piece `activations.json` has the bytes kept
for the backward pass and those alive at its peaks, as polynomials of sizes with measured
coefficients (`python -m tests.plan.activations`). Pieces that are not in the table are unknown; a
dry run can measure them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache, lru_cache
from math import ceil
from operator import mul
from pathlib import Path
from typing import Any, NamedTuple

from setpoint.memory.config import CheckpointedParts, Full
from setpoint.parallel.config import CONTEXT
from setpoint.parallel.pipelining import SCHEDULES
from setpoint.plan.pieces import ModelPiece
from setpoint.plan.schedules import InFlight, in_flight
from setpoint.plan.topology import (
    Shards,
    Topology,
    Unit,
    coordinates,
    shards_of,
    stages_of,
    tokens_of,
)
from setpoint.plan.workload import Kind, Workload

TABLE = Path(__file__).parent / "activations.json"

WORDS = {
    "latent": "latent attention",
    "rotary": "rotary positions",
    "kernel": "a fused kernel",
    "math": "sdpa_math",
    "capped": "a soft cap",
    "sinks": "attention sinks",
    "masked": "isolated documents",
    "documents": "isolated documents",
    "window": "a sliding window",
    "repeated": "key-value heads repeated for a kernel",
    "both": "layers with and without a window",
    "ring": "sequences divided by ring",
    "ulysses": "sequences divided by ulysses",
    "apart": "unpacked experts",
    "packed": "packed experts",
    "plain": "norms on a CPU",
    "inside": "hidden states in the compute format",
}
"""Readable terms for words of keys."""


class Held(NamedTuple):
    """Bytes of one part of a model for one micro-batch on one rank.

    Arguments:
        kept: bytes kept from the forward to the backward pass.
        again: additional bytes while dropped activations are recomputed.
        work: additional bytes at a moment of the backward pass.
        split: additional bytes between input and weight gradients if a schedule splits them: the
            gradients of results of matrix products and norms.
    """

    kept: int
    again: int
    work: int
    split: int


def in_words(key: str) -> str:
    """Spell out the key of a piece."""
    first, *rest = key.split()
    words = dict(WORDS)
    words["shared"] = "shared experts" if first == "experts" else "shared key-value heads"
    reasons: list[str] = []
    for word in rest:
        params, _, compute = word.partition("/")
        if params.isdecimal() and compute:
            reasons.append(f"weights of {params} bytes computed in {compute}")
        else:
            reasons.append(words.get(word, word))
    return " with ".join([words.get(first, first), ", ".join(reasons)])


def value_of(monomial: str, sizes: Mapping[str, float]) -> float:
    """Multiply the sizes named by the letters of a monomial."""
    product = 1.0
    for letter in monomial:
        if letter != "1":
            product *= sizes[letter]
    return product


@cache
def known_keys() -> dict[str, dict[str, Any]]:
    """The table: kept bytes, peaks and results of matrix products of each key."""
    return json.loads(TABLE.read_text(encoding="utf-8"))


def peak_of(entry: dict[str, Any], sizes: Mapping[str, float]) -> int:
    """Peak bytes of a piece, including the bytes it keeps."""
    return max(_sum(curve, sizes) for curve in entry["peaks"])


def _sum(curve: dict[str, float], sizes: Mapping[str, float]) -> int:
    return round(sum(number * value_of(name, sizes) for name, number in curve.items()))


class _PieceBytes(NamedTuple):
    """Bytes of a piece on one rank.

    Arguments:
        peak: bytes alive at its peak, including those it keeps.
        products, kernel: results of its matrix products, and of attention as one operator.
        read: results of products that are read on the rank, not only sent to others.
    """

    role: str
    kept: int
    peak: int
    products: tuple[int, ...]
    read: tuple[int, ...]
    kernel: int


@lru_cache(maxsize=4096)
def missing(workload: Workload, topology: Topology) -> str:
    """Reason why kept activations are unknown; empty if they are known."""
    if workload.unknown:
        return workload.unknown
    for kind in workload.kinds:
        for piece in kind.pieces:
            key = _key(piece, _sizes(piece, workload, topology), topology)
            if key not in known_keys():
                return f"the saved activations were never measured for: {in_words(key)}"
    return ""


def held_by(kind: Kind, workload: Workload, topology: Topology, number: int) -> Held:
    """Look up the activations of a part, if nothing is `missing`.

    Arguments:
        number: index of the layer in its stage, which determines whether it is recomputed.
    """
    return _held_by(kind, workload, _canonical(topology), number % topology.every)


@lru_cache(maxsize=65536)
def _canonical(topology: Topology) -> Topology:
    return topology.of_micro_batch()._replace(shard=2 if topology.uses_fsdp else 1)


@lru_cache(maxsize=65536)
def _held_by(kind: Kind, workload: Workload, topology: Topology, number: int) -> Held:
    pieces = [_looked_up(piece, workload, topology) for piece in kind.pieces]
    stream = _beside(workload, topology) * workload.dim * workload.formats.params
    total = sum(piece.kept for piece in pieces)
    split = sum(sum(piece.products) + stream * (piece.role == "norm") for piece in pieces)
    left, work = total, 0
    for layer_piece in reversed(pieces):
        # In addition to its own gradient a norm has that of the residual stream around it.
        around = stream if layer_piece.role == "norm" else 0
        work = max(work, layer_piece.peak + around - (total - left) - layer_piece.kept)
        work = max(work, left - layer_piece.kept + layer_piece.peak + around - total)
        left -= layer_piece.kept
    if kind.name != "layer" or not topology.recompute or number:
        return Held(total, 0, work, split)
    policy = topology.recompute
    if policy.kind is Full:
        return Held(stream, total - stream, work, total - stream + split)
    if policy.kind is CheckpointedParts:
        roles_of = {"attention": ("attention",), "feed_forward": ("feed_forward", "experts")}
        inputs = _beside(workload, topology) * workload.dim * workload.formats.compute
        again, kept = 0, total
        for part, roles in roles_of.items():
            for layer_piece in pieces:
                if policy.recomputes(part) and layer_piece.role in roles:
                    kept -= layer_piece.kept - inputs
                    again = max(again, layer_piece.kept - inputs)
        return Held(kept, again, work, total - kept + split)
    kept = stream
    if policy.saves("matmul"):
        sent = policy.saves("exchange") and topology.expert > 1
        products = [size for piece in pieces for size in (piece.read if sent else piece.products)]
        kept += sum(products[:: policy.matmul_every])
    if policy.saves("attention"):
        kept += sum(piece.kernel for piece in pieces)
    if policy.saves("exchange") and topology.expert > 1:
        kept += exchanged_bytes(kind, workload, topology)
    return Held(kept, max(0, total - kept), work, max(0, total - kept) + split)


def exchanged_bytes(kind: Kind, workload: Workload, topology: Topology) -> int:
    """Bytes saved by a layer's exchanges: rows, router weights, counts, and sums of results."""
    sizes = next((dict(piece.sizes) for piece in kind.pieces if piece.role == "experts"), None)
    if sizes is None:
        return 0
    tokens = tokens_of(workload, topology)
    local_tokens = tokens // topology.token_shares
    width = sizes["D"] * workload.formats.compute
    return local_tokens * sizes["U"] * (width + 4) + tokens * width + sizes["E"] * 8


def _beside(workload: Workload, topology: Topology) -> int:
    """Number of tokens in activations between the matrices that `tensor` divides."""
    tokens = tokens_of(workload, topology)
    return tokens // topology.tensor if topology.sequence_parallel else tokens


def _looked_up(piece: ModelPiece, workload: Workload, topology: Topology) -> _PieceBytes:
    sizes = _sizes(piece, workload, topology)
    entry = known_keys()[_key(piece, sizes, topology)]
    casts = _casts_of_weights(piece, workload, topology, entry["kept"], sizes)
    # Result rows of experts; packed experts multiply all at once.
    packed = "packed" in piece.key.split()
    read = [product for product in entry["products"] if not (packed and "TUD" in product)]
    return _PieceBytes(
        piece.role,
        _sum(entry["kept"], sizes) - casts,
        peak_of(entry, sizes) - casts,
        tuple(_sum(product, sizes) for product in entry["products"]),
        tuple(_sum(product, sizes) for product in read),
        _sum(entry["kernel"], sizes),
    )


def _casts_of_weights(
    piece: ModelPiece,
    workload: Workload,
    topology: Topology,
    kept: dict[str, float],
    sizes: Mapping[str, float],
) -> int:
    """Bytes of cast weights that autocast keeps, unless FSDP2 casts them beforehand."""
    formats, is_tied = workload.formats, piece.role == "output" and workload.tied
    if not topology.uses_fsdp or formats.gathered == formats.params or is_tied:
        return 0
    matrices = {n: size for n, size in kept.items() if len(n) > 1 and not set(n) & set("TSB")}
    return _sum(matrices, sizes)


def _key(piece: ModelPiece, sizes: Mapping[str, float], topology: Topology) -> str:
    words = [piece.key]
    if piece.role == "attention":
        if "K" in sizes and sizes["H"] != sizes["K"]:
            words += ["shared"]
        else:
            words = [piece.key.replace(" repeated", "")]
        words += [axis for axis in CONTEXT if getattr(topology, axis) > 1]
    return " ".join(words)


def _sizes(piece: ModelPiece, workload: Workload, topology: Topology) -> dict[str, float]:
    """Sizes of a piece on a rank."""
    sizes: dict[str, float] = dict(piece.sizes)
    ranks = topology.tensor
    tokens = tokens_of(workload, topology)
    sizes |= {"B": topology.micro_size, "T": tokens, "S": workload.length // topology.context}
    if piece.role in ("norm", "dropout"):
        sizes["T"] = _beside(workload, topology)
    elif piece.role == "attention":
        sizes["H"] = max(1, sizes["H"] // ranks)
        if "K" in sizes:
            sizes["K"] = max(1, sizes["K"] // ranks)
    elif piece.role == "feed_forward":
        sizes["F"] //= ranks
    elif piece.role == "experts":
        if "G" in sizes:
            sizes["G"] //= ranks
        sizes["F"] //= topology.expert_tensor
        # All ranks together have all choices of all tokens, evenly distributed.
        sizes["E"] = sizes["E"] // topology.expert
        sizes["U"] /= topology.token_shares
    elif piece.role in ("embedding", "output"):
        sizes["V"] = ceil(sizes["V"] / ranks)
        if "C" in sizes:
            sizes["C"] = min(sizes["C"], tokens)
    return sizes


class RankMemory(NamedTuple):
    """Bytes of one rank at its peak, by purpose.

    Arguments:
        masters: master weights, which the optimizer updates.
        optimizer: the whole optimizer state, on the device or the host.
        buffers: noise of a micro-batch's token embeddings.
        gradients: accumulated gradients, and those of layers being computed.
        activations: activations kept for the backward passes of all micro-batches in flight,
            without logits.
        recomputed: activations of the recomputed layer, and temporaries of a backward pass.
        logits: logits of a micro-batch, with its loss.
        gathered: gathered weights of the layers being computed, and messages of their gradients.
        on_host: bytes of the above in host memory.
        moment: `loss`, `backward`, `end` of the backward pass, or `update`.
        unknown: reason why activations are unknown; empty if they are known.
    """

    weights: int
    masters: int
    optimizer: int
    buffers: int
    gradients: int
    activations: int
    recomputed: int
    logits: int
    gathered: int
    on_host: int
    moment: str
    unknown: str = ""

    @property
    def total(self) -> int:
        """Known bytes on the device."""
        return sum(self[:9]) - self.on_host

    def to_json(self) -> dict[str, object]:
        """The memory as JSON."""
        return {**self._asdict(), "total": self.total}


@lru_cache(maxsize=65536)
def rank_memory(workload: Workload, topology: Topology, rank: int = 0) -> RankMemory:
    """Peak memory of one rank."""
    fixed = update_memory(workload, topology, rank)
    if fixed.unknown:
        return fixed
    pipeline_rank = coordinates(topology.degrees, rank)["pipeline"]
    stages = stages_of(workload, topology)[pipeline_rank]
    kept_parts = [_held(workload, topology, stage) for stage in stages]
    received = _received(workload, topology, stages)
    shards = shards_of(workload, topology, rank)
    moments = _moments(workload, topology, fixed, shards, kept_parts, pipeline_rank, received)
    return max(fixed._replace(activations=received), *moments, key=lambda moment: moment.total)


def update_memory(workload: Workload, topology: Topology, rank: int = 0) -> RankMemory:
    """Memory of one rank in the optimizer update; exact, since no activations are left."""
    formats = workload.formats
    shards = shards_of(workload, topology, rank)
    stages = stages_of(workload, topology)[coordinates(topology.degrees, rank)["pipeline"]]
    embeds = any(workload.order[part] == workload.order[0] for stage in stages for part in stage)
    noise = _beside(workload, topology) * workload.dim * 4  # in fp32, until the next one is drawn
    memory = RankMemory(
        weights=shards.stored,
        masters=shards.mastered * formats.master,
        optimizer=shards.state,
        buffers=noise if workload.noisy and embeds else 0,
        gradients=shards.padded * max(formats.reduce, formats.gradient),
        activations=0,
        recomputed=0,
        logits=0,
        gathered=0,
        on_host=0,
        moment="update",
        unknown=missing(workload, topology),
    )
    if not workload.weights_on_host:
        return memory
    return memory._replace(on_host=memory.weights + memory.masters + memory.optimizer)


def kept_for_backward(workload: Workload, topology: Topology) -> int:
    """Bytes that a micro-batch keeps on rank 0 for its backward pass, including logits."""
    stages = stages_of(workload, topology)[0]
    kept_parts = (kept for stage in stages for _, kept in _held(workload, topology, stage))
    return sum(kept.kept for kept in kept_parts)


KeptParts = list[tuple[str, Held]]
NOTHING = Held(0, 0, 0, 0)


def _held(workload: Workload, topology: Topology, stage: tuple[int, ...]) -> KeptParts:
    """Kept bytes of each part of a stage."""
    kept_parts: KeptParts = []
    layer = 0
    for part in stage:
        kind = workload.kinds[workload.order[part]]
        kept_parts.append((kind.name, held_by(kind, workload, topology, layer)))
        layer += kind.name == "layer"
    return kept_parts


def _moments(
    workload: Workload,
    topology: Topology,
    fixed: RankMemory,
    shards: Shards,
    kept_parts: list[KeptParts],
    micro_batch: int,
    received: int,
) -> list[RankMemory]:
    """Moments of a step that may be the peak."""
    layers = [layer for parts in kept_parts for name, layer in parts if name == "layer"]
    output = next(
        (part for parts in kept_parts for name, part in parts if name == "output"), NOTHING
    )
    first = next(
        (part for parts in kept_parts for name, part in parts if name == "embedding"), NOTHING
    )
    kept = [sum(part.kept for _, part in parts) for parts in kept_parts]
    # The first stage computes all gradients at once.
    split = [
        sum(part.split for _, part in parts if parts[0][0] != "embedding") for parts in kept_parts
    ]
    moments = (InFlight((1,), (0,)),)
    if topology.pipeline > 1:
        moments = in_flight(
            topology.schedule, topology.pipeline, topology.stages_per_rank,
            topology.accumulation, micro_batch,
        )  # fmt: skip
    # Without the logits of the current micro-batch.
    active = {
        moment: sum(map(mul, moment.active, kept))
        + sum(map(mul, moment.split, split))
        - output.kept * bool(moment.active[-1])
        for moment in moments
    }
    on_way = max(active.values()) + received
    at_loss = max(size for moment, size in active.items() if moment.active[-1]) + received
    gradients, fixed = fixed.gradients, fixed._replace(gradients=0)
    before = gradients if topology.accumulation > 1 else 0
    last = max(layers, key=lambda layer: layer.work + layer.again, default=NOTHING)
    work = last.work + last.again
    bucket = gathered = own_grads = messages = around_grads = end_messages = 0
    last_unit = first_unit = _NO_UNIT
    if topology.uses_fsdp:
        formats = workload.formats
        inner = [unit for unit in shards.units if unit.place == "layer"]
        around = [unit for unit in shards.units if unit.place != "layer"]
        if topology.pipeline == 1 and topology.reshard is not False:
            # Gathered on use, and reduced like layers.
            first_unit = next((unit for unit in around if unit.place == "first"), _NO_UNIT)
            last_unit = next((unit for unit in around if unit.place == "last"), _NO_UNIT)
            around = [unit for unit in around if unit.place == "around"]
        gathered = sum(unit.gathered for unit in around) + _gathered(topology, inner)
        most = max((unit.trained for unit in inner), default=0)
        own_grads = messages = most * formats.reduce
        trained_around = sum(unit.trained for unit in around)
        around_grads = trained_around * formats.reduce
        end_messages = (trained_around + first_unit.trained) * formats.reduce
        if topology.accumulates_whole:  # until the last micro-batch
            around_grads = sum(unit.trained for unit in shards.units) * formats.reduce
            before = own_grads = 0
        if topology.accumulates_whole and topology.pipeline == 1:
            before, around_grads = around_grads, 0
            gradients = max(gradients, before)
    elif topology.world_size > 1 and topology.pipeline * topology.tensor == 1:
        bucket = _bucket(workload, topology, shards)
        if not bucket:  # DDP's buckets, which always exist, contain the gradients
            before = gradients
    busy = fixed._replace(gathered=gathered + around_grads)
    later = on_way - sum(kept) + output.kept + first.kept
    return [
        fixed._replace(moment="end", gradients=gradients, gathered=bucket),
        fixed._replace(
            moment="loss",
            gradients=before,
            activations=at_loss,
            logits=output.kept + output.work,
            gathered=gathered + last_unit.gathered,
        ),
        busy._replace(
            moment="backward",
            gradients=before,
            activations=on_way,
            gathered=busy.gathered
            + last_unit.gathered
            + last_unit.trained * 2 * workload.formats.reduce,
        ),
        busy._replace(moment="backward", gradients=before, activations=on_way, recomputed=work),
        busy._replace(
            moment="backward",
            gradients=before,
            activations=on_way - last.kept,
            recomputed=max(work, own_grads) if len(layers) > 1 else own_grads,
            gathered=gathered + around_grads + messages,
        ),
        busy._replace(
            moment="end",
            gradients=gradients,
            activations=later + last.kept,
            recomputed=work,
            gathered=gathered + around_grads + messages,
        ),
        busy._replace(
            moment="end",
            gradients=gradients,
            activations=later,
            recomputed=max(first.work, own_grads),
            gathered=gathered
            + around_grads
            + first_unit.trained * workload.formats.reduce
            + max(messages, end_messages, first_unit.gathered),
        ),
    ]


_NO_UNIT = Unit("around", 0, 0, 0)


def _gathered(topology: Topology, units: list[Unit]) -> int:
    """Gathered weights of layers that exist at the same time."""
    if topology.pipeline > 1 or topology.reshard is False:
        return sum(unit.gathered for unit in units)
    sizes = sorted((unit.gathered for unit in units), reverse=True)
    return sum(sizes[:2])


def _bucket(workload: Workload, topology: Topology, shards: Shards) -> int:
    """Bucket in which replicas sum gradients; empty with DDP."""
    formats = workload.formats
    size = shards.padded * formats.reduce
    return 0 if formats.reduce == formats.params else min(size, topology.bucket)


def _received(workload: Workload, topology: Topology, stages: tuple[tuple[int, ...], ...]) -> int:
    """Buffers of a pipeline for messages between stages, one for each micro-batch of a step.

    Schedules that split the backward pass also keep the gradients of stage inputs.
    """
    if topology.pipeline == 1:
        return 0
    size = tokens_of(workload, topology) * workload.dim * workload.formats.transfer
    inputs = sum(stage[0] > 0 for stage in stages)
    outputs = sum(stage[-1] < len(workload.order) - 1 for stage in stages)
    inputs *= 1 + SCHEDULES[topology.schedule].splits_backward
    return (inputs + outputs) * topology.accumulation * size
