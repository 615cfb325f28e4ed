"""Work of a job in numbers, independent of its topology: parts, parameters and formats.

The arithmetic of `setpoint.plan` reads only this small value and a `Topology`, but no
configuration, so that a search can evaluate thousands of topologies of one job without resolving
any.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Literal, NamedTuple

from setpoint.config import SetpointError
from setpoint.model.attention.selection import kind_of
from setpoint.model.config import TransformerConfig
from setpoint.model.parameters import (
    causal_pairs,
    most_attended,
    pair_size,
    parameters_of,
    part_of,
    part_sizes,
    predicted_tokens,
)
from setpoint.optim.config import ImportedOptimizer, ScheduleFreeAdamWConfig
from setpoint.optim.grouping import is_frozen
from setpoint.plan.pieces import ModelPiece, layer_pieces, outer_pieces
from setpoint.precision.config import converted, skips
from setpoint.shapes.parameter import Parameter
from setpoint.shapes.parameter import StagePart as Size
from setpoint.train.build.job_parameters import (
    WIDTHS,
    adapted,
    state_widths,
    trainable_parameters,
)
from setpoint.train.rules.model_rules import known_vocabulary

if TYPE_CHECKING:
    from setpoint.train.config import Job


Division = Literal["whole", "rows", "columns", "vocabulary", "heads", "experts"]
"""Division of a weight along the axis `tensor`: none, its first dimension, its second one, rows of
the vocabulary (fewer on the last rank), or heads if they divide evenly; `experts` have their own
axes."""


class Weight(NamedTuple):
    """Parameters of equal shape and storage.

    Arguments:
        shape: full shape of one of `times` parameters.
        heads: for stacked projections: the number of heads of each, along which it is divided, and
            whether several ranks may share one.
        inner: dimension of the inner width of packed experts; 0: none.
        stored: bytes of a full parameter on a rank; `sharded`: bytes that FSDP2 divides;
            `gathered`: bytes that it gathers.
        state: optimizer bytes per element and per tensor; a factored state is counted from the
            shape, in bytes per number.
        is_replicated: whether FSDP2 leaves it whole (`parallel.sharding.replicated`).
    """

    shape: tuple[int, ...]
    times: int
    division: Division
    heads: tuple[tuple[int, bool], ...]
    inner: int
    is_trained: bool
    stored: int
    sharded: int
    gathered: int
    state: tuple[int, int]
    is_factored: bool
    is_replicated: bool

    @property
    def numbers(self) -> int:
        """Number of elements of one parameter."""
        return prod(self.shape)


def weight_of(
    job: Job,
    model: TransformerConfig | None,
    param: Parameter,
    is_trained: bool,
    quantized: Mapping[str, int],
) -> Weight:
    """Describe the storage of a parameter.

    Arguments:
        model: the model; None if its parts are unknown.
        quantized: bytes of quantized parameters by name.
    """
    numbers = prod(param.shape)
    division, heads, inner = ("whole", (), 0) if model is None else _division(model, param)
    widths = state_widths(job, param) if is_trained else None
    state, is_factored = widths or ((0, 0), False)
    formats = job.precision
    stored = sharded = gathered = quantized.get(param.name, numbers * WIDTHS[formats.params])
    if param.name not in quantized:
        if is_trained:
            sharded = numbers * WIDTHS[formats.sharded(is_sharded=True)]
        if param.kind in ("matrix", "output") and ".adapter." not in param.name:
            gathered = numbers * (
                1 if _gathered_in_float8(job, param) else WIDTHS[formats.gathered(is_sharded=True)]
            )
    return Weight(
        param.shape, 1, division, heads, inner, is_trained,
        stored, sharded, gathered, state, is_factored,
        any(re.search(pattern, param.name) for pattern in job.parallel.sharding.replicated),
    )  # fmt: skip


def in_float8(job: Job, param: Parameter) -> bool:
    """True if products with a parameter are computed in float8."""
    float8, name = job.precision.float8, param.name.removesuffix(".weight")
    if float8 is None or ".adapter." in name:
        return False
    if len(param.shape) != 2:
        packed, separator, _ = name.rpartition(".experts.")
        return float8.experts and bool(separator) and not skips(float8, f"{packed}.experts")
    return bool(converted(float8, {name: (param.shape[0], param.shape[1])}))


def _gathered_in_float8(job: Job, param: Parameter) -> bool:
    float8 = job.precision.float8
    return float8 is not None and float8.gathers(job.parallel.reshard) and in_float8(job, param)


def _division(
    c: TransformerConfig, param: Parameter
) -> tuple[Division, tuple[tuple[int, bool], ...], int]:
    """Division of a parameter along `tensor`; see `tensor_plan` of the modules."""
    name = re.sub(r"^layers\.\d+\.", "", param.name)
    path, _, leaf = name.rpartition(".")
    if path.endswith(".adapter") or path == "embedding.adapter":
        division, heads, _ = _division(
            c, param._replace(name=f"layers.0.{path.removesuffix('.adapter')}.weight")
        )
        if division == "columns":
            return ("columns" if leaf == "a" else "whole"), (), 0
        if division == "vocabulary":
            return (
                ("vocabulary" if (leaf == "a") == (path == "embedding.adapter") else "whole"),
                (),
                0,
            )
        return (division, heads, 0) if leaf in ("b", "magnitude") else ("whole", (), 0)
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
        return "experts", (), 1 if leaf == "down" else 2
    if path.startswith("feed_forward.experts.adapter."):
        # A of modules that read the inner width, B and magnitude of those that write it.
        if (leaf == "a") != path.endswith(".down"):
            return "experts", (), 0
        return "experts", (), 2 if leaf == "b" else 1
    if path.startswith("feed_forward.experts."):
        return "whole", (), 0
    if name in ("feed_forward.down.weight", "feed_forward.shared.down.weight"):
        return "columns", (), 0
    last = path.rpartition(".")[2]
    if path.startswith("feed_forward.") and last in ("gate", "up"):
        return "rows", (), 0
    return "whole", (), 0


class Kind(NamedTuple):
    """Equal parts of a model: its embedding, layers of one kind, or its output.

    Arguments:
        products: multiply-adds per token in matrix products, for attention and for the rest,
            without experts that a token does not choose.
        float8: the part of `products` in 8 bits.
        pair: elements of a query and a value over all heads, with 2 FLOPs each per attended
            position.
        window: maximum number of attended positions; 0 without attention.
        is_chunked: whether `window` is a chunk size.
        length: sequence length.
        pieces: keys by which activations are looked up.
        size: parameters and FLOPs by which pipeline stages are balanced.
    """

    name: Literal["embedding", "layer", "output", "model"]
    weights: tuple[Weight, ...]
    products: tuple[int, int]
    float8: tuple[int, int]
    pair: int
    window: int
    is_chunked: bool
    length: int
    pieces: tuple[ModelPiece, ...]
    size: Size

    def __hash__(self) -> int:
        # It is a key of many caches, and most jobs have few kinds.
        return hash((self.name, self.products))

    @property
    def reach(self) -> float:
        """Mean number of attended positions under a causal mask."""
        return self.reach_within(self.length)

    def reach_within(self, length: float) -> float:
        """Mean number of attended positions in documents of a length."""
        if not self.window:
            return 0.0
        return causal_pairs(length, min(self.window, length), self.is_chunked) / length

    @property
    def forward_flops(self) -> float:
        """FLOPs per token in the forward pass; the backward pass takes twice as many."""
        return 2 * sum(self.products) + self.attention_flops

    @property
    def attention_flops(self) -> float:
        """FLOPs per token of scores and weighted values in the forward pass, with a causal mask."""
        return 2 * self.pair * self.reach


class Formats(NamedTuple):
    """Bytes per number.

    Arguments:
        compute: for matrix products.
        master: for master weights; 0 without any.
        reduce: for gradients in reductions.
        gradient: for gradients in the optimizer.
        transfer: for activations sent between pipeline stages.
        gathered: for matrices that FSDP2 gathers.
    """

    params: int
    compute: int
    master: int
    reduce: int
    gradient: int
    transfer: int
    gathered: int


class Workload(NamedTuple):
    """Work of a job, independent of its topology.

    Arguments:
        order: kind of each part of the model, in forward order.
        tokens: tokens per step, including padding.
        length: sequence length.
        rows: rows of the embedding and of the output matrix.
        tied: whether these are one matrix.
        computes: format of matrix products, as `precision.compute`.
        from_hidden: whether the loss never stores all logits.
        takes_columns: whether the loss supports logits of a part of the vocabulary.
        unknown_state: name of the optimizer if its state is unknown; otherwise empty.
        weights_on_host: whether weights, gradients and optimizer state are in host memory.
        averaged: bytes per number of the copy made to evaluate averaged weights.
        noisy: whether token embeddings get noise.
        unknown: reason why kept activations are unknown; empty if they are known.
        steps: steps of the run; None if its duration is in other units.
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
    unknown_state: str
    weights_on_host: bool
    averaged: int
    noisy: bool
    unknown: str
    steps: int | None

    def __hash__(self) -> int:
        return hash((self.dim, self.tokens, self.length, self.rows, len(self.order)))

    @property
    def layers(self) -> int:
        """Number of layers."""
        return sum(self.kinds[number].name == "layer" for number in self.order)

    @property
    def parameters(self) -> int:
        """Elements of all parameters, counting tied ones once."""
        return sum(self._count(kind) for kind in self.order)

    @property
    def trained(self) -> int:
        """Elements of trained parameters."""
        return sum(self._count(kind, trained=True) for kind in self.order)

    def _count(self, kind: int, trained: bool = False) -> int:
        return sum(
            weight.numbers * weight.times
            for weight in self.kinds[kind].weights
            if weight.is_trained or not trained
        )

    @property
    def flops_per_token(self) -> float:
        """FLOPs per trained token, without recomputation, with attention under a causal mask."""
        return 3 * sum(self.kinds[kind].forward_flops for kind in self.order)

    @classmethod
    def of(cls, job: Job, vocabulary: int | None = None) -> Workload:
        """Compute the work of a job.

        Arguments:
            vocabulary: vocabulary size; None: see `vocabulary_of`.

        Raises:
            SetpointError: the parameters are known only from a built model, and building it fails.
        """
        return _workload_of(job, vocabulary_of(job) if vocabulary is None else vocabulary)


def _workload_of(job: Job, vocabulary: int) -> Workload:
    model = job.model
    if isinstance(model, TransformerConfig) and model.parameters_known:
        kinds, order, unknown = _kinds_of(job, model, vocabulary)
        tied, rows = model.tie_embeddings, predicted_tokens(model, vocabulary)
        dim, heads, kv_heads = model.dim, model.heads, model.kv_heads
        experts = 0 if model.moe is None else model.moe.experts
    else:
        kinds, order = (_whole_model(job, vocabulary),), (0,)
        unknown = "the activations of this type of model"
        tied, rows, dim, heads, kv_heads, experts = False, vocabulary, 0, 0, 0, 0
    formats, memory = job.precision, job.memory
    stored = formats.updated
    if not unknown and job.adapter is not None:
        unknown = "the activations of an adapter"
    if not unknown and memory.activation_offload is not None:
        unknown = "the activations that memory.activation_offload leaves on the device"
    if not unknown and formats.float8 is not None and formats.float8.recipe == "nvfp4":
        unknown = "the activations of nvfp4 products"  # inputs in 4 bits; others keep bf16
    return Workload(
        kinds=kinds,
        order=order,
        formats=Formats(
            WIDTHS[formats.params],
            WIDTHS[formats.compute],
            WIDTHS[formats.updated] if formats.copies_master else 0,
            WIDTHS[formats.reduce or formats.params],
            WIDTHS[stored],
            WIDTHS[job.parallel.pipelining.sent(formats.compute, formats.params)],
            WIDTHS[formats.gathered(is_sharded=True)],
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
        optimizer=str(type(job.optimizer).__setpoint__.tag),
        unknown_state=_unknown_state(job),
        weights_on_host=job.parallel.sharding.offload,
        averaged=WIDTHS[stored] if isinstance(job.optimizer, ScheduleFreeAdamWConfig) else 0,
        noisy=job.model.embedding_noise > 0,
        unknown=unknown,
        steps=job.total_steps(),
    )


def _unknown_state(job: Job) -> str:
    """Name of an optimizer whose state is unknown: an imported one, or a user's class."""
    optimizer = job.optimizer
    if state_widths(job, Parameter("weight", (1, 1), "matrix")) is not None:
        return ""
    is_imported = isinstance(optimizer, ImportedOptimizer)
    return str(optimizer.target if is_imported else type(optimizer).__setpoint__.tag)


def _kinds_of(
    job: Job, model: TransformerConfig, vocabulary: int
) -> tuple[tuple[Kind, ...], tuple[int, ...], str]:
    """Kinds of parts in a transformer, and the kind of each part."""
    parameters, quantized = _all_parameters(job, model, vocabulary)
    weights: dict[str, dict[Weight, int]] = {}
    products: dict[str, list[int]] = {}
    float8: dict[str, list[int]] = {}
    for param, is_trained in parameters:
        part = part_of(param.name)
        weight = weight_of(job, model, param, is_trained, quantized)
        counts = weights.setdefault(part, {})
        counts[weight] = counts.get(weight, 0) + 1
        products_of_param, fast = (counts.setdefault(part, [0, 0]) for counts in (products, float8))
        if param.kind in ("matrix", "output", "router"):
            chosen = model.moe if ".experts." in param.name else None
            size = weight.numbers
            used = size if chosen is None else size * chosen.top_k // chosen.experts
            products_of_param[".attention." not in param.name] += used
            fast[".attention." not in param.name] += used * in_float8(job, param)
        if model.tie_embeddings and param.name == "embedding.weight":
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
        attention = kind_of(model, layer)
        kind = Kind(
            "layer" if is_layer else size.name,  # pyright: ignore[reportArgumentType]
            tuple(w._replace(times=n) for w, n in weights.get(size.name, {}).items()),
            tuple(products.get(size.name, (0, 0))),  # pyright: ignore[reportArgumentType]
            tuple(float8.get(size.name, (0, 0))),  # pyright: ignore[reportArgumentType]
            pair_size(model) if is_layer else 0,
            most_attended(model, attention, length) if is_layer else 0,
            is_layer and attention == "chunked",
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
    job: Job, model: TransformerConfig, vocabulary: int
) -> tuple[list[tuple[Parameter, bool]], Mapping[str, int]]:
    """All parameters, with True for trained ones, and the bytes of quantized ones."""
    adapter = adapted(job, vocabulary)
    if adapter is None:
        base = list(parameters_of(model, vocabulary))
        return [(param, not is_frozen(job.optimizer, param.name)) for param in base], {}
    trained = [(param, not is_frozen(job.optimizer, param.name)) for param in adapter.trained]
    return [*trained, *((param, False) for param in adapter.frozen)], adapter.quantized


def _whole_model(job: Job, vocabulary: int) -> Kind:
    """A model with unknown parts, as a single kind with all its parameters."""
    parameters, frozen_count = trainable_parameters(job, vocabulary)
    fast = sum(prod(param.shape) for param in parameters if in_float8(job, param))
    weights: dict[Weight, int] = {}
    for param in parameters:
        weight = weight_of(job, None, param, not is_frozen(job.optimizer, param.name), {})
        weights[weight] = weights.get(weight, 0) + 1
    if frozen_count:
        frozen = weight_of(job, None, Parameter("frozen", (frozen_count,), "vector"), False, {})
        weights[frozen] = 1
    all_weights = tuple(weight._replace(times=count) for weight, count in weights.items())
    matrices = sum(weight.numbers * weight.times for weight in all_weights if len(weight.shape) > 1)
    length = job.batch.sequence_length
    size = Size("model", 0, 0)
    return Kind("model", all_weights, (0, matrices), (0, fast), 0, 0, False, length, (), size)


def vocabulary_of(job: Job) -> int:
    """Vocabulary size of the tokenizer, or else of the model.

    Raises:
        SetpointError: both are unknown.
    """
    vocabulary = known_vocabulary(job.tokenizer)
    if vocabulary is None and isinstance(job.model, TransformerConfig):
        vocabulary = job.model.vocab_size
    if vocabulary is None:
        raise SetpointError(
            "the parameters cannot be counted: the vocabulary of the tokenizer, which decides "
            "the size of the model, is not available"
        )
    return vocabulary
