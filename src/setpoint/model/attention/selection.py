"""The backend of a model on the device that is here: found, made, and tried."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

import torch

from setpoint.config import Problem, SetpointError
from setpoint.model.attention.backend import SDPA, Backend, Eager, Scores
from setpoint.model.attention.config import Backend as BackendName
from setpoint.model.attention.layout import Layout
from setpoint.model.attention.support import (
    EVERYWHERE,
    LIMITS,
    Demands,
    able,
    candidates,
    chosen,
    demands_of,
    placement_problems,
    query_size,
)
from setpoint.model.attention.varlen import (
    PACKAGES,
    Flash,
    Varlen,
    has_package,
    use_flash,
)
from setpoint.units.dtype import DType

if TYPE_CHECKING:
    from setpoint.model.config import ModelConfig, TransformerConfig

LENGTH = 16


class Chosen(NamedTuple):
    """A backend, and its name in the configuration."""

    name: BackendName
    backend: Backend


def choose_backend(
    config: TransformerConfig,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    *,
    masked: bool = False,
    cached: bool = False,
    ring: bool = False,
) -> Chosen:
    """Make the backend of some layers of a model on a device.

    Arguments:
        dtype: of queries, keys and values.
        masked, ring: see `candidates`.
        cached: whether keys of earlier calls are kept, whose lengths change from call to call.

    Raises:
        SetpointError: it does not run on that device, or its package is missing.
    """
    # With a cache auto is as on a CPU: masks have few rows, and lengths change with each call.
    kind = "cpu" if cached else device.type
    compute = "bf16" if dtype.itemsize == 2 else "fp32"
    name = config.attention_backend
    names = candidates(demands_of(config), name, kind, compute, masked=masked, ring=ring)
    return ready(names, device, demands_of(config))


def ready(names: tuple[BackendName, ...], device: torch.device, demands: Demands) -> Chosen:
    """Make the first backend that has all it needs on a device.

    Raises:
        SetpointError: none has.
    """
    name = _ready(names, device, demands.head, demands.dropout)
    return Chosen(name, make_backend(name))


def _ready(
    names: tuple[BackendName, ...], device: torch.device, head: int, dropout: bool
) -> BackendName:
    """The first that has all it needs, with the flash operators that it is to compute by."""
    for name in names:
        if missing(name, device.type) is None:
            if device.type == "cuda":
                use_flash(name, device, head, dropout)
            return name
    reason = missing(names[0], device.type)
    raise SetpointError(f"model.attention_backend = {names[0]}: {reason}; use auto, sdpa or eager")


# As `torch.compiler.assume_constant_result` marks it, which loads the compiler: what is installed
# does not change, and a graph would end where it is looked up.
_ready._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]


def make_backend(name: BackendName) -> Backend:
    """Make a backend by its name."""
    match name:
        case "eager":
            return Eager()
        case "flex":
            # Its module asks for a compiler.
            from setpoint.model.attention.flex import Flex

            return Flex()
        case "varlen":
            return Varlen()
        case "flash_attention_2" | "flash_attention_3" | "flash_attention_4":
            return Flash(int(name[-1]))
        case _:
            return SDPA(name)


def missing(name: BackendName, device: str) -> str | None:
    """Find what a backend lacks on a kind of device.

    Returns:
        what is missing, in words; None if nothing is.
    """
    if LIMITS[name].gpu_only and device != "cuda":
        return f"it needs a GPU, and the device is {device}"
    version = int(name[-1]) if name.startswith("flash_attention_") else None
    if version is not None and not has_package(version):
        module, source = PACKAGES[version]
        return f"the package of {module} is not installed ({source})"
    if name == "varlen" and find_spec("torch.nn.attention.varlen") is None:
        return f"PyTorch {torch.__version__} has no varlen_attn, which came with 2.10"
    if name == "flex" and device == "cuda" and find_spec("triton") is None:
        return "its kernels are written in Triton, which is not installed (pip install triton)"
    return None


def device_problems(
    config: ModelConfig, device: str, compute: str, *, training: bool
) -> Iterator[Problem]:
    """Find why the backend of a model does not run.

    The named kernels of PyTorch refuse for many reasons (the device's generation, sizes of heads,
    dtypes, masks), so they are tried on a few positions, forward and backward.

    Arguments:
        compute: the number format of queries, keys and values: "fp32", "bf16" or "fp16".

    Returns:
        a problem of model.attention_backend, or none; none either where the device is missing,
        which is a problem of its own.
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
            valid = ("auto", *able(config, EVERYWHERE))
            problems.append(Problem("model.attention_backend", reason, valid=valid))
    yield from problems


def _reason(
    config: TransformerConfig, device: torch.device, dtype: torch.dtype, training: bool
) -> str | None:
    name = chosen(config)
    lacking = missing(name, device.type)
    if lacking is not None:
        return lacking
    if name == "flex":
        return None  # compiling it takes longer than a check may
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
    layout = Layout(queries=LENGTH, keys=LENGTH, batch=1, device=device)
    windows = {LENGTH // 2 if kind == "sliding" else None for kind in config.attention_pattern}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            for window in windows:
                dropout = config.attention_dropout if training else 0.0
                scores = Scores(None, config.attention_soft_cap, dropout)
                mask = backend.prepare_mask(layout, window)
                mixed = backend.attend(query, key, value, mask, scores)
                if training:
                    mixed.sum().backward()
        except (RuntimeError, SetpointError) as error:
            why = _why([str(warning.message) for warning in said]) or _why([str(error)])
            place = "GPU" if device.type == "cuda" else device.type.upper()
            return f"it does not run on this {place}: {why}"
    return None


def _why(words: list[str]) -> str:
    """PyTorch's own reasons, without what it says of the kernels that were not asked for."""
    lines = [text.partition(" (Triggered")[0].strip().partition("\n")[0] for text in words]
    said = [line for line in lines if "not used because" not in line and "disabled" not in line]
    return "; ".join(dict.fromkeys(line.rstrip(".") for line in said))
