"""The choice of an attention backend on this machine, and its trial for `check`.

`selection` has the limits of backends, and the order of `auto`, without torch.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from setpoint.config import Problem, SetpointError
from setpoint.model.attention.backends import KERNELS, SDPA, Backend, Eager, RowLayout, Scores
from setpoint.model.attention.config import Backend as BackendName
from setpoint.model.attention.selection import (
    EVERYWHERE,
    LIMITS,
    Demands,
    backend_problem,
    candidates,
    chosen,
    demands_of,
    kinds_of,
    placement_problems,
    query_size,
)
from setpoint.model.attention.varlen import FLASH, PACKAGES, Flash, Varlen
from setpoint.units.dtype import DType

if TYPE_CHECKING:
    from setpoint.model.config import TransformerConfig

GENERATIONS: Final = {9: 3, 10: 4}
"""Version of FlashAttention by major compute capability."""


def choose_backend(
    config: TransformerConfig,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    *,
    masked: bool = False,
    cached: bool = False,
    ring: bool = False,
) -> Backend:
    """Construct the backend for some of a model's layers on a device.

    Arguments:
        dtype: dtype of queries, keys and values.
        masked, ring: see `candidates`.
        cached: whether a cache is used. Masks then have few rows, and new lengths in each call, so
            auto chooses as on a CPU.
    """
    kind = "cpu" if cached else device.type
    compute = "bf16" if dtype.itemsize == 2 else "fp32"
    name, demands = config.attention_backend, demands_of(config)
    names = candidates(demands, name, kind, compute, masked=masked, ring=ring)
    return first_available(names, device, demands)


def first_available(
    names: tuple[BackendName, ...], device: torch.device, demands: Demands
) -> Backend:
    """Construct the first backend that is installed and runs on a device.

    Raises:
        SetpointError: no backend qualifies.
    """
    return make_backend(_first_available(names, device, demands.head, demands.dropout))


def _first_available(
    names: tuple[BackendName, ...], device: torch.device, head: int, dropout: bool
) -> BackendName:
    """The first backend that runs; activates its FlashAttention version in PyTorch's operators."""
    for name in names:
        if unavailable_reason(name, device.type) is None:
            if device.type == "cuda":
                use_flash(name, device, head, dropout)
            return name
    reason = unavailable_reason(names[0], device.type)
    raise SetpointError(f"model.attention_backend = {names[0]}: {reason}; use auto, sdpa or eager")


# `torch.compiler.assume_constant_result` without loading the compiler: installed packages do not
# change, and looking them up would break graphs.
_first_available._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]


def make_backend(name: BackendName) -> Backend:
    """Construct a backend by its name."""
    if name == "eager":
        return Eager()
    if name in KERNELS:
        return SDPA(name)
    if name == "flex":
        # Imports the compiler.
        from setpoint.model.attention.flex import Flex

        return Flex()
    return Varlen() if name == "varlen" else Flash(int(name[-1]))


def unavailable_reason(name: BackendName, device: str) -> str | None:
    """Reason why a backend does not run on a device type (package or hardware), or None."""
    if LIMITS[name].gpu_only and device != "cuda":
        return f"it needs a GPU, but the device is {device}"
    version = int(name[-1]) if name.startswith("flash_attention_") else None
    if version is not None and not has_package(version):
        module, source = PACKAGES[version]
        return f"the package of {module} is not installed ({source})"
    if name == "varlen" and find_spec("torch.nn.attention.varlen") is None:
        return f"PyTorch {torch.__version__} has no varlen_attn, which was added in 2.10"
    if name == "flex" and device == "cuda" and find_spec("triton") is None:
        return "its kernels are written in Triton, which is not installed (pip install triton)"
    return None


def use_flash(name: str, device: torch.device, head: int, dropout: bool) -> None:
    """Activate the fastest version of FlashAttention in PyTorch's flash operators.

    PyTorch registers versions 3 and 4, each for a generation of GPUs; its own kernels are version
    2. A backend with a version in its name, as for rings, gets that version.
    """
    registered = getattr(nn.attention, "list_flash_attention_impls", list)()
    version = int(name[-1]) if name.startswith("flash_attention_") else None
    if version is None:
        version = 2 if dropout else _fastest_flash(device, head)
    implementation = f"FA{version}" if f"FA{version}" in registered else None
    attention: Any = nn.attention
    if not registered or attention.current_flash_attention_impl() == implementation:
        return
    if implementation is None:
        attention.restore_flash_attention_impl()
    else:
        attention.activate_flash_attention_impl(implementation)


@cache
def _fastest_flash(device: torch.device, head: int) -> int:
    version = GENERATIONS.get(torch.cuda.get_device_capability(device)[0], 2)
    largest = LIMITS[FLASH[version]].largest_head
    assert largest is not None
    fits = head <= largest and head % LIMITS[FLASH[version]].head_multiple == 0
    return version if fits and has_package(version) else 2


def has_package(version: int) -> bool:
    """True if the package of a version of FlashAttention is installed."""
    module = PACKAGES[version][0]
    parent = module.partition(".")[0]
    return find_spec(parent) is not None and (parent == module or find_spec(module) is not None)


LENGTH = 16
"""Number of positions of a trial."""


def device_problems(
    config: TransformerConfig, device: str, compute: str, *, training: bool
) -> Iterator[Problem]:
    """Find out why a model's backend does not run on this machine.

    PyTorch's named kernels can refuse to run for many reasons (GPU generation, head sizes, dtypes,
    masks), so they are tried on a few positions, forward and backward.

    Returns:
        a problem of model.attention_backend, or none; a missing device is reported separately.
    """
    name = chosen(config)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if name in EVERYWHERE or (device == "cuda" and not torch.cuda.is_available()):
        return
    problems = list(placement_problems(config, device, compute, training=training))
    yield from problems
    if problems:
        return
    reason = unavailable_reason(name, device)
    if reason is None and name != "flex":  # whose compilation takes too long for a check
        reason = _trial(config, torch.device(device), DType(compute).torch(), training)
    if reason is not None:
        yield backend_problem(config, reason)


def _trial(
    config: TransformerConfig, device: torch.device, dtype: torch.dtype, training: bool
) -> str | None:
    """Run the backend on a few positions; return why it fails."""
    backend = choose_backend(config, device, dtype)
    size = query_size(config)
    value_size = size if config.mla is None else config.mla.value_head_dim
    kv_heads = config.kv_heads if config.mla is None else config.heads
    sizes = ((config.heads, size), (kv_heads, size), (kv_heads, value_size))
    query, key, value = (
        torch.zeros(1, LENGTH, *heads, device=device, dtype=dtype, requires_grad=training)
        for heads in sizes
    )
    layout = RowLayout(queries=LENGTH, keys=LENGTH, batch=1, device=device)
    dropout = config.attention_dropout if training else 0.0
    scores = Scores(None, config.attention_soft_cap, dropout)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            for kind in kinds_of(config):
                window = LENGTH // 2 if kind == "sliding" else None
                shown = layout.chunked(LENGTH // 2) if kind == "chunked" else layout
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
