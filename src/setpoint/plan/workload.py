"""What a job computes, in numbers, whatever its topology; and a topology, in numbers.

The arithmetic of `setpoint.plan` reads these two small values and no configuration, so that a
search goes through thousands of topologies of one job without resolving any.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from setpoint.config import SetpointError
from setpoint.memory.config import Full, Operators, Parts
from setpoint.model.attention.support import kind_of
from setpoint.model.config import Transformer
from setpoint.model.parameters import parameters_of
from setpoint.model.parts import part_names, part_of, part_sizes
from setpoint.model.size import pair_size, window_of
from setpoint.model.vocabulary import predicted_tokens
from setpoint.optim.config import (
    SGD,
    Adafactor,
    AdamW,
    AnyPrecisionAdamW,
    ImportedOptimizer,
    Lion,
    Muon,
    ScheduleFreeAdamW,
)
from setpoint.optim.frozen import is_frozen
from setpoint.parallel.config import AXES, CONTEXT
from setpoint.parallel.pipelining import SCHEDULES
from setpoint.parallel.split import balanced, ranks_of_stages
from setpoint.plan.pieces import Piece, layer_pieces, outer_pieces
from setpoint.shapes.parameter import Parameter
from setpoint.shapes.stages import Part as Size
from setpoint.train.build.parameters import WIDTHS, adapted, described, is_listed

if TYPE_CHECKING:
    from setpoint.train.config import Job

STEP = 4
"""Bytes of the count of steps that some optimizers keep for each parameter, in fp32."""

Division = Literal["whole", "rows", "columns", "vocabulary", "heads", "experts"]
"""How the ranks of the axis `tensor` divide a weight: not at all, along its first dimension, along
its second one, by rows of a vocabulary (the last rank may have fewer), by heads where these come
out even and else not at all; `experts` have axes of their own."""


class Weight(NamedTuple):
    """Parameters of one shape that are held alike.

    Arguments:
        shape: whole, of one of `times`.
        heads: of projections one above the other, by which `heads` are divided: their number, and
            whether several ranks may share one.
        inner: of packed experts, the dimension of their inner width; 0: it has none.
        stored: bytes of one of them.
        state: bytes that the optimizer keeps for each number, and for each tensor; those of a
            factored state are counted from the shape instead, in bytes of a number.
    """

    shape: tuple[int, ...]
    times: int
    division: Division
    heads: tuple[tuple[int, bool], ...]
    inner: int
    is_trained: bool
    stored: int
    state: tuple[int, int]
    is_factored: bool

    @property
    def numbers(self) -> int:
        """How many numbers one of them has."""
        return prod(self.shape)


class Kind(NamedTuple):
    """Parts of a model that are alike: its embedding, layers, or its output.

    Arguments:
        products: numbers in matrix products of one token, in attention and in all else; experts
            that a token does not choose are left out.
        pair: elements of a query and a value of all heads: 2 FLOPs each for every position met.
        window: positions that one meets at most; 0 without attention.
        length: positions of a sequence.
        pieces: by which activations are looked up.
        size: parameters and FLOPs by which stages of a pipeline are balanced.
    """

    name: Literal["embedding", "layer", "output", "model"]
    weights: tuple[Weight, ...]
    products: tuple[int, int]
    pair: int
    window: int
    length: int
    pieces: tuple[Piece, ...]
    size: Size

    def __hash__(self) -> int:
        # It is a key of many caches, and most jobs have few kinds.
        return hash((self.name, self.products))

    @property
    def reach(self) -> float:
        """Positions that one meets on average under a causal mask."""
        if not self.window:
            return 0.0
        s, w = self.length, self.window
        return (w * (w + 1) / 2 + (s - w) * w) / s

    @property
    def forward_flops(self) -> float:
        """Of one token in the forward pass; the backward pass takes twice that."""
        return 2 * sum(self.products) + self.attention_flops

    @property
    def attention_flops(self) -> float:
        """Of one token's scores and the mix of values in the forward pass, under a causal mask."""
        return 2 * self.pair * self.reach


class Formats(NamedTuple):
    """Bytes of a number.

    Arguments:
        compute: in matrix products.
        master: 0 without masters.
        reduce: of gradients as they are summed.
        gradient: of gradients as the optimizer gets them.
    """

    params: int
    compute: int
    master: int
    reduce: int
    gradient: int


class Workload(NamedTuple):
    """What a job computes, whatever its topology.

    Arguments:
        order: the kind of each part of the model, in the order in which tokens go through them.
        tokens: of a step, padding included.
        length: of a sequence.
        rows: of the embedding, and of the output matrix.
        tied: whether these are one.
        computes: the format of matrix products, as `precision.compute`.
        from_hidden: whether the loss never holds all logits.
        takes_columns: whether the loss computes with the logits of a part of the vocabulary.
        state_on_device: bytes of optimizer state that stay on the device; None: all.
        weights_on_host: whether weights, gradients and optimizer state lie in host memory.
        averaged: bytes of a number of the copy that is made while averaged weights are evaluated.
        unknown: why what is kept for the backward pass is not known; empty where it is.
        steps: of the whole run; None where that is not counted in steps.
    """

    kinds: tuple[Kind, ...]
    order: tuple[int, ...]
    formats: Formats
    dim: int
    heads: int
    kv_heads: int
    experts: int
    tokens: int
    length: int
    rows: int
    tied: bool
    computes: str
    from_hidden: bool
    takes_columns: bool
    optimizer: str
    state_is_known: bool
    state_on_device: int | None
    weights_on_host: bool
    averaged: int
    unknown: str
    steps: int | None

    def __hash__(self) -> int:
        return hash((self.dim, self.tokens, self.length, self.rows, len(self.order)))

    @property
    def layers(self) -> int:
        """How many there are."""
        return _layers(self)

    @property
    def parameters(self) -> int:
        """All numbers of the model, tied ones once."""
        return sum(self._count(each) for each in self.order)

    @property
    def trained(self) -> int:
        """Numbers that are trained."""
        return sum(self._count(each, trained=True) for each in self.order)

    def _count(self, kind: int, trained: bool = False) -> int:
        return sum(
            each.numbers * each.times
            for each in self.kinds[kind].weights
            if each.is_trained or not trained
        )

    @property
    def flops_per_token(self) -> float:
        """To train on one token, without what is recomputed; attention under a causal mask."""
        return 3 * sum(self.kinds[each].forward_flops for each in self.order)

    @classmethod
    def of(cls, job: Job, vocabulary: int) -> Workload:
        """Count a job.

        Arguments:
            vocabulary: how many tokens there are.

        Raises:
            SetpointError: only building the model tells its parameters, and that fails.
        """
        return _workload_of(job, vocabulary)


@lru_cache(maxsize=64)
def _layers(workload: Workload) -> int:
    return sum(workload.kinds[each].name == "layer" for each in workload.order)


class Topology(NamedTuple):
    """How a job is laid over ranks, and what of a step each of them has.

    Arguments:
        micro_size: sequences of a micro-batch of a rank.
        accumulation: micro-batches of a step.
        recompute: `none`, `full`, `parts:` or `operators:` and what is recomputed, or saved,
            joined by "+".
        every: of how many layers one is recomputed.
        reshard: as `parallel.reshard`.
        layers_per_unit: that FSDP2 gathers together.
        bucket: bytes of gradients that replicas sum in one message.
    """

    pipeline: int = 1
    replicate: int = 1
    shard: int = 1
    ring: int = 1
    ulysses: int = 1
    tensor: int = 1
    expert: int = 1
    expert_tensor: int = 1
    micro_size: int = 1
    accumulation: int = 1
    recompute: str = "none"
    every: int = 1
    schedule: str = "1f1b"
    stages_per_rank: int = 1
    split: tuple[tuple[str, ...], ...] | None = None
    sequence_parallel: bool = False
    loss_parallel: bool = True
    reshard: bool | int | None = None
    context_in_shard: str = "all"
    layers_per_unit: int = 1
    bucket: int = 25 * 2**20

    @classmethod
    def of(cls, job: Job) -> Topology:
        """The topology that a job has."""
        parallel, batch = job.parallel, job.batch
        pipelining, ranks = parallel.pipelining, parallel.degrees["pipeline"]
        section = job.memory.activation_checkpointing
        return cls(
            **parallel.degrees,
            expert=parallel.expert,
            expert_tensor=parallel.expert_tensor,
            micro_size=batch.micro_size,
            accumulation=batch.accumulation,
            recompute=policy_of(section),
            every=1 if section is None else section.every,
            schedule=pipelining.schedule,
            stages_per_rank=pipelining.stages(ranks) // ranks if ranks > 1 else 1,
            split=pipelining.split if ranks > 1 else None,
            sequence_parallel=parallel.sequence_parallel,
            loss_parallel=parallel.loss_parallel is not False,
            reshard=parallel.reshard,
            context_in_shard=parallel.context_in_shard,
            layers_per_unit=parallel.sharding.layers_per_unit,
            bucket=int(parallel.bucket_size * 2**20),
        )

    @property
    def degrees(self) -> dict[str, int]:
        """The degree of each axis, in the order of AXES."""
        return {axis: getattr(self, axis) for axis in AXES}

    @property
    def world_size(self) -> int:
        """All ranks."""
        return prod(self.degrees.values())

    @property
    def data_ranks(self) -> int:
        """The number of ranks that read different data."""
        return self.replicate * self.shard

    @property
    def context(self) -> int:
        """The number of ranks that divide a sequence."""
        return self.ring * self.ulysses

    @property
    def sharding_axes(self) -> tuple[str, ...]:
        """The axes whose ranks divide weights by FSDP2, as `Parallel.sharding_axes`."""
        within = {"all": CONTEXT, "none": ()}.get(self.context_in_shard, (self.context_in_shard,))
        return ("shard", *within)

    @property
    def copying_axes(self) -> tuple[str, ...]:
        """The axes along which weights are the same."""
        within = {"pipeline", "tensor", *self.sharding_axes}
        return tuple(axis for axis in AXES if axis not in within)

    @property
    def shards(self) -> int:
        """The number of ranks that divide one copy of the weights by FSDP2."""
        return prod(getattr(self, axis) for axis in self.sharding_axes)

    @property
    def copies(self) -> int:
        """The number of copies of the weights that FSDP2 or DDP keep alike."""
        return prod(getattr(self, axis) for axis in self.copying_axes)

    @property
    def divides_experts(self) -> bool:
        """Whether ranks hold parts of the experts by other axes than all other weights."""
        return self.expert * self.expert_tensor > 1

    @property
    def expert_shards(self) -> int:
        """The number of ranks that divide each expert by FSDP2."""
        ranks = self.shard * self.ring * self.ulysses * self.tensor
        return max(1, ranks // (self.expert * self.expert_tensor))

    @property
    def shards_experts(self) -> bool:
        """Whether several ranks share each expert by FSDP2, as `Parallel.shards_experts`."""
        return self.divides_experts and self.expert_shards * self.replicate > 1

    @property
    def uses_fsdp(self) -> bool:
        """Whether FSDP2 holds the weights, as `Parallel.uses_fsdp`."""
        within = self.pipeline * self.tensor
        if self.shards > 1 or 1 < within < self.world_size:
            return True
        return self.divides_experts and (self.expert_shards > 1 or self.copies > 1)

    @property
    def stages(self) -> int:
        """Of the pipeline, on all its ranks; 1 without."""
        return self.pipeline * self.stages_per_rank

    def overrides(self) -> list[str]:
        """What is typed behind a command to get it, a value a text; nothing that has no effect."""
        found = [f"parallel.{axis}={degree}" for axis, degree in self.degrees.items()]
        if self.divides_experts:
            found += [
                f"parallel.expert={self.expert}",
                f"parallel.expert_tensor={self.expert_tensor}",
            ]
        if self.tensor > 1:
            found.append(f"parallel.sequence_parallel={str(self.sequence_parallel).lower()}")
        if self.pipeline > 1:
            found.append(f"parallel.pipelining.schedule={self.schedule}")
            if SCHEDULES[self.schedule].is_looped:
                found.append(f"parallel.pipelining.stages_per_rank={self.stages_per_rank}")
        if self.shards > 1 and self.reshard is not None:
            found.append(f"parallel.reshard={str(self.reshard).lower()}")
        found += [
            f"batch.micro_size={self.micro_size}",
            f"batch.accumulation={self.accumulation}",
            *_policy_overrides(self.recompute, self.every),
        ]
        return [f"--{each}" for each in found]


def policy_of(section: Any) -> str:
    """Name the kind of activation checkpointing of a job; see `Topology.recompute`."""
    match section:
        case None:
            return "none"
        case Full():
            return "full"
        case Parts():
            return "parts:" + "+".join(sorted(set(section.parts)))
        case Operators():
            every = f"/{section.matmul_every}" if section.matmul_every > 1 else ""
            return "operators:" + "+".join(sorted(set(section.save))) + every
        case _:
            return type(section).__name__


def _policy_overrides(policy: str, every: int) -> list[str]:
    path = "memory.activation_checkpointing"
    name, _, what = policy.partition(":")
    if name == "none":
        return [f"{path}=null"]
    names = ", ".join(what.partition("/")[0].split("+"))
    found = [f"{path}.type={name}"]
    if name in ("parts", "operators"):
        found.append(f"{path}.{'parts' if name == 'parts' else 'save'}=[{names}]")
    return [*found, *([f"{path}.every={every}"] if every > 1 else [])]


def tokens_of(workload: Workload, topology: Topology) -> int:
    """Tokens of a micro-batch that a rank computes with, before `tensor` divides any."""
    return topology.micro_size * workload.length // topology.context


@lru_cache(maxsize=4096)
def stages_of(workload: Workload, topology: Topology) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Cut a model into the stages of a pipeline, as the builder does.

    Returns:
        for each rank of the pipeline the parts, by their numbers in `Workload.order`, of each of
        its stages, in the order of the model.
    """
    ranks, count = topology.pipeline, topology.stages
    if ranks == 1:
        return ((tuple(range(len(workload.order))),),)
    is_v = SCHEDULES[topology.schedule].is_v
    cut = _cut(workload, count, topology.split)
    places = ranks_of_stages(ranks, count, is_v)
    return tuple(
        tuple(parts for parts, place in zip(cut, places, strict=True) if place == rank)
        for rank in range(ranks)
    )


@lru_cache(maxsize=256)
def _cut(
    workload: Workload, count: int, split: tuple[tuple[str, ...], ...] | None
) -> tuple[tuple[int, ...], ...]:
    if workload.kinds[0].name == "model":
        raise SetpointError(
            "parallel.pipeline: how the model is cut into stages is known when it is built only\n"
            "Valid: 1, or a model of type = transformer"
        )
    names = part_names(workload.layers)
    at = {name: number for number, name in enumerate(names)}
    if split is not None:
        return tuple(tuple(at[name] for name in stage) for stage in split)
    if count > len(names):
        raise SetpointError(
            f"parallel.pipeline: the model has {len(names)} parts, and there are {count} stages\n"
            f"Valid: {len(names)} stages or fewer"
        )
    sizes = [
        workload.kinds[kind].size._replace(name=name)
        for name, kind in zip(names, workload.order, strict=True)
    ]
    return tuple(tuple(at[name] for name in stage) for stage in balanced(sizes, count))


def _workload_of(job: Job, vocabulary: int) -> Workload:
    model = job.model
    if isinstance(model, Transformer) and is_listed(model):
        kinds, order, unknown = _kinds_of(job, model, vocabulary)
        tied, rows = model.tie_embeddings, predicted_tokens(model, vocabulary)
        dim, heads, kv_heads = model.dim, model.heads, model.kv_heads
        experts = 0 if model.moe is None else model.moe.experts
    else:
        kinds, order = (_whole_model(job, vocabulary),), (0,)
        unknown = "only the model itself knows what it keeps"
        tied, rows, dim, heads, kv_heads, experts = False, vocabulary, 0, 0, 0, 0
    formats, memory = job.precision, job.memory
    held = formats.master or formats.params
    offload = memory.optimizer_offload
    if not unknown and job.adapter is not None:
        unknown = "what an adapter keeps"
    if not unknown and memory.activation_offload is not None:
        unknown = "what memory.activation_offload leaves on the device"
    if not unknown and formats.float8 is not None:
        unknown = "what products in float8 keep"
    return Workload(
        kinds=kinds,
        order=order,
        formats=Formats(
            WIDTHS[formats.params],
            WIDTHS[formats.compute],
            0 if formats.master is None else WIDTHS[formats.master],
            WIDTHS[formats.reduce or formats.params],
            WIDTHS[held],
        ),
        dim=dim,
        heads=heads,
        kv_heads=kv_heads,
        experts=experts,
        tokens=job.batch.global_size * job.batch.sequence_length,
        length=job.batch.sequence_length,
        rows=rows,
        tied=tied,
        computes=formats.compute,
        from_hidden=type(job.loss).from_hidden,
        takes_columns=type(job.loss).takes_columns,
        optimizer=type(job.optimizer).__name__,
        state_is_known=not isinstance(job.optimizer, ImportedOptimizer),
        state_on_device=None if offload is None else int(offload.limit),
        weights_on_host=job.parallel.sharding.offload,
        averaged=WIDTHS[held] if isinstance(job.optimizer, ScheduleFreeAdamW) else 0,
        unknown=unknown,
        steps=job.total_steps(),
    )


def _kinds_of(
    job: Job, model: Transformer, vocabulary: int
) -> tuple[tuple[Kind, ...], tuple[int, ...], str]:
    """The kinds of parts of a transformer, and which each of its parts is of."""
    parameters, quantized = _all_parameters(job, model, vocabulary)
    held: dict[str, dict[Weight, int]] = {}
    products: dict[str, list[int]] = {}
    for each, is_trained in parameters:
        part = part_of(each.name)
        weight = _weight(job, model, each, is_trained, quantized)
        of = held.setdefault(part, {})
        of[weight] = of.get(weight, 0) + 1
        own = products.setdefault(part, [0, 0])
        if each.kind in ("matrix", "output", "router"):
            chosen = model.moe if ".experts." in each.name else None
            size = weight.numbers
            used = size if chosen is None else size * chosen.top_k // chosen.experts
            own[".attention." not in each.name] += used
        if model.tie_embeddings and each.name == "embedding.weight":
            products.setdefault("output", [0, 0])[1] += weight.numbers
    length = job.batch.sequence_length
    sizes = part_sizes(
        model, vocab_size=predicted_tokens(model, vocabulary), sequence_length=length
    )
    kinds: dict[Kind, int] = {}
    order: list[int] = []
    for size in sizes:
        is_layer = size.name not in ("embedding", "output")
        layer = int(size.name.partition(".")[2]) if is_layer else 0
        window = 0
        if is_layer:
            window = window_of(model, length) if kind_of(model, layer) == "sliding" else length
        kind = Kind(
            "layer" if is_layer else size.name,  # pyright: ignore[reportArgumentType]
            tuple(w._replace(times=n) for w, n in held.get(size.name, {}).items()),
            tuple(products.get(size.name, (0, 0))),  # pyright: ignore[reportArgumentType]
            pair_size(model) if is_layer else 0,
            window,
            length,
            tuple(
                layer_pieces(job, model, layer)
                if is_layer
                else outer_pieces(job, model, vocabulary, size.name)
            ),
            size._replace(name="layer" if is_layer else size.name),
        )
        order.append(kinds.setdefault(kind, len(kinds)))
    return tuple(kinds), tuple(order), ""


def _all_parameters(
    job: Job, model: Transformer, vocabulary: int
) -> tuple[list[tuple[Parameter, bool]], Mapping[str, int]]:
    """All parameters and whether each is trained, and the bytes of those that are quantized."""
    found = adapted(job, vocabulary)
    if found is None:
        base = list(parameters_of(model, vocabulary))
        return [(each, not is_frozen(job.optimizer, each.name)) for each in base], {}
    trained = [(each, not is_frozen(job.optimizer, each.name)) for each in found.trained]
    return [*trained, *((each, False) for each in found.frozen)], found.quantized


def _whole_model(job: Job, vocabulary: int) -> Kind:
    """A model whose parts are not known: one, of all its parameters."""
    parameters, others = described(job, vocabulary)
    weights: dict[Weight, int] = {}
    for each in parameters:
        weight = _weight(job, None, each, not is_frozen(job.optimizer, each.name), {})
        weights[weight] = weights.get(weight, 0) + 1
    if others:
        frozen = _weight(job, None, Parameter("frozen", (others,), "vector"), False, {})
        weights[frozen] = 1
    held = tuple(each._replace(times=count) for each, count in weights.items())
    matrices = sum(each.numbers * each.times for each in held if len(each.shape) > 1)
    length = job.batch.sequence_length
    return Kind("model", held, (0, matrices), 0, 0, length, (), Size("model", 0, 0))


def _weight(
    job: Job,
    model: Transformer | None,
    each: Parameter,
    is_trained: bool,
    quantized: Mapping[str, int],
) -> Weight:
    numbers = prod(each.shape)
    division, heads, inner = ("whole", (), 0) if model is None else _division(model, each)
    state, is_factored = _state(job, each) if is_trained else ((0, 0), False)
    stored = quantized.get(each.name, numbers * WIDTHS[job.precision.params])
    return Weight(each.shape, 1, division, heads, inner, is_trained, stored, state, is_factored)


def _state(job: Job, each: Parameter) -> tuple[tuple[int, int], bool]:
    """Bytes that the optimizer keeps for each number and for the tensor; whether it factors."""
    optimizer = job.optimizer
    held = WIDTHS[job.precision.master or job.precision.params]
    size = WIDTHS[job.precision.optimizer_state or job.precision.master or job.precision.params]
    match optimizer:
        case AdamW():
            return ((3 if optimizer.amsgrad else 2) * held, STEP), False
        case AnyPrecisionAdamW():
            return (2 * size, STEP), False
        case ScheduleFreeAdamW():
            return (2 * held, 0), False
        case SGD():
            return (held * bool(optimizer.momentum), 0), False
        case Lion():
            return (size, 0), False
        case Muon():
            is_muon = optimizer.treatment(each)["algorithm"] == "muon"
            return ((size, 0) if is_muon else (2 * size, STEP)), False
        case Adafactor():
            return (held, STEP), True
        case _:
            return (0, 0), False


def _division(
    c: Transformer, each: Parameter
) -> tuple[Division, tuple[tuple[int, bool], ...], int]:
    """How the ranks of `tensor` divide a parameter; see `tensor_plan` of the modules."""
    name = re.sub(r"^layers\.\d+\.", "", each.name)
    path, _, own = name.rpartition(".")
    if path.endswith(".adapter") or path == "embedding.adapter":
        division, heads, _ = _division(
            c, each._replace(name=f"layers.0.{path.removesuffix('.adapter')}.weight")
        )
        if division == "columns":
            return ("columns" if own == "a" else "whole"), (), 0
        if division == "vocabulary":
            return (
                ("vocabulary" if (own == "a") == (path == "embedding.adapter") else "whole"),
                (),
                0,
            )
        return (division, heads, 0) if own in ("b", "magnitude") else ("whole", (), 0)
    if path in ("embedding", "output"):
        return "vocabulary", (), 0
    if path.startswith("attention."):
        query, shared = ((c.heads, False),), ((c.kv_heads, True),)
        pieces = {
            "query": query, "query_up": query, "key_value_up": query,
            "key": shared, "value": shared,
            "query_key_value": (*query, *shared, *shared),
        }.get(path.removeprefix("attention."))  # fmt: skip
        if path == "attention.query" and c.mla is not None and c.mla.query_rank is not None:
            pieces = None
        if pieces is not None:
            return "heads", pieces, 0
        return ("columns", (), 0) if name == "attention.output.weight" else ("whole", (), 0)
    if path == "feed_forward.experts":
        return "experts", (), 1 if own == "down" else 2
    if path.startswith("feed_forward.experts.adapter."):
        # A of what runs from the inner width, B and magnitude of what runs to it.
        if (own == "a") != path.endswith(".down"):
            return "experts", (), 0
        return "experts", (), 2 if own == "b" else 1
    if path.startswith("feed_forward.experts."):
        return "whole", (), 0
    if name in ("feed_forward.down.weight", "feed_forward.shared.down.weight"):
        return "columns", (), 0
    last = path.rpartition(".")[2]
    if path.startswith("feed_forward.") and last in ("gate", "up"):
        return "rows", (), 0
    return "whole", (), 0
