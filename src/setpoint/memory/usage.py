"""Memory use of training by part, and PyTorch's allocator."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from errno import ENOMEM
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from setpoint.shapes.placed import local_part
from setpoint.units.size import in_units

ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")


class MemoryReport(NamedTuple):
    """Bytes by purpose, on this rank.

    Arguments:
        masters: master copies of parameters, which the optimizer updates.
        gradients: gradients of trained parameters, as passed to the optimizer.
        on_host: part of all these that is on the host, if the model computes on another device.
        peak: on a GPU, peak memory of tensors in the first step; on a CPU, peak memory of the
            process so far, with the interpreter, libraries and data.
        rest: on a GPU, the rest of the peak: activations, logits and temporaries. None on a CPU,
            where it is not measured.
    """

    parameters: int
    masters: int
    gradients: int
    optimizer_state: int
    on_host: int
    buffers: int
    peak: int
    rest: int | None

    def line(self) -> str:
        """Format the report on one line."""
        named = {
            "parameters": self.parameters,
            "masters": self.masters,
            "gradients": self.gradients,
            "optimizer state": self.optimizer_state,
            "buffers": self.buffers,
        }
        parts = [f"{name} {in_units(size)}" for name, size in named.items() if size]
        if self.on_host:
            parts.append(f"{in_units(self.on_host)} of these on the host")
        if self.rest is None:
            parts.append(f"peak memory (RSS) {in_units(self.peak)}")
        else:
            parts.append(f"activations and the rest {in_units(self.rest)}")
            parts.append(f"{in_units(self.peak)} at the peak")
        return "memory: " + ", ".join(parts)


def measure(
    model: nn.Module,
    weights: Mapping[str, nn.Parameter],
    optimizer: Optimizer,
    device: torch.device,
    known: Mapping[str, int] = MappingProxyType({}),
) -> MemoryReport:
    """Measure memory after a step, and its peak.

    Arguments:
        device: device of the model; on a GPU, the peak counts from `reset_peak`.
        known: bytes of parts that an engine stores in its own form.
    """
    model_params = dict(model.named_parameters())
    masters = [
        weight for name, weight in weights.items() if _is_separate(weight, model_params[name])
    ]
    state = [
        leaf
        for leaf in pytree.tree_leaves(list(optimizer.state.values()))
        if isinstance(leaf, Tensor)
    ]
    gradients = {
        name: _gradient(model_params[name], weight)
        for name, weight in weights.items()
        if weight.requires_grad
    }
    on_host = 0
    if device.type != "cpu":
        on_host = _bytes(t for t in (*model_params.values(), *masters, *state) if t.is_cpu)
        on_host += sum(size for name, size in gradients.items() if weights[name].is_cpu)
    parts = {
        "parameters": _bytes(model_params.values()),
        "masters": _bytes(masters),
        "gradients": sum(gradients.values()),
        "optimizer_state": _bytes(state),
        "on_host": on_host,
        "buffers": _bytes(model.buffers()),
        **known,
    }
    if device.type != "cuda":
        return MemoryReport(**parts, peak=process_peak(), rest=None)
    peak = torch.cuda.max_memory_allocated(device)
    on_device = sum(parts.values()) - 2 * parts["on_host"]
    return MemoryReport(**parts, peak=peak, rest=max(0, peak - on_device))


def reset_peak(device: torch.device) -> None:
    """Reset the peak memory of a GPU; no effect on a CPU."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def process_peak() -> int:
    """Peak memory of this process in bytes; 0 if the system does not report it."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in map(local_part, tensors))


def _gradient(weight: Tensor, owner: Tensor) -> int:
    """Bytes of a gradient, which may have another dtype before it reaches the optimizer."""
    dtype: Any = getattr(weight, "grad_dtype", None) or weight.dtype
    return local_part(owner).numel() * max(dtype.itemsize, owner.dtype.itemsize)


def _is_separate(owner: Tensor, weight: Tensor) -> bool:
    return owner is not weight and local_part(owner).data_ptr() != local_part(weight).data_ptr()


@contextmanager
def expandable_segments() -> Iterator[None]:
    """Let GPU memory segments grow, unless the environment configures the allocator.

    Otherwise these settings would replace the user's.

    Returns:
        a context; on exit, segments have fixed sizes again, as by default.
    """
    if any(os.environ.get(name) for name in ALLOCATOR_VARIABLES):
        yield
        return
    # Only environment variables are public, and PyTorch may have read them when it was imported.
    setting = cast("Any", torch._C)._accelerator_setAllocatorSettings
    setting("expandable_segments:True")
    try:
        yield
    finally:
        setting("expandable_segments:False")


def is_out_of_memory(error: Exception) -> bool:
    """True if an error means out of memory."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == ENOMEM  # of a process or a mapping
    # The CPU allocator has no error class, nor does memory that is shared by processes or
    # page-locked, and a size can overflow before the allocation.
    words = (
        "can't allocate memory",
        "Cannot allocate memory",
        "CUDA error: out of memory",
        "not enough memory",
        "Storage size calculation overflowed",
    )
    return isinstance(error, RuntimeError) and any(text in str(error) for text in words)
