"""Trial run of a model's attention backend on this device, for `check`."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from setpoint.config import Problem, SetpointError
from setpoint.model.attention.attention import choose_backend, unavailable_reason
from setpoint.model.attention.backends import RowLayout, Scores
from setpoint.model.attention.selection import (
    EVERYWHERE,
    chosen,
    kinds_of,
    placement_problems,
    query_size,
    supporting,
)
from setpoint.units.dtype import DType

if TYPE_CHECKING:
    from setpoint.model.config import ModelConfig, TransformerConfig

LENGTH = 16


def device_problems(
    config: ModelConfig, device: str, compute: str, *, training: bool
) -> Iterator[Problem]:
    """Find out why a model's backend does not run.

    PyTorch's named kernels can refuse to run for many reasons (GPU generation, head sizes, dtypes,
    masks), so they are tried on a few positions, forward and backward.

    Returns:
        a problem of model.attention_backend, or none; a missing device is reported separately.
    """
    from setpoint.model.config import TransformerConfig

    if not isinstance(config, TransformerConfig) or chosen(config) in EVERYWHERE:
        return
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        return
    problems = list(placement_problems(config, device, compute, training=training))
    if not problems:
        reason = _reason(config, torch.device(device), DType(compute).torch(), training)
        if reason is not None:
            valid = ("auto", *supporting(config, EVERYWHERE))
            problems.append(Problem("model.attention_backend", reason, valid=valid))
    yield from problems


def _reason(
    config: TransformerConfig, device: torch.device, dtype: torch.dtype, training: bool
) -> str | None:
    name = chosen(config)
    reason = unavailable_reason(name, device.type)
    if reason is not None:
        return reason
    if name == "flex":
        return None  # compilation takes too long for a check
    return _attempt(config, device, dtype, training)


def _attempt(
    config: TransformerConfig, device: torch.device, dtype: torch.dtype, training: bool
) -> str | None:
    """Run the backend on a few random positions; return why it fails."""
    backend = choose_backend(config, device, dtype).backend
    size = query_size(config)
    value_size = size if config.mla is None else config.mla.value_head_dim
    kv_heads = config.kv_heads if config.mla is None else config.heads
    sizes = ((config.heads, size), (kv_heads, size), (kv_heads, value_size))
    query, key, value = (
        torch.zeros(1, LENGTH, *heads, device=device, dtype=dtype, requires_grad=training)
        for heads in sizes
    )
    layout = RowLayout(queries=LENGTH, keys=LENGTH, batch=1, device=device)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            for kind in kinds_of(config):
                window = LENGTH // 2 if kind == "sliding" else None
                shown = layout.chunked(LENGTH // 2) if kind == "chunked" else layout
                dropout = config.attention_dropout if training else 0.0
                scores = Scores(None, config.attention_soft_cap, dropout)
                mask = backend.prepare_mask(shown, window)
                mixed = backend.attend(query, key, value, mask, scores)
                if training:
                    mixed.sum().backward()
        except (RuntimeError, SetpointError) as error:
            reason = _reasons([str(w.message) for w in caught]) or _reasons([str(error)])
            place = "GPU" if device.type == "cuda" else device.type.upper()
            return f"it does not run on this {place}: {reason}"
    return None


def _reasons(words: list[str]) -> str:
    """PyTorch's reasons, without those about other kernels."""
    lines = [text.partition(" (Triggered")[0].strip().partition("\n")[0] for text in words]
    reasons = [line for line in lines if "not used because" not in line and "disabled" not in line]
    return "; ".join(dict.fromkeys(line.rstrip(".") for line in reasons))
