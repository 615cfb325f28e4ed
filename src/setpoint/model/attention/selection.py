"""Limits of attention backends, and the choice of one by device, dtype, window and documents.

This file does not import torch, so that the model, `check` and the plan can share its functions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from math import inf
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, get_args

from setpoint.config import Problem
from setpoint.model.attention.config import Backend, Kind

if TYPE_CHECKING:
    from setpoint.model.config import TransformerConfig

BACKENDS: tuple[Backend, ...] = get_args(Backend)
LARGEST_FLASH_HEAD = 256
EVERYWHERE: tuple[Backend, ...] = ("sdpa", "eager")
SMALLEST_FLEX_HEAD = 16
"""The smallest block of Triton's products on a GPU."""


class BackendLimits(NamedTuple):
    """Limits of a backend.

    Arguments:
        masks: representation of documents, windows and padding: a `dense` S x S mask, a sparse mask
            of `blocks`, the `lengths` of sequences, or no mask (`causal`).
        gpu_only: runs on GPUs only.
        half: on a GPU, computes only in bf16 or fp16.
        soft_cap, dropout, sinks: supports soft-capping, attention dropout, attention sinks.
        latent: values may differ from keys in size, as in latent attention.
        deterministic: has a deterministic backward pass.
        lse: returns the log-sum-exp, which a ring needs to merge blocks.
    """

    masks: Literal["dense", "blocks", "lengths", "causal"]
    gpu_only: bool = False
    half: bool = False
    soft_cap: bool = False
    dropout: bool = True
    sinks: bool = False
    latent: bool = True
    largest_head: int | None = None
    head_multiple: int = 1
    deterministic: bool = True
    lse: bool = True


LIMITS: Final[dict[Backend, BackendLimits]] = {
    "eager": BackendLimits("dense", soft_cap=True, sinks=True),
    "sdpa": BackendLimits("dense"),
    "sdpa_flash": BackendLimits("causal", half=True, latent=False, largest_head=LARGEST_FLASH_HEAD),
    "sdpa_efficient": BackendLimits("dense", gpu_only=True),
    "sdpa_cudnn": BackendLimits("dense", gpu_only=True, half=True, deterministic=False),
    "sdpa_math": BackendLimits("dense"),
    "flex": BackendLimits("blocks", soft_cap=True, dropout=False, sinks=True, lse=False),
    "varlen": BackendLimits(
        "lengths", gpu_only=True, half=True, dropout=False, latent=False,
        largest_head=LARGEST_FLASH_HEAD, head_multiple=8,
    ),
    "flash_attention_2": BackendLimits(
        "lengths", gpu_only=True, half=True, soft_cap=True, latent=False,
        largest_head=LARGEST_FLASH_HEAD,
    ),
    "flash_attention_3": BackendLimits(
        "lengths", gpu_only=True, half=True, soft_cap=True, dropout=False, latent=False,
        largest_head=LARGEST_FLASH_HEAD, head_multiple=8,
    ),
    # Its backward pass of sequences has no cap, and its documented head sizes end at 128.
    "flash_attention_4": BackendLimits(
        "lengths", gpu_only=True, half=True, dropout=False, latent=False, largest_head=128,
        head_multiple=8,
    ),
}  # fmt: skip

HARDWARE: Final[dict[Backend, tuple[float, float]]] = {
    "sdpa_flash": (8.0, inf),
    "sdpa_cudnn": (8.0, inf),
    "varlen": (8.0, inf),
    "flash_attention_2": (8.0, inf),
    "flash_attention_3": (9.0, 9.9),
    "flash_attention_4": (9.0, inf),
}
"""Lowest and highest CUDA compute capability of a kernel."""

CAUSAL_ON_GPU: tuple[Backend, ...] = ("sdpa", "flex", "eager")
"""Order of auto on a GPU for plain causal attention."""

MASKED_ON_GPU: tuple[Backend, ...] = ("varlen", "flex", "sdpa", "eager")
"""Order of auto on a GPU for isolated documents and windows: dense masks last."""


class Demands(NamedTuple):
    """Requirements of a model's attention.

    Arguments:
        head, value_head: head dimension of queries and keys, and of values.
        soft_cap, dropout, sinks: see `BackendLimits`.
    """

    head: int
    value_head: int
    soft_cap: bool = False
    dropout: bool = False
    sinks: bool = False


def demands_of(config: TransformerConfig) -> Demands:
    """Requirements of a transformer's attention."""
    head = query_size(config)
    return Demands(
        head,
        head if config.mla is None else config.mla.value_head_dim,
        config.attention_soft_cap is not None,
        config.attention_dropout > 0,
        config.attention_sinks,
    )


def candidates(
    demands: Demands,
    name: Backend = "auto",
    device: str = "cpu",
    compute: str = "fp32",
    *,
    masked: bool = False,
    ring: bool = False,
) -> tuple[Backend, ...]:
    """Backends that can compute the attention of some layers, fastest first.

    Arguments:
        name: name in the configuration; the only candidate unless it is auto.
        device: "cpu" or "cuda".
        compute: dtype of queries, keys and values: "fp32", "bf16" or "fp16".
        masked: whether isolated documents or windows shorter than rows hide keys.
        ring: whether a ring of ranks divides sequences and merges blocks.
    """
    if name != "auto":
        return (name,)
    order: tuple[Backend, ...] = EVERYWHERE
    if device == "cuda":
        order = MASKED_ON_GPU if masked else CAUSAL_ON_GPU
    return tuple(
        name
        for name in order
        if not any(unsupported(demands, name))
        and device_problem(demands, name, device, compute) is None
        and (LIMITS[name].lse or not ring)
    )


def chosen(
    config: TransformerConfig, device: str = "cpu", compute: str = "fp32", **layers: bool
) -> Backend:
    """The first of `candidates`.

    On a CPU, auto is sdpa, or eager with a soft cap. On a GPU, it is sdpa (cuDNN first) for plain
    causal attention, varlen for isolated documents and windows, and flex where neither is possible.
    """
    demands, name = demands_of(config), config.attention_backend
    return candidates(demands, name, device, compute, **layers)[0]


class Dense(NamedTuple):
    """Attention with S x S tensors: the scores of all heads, or only the mask."""

    name: Backend
    scores: bool
    masked: bool


def find_dense(
    config: TransformerConfig, compute: str, length: int, *, documents: bool, ring: bool = False
) -> Dense | None:
    """Find layers whose attention uses S x S tensors on a GPU.

    Arguments:
        compute, ring: see `candidates`.
        length: length of the rows, S.
        documents: whether documents are isolated.
    """
    for kind in kinds_of(config):
        size = reach(config, kind)
        masked = documents or (size is not None and size < length)
        name = chosen(config, "cuda", compute, masked=masked, ring=ring)
        scores = name in ("eager", "sdpa_math")
        if scores or (masked and LIMITS[name].masks == "dense"):
            return Dense(name, scores, masked)
    return None


def backend_problems(config: TransformerConfig) -> Iterator[Problem]:
    """Requirements of the model that its backend supports on no device."""
    for reason, field in unsupported(demands_of(config), config.attention_backend):
        yield Problem(
            "attention_backend",
            f"{config.attention_backend} {reason}",
            valid=supporting(config),
            also=(field,),
        )


def placement_problems(
    config: TransformerConfig, device: str, compute: str, *, training: bool
) -> Iterator[Problem]:
    """Problems of a model's backend on a device type.

    Arguments:
        device: "cpu", "cuda", or "auto": either.
        compute: dtype of queries, keys and values: "fp32", "bf16" or "fp16".
    """
    if config.attention_backend == "auto":
        return
    demands = demands_of(config)
    reason = device_problem(demands, config.attention_backend, device, compute, training=training)
    if reason is not None:
        yield backend_problem(config, reason, "parallel.device")


def backend_problem(config: TransformerConfig, reason: str, *also: str) -> Problem:
    """The problem of a backend that cannot be used; valid are those that run everywhere."""
    valid = ("auto", *supporting(config, EVERYWHERE))
    return Problem("model.attention_backend", reason, valid=valid, also=also)


def device_problem(
    demands: Demands, name: Backend, device: str, compute: str, *, training: bool = True
) -> str | None:
    """Reason why a backend does not run on a device type, or None."""
    limits = LIMITS[name]
    if limits.gpu_only and device == "cpu":
        return f"it needs a GPU, but the device is {device}"
    if name == "flex" and device == "cpu" and training:
        return "PyTorch has no backward pass for it on the CPU"
    if limits.half and compute == "fp32" and (limits.gpu_only or device == "cuda"):
        return "it supports only bf16 and fp16; set precision.compute"
    if name == "flex" and device == "cuda" and demands.head < SMALLEST_FLEX_HEAD:
        return f"it needs a head dimension of at least {SMALLEST_FLEX_HEAD} on a GPU"
    return None


def determinism_problems(config: TransformerConfig) -> Iterator[Problem]:
    """Problems of a model's backend with `deterministic`.

    Only cuDNN's kernel has no deterministic backward pass; sdpa then leaves it out.
    """
    name = config.attention_backend
    if name != "auto" and not LIMITS[name].deterministic:
        reason = "cuDNN's attention is not deterministic, so PyTorch rejects it"
        yield backend_problem(config, reason, "deterministic")


def supporting(config: TransformerConfig, among: tuple[Backend, ...] = BACKENDS) -> list[Backend]:
    """Backends that support a model's requirements on some device."""
    demands = demands_of(config)
    return [name for name in among if not any(unsupported(demands, name))]


def unsupported(demands: Demands, name: Backend) -> Iterator[tuple[str, str]]:
    """Unsupported requirements of a backend, described, each with the field that causes it."""
    if name == "auto":
        return
    limits = LIMITS[name]
    if demands.soft_cap and not limits.soft_cap:
        yield "does not support a soft cap", "attention_soft_cap"
    if demands.dropout and not limits.dropout:
        yield "does not support attention dropout", "attention_dropout"
    if demands.sinks and not limits.sinks:
        yield "does not support attention sinks", "attention_sinks"
    if demands.value_head != demands.head:
        if not limits.latent:
            yield (
                "needs keys and values of one size, unlike latent attention",
                "mla.value_head_dim",
            )
    elif limits.largest_head is not None and demands.head > limits.largest_head:
        yield f"supports head dimensions up to {limits.largest_head}", "head_dim"
    elif demands.head % limits.head_multiple:
        yield f"supports head dimensions that are multiples of {limits.head_multiple}", "head_dim"


def kind_of(config: TransformerConfig, layer: int) -> Kind:
    """Kind of attention of a layer, by its index in the whole model."""
    return config.attention_pattern[layer % len(config.attention_pattern)]


def kinds_of(config: TransformerConfig) -> list[Kind]:
    """Kinds of attention of a model's layers."""
    return list(dict.fromkeys(config.attention_pattern[: config.layers]))


def reach(config: TransformerConfig, kind: Kind) -> int | None:
    """Window or chunk size of a kind of attention; None: unlimited."""
    return {"sliding": config.sliding_window, "chunked": config.attention_chunk}.get(kind)


def attention_scale(config: TransformerConfig) -> float | None:
    """Softmax scale of attention; None for the usual one, 1 / sqrt(query_size).

    Under muP it is sqrt(base_head_dim) / head_dim, because queries and keys are correlated after
    training (Yang et al., 2022).
    """
    if config.attention_scale is not None:
        return config.attention_scale
    if config.mup is not None and config.mup.base_head_dim is not None:
        return math.sqrt(config.mup.base_head_dim) / query_size(config)
    return None


def query_size(config: TransformerConfig) -> int:
    """Head dimension of queries and keys."""
    if config.mla is not None:
        return config.mla.nope_head_dim + config.mla.rope_head_dim
    return config.head_dim
