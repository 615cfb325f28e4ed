"""How parameters are held: their bytes, their optimizer state, and how `tensor` divides them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Literal, NamedTuple

from setpoint.model.config import Transformer
from setpoint.optim.config import (
    SGD,
    Adafactor,
    AdamW,
    AnyPrecisionAdamW,
    Lion,
    Muon,
    ScheduleFreeAdamW,
)
from setpoint.precision.checks import converted, skips
from setpoint.shapes.parameter import Parameter
from setpoint.train.build.parameters import WIDTHS

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
        stored: bytes of one of them on a rank that has it whole; `sharded` of what FSDP2 divides,
            and `gathered` of what it gathers.
        state: bytes that the optimizer keeps for each number, and for each tensor; those of a
            factored state are counted from the shape instead, in bytes of a number.
        is_replicated: whether FSDP2 leaves it whole, as `parallel.sharding.replicated` says.
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
        """How many numbers one of them has."""
        return prod(self.shape)


def weight_of(
    job: Job,
    model: Transformer | None,
    each: Parameter,
    is_trained: bool,
    quantized: Mapping[str, int],
) -> Weight:
    """How a parameter is held.

    Arguments:
        model: None where its parts are not known.
        quantized: bytes of those that are, by their names.
    """
    numbers = prod(each.shape)
    division, heads, inner = ("whole", (), 0) if model is None else _division(model, each)
    state, is_factored = _state(job, each) if is_trained else ((0, 0), False)
    formats = job.precision
    stored = sharded = gathered = quantized.get(each.name, numbers * WIDTHS[formats.params])
    if each.name not in quantized:
        if is_trained:
            sharded = numbers * WIDTHS[formats.sharded(is_sharded=True)]
        if each.kind in ("matrix", "output") and ".adapter." not in each.name:
            gathered = numbers * (
                1 if _gathered_in_float8(job, each) else WIDTHS[formats.gathered(is_sharded=True)]
            )
    return Weight(
        each.shape, 1, division, heads, inner, is_trained,
        stored, sharded, gathered, state, is_factored,
        any(re.search(pattern, each.name) for pattern in job.parallel.sharding.replicated),
    )  # fmt: skip


def in_float8(job: Job, each: Parameter) -> bool:
    """Whether products with a parameter are computed in float8."""
    float8, name = job.precision.float8, each.name.removesuffix(".weight")
    if float8 is None or ".adapter." in name:
        return False
    if len(each.shape) != 2:
        packed, found, _ = name.rpartition(".experts.")
        return float8.experts and bool(found) and not skips(float8, f"{packed}.experts")
    return bool(converted(float8, {name: (each.shape[0], each.shape[1])}))


def _gathered_in_float8(job: Job, each: Parameter) -> bool:
    float8 = job.precision.float8
    return float8 is not None and float8.gathers(job.parallel.reshard) and in_float8(job, each)


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
