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

from setpoint.memory import allocator, heap, recompute
from setpoint.memory.host import PlainOffload
from setpoint.memory.optimizer_offload import StateOnHost
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

    def reentrant(*args: Any, real: Any = recompute._reentrant) -> Any:
        seen.add("reentrant")
        return real(*args)

    recompute._again_class.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recompute, "_reentrant", reentrant)
        computed(job)
    recompute._again_class.cache_clear()
    return seen


def moved(job: Job) -> list[int]:
    """The sizes of the activations that went to the host in an update."""
    sizes: list[int] = []

    def to_host(self: PlainOffload, data: Tensor, real: Any = PlainOffload.to_host) -> Tensor:
        sizes.append(data.numel())
        return real(self, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PlainOffload, "to_host", to_host)
        computed(job)
    return sizes


def at_once(job: Job) -> list[int]:
    """How many parameters each part of a second update has."""
    components = build_components(job)
    loop = Loop(job, components, [], StopRequest(), Position())
    loop.step()
    sizes: list[int] = []

    def update(self: StateOnHost, some: list[Tensor], real: Any = StateOnHost._update) -> None:
        sizes.append(len(some))
        real(self, some)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StateOnHost, "_update", update)
        loop.step()
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
        for variable in (*heap.VARIABLES, "GLIBC_TUNABLES"):
            patch.delenv(variable, raising=False)
        patch.setattr(heap, "_glibc", lambda: library)
        with settings_of(job):
            return [*library.seen]


def segments(job: Job) -> tuple[str, str]:
    """Settings of PyTorch's allocator while the job runs, without and with the user's own."""
    read: Any = vars(torch._C).get("_accelerator_getAllocatorSettings")
    if read is None:
        pytest.skip("this torch does not tell them")
    with pytest.MonkeyPatch.context() as patch:
        for variable in allocator.VARIABLES:
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
STATE = ("memory.optimizer_offload.limit=0",)
# By the name of a field: the change, where it is seen, and what is set on both sides.
ROWS: dict[str, tuple[str, See, tuple[str, ...]]] = {
    "Memory.activation_checkpointing": (f"{BELOW}=full", computed, TWO),
    "Memory.activation_offload": (ACTIVATIONS[-1], moved, ()),
    "Memory.optimizer_offload": (STATE[0], at_once, ()),
    "Memory.empty_cache": ("memory.empty_cache=2 steps", emptied, ()),
    "Memory.expandable_segments": ("memory.expandable_segments=false", segments, ()),
    "Memory.keep_freed": ("memory.keep_freed=false", kept, ()),
    "Full.every": (f"{BELOW}.every=2", computed, FULL),
    "Full.reentrant": (f"{BELOW}.reentrant=true", implementation, FULL),
    "Parts.every": (f"{BELOW}.every=2", computed, PARTS),
    "Parts.parts": (f"{BELOW}.parts=[feed_forward]", computed, PARTS),
    "Parts.reentrant": (f"{BELOW}.reentrant=true", implementation, PARTS),
    "Operators.every": (f"{BELOW}.every=2", computed, OPERATORS),
    "Operators.save": (f"{BELOW}.save=[matmul]", computed, OPERATORS),
    "Operators.matmul_every": (f"{BELOW}.matmul_every=2", computed, OPERATORS),
    "ActivationOffload.limit": ("memory.activation_offload.limit=20 KiB", moved, ACTIVATIONS),
    "ActivationOffload.smallest": ("memory.activation_offload.smallest=4 KiB", moved, ACTIVATIONS),
    "OptimizerOffload.limit": ("memory.optimizer_offload.limit=1 GiB", at_once, STATE),
}
