"""Rows of the table of effects: the fields of what is kept where.

On a machine without a GPU the offloads move tensors within the host, and what they move is seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from setpoint.memory import checkpointing, host_memory, usage
from setpoint.memory.activation_offload import Offload
from setpoint.resilience.signals import StopRequest
from setpoint.train.build.components import build_components
from setpoint.train.callbacks.profile import EmptyCacheCallback
from setpoint.train.config import Job
from setpoint.train.loop import Loop
from setpoint.train.opening import settings_of
from setpoint.train.position import Position
from setpoint.train.run import train

from ..memory.meter import Meter
from ..memory.spared import spared_device


def computed(job: Job) -> Counter[str]:
    """How often each operator ran in an update."""
    components = build_components(job)
    components.model.train()
    loop = Loop(job, components, [], StopRequest(), Position())
    with Meter() as meter:
        loop.step()
    return meter.calls


def implementation(job: Job) -> set[str]:
    """Which of PyTorch's two implementations ran."""
    seen: set[str] = set()

    def reentrant(*args: Any, real: Any = checkpointing._reentrant) -> Any:
        seen.add("reentrant")
        return real(*args)

    checkpointing._recomputed_class.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpointing, "_reentrant", reentrant)
        computed(job)
    checkpointing._recomputed_class.cache_clear()
    return seen


def moved(job: Job) -> list[int]:
    """The sizes of the activations that went to the host in an update."""
    sizes: list[int] = []

    def to_host(self: Offload, data: Tensor, real: Any = Offload.to_host) -> Tensor:
        sizes.append(data.numel())
        return real(self, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Offload, "to_host", to_host)
        computed(job)
    return sizes


def emptied(job: Job) -> list[int]:
    """The steps at which the cache of the allocator was emptied."""
    steps: list[int] = []

    def after(self: EmptyCacheCallback, loop: Loop, update: Any) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.cuda, "empty_cache", lambda: steps.append(loop.position.step))
            real(self, loop, update)

    real = EmptyCacheCallback.after_step
    with pytest.MonkeyPatch.context() as patch, spared_device():
        patch.setattr(EmptyCacheCallback, "after_step", after)
        train(job, Path(job.workspace) / "emptied")
    return steps


class Library:
    """A C library that notes what its allocator is set to."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []

    def mallopt(self, name: int, value: int) -> None:
        self.seen.append((name, value))

    def malloc_trim(self, pad: int) -> None:
        pass


def kept(job: Job) -> list[tuple[int, int]]:
    """What glibc is told to keep while the job runs."""
    library = Library()
    with pytest.MonkeyPatch.context() as patch:
        for variable in (*host_memory.MALLOC_VARIABLES, "GLIBC_TUNABLES"):
            patch.delenv(variable, raising=False)
        patch.setattr(host_memory, "_glibc", lambda: library)
        with settings_of(job):
            return [*library.seen]


def segments(job: Job) -> tuple[str, str]:
    """Settings of PyTorch's allocator while the job runs, without and with the user's own."""
    read: Any = vars(torch._C).get("_accelerator_getAllocatorSettings")
    if read is None:
        pytest.skip("this torch does not tell them")
    with pytest.MonkeyPatch.context() as patch:
        for variable in usage.ALLOCATOR_VARIABLES:
            patch.delenv(variable, raising=False)
        with settings_of(job):
            alone = read()
        before = read()
        patch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
        with settings_of(job):
            assert read() == before, "the user's settings were replaced"
        return alone, before


See = Callable[[Job], Any]
BELOW = "memory.activation_checkpointing"
TWO = ("model.layers=2",)
FULL, PARTS, OPERATORS = ((*TWO, f"{BELOW}={name}") for name in ("full", "parts", "operators"))
ACTIVATIONS = (*TWO, "memory.activation_offload.limit=0", "memory.activation_offload.smallest=0")
# By the name of a field: the change, where it is seen, and what is set on both sides.
ROWS: dict[str, tuple[str, See, tuple[str, ...]]] = {
    "Memory.activation_checkpointing": (f"{BELOW}=full", computed, TWO),
    "Memory.activation_offload": (ACTIVATIONS[-1], moved, ()),
    "Memory.empty_cache": ("memory.empty_cache=2 steps", emptied, ()),
    "Memory.expandable_segments": ("memory.expandable_segments=false", segments, ()),
    "Memory.malloc_retain": ("memory.malloc_retain=false", kept, ()),
    "Full.every": (f"{BELOW}.every=2", computed, FULL),
    "Full.reentrant": (f"{BELOW}.reentrant=true", implementation, FULL),
    "CheckpointedParts.every": (f"{BELOW}.every=2", computed, PARTS),
    "CheckpointedParts.parts": (f"{BELOW}.parts=[feed_forward]", computed, PARTS),
    "CheckpointedParts.reentrant": (f"{BELOW}.reentrant=true", implementation, PARTS),
    "Operators.every": (f"{BELOW}.every=2", computed, OPERATORS),
    "Operators.save": (f"{BELOW}.save=[matmul]", computed, OPERATORS),
    "Operators.matmul_every": (f"{BELOW}.matmul_every=2", computed, OPERATORS),
    "ActivationOffload.limit": ("memory.activation_offload.limit=20 KiB", moved, ACTIVATIONS),
    "ActivationOffload.smallest": ("memory.activation_offload.smallest=4 KiB", moved, ACTIVATIONS),
}
